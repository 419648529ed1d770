"""What is a fault, how many are too many, and what is told of them: without a training."""

import math
import statistics
from dataclasses import asdict, fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from threaded_ranks import ThreadedRanks

from augment.core.ragged import Ragged
from pretrain.checkpoint import store
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.data.batch import RankBatch
from pretrain.start.resume import NotFinite, last_good, roll_back
from pretrain.step.faults import Faults, Finding, OverBudget, StepNumbers, _watched, diagnose
from pretrain.step.progress import Progress
from pretrain.telemetry.run import Telemetry


def judged(tmp_path, progress=None, **flags):
    """A judge of steps without a model: what it may not compute again it only describes."""
    config = load_config(None, {f"train.faults.{name}": value for name, value in flags.items()})
    telemetry = Telemetry(tmp_path, 9, rank=1)
    return Faults(config.train.faults, None, None, telemetry, progress or Progress(), str)


def numbers(step, norm, loss=1.0, scale=None):
    texts = Ragged.from_sequences([[2, 7, 3]])
    batch = RankBatch(step - 1, 0, np.array([step], dtype=np.uint64), texts, [], {}, None, [])
    return StepNumbers(step, batch, {"total": loss}, norm, math.isfinite(norm), scale)


def test_a_spike_is_judged_alike_whenever_the_step_before_was_read(tmp_path):
    faults, norms = judged(tmp_path, spikes="skip", spike_factor=3), np.random.default_rng(0).random(300) + 1
    for step in range(2, len(norms)):
        early = faults.limit(step)
        assert faults.judge(numbers(step - 1, norms[step - 2]))
        assert faults.limit(step) == early
        known = norms[max(0, step - 102) : step - 2]
        assert early == (3 * statistics.median(known) if len(known) >= 10 else math.inf)
    assert judged(tmp_path).limit(200) == math.inf


@pytest.mark.parametrize("spikes", ["warn", "skip", "rollback"])
def test_a_norm_is_a_spike_above_its_limit_alone(tmp_path, spikes):
    """`skip` leaves its update out, `rollback` makes it; float16's overflow is no spike."""
    progress = Progress(norms=[[step, 2.0] for step in range(1, 21)])
    faults = judged(tmp_path, progress, spikes=spikes, spike_factor=3, skip=5)
    limit = math.inf if spikes == "warn" else 6.0
    assert faults.limit(30) == limit and faults.largest_applied(30) == (6.0 if spikes == "skip" else math.inf)
    assert faults.judge(numbers(30, 6.0)) and faults.judge(numbers(31, math.inf, scale=1.0))
    assert progress.norms[-1] == ([20, 2.0] if spikes == "warn" else [30, 6.0])
    if spikes == "warn":
        assert faults.judge(numbers(32, 1e9)) and not progress.faults
    elif spikes == "skip":
        assert not faults.judge(numbers(32, 6.1)) and progress.faults == [32]
    else:  # at once, though it is the first
        with pytest.raises(OverBudget, match=r"the gradient norm 6.1 is above 6 at step 32") as over:
            faults.judge(numbers(32, 6.1))
        assert over.value.finding == Finding([32], texts=[(32, "[2, 7, 3]")], again=False)
    assert faults.judge(numbers(33, 5.9))


def test_what_is_not_finite_is_a_fault_whatever_spikes_are(tmp_path):
    for spikes in ("warn", "skip", "rollback"):
        faults = judged(tmp_path, spikes=spikes, skip=9)
        found = [
            faults.judge(numbers(*of)) for of in ((1, math.nan), (2, 1.0, math.inf), (3, math.inf), (4, 1.0))
        ]
        assert found == [False, False, False, True] and faults.progress.faults == [1, 2, 3]
        assert [number for number, _ in faults.progress.norms] == ([] if spikes == "warn" else [2, 4])


def test_steps_that_are_jumped_are_counted_and_recorded(tmp_path):
    rows = []
    faults = judged(tmp_path, Progress(step=6, tokens=50))
    faults.telemetry = SimpleNamespace(say=rows.append, log=lambda step, row: rows.append((step, row)))
    faults.jump_to(9)
    assert (faults.progress.step, faults.progress.tokens, faults.progress.jumped) == (9, 50, [[6, 9]])
    assert rows == ["steps 7 to 9 are left out (train.faults.jump)", (9, {"jumped": {"first": 7, "last": 9}})]


def test_a_run_that_rolls_back_keeps_what_it_has_read_and_takes_back_what_it_learned():
    """All fields of a run's progress are different from the checkpoint's."""
    names = [field.name for field in fields(Progress)]
    types = {name: type(getattr(Progress(), name)) for name in names}
    now = {name: kind([name]) if kind is list else kind() for name, kind in types.items()}
    now |= {"step": 9, "tokens": 9, "seconds": 9.0, "best_step": 8, "best_score": 8.0, "skipped_steps": 3}
    before = {"step": 4, "tokens": 4, "skipped_steps": 1, "norms": [[1, 1.0]], "loss_scale": {"value": 2.0}}
    before |= {
        "window": {"w": 1},
        "monitor": {"m": 1},
        "faults": [2],
        "rollbacks": [],
        "seconds": 1.0,
        "best_step": 1,
    }
    progress = Progress(**now)
    progress.roll_back(before, "ill")
    taken = {
        name: before[name] for name in ("tokens", "skipped_steps", "norms", "loss_scale", "window", "monitor")
    }
    back = {"rollbacks": ["rollbacks", {"from": 4, "to": 9, "why": "ill"}], "faults": []}
    assert asdict(progress) == now | taken | back
    progress.roll_back({"step": 4}, "older than some fields")
    assert (progress.tokens, progress.norms, progress.window, progress.step) == (0, [], {}, 9)


@pytest.mark.parametrize(
    "finding,lines",
    [
        (Finding([1, 2]), ["computed again, its numbers were finite: suspect a device"]),
        (Finding([1, 2], again=False), []),
        (Finding([1], forward=["rank 0: a"]), ["forward: first not finite on rank 0: a"]),
        (Finding([1], backward=["rank 1: b"]), ["backward: first gradient that is not finite on rank 1: b"]),
        (
            Finding([1, 2, 3], [1, 3], [(1, "one"), (3, "three")], ["rank 0: a", "rank 1: c"], ["rank 1: b"]),
            [
                "forward: first not finite on rank 0: a",
                "forward: first not finite on rank 1: c",
                "backward: first gradient that is not finite on rank 1: b",
                "sequences whose vectors are not finite: 1, 3",
                "sequence 1: one",
                "sequence 3: three",
            ],
        ),
    ],
)
def test_a_report_says_what_was_found(finding, lines):
    assert finding.lines() == lines


@pytest.mark.parametrize(
    "broken,of_broken,texts",
    [
        ([0], [100], [100]),  # the first of the first rank
        ([4], [104], [104]),  # its last
        ([5], [105], [105]),  # the first of the other
        ([8], [108], [108]),
        ([0, 1, 2, 3, 6], [100, 101, 102, 103, 106], [100, 101, 102, 106]),  # three of a rank are shown
        (range(9), [], [100, 101, 102, 105, 106, 107]),  # all of them are none in particular
        ([], [], [100, 101, 102, 105, 106, 107]),
        (None, [], [100, 101, 102, 105, 106, 107]),
    ],
)
def test_a_diagnosis_names_the_sequences_that_broke(broken, of_broken, texts, monkeypatch):
    """Of a batch of nine: five of a rank, four of the other. A view of two is not finite in one number."""
    ids = list(range(100, 109))

    def found(rank):
        own = np.array(ids[:5] if rank == 0 else ids[5:], dtype=np.uint64)
        rows = Ragged.from_sequences([[int(one)] for one in own])
        batch = RankBatch(3, 0, own, rows, [], {}, None, [])
        views = None if broken is None else torch.zeros(2, 9, 4)
        if broken:
            views[1, list(broken), 2] = math.nan
        cleared = []
        whole = SimpleNamespace(
            rank=rank,
            adds=True,
            graphs=SimpleNamespace(on=True),
            engine=SimpleNamespace(module=torch.nn.Linear(1, 1)),
            compute=lambda batch: SimpleNamespace(views=views, losses={"total": "loss"}),
        )
        update = SimpleNamespace(apply=cleared.append)
        finding = diagnose(whole, update, batch, ids, lambda tokens: f"text {tokens[0]}")
        assert cleared == ["loss"] and not whole.graphs.on and not whole.adds
        return finding

    first, second = ThreadedRanks(2, monkeypatch).run(found)
    assert first == second == Finding(ids, of_broken, [(n, f"text {n}") for n in texts])


class Sown(torch.nn.Module):
    """Three layers, of which some sow what is not finite, forward or backward."""

    def __init__(self, forward="", backward=""):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(2, 2) for _ in range(3))
        self.sown = forward, backward

    def forward(self, request):
        x = request.arguments[0]
        for name in "abc":
            if name == self.sown[0]:
                getattr(self, name).weight.data.fill_(math.inf)
            x = getattr(self, name)(x)
            if name == self.sown[1] and x.requires_grad:
                x.register_hook(lambda gradient: gradient * math.nan)
        return x.log() * 0 - math.inf if self.sown[0] == "loss" else x.sum()


@pytest.mark.parametrize(
    "model,broken_input,expected",
    [
        (Sown(), False, {}),
        (Sown("b"), False, {"forward": (0, "b (Linear)")}),
        (Sown("c"), False, {"forward": (0, "c (Linear)")}),
        (Sown("loss"), False, {"forward": (0, "the losses (compute)")}),
        (Sown(), True, {"forward": (1, "a (Linear)")}),
        (Sown(backward="b"), False, {"backward": (0, "b.bias")}),
    ],
)
def test_the_first_that_is_not_finite_is_named(model, broken_input, expected):
    given = torch.full((1, 2), math.nan if broken_input else 0.5)

    def compute():
        pass

    with _watched(model) as first:
        loss = model(SimpleNamespace(arguments=(given,), method=compute))
        if "forward" not in expected:
            loss.backward()
    if "backward" in expected:
        assert first["backward"][1].startswith("b.")
        expected = expected | {"backward": first["backward"]}
    assert first == expected
    hooked = [module for module in model.modules() if module._forward_hooks]
    assert not hooked and not any(p._backward_hooks for p in model.parameters())


def test_float16_may_overflow_until_its_scale_is_at_the_floor(tmp_path):
    faults = judged(tmp_path, spikes="rollback", skip=9)
    for step in range(1, 12):
        assert faults.judge(numbers(step, math.inf, scale=2.0**-step))
    with pytest.raises(AttributeError):  # wants to compute the batch again
        faults.judge(numbers(20, math.inf, scale=2.0**-15))
    assert faults.progress.faults == [20]


def test_faults_are_counted_over_the_last_steps_alone(tmp_path):
    progress = Progress(norms=[[step, 1.0] for step in range(1, 50)])
    faults = judged(tmp_path, progress, spikes="skip", skip=2)
    for step in (65, 71, 1065):  # 65 is too long ago at 1065, and 71 just counts at 1070
        assert not faults.judge(numbers(step, 50.0))
    assert progress.faults == [71, 1065]
    with pytest.raises(OverBudget, match="3 had a fault") as over:
        faults.judge(numbers(1070, 50.0))
    assert "(71, 1065, 1070), and train.faults.skip is 2" in over.value.what
    assert (over.value.step, over.value.since, over.value.finding.sequences) == (1070, 1065, [1070])


def test_the_checkpoint_to_return_to_is_from_before_the_faults_or_the_oldest(saved):
    def chosen(since):
        return last_good(saved, since).name

    assert [chosen(since) for since in (9, 4, 3, 2, 1)] == [f"step-0000000{n}" for n in (3, 3, 2, 1, 1)]
    (saved / "step-00000002" / "state.json").write_text("{}")
    assert chosen(3) == "step-00000001" and last_good(saved / "none", 3) is None


@pytest.mark.parametrize(
    "jump,says", [("9-8", "9-8 ends before it begins"), ("990-1000", "leaves out the last step"), ("0-3", "")]
)
def test_steps_that_cannot_be_left_out_are_refused(jump, says):
    with pytest.raises(UserError, match=f"train.faults.jump.*{says}"):
        load_config(None, {"train.faults.jump": jump})


@pytest.mark.parametrize(
    "since,step,done,to",
    [
        (7, 9, 0, 6),
        (6, 9, 0, 3),  # the checkpoint of a step with a fault is not gone back to
        (2, 9, 1, 3),  # the oldest, if none is from before
        (7, 20, 0, None),  # the run was over
        (7, 9, 2, None),  # roll-backs are done
    ],
)
def test_a_roll_back_goes_to_the_last_good_checkpoint_and_on_from_the_fault(
    since, step, done, to, tmp_path, monkeypatch
):
    settings = {"train.faults.rollbacks": "2", "train.steps": "20", "folder": str(tmp_path)}
    config, said, folder = load_config(None, settings), [], tmp_path / "checkpoints"
    for number in (3, 6, 9):
        (folder / f"step-{number:08d}").mkdir(parents=True)
    monkeypatch.setattr(store, "problem_with", lambda path: None)
    progress = Progress(step=step + 1, tokens=900, faults=[7, step], rollbacks=[{}] * done)

    def load(path):
        said.append(f"loaded {path.name}")
        return {"step": int(path.name[5:]), "progress": asdict(Progress(tokens=int(path.name[5:])))}

    def save(given, wait):
        assert given is progress and wait and progress.rows == {"ended": 1}
        said.append(
            f"saved {progress.step}, {progress.tokens}, {sorted(path.name for path in folder.iterdir())}"
        )

    checkpoints = SimpleNamespace(wait=lambda: None, config=config, load=load, save_progress=save)
    telemetry = SimpleNamespace(
        log=lambda *row: said.append(row), warn=said.append, sync=lambda: {"ended": 1}
    )
    fault = OverBudget(step, since, "it is ill", Finding([4, 5], [5], [(5, "five")]))
    report = tmp_path / "faults" / f"step-{step:08d}.txt"
    if to is None:
        with pytest.raises(NotFinite) as end:
            roll_back(fault, progress, 20, checkpoints, telemetry)
        assert f"it is ill; {done} of 2 roll-backs are done" in str(end.value) and not said
        jump = f"--train.faults.jump 7-{step} (leave these steps' data out)"
        assert (jump in str(end.value)) is (step < 20) and f"{folder}/step-00000006" in str(end.value)
    else:
        roll_back(fault, progress, 20, checkpoints, telemetry)
        back = {"from": to, "to": step, "why": "it is ill"}
        assert (progress.step, progress.tokens, progress.faults) == (step, to, [])
        assert progress.rollbacks == [{}] * done + [back]
        names = [f"step-{number:08d}{'.abandoned' if number > to else ''}" for number in (3, 6, 9)]
        loaded, row, warned, last = said
        assert (loaded, row) == (
            f"loaded step-{to:08d}",
            (step, {"rolled_back": {**back, "report": str(report)}}),
        )
        assert (
            f"of step-{to:08d} again, and steps {to + 1} to {step} are left out (roll-back {done + 1} of 2)"
            in warned
        )
        assert last == f"saved {step}, {to}, {names}"
    lines = ["it is ill", *fault.finding.lines(), "all sequences of the batch, lane by lane: 4, 5"]
    assert report.read_text().splitlines() == lines
