"""The command as users type it: through the launcher, as a dry run, with help, and from an export."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from run_helpers import ROOT, command, curve, finish, free_port, outputs_of, start
from safetensors.torch import load_file

from pretrain.common.shutdown import DEAD_LOSS, INTERRUPT, MOVED, NONE, REQUEUE, STOP, TERMINATE
from pretrain.config.recipe import DEFAULT_RECIPE, load_config
from pretrain.run import TrainingRun
from pretrain.step.heldout import find_partners
from pretrain.step.precision import SMALLEST_SCALE, LossScale
from pretrain.step.progress import Progress


@pytest.mark.full
def test_launched_by_deepspeed_on_two_ranks_as_a_dry_run(tiny_data, tmp_path):
    launcher = str(Path(sys.executable).with_name("deepspeed"))
    port = str(free_port())  # the launcher's own is one for all runs of a machine
    words = [
        launcher,
        "--master_port",
        port,
        "--num_accelerators",
        "2",
        *command(tiny_data, tmp_path / "run", train__steps=500),
        "--dry-run",
    ]
    environment = {k: v for k, v in os.environ.items() if k != "CLEAR_DATA"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "2 x CPU" in done.stdout and "30 negatives per anchor" in done.stdout
    assert done.stdout.count("whole run: 500 steps of ") == 1 and "GB for 2 ranks" in done.stdout
    run = tmp_path / "run.dry-run"
    assert not (tmp_path / "run").exists()
    assert [step for step, row in curve(run).items() if "loss" in row] == [1, 2]
    assert {0, 2} == {step for step, row in curve(run).items() if "evaluation" in row}
    assert (run / "export" / "model.safetensors").exists() and list(
        (run / "checkpoints").glob("step-00000002")
    )


THREADS = """
import atexit, gc, runpy, sys
from pathlib import Path
def report():
    gc.collect()
    print("THREADS", *sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")))
atexit.register(report)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.full
@pytest.mark.parametrize("zero", [0, 2])
def test_no_thread_of_a_process_group_is_left_at_the_end(tiny_data, tmp_path, zero):
    """One that lives when the interpreter ends may abort the process."""
    words = command(tiny_data, tmp_path / "run", train__steps=2, train__zero=zero)
    for output in outputs_of(start(["-c", THREADS, *words], ranks=2), 240):
        assert "gloo" not in output.partition("THREADS ")[2] and "python" in output.partition("THREADS ")[2]


@pytest.mark.full
def test_views_that_grow_are_cut_in_training_and_evaluation_and_an_export_starts_another_run(
    tiny_data, tmp_path
):
    first = tmp_path / "first"
    finish(
        start(
            command(
                tiny_data,
                first,
                train__steps=3,
                train__warmup_steps=1,
                model__max_positions=48,
                aug="repeat:rate=0.9",
                model__type="roberta",
                model__pooling="cls",
            )
        )
    )
    second = tmp_path / "second"
    output = finish(
        start(
            command(
                tiny_data,
                second,
                train__steps=3,
                train__warmup_steps=1,
                init=str(first / "export"),
                model__max_positions=None,
                objective__name="mlm",
                objective__mlm__copies=2,
            )
        )
    )
    assert str(first / "export") in output and "2 masking(s)" in output
    before, after = curve(first)[3]["evaluation"], curve(second)[0]["evaluation"]
    assert after["heldout_mlm_loss"] == pytest.approx(before["heldout_mlm_loss"], rel=1e-4)


@pytest.mark.full
def test_heads_learn_at_their_own_rate(tiny_data, tmp_path):
    run = tmp_path / "run"
    finish(
        start(
            command(
                tiny_data,
                run,
                train__steps=2,
                train__warmup_steps=0,
                train__head_lr_scale=1e-9,
                checkpoint__every=1,
                objective__contrastive__projection_layers=2,
                objective__contrastive__projection_size=8,
                evaluate__every=0,
            )
        )
    )
    before, after = (
        load_file(run / "checkpoints" / f"step-0000000{step}" / "parameters-00000.safetensors")
        for step in (1, 2)
    )
    moved = {name: float((after[name] - tensor).abs().max()) for name, tensor in before.items()}
    heads = {name for name in moved if name.startswith("objective.")}
    assert heads and all(moved[name] < 1e-10 for name in heads)
    assert max(moved[name] for name in moved.keys() - heads) > 1e-4


COMMANDS = [
    "pretrain.main",
    "pretrain.prepare",
    "pretrain.commands.inspect",
    "pretrain.commands.export",
    "augment",
    "finetune.sts",
]


@pytest.mark.full
@pytest.mark.parametrize("module", COMMANDS)
def test_help_everywhere(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"PAGER": "cat"},
    )
    assert done.returncode == 0, done.stderr
    page = done.stdout + done.stderr
    assert len(page.splitlines()) > 6 and "Traceback" not in page


@pytest.mark.full
def test_help_lists_every_key_with_type_default_and_meaning():
    words = [sys.executable, str(ROOT / "pretrain" / "main.py"), "--help", "all"]
    done = subprocess.run(words, capture_output=True, text=True)
    for text in (
        "--train.lr float (default 0.0006)",
        "peak learning rate",
        "--augment.spec",
        "--deepspeed",
        "--dry-run",
    ):
        assert text in done.stdout


class Loop(TrainingRun):
    """The loop of a run of 10 steps: it writes down what it does between steps that are none."""

    def __init__(self, requests: dict[int, int], best: int):
        flags = {"steps": 10, "warmup_steps": 1}
        flags = {f"train.{name}": str(value) for name, value in flags.items()}
        self.config = load_config(None, flags | {"evaluate.every": "4", "checkpoint.every": "3"})
        self.progress, self.stop_step, self.done, self.clock = Progress(), 10, [], None
        self.requests, self.best = requests, best
        nothing = SimpleNamespace(begin=lambda step: None, follow=lambda clock: None, train=lambda: None)
        self.engine = self.watchdog = nothing
        self.telemetry = SimpleNamespace(throughput=nothing, say=lambda text: None)
        self.log = SimpleNamespace(write=lambda: None)
        self.memory = SimpleNamespace(after_pause=lambda: None)
        finite = lambda progress: None  # noqa: E731
        self.checkpoints = SimpleNamespace(due=lambda step: step % 3 == 0, require_finite_weights=finite)
        self.shutdown = SimpleNamespace(clear_stop_file=lambda: self.done.append("no stop file"))

    def _step(self, batches):
        self.progress.step += 1
        return SimpleNamespace(request=self.requests.get(self.progress.step, NONE))

    def _evaluate(self):
        self.done.append(f"evaluate {self.progress.step}")
        return self.progress.step == self.best

    def _save(self, wait, is_best):
        self.done.append(f"save {self.progress.step}" + " and wait" * wait + ", best" * is_best)


UP_TO_4 = ["save 3", "evaluate 4"]
TO_THE_END = [*UP_TO_4, "save 6", "evaluate 8", "save 9", "evaluate 10", "save 10 and wait"]


@pytest.mark.parametrize(
    "requests, best, code, done",
    [
        ({}, 0, 0, TO_THE_END),
        ({}, 8, 0, [*TO_THE_END[:4], "save 8 and wait, best", *TO_THE_END[4:]]),
        ({}, 10, 0, [*TO_THE_END[:-1], "save 10 and wait, best"]),
        ({5: REQUEUE}, 0, 75, [*UP_TO_4, "save 5 and wait"]),
        ({5: TERMINATE}, 0, 143, [*UP_TO_4, "save 5 and wait"]),
        ({4: INTERRUPT}, 4, 130, [*UP_TO_4, "save 4 and wait, best"]),
        ({6: DEAD_LOSS}, 0, 1, [*UP_TO_4, "save 6 and wait"]),
        ({5: STOP}, 0, 0, [*UP_TO_4, "save 5 and wait", "no stop file"]),
        ({5: MOVED, 10: REQUEUE}, 0, 0, TO_THE_END),  # moved back; and nothing is left to be requeued for
    ],
)
def test_between_steps_the_loop_evaluates_saves_and_ends_as_it_should(requests, best, code, done):
    loop = Loop(requests, best)
    assert (loop.train(iter(())), loop.done) == (code, done)


def test_partner_found_counts_nearest_and_never_ties():
    eye = torch.eye(4).numpy()
    assert find_partners(eye, eye)[0] == 1.0
    assert find_partners(eye, eye[[1, 0, 2, 3]])[0] == 0.5
    twice = torch.tensor([7, 8, 7, 9]).numpy()  # views of one text: only the own one is a candidate
    assert find_partners(eye, eye[[2, 1, 0, 3]], twice)[0] == 0.5
    assert find_partners(eye, eye[[2, 1, 0, 3]], 0 * twice) == (1.0, 0.0)
    assert find_partners(eye * 0 + 1, eye * 0 + 1)[0] == 0.0  # a collapsed encoder finds nothing


def test_loss_scale_leaves_true_gradients_and_moves_with_overflow():
    torch.manual_seed(0)
    layer, plain = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    plain.load_state_dict(layer.state_dict())
    scale, batch = LossScale(layer, value=1024.0, growth_interval=2), torch.randn(5, 3)
    LossScale(layer, value=2.0)  # as after a roll-back: the hooks are there once
    assert len(layer.weight._backward_hooks) == 1
    for _ in range(2):  # accumulated over two micro-batches
        with scale.applied() as factor:
            assert factor == 1024.0
            (layer(batch).square().sum() * factor).backward()
        layer(batch).sum().backward()  # a loss that is float32 throughout
        plain(batch).sum().backward()
        plain(batch).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad)
    scale.update(torch.tensor(False))
    assert scale.value == 512.0
    scale.update(torch.tensor(True))
    scale.update(torch.tensor(True))
    assert scale.value == 1024.0
    other = LossScale(torch.nn.Linear(1, 1))
    other.restore(scale.state())
    assert other.value == 1024.0
    for _ in range(25):
        scale.update(torch.tensor(False))
    assert scale.value < SMALLEST_SCALE


def test_loss_scale_grows_after_good_steps_in_a_row():
    """Good steps before an overflow do not count towards the next doubling; a resumed run counts on."""
    scale = LossScale(torch.nn.Linear(1, 1), value=64.0, growth_interval=3)
    for finite in (True, True, False, True, True):
        scale.update(torch.tensor(finite))
    assert scale.value == 32.0
    resumed = LossScale(torch.nn.Linear(1, 1), growth_interval=3)
    resumed.restore(scale.state())
    resumed.update(torch.tensor(True))
    assert resumed.value == 64.0


def test_the_default_recipe_needs_nothing_but_the_packages():
    config = load_config(DEFAULT_RECIPE, {"aug": "del-span,reorder"})
    assert config.data.prepare.sources[0].source == "embedded" and config.data.folder is None
