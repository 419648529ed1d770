"""Measure how fast a run is, compared with how fast the machine can be.

MFU (model FLOPs utilisation; Chowdhery et al. 2022, PaLM, appendix B) = FLOPs that the model needs for the
tokens it trained on / (time x peak). The forward pass counts twice the multiplications, the backward pass
twice the forward. A forward that is run again (for the whole-batch contrastive gradient, or by activation
checkpointing) is real work that the model does not need: it counts in `hfu`, hardware FLOPs utilisation.
The peak is measured, not taken from a data sheet: a matrix product in the run's own precision on the run's
own device.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

_MOST_STEPS = 1000  # between two evaluations, for the time left to be by whole stretches of them

BACKWARD_COST = 2.0
"""FLOPs of a backward pass per FLOP of its forward: one product for inputs' gradients, one for weights'."""


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs of one forward pass, by what they grow with.

    per_token: of the encoder's linear layers. attention: (FLOPs per query-key pair, window or None) of each
    layer; a window bounds the keys that a token sees. per_masked_token: of the masked-language head.
    """

    per_token: float
    attention: tuple[tuple[float, int | None], ...]
    per_masked_token: float

    def forward(self, lengths: Sequence[int], masked_tokens: float = 0.0) -> float:
        """Return the FLOPs of one forward pass over sequences of the given lengths."""
        total = self.per_token * sum(lengths) + self.per_masked_token * masked_tokens
        for per_pair, window in self.attention:
            total += per_pair * sum(n * (n if window is None else min(n, window)) for n in lengths)
        return total


def model_flops(lm: nn.Module) -> ModelFlops:
    """Count a Hugging Face masked language model's FLOPs from its modules and config.

    Linear layers inside `lm.base_model` work on every token, those outside on the predicted ones. Attention
    is two products per layer, queries with keys and weights with values: 4 x width FLOPs per query-key pair.
    Embedding look-ups, norms, softmax and biases are left out, as is usual: below 1% together.
    """
    encoder = {id(module) for module in lm.base_model.modules()}
    per_token = per_masked = 0.0
    for module in lm.modules():
        if isinstance(module, nn.Linear):
            flops = 2.0 * module.in_features * module.out_features
            if id(module) in encoder:
                per_token += flops
            else:
                per_masked += flops
    config = lm.config
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    local = getattr(config, "local_attention", None) or getattr(config, "sliding_window", None)
    pairs = tuple(
        (4.0 * config.hidden_size, int(local) if local and kind == "sliding_attention" else None)
        for kind in kinds
    )
    return ModelFlops(per_token, pairs, per_masked)


def model_flops_per_token(lm: nn.Module, lengths: Sequence[int], masked_rate: float = 0.0) -> float:
    """Return the training FLOPs (forward and backward) per token, the mean over sequences of these lengths.

    masked_rate: share of the tokens on which the masked-language head runs.
    """
    tokens = sum(lengths)
    return (1 + BACKWARD_COST) * model_flops(lm).forward(lengths, masked_rate * tokens) / tokens


@dataclass(frozen=True)
class FlopsMeter:
    """Turn a rate of tokens into utilisation.

    per_token: training FLOPs. peak: FLOP/s of all devices of the run together. repeated_per_token: FLOPs of
    forward passes that are run again, averaged over all tokens.
    """

    per_token: float
    peak: float
    repeated_per_token: float = 0.0


class Throughput:
    """Compute rates over the steps since the last reset, and the time that is left.

    Rates divide by the time of the steps alone, without evaluations and checkpoints. The time left is by the
    wall clock over the last steps, with everything.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        window: int = 200,
        every: int = 0,
        work: Callable[[int], float] = float,
        flops: FlopsMeter | None = None,
    ) -> None:
        """window: steps that tell the time left, rounded up to a multiple of `every`, those from one
        evaluation to the next, if these are not many: else it would be several times as long behind one.
        work: of all steps before one, in any unit.
        """
        self.clock, self._work, self._flops = clock, work, flops
        self.reset()
        self._mark = clock()
        multiple = every * math.ceil(window / every) if 0 < every <= _MOST_STEPS else window
        self._wall: deque[tuple[int, float]] = deque(maxlen=multiple + 1)

    def begin(self, step: int) -> None:
        """Set the step that training goes on from: what was before is in no rate and in no time left."""
        self._mark = self.clock()
        self._wall.clear()
        self._wall.append((step, self._mark))

    def pause(self) -> None:
        """Leave the time since the last step out of the rates: it was not training."""
        self._mark = self.clock()

    def add(self, step: int, tokens: int, sequences: int = 0, ended: float | None = None) -> None:
        """Count a step: its time is that since the end of the step before, or since the pause after it.

        ended: by the clock; None: now. A step whose numbers are read during the next one has ended before.
        """
        now = self.clock() if ended is None else ended
        self._tokens += tokens
        self._sequences += sequences
        self._seconds += max(0.0, now - self._mark)
        self._mark = max(now, self._mark)
        self._wall.append((step, now))

    def figures(self, total_steps: int) -> dict[str, float]:
        """Return what a row of metrics says: rates, utilisation, and the seconds until `total_steps`."""
        seconds = self._seconds or math.inf  # before the first step rates are 0
        tokens, sequences = self._tokens / seconds, self._sequences / seconds
        figures = {"tokens_per_second": tokens}
        if sequences:
            figures["sequences_per_second"] = sequences
        if (flops := self._flops) is not None:
            done = flops.per_token + flops.repeated_per_token
            figures |= {"mfu": flops.per_token * tokens / flops.peak, "hfu": done * tokens / flops.peak}
        eta = self.eta(total_steps)
        return figures if eta is None else figures | {"eta_seconds": eta}

    def reset(self) -> None:
        self._tokens = self._sequences = 0
        self._seconds = 0.0

    def eta(self, total_steps: int) -> float | None:
        """Return the seconds until `total_steps`, or None before two points are known."""
        if len(self._wall) < 2 or self._wall[-1][0] <= self._wall[0][0]:
            return None
        (first, then), (last, now) = self._wall[0], self._wall[-1]
        left = max(0, self._work(max(total_steps, last)) - self._work(last))
        return left * (now - then) / (self._work(last) - self._work(first))


def measure_peak_flops(device: torch.device | str, dtype: torch.dtype, seconds: float = 0.05) -> float:
    """Measure the FLOP/s of one device at square matrix products of `dtype`, the best of several runs.

    Takes about five times `seconds`. The size grows until one product takes a noticeable time, so that the
    figure is neither call overhead on a GPU nor a minute's wait on a small CPU. On a CPU it is for the
    threads that torch uses now.
    """
    device = torch.device(device)
    size = 1024  # on a busy CPU the threads of a smaller product mostly wait for each other's turn
    limit = 16384 if device.type == "cuda" else 4096
    while True:
        left = torch.randn(size, size, device=device).to(dtype)
        right = torch.randn(size, size, device=device).to(dtype)
        # kernels are chosen, and thread pools started, at the first call
        _time_products(left, right, 1, device)
        # the least of a few: another process's turn on the cores must not pass for a slow product
        once = min(_time_products(left, right, 1, device) for _ in range(3))
        if once >= seconds / 8 or size >= limit:
            break
        size *= 2
    repeats = max(1, int(seconds / once))
    best = min(_time_products(left, right, repeats, device) for _ in range(4))
    return 2.0 * size**3 * repeats / best


def _time_products(left: torch.Tensor, right: torch.Tensor, repeats: int, device: torch.device) -> float:
    started = work_clock(device)
    for _ in range(repeats):
        torch.mm(left, right)
    return max(work_clock(device) - started, 1e-9)


def work_clock(device: torch.device) -> float:
    """Return the seconds of work so far.

    On a GPU that is wall time after a synchronisation. On a CPU it is the CPU time of this process over the
    number of its threads, so that a busy machine neither makes a kernel look slow nor a run faster than its
    peak.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time() / torch.get_num_threads()
