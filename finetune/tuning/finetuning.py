"""Fine-tune an encoder on labelled sentences or pairs, packed: one row of tokens a step, no padding.

The head is RoBERTa's (Liu et al. 2019; fairseq's RobertaClassificationHead): dropout, linear d -> d, tanh,
dropout, linear d -> C, on the first token's last state. Everything random is a function of (seed, epoch) for
the order of examples and of (seed, step) for dropout, so that a run stopped at any step and gone on with
gives what an unbroken one gives.
"""

from __future__ import annotations

import copy
import io
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from transformers import AutoModelForMaskedLM

from finetune.tuning.labelled import Encoded, Source
from finetune.tuning.recipe import Interrupted, Recipe
from pretrain.common.errors import UserError
from pretrain.common.files import replace_durably
from pretrain.common.memory import FlatMemory
from pretrain.data.microbatches import count_micro_batches, cut, pack
from pretrain.model.architectures import set_dropout
from pretrain.model.attention import ATTENTION_NAME
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.modules import parameter_groups
from pretrain.model.pooling import pool

REGRESSION = 1
"""Number of outputs that stands for regression: a single number per example, mean squared error."""
Scores = Mapping[str, float]
Judge = Callable[[Callable[[Encoded], np.ndarray]], tuple[float, Scores]]
"""Takes a function from examples to logits float32[N, C]; gives the figure that decides (higher is better)
and all scores."""


@dataclass
class Outcome:
    """Hold a finished run.

    best: the entry of `curve` whose deciding figure is highest (the first of equal ones).
    """

    best: dict[str, Any]
    curve: list[dict[str, Any]]
    seconds: float
    tokens_per_second: float
    """Tokens trained on in a second of training, special ones included; there is no padding."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    """State of the whole classifier at `best`, on the CPU, if it was asked for."""


class Classifier(nn.Module):
    """The encoder with the head; C outputs, of which REGRESSION (1) means a number."""

    def __init__(self, encoder: SentenceEncoder, outputs: int, dropout: float):
        """Draws the head's weights, N(0, the model's initializer_range), from torch's global generator."""
        super().__init__()
        self.encoder = encoder
        width = encoder.hidden_size
        self.dropout = nn.Dropout(dropout)
        self.dense, self.output = nn.Linear(width, width), nn.Linear(width, outputs)
        for layer in (self.dense, self.output):
            nn.init.normal_(layer.weight, std=getattr(encoder.lm.config, "initializer_range", 0.02))
            nn.init.zeros_(layer.bias)

    def forward(self, ids: Tensor, lengths: Tensor, token_types: Tensor | None = None) -> Tensor:
        """Return logits [N, C] of packed ids int64[T] and lengths int64[N] (on the CPU).

        float32; float64 from a float64 model.
        """
        first = pool(self.encoder.states(ids, lengths, None, token_types), "cls")
        with torch.autocast(first.device.type, enabled=False):
            hidden = torch.tanh(self.dense(self.dropout(first)))
            return self.output(self.dropout(hidden))


def build_classifier(source: Source, outputs: int, dropout: float, seed: int) -> Classifier:
    """Return a copy of the source's encoder, with this dropout, under a head drawn from `seed`.

    The masked-language head is part of the copy, but takes no gradient.
    """
    old = source.encoder.lm
    config = copy.deepcopy(old.config)
    set_dropout(config, dropout, dropout)
    dtype = next(old.parameters()).dtype
    lm = AutoModelForMaskedLM.from_config(config, attn_implementation=ATTENTION_NAME, dtype=dtype)
    lm.load_state_dict(old.state_dict())
    lm.requires_grad_(False)
    lm.base_model.requires_grad_(True)
    torch.manual_seed(seed)
    return Classifier(SentenceEncoder(lm, "cls"), outputs, dropout).to(dtype)


def loss_of(logits: Tensor, targets: Tensor, regression: bool) -> Tensor:
    """Sum over examples of the cross-entropy, or of the squared error."""
    if regression:
        return mse_loss(logits[:, 0], targets.to(logits.dtype), reduction="sum")
    return cross_entropy(logits, targets, reduction="sum")


def shuffled(count: int, seed: int, epoch: int) -> np.ndarray:
    """int64[count]: the order of examples in an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Return the rate of update `step` (from 0) of `steps`.

    A linear rise over ceil(warmup * steps) updates, then a linear fall to 0.
    """
    rise = math.ceil(recipe.warmup * steps)
    if step < rise:
        return recipe.lr * (step + 1) / rise
    return recipe.lr * max(0.0, (steps - step) / max(1, steps - rise))


def choose_precision(name: str) -> str:
    """ "fp32" or "bf16"; "auto": bf16 where there is a GPU.

    Raises:
        UserError: another name.
    """
    if name not in ("auto", "fp32", "bf16"):
        raise UserError(f"--precision {name!r}: choose auto (bf16 on a GPU, else fp32), fp32 or bf16")
    return name if name != "auto" else "bf16" if torch.cuda.is_available() else "fp32"


@torch.inference_mode()
def logits_of(model: Classifier, data: Encoded, token_budget: int, precision: str) -> np.ndarray:
    """float32[N, C] of the model where it is, without dropout, in the order of `data`."""
    lengths = data.tokens.lengths
    logits = np.empty((len(data), model.output.out_features), np.float32)
    model.eval()
    for part in cut(lengths, count_micro_batches(lengths, token_budget)):
        logits[part] = _forward(model, data, part, precision).float().cpu().numpy()
    return logits


def _forward(model: Classifier, data: Encoded, rows: np.ndarray, precision: str) -> Tensor:
    device = model.output.weight.device
    row = pack(data.tokens, rows, device)
    types = None if data.token_types is None else pack(data.token_types, rows, device).ids
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        return model(row.ids, row.lengths, types)


class FineTuning:
    """One run: a recipe, a seed, training examples, and what judges the model.

    Args:
        outputs: classes, or REGRESSION. judge: see `Judge`; called at the end of every epoch, and every
            `evaluate_every` updates if that is not 0.
        rows: (seed, epoch) -> int64[M], the examples of the epoch in order, as many in every epoch; all,
            shuffled, when None.
        precision: "fp32" or "bf16" (autocast; weights and optimizer stay float32).
        token_budget: most tokens of one forward pass; a batch that is larger is split and its gradients
            added.
        checkpoint: file to continue from; removed when the run is done. Written at the first step
            boundary `checkpoint_seconds` after the last, and when `wish()`, an exit status, is not 0; then
            Interrupted is raised.
        initial: state of a Classifier's encoder to start from, in place of the source's.
        keep_weights: have `Outcome.weights`.
    """

    def __init__(
        self,
        source: Source,
        train: Encoded,
        outputs: int,
        recipe: Recipe,
        seed: int,
        judge: Judge,
        *,
        precision: str = "fp32",
        token_budget: int = 16384,
        rows: Callable[[int, int], np.ndarray] | None = None,
        evaluate_every: int = 0,
        checkpoint: Path | None = None,
        checkpoint_seconds: float = 300.0,
        wish: Callable[[], int] = lambda: 0,
        initial: Mapping[str, Tensor] | None = None,
        keep_weights: bool = False,
        report: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ):
        self.train_set, self.recipe, self.seed, self.judge = train, recipe, seed, judge
        self.regression, self.token_budget, self.evaluate_every = (
            outputs == REGRESSION,
            token_budget,
            evaluate_every,
        )
        self.rows = rows or (lambda seed, epoch: shuffled(len(train), seed, epoch))
        self.checkpoint, self.checkpoint_seconds, self.wish = checkpoint, checkpoint_seconds, wish
        self.keep_weights, self.report = keep_weights, report
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.precision = precision
        self.model = build_classifier(source, outputs, recipe.dropout, seed)
        if initial is not None:
            self.model.encoder.load_state_dict(initial)
        self.model.to(self.device)
        groups = parameter_groups(self.model, recipe.weight_decay)
        self.optimizer = torch.optim.AdamW(
            groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=True
        )
        self.steps_per_epoch = -(-len(self.rows(seed, 0)) // recipe.batch_size)
        self.steps = self.steps_per_epoch * recipe.epochs
        if not self.steps:
            raise UserError("there is nothing to train on: no training examples, or no epochs")
        self.step = 0
        self.curve: list[dict[str, Any]] = []
        self.best_weights: dict[str, Tensor] = {}
        self.loss_sum = self.seconds = self.training_seconds = 0.0
        self.evaluated_at = self.tokens = 0

    def run(self) -> Outcome:
        """Train, from the checkpoint if there is one.

        Raises:
            Interrupted: `wish` asked for it; the state is saved.
            UserError: the loss is no longer finite.
        """
        self._restore()
        memory = FlatMemory()
        begun = saved = time.monotonic()
        before = self.seconds
        losses = torch.full((), self.loss_sum, dtype=torch.float64, device=self.device)
        epoch, order = -1, np.empty(0, np.int64)
        while self.step < self.steps:
            if self.step // self.steps_per_epoch != epoch:
                epoch = self.step // self.steps_per_epoch
                order = self.rows(self.seed, epoch)
            started = time.monotonic()
            position = self.step % self.steps_per_epoch * self.recipe.batch_size
            losses += self._train_step(order[position : position + self.recipe.batch_size])
            if self.device.type == "cpu":
                memory.after_step()
            self.training_seconds += time.monotonic() - started
            epoch_ends = self.step % self.steps_per_epoch == 0
            if epoch_ends or (self.evaluate_every and self.step % self.evaluate_every == 0):
                started = time.monotonic()
                # waits for the device, whose work it is
                loss = float(losses) / (self.step - self.evaluated_at)
                self.training_seconds += time.monotonic() - started
                self._evaluate(loss)
                losses.zero_()
                self.evaluated_at = self.step
            self.seconds = before + time.monotonic() - begun
            code = self.wish()
            if self.checkpoint is not None and (code or time.monotonic() - saved >= self.checkpoint_seconds):
                self.loss_sum = float(losses)
                self._save(self.checkpoint)
                saved = time.monotonic()
            if code:
                raise Interrupted(code)
        best = self.curve[self._best()]
        if self.checkpoint is not None:
            self.checkpoint.unlink(missing_ok=True)
        rate = self.tokens / max(self.training_seconds, 1e-9)
        return Outcome(best, self.curve, self.seconds, rate, self.best_weights)

    def logits(self, data: Encoded) -> np.ndarray:
        """float32[N, C] of the model as it is, without dropout, in the order of `data`."""
        return logits_of(self.model, data, self.token_budget, self.precision)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Put `Outcome.weights` back into the model, for `logits`."""
        self.model.load_state_dict(weights)

    def _train_step(self, rows: np.ndarray) -> Tensor:
        """One update on these examples; their mean loss, on the device."""
        recipe = self.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(recipe, self.step, self.steps)
        torch.manual_seed(int(np.random.SeedSequence([self.seed, self.step]).generate_state(1)[0]))
        self.model.train()
        lengths = self.train_set.tokens.lengths[rows]
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for part in cut(lengths, count_micro_batches(lengths, self.token_budget)):
            logits = _forward(self.model, self.train_set, rows[part], self.precision)
            targets = torch.from_numpy(self.train_set.known_targets[rows[part]]).to(self.device)
            loss = loss_of(logits, targets, self.regression) / len(rows)
            loss.backward()
            total += loss.detach()
        if recipe.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += int(lengths.sum())
        return total

    def _evaluate(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise UserError(
                f"the loss is not finite by update {self.step} (seed {self.seed}): lower --lr, or "
                "--precision fp32"
            )
        value, scores = self.judge(self.logits)
        epoch = self.step / self.steps_per_epoch
        entry = {
            "epoch": epoch,
            "step": self.step,
            "loss": loss,
            "value": float(value),
            "scores": dict(scores),
        }
        self.curve.append(entry)
        if self.keep_weights and self._best() == len(self.curve) - 1:
            self.best_weights = {
                name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()
            }
        figures = "  ".join(f"{name} {score:.2f}" for name, score in scores.items())
        rate = self.tokens / max(self.training_seconds, 1e-9)
        self.report(
            f"  epoch {epoch:g} of {self.recipe.epochs}: loss {loss:.4f}  {figures}  ({rate:,.0f} tokens/s)"
        )

    def _best(self) -> int:
        values = [-math.inf if math.isnan(entry["value"]) else entry["value"] for entry in self.curve]
        return values.index(max(values))

    _PLAIN = ("step", "curve", "loss_sum", "evaluated_at", "seconds", "training_seconds", "tokens")

    def _save(self, checkpoint: Path) -> None:
        state = {name: getattr(self, name) for name in self._PLAIN}
        state |= {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best_weights": self.best_weights,
        }
        write_tensors(checkpoint, state)

    def _restore(self) -> None:
        if self.checkpoint is None or not self.checkpoint.is_file():
            return
        state = read_tensors(self.checkpoint)
        if self.keep_weights and state["curve"] and not state["best_weights"]:
            # What saved it did not ask for the best epoch's model, which the last epoch's must not stand in
            # for.
            self.report(
                f"  {self.checkpoint.name} lacks the best epoch's model, which is requested now: starting "
                "anew"
            )
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best_weights = state["best_weights"]
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self.report(f"  continuing at update {self.step} of {self.steps} ({self.checkpoint.name})")


def write_tensors(path: Path, state: Mapping[str, Any]) -> None:
    """Save a state of tensors and plain values, whole or not at all."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, buffer.getvalue())


def read_tensors(path: Path) -> dict[str, Any]:
    """What `write_tensors` saved, on the CPU.

    Raises:
        UserError: the file is damaged.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, UnpicklingError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); remove it, and what it holds is computed again"
        ) from error


def read_result(path: Path) -> dict[str, Any] | None:
    """What was written of a run (JSON); None: nothing yet.

    Raises:
        UserError: the file is damaged.
    """
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it, and the run is computed again") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} is not a run's result; remove it, and the run is computed again")
    return found
