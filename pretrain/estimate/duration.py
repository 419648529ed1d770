"""Seconds of a step and of a run, and what it costs, by formula."""

from dataclasses import dataclass

from pretrain.estimate.communication import FLOAT, Collective, collectives, replays
from pretrain.estimate.devices import Device
from pretrain.estimate.memory import checkpoint_bytes
from pretrain.estimate.run_size import BatchSize, Layout, ModelSize

BACKWARD = 2.0
"""FLOPs of a backward pass for each of its forward's (`pretrain.telemetry.throughput.BACKWARD_COST`)."""
SEQUENCE_PASSES = 2.0
"""Forward and backward passes of the encoder for each token of a loss of one sequence at a time: such a loss
reads the row twice (a generator or a clean pass, and the one that is trained)."""
COPIED = 2e9
"""Bytes/s of a checkpoint's copy on one core (tests/benchmarks/bench_checkpoint.py). A GPU's is faster."""


@dataclass(frozen=True)
class Duration:
    """Seconds of a step: compute, communication, and a checkpoint's stall spread over steps.

    tokens: of a step. model_flops: that the model needs for them, of all ranks together.
    """

    compute: float
    communication: float
    checkpoint: float
    tokens: float
    model_flops: float

    @property
    def step(self) -> float:
        return self.compute + self.communication + self.checkpoint

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / (self.compute + self.communication)

    def mfu(self, peak: float) -> float:
        """Return the model FLOPs utilisation of devices that together have `peak` FLOP/s."""
        return self.model_flops / (self.compute + self.communication) / peak


def model_flops(model: ModelSize, batch: BatchSize) -> float:
    """Return the FLOPs that the model needs for a step: each token forward and backward, once."""
    forward = model.token_flops * batch.tokens + model.masked_flops * batch.predicted
    return (1 + BACKWARD) * forward


def step_flops(model: ModelSize, batch: BatchSize, layout: Layout) -> float:
    """Return the FLOPs of a step with all that is computed again, of all ranks together."""
    again = batch.momentum_tokens + (batch.view_tokens if replays(batch, layout) else 0.0)
    again += (1 + BACKWARD) * (SEQUENCE_PASSES - 1) * batch.sequence_tokens
    return model_flops(model, batch) + model.token_flops * again


def communication_seconds(parts: list[Collective], layout: Layout, device: Device) -> float:
    """Return how long the exchanges of a step take over the slowest link of the ring.

    None of it is counted as hidden behind computation, which it partly is: at stages 0 and 1 gradients
    travel while the last backward pass runs (`pretrain.step.reduction`), and stage 3 fetches the next layer's
    weights ahead. How much that hides has not been measured on a GPU. At stage 2 DeepSpeed reduces gradients
    after the last backward pass; weights are gathered after the optimizer's step, vectors between passes.
    """
    return sum(part.sent(layout.ranks) for part in parts) / device.speed_between(layout.ranks)


def checkpoint_stall(model: ModelSize, layout: Layout, every: int, step: float, disk: float) -> float:
    """Return the seconds for which a checkpoint keeps training from going on.

    In the background that is the copy; and, where one is not written before the next is due, the rest.

    Args:
        every: steps between checkpoints. step: seconds of one. disk: bytes/s.
    """
    write = checkpoint_bytes(model) / disk
    if not layout.background:
        return write
    return checkpoint_bytes(model) / layout.ranks / COPIED + max(0.0, write - every * step)


def duration(
    model: ModelSize,
    batch: BatchSize,
    layout: Layout,
    device: Device,
    utilisation: float,
    checkpoint_every: int,
    disk: float,
) -> Duration:
    """Return the seconds of a step.

    Args:
        utilisation: share of the peak that the products of a step reach, repeated ones included.
        checkpoint_every: steps between checkpoints; 0: none on the way.
        disk: bytes/s of the disk, for all ranks together.
    """
    # the optimizer's step reads weights, gradients and moments of the rank's share; gradients are not written
    moved = FLOAT * (3 * model.trained + 2 * model.moments) / (1 if layout.zero == 0 else layout.ranks)
    speed = device.peak * utilisation
    update = moved / device.bandwidth + model.update_flops / speed
    compute = step_flops(model, batch, layout) / (layout.ranks * speed) + update
    exchange = communication_seconds(collectives(model, batch, layout), layout, device)
    every = checkpoint_every
    stall = checkpoint_stall(model, layout, every, compute + exchange, disk) / every if every else 0.0
    return Duration(compute, exchange, stall, batch.tokens, model_flops(model, batch))
