"""How records of a track are compared: verdicts, intervals, the table of the board."""

import json
from types import SimpleNamespace

import pytest

from pretrain.commands.record import board as board_module
from pretrain.commands.record import checking
from pretrain.commands.record.board import MARKS, RECORD, records, write_table
from pretrain.commands.record.scores import DEV, LEGS, summary_of, verdicts
from pretrain.commands.record.tracks import TRACKS, Track
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.telemetry.metrics_file import to_line

MACHINE = {"device": "Abacus", "cores": 2, "torch": "2"}


def test_verdicts_are_welchs_and_one_sided():
    """t = 4.90 of 4 degrees of freedom for equal variances and sizes: p = 0.004; 2.45: 0.035."""
    old = {leg: [60.0, 61.0, 62.0] for leg in LEGS}
    new = {LEGS[0]: [64.0, 65.0, 66.0], LEGS[1]: [58.0, 59.0, 60.0], LEGS[2]: [62.0, 63.0, 64.0]}
    assert verdicts(new, old) == dict(zip(LEGS, ("better", "worse", "not told apart"), strict=True))
    # of unequal sizes and variances: p = 0.14, where Student's test says 0.02
    old, new = {"leg": [60, 60.1, 59.9, 60, 60.2, 59.8, 60, 60.1]}, {"leg": [58.0, 61.0, 57.2]}
    assert verdicts(new, old) == {"leg": "not told apart"}


def test_a_mean_has_students_interval():
    """4.303 = t of 2 degrees of freedom at 0.975."""
    assert summary_of([60.0, 61.0, 62.0]) == {
        "mean": 61.0,
        "low": round(61 - 4.30265 / 3**0.5, 3),
        "high": round(61 + 4.30265 / 3**0.5, 3),
    }


def test_the_table_stands_between_its_marks(tmp_path):
    page, board = tmp_path / "board.md", tmp_path / "board"
    page.write_text(f"# Board\n\n{MARKS[0]}\nold\n{MARKS[1]}\n\nrules\n")
    summary = {leg: {"mean": 60.0, "low": 59.0, "high": 61.0} for leg in (*LEGS, DEV)}
    about = {"scores": summary, "seeds": {"1": {}}, "seconds": {"from_shards": 50, "from_text": 70}}
    about |= {"machine": {"device": "Abacus", "cores": 2}, "date": "2026-11-27"}
    entered = [about | {"track": "gpu-1m", "number": 1}]
    write_table([*entered, *(about | {"track": "cpu2-1m", "number": n} for n in (1, 2))], board)
    lines = page.read_text().splitlines()
    assert lines[0] == "# Board" and lines[-1] == "rules" and "old" not in lines
    names = [line.split("]")[0].removeprefix("| [") for line in lines if line.startswith("| [")]
    assert names == ["cpu2-1m-2", "cpu2-1m-1", "gpu-1m-1"]
    assert lines.count("") == 4 and "| 60.0 ± 1.0 |" in page.read_text()


def recorded(track: str, number: int, scores: dict[str, list[float]], seconds: list[float]) -> dict:
    """Return a record, without what the tests here do not read."""
    seeds = {
        str(seed): {"seconds": time, "scores": {leg: values[seed - 1] for leg, values in scores.items()}}
        for seed, time in enumerate(seconds, 1)
    }
    about = {
        "track": track,
        "number": number,
        "seeds": seeds,
        "recipe": "r",
        "text": {"a.gz": "1", "b.gz": "2"},
    }
    return about | {
        "scores": {leg: summary_of(values) for leg, values in scores.items()},
        "seconds": {"from_shards": max(seconds), "from_text": max(seconds) + 9},
        "machine": MACHINE,
        "date": "2026-11-27",
    }


def scored(*means: float) -> dict[str, list[float]]:
    """Return three seeds' scores around a mean of each leg, and of STS-B dev."""
    return {leg: [mean - 1, mean, mean + 1] for leg, mean in zip((*LEGS, DEV), (*means, 50.0), strict=True)}


@pytest.mark.parametrize(
    ("track", "new", "seconds", "outcome"),
    [
        ("cpu2-1m", scored(70, 60, 60), [9, 9, 9], "better"),
        ("cpu2-1m", scored(60, 60, 60), [1, 1, 1], "seven STS not told apart, transfer not told apart, r"),
        (
            "cpu2-1m",
            scored(70, 60, 55),
            [9, 9, 9],
            "seven STS better, transfer not told apart, retrieval wor",
        ),
        ("aimed", scored(60, 60, 60), [5, 5.1, 4.9], "better"),
        ("aimed", scored(70, 70, 70), [9, 9.1, 8.9], "speed not told apart"),
        ("aimed", scored(70, 70, 70), [15, 15.1, 14.9], "speed worse"),
    ],
)
def test_a_record_beats_the_last_one_of_its_track(track, new, seconds, outcome, tmp_path, monkeypatch):
    """One leg must be better and none worse; where a target is to be reached, speed alone counts."""
    monkeypatch.setitem(TRACKS, "aimed", Track(900.0, target=50.0))
    monkeypatch.setattr(board_module, "code_here", lambda: ("c0de", "c0ffee"))
    monkeypatch.setattr(board_module, "_broken_rules", lambda *_: [])
    monkeypatch.setattr(board_module, "_curve", lambda runs: (run.name for run in runs))
    monkeypatch.setattr(
        board_module,
        "_record_of",
        lambda about, runs: recorded(track, 0, new, seconds) | {"commit": about["commit"]},
    )
    board, folder = tmp_path / "records", tmp_path / "out"
    for name, number, mean in ((track, 1, 90), (track, 4, 60), ("gpu-1m", 7, 95)):
        place = board / f"{name}-{number}"
        place.mkdir(parents=True)
        old = recorded(name, number, scored(mean, mean, mean), [9, 9.1, 8.9])
        (place / RECORD).write_text(json.dumps(old))
    for name in ("seed-10", "seed-2", "seed-2-old"):
        (folder / name).mkdir(parents=True)
    (folder / "recipe.yaml").write_text("train: {}\n")
    (folder / "start.json").write_text(json.dumps({"commit": "", "code": "c0de", "track": track}))
    if outcome != "better":
        with pytest.raises(UserError, match=f"does not beat {track}-4: {outcome}"):
            board_module.enter(folder, board)
        assert len(records(board)) == 3
        return
    place = board_module.enter(folder, board)
    assert place == board / f"{track}-5" and len(records(board)) == 4
    made = json.loads((place / RECORD).read_text())
    assert made["number"] == 5 and made["against"]["number"] == 4 and made["commit"] == "c0ffee"
    assert (
        "--text DIR/text/a.gz,DIR/text/b.gz --data" in made["command"] and "--seeds 1,2,3 " in made["command"]
    )
    assert (place / "curve.csv").read_text() == "seed-2\nseed-10" and (place / "recipe.yaml").is_file()
    assert f"[{track}-5](records/" in board.with_suffix(".md").read_text()


def test_a_record_has_the_longest_time_the_best_steps_and_a_curve(tmp_path, monkeypatch):
    runs = [tmp_path / f"seed-{seed}" for seed in (1, 12)]
    for number, run in enumerate(runs):
        run.mkdir()
        scores = dict.fromkeys((*LEGS, DEV), 60.0 + number)
        run.with_suffix(".json").write_text(json.dumps({"seconds": 9.5 - number, "scores": scores}))
        rows = [{"step": 0, "wall_time": 1e9 + number}, {"step": 4, "wall_time": 1e9 + 7, "evaluation": {}}]
        rows += [{"step": 5, "wall_time": 1e9 + 8.25, "evaluation": {"stsb-dev": 70.126}}]
        (run / "metrics.jsonl").write_text("".join(map(to_line, rows)))
    policy = {"step": 5, "progress": {"ledger": {"sequences": "a"}}}
    monkeypatch.setattr(board_module, "read_policy", lambda best: policy | {"step": len(best.parent.name)})
    made = board_module._record_of({"preparation": 3.25, "track": "cpu2-1m"}, runs)
    assert made["seconds"] == {"from_shards": 9.5, "from_text": 12.8} and made["track"] == "cpu2-1m"
    assert {seed: one["step"] for seed, one in made["seeds"].items()} == {"1": 6, "12": 7}
    assert made["seeds"]["12"]["ledger"] == {"sequences": "a"} and made["seeds"]["12"]["seconds"] == 8.5
    assert made["scores"] == {leg: summary_of([60.0, 61.0]) for leg in (*LEGS, DEV)}
    curve = ["seed,step,seconds,stsb_dev", "1,5,8.2,70.13", "12,5,7.2,70.13"]
    assert list(board_module._curve(runs)) == curve


def test_a_record_says_what_its_seeds_say(tmp_path, monkeypatch):
    monkeypatch.setitem(TRACKS, "aimed", Track(10.0, target=59.0))
    (tmp_path / "recipe.yaml").write_text("train: {}\n")

    def faults(**changes):
        record = recorded("aimed", 1, scored(60, 60, 60), [8.0, 10.0, 9.0])
        record["recipe"] = sha256_of(tmp_path / "recipe.yaml")
        return list(checking._of_itself(record | changes, tmp_path))

    assert faults() == []
    assert faults(recipe="0") == ["recipe.yaml has another sha256"]
    slow = recorded("aimed", 1, scored(60, 60, 60), [8.0, 10.5, 9.0])
    assert faults(seeds=slow["seeds"]) == [
        "its seconds are not those of its longest seed",
        "10 s are more than the track gives",
    ]
    low = recorded("aimed", 1, scored(59.5, 60, 60), [8.0, 10.0, 9.0])
    assert faults(seeds=low["seeds"]) == [
        "a seed is below 59 over seven STS",
        "seven STS: its mean and interval are not those of the seeds",
    ]
    assert faults(seeds=low["seeds"], scores=low["scores"]) == ["a seed is below 59 over seven STS"]
    two = {"seeds": {seed: low["seeds"][seed] for seed in "23"}, "scores": {}}
    two["scores"] = {leg: summary_of(values[1:]) for leg, values in scored(59.5, 60, 60).items()}
    assert faults(**two) == ["it has 2 seeds, and a record 3 or more"]


@pytest.mark.parametrize(
    ("same", "apart", "fault"), [(True, 0.04, ""), (True, 0.06, "r"), (False, 0.9, ""), (False, 1.1, "r")]
)
def test_scores_of_other_weights_may_differ_by_more(same, apart, fault, tmp_path, monkeypatch, capsys):
    record = recorded("cpu2-1m", 1, scored(60, 60, 60), [8.0, 10.0, 9.0]) | {"data": "d"}
    for seed, one in record["seeds"].items():
        one |= {"weights": f"w{seed}", "step": 5, "ledger": {"sequences": seed}}
    run = tmp_path / "run"
    (run / "best").mkdir(parents=True)
    (run / "best" / "model.safetensors").touch()
    stand_ins = {
        "load_config": SimpleNamespace(train=SimpleNamespace(seed=2), data_folder="data"),
        "read_policy": {"step": 5, "progress": {"ledger": {"sequences": "2"}}},
        "follows": True,
        "read_manifest": None,
        "digest_of": "d",
        "weights_digest": "w2" if same else "w3",
        "make_retrieval": None,
        "evaluate": record["seeds"]["2"]["scores"] | {LEGS[2]: 60 - apart},
    }
    for name, value in stand_ins.items():
        monkeypatch.setattr(checking, name, lambda *_, value=value: value)
    found = list(checking._of_run(record, tmp_path, run, str(tmp_path), ""))
    assert found == ([f"{LEGS[2]} is {60 - apart:.2f}, and 60.00 in the record"] if fault else [])
    assert f"differ by {0.05 if same else 1.0} points" in capsys.readouterr().out
    assert list(checking._of_run(record, tmp_path, run, "", "")) == []
    for name, value, said in (
        ("follows", False, "its settings are not recipe.yaml's"),
        ("digest_of", "other", "its data are other shards"),
        (
            "read_policy",
            {"step": 5, "progress": {"ledger": {}}},
            "its ledger ends otherwise: it has read other batches",
        ),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(checking, name, lambda *_, value=value: value)
            assert list(checking._of_run(record, tmp_path, run, "", "")) == [said]
    monkeypatch.setattr(checking, "read_policy", lambda *_: {"step": 4, "progress": {"ledger": {}}})
    assert list(checking._of_run(record, tmp_path, run, "", "")) == []  # it was stopped at another step


# ---- a whole record, of seconds ----
