"""The board: what may enter, how records are compared, and one from its text to its check."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from commands import call
from forked_python import forked_children
from run_helpers import TINY, write_corpus
from sts_layout import write_layout

from finetune.nanobeir import FOLDER, read
from finetune.senteval.tasks import TASKS, TRANSFER
from pretrain.api import load
from pretrain.commands.record import board as board_module
from pretrain.commands.record import checking, scores, tracks, training
from pretrain.commands.record.__main__ import check, start, submit
from pretrain.commands.record.board import MARKS, RECORD, records, write_table
from pretrain.commands.record.scores import DEV, LEGS, summary_of, verdicts
from pretrain.commands.record.tracks import CORPUS, TRACKS, Track, corpus_of, outside_help
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.config.data import Source
from pretrain.config.recipe import load_config
from pretrain.telemetry.metrics_file import to_line

PREPARED = {"vocabulary": 512, "max_length": 48, "heldout": 0.05}
MANIFEST = {
    "config": load_config("contrastive_micro", {}).data.prepare.model_dump(mode="json"),
    "run": {"seconds": 9.0},
}
MACHINE = {"device": "Abacus", "cores": 2, "torch": "2"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model.init": "bert-base-uncased"}, "model.init names bert-base-uncased"),
        ({"augment.spec": "subs"}, "synonyms names"),
        ({"objective.name": "diffcse"}, "objective.diffcse.generator names"),
        (
            {"objective.name": "distill", "objective.distill.model": "bert-base"},
            "objective.distill.model names",
        ),
        ({"objective.false_negatives.guide": "bert-base"}, "objective.false_negatives.guide names bert-base"),
        ({"data.sets": "a,b"}, "data.sets names other data"),
        ({"data.prepare.vocabulary": 512}, "prepared with vocabulary 4096, and the recipe says 512"),
        ({"data.cache": 2}, "data.cache reads views that were made before the clock ran"),
        ({"checkpoint.resume": "runs/other/checkpoints"}, "checkpoint.resume names runs/other"),
        ({"checkpoint.every": 0}, "checkpoint.every is 0"),
        ({"objective.name": "simcse+mine.py:Mine"}, "which no commit of the project holds"),
    ],
)
def test_what_is_beside_the_text_is_named(settings, said):
    config = load_config("contrastive_micro", settings)
    assert said in "; ".join(outside_help(config, MANIFEST))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer": "bert-base-uncased"}, "the data has the tokenizer bert-base-uncased"),
        ({"annotation": {"language": "en"}}, "views or parses"),
        ({"run": {"seconds": 9.0, "resumed": True}}, "the preparation was interrupted"),
        ({"cache": {}, "config": None}, "views or parses"),
    ],
)
def test_what_prepared_data_have_beside_the_text_is_named(changes, said):
    keys = {key: changes.pop(key) for key in [*changes] if key == "tokenizer"}
    manifest = MANIFEST | {"config": MANIFEST["config"] | keys} | changes
    config = load_config("contrastive_micro", {})
    assert said in "; ".join(outside_help(config, manifest))
    assert not list(outside_help(config, MANIFEST))


def test_a_text_is_known_by_its_bytes(tmp_path, monkeypatch):
    text = tmp_path / "mine.txt"
    text.write_text("A storm at sea.")
    with pytest.raises(UserError, match=r"mine\.txt is none of the board's texts"):
        corpus_of([Source(source=str(text))], tmp_path / "data")
    monkeypatch.setitem(CORPUS, sha256_of(text), "enwiki.txt.gz")
    assert list(corpus_of([Source(source=str(text))], tmp_path / "data")) == ["enwiki.txt.gz"]
    with pytest.raises(UserError, match="is not there now: name the files by --text"):
        corpus_of([Source(source=str(tmp_path / "gone.txt"))], tmp_path / "data")


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


def test_a_track_without_a_gpu_has_two_cores(monkeypatch):
    given = []
    monkeypatch.setattr(tracks.os, "sched_setaffinity", lambda process, cores: given.append(cores))
    monkeypatch.setattr(tracks, "physical_cores", lambda: [3, 5, 9])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    assert list(tracks.use_machine(Track(60))) == ["device", "cores", "torch"]
    assert given == [[3, 5]] and tracks.os.environ["CUDA_VISIBLE_DEVICES"] == ""
    with pytest.raises(UserError, match="this track needs a GPU"):
        tracks.use_machine(Track(60, gpu=True))


def test_code_is_of_a_commit_only_where_nothing_is_changed(tmp_path, monkeypatch):
    for folder in ("augment", "finetune", "pretrain"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(folder)
    monkeypatch.setattr(tracks, "ROOT", tmp_path)
    digest, commit = tracks.code_here()
    assert commit == ""  # no repository
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # a user's may sign commits
    words = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.org"]
    for more in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"]):
        subprocess.run([*words, *more], check=True)
    (tmp_path / "README.md").write_text("not of the code")
    same, commit = tracks.code_here()
    assert same == digest and len(commit) == 40
    (tmp_path / "augment" / "words.txt").write_text("a list of words")
    other, commit = tracks.code_here()
    assert other != digest and commit == ""
    (tmp_path / "augment" / "a.py").write_text("changed")
    assert tracks.code_here()[0] not in (digest, other)


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


def write_benchmarks(data: Path) -> Path:
    """Write STS, transfer tasks and the held-out text, all tiny."""
    write_layout(data)
    for task in TRANSFER:
        for number, file in enumerate(TASKS[task].data.files):
            path = data / file
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [f"{'good old' if n % 2 else 'bad new'} stone {n % 7}" for n in range(40)]
            if len(TASKS[task].data.files) == 2 and task in ("MR", "CR", "SUBJ", "MPQA"):
                rows = [f"{'good old' if number else 'bad new'} stone {n % 7}" for n in range(40)]
            if task == "TREC":
                rows = [f"{('DESC', 'HUM')[n % 2]}:manner {row}" for n, row in enumerate(rows)]
            if task == "SST2":
                rows = [f"{row}\t{n % 2}" for n, row in enumerate(rows)]
            if task == "MRPC":
                rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"] + [
                    f"{n % 2}\t1\t2\t{row}\t{row}" for n, row in enumerate(rows)
                ]
            path.write_text("\n".join(rows) + "\n", encoding="latin-1")
    plain = write_corpus(data / "plain.txt", documents=300, seed=5).read_text().split("\n\n")
    text = data / "text" / "heldout.txt"
    text.parent.mkdir()
    text.write_text("\n\n".join(f"Article {n}\n{document.strip()}" for n, document in enumerate(plain)))
    return data


@pytest.fixture(scope="module")
def board(tmp_path_factory) -> Iterator[Callable]:
    """Three seeds that `start` has trained and scored: a function that copies them."""
    place = tmp_path_factory.mktemp("board")
    data, corpus = write_benchmarks(place / "data"), write_corpus(place / "corpus.txt")
    tree: dict = {}
    settings = {key: value for key, value in TINY.items() if key != "train.threads"}
    settings |= {"objective.name": "simcse", "objective.mlm.weight": 0.0, "augment.spec": "crop:rate=0.6"}
    settings |= {f"data.prepare.{key}": value for key, value in PREPARED.items()} | {"track": []}
    for key, value in settings.items():
        *sections, last = key.split(".")
        section = tree
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
    (place / "recipe.yaml").write_text(yaml.safe_dump(tree))
    with pytest.MonkeyPatch.context() as patch, forked_children():
        text = data / "text" / "heldout.txt"
        patch.setitem(TRACKS, "tiny", Track(900))
        patch.setitem(CORPUS, sha256_of(corpus), "enwiki.txt.gz")
        patch.setattr(scores, "HELD_OUT", ("text/heldout.txt", sha256_of(text)))
        patch.setattr(tracks, "use_machine", lambda track: MACHINE)
        for module in ("training", "board", "checking"):
            patch.setattr(f"pretrain.commands.record.{module}.code_here", lambda: ("c0de", "c0ffee"))
        patch.setenv("OMP_NUM_THREADS", "1")
        flags = {"recipe": place / "recipe.yaml", "data": place / "shards", "eval_data": data}
        call(start, "tiny", text=corpus, out=place / "out", derive="remove=1", **flags)

        def copied(folder: Path) -> Path:
            return shutil.copytree(place / "out", folder)

        copied.start = lambda out, derive="remove=1", **more: call(
            start, "tiny", out=out, derive=derive, **flags | more
        )
        copied.flags, copied.corpus = flags, corpus
        yield copied


def edit(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.full
def test_three_seeds_are_entered_and_checked(board, tmp_path, capsys):
    out, place = board(tmp_path / "out"), tmp_path / "docs" / "records"
    (out / "seed-1-old").mkdir()  # somebody's own copy
    for kind in ("title", "neighbour"):
        assert len(read(out / "retrieval" / FOLDER / kind).queries) >= 20
    (out / "seed-2" / "derived" / "2_Dense").rename(tmp_path / "dense")  # is of the weights, too
    with pytest.raises(UserError, match="seed-2 has other weights or scores than"):
        call(submit, out, board=place)
    (tmp_path / "dense").rename(out / "seed-2" / "derived" / "2_Dense")
    call(submit, out, board=place)
    (record,) = records(place)
    folder = place / "tiny-1"
    assert record["number"] == 1 and record["commit"] == "c0ffee" and set(record["seeds"]) == {"1", "2", "3"}
    assert record["seconds"]["from_text"] > record["seconds"]["from_shards"] > 0
    assert all(
        one["ledger"]["sequences"] and one["scores"].keys() == {*LEGS, DEV}
        for one in record["seeds"].values()
    )
    assert record["command"].startswith("clearly record start tiny --recipe docs/records/tiny-1/recipe.yaml")
    assert record["command"].endswith(" --derive remove=1")
    curve = (folder / "curve.csv").read_text().splitlines()
    assert curve[0] == "seed,step,seconds,stsb_dev" and len(curve) == 1 + 3 * 4  # steps 0, 4, 8 and 10
    assert "[tiny-1](records/tiny-1/record.json)" in place.with_suffix(".md").read_text()
    with pytest.raises(UserError, match="does not beat tiny-1: seven STS not told apart, transfer not told"):
        call(submit, out, board=place)
    shutil.copytree(folder, place / "tiny-3")  # the record between them was taken back
    low = {str(n): {"scores": dict.fromkeys((*LEGS, DEV), n - 200.0)} for n in (1, 2, 3)}
    edit(place / "tiny-3" / RECORD, lambda one: one.update(number=3, seeds=low))
    call(submit, out, board=place)
    assert json.loads((place / "tiny-4" / RECORD).read_text())["against"]["number"] == 3

    run = out / "seed-2"
    assert call(check, folder) == 0
    assert call(check, folder, text=board.corpus) == 0
    assert call(check, folder, run=run, replay=1, eval_data=board.flags["eval_data"]) == 0
    said = capsys.readouterr().out
    edit(folder / RECORD, lambda content: content["text"].update({"enwiki.txt.gz": "0"}))
    assert call(check, folder, text=board.corpus) == 1
    assert f"{board.corpus}: as recorded" in said and f"{run}: as recorded" in said and "bit for bit" in said
    edit(folder / RECORD, lambda content: content["seeds"]["2"]["scores"].update({DEV: 99.0}))
    assert call(check, folder, run=run, eval_data=board.flags["eval_data"]) == 1
    said = capsys.readouterr().out
    assert (
        f"{DEV}: its mean and interval are not those of the seeds" in said and "99.00 in the record" in said
    )
    edit(folder / RECORD, lambda content: content["seeds"]["2"]["ledger"].update(sequences="0"))
    edit(folder / RECORD, lambda content: content.update(data="0"))
    edit(folder / RECORD, lambda content: content["seeds"].pop("1"))
    edit(folder / RECORD, lambda content: content["seconds"].update(from_shards=0.5))
    (folder / "recipe.yaml").write_text("train: {lr: 1.0}\n" + (folder / "recipe.yaml").read_text()[:0])
    assert call(check, folder, run=run, text=board.corpus) == 1
    said = capsys.readouterr().out
    for fault in (
        "recipe.yaml has another sha256",
        "it has 2 seeds, and a record 3 or more",
        "its seconds are not those of its longest seed",
        "it gives other shards",
        "its data are other shards",
        "it has read other batches",
    ):
        assert fault in said
    assert "its settings are not recipe.yaml's" in said


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "seeds": (lambda out: shutil.rmtree(out / "seed-3"), "it has 2 seeds, and a record 3 or more"),
    "recipe": (lambda out: (out / "recipe.yaml").write_text("{}"), "recipe.yaml is not the one"),
    "clock": (lambda out: (out / "seed-1.json").unlink(), "seed-1 was not trained and scored by"),
    "encoder": (lambda out: shutil.rmtree(out / "seed-1" / "best"), "seed-1 was not trained and scored by"),
    "rows": (lambda out: (out / "seed-1" / "metrics.jsonl").unlink(), "seed-1 took inf s of 900"),
    "time": (
        lambda out: edit(out / "seed-1.json", lambda one: one.update(seconds=901.0)),
        "seed-1 took 901 s of 900",
    ),
    "weights": (
        lambda out: edit(out / "seed-1.json", lambda one: one.update(weights="0")),
        "seed-1 has other weights or scores",
    ),
    "scores": (
        lambda out: edit(out / "seed-1.json", lambda one: one["scores"].update({DEV: 99.0})),
        "seed-1 has other weights or scores",
    ),
    "settings": (
        lambda out: (out / "seed-1" / "config.yaml").write_text(
            (out / "seed-1" / "config.yaml").read_text().replace("lr: 0.001", "lr: 0.002")
        ),
        "seed-1 was trained by other settings than recipe.yaml's",
    ),
    "code": (
        lambda out: edit(out / "start.json", lambda one: one.update(commit="", code="0")),
        "no commit holds the code that trained it",
    ),
    "chosen": (
        lambda out: edit(
            out / "seed-1" / "best" / "clear.json", lambda one: one["progress"].update(best_by="partner_loss")
        ),
        "seed-1: STS-B dev has not chosen its step",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", EDITS)
def test_what_breaks_a_rule_is_refused_with_its_reason(name, board, tmp_path):
    out = board(tmp_path / "out")
    change, said = EDITS[name]
    change(out)
    with pytest.raises(UserError, match="is no record: ") as refused:
        call(submit, out, board=tmp_path / "records")
    assert said in str(refused.value) and not (tmp_path / "records").exists()


@pytest.mark.parametrize(
    ("clock", "evaluated", "took"),
    [(100.0, 950.0, "950"), (901.0, 50.0, "901"), (100.0, None, "inf"), (100.0, 899.0, "")],
)
def test_a_run_has_taken_as_long_as_its_clock_and_its_rows_say(tmp_path, monkeypatch, clock, evaluated, took):
    run = tmp_path / "seed-1"
    (run / "best").mkdir(parents=True)
    for path in (tmp_path / "recipe.yaml", run / "best" / "model.safetensors"):
        path.write_text("")
    (tmp_path / "seed-1.json").write_text(json.dumps({"seconds": clock, "weights": "w", "scores": {}}))
    rows = [{"step": 0, "wall_time": 1e9}, {"step": 9, "wall_time": 1e9 + 5000, "evaluation": {}}]
    if evaluated is not None:
        rows.append({"step": 5, "wall_time": 1e9 + evaluated, "evaluation": {}})
    (run / "metrics.jsonl").write_text("".join(map(to_line, rows)))
    policy = {"step": 5, "progress": {"best_by": "stsb-dev"}}
    stand_ins = {"read_policy": policy, "is_run": True, "weights_digest": "w", "read_scores": {}}
    for name, value in (stand_ins | {"follows": True, "load_config": None}).items():
        monkeypatch.setattr(board_module, name, lambda *_, value=value: value)
    monkeypatch.setitem(TRACKS, "tiny", Track(900.0))
    about = {"track": "tiny", "recipe": sha256_of(tmp_path / "recipe.yaml"), "commit": "c"}
    faults = list(board_module._broken_rules(tmp_path, about, [run]))
    assert faults[1:] == [f"seed-1 took {took} s of 900"] * bool(took)


def test_a_folder_without_a_clock_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds nothing that `clearly record start` has made"):
        call(submit, tmp_path)


@pytest.mark.full
def test_start_does_what_is_left(board, tmp_path, capsys, monkeypatch):
    out = board(tmp_path / "out")
    before = json.loads((out / "seed-2.json").read_text())
    text = json.loads((out / "start.json").read_text())["text"]
    edit(out / "start.json", lambda one: one.update(text={}))
    edit(out / "seed-2.json", lambda one: one.pop("scores"))
    (out / "scores" / "seed-2" / "nanobeir-own-modules.json").unlink()
    monkeypatch.setattr(tracks, "use_machine", lambda track: {"device": "Other"})
    with pytest.raises(UserError, match="was begun with another machine: choose another --out"):
        board.start(out, seeds="2,4")
    board.start(out, seeds=2)  # trained there, scored here, where the text is
    assert text and json.loads((out / "start.json").read_text())["text"] == text
    assert json.loads((out / "seed-2.json").read_text()) == before
    monkeypatch.setattr(tracks, "use_machine", lambda track: MACHINE)
    (out / "seed-3.json").unlink()
    metrics = [(out / f"seed-{seed}" / "metrics.jsonl").read_bytes() for seed in (1, 2, 3)]
    board.start(out)
    again = [(out / f"seed-{seed}" / "metrics.jsonl").read_bytes() for seed in (1, 2, 3)]
    assert again[:2] == metrics[:2] and again[2] != metrics[2]  # no clock: trained anew
    assert "next: clearly record submit" in capsys.readouterr().out
    recipe = tmp_path / "other.yaml"
    recipe.write_text(board.flags["recipe"].read_text() + "name: other\n")
    with pytest.raises(UserError, match="was begun with another recipe: choose another --out"):
        board.start(out, recipe=recipe)


@pytest.mark.full
def test_a_run_that_is_not_done_in_time_is_stopped_and_its_best_counts(board, tmp_path, monkeypatch):
    """The clock jumps over the limit when there is a best/."""
    recipe, run = tmp_path / "long.yaml", tmp_path / "out" / "seed-1"
    recipe.write_text(board.flags["recipe"].read_text().replace("steps: 10", "steps: 100000"))
    clock = SimpleNamespace(time=lambda: time.time() + 901 * (run / "best" / "clear.json").is_file())
    monkeypatch.setattr(training, "time", clock)
    monkeypatch.setattr(
        training, "corpus_of", lambda sources, data: pytest.fail("the text need not be there")
    )
    board.start(tmp_path / "out", recipe=recipe, seeds=1, score="false")
    assert json.loads((tmp_path / "out" / "start.json").read_text())["text"] == {}
    assert "found the stop file" in (run / "log.txt").read_text()
    assert 0 < json.loads((tmp_path / "out" / "seed-1.json").read_text())["seconds"] < 900


@pytest.mark.full
def test_a_run_that_has_its_best_too_late_is_refused(board, tmp_path, monkeypatch):
    monkeypatch.setitem(TRACKS, "tiny", Track(0.1))
    with pytest.raises(UserError, match=r"the encoder of seed 1 was there after .* lower train.steps"):
        board.start(tmp_path / "out", seeds=1, score="false")
    assert not (tmp_path / "out" / "seed-1.json").exists()


@pytest.mark.full
def test_speed_decides_among_encoders_that_reach_the_target(board, tmp_path, monkeypatch, capsys):
    out, place = board(tmp_path / "out"), tmp_path / "docs" / "records"

    def aim(target: float) -> None:
        monkeypatch.setitem(TRACKS, "tiny", Track(900, target=target))

    aim(101.0)
    with pytest.raises(UserError, match="--derive: the track makes an encoder by training alone"):
        board.start(tmp_path / "other")
    with pytest.raises(UserError, match="seed-1 is below 101 over seven STS"):
        call(submit, out, board=place)
    aim(-101.0)
    for seed, step in ((1, 10), (2, 8), (3, 10)):  # an evaluation of each is in the rows
        edit(out / f"seed-{seed}" / "best" / "clear.json", lambda one: one.update(step=step))  # noqa: B023
    with pytest.raises(UserError, match=r"seed-2: step 8 is its best, which train.steps must name"):
        call(submit, out, board=place)
    edit(out / "seed-2" / "best" / "clear.json", lambda one: one.update(step=10))
    call(submit, out, board=place)
    with pytest.raises(UserError, match=r"does not beat tiny-1: speed not told apart$"):
        call(submit, out, board=place)
    for seed in "123":
        slower = lambda one: one["seeds"][seed].update(seconds=300.0 + int(seed))  # noqa: B023, E731
        edit(place / "tiny-1" / RECORD, slower)
    call(submit, out, board=place)
    assert json.loads((place / "tiny-2" / RECORD).read_text())["against"] == {"number": 1, "speed": "better"}
    assert call(check, place / "tiny-2") == 0
    aim(101.0)
    assert call(check, place / "tiny-2") == 1
    assert "a seed is below 101 over seven STS" in capsys.readouterr().out


@pytest.mark.full
def test_a_static_table_is_entered_in_place_of_the_encoder(board, tmp_path, monkeypatch):
    monkeypatch.setitem(TRACKS, "tiny", Track(900, table_bytes=8_000_000))
    given = []
    monkeypatch.setattr(training, "evaluate", lambda *words: given.append(words) or {})
    with pytest.raises(UserError, match="--derive remove=1: give static=encoded or static=input"):
        board.start(tmp_path / "out", seeds=4)
    with pytest.raises(UserError, match="--derive step=1: give whiten=N"):
        call(start, "cpu2-1m", out=tmp_path / "out", derive="step=1", **board.flags)
    tables = [training._flags_of(given, TRACKS["tiny"]) for given in ("", "static=input,whiten=0")]
    assert tables == ["static=encoded", "static=input,whiten=0"]
    board.start(tmp_path / "out", "static=input,pooling=sif", seeds=4)
    run = tmp_path / "out" / "seed-4"
    ((model, report, _, _),) = given
    assert (model, report) == (run / "derived", tmp_path / "out" / "scores" / "seed-4")
    vectors = load(model).encode(["old stone", "stone old"])  # no layers: the order of words is lost
    assert abs(vectors[0] - vectors[1]).max() < 1e-6
