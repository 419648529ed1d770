"""What `verify --replay` compares, what it cannot do again, and what it draws: without doing a step."""

import hashlib
import math
from itertools import count
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from stretch_helpers import saved

from pretrain.commands.verify import stretches
from pretrain.commands.verify.files import _check_settings
from pretrain.commands.verify.stretches import Stretch
from pretrain.common.errors import UserError
from pretrain.config.recipe import as_yaml, load_config
from pretrain.telemetry.metrics_file import NO_LINES, chained


@pytest.mark.parametrize(
    "old,new,tolerance,agree",
    [
        (1, 1, 0.0, True),
        (1, 1.0, 0.0, False),
        (1, 2, 0.5, False),  # what does not round is the same
        (True, 1, 0.01, False),
        (1.0, 1.0 + 1e-15, 0.0, False),
        (100.0, 100.9, 0.01, True),
        (100.0, 101.1, 0.01, False),
        (0.0, 0.009, 0.01, True),
        (0.0, 0.011, 0.01, False),
        (math.nan, math.nan, 0.0, True),
        (math.nan, math.nan, 0.01, True),
        (math.nan, 1.0, 0.01, False),
        (1.0, math.nan, 0.01, False),
        ([1.0, [2.0]], [1.001, [2.001]], 0.01, True),
        ([1.0, [2.0]], [1.001, [2.1]], 0.01, False),
        ([1.0], [1.0, 1.0], 0.01, False),
        ([1.0], 1.0, 0.01, False),
        ("a", "a", 0.01, True),
        (None, "None", 0.0, False),
    ],
)
def test_values_agree(old, new, tolerance, agree):
    assert stretches._agree(old, new, tolerance) is agree


def different(recorded, made, tolerance=0.0):
    return list(stretches._different_values("here: ", recorded, made, tolerance))


def test_values_that_differ_are_named_and_times_are_not_compared():
    assert not different({"a": {"b": [1], "c": 2.0}}, {"a": {"b": [1], "c": 2.0}})
    assert different({"a": {"b": 1}}, {"a": {"b": 2}}) == ["here: a.b is 1, and the steps give 2"]
    assert different({"a": 1}, {}) == ["here: a is 1, and the steps give nothing"]
    assert different({}, {"a": 1}) == ["here: a is nothing, and the steps give 1"]
    assert not different({"a": 2.0}, {"a": 2.01}, 0.01)
    for name in stretches._NOT_COMPARED:  # nor what is within it
        for key in (name, f"{name}.inner", "data.0.where"):
            assert not different({key: 1}, {key: 2}), key
    for key in ("secondss", "state.progress", "my.seconds", "where", "datum"):
        assert different({key: 1}, {key: 2}), key
    names = "wall_time seconds time memory tokens_per_second sequences_per_second mfu hfu eta_seconds "
    names += (
        "slowest_rank versions hugging_face.config.transformers_version state.machine state.config recipe "
    )
    names += "data state.progress.seconds state.progress.rows progress.seconds progress.rows"
    assert set(stretches._NOT_COMPARED) == set(names.split())


@pytest.mark.parametrize("number", [4, 5, 7])
def test_four_values_are_shown(number):
    old, new = ({f"k{i}": value for i in range(number)} for value in (1, 2))
    said = different(old, new)
    assert [line.split()[1] for line in said[:4]] == ["k0", "k1", "k2", "k3"]
    assert said[4:] == ([f"here: {number - 4} more values differ"] if number > 4 else [])


def tensors_differ(old, new, origin=None, tolerance=0.0):
    return list(stretches._different_tensors(old, new, origin or {}, tolerance))


def test_tensors_of_the_same_bits_are_the_same_and_each_other_bit_is_found():
    old = {"w": torch.tensor([[1.0, math.nan], [0.0, 4.0]]), "n": torch.tensor([7])}
    assert not tensors_differ(old, {name: value.clone() for name, value in old.items()})
    for place, value, shown in [(0, 1.5, "1, and the steps give 1.5"), (2, -0.0, "0, and the steps give -0")]:
        new = {name: tensor.clone() for name, tensor in old.items()}
        new["w"].view(-1)[place] = value
        assert tensors_differ(old, new) == [f"w: 1 of 4 numbers differ, as number {place}: {shown}"]
    two = {"w": torch.tensor([[2.0, math.nan], [1.0, 5.0]]), "n": old["n"] + 1}
    (said,) = tensors_differ(old, two)
    assert said.startswith("w: 3 of 4 numbers differ, as number 0")
    assert said.endswith("(2 of 2 tensors differ)")


@pytest.mark.parametrize("tolerance", [0.0, 0.5])
def test_a_tensor_that_is_not_there_or_of_another_kind_is_found(tolerance):
    old = {"w": torch.ones(2)}
    for new in ({}, {"w": torch.ones(2, 1)}, {"w": torch.ones(2).double()}):
        assert tensors_differ(old, new, None, tolerance) == ["w is none of the steps', or of another shape"]
    assert tensors_differ({}, old, None, tolerance) == ["w is missing"]


def test_the_tolerance_is_a_share_of_the_way_of_all_tensors_together():
    """The way is from (10, 10 | 0) to (13, 14 | 0): 5 long."""
    origin, old = {"w": torch.tensor([10.0, 10.0])}, {"w": torch.tensor([13.0, 14.0]), "b": torch.zeros(1)}

    def off(w, b):
        return tensors_differ(old, {"w": old["w"] + torch.tensor([w, 0.0]), "b": old["b"] + b}, origin, 0.01)

    assert not off(0.0, 0.0) and not off(0.049, 0.0) and not off(0.0, -0.049) and not off(0.03, 0.039)
    assert off(0.03, 0.041) and off(math.nan, 0.0)
    assert off(0.5, 0.0) == ["are 10.00% of their way from where the steps lead"]
    still = {"w": torch.zeros(2)}
    assert not tensors_differ(still, still, {}, 0.01)
    assert tensors_differ(still, {"w": torch.ones(2)}, {}, 0.01) == [
        "are inf% of their way from where the steps lead"
    ]


def rows(*of_steps):
    return [{"step": step, kind: value} for step, kind, value in of_steps]


def test_rows_are_those_that_the_steps_decide(monkeypatch):
    every = rows(*((step, "loss", step) for step in range(1, 7)), (2, "evaluation", 9), (2, "loss", 8))
    every += [{"step": 3, "config_sha256": "x"}, {"loss": 1}, {"step": "4", "loss": 1}]
    every += rows((4, "jumped", 1), (4, "left_out", 2), (4, "throughput", 2))
    monkeypatch.setattr(stretches, "read_metrics", lambda path: every if path.name == "metrics.jsonl" else 0)
    found = stretches._rows(Path("run"), 1, 4)
    assert {key: len(value) for key, value in found.items()} == {
        (2, "loss"): 2,
        (3, "loss"): 1,
        (4, "loss"): 1,
        (2, "evaluation"): 1,
        (4, "jumped"): 1,
        (4, "left_out"): 1,
    }
    assert found[2, "loss"] == rows((2, "loss", 2), (2, "loss", 8))


def test_a_stretch_is_compared_in_state_tensors_and_rows(monkeypatch, tmp_path):
    """One thing at a time is another in the steps that were done again."""
    run, again = tmp_path / "run", tmp_path / "again"
    weights = {"w": torch.tensor([3.0, 4.0])}
    origins = {"w": torch.tensor([2.0, 4.0])}
    decided = rows((1, "loss", 5.0), (2, "loss", 1.0), (2, "evaluation", 2.0), (3, "loss", 3.0))

    def compare(tolerance=0.0, before=1, state=1, made=weights, new_rows=decided):
        contents = {run: {"series": ["parameters"], "state": {"x": 1}}}
        contents[again] = {"series": ["parameters"], "state": {"x": state}}

        def tensors(path, series):
            assert series == "parameters"
            if path.name == "step-00000001":
                assert path.parent.parent == run
                return origins.items()
            return (weights if path.parent.parent == run else made).items()

        monkeypatch.setattr(stretches, "read_json", lambda path: contents[path.parent.parent])
        monkeypatch.setattr(stretches, "read_tensors", tensors)
        monkeypatch.setattr(
            stretches, "read_metrics", lambda path: decided if path.parent == run else new_rows
        )
        stretch = Stretch(before, saved(before) if before else None, saved(3))
        return list(stretches._differences(run, again, stretch, tolerance))

    assert not compare() and not compare(0.01)
    assert compare(state=2) == ["step-00000003: state.x is 1, and the steps give 2"]
    close = {"w": torch.tensor([3.0, 4.02])}
    assert compare(made=close) == [
        "step-00000003: parameters w: 1 of 2 numbers differ, as number 1: 4, and the steps give 4.01999998"
    ]
    assert compare(0.01, made=close) == [
        "step-00000003: parameters are 2.00% of their way from where the steps lead"
    ]
    assert not compare(0.01, before=0, made=close)  # from the start: of their length, 5
    assert compare(new_rows=decided[:-1]) == [
        "metrics.jsonl, loss of step 3: there are 1 such rows, and the steps give 0"
    ]
    assert not compare(new_rows=decided[1:])  # of steps before
    assert compare(before=0, new_rows=decided[1:]) != []
    assert compare(new_rows=[decided[0], decided[2], decided[1], decided[3]]) == [
        "metrics.jsonl: rows of steps 2 to 3 are in another order"
    ]
    assert compare(new_rows=decided[:-1] + rows((3, "loss", 3.5))) == [
        "metrics.jsonl, loss of step 3: loss is 3.0, and the steps give 3.5"
    ]


def test_what_cannot_be_done_again(monkeypatch, tmp_path):
    monkeypatch.setattr(stretches.torch.cuda, "is_available", lambda: False)
    folder = tmp_path / "checkpoints" / "step-00000008"
    folder.mkdir(parents=True)
    save_file({"w": torch.zeros(1000)}, folder / "parameters-00000.safetensors")
    fitting, asked = 2, []

    def fit(of_parameters, of_rank):
        asked.append((of_parameters, of_rank))
        return fitting

    monkeypatch.setattr(stretches, "processes_that_fit", fit)
    before = saved(4)

    def fault(begin=4, starts=(), **how):
        return stretches._fault(tmp_path, Stretch(begin, before if begin else None, saved(8, **how)), starts)

    assert fault() == fault(begin=0, every=8) == fault(begin=0, every=0) == fault(begin=0, keep_every=8) == ""
    assert fault(begin=3) == fault(begin=0, keep_every=7) != "" and "checkpoint.keep 3" in fault(begin=3)
    assert fault(starts=[4, 8]) == "" and "resumed at step 5," in fault(starts=[1, 5, 6])
    assert "rolled back" in fault(progress={"rollbacks": [1]})
    assert "damaged data" in fault(progress={"substitutions": [1]})
    before = saved(4, progress={"rollbacks": [1]})
    assert fault(progress={"rollbacks": [1]}) == "" and "rolled back" in fault()
    before = saved(4)
    assert fault(ranks=2) == "" and fault(ranks=3) == "3 ranks did them, and this machine has memory for 2"
    size = (folder / "parameters-00000.safetensors").stat().st_size
    assert asked[-1] == (size / 4, 2**30)
    fitting = 0
    assert fault() == "" and "memory for 1" in fault(ranks=2)
    monkeypatch.setattr(stretches.torch.cuda, "device_count", lambda: 4)
    assert fault(ranks=4) == "" and "GPUs for 4" in fault(ranks=5)


def test_bits_are_the_same_on_one_device_with_one_torch(monkeypatch, tmp_path):
    def why(device, of_torch, **train):
        monkeypatch.setattr(stretches, "read_json", lambda path: {"versions": {"torch": of_torch}})
        after = saved(8, device=device)
        return stretches._why_not_same_bits(tmp_path, after._replace(config={"train": train}))

    monkeypatch.setattr(stretches.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(stretches, "device_name", lambda: "Abacus 9")
    monkeypatch.setattr(stretches, "version", {"torch": "2.13"}.__getitem__)
    assert why("Abacus 9", "2.13", deterministic=False) == ""
    assert why("Abacus 8", "2.13") == "Abacus 8 did them, this is Abacus 9"
    assert why("Abacus 8", "2.12").endswith("; torch 2.12 did them, this is torch 2.13")
    monkeypatch.setattr(stretches.torch.cuda, "is_available", lambda: True)
    assert why("Abacus 9", "2.13", deterministic=True) == ""
    assert why("Abacus 9", "2.13", deterministic=False) == "train.deterministic is off"


@pytest.fixture
def run_of_four(monkeypatch, tmp_path):
    """Replay a run with checkpoints of steps 4, 8, 12 and 16 by a list of stretches that differ."""
    done = []

    def replayed(*, differing=(), errors=(), export=(True, []), resumed=(), why="", number=9, seed=0):
        done.clear()

        def differences(run, again, one, tolerance):
            assert tolerance == (stretches.TOLERANCE if why else 0.0)
            assert again.name == "run"
            yield from ["off"] * (one.begin in differing)

        started = [{"config_sha256": "x", "step": step} for step in resumed]
        monkeypatch.setattr(stretches, "read_metrics", lambda path: [*started, {"step": 5, "loss": 1}])
        monkeypatch.setattr(stretches, "_differences", differences)
        monkeypatch.setattr(stretches, "_why_not_same_bits", lambda run, after: why)
        monkeypatch.setattr(stretches, "_different_export", lambda *given: export)
        monkeypatch.setattr(
            stretches,
            "do_again",
            lambda run, one, *others: (
                done.append(one) or ("no memory\nat all" if one.begin in errors else "")
            ),
        )
        seconds = zip(count(4, 4), (10, 30, 60, 100))
        ends = [saved(step, progress={"seconds": time}) for step, time in seconds]
        exports = [saved(16, "export")]
        return stretches.replay(tmp_path, [*ends[::-1], *exports], number, seed, {}), list(done)

    return replayed


def test_stretches_are_drawn_by_the_seed_and_done_in_order(run_of_four, capsys):
    good, done = run_of_four()
    assert good and [(a, b and b.step, c.step) for a, b, c in done] == [
        (0, None, 4), (4, 4, 8), (8, 8, 12), (12, 12, 16),
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert (
        "doing 4 of 4 stretches again, chosen by --replay-seed 0: 16 steps, for which the run took 01:40"
        in said
    )
    assert "steps 13 to 16: as recorded, bit for bit\nexport/ of step 16: as its checkpoint\n" in said
    drawn = set()
    for seed in range(6):
        (good, two), (_, same) = (run_of_four(number=2, seed=seed) for _ in range(2))
        begins = [one.begin for one in two]
        assert good and two == same and len(two) == 2 and begins == sorted(begins)
        drawn.update(begins)
    assert drawn == {0, 4, 8, 12}


def test_one_difference_is_enough_to_be_not_as_recorded(run_of_four, capsys):
    for begin in (0, 8, 12):
        assert not run_of_four(differing=[begin])[0]
        said = capsys.readouterr().out
        assert f"steps {begin + 1} to {begin + 4}: not as recorded, compared bit for bit\n  off\n" in said
        assert said.count("not as recorded") == 1
    assert not run_of_four(errors=[4])[0]
    assert "not as recorded, compared bit for bit\n  no memory\n  at all\n" in capsys.readouterr().out
    assert run_of_four(why="another one")[0]
    assert "steps 1 to 4: as recorded, within 1%: another one\n" in capsys.readouterr().out
    assert not run_of_four(export=(True, ["config.json is not"]))[0]
    assert "export/ of step 16: config.json is not\n" in capsys.readouterr().out
    assert run_of_four(export=(False, ["not compared"]))[0]


def test_stretches_that_cannot_be_done_again_are_said_together(run_of_four, capsys):
    good, done = run_of_four(resumed=[0, 6, 9])
    assert good and [one.begin for one in done] == [0, 12]
    said = capsys.readouterr().out
    assert "steps 5 to 8 cannot be done again: the run was resumed at step 6" in said
    assert "steps 9 to 12 cannot be done again: the run was resumed at step 9" in said
    assert "doing 2 of 2 stretches again" in said and "--checkpoint.keep_every N" in said
    with pytest.raises(UserError, match=r"no steps of .* between two checkpoints"):
        run_of_four(resumed=[1, 5, 9, 13])


def test_settings_are_those_whose_digest_was_recorded_before(tmp_path):
    """A checkpoint's are of the last start before it; config.yaml is of the last of all."""
    configs = [load_config(None, {"folder": "r", "train.lr": lr}) for lr in (1e-3, 2e-3)]
    texts = [as_yaml(config.model_dump(mode="json")) for config in configs]
    rows = [{"config_sha256": hashlib.sha256(text.encode()).hexdigest(), "step": 0} for text in texts]
    lines, places = b"", [NO_LINES]
    for row in (rows[0], {"step": 4, "loss": 1.0}, rows[1], {"step": 8, "loss": 1.0}):
        line, place = chained(row, places[-1])
        lines, places = lines + line, [*places, place]

    def faults(of_file, *of_saved):
        (tmp_path / "config.yaml").write_text(texts[of_file])
        newest = configs[1].model_dump(mode="json")
        made = [
            saved(4 * place, progress={"rows": places[place]})._replace(
                config=configs[number].model_dump(mode="json")
            )
            for place, number in of_saved
        ]
        return list(_check_settings(tmp_path, lines.splitlines(keepends=True), newest, made))

    assert not faults(1, (2, 0), (4, 1))
    assert faults(0) == ["config.yaml is not as the run wrote it: train.lr is 0.001, and was 0.002"]
    for place, number in ((2, 1), (4, 0), (1, 1), (3, 0)):
        (said,) = faults(1, (place, number))
        assert said.startswith(f"step-{4 * place:08d} has other settings than those whose digest")
    (tmp_path / "config.yaml").write_text(texts[1] + "# more\n")
    assert list(_check_settings(tmp_path, lines.splitlines(keepends=True), {}, [])) == [
        "config.yaml is not as the run wrote it: its text differs"
    ]
