"""The board, whole: a record from its text to its check."""

import json
import shutil
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
from pretrain.commands.record import scores, tracks, training
from pretrain.commands.record.__main__ import check, start, submit
from pretrain.commands.record.board import RECORD, records
from pretrain.commands.record.scores import DEV, LEGS
from pretrain.commands.record.tracks import CORPUS, TRACKS, Track
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.telemetry.metrics_file import to_line

PREPARED = {"vocabulary": 512, "max_length": 48, "heldout": 0.05}
MACHINE = {"device": "Abacus", "cores": 2, "torch": "2"}


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
