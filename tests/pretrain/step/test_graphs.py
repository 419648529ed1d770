"""A step's passes as graphs: what is recorded, and that gradients are those of passes without graphs.

On a CPU a function is "recorded" by keeping it, and repeated by calling it again, over the same memory and by
the same path as on a GPU. The encoder takes the variable-length branch that CUDA takes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from exactness_cases import make_batch, share
from exactness_worker import build
from flash_reference import flash_on_cpu
from graph_recorder import Recorder, same_memory
from run_helpers import finish, start
from threaded_ranks import PlainEngine

from pretrain.model.layer import layers_of
from pretrain.step import graphs as graphs_module
from pretrain.step.faults import diagnose
from pretrain.step.graphs import Graphs
from pretrain.step.plan import passes_of
from pretrain.step.precision import LossScale
from pretrain.step.whole_batch import WholeBatch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CPU = torch.device("cpu")
WORKER = [str(Path(__file__).with_name("graphs_worker.py"))]
CUDA = pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def alone():
    """A process group of this process."""
    backend = "cpu:gloo,cuda:nccl" if DEVICE.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def batch_of(model, step):
    batch = make_batch(5 + step % 2, model.objective.masked_copies, model.objective.roles)
    return share(batch, 0, 1, step)


def run_steps(engine, graphs, steps, budget, lr=0.0, ranks=1):
    """Return every step's losses and gradients, after a step of SGD each; the batches differ.

    graphs: None: autograd adds all gradients; else those of layers are added together, as on a GPU.
    """
    model, found = engine.module, []
    scale = LossScale(model, 2.0**8) if model.precision == "fp16" else None
    whole = WholeBatch(engine, 5, budget, loss_scale=scale, graphs=graphs)
    whole.reduction.world = ranks
    whole.adds = graphs is not None
    for step in steps:
        model.zero_grad()
        result = whole.compute(batch_of(model, step))
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


@pytest.mark.parametrize(
    "case,budget,precision",
    [
        ("simcse", 4096, "fp32"),  # one row: its graph is kept between the two passes
        ("clear_mean", 150, "fp32"),  # several, and maskings
        ("clear_mean", 150, "bf16"),  # hooks of parameters weigh gradients of a masking
        ("clear_mean", 150, "fp16"),  # and of all
        ("clear_cls", 4096, "fp32"),
        ("clear_views_without_dropout", 4096, "fp32"),
    ],
)
def test_losses_and_gradients_are_those_of_passes_without_graphs(case, budget, precision):
    with flash_on_cpu():
        expected = run_steps(made(case, precision), None, range(3), budget, 0.1)
        record = Recorder()
        engine = made(case, precision)
        graphs = Graphs(engine, "auto", record=record)
        found = run_steps(engine, graphs, range(3), budget, 0.1)
    assert graphs.graphs and all(record.repeats)
    check_equal(found, expected)


@pytest.mark.parametrize(
    "case,precision", [("simcse", "bf16"), ("clear_mean", "fp16"), ("clear_mean", "fp32")]
)
def test_what_is_repeated_reads_the_weights_and_the_row_of_now(case, precision, monkeypatch):
    """Operators alone, on the tensors that they had: as a GPU repeats them."""
    monkeypatch.setenv("CLEAR_KERNELS", "plain")  # others are no operators
    with flash_on_cpu():
        expected = run_steps(made(case, precision), None, range(4), 150, 0.1)
        engine, record = made(case, precision), Recorder(same_memory)
        found = run_steps(engine, Graphs(engine, "auto", record=record), range(4), 150, 0.1)
    assert sum(record.repeats) > len(record.repeats)
    check_equal(found, expected)


@pytest.mark.parametrize("stage", [0, 2])
def test_reductions_during_the_last_pass_have_all_gradients(stage):
    """As among two ranks, of which the other has no gradient; at ZeRO 1 and 2 autograd adds gradients.

    In bfloat16 hooks weigh those of a masking.
    """
    with flash_on_cpu():
        expected = run_steps(made("clear_mean", "bf16"), None, range(4), 150, 0.1, ranks=2)
        engine, record = made("clear_mean", "bf16"), Recorder()
        engine.stage = stage
        graphs = Graphs(engine, "auto", record=record)
        engine.stage = 0
        found = run_steps(engine, graphs, range(4), 150, 0.1, ranks=2)
    assert any(record.repeats[1::2])
    check_equal(found, expected)


def test_a_fault_is_looked_for_in_modules_and_not_in_graphs():
    with flash_on_cpu():
        engine = made("simcse")
        graphs = Graphs(engine, "auto", record=Recorder())
        run_steps(engine, graphs, [0, 2, 4], 4096)
        with torch.no_grad():
            next(layers_of(engine.module.encoder.lm)[-1].parameters()).fill_(torch.nan)
        whole = WholeBatch(engine, 5, 4096, graphs=graphs)
        batch = batch_of(engine.module, 6)
        update = SimpleNamespace(apply=lambda loss: engine.module.zero_grad())
        finding = diagnose(whole, update, batch, list(range(len(batch))), str)
    assert finding.forward == ["rank 0: encoder.lm.bert.encoder.layer.1 (PostNormLayer)"]


def check_equal(found, expected):
    for mine, other in zip(found, expected, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            assert torch.equal(mine[name], other[name]), name


def test_a_shape_is_recorded_when_it_comes_a_second_time():
    with flash_on_cpu():
        engine, record = made("simcse"), Recorder()
        graphs = Graphs(engine, "auto", record=record)
        run_steps(engine, graphs, [0], 4096)
        assert not record.repeats
        run_steps(engine, graphs, [2], 4096)
        assert record.repeats == [1, 1]  # a forward and a backward
        run_steps(engine, graphs, [4], 4096)
        assert record.repeats == [2, 2]
        run_steps(engine, graphs, [6, 8], 150)  # rows are encoded twice, of which once without a backward
        forward, backward = record.repeats[2::2], record.repeats[3::2]
        assert len(forward) > 1 and sum(forward) > sum(backward)
    assert engine.module.encoder.copies is None  # nothing of a recording stays


def test_gradients_are_added_where_graphs_have_them_whatever_was_there():
    with flash_on_cpu():
        engine, record = made("simcse"), Recorder()
        graphs = Graphs(engine, "auto", record=record)
        expected = run_steps(engine, graphs, [0, 2], 4096)[1]  # the second records
        (graph,) = graphs.graphs.values()
        model, kept = engine.module, graph.pairs
        whole = WholeBatch(engine, 5, 4096, graphs=graphs)
        for before in (None, 1.0):
            model.zero_grad()
            for parameter, _ in kept[::2]:
                parameter.grad = None if before is None else torch.full_like(parameter, before)
            whole.compute(batch_of(model, 2))
            assert all(parameter.grad is own for parameter, own in kept)
            for number, (name, parameter) in enumerate(model.named_parameters()):
                places = [place for place, (other, _) in enumerate(kept) if other is parameter]
                more = before if before and places and places[0] % 2 == 0 else 0.0
                if places:
                    assert torch.equal(parameter.grad, expected[name] + more), (name, number)


def test_no_more_shapes_are_recorded_than_there_may_be(monkeypatch):
    monkeypatch.setattr(graphs_module, "MOST_GRAPHS", 1)
    said = []
    with flash_on_cpu():
        expected = run_steps(made("clear_mean"), None, range(3), 4096, 0.1)
        engine, record = made("clear_mean"), Recorder()
        graphs = Graphs(engine, "auto", said.append, record)
        found = run_steps(engine, graphs, range(3), 4096, 0.1)
    assert said == ["graphs     not where a row has a shape beyond the first 1 that came twice"]
    assert len(graphs.graphs) == 1 and len(record.repeats) == 2 and all(record.repeats) and graphs.on
    check_equal(found, expected)


def test_long_rows_are_not_recorded(monkeypatch):
    with flash_on_cpu():
        engine = made("simcse")
        sizes = [len(engine.module.pack(row).ids) for row in rows_of(engine.module, 2)]
        for largest, recorded in ((max(sizes), 1), (max(sizes) - 1, 0)):
            monkeypatch.setattr(graphs_module, "LARGEST_ROW", largest)
            said = []
            graphs = Graphs(engine, "auto", said.append, Recorder())
            run_steps(engine, graphs, [0, 2, 4], 4096)
            assert len(graphs.graphs) == recorded and graphs.on
            of_long = f"graphs     not where a row has more than {largest:,} tokens"
            assert said == ([] if recorded else [of_long])


def rows_of(model, step, budget=4096):
    (part,) = passes_of(batch_of(model, step), model.objective, budget, 5, 0).values()
    return part.micro_batches(1)


def test_a_failure_after_some_graphs_gives_all_up_and_changes_no_bit():
    said, recorded = [], []

    def record(function):
        if len(recorded) == 2:
            raise RuntimeError("CUDA error: out of memory")
        recorded.append(function)
        function()
        return function

    with flash_on_cpu():
        expected = run_steps(made("clear_mean"), None, range(6), 150, 0.1)
        engine = made("clear_mean")
        graphs = Graphs(engine, "auto", said.append, record)
        found = run_steps(engine, graphs, range(6), 150, 0.1)
    assert said == ["graphs     none any more: CUDA error: out of memory"]
    assert not graphs.on and not graphs.graphs and "pairs" not in vars(graphs.gradients)
    check_equal(found, expected)


def test_another_graph_between_forward_and_backward_is_an_error():
    with flash_on_cpu():
        engine = made("clear_mean")
        graphs = Graphs(engine, "auto", record=Recorder())
        run_steps(engine, graphs, [0, 2], 4096)
        views, masked = (
            part.micro_batches(1)[0]
            for part in passes_of(batch_of(engine.module, 4), engine.module.objective, 4096, 5, 0).values()
        )
        for other in (
            lambda: graphs.masked_loss(engine.module, masked),
            lambda: graphs.embed(engine.module, views),
        ):
            vectors = graphs.embed(engine.module, views)
            other()
            with pytest.raises(AssertionError, match="another graph"):
                vectors.sum().backward()


def test_what_cannot_be_recorded_runs_as_before_and_says_why_once():
    said = []
    expected = run_steps(made("simcse"), None, range(3), 4096)
    found = run_steps(engine := made("simcse"), Graphs(engine, "auto", said.append), range(3), 4096)
    check_equal(found, expected)
    assert not said  # a CPU needs no reason

    def graphs_of(setting="auto", stage=0):
        said.clear()
        engine = PlainEngine(made("simcse").module, stage=stage)
        if setting == "recompute":
            engine.module.encoder.recompute_layers()
        return engine, Graphs(engine, "off" if setting == "off" else "auto", said.append, Recorder())

    assert not graphs_of("off")[1].on and not said
    assert not graphs_of(stage=3)[1].on and "ZeRO 3" in said[0]
    assert not graphs_of("recompute")[1].on and "activation_checkpointing" in said[0]
    check_equal(run_steps(*graphs_of("recompute"), range(3), 4096), expected)
    check_equal(run_steps(*graphs_of(), range(3), 4096), expected)
    assert len(said) == 1 and "float32 attention runs length by length" in said[0]
    with flash_on_cpu():
        expected = run_steps(made("simcse"), None, range(3), 4096)
        engine, graphs = graphs_of()
        engine.module.encoder.leave_out([torch.tensor([7, 8]).numpy()])
        run_steps(engine, graphs, range(3), 4096)
        assert len(said) == 1 and "prompts" in said[0] and graphs.on
        engine, graphs = graphs_of()
        graphs.record = refuse
        check_equal(run_steps(engine, graphs, range(3), 4096), expected)
    assert said == ["graphs     none: no memory"] and not graphs.on


@pytest.mark.full
@pytest.mark.parametrize("stage,ranks", [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)])
def test_with_deepspeeds_engine_graphs_change_no_bit(tmp_path, stage, ranks):
    out = tmp_path / "report"
    finish(start([*WORKER, str(out), str(stage), "clear_mean", "bf16", "cpu"], ranks), timeout=600)
    for rank in range(ranks):
        check_report(json.loads(Path(f"{out}.{stage}.{rank}").read_text()), stage)


def check_report(report, stage):
    assert report.keys() == {"no graphs", "nothing", "anew", "given up"}
    for turn, found in report.items():
        assert found["compared"] > 50 and not found["differing"], turn
        if turn == "no graphs":
            continue
        assert found["graphs"]["RowGraph._backward"]
        updates = 0 if stage else 2 if turn == "anew" else 1
        assert found["graphs"].get("UpdateGraph._body", 0) == updates, turn


def refuse(function):
    function()
    raise RuntimeError("no memory\nand more")


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize(
    "precision,budget", [("fp32", 64), ("fp32", 4096), ("bf16", 64), ("bf16", 4096), ("fp16", 64)]
)
def test_on_a_gpu_graphs_change_no_bit_and_gradients_added_together_none(precision, budget):
    expected = run_steps(made("clear_mean", precision, DEVICE), None, range(6), budget, 0.1)
    for setting in ("off", "recompute", "auto"):
        engine = made("clear_mean", precision, DEVICE)
        if setting == "recompute":
            engine.module.encoder.recompute_layers()
        graphs = Graphs(engine, "off" if setting == "off" else "auto")
        found = run_steps(engine, graphs, range(6), budget, 0.1)
        assert graphs.on == bool(graphs.graphs) == (setting == "auto")
        check_equal(found, expected)


@pytest.mark.gpu
@CUDA
def test_on_a_gpu_any_split_has_the_gradient_of_the_whole_and_a_resume_its_bits():
    whole = run_steps(engine := made("simcse", "fp32", DEVICE), Graphs(engine, "auto"), range(4), 4096)
    parts = run_steps(engine := made("simcse", "fp32", DEVICE), Graphs(engine, "auto"), range(4), 64)
    for mine, other in zip(parts, whole):
        for name in other:
            torch.testing.assert_close(mine[name], other[name], rtol=1e-4, atol=1e-6)
    straight = run_steps(engine := made("simcse", "bf16", DEVICE), Graphs(engine, "auto"), range(6), 64, 0.1)
    first = made("simcse", "bf16", DEVICE)
    run_steps(first, Graphs(first, "auto"), range(3), 64, 0.1)
    check_equal(run_steps(first, Graphs(first, "auto"), range(3, 6), 64, 0.1), straight[3:])


@pytest.mark.gpu
@CUDA
def test_on_a_gpu_updates_of_deepspeeds_engine_have_the_same_bits(tmp_path):
    out = tmp_path / "report"
    words = [sys.executable, *WORKER, str(out), "0,1", "clear_mean", "bf16", "cuda"]
    root, before = Path(__file__).parents[3], os.environ.get("PYTHONPATH", "")
    variables = os.environ | {"PYTHONPATH": f"{root}:{before}"}
    ended = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-2000:]
    for stage in (0, 1):
        check_report(json.loads(Path(f"{out}.{stage}.0").read_text()), stage)
