"""Ranks as threads of one process: what a step asks of an engine and of torch.distributed."""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import SimpleNamespace

import torch
import torch.distributed as dist

from pretrain.checkpoint import saver
from pretrain.common import ranks

CPU = torch.device("cpu")


class PlainEngine:
    """What a step asks of an engine at ZeRO 0."""

    communication_data_type = torch.float64  # what is sent is a copy: later gradients would be lost

    def __init__(self, model, device=CPU, stage=0):
        self.module, self.device, self.stage = model.to(device).train(), device, stage

    def __call__(self, request):
        return self.module(request)

    def zero_optimization_stage(self):
        return self.stage

    def zero_reduce_bucket_size(self):
        return 1000

    def set_gradient_accumulation_boundary(self, is_boundary):
        pass

    def backward(self, loss, scale_wrt_gas):
        loss.backward()


class ThreadedRanks:
    """Collectives of as many threads; each waits at each for all others, so a missing one is an error."""

    def __init__(self, count: int, monkeypatch):
        self.count, self._given = count, [None] * count
        self._meeting, self._own = threading.Barrier(count, timeout=600), threading.local()
        ours = (
            self.get_rank,
            self.get_world_size,
            self.all_reduce,
            self.all_gather_into_tensor,
            self.all_gather_object,
            self.all_to_all_single,
            self.broadcast_object_list,
            self.isend,
            self.recv,
        )
        for function in ours:
            monkeypatch.setattr(dist, function.__name__, function)
        self._sent = defaultdict(SimpleQueue)  # (from, to, tag) -> tensors
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(ranks, "host_group", lambda: None)
        monkeypatch.setattr(saver, "new_host_group", lambda: None)
        monkeypatch.setattr(dist, "get_backend", lambda: "gloo")

    def run(self, action) -> list:
        """Call action(rank) on all ranks; return their results."""

        def on_rank(rank):
            self._own.rank = rank
            try:
                return action(rank)
            except BaseException:
                self._meeting.abort()
                raise

        with ThreadPoolExecutor(self.count) as pool:
            futures = [pool.submit(on_rank, rank) for rank in range(self.count)]
        errors = [future.exception() for future in futures if future.exception() is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error  # a rank's own first, then those of the ranks that waited for it
        return [future.result() for future in futures]

    def _exchange(self, value) -> list:
        self._given[self._own.rank] = value
        self._meeting.wait()
        every = list(self._given)
        self._meeting.wait()
        return every

    def get_rank(self):
        return self._own.rank

    def get_world_size(self):
        return self.count

    @torch.no_grad()
    def all_reduce(self, tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        every = torch.stack(self._exchange(tensor.detach().clone()))
        tensor.copy_(every.amax(0) if op == dist.ReduceOp.MAX else every.sum(0))
        return SimpleNamespace(wait=lambda: None)

    @torch.no_grad()
    def all_gather_into_tensor(self, every, part, group=None):
        every.copy_(torch.cat(self._exchange(part.detach().clone())))

    def all_gather_object(self, every, value, group=None):
        every[:] = self._exchange(value)

    def broadcast_object_list(self, values, src=0, group=None):
        values[:] = self._exchange(list(values))[src]

    def isend(self, tensor, rank, group=None, tag=0):
        self._sent[self._own.rank, rank, tag].put(tensor.clone())

    def recv(self, tensor, rank, group=None, tag=0):
        tensor.copy_(self._sent[rank, self._own.rank, tag].get(timeout=60))

    def all_to_all_single(self, coming, sent, coming_sizes, sent_sizes, group=None):
        parts = [parts[self._own.rank] for parts in self._exchange(sent.split(sent_sizes))]
        assert [len(part) for part in parts] == coming_sizes
        coming.copy_(torch.cat(parts))
