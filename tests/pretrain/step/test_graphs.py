"""A step's passes as graphs: what is recorded, and that gradients are those of passes without graphs.

On a CPU a function is "recorded" by keeping it, and repeated by calling it again, over the same memory and by
the same path as on a GPU. The encoder takes the variable-length branch that CUDA takes.
"""

import pytest
import torch
import torch.distributed as dist
from exactness_cases import make_batch, share
from exactness_worker import build
from flash_reference import flash_on_cpu

from pretrain.step.graphs import Graphs
from pretrain.step.whole_batch import WholeBatch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CPU = torch.device("cpu")
CUDA = pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA device")


class PlainEngine:
    """What a step asks of an engine at ZeRO 0."""

    communication_data_type = torch.float32

    def __init__(self, model, device=CPU, stage=0):
        self.module, self.device, self.stage = model.to(device).train(), device, stage

    def __call__(self, request):
        return self.module(request)

    def zero_optimization_stage(self):
        return self.stage

    def zero_reduce_bucket_size(self):
        return 1 << 30

    def set_gradient_accumulation_boundary(self, is_boundary):
        pass

    def backward(self, loss, scale_wrt_gas):
        loss.backward()


class Recorder:
    """Record functions by keeping them; `repeats` counts how often each was repeated."""

    def __init__(self):
        self.repeats: list[int] = []

    def __call__(self, function):
        function()
        number = len(self.repeats)
        self.repeats.append(0)

        def repeat():
            self.repeats[number] += 1
            function()

        return repeat


@pytest.fixture(autouse=True)
def alone():
    """A process group of this process."""
    backend = "cpu:gloo,cuda:nccl" if DEVICE.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def run_steps(engine, graphs, steps, budget, lr=0.0):
    """Return every step's losses and gradients, after a step of SGD each; the batches differ."""
    model, found = engine.module, []
    whole = WholeBatch(engine, 5, budget, graphs=graphs)
    for step in steps:
        model.zero_grad()
        batch = make_batch(5 + step % 2, model.objective.masked_copies, model.objective.roles)
        result = whole.compute(share(batch, 0, 1, step))
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        found.append({n: loss.clone() for n, loss in result.losses.items()} | gradients)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= lr * parameter.grad
    return found


def made(case, precision="fp32", device=CPU, **more):
    _, model = build(case, 0, precision, 0.2, **more)
    return PlainEngine(model, device)


@pytest.mark.parametrize("case", ["simcse", "clear_mean", "clear_cls", "clear_views_without_dropout"])
@pytest.mark.parametrize("budget", [64, 4096])
def test_losses_and_gradients_are_those_of_passes_without_graphs(case, budget):
    with flash_on_cpu():
        expected = run_steps(made(case), None, range(6), budget, 0.1)
        engine, record = made(case), Recorder()
        graphs = Graphs(engine, "auto", record=record)
        found = run_steps(engine, graphs, range(6), budget, 0.1)
    assert record.repeats and all(record.repeats)
    for mine, other in zip(found, expected, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            assert torch.equal(mine[name], other[name]), name
