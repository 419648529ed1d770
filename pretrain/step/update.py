"""The end of a step: gradients are clipped and applied, unless one, or a loss, is not finite.

At ZeRO 0 and 1 with torch's AdamW the host reads nothing: norm, clip and the check stay on the device, where
the optimizer itself leaves out an update (`found_inf`). Where the passes are graphs, so is all of it at
ZeRO 0. Other optimizers cannot, so the host waits for the check; else DeepSpeed does, which also clips there.
It leaves out what has a norm that is not finite: a gradient is made so if the loss is not finite, or the
norm is above the limit.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.step.gradients import Gradients
from pretrain.step.graphs import Graphs
from pretrain.step.optimizer import AdamW
from pretrain.step.precision import LossScale

_PIECE = 1024  # elements


class Update:
    """Clip, step and clear an engine's gradients."""

    def __init__(self, engine, clip: float, scale: LossScale | None = None, graphs: Graphs | None = None):
        """
        Args:
            clip: largest gradient norm; 0: any. (DeepSpeed's own step takes it from `deepspeed_config`.)
            scale: of float16, which follows what is finite.
            graphs: of the passes. Where they add gradients, the update becomes a graph, too.
        """
        self.engine, self.clip, self.scale = engine, clip, scale
        self._graphs = graphs
        self._graph: UpdateGraph | None = None
        stage, optimizer = int(engine.zero_optimization_stage()), engine.optimizer
        self.skips = isinstance(optimizer, torch.optim.AdamW)
        self._parameters = list(engine.module.parameters())
        self._apply = self._by_deepspeed
        if stage == 0:
            self._apply = self._whole
            engine.zero_grad = optimizer.zero_grad  # DeepSpeed's looks for parameters in all modules
        elif stage == 1 and isinstance(optimizer.optimizer, torch.optim.AdamW):
            self._apply = Shares(engine, graphs.gradients if graphs else Gradients(engine), clip).apply
        self._true = torch.ones((), dtype=torch.bool, device=engine.device)
        # running statistics of all batch norms: one batch that is not finite would spoil them
        norms = [m for m in engine.module.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
        self._statistics = [value for norm in norms for value in norm.buffers(recurse=False)]
        self._before = [value.clone() for value in self._statistics]

    def apply(self, loss: Tensor, limit: float = math.inf) -> tuple[Tensor | float, Tensor]:
        """Step, if `loss` (a scalar) and all gradients are finite, and their norm is at most `limit`.

        A step that is left out leaves nothing behind in parameters, in the optimizer, and in statistics of
        batch norm.

        Returns:
            The global gradient norm, NaN if there is none, and whether the step was applied: bool, on the
            device. All ranks find the same, since both are of the global batch.
        """
        with torch.no_grad():
            norm, finite, applied = self._apply(loss, limit)
            if self.scale is not None:
                self.scale.update(finite)
            for now, before in zip(self._statistics, self._before):
                now.copy_(before.copy_(torch.where(applied, now, before)))
        return norm, applied

    def _whole(self, loss: Tensor, limit: float) -> tuple[Tensor | float, Tensor, Tensor]:
        if self._graph is not None and self._graph.graphs.on:  # else gradients do not stay where they are
            return self._graph.apply(loss, limit)
        self._graph = None  # with it goes the memory of its pool
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if not gradients:
            self.engine.zero_grad()
            return math.nan, ~self._true, ~self._true
        norm, finite, sound = check_norm(norm_of(gradients), loss, limit)
        if not self.skips and not sound:
            self.engine.zero_grad()
            return norm, finite, sound
        if self.clip:
            clip(gradients, norm, self.clip)
        self.engine.optimizer.found_inf = (~sound).float()
        self.engine.step()
        self._record(loss)
        return norm, finite, sound

    def _record(self, loss: Tensor) -> None:
        """Make the next updates a graph, if passes have become graphs that add their gradients."""
        graphs, optimizer = self._graphs, self.engine.optimizer
        if not (graphs and graphs.adds and graphs.graphs and isinstance(optimizer, AdamW)):
            return
        if optimizer.is_set_up():
            self._graphs = None  # once
            try:
                self._graph = UpdateGraph(self.engine, graphs, self.clip, loss)
            except RuntimeError as error:  # CUDA's are such, too
                graphs.say(f"graphs     none of the update: {str(error).strip().splitlines()[0]}")

    def _by_deepspeed(self, loss: Tensor, limit: float) -> tuple[Tensor | float, Tensor, Tensor]:
        optimizer = self.engine.optimizer
        sound, before = loss.isfinite(), None
        if int(self.engine.zero_optimization_stage()) == 1:
            # With nothing in DeepSpeed's own bucket, all that this does is to take this rank's share of
            # every gradient, and to clear them.
            optimizer.setup_buckets()
            optimizer.overlapping_partition_gradients_reduce_epilogue()
        if limit < math.inf:
            before = _partitioned_norm(optimizer)
            sound = sound & (before <= limit)
        _an_element(optimizer).masked_fill_(~sound, math.nan)
        self.engine.step()
        overflow = bool(getattr(optimizer, "overflow", False))
        applied = torch.full_like(self._true, not overflow)
        if before is not None:
            return before, loss.isfinite() & before.isfinite(), applied
        norm = self.engine.get_global_grad_norm()
        if norm is None or overflow:
            return math.nan, applied, applied
        on_device = isinstance(norm, Tensor) and norm.device == self._true.device
        return norm if on_device else float(norm), applied, applied


def norm_of(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together."""
    # torch's `get_total_norm`, but for what it does to tensors of several devices
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def norm_of_long(vector: Tensor) -> Tensor:
    """Return the norm of a vector, float64; by pieces, as a CPU is inexact over millions in float32."""
    pieces = vector[: len(vector) // _PIECE * _PIECE].view(-1, _PIECE)
    norms = torch.linalg.vector_norm(pieces, dim=1), vector[pieces.numel() :]
    return torch.linalg.vector_norm(torch.cat(norms), dtype=torch.float64)


def check_norm(norm: Tensor, loss: Tensor, limit: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a norm, whether it and the loss are finite, and whether it is at most `limit`, too."""
    finite = norm.isfinite() & loss.isfinite()
    return norm, finite, finite & (norm <= limit)


def clip(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """Scale gradients, whose norm is `norm`, to one of at most `max_norm`."""
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))


class Shares:
    """Updates at ZeRO 1: a rank updates its share of the weights, and has those of others from them.

    This replaces the step of DeepSpeed's optimizer, which does the same parameter by parameter, and waits for
    the device to tell it the norm of every group. Weights, masters and moments lie where that has them.
    """

    def __init__(self, engine, gradients: Gradients, max_norm: float):
        """max_norm: the largest norm, or 0: any."""
        self._engine, self._gradients, self._max_norm, zero = engine, gradients, max_norm, engine.optimizer
        self._masters, rank = zero.single_partition_of_fp32_groups, dist.get_rank()
        self._weights = [parts[rank] for parts in zero.parallel_partitioned_bit16_groups]
        for master, group in zip(self._masters, gradients.groups, strict=True):
            master.grad = group.narrow(0, rank * len(master), len(master))
        gradients.keep()  # so that no step holds them twice
        zero.step, zero.zero_grad = self._step, lambda set_to_none=True: None

    def apply(self, loss: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return `check_norm`'s three, of this step. Collective."""
        self._gradients.keep()
        shares = [master.grad for master in self._masters]
        squared = torch.stack([norm_of_long(share) for share in shares]).square().sum()
        if dist.get_world_size() > 1:
            dist.all_reduce(squared)
        norm, finite, sound = check_norm(squared.sqrt().float(), loss, limit)
        if self._max_norm:
            clip(shares, norm, self._max_norm)
        self._engine.optimizer.optimizer.found_inf = (~sound).float()
        self._engine.step()
        torch._foreach_zero_(self._gradients.groups)
        return norm, finite, sound

    def _step(self) -> None:
        zero = self._engine.optimizer
        zero.optimizer.step()
        torch._foreach_copy_(self._weights, self._masters)
        for whole, own, group in zip(zero.bit16_groups_flat, self._weights, zero.real_dp_process_group):
            if len(whole) > len(own):
                dist.all_gather_into_tensor(whole, own, group=group)


class UpdateGraph:
    """All of an update at ZeRO 0, as one launch. Gradients are zeros after it, and stay where they are."""

    def __init__(self, engine, graphs: Graphs, max_norm: float, loss: Tensor):
        """max_norm: the largest norm, or 0. loss: a scalar like those to come."""
        self._engine, self.graphs, self._max_norm = engine, graphs, max_norm
        self._optimizer: AdamW = engine.optimizer
        graphs.gradients.keep()
        self._gradients = [own for _, own in graphs.gradients.pairs]
        self._rates = [loss.new_zeros((), dtype=torch.float32) for _ in self._optimizer.param_groups]
        self._norm = self._gradients[0].new_zeros(())
        self._limit, self._flags = torch.zeros_like(self._norm), loss.new_zeros(2, dtype=torch.bool)
        self._set: list[float] = []
        self._loss = torch.full_like(loss, math.nan)  # recording may run this, and must change nothing
        self._repeat = graphs.record_update(self._body)

    def apply(self, loss: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return `check_norm`'s three, of this step."""
        self.graphs.gradients.keep()
        numbers = [group["lr"] for group in self._optimizer.param_groups] + [limit]
        if numbers != self._set:
            for place, number in zip([*self._rates, self._limit], numbers, strict=True):
                place.fill_(number)
            self._set = numbers
        self._loss.copy_(loss)
        engine, optimizer = self._engine, self._optimizer
        optimizer.step, engine.zero_grad = self._repeat, lambda: None
        try:
            engine.step()  # which also counts
        finally:  # another `Update` may follow on the same engine
            del optimizer.step
            engine.zero_grad = optimizer.zero_grad
        finite, sound = self._flags.clone()
        return self._norm.clone(), finite, sound

    def _body(self) -> None:
        norm, finite, sound = check_norm(norm_of(self._gradients), self._loss, self._limit)
        if self._max_norm:
            clip(self._gradients, norm, self._max_norm)
        self._optimizer.update(self._rates, (~sound).float())
        torch._foreach_zero_(self._gradients)
        self._norm.copy_(norm)
        self._flags.copy_(torch.stack([finite, sound]))


def _an_element(optimizer) -> Tensor:
    """Return an element, float[1], of this rank's share of the gradients that a ZeRO optimizer holds.

    It is the first of the largest part, which is no padding: that would not be overwritten by the next step.
    """
    parts = [part for parts in optimizer.averaged_gradients.values() for part in parts or ()]
    return max(parts, key=Tensor.numel).view(-1)[:1]


def _partitioned_norm(optimizer) -> Tensor:
    """Return the norm of all gradients of a ZeRO optimizer, before it steps; inf if one is not finite."""
    if hasattr(optimizer, "scaled_global_norm"):
        return optimizer.scaled_global_norm()
    from deepspeed.runtime.utils import combine_grad_norm_groups

    return combine_grad_norm_groups(optimizer._get_norm_groups())  # ZeRO 3
