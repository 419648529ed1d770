"""What a run decides before it trains: threads, arithmetic, warm-up, and what it says of negatives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from exactness_worker import build
from run_helpers import ROOT

from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.objectives import WholeObjective
from pretrain.objectives.base import Objective
from pretrain.start import devices
from pretrain.telemetry.monitors import Monitor

RECIPES = sorted(path for path in (ROOT / "configs").glob("*.yaml") if "objective:" in path.read_text())


# ---- warm-up -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_any_recipe_takes_any_number_of_steps(recipe):
    own = load_config(recipe, {}).train
    for steps in (1, 3, 12, 99, own.steps // 2, own.steps, 2 * own.steps):
        train = load_config(recipe, {"steps": str(steps)}).train
        assert train.steps == steps and (train.warmup_steps < steps or train.warmup_steps == 0 or steps <= 2)
        if own.warmup_steps < steps:
            assert train.warmup_steps == own.warmup_steps  # it fits: as the recipe says
        else:
            assert train.warmup_steps == own.warmup_steps * steps // own.steps


def test_a_warm_up_that_is_said_is_not_changed():
    micro = ROOT / "configs" / "clear_micro.yaml"
    assert load_config(micro, {"train.steps": "12"}).train.warmup_steps == 1
    assert load_config(None, {"steps": "1_0"}).train.warmup_steps == 1
    with pytest.raises(UserError, match=r"warmup_steps=100 leaves nothing of train.steps=12"):
        load_config(micro, {"train.steps": "12", "train.warmup_steps": "100"})


def test_a_recipe_that_contradicts_itself_is_refused(tmp_path):
    (tmp_path / "recipe.yaml").write_text("train: {steps: 50, warmup_steps: 80}")
    with pytest.raises(UserError, match=r"warmup_steps=80 leaves nothing of train.steps=50"):
        load_config(tmp_path / "recipe.yaml", {})
    with pytest.raises(UserError, match=r"warmup_steps=80"):
        load_config(tmp_path / "recipe.yaml", {"steps": "60"})
    with pytest.raises(UserError, match=r"train.steps"):
        load_config(None, {"steps": "many"})


# ---- threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked,flag,ranks,expected",
    [
        ("3", None, 2, 3),
        ("3", "5", 2, 5),
        ("4,2", None, 1, 4),
        (None, None, 1, 8),
        (None, None, 3, 2),
        (None, None, 16, 1),
        ("", None, 2, 4),
        ("0", None, 2, 4),
        ("many", None, 2, 4),
    ],
)
def test_threads_are_the_users(monkeypatch, asked, flag, ranks, expected):
    for name, value in (("OMP_NUM_THREADS", asked), ("LOCAL_WORLD_SIZE", str(ranks))):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(devices, "usable_cores", lambda: 8)
    counts = []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    monkeypatch.setattr(torch, "set_flush_denormal", lambda flush: True)  # it would stay for later tests
    config = load_config(None, {} if flag is None else {"train.threads": flag})
    assert devices.set_threads(config) == expected and counts == [expected]


THREADS = """
import sys
from pretrain.common import cores
from pretrain.start import devices
from pretrain.config.recipe import load_config
flags = {} if len(sys.argv) < 2 else {"train.threads": sys.argv[1]}
devices.usable_cores = lambda: 8
said = "threads", devices.set_threads(load_config(None, flags)), cores.threads_of_user()
sys.stdout.write(" ".join(map(str, said)) + "\\n")  # at once: two ranks share the output
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "asked,flag,ranks,expected",
    [
        (None, None, 2, "4 None"),
        ("3", None, 2, "3 3"),
        pytest.param(None, "1", 2, "1 None", marks=pytest.mark.slow),
        pytest.param("1", None, 1, "1 1", marks=pytest.mark.slow),
    ],
)
def test_one_thread_that_torchrun_has_set_is_not_the_users(tmp_path, asked, flag, ranks, expected):
    """torchrun sets OMP_NUM_THREADS=1 for several ranks where the user has not set it."""
    (tmp_path / "threads.py").write_text(THREADS)
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"} | {
        "PYTHONPATH": str(ROOT)
    }
    environment |= {} if asked is None else {"OMP_NUM_THREADS": asked}
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        str(tmp_path / "threads.py"),
    ]
    done = subprocess.run(
        words + ([] if flag is None else [flag]), env=environment, capture_output=True, text=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("threads")]
    assert lines == [f"threads {expected}"] * ranks, done.stdout + done.stderr


# ---- precision ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, precision",
    [
        ("flags\t\t: fpu avx512f avx512_bf16 amx_tile", "bf16"),
        ("flags\t\t: fpu avx512f amx_bf16", "bf16"),
        ("Features\t: fp asimd bf16 i8mm", "bf16"),
        ("flags\t\t: fpu avx2 avx512f", "fp32"),
        ("model name\t: bf16", "fp32"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU decides by itself")
def test_a_processor_with_instructions_for_bfloat16_uses_it(tmp_path, line, precision):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\nbogomips\t: 1\n")
    assert devices.native_precision(tmp_path / "cpuinfo") == precision
    assert devices.native_precision(tmp_path / "none") == "fp32"


@pytest.mark.parametrize("native, precision", [(True, "bf16"), (False, "fp32")])
def test_a_gpu_with_instructions_for_bfloat16_uses_it(monkeypatch, native, precision):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    assert devices.native_precision() == precision


# ---- negatives ---------------------------------------------------------------------------------------------


class BarlowTwins(Objective):
    """An objective of one's own that tells no sequence from another."""

    roles = ("anchor", "positive")


def test_an_objective_without_negatives_has_none():
    assert BarlowTwins().negatives(192) == 0
    measures = Monitor().measure(torch.randn(2, 70, 8), torch.arange(70), None)
    assert "effective_negatives" not in measures and "uniformity" in measures
    alarms = [
        text for step in range(200) for text in Monitor().alarms_of_row(step, {"contrastive": 9.0}, measures)
    ]
    assert not any("guessing" in text for text in alarms)


def subclasses(kind: type) -> set[type]:
    return {kind} | {other for child in kind.__subclasses__() for other in subclasses(child)}


def test_every_objective_of_ours_says_what_its_anchors_are_told_apart_from():
    import pretrain.objectives as package

    for path in Path(package.__file__).parent.glob("*.py"):
        __import__(f"pretrain.objectives.{path.stem}")
    ours = {
        kind
        for kind in subclasses(Objective)
        if kind.__module__.startswith("pretrain.") and kind is not Objective
    }
    assert len(ours) > 8
    related = {kind for kind in ours if "relate" in vars(kind)}
    silent = {kind.__name__ for kind in related if not {"negatives", "rivals"} & vars(kind).keys()}
    assert silent == {"Distill", "Scored"}  # no text is a negative there, as is Objective's default


def test_local_negatives_are_those_of_a_rank():
    for local, expected in ((True, 48), (False, 192)):
        kind = type("Whole", (WholeObjective,), {"is_local": local})
        assert kind.__new__(kind).pool(192, 4) == expected


@pytest.mark.parametrize(
    "case,expected",
    [
        ("clear_mean", 2 * 192 - 2),
        ("simcse", 191),
        ("simcse_supervised", 2 * 192 - 1),
        ("simcse_all", 2 * 192 - 2),
        ("sda", 192),
        ("sda_no_negatives", 191),
        ("diffcse", 191),
        ("vadvcse", 191),
    ],
)
def test_what_an_anchor_is_told_apart_from_is_counted_as_its_loss_has_it(case, expected):
    """Of N sequences: N - 1 others; with every hard negative N more; with one's own negation 1 more; in
    NT-Xent 2N - 2."""
    assert build(case, 0, "fp32", 0.0)[1].objective.negatives(192) == expected


# ---- algorithms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_gpu", [True, False])
def test_deterministic_algorithms_are_asked_for_on_a_gpu_where_the_recipe_says_so(on_gpu, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    try:
        devices.set_deterministic(load_config(None, {}))
        assert not torch.are_deterministic_algorithms_enabled()
        devices.set_deterministic(load_config(None, {"train.deterministic": "true"}))
        assert torch.are_deterministic_algorithms_enabled() == on_gpu
        assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == on_gpu
    finally:
        torch.use_deterministic_algorithms(False)
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # undone with the rest


def test_float32_products_of_a_half_precision_run_are_tf32s_unless_exactness_is_asked_for():
    before = torch.backends.cuda.matmul.allow_tf32
    half = {"train.precision": "bf16"}
    try:
        for flags, expected in (
            (half, True),
            ({"train.precision": "fp32"}, False),
            (half | {"train.deterministic": "true"}, False),
            (half | {"model.attention": "exact"}, False),
            (half | {"model.attention": "exact", "train.tf32": "on"}, True),
            ({"train.precision": "fp32", "train.tf32": "on"}, True),
            (half | {"train.tf32": "off"}, False),
        ):
            devices.allow_tf32(load_config(None, flags))
            assert torch.backends.cuda.matmul.allow_tf32 == expected, flags
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
