"""Micro-batches of long sequences: with dropout of attention by hash they change no gradient."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.distributed as dist
from encoder_helpers import make_encoder, scale_matrices
from flash_reference import flash_on_cpu
from threaded_ranks import PlainEngine

from augment.core.ragged import Ragged
from pretrain.config.recipe import validate_config
from pretrain.data.batch import RankBatch, View
from pretrain.objectives import build_objective
from pretrain.step.graphs import Graphs
from pretrain.step.model import SentenceModel
from pretrain.step.precision import LossScale
from pretrain.step.whole_batch import WholeBatch

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
TOKENS, COUNT = 512, 4


@pytest.fixture(autouse=True)
def alone():
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def gradient_of(device: torch.device, exact: bool, parts: int) -> torch.Tensor:
    """All gradients of a third step of SimCSE, whose rows are graphs on a GPU; parts: micro-batches."""
    train = {"global_batch": COUNT, "steps": 1_000, "zero": 0, "precision": "fp16"}
    objective = {"name": "simcse", "mlm": {"weight": 0.0}}
    config = validate_config({"data": {"lanes": 1}, "objective": objective, "train": train}, "test")
    encoder = make_encoder("bert", dropout=0.1, attention_dropout=0.1, max_positions=TOKENS, layers=1)
    scale_matrices(encoder)
    encoder.exact_attention = exact
    torch.manual_seed(0)
    model = SentenceModel(encoder, build_objective(config, encoder), "fp16")
    engine = PlainEngine(model, device)
    scale, graphs = LossScale(model, 2.0**8), Graphs(engine, "auto")
    whole = WholeBatch(engine, 5, 2 * COUNT * TOKENS // parts, scale, graphs=graphs)
    texts = Ragged.from_sequences(np.random.default_rng(0).integers(5, 65, (COUNT, TOKENS), np.int32))
    view = View(texts, np.arange(COUNT), np.ones(COUNT, bool))
    numbers = np.arange(COUNT, dtype=np.uint64)
    for step in range(3 if device.type == "cuda" else 1):
        model.zero_grad()
        views = {"anchor": view, "positive": view}
        result = whole.compute(RankBatch(step, 0, numbers, texts, [], views, labels=None, substitutions=[]))
    assert result.micro_batches[0] == parts
    assert bool(graphs.graphs) == (device.type == "cuda")
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()


@pytest.mark.parametrize(
    "kind", [pytest.param("cpu", marks=pytest.mark.full), pytest.param("cuda", marks=GPU)]
)
def test_micro_batches_of_long_sequences_change_no_gradient(kind):
    """Of 512 tokens, one micro-batch beside four."""
    device, errors = torch.device(kind), {}
    for exact in (True, False):
        with flash_on_cpu() if kind == "cpu" and not exact else nullcontext():
            whole, split = (gradient_of(device, exact, parts) for parts in (1, 4))
        errors[exact] = float((whole - split).norm() / whole.norm())
    # float16 rounds other sums in another split; the ratio shows that dropout is the same
    assert errors[True] < 0.005 and errors[True] < 0.3 * errors[False], errors
