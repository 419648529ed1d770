"""Gradients averaged over ranks, once a step.

A step goes backward many times, over its micro-batches and its losses, and its gradients travel once. At ZeRO
2 and 3 DeepSpeed reduces them after the last backward pass (`Coalesced`). At ZeRO 0 and 1 they are reduced
here, in buckets, while the last pass still runs (`Buckets`): a gradient is final as soon as the last pass has
added its part, or, if that pass does not reach the parameter, before it begins.

Why not DeepSpeed's own overlap (0.19.8): stage 0 has none. Stage 1 with `overlap_comm` sends from a hook what
the declared last backward reaches, and leaves out, without a word, what only an earlier one did: the gradient
of DiffCSE's discriminator is then one rank's own. On a CPU, without streams, it waits for each bucket.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from pretrain.common.memory import cut_by_size

BUCKET = 25 * 2**20 // 4
"""Elements of a bucket at ZeRO 0 and 1: 25 MiB of float32, as in torch's DistributedDataParallel."""
UNDER_WAY = 4
"""Most buckets that travel at once: each is a copy of its gradients."""


class Coalesced:
    """DeepSpeed's one reduction after the last backward pass (ZeRO 2 and 3).

    Plain backward passes would be wrong at stage 2 without a word: only the last one's gradient is kept.
    """

    def __init__(self, engine):
        self.engine, self.world = engine, dist.get_world_size()

    def of_step(self) -> AbstractContextManager:
        """Enclose all backward passes of a step; after it the engine's optimizer may step."""
        return self.engine.coalesce_grad_reduction()

    def backward(self, loss: Tensor, final: bool) -> None:
        """Add the gradient of a scalar; final: it is the last of the step."""
        self.engine.backward(loss, scale_wrt_gas=False)


class Buckets:
    """Gradients of parameters held whole (ZeRO 0 and 1), reduced bucket by bucket.

    What is in a bucket, and the order in which they are sent, follows from the order of the module's
    parameters alone, last ones first, which is about the order in which a backward pass finishes them. So
    all ranks send the same, a resumed run does, and sums have the same bits. A rank sends its next bucket
    when its own gradients in it are final: which are, ranks need not agree on. A parameter without a gradient
    counts as zero. A bucket is a copy of its gradients, and their mean is put back where they lie.

    Gradients are summed in the engine's `communication_data_type`. In bfloat16 every rank's gradient and each
    of the W - 1 partial sums is rounded to 8 bits, so an element of the mean is off by at most
    (1 + 2^-8)^W - 1 times the mean over ranks of its absolute values.
    """

    def __init__(self, engine, overlap: bool = True):
        """overlap: send while the last backward pass runs, and not after it, which changes no bit."""
        self.engine = engine
        self.world, self.overlap = dist.get_world_size(), overlap
        self.dtype: torch.dtype = engine.communication_data_type
        engine.set_gradient_accumulation_boundary(True)  # for its step
        if int(engine.zero_optimization_stage()) == 1:
            for hook in engine.optimizer._grad_acc_hooks:
                hook.remove()  # they would do nothing but take a GPU's host a tenth of a millisecond each
        trained = [p for p in engine.module.parameters() if p.requires_grad]
        self.buckets = cut_by_size(trained[::-1], Tensor.numel, engine.zero_reduce_bucket_size())
        self._bucket_of = {id(p): number for number, bucket in enumerate(self.buckets) for p in bucket}
        self._sent = 0  # buckets of this step
        # those under way: parameters, what travels of their gradients, and the work to wait for
        self._under_way: deque[tuple[list[Parameter], Tensor, dist.Work]] = deque()
        self._awaited: list[set[int]] = []  # of each bucket: parameters that the last pass has yet to reach

    @contextmanager
    def of_step(self) -> Iterator[None]:
        self._sent = 0
        self._under_way.clear()
        yield
        self._send_all()
        while self._under_way:
            self._put_back()
        for bucket in self.buckets:  # of one rank: decayed as with several
            _complete(bucket)

    def backward(self, loss: Tensor, final: bool) -> None:
        with self._sending(loss) if final and self.overlap and self.world > 1 else nullcontext():
            loss.backward()
        if final:
            self._send_all()  # before any other collective: all ranks must call them in one order

    @contextmanager
    def _sending(self, loss: Tensor) -> Iterator[None]:
        """Send what is final before and during the backward pass of a loss."""
        reached = leaves(loss)
        self._awaited = [{id(p) for p in bucket} & reached for bucket in self.buckets]
        hooks = [
            p.register_post_accumulate_grad_hook(self._on_gradient) for bucket in self.buckets for p in bucket
        ]
        try:
            self._send_ready()
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _on_gradient(self, parameter: Tensor) -> None:
        number = self._bucket_of[id(parameter)]
        if number < self._sent:
            raise RuntimeError(
                f"a gradient of a parameter {list(parameter.shape)} came after its bucket had been sent: its "
                "use is hidden from the graph of the last loss (a re-entrant checkpoint?)"
            )
        self._awaited[number].discard(id(parameter))
        self._send_ready()

    def _send_ready(self) -> None:
        while self._sent < len(self.buckets) and not self._awaited[self._sent]:
            self._send_next()

    def _send_all(self) -> None:
        while self.world > 1 and self._sent < len(self.buckets):
            self._send_next()

    def _send_next(self) -> None:
        if len(self._under_way) == UNDER_WAY:
            self._put_back()
        bucket = self.buckets[self._sent]
        parts = [gradient.reshape(-1) for gradient in _complete(bucket)]
        wire = (parts[0] if len(parts) == 1 else torch.cat(parts)).to(self.dtype)
        self._under_way.append((bucket, wire, dist.all_reduce(wire, async_op=True)))
        self._sent += 1

    def _put_back(self) -> None:
        """Wait for the bucket that was sent first; leave its mean in the gradients."""
        bucket, wire, work = self._under_way.popleft()
        work.wait()
        gradients = _complete(bucket)
        mean = wire.to(gradients[0].dtype).div_(self.world)
        parts = mean.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [part.view_as(own) for part, own in zip(parts, gradients)])


def _complete(parameters: list[Parameter]) -> list[Tensor]:
    """Return the gradients of parameters, zeros if there were none."""
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    return gradients


def leaves(loss: Tensor) -> set[int]:
    """Return the ids of the leaves, parameters among them, to which a backward pass from `loss` adds."""
    parameters: set[int] = set()
    seen, rest = {loss.grad_fn}, [loss.grad_fn]
    while rest:
        node = rest.pop()
        if hasattr(node, "variable"):
            parameters.add(id(node.variable))
        parameters.update(map(id, getattr(node, "adds_to", ())))  # a graph, without hooks
        for following, _ in () if node is None else node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                rest.append(following)
    return parameters
