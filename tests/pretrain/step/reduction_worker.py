"""One rank of a toy step whose gradients are reduced in buckets, on an engine that reduces nothing.

Run as `python reduction_worker.py OUT` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Each rank
writes OUT.RANK.pt: case -> its own gradients before, and what `Buckets` made of them.
"""

import os
import sys
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretrain.common.rendezvous import join
from pretrain.step.precision import LossScale
from pretrain.step.reduction import UNDER_WAY, Buckets

WIDTH, LAYERS = 16, 6


class Toy(nn.Module):
    """Words tied to the head that predicts them, layers, a head that only an earlier pass uses, one that no
    pass does, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.decoder = nn.Linear(WIDTH, 40)
        self.decoder.weight = self.words.weight
        self.head, self.unused, self.frozen = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.frozen.requires_grad_(False)

    def encode(self, ids: Tensor, layers: int = LAYERS, hidden: bool = False) -> Tensor:
        x = self.words(ids)
        for number, layer in enumerate(self.layers[:layers]):
            if hidden and number == 0:
                x = checkpoint(layer, x.detach().requires_grad_(), use_reentrant=True)
            else:
                x = layer(x)
            x = torch.tanh(x)
        return self.frozen(x)


class Engine:
    """What `Buckets` asks of a DeepSpeed engine, at ZeRO 0."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, bucket: int):
        self.module, self.communication_data_type, self._bucket = module, dtype, bucket

    def zero_optimization_stage(self) -> int:
        return 0

    def zero_reduce_bucket_size(self) -> int:
        return self._bucket

    def set_gradient_accumulation_boundary(self, last: bool) -> None: ...


def losses(toy: Toy, rank: int, case: str) -> list[Tensor]:
    """A head's pass, then one of the masked-language kind; the last rank's is over nothing if it is idle."""
    generator = torch.Generator().manual_seed(rank)
    ids = torch.randint(0, 40, (5, 9), generator=generator)
    if case == "idle" and rank == dist.get_world_size() - 1:
        ids = ids[:, :0]
    first = toy.head(toy.encode(ids)).square().sum()
    shallow = 2 if case == "shallow" and rank % 2 else LAYERS
    states = toy.encode(ids, shallow, hidden=case == "hidden")
    return [
        first,
        nn.functional.cross_entropy(toy.decoder(states).flatten(0, 1), ids.flatten(), reduction="sum"),
    ]


def run(case: str, overlap: bool, dtype: torch.dtype, bucket: int) -> dict:
    torch.manual_seed(3)
    toy, rank = Toy(), dist.get_rank()
    for loss in losses(toy, rank, case):
        loss.backward()
    trained = {name: p for name, p in toy.named_parameters() if p.requires_grad}
    own = {name: None if p.grad is None else p.grad.clone() for name, p in trained.items()}
    for p in trained.values():
        p.grad = None
    reduction, during, together = Buckets(Engine(toy, dtype, bucket), overlap), 0, 0

    def backward(loss: Tensor) -> None:
        nonlocal during
        before = reduction._sent
        torch.autograd.backward(loss)
        during += reduction._sent - before

    def all_reduce(wire: Tensor, async_op: bool = False) -> dist.Work | None:
        nonlocal together
        together = max(together, len(reduction._under_way) + async_op)
        return real(wire, async_op=async_op)

    scale, real = LossScale(toy, 2.0**10), dist.all_reduce
    kept = toy.words.weight.grad = torch.zeros_like(toy.words.weight)
    watched = patch.object(dist, "all_reduce", all_reduce)
    with reduction.of_step(), patch.object(Tensor, "backward", backward), watched:
        first, last = losses(toy, rank, case)
        reduction.backward(first, final=False)
        with scale.applied() as factor:
            reduction.backward(last * factor, final=True)
        dist.all_reduce(torch.zeros(1))  # as losses' sums are
    assert toy.words.weight.grad is kept
    return {
        "together": together,
        "own": own,
        "mean": {name: p.grad.clone() for name, p in trained.items()},
        "frozen": toy.frozen.weight.grad,
        "during": during,
        "buckets": len(reduction.buckets),
    }


def main() -> None:
    torch.set_num_threads(1)
    join("gloo", 60, 60)
    found: dict = {"most": UNDER_WAY}
    for case in ("plain", "idle", "shallow"):
        for overlap in (True, False):
            found[case, overlap] = run(case, overlap, torch.float32, 600)
        found[case, "again"] = run(case, True, torch.float32, 600)
    found["one bucket"] = run("plain", True, torch.float32, 10**9)
    found["bf16"] = run("plain", True, torch.bfloat16, 600)
    try:
        run("hidden", True, torch.float32, 600)
    except RuntimeError as error:
        found["hidden"] = str(error)
    torch.save(found, f"{sys.argv[1]}.{os.environ['RANK']}.pt")
    os._exit(0)  # after "hidden" ranks have sent different numbers of buckets


if __name__ == "__main__":
    main()
