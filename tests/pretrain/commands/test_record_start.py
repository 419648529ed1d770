"""What `clearly record start` refuses and keeps, and whose scores it takes: without a training."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import call

from finetune.encoders.source import OWN_MODULES
from pretrain.commands.record import scores, tracks, training
from pretrain.commands.record.__main__ import start
from pretrain.commands.record.scores import NEEDED
from pretrain.commands.record.tracks import CORPUS, Track, corpus_of
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.common.folder_lock import FolderTakenError, folder_lock
from pretrain.config.data import Source
from pretrain.config.recipe import load_config
from pretrain.export.sums import WEIGHTS, weights_identity, write_sums


def sources(*places: Path | str) -> list[Source]:
    return [Source.model_validate(str(place)) for place in places]


@pytest.fixture
def texts(tmp_path, monkeypatch) -> list[Path]:
    """Two of the board's texts."""
    found = []
    for name in ("enwiki", "books"):
        found.append(tmp_path / "text" / f"{name}.txt")
        found[-1].parent.mkdir(exist_ok=True)
        found[-1].write_text(f"A storm at sea, of {name}.")
        monkeypatch.setitem(CORPUS, sha256_of(found[-1]), f"{name}.txt.gz")
    return found


@pytest.mark.parametrize("keys", [{"weight": 2.0}, {"layout": "lines"}, {"text_key": "body"}])
def test_a_text_has_no_settings_of_its_own(keys, texts, tmp_path):
    with pytest.raises(UserError, match=r"enwiki\.txt: a text of the board has no weight, layout or keys"):
        corpus_of([Source(source=str(texts[0]), **keys)], tmp_path / "data")
    with pytest.raises(UserError, match="has no weight, layout or keys"):
        corpus_of(sources(texts[0]), tmp_path / "data", [Source(source=str(texts[0]), **keys)])


def test_moved_texts_are_those_of_the_data(texts, tmp_path):
    data, gone = tmp_path / "data", sources("gone/enwiki.txt", "gone/books.txt")
    assert list(corpus_of(sources(*texts), data, gone)) == ["enwiki.txt.gz", "books.txt.gz"]
    for others in (reversed(texts), texts[:1]):
        with pytest.raises(UserError, match=r"was prepared from gone/enwiki\.txt, gone/books\.txt: name"):
            corpus_of(sources(*others), data, gone)
    changed = tmp_path / "enwiki.txt"  # by its name alone it would pass
    changed.write_text("Another text.")
    with pytest.raises(UserError, match="was prepared from"):
        corpus_of(sources(*texts), data, sources(changed, "gone/books.txt"))


@pytest.fixture
def begun(tmp_path, monkeypatch, texts) -> SimpleNamespace:
    """A recipe, and data of both texts: `start` up to the first training, and the manifest to change."""
    recipe, data = tmp_path / "recipe.yaml", tmp_path / "data"
    (tmp_path / "base.yaml").write_text("train: {steps: 7, warmup_steps: 2}\n")
    recipe.write_text("extends: base.yaml\ntrain: {lr: 0.002}\naugment: {spec: 'del-word'}\n")
    data.mkdir()
    (data / "manifest.json").touch()
    prepared = load_config(recipe, {}).data.prepare.model_dump(mode="json")
    prepared["sources"] = [one.model_dump() for one in sources(*texts)]
    manifest = {"config": prepared, "run": {"seconds": 9.0, "workers": 2}, "tokenizer_hash": "", "splits": {}}
    monkeypatch.setattr(training, "read_manifest", lambda folder: manifest)
    monkeypatch.setattr(tracks, "use_machine", lambda track: {"cores": 2})
    monkeypatch.setattr(training, "do_seeds", lambda *words: None)
    flags = {"recipe": recipe, "data": data, "eval_data": tmp_path, "out": tmp_path / "out"}
    return SimpleNamespace(
        manifest=manifest, **flags, start=lambda **more: call(start, "cpu2-1m", **(flags | more))
    )


def test_the_recipe_of_a_record_is_one_file(begun):
    begun.start()
    kept = begun.out / "recipe.yaml"
    assert "extends" not in kept.read_text() and load_config(kept, {}) == load_config(begun.recipe, {})
    assert json.loads((begun.out / "start.json").read_text())["recipe"] == sha256_of(kept)
    begun.start(recipe=kept)  # is the same


def test_the_board_sets_seed_places_choice_and_checkpoints(tmp_path):
    (tmp_path / "r.yaml").write_text("evaluate: {best_by: partner_loss}\ncheckpoint: {keep: 1}\n")
    found = tracks.settings_of(tmp_path / "r.yaml", 7, tmp_path / "data", tmp_path / "run")
    assert (found.train.seed, found.data.folder, found.folder) == (7, tmp_path / "data", tmp_path / "run")
    assert (found.evaluate.best_by, found.checkpoint.keep) == ("stsb-dev", 1000)


@pytest.mark.parametrize(
    ("made", "said"), [(50.0, ""), (61.0, "was there after 61.0 s, and the track gives 60")]
)
def test_what_is_derived_of_the_best_counts_in_the_time(made, said, tmp_path, monkeypatch):
    run = tmp_path / "seed-1"
    monkeypatch.setattr(training, "time", SimpleNamespace(time=lambda: 1e9))
    monkeypatch.setattr(training, "start_logged", lambda *_: None)
    monkeypatch.setattr(training, "wait_for_end", lambda *_, **__: write_best(run, "it", 1e9 + 40) or 0)

    def derived(derive, best, data, out):
        assert (derive, best, data, out) == ("remove=1", run / "best", tmp_path / "data", run / "derived")
        out.mkdir()
        (out / WEIGHTS).touch()
        os.utime(out / WEIGHTS, (1e9 + made,) * 2)

    monkeypatch.setattr(training, "make_derived", derived)

    def train():
        return training._train(Track(60), "remove=1", 1, tmp_path / "data", tmp_path, run)

    if not said:
        assert train() == made
    else:
        with pytest.raises(UserError, match=said):
            train()


def test_runs_that_start_has_not_made_stay(begun):
    (begun.out / "seed-7").mkdir(parents=True)
    with pytest.raises(UserError, match="holds runs that `clearly record start` has not made: choose"):
        begun.start()
    assert list(begun.out.iterdir()) == [begun.out / "seed-7"]


def test_one_start_at_a_time_has_a_folder(begun):
    begun.out.mkdir()
    with folder_lock(begun.out), pytest.raises(FolderTakenError):
        begun.start()


def test_a_preparation_has_the_cores_of_the_track_and_one_clock(begun):
    begun.manifest["run"]["workers"] = 16
    with pytest.raises(UserError, match="was prepared by 16 workers, and cpu2-1m has 2 cores"):
        begun.start()
    begun.manifest["run"]["workers"] = 2
    begun.start()
    assert json.loads((begun.out / "start.json").read_text())["workers"] == 2
    (begun.data / "manifest.json").unlink()
    (begun.data / ".work").mkdir()
    with pytest.raises(
        UserError,
        match=rf"holds a preparation without its end, whose clock is lost: rm -r {begun.data}; the same",
    ):
        begun.start(text="enwiki.txt")


def write_best(run: Path, content: str, written: float) -> None:
    """Write a best/ as a run does: a new folder in place of the old one."""
    hidden = run / "hidden"
    hidden.mkdir(parents=True)
    for name in (WEIGHTS, "clear.json"):
        (hidden / name).write_text(content)
    write_sums(hidden)
    for path in (*hidden.iterdir(), hidden):  # the weights before the rest
        os.utime(path, (written - 3.0 * (path.name == WEIGHTS),) * 2)
    if (run / "best").exists():
        (run / "best").rename(run / f"before-{written}")
    hidden.rename(run / "best")


@pytest.mark.parametrize(("late", "entered"), [(70.0, "second"), (58.0, "third")])
def test_the_best_of_the_time_is_entered(late, entered, tmp_path, monkeypatch):
    """An evaluation that passes the limit of 60 s replaces best/: the one before it counts."""
    run, clock = tmp_path / "seed-1", [1e9]
    monkeypatch.setattr(training, "time", SimpleNamespace(time=lambda: clock[0]))
    monkeypatch.setenv("RANK", "3")
    given = []
    monkeypatch.setattr(training, "start_logged", lambda words, log, environment: given.append(environment))

    def wait_for_end(process, look, every):
        look()  # there is no best/ yet
        for seconds, content in ((10.0, "first"), (50.0, "second"), (late, "third")):
            write_best(run, content, 1e9 + seconds)
            clock[0] = 1e9 + max(seconds, 55.0 if content == "second" else 0.0)
            look()
        clock[0] = 1e9 + 71.0
        look()
        assert (run / "stop").is_file()
        return 0

    monkeypatch.setattr(training, "wait_for_end", wait_for_end)
    seconds = training._train(Track(60), "", 1, tmp_path, tmp_path, run)
    assert (run / "best" / WEIGHTS).read_text() == entered and seconds == (50.0 if late > 60 else late)
    assert not (run / ".best-in-time").exists() and "RANK" not in given[0]


@pytest.mark.parametrize("pooling", ["mean", OWN_MODULES])
def test_scores_are_of_these_weights_and_this_pooling(pooling, tmp_path, monkeypatch):
    model, report, done, flags = tmp_path / "best", tmp_path / "scores", [], {}
    model.mkdir()
    report.mkdir()
    (model / WEIGHTS).write_text("weights")
    if pooling == "mean":
        (model / "clear.json").write_text(json.dumps({"pooling": "mean", "step": 3}))

    def write(module, words, again):
        flags[module] = [word for word in words[1:] if "--out" not in word and "--pooling" not in word]
        name, chosen = module.removeprefix("finetune."), [word for word in words if "--pooling" in word]
        assert chosen == (["--pooling=mean"] if pooling == "mean" else [])
        about = {"model": "", "trained_pooling": None, "protocol": "", "source": weights_identity(model)}
        tasks = {task: {"metric": "", "value": 5.0, "scores": {}} for task in NEEDED[name]}
        content = {"evaluation": name, "pooling": pooling, "notes": [], "complete": True, "seconds": 1.0}
        file = report / f"{name}-{pooling.replace(' ', '-')}.json"
        assert not file.exists()
        file.write_text(json.dumps(content | about | {"tasks": tasks}))
        (report / f"{name}-cls.json").write_text("{}")  # of another pooling
        done.append(name)

    monkeypatch.setattr(scores, "run_to_end", write)

    def evaluate() -> list[str]:
        done.clear()
        assert set(scores.evaluate(model, report, tmp_path, tmp_path / "r").values()) == {5.0}
        return done

    def change(name: str, key: str, value: object) -> None:
        path = report / f"{name}-{pooling.replace(' ', '-')}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    assert evaluate() == ["sts", "senteval", "nanobeir"]
    seven = "STS12,STS13,STS14,STS15,STS16,STS-B,SICK-R,STS-B-dev"
    assert flags == {
        "finetune.sts": [f"--eval-data={tmp_path}", f"--tasks={seven}"],
        "finetune.senteval": [f"--eval-data={tmp_path}", "--tasks=transfer"],
        "finetune.nanobeir": [f"--eval-data={tmp_path}/r"],
    }
    assert evaluate() == []
    change("sts", "pooling", "cls")
    change("nanobeir", "tasks", {})
    assert evaluate() == ["sts", "nanobeir"]
    (model / WEIGHTS).write_text("others")
    assert evaluate() == ["sts", "senteval", "nanobeir"]


@pytest.mark.parametrize("derive", ["", "remove=1"])
def test_each_seed_is_trained_once_and_scored_where_that_is_asked_for(derive, tmp_path, monkeypatch, capsys):
    out, data, done = tmp_path / "out", tmp_path / "data", []
    (out / "seed-2" / "of an interrupted run").mkdir(parents=True)
    (out / "start.json").write_text(json.dumps({"derive": derive}))

    def train(track, given, seed, *places):
        run = out / f"seed-{seed}"
        assert (given, places) == (derive, (data, tmp_path, run)) and not run.exists()
        done.append(seed)
        for name in ("best", "derived"):
            (run / name / "1_Pooling").mkdir(parents=True)
            (run / name / WEIGHTS).write_text(f"{name} {seed}")
            (run / name / "1_Pooling" / WEIGHTS).write_text("head")
        if seed == 4:
            raise UserError("no luck")
        return 9.04 + seed

    def evaluate(model, report, eval_data, retrieval):
        assert (
            model.name == ("derived" if derive else "best") and report == out / "scores" / model.parent.name
        )
        assert (eval_data, retrieval) == (tmp_path, out / "retrieval")
        done.append(model.parent.name)
        return {"STS": 70.126, "dev": 80.0}

    monkeypatch.setattr(training, "_train", train)
    monkeypatch.setattr(training, "evaluate", evaluate)
    monkeypatch.setattr(training, "make_retrieval", lambda *given: done.append(given))

    def go_on(*seeds, score):
        done.clear()
        training.do_seeds(Track(90), seeds, data, tmp_path, out, score)
        return done, capsys.readouterr().out

    first, said = go_on(1, 2, score=False)
    assert first == [1, 2] and not (out / "seed-2" / "of an interrupted run").exists()
    assert said.splitlines()[:2] == ["[1/2] seed 1: at most 01:30", "[1/2] seed 1: 10 s"]
    kept = json.loads((out / "seed-2.json").read_text())
    model = out / "seed-2" / ("derived" if derive else "best")
    assert kept == {"seconds": 11.0, "weights": training.weights_digest(model)}
    sets = (tmp_path, out / "retrieval")
    assert go_on(2, 3, score=True)[0] == [sets, "seed-2", 3, "seed-3"]
    again, said = go_on(2, 3, score=True)
    assert again == [sets] and said == "".join(
        f"[{n}/2] seed {n + 1}: {10 + n} s, STS 70.13, dev 80.00\n" for n in (1, 2)
    )
    assert json.loads((out / "seed-2.json").read_text()) == kept | {"scores": {"STS": 70.126, "dev": 80.0}}
    for _ in range(2):  # what has no clock is trained anew
        with pytest.raises(UserError, match="no luck"):
            go_on(4, score=True)
        assert done == [sets, 4] and not (out / "seed-4.json").exists()


def test_the_digest_of_weights_is_of_every_file_of_them_and_its_place(tmp_path):
    def digest(**files):
        folder = tmp_path / f"m{len(list(tmp_path.iterdir()))}"
        for name, content in files.items():
            place = folder / f"{name.replace('__', '/')}.safetensors"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
        (folder / "config.json").write_text(str(files))
        return training.weights_digest(folder)

    first = digest(model="a", head__model="b")
    assert first == digest(head__model="b", model="a")
    others = [digest(model="a"), digest(model="b", head__model="a"), digest(model="a", other__model="b")]
    assert len({first, *others, digest(model="a", head__model="c")}) == 5


def test_what_is_derived_is_made_by_the_flags_of_export_from_the_runs_data(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(training, "run_to_end", lambda *words: given.append(words))
    training.make_derived("whiten=8,sentences=99", tmp_path / "best", tmp_path / "data", tmp_path / "derived")
    ((module, words, _),) = given
    assert module == "pretrain.commands.export"
    more = [f"--out={tmp_path}/derived", f"--text={tmp_path}/data", "--whiten=8", "--sentences=99"]
    assert words == [f"{tmp_path}/best", *more]
