"""Contrastive losses keep no matrix of all pairs: memory grows with the batch, not with its square."""

from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.losses import contrastive
from pretrain.losses.contrastive import (
    TILE_LOGITS,
    Negatives,
    info_nce,
    nt_xent,
    relaxed_negative_info_nce,
    symmetric_info_nce,
    tile_rows,
)
from pretrain.losses.exclusions import Exclusions


class Largest(TorchDispatchMode):
    """The largest number of elements of any tensor that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


@pytest.mark.parametrize(
    "loss",
    [
        lambda a, p, n: nt_xent(
            torch.stack([a, p]), 0.1, Exclusions(identities=torch.arange(2000).view(2, 1000))
        ),
        lambda a, p, n: info_nce(a, p, 0.1, Exclusions(torch.arange(1000) % 2), Negatives(n)),
        lambda a, p, n: symmetric_info_nce(a, p, 0.1),
        lambda a, p, n: relaxed_negative_info_nce(a, p, n, torch.ones(1000, dtype=torch.bool), 0.1, 0.5),
    ],
    ids=["nt_xent", "info_nce", "symmetric", "relaxed"],
)
def test_memory_grows_with_the_batch_not_its_square(loss, monkeypatch):
    """The largest tensor made is tile x candidates: recorded over every operation of forward and backward."""
    monkeypatch.setattr(contrastive, "tile_rows", lambda device, candidates: 16)
    a, p, n = (torch.randn(1000, 4, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        loss(a, p, n).backward()
    assert largest.numbers <= 16 * 2000


@pytest.mark.parametrize("kind,rows", [("cpu", 64), ("cuda", 4096), ("meta", 4096)])
def test_a_tile_of_65536_candidates_is_sized_for_its_device(kind, rows):
    assert tile_rows(torch.device(kind), 65_536) == rows and tile_rows(torch.device(kind), 2**40) == 1


def same(ids):
    return Exclusions(identities=ids.expand(2, -1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        lambda a, p, ids: nt_xent(torch.stack([a, p]), 0.05, same(ids)),
        lambda a, p, ids: info_nce(a, p, 0.05, same(ids)),
        lambda a, p, ids: symmetric_info_nce(a, p, 0.05, same(ids)),
        lambda a, p, ids: relaxed_negative_info_nce(a, p, a.roll(1, 0), ids % 2 == 0, 0.05, 0.5, same(ids)),
    ],
    ids=["nt_xent", "info_nce", "symmetric", "relaxed"],
)
def test_a_batch_of_65536_stays_within_its_tiles(loss):
    """N x N in float32 would be 16 GiB: the peak of the process rises by vectors and a tile."""
    a, p = (torch.randn(65_536, 16, requires_grad=True) for _ in range(2))
    with Largest():  # what torch keeps from its first use is not of the batch
        loss(a[:256], p[:256], torch.arange(256)).backward()
    before = restart_peak()
    with Largest() as largest:
        loss(a, p, torch.arange(65_536)).backward()
    assert largest.numbers <= TILE_LOGITS["cpu"]
    assert peak_memory() - before < 128 * 2**20


def restart_peak() -> int:
    """Forget the largest resident memory so far; what is resident now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()


def peak_memory() -> int:
    """Largest resident memory of this process since the peak was reset, in bytes."""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024
