"""Bytes of a rank, part by part, by formula. Parameters, gradients and optimizer states are float32."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pretrain.estimate.communication import FLOAT
from pretrain.estimate.run_size import BatchSize, Layout, ModelSize

MOMENTS = 2
"""States of a parameter: both optimizers keep two."""
USABLE = 0.9
"""Share of a device's memory that is planned with: the rest is the context, kernels and holes."""
TILES = {True: (2**28, 2**26), False: (2**25, 2**22)}
"""Most masked-language logits, and contrastive logits, alive at once: on a GPU, and on a CPU
(`pretrain.losses.mlm`, `pretrain.losses.contrastive`; not imported, because they import torch)."""
LOGIT = 12
"""Bytes for each logit of a tile: read, exponentiated, and its gradient."""
VECTOR_COPIES = 6
"""Times that a step holds the gathered vectors: as sent, gathered, by view, normed, and two gradients."""
STEP = 1024
"""The largest micro-batch is given in multiples of so many tokens."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank.

    weights: as they lie between steps; at stage 3 this rank's share, and the small ones.
    gradients: of this rank's own micro-batches, and the reduced share where that is kept apart.
    optimizer: two moments.
    master: DeepSpeed's second copy of this rank's share of the weights (stages 1 and 2).
    gathered: weights that stage 3 holds whole while a module runs.
    copies: working copies of weights in the precision of the encoder.
    activations: of one micro-batch. loss: a tile of logits, and the vectors of the global batch.
    reduction: buckets of gradients. They are needed when activations are gone: of both the larger counts.
    reserved: buckets that lie there at all times.
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

    @property
    def states(self) -> float:
        """Bytes that no setting of the micro-batch changes."""
        return self.weights + self.gradients + self.optimizer + self.master + self.gathered + self.reserved

    @property
    def peak(self) -> float:
        return self.states + max(self.copies + self.activations + self.loss, self.reduction)


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
    return Memory(
        weights=weights,
        # at stage 3 a share in the accumulator, and one that the optimizer reads
        gradients=trained + share * (0, 1, 1, 2)[zero],
        optimizer=MOMENTS * (trained if zero == 0 else share),
        master=share if zero in (1, 2) else 0.0,
        gathered=gathered,
        copies=model.copies,
        activations=activations,
        loss=loss,
        reduction=flattened + (bucket if zero in (1, 2) else 0.0) if layout.ranks > 1 or zero else 0.0,
        reserved=bucket if zero == 3 else 0.0,
    )


def micro_batch_bytes(model: ModelSize, batch: BatchSize, layout: Layout) -> tuple[float, float]:
    """Return the bytes of a micro-batch's activations, and those of its tile of logits or of the vectors."""
    logits_bound, contrast_bound = TILES[layout.reserved]
    tokens = min(layout.micro_batch_tokens, batch.largest_pass / layout.ranks)
    activations = model.token_bytes * tokens
    tile = 0.0
    if batch.masked_tokens:
        masked = min(layout.micro_batch_tokens, batch.masked_tokens / layout.ranks)
        masked *= batch.predicted / batch.masked_tokens
        activations += model.masked_bytes * masked
        tile = LOGIT * min(masked * model.vocabulary, max(logits_bound, model.vocabulary))
    anchors = batch.views * batch.sequences
    vectors = VECTOR_COPIES * FLOAT * anchors * model.width
    contrast = LOGIT * min(float(anchors) ** 2, contrast_bound)
    return activations, max(tile, vectors + contrast)


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
