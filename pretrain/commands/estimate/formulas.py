"""Bytes of a rank in a GPU's memory, part by part, and FLOPs of a step, by formula."""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace

FLOAT = 4
BACKWARD = 2.0
"""FLOPs of a backward pass for each of its forward's (`pretrain.telemetry.throughput.BACKWARD_COST`)."""
USABLE = 0.9
"""Share of a device's memory that is planned with: the rest is the context, kernels and holes."""
LOGITS_AT_ONCE, CONTRASTS_AT_ONCE = 2**28, 2**26
"""Most masked-language logits, and contrastive logits, alive at once (`losses.mlm`, `losses.contrastive`; not
imported, because they import torch)."""
LOGIT, CONTRAST = 4, 12
"""Bytes for each of them: two and two of its gradient; read, exponentiated, and its gradient."""
VECTOR_COPIES = 6
"""Times that a step holds the gathered vectors: as sent, gathered, by view, normed, and two gradients."""
STEP = 1024
"""The largest micro-batch is given in multiples of this number of tokens."""


@dataclass(frozen=True)
class ModelSize:
    """A model, as training holds it.

    trained, frozen: parameters that have gradients, and those that have none.
    moments: elements of the optimizer's state: one for each parameter that Muon updates, two for each other.
    small: trained parameters in tensors that ZeRO 3 keeps whole on every rank.
    largest: elements of the largest tensor.
    width: of sentence vectors.
    vocabulary: rows of the masked-language head.
    copies: bytes of working copies of weights that a pass of any length keeps.
    token_bytes: activations that a pass with gradients keeps for each token of the encoder.
    masked_bytes: further ones for each masked token, without the tile of logits.
    token_flops: of a forward pass, for each token, attention at the batch's mean length included.
    masked_flops: further ones for each masked token.
    guide: parameters of the frozen encoder that finds false negatives; whole on every rank, never saved.
    """

    trained: int
    frozen: int
    moments: int
    small: int
    largest: int
    width: int
    vocabulary: int
    copies: float
    token_bytes: float
    masked_bytes: float
    token_flops: float
    masked_flops: float
    guide: int = 0


@dataclass(frozen=True)
class BatchSize:
    """The global batch of a step.

    sequences: of the batch. longest: tokens of the longest sequence that may come.
    masked_tokens: tokens of all maskings together. predicted: of them, those to predict.
    views: sentence vectors of a sequence. view_tokens: tokens of all views together.
    sequence_tokens: tokens of the passes of losses of one sequence at a time.
    momentum_tokens: tokens that an encoder without gradients reads.
    """

    sequences: int
    longest: int
    masked_tokens: float
    predicted: float
    views: int
    view_tokens: float
    sequence_tokens: float = 0.0
    momentum_tokens: float = 0.0

    @property
    def tokens(self) -> float:
        """Tokens that go forward and backward, each counted once, as a run's metrics count them."""
        return self.masked_tokens + self.view_tokens + self.sequence_tokens

    @property
    def largest_pass(self) -> float:
        """Tokens of the pass that has the most: the views together, or a loss's own."""
        return max(self.view_tokens, self.masked_tokens, self.sequence_tokens)


@dataclass(frozen=True)
class Layout:
    """How a run is spread: ranks, ZeRO stage, tokens of a micro-batch, and how gradients travel.

    bucket: elements of gradients reduced at once. wire: bytes of an element of a gradient between ranks.
    """

    ranks: int
    zero: int
    micro_batch_tokens: int
    bucket: int = 500_000_000
    wire: int = 4


PARTS = {
    "weights": "weights",
    "gradients": "gradients, at stage 3 with the reduced share",
    "optimizer": "optimizer's moments",
    "master": "second copy of this rank's weights (DeepSpeed, stages 1 and 2)",
    "gathered": "weights gathered in a step (stage 3)",
    "copies": "working copies of weights in the encoder's precision",
    "activations": "activations of a micro-batch",
    "loss": "tile of logits, vectors of the global batch",
    "reduction": "buckets of gradients, when activations are gone",
    "reserved": "buckets of gradients at all times (stage 3)",
}
"""Part of a rank's memory -> what it is, as a plan prints it."""
_OF_A_MICRO_BATCH = ("copies", "activations", "loss")


def memory(model: ModelSize, batch: BatchSize, layout: Layout) -> dict[str, float]:
    """Return the bytes of each of a rank's `PARTS`; padding is not counted."""
    zero, ranks = layout.zero, layout.ranks
    share, bucket = FLOAT * model.trained / ranks, float(FLOAT * layout.bucket)
    weights: float = FLOAT * (model.trained + model.frozen)
    activations, loss = micro_batch_bytes(model, batch, layout)
    return {
        "weights": FLOAT * model.guide + (weights if zero < 3 else weights / ranks + FLOAT * model.small),
        # at stage 3 a share in the accumulator, and one that the optimizer reads
        "gradients": FLOAT * model.trained + share * (0, 0, 0, 2)[zero],
        "optimizer": FLOAT * model.moments / (ranks if zero else 1),
        "master": share if zero in (1, 2) else 0.0,
        "gathered": float(FLOAT * model.largest) if zero == 3 else 0.0,  # while its module runs
        "copies": model.copies,
        "activations": activations,
        "loss": loss,
        "reduction": _reduction(model, layout, bucket, share),
        "reserved": bucket if zero == 3 else 0.0,
    }


def peak(parts: dict[str, float]) -> float:
    """Return the most bytes at once.

    Gradients are reduced when activations are gone, or go layer by layer (stages 0 and 1): the larger counts.
    """
    of_micro_batch = sum(parts[name] for name in _OF_A_MICRO_BATCH)
    always = sum(parts.values()) - of_micro_batch - parts["reduction"]
    return always + max(of_micro_batch, parts["reduction"])


def checkpoint_bytes(model: ModelSize) -> float:
    """Return the bytes of a checkpoint: weights and moments, float32."""
    return FLOAT * (model.trained + model.frozen + model.moments)


def _reduction(model: ModelSize, layout: Layout, bucket: float, share: float) -> float:
    """Return the bytes that the reduction of gradients takes.

    At stages 0 and 1 a bucket takes the place of its parameters' gradients, and all that is on the wire in
    another type lies there at once. DeepSpeed's own bucket is made at stage 1, and stays empty.
    """
    flattened = min(float(FLOAT * model.trained), bucket)  # a bucket's tensors as one, to be sent
    if layout.zero == 2:
        return flattened + bucket + share
    sent = flattened if layout.ranks > 1 else 0.0
    if layout.zero == 3:
        return sent
    if layout.ranks > 1 and layout.wire < FLOAT:
        sent += layout.wire * model.trained
    return sent + (bucket + share if layout.zero == 1 else 0.0)


def micro_batch_bytes(model: ModelSize, batch: BatchSize, layout: Layout) -> tuple[float, float]:
    """Return the bytes of a micro-batch's activations, and those of its loss, of the pass that needs most.

    A pass over views has the vectors of the global batch and a tile of their similarities beside it, one over
    maskings a tile of logits.
    """
    budget, ranks = layout.micro_batch_tokens, layout.ranks
    vectors = batch.views * batch.sequences
    of_views = model.token_bytes * min(budget, max(batch.view_tokens, batch.sequence_tokens) / ranks)
    similarities = CONTRAST * min(float(vectors) ** 2, CONTRASTS_AT_ONCE)
    passes = [(of_views, VECTOR_COPIES * FLOAT * vectors * model.width + similarities)]
    if batch.masked_tokens:
        tokens = min(budget, batch.masked_tokens / ranks)
        predicted = tokens * batch.predicted / batch.masked_tokens
        tile = LOGIT * min(predicted * model.vocabulary, max(LOGITS_AT_ONCE, model.vocabulary))
        passes.append((model.token_bytes * tokens + model.masked_bytes * predicted, tile))
    return max(passes, key=sum)


def largest_micro_batch(model: ModelSize, batch: BatchSize, layout: Layout, available: float) -> int | None:
    """Return the most tokens of a micro-batch that fit into `available` bytes, a multiple of `STEP`.

    None: not even one longest sequence fits. A micro-batch of all tokens of a rank is the largest that there
    is.
    """
    least = -(-batch.longest // STEP)
    sizes = range(least, least + int(batch.largest_pass / (layout.ranks * STEP)) + 2)

    def need(steps: int) -> float:
        return peak(memory(model, batch, replace(layout, micro_batch_tokens=steps * STEP)))

    fitting = bisect_right(sizes, available, key=need)
    return sizes[fitting - 1] * STEP if fitting else None


def step_flops(model: ModelSize, batch: BatchSize, layout: Layout) -> float:
    """Return the FLOPs of a step with all that is computed again, of all ranks together.

    A loss of one sequence at a time reads each row twice: a generator or a clean pass, and the one trained.
    """
    forward = (
        model.token_flops * (batch.tokens + batch.sequence_tokens) + model.masked_flops * batch.predicted
    )
    again = batch.momentum_tokens
    if batch.view_tokens > layout.ranks * layout.micro_batch_tokens:  # else their graph is kept
        again += batch.view_tokens
    return (1 + BACKWARD) * forward + model.token_flops * again


@dataclass(frozen=True)
class Reached:
    """What steps reached on a device where it was measured.

    short, long: shares of the peak of rows of many tokens, of sequences of at most `SHORT` tokens, and of
    longer ones. half: tokens of a row that reaches half of that: what a row and its step cost beside their
    tokens is worth so many. host: seconds below which no step came, since the host had to launch it.
    """

    short: float
    long: float
    half: float
    host: float


SHORT = 128
"""Tokens of the longest sequence whose attention is one tile (`pretrain.model.attention.BUCKETS`)."""


def share_reached(
    reached: Reached, model: ModelSize, batch: BatchSize, layout: Layout, length: int, peak: float
) -> float:
    """Return the share of the peak that a step reaches, as `step_flops` counts its work.

    length: mean tokens of a sequence. peak: FLOP/s of all ranks together.
    """
    best = peak * (reached.short if length <= SHORT else reached.long)
    work, seconds = step_flops(model, batch, layout), 0.0
    of_head = (1 + BACKWARD) * model.masked_flops * batch.predicted
    for tokens, head in ((batch.masked_tokens, of_head), (batch.tokens - batch.masked_tokens, 0.0)):
        of_rank = tokens / layout.ranks
        rows = math.ceil(of_rank / layout.micro_batch_tokens)
        if rows:
            flops = head + (work - of_head) * tokens / batch.tokens
            seconds += flops * (1 + reached.half * rows / of_rank) / best
    return work / (peak * max(seconds, reached.host))
