"""Bytes that each rank sends in a step, by formula.

A ring over W ranks sends, for B bytes that end up on every rank: all-gather B (W - 1) / W, reduce-scatter the
same, all-reduce twice that (Thakur, Rabenseifner and Gropp 2005). Parameters are float32, gradients what
`train.communication_dtype` says.
"""

from dataclasses import dataclass

from pretrain.estimate.run_size import BatchSize, Layout, ModelSize
from pretrain.losses import sharing

FLOAT = 4


@dataclass(frozen=True)
class Collective:
    """A kind of exchange: its name, and the bytes of the tensors that it is about, in a step.

    payload: bytes that each rank has in the end (all-gather, all-reduce), or had at the beginning
    (reduce-scatter).
    """

    name: str
    kind: str
    payload: float

    def sent(self, ranks: int) -> float:
        """Return the bytes that a rank sends.

        >>> Collective("gradients", "all-reduce", 800.0).sent(4)
        1200.0
        """
        return self.payload * (ranks - 1) / ranks * (2 if self.kind == "all-reduce" else 1)


def collectives(model: ModelSize, batch: BatchSize, layout: Layout) -> list[Collective]:
    """Return the exchanges of a step; none for one rank.

    Whole buckets are reduced to all ranks at stage 1, too, as DeepSpeed 0.19.8 does at stage 2 (a
    reduce-scatter would send half); both gather the updated parameters after the step.
    """
    if layout.ranks == 1:
        return []
    gradients, weights = layout.wire * model.trained, FLOAT * model.trained
    everyone = {
        0: [Collective("gradients", "all-reduce", gradients)],
        1: [Collective("gradients", "all-reduce", gradients), Collective("weights", "all-gather", weights)],
        2: [Collective("gradients", "all-reduce", gradients), Collective("weights", "all-gather", weights)],
        3: [
            Collective("gradients", "reduce-scatter", gradients),
            Collective("weights", "all-gather", gathered_at_stage_3(model, batch, layout)),
        ],
    }[layout.zero]
    vectors = batch.views * batch.sequences * model.width * FLOAT
    if vectors:
        everyone.append(Collective("vectors", "all-gather", vectors))
        if (batch.views * batch.sequences) ** 2 >= sharing.SMALLEST:
            # each rank has the gradients of its own anchors' losses by all vectors, and needs their sum
            everyone.append(Collective("loss", "all-reduce", 2 * vectors))
    return everyone


def gathered_at_stage_3(model: ModelSize, batch: BatchSize, layout: Layout) -> float:
    """Return the bytes of parameters that a rank gathers in a step of ZeRO 3.

    Every pass over a micro-batch gathers the large ones, forward and again backward. (DeepSpeed keeps some of
    them only where all passes run the same modules in the same order, which those of a step do not.) Small
    tensors are gathered after the optimizer's step, and stay.
    """
    large = model.trained + model.frozen - model.small
    return FLOAT * (large * (forwards(batch, layout) + backwards(batch, layout)) + model.small)


def micro_batches(tokens: float, layout: Layout) -> int:
    """Return into how many micro-batches a rank's share of tokens is cut."""
    return -int(-tokens // (layout.ranks * layout.micro_batch_tokens)) if tokens else 0


def replays(batch: BatchSize, layout: Layout) -> bool:
    """Return whether the views' forward pass runs twice: with one micro-batch a rank its graph is kept."""
    return micro_batches(batch.view_tokens, layout) > 1


def backwards(batch: BatchSize, layout: Layout) -> int:
    """Return the passes over a micro-batch with gradients, of a rank in a step."""
    halved = 2 * batch.sequence_tokens  # their micro-batches have half the budget
    return sum(micro_batches(tokens, layout) for tokens in (batch.view_tokens, batch.masked_tokens, halved))


def forwards(batch: BatchSize, layout: Layout) -> int:
    """Return the forward passes over a micro-batch, of a rank in a step."""
    views = micro_batches(batch.view_tokens, layout)
    without_gradients = micro_batches(batch.momentum_tokens, layout) + views * (views > 1)
    return backwards(batch, layout) + without_gradients
