"""Bytes of a rank in memory, part by part, and FLOPs of a step, by formula."""

import math
from dataclasses import dataclass, replace

FLOAT = 4
BACKWARD = 2.0
"""FLOPs of a backward pass for each of its forward's (`pretrain.telemetry.throughput.BACKWARD_COST`)."""
USABLE = 0.9
"""Share of a device's memory that is planned with: the rest is the context, kernels and holes."""
TILES = {True: (2**28, 2**26), False: (2**25, 2**22)}
"""Most masked-language logits, and contrastive logits, alive at once: on a GPU, and on a CPU
(`losses.mlm`, `losses.contrastive`; not imported, because they import torch)."""
LOGIT, LOGIT_ON_GPU = 12, 4
"""Bytes for each logit of a tile: read, exponentiated, and its gradient. On a GPU: two, and two of its
gradient."""
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
    reserved: whether a bucket takes its whole size (a GPU), or only the part that is used (untouched pages of
    a CPU are free). background: whether checkpoints are copied, and written while training goes on.
    """

    ranks: int
    zero: int
    micro_batch_tokens: int
    bucket: int = 500_000_000
    reserved: bool = True
    wire: int = 4
    background: bool = False


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


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank (`PARTS`).

    reduction: needed when activations are gone, or go layer by layer (stages 0 and 1): the larger of both
        counts.
    snapshot: this rank's share of a checkpoint, copied to be written while training goes on (on a CPU).
    host: the same of a GPU's run: in the memory of its machine, and not in its own.
    """

    weights: float
    gradients: float
    optimizer: float
    master: float
    gathered: float
    copies: float
    activations: float
    loss: float
    reduction: float
    reserved: float
    snapshot: float = 0.0
    host: float = 0.0

    @property
    def states(self) -> float:
        """Bytes that no setting of the micro-batch changes."""
        engine = self.weights + self.gradients + self.optimizer + self.master + self.gathered + self.reserved
        return engine + self.snapshot

    @property
    def peak(self) -> float:
        return self.states + max(self.copies + self.activations + self.loss, self.reduction)


def checkpoint_bytes(model: ModelSize) -> float:
    """Return the bytes of a checkpoint: weights and moments, float32."""
    return FLOAT * (model.trained + model.frozen + model.moments)


def memory(model: ModelSize, batch: BatchSize, layout: Layout) -> Memory:
    """Return what a rank needs; shares are rounded down to whole numbers nowhere: padding is not counted."""
    share = FLOAT * model.trained / layout.ranks
    trained, frozen = FLOAT * model.trained, FLOAT * model.frozen
    zero = layout.zero
    bucket = FLOAT * (layout.bucket if layout.reserved else min(model.trained, layout.bucket))
    flattened = FLOAT * min(model.trained, layout.bucket)  # a bucket's tensors as one, to be sent
    weights: float = trained + frozen
    gathered = 0.0
    if zero == 3:
        weights = (trained + frozen) / layout.ranks + FLOAT * model.small
        gathered = FLOAT * model.largest  # a module's weights for the time that it runs
    activations, loss = micro_batch_bytes(model, batch, layout)
    copy = checkpoint_bytes(model) / layout.ranks if layout.background else 0.0
    return Memory(
        weights=weights + FLOAT * model.guide,
        # at stage 3 a share in the accumulator, and one that the optimizer reads
        gradients=trained + share * (0, 0, 0, 2)[zero],
        optimizer=FLOAT * model.moments / (1 if zero == 0 else layout.ranks),
        master=share if zero in (1, 2) else 0.0,
        gathered=gathered,
        copies=model.copies,
        activations=activations,
        loss=loss,
        reduction=_reduction(model, layout, flattened, bucket, share),
        reserved=bucket if zero == 3 else 0.0,
        snapshot=0.0 if layout.reserved else copy,
        host=copy if layout.reserved else 0.0,
    )


def _reduction(model: ModelSize, layout: Layout, flattened: float, bucket: float, share: float) -> float:
    """Return the bytes that the reduction of gradients takes.

    At stages 0 and 1 a bucket takes the place of its parameters' gradients, and all that is on the wire in
    another type lies there at once. DeepSpeed's own bucket is made at stage 1, and stays empty.
    """
    if layout.zero == 2:
        return flattened + bucket + share
    if layout.zero == 3:
        return flattened if layout.ranks > 1 else 0.0
    travels = flattened + (layout.wire * model.trained if layout.wire < FLOAT else 0.0)
    empty = FLOAT * layout.bucket if layout.reserved else 0.0
    return (travels if layout.ranks > 1 else 0.0) + (empty + share if layout.zero == 1 else 0.0)


def micro_batch_bytes(model: ModelSize, batch: BatchSize, layout: Layout) -> tuple[float, float]:
    """Return the bytes of a micro-batch's activations, and those of its loss, of the pass that needs most.

    A pass over views has the vectors of the global batch and a tile of their similarities beside it, one over
    maskings a tile of logits.
    """
    logits_bound, contrast_bound = TILES[layout.reserved]
    budget, ranks = layout.micro_batch_tokens, layout.ranks
    vectors = batch.views * batch.sequences
    of_views = model.token_bytes * min(budget, max(batch.view_tokens, batch.sequence_tokens) / ranks)
    related = VECTOR_COPIES * FLOAT * vectors * model.width + LOGIT * min(float(vectors) ** 2, contrast_bound)
    passes = [(of_views, related)]
    if batch.masked_tokens:
        tokens = min(budget, batch.masked_tokens / ranks)
        predicted = tokens * batch.predicted / batch.masked_tokens
        each = LOGIT_ON_GPU if layout.reserved else LOGIT
        tile = each * min(predicted * model.vocabulary, max(logits_bound, model.vocabulary))
        passes.append((model.token_bytes * tokens + model.masked_bytes * predicted, tile))
    return max(passes, key=sum)


def largest_micro_batch(
    model: ModelSize, batch: BatchSize, layout: Layout, available: float, step: int = STEP
) -> int | None:
    """Return the most tokens of a micro-batch that fit into `available` bytes, a multiple of `step`.

    None: not even one longest sequence fits. A micro-batch of all tokens of a rank is the largest that there
    is.
    """
    most = int(batch.largest_pass / (layout.ranks * step)) + 1 + -(-batch.longest // step)
    least = -(-batch.longest // step)

    def fits(steps: int) -> bool:
        tokens = replace(layout, micro_batch_tokens=steps * step)
        return memory(model, batch, tokens).peak <= available

    if not fits(least):
        return None
    while least < most:  # what fits is a prefix
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least * step


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
