"""Each rule of the board by itself, and what a check does again: without a training."""

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import call

from pretrain.commands.record import board, checking, scores, tracks, training
from pretrain.commands.record.__main__ import check, start, submit
from pretrain.commands.record.board import RECORD, follows
from pretrain.commands.record.scores import DEV, LEGS, NEEDED, summary_of
from pretrain.commands.record.tracks import CORPUS, TRACKS, Track, corpus_of, outside_help, settings_of
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.config.data import Source
from pretrain.config.recipe import load_config
from pretrain.telemetry.metrics_file import to_line

SCORES = dict.fromkeys((*LEGS, DEV), 60.0)
MANIFEST = {
    "config": load_config("contrastive_micro", {}).data.prepare.model_dump(mode="json"),
    "run": {"seconds": 9.0},
}


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


@pytest.fixture
def entry(tmp_path, monkeypatch) -> SimpleNamespace:
    """Three seeds that keep every rule: what is known of them, and the rules that they break."""
    policy = {"step": 5, "progress": {"best_by": "stsb-dev"}, "recipe": {"train": {"steps": 5}}}
    known = {"is_run": True, "weights_digest": "w", "read_scores": SCORES, "follows": True, "load_config": 0}
    (tmp_path / "recipe.yaml").write_text("{}")
    for seed in (1, 2, 3):
        (tmp_path / f"seed-{seed}" / "best").mkdir(parents=True)
        (tmp_path / f"seed-{seed}" / "best" / "model.safetensors").write_bytes(bytes(101))
        found = {"seconds": 10.0, "weights": "w", "scores": SCORES}
        (tmp_path / f"seed-{seed}.json").write_text(json.dumps(found))
        rows = [{"step": 0, "wall_time": 50.0}, {"step": 5, "wall_time": 60.0, "evaluation": {}}]
        (tmp_path / f"seed-{seed}" / "metrics.jsonl").write_text("".join(map(to_line, rows)))
    made = SimpleNamespace(
        known=known | {"read_policy": policy},
        about={"track": "tiny", "recipe": sha256_of(tmp_path / "recipe.yaml"), "commit": "c"},
        track=Track(10.0),
        runs=[tmp_path / f"seed-{seed}" for seed in (1, 2, 3)],
    )

    def broken() -> str:
        for name, value in made.known.items():
            monkeypatch.setattr(board, name, lambda *_, value=value: value)
        monkeypatch.setitem(TRACKS, "tiny", made.track)
        return "; ".join(board._broken_rules(tmp_path, made.about, made.runs))

    made.broken = broken
    return made


def test_seeds_that_keep_every_rule_are_entered_at_the_limits_themselves(entry):
    """Ten seconds of ten, a table with a file's header of 1%, and a target that is reached exactly."""
    assert entry.broken() == ""
    entry.track = Track(10.0, table_bytes=100, target=60.0)
    assert entry.broken() == ""


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("weights_digest", "other", "seed-1 has other weights or scores"),
        ("read_scores", SCORES | {DEV: 61.0}, "seed-1 has other weights or scores"),
        ("follows", False, "seed-3 was trained by other settings than recipe.yaml's"),
        ("is_run", False, "seed-2 was not trained and scored"),
        ("read_policy", None, "seed-2 was not trained and scored"),
        ("read_policy", {"step": 5, "progress": {"best_by": "x"}}, "STS-B dev has not chosen its step"),
        ("read_policy", {"step": 5}, "STS-B dev has not chosen its step"),
        ("read_policy", {"step": 4, "progress": {"best_by": "stsb-dev"}}, "seed-1 took inf s of 10"),
    ],
)
def test_a_seed_that_breaks_a_rule_is_named(name, value, said, entry):
    entry.known[name] = value
    assert said in entry.broken()


def test_seeds_recipe_commit_and_files_are_asked_for(entry, tmp_path):
    entry.runs.pop()
    entry.about["recipe"], entry.about["commit"] = "other", ""
    (tmp_path / "seed-1" / "best" / "model.safetensors").unlink()
    (tmp_path / "seed-2.json").write_text(json.dumps({"seconds": 10.0, "weights": "w"}))
    assert [rule.split(",")[0].split(":")[0] for rule in entry.broken().split("; ")] == [
        "it has 2 seeds",
        "recipe.yaml is not the one that was trained",
        "no commit holds the code that trained it",
        "seed-1 was not trained and scored by `clearly record start`",
        "seed-2 was not trained and scored by `clearly record start`",
    ]


@pytest.mark.parametrize(
    ("track", "said"),
    [
        (Track(9.9), "seed-1 took 10 s of 10"),
        (Track(10.0, target=60.1), "seed-1 is below 60.1 over seven STS"),
        (Track(10.0, table_bytes=99), "seed-1: its table has 101 bytes of 99"),
    ],
)
def test_a_track_limits_time_scores_and_size(track, said, entry):
    entry.track = track
    assert said in entry.broken()


def test_where_speed_decides_the_best_step_is_the_last(entry):
    entry.known["read_policy"]["recipe"]["train"]["steps"] = 6
    assert entry.broken() == ""
    entry.track = Track(10.0, target=50.0)
    assert "seed-1: step 5 is its best, which train.steps must name" in entry.broken()


def test_a_run_follows_a_recipe_whatever_its_seed_places_and_precision(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("train: {lr: 0.002}\n")
    config = settings_of(recipe, 7, tmp_path / "data", tmp_path / "seed-7")
    config.train.precision = "bf16"
    assert follows(config, recipe)
    config.train.lr = 0.003
    assert not follows(config, recipe)


# -- start ---------------------------------------------------------------


def test_what_start_is_given_is_looked_at_before_anything_is_made(tmp_path):
    given = {"data": tmp_path, "eval_data": tmp_path, "out": tmp_path / "out"}
    (tmp_path / "r.yaml").touch()
    with pytest.raises(UserError, match=r"there is no such file"):
        call(start, "cpu2-1m", recipe=tmp_path / "none.yaml", **given)
    with pytest.raises(UserError, match="--seeds: give different numbers"):
        call(start, "cpu2-1m", recipe=tmp_path / "r.yaml", seeds="1,2,1", **given)
    with pytest.raises(UserError, match="cpu2-1m"):
        call(start, "cpu2-2m", recipe=tmp_path / "r.yaml", **given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "derive",
    ["", "whiten=0", "remove=12", "whiten=8,power=.5,sentences=99", "whiten=0,power=1", "pooling=sif"],
)
def test_what_is_derived_of_an_encoder_is_fitted_on_its_data(derive):
    assert training._flags_of(derive, Track(60)) == derive
    if derive:
        with pytest.raises(UserError, match="by training alone"):
            training._flags_of(derive, Track(60, target=60.0))


def test_what_is_derived_of_a_table_is_static():
    table = Track(60, table_bytes=8)
    assert (
        training._flags_of("", table) == "static=encoded"
        and training._flags_of("", Track(60, target=1)) == ""
    )
    for good in ("static=input,pooling=idf,whiten=3,sentences=9", "static=encoded,whiten=0,power=0.6"):
        assert training._flags_of(good, table) == good
        with pytest.raises(UserError, match=r"whiten=N \(and ,power=P\) or remove=N"):
            training._flags_of(good, Track(60))
    for bad in ("whiten=0", "static=other", "static=input,remove=1", "static=input,sentences=9"):
        with pytest.raises(UserError, match="static=encoded or static=input"):
            training._flags_of(bad, table)
    for bad in (
        "whiten",
        "whiten=-1",
        "power=.5",
        "whiten=0,power=0.0",
        "remove=1,power=.5",
        "pooling=cls",
        "out=x",
        "whiten=0,text=x",
    ):
        with pytest.raises(UserError, match=f"--derive {bad}"):
            training._flags_of(bad, Track(60))


def test_data_that_are_not_there_are_made_of_the_text_by_the_recipe(tmp_path, monkeypatch):
    recipe, made = tmp_path / "recipe.yaml", []
    recipe.write_text("data: {prepare: {vocabulary: 512}}\n")

    def begin(track: str, text: str) -> None:
        data = tmp_path / f"data-{track}"
        training.begin(track, recipe, data, tmp_path / track, text, "", [1], score=False)

    def prepare(**settings):
        made.append(settings)
        raise InterruptedError

    monkeypatch.setattr(training, "prepare", prepare)
    monkeypatch.setattr(training, "corpus_of", lambda sources, data: made.append([s.source for s in sources]))
    monkeypatch.setattr(tracks, "use_machine", lambda track: {})
    with pytest.raises(UserError, match="holds no prepared data: name the corpus by --text"):
        begin("cpu2-1m", "")
    for track, workers in (("cpu2-1m", 2), ("gpu-1m", None)):
        with pytest.raises(InterruptedError):
            begin(track, "a.gz,b.gz")
        out = tmp_path / f"data-{track}"
        texts = ["a.gz", "b.gz"]
        assert made[-2:] == [texts, {"out": out, "workers": workers, "vocabulary": 512, "sources": texts}]


def test_the_test_of_retrieval_is_of_the_boards_own_text(tmp_path, monkeypatch):
    text = tmp_path / "text" / "held.txt"
    monkeypatch.setattr(scores, "HELD_OUT", ("text/held.txt", "0"))
    made = []
    monkeypatch.setattr("finetune.judge.heldout.make_sets", lambda *words: made.append(words))
    with pytest.raises(UserError, match=r"held\.txt is not there, or not the board's"):
        scores.make_retrieval(tmp_path, tmp_path / "out")
    text.parent.mkdir()
    text.write_text("a text")
    with pytest.raises(UserError, match=r"held\.txt is not there, or not the board's"):
        scores.make_retrieval(tmp_path, tmp_path / "out")
    monkeypatch.setattr(scores, "HELD_OUT", ("text/held.txt", sha256_of(text)))
    scores.make_retrieval(tmp_path, tmp_path / "out")
    assert made == [(text, tmp_path / "out", ("title", "neighbour"))]


def test_scores_are_four_figures_of_three_evaluations(tmp_path):
    values = {"sts": (71.0, 80.0), "senteval": (65.0,), "nanobeir": (40.0, 50.0)}
    for name, numbers in values.items():
        tasks = {key: {"metric": "", "value": n, "scores": {}} for key, n in zip(NEEDED[name], numbers)}
        content = {
            "evaluation": name,
            "pooling": "own-modules",
            "notes": [],
            "complete": True,
            "seconds": 1.0,
        }
        about = {"model": "", "trained_pooling": None, "protocol": "", "source": "", "tasks": tasks}
        (tmp_path / f"{name}-own-modules.json").write_text(json.dumps(content | about))
    expected = dict(zip((*LEGS, DEV), (71.0, 65.0, 45.0, 80.0)))
    assert scores.read_scores(tmp_path, tmp_path / "best") == expected
    path = tmp_path / "sts-own-modules.json"
    content = json.loads(path.read_text())
    del content["tasks"]["STS-B-dev"]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"lacks STS-B-dev: `clearly benchmarks check`"):
        scores.read_scores(tmp_path, tmp_path / "best")


# -- check ---------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Make a record that passes every check."""
    monkeypatch.setitem(TRACKS, "tiny", Track(10.0))
    monkeypatch.setattr(checking, "code_here", lambda: ("c0de", ""))
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "recipe.yaml").write_text("data: {prepare: {vocabulary: 512}}\n")
    seeds = {str(seed): {"seconds": 9.0 + seed / 9, "scores": SCORES} for seed in (1, 2, 3)}
    record = {"track": "tiny", "seeds": seeds, "code": "c0de", "commit": "c0ffee", "data": "d"}
    record |= {
        "scores": {leg: summary_of([60.0] * 3) for leg in SCORES},
        "text": {"enwiki": "1", "books": "2"},
    }
    record |= {"seconds": {"from_shards": 9.0 + 3 / 9}}
    record["recipe"] = sha256_of(tmp_path / "record" / "recipe.yaml")
    (tmp_path / "record" / RECORD).write_text(json.dumps(record))
    return tmp_path / "record"


def test_a_sound_record_passes_and_other_code_is_noted(place, monkeypatch, capsys, tmp_path):
    assert call(check, place) == 0 and capsys.readouterr().out == f"{place}: as recorded\n"
    monkeypatch.setattr(checking, "code_here", lambda: ("other", ""))
    assert call(check, place) == 0
    assert "`git checkout c0ffee` brings the record's" in capsys.readouterr().out
    (place / "recipe.yaml").write_text("{}")
    assert call(check, place) == 1
    assert f"{place}: not as recorded\n  recipe.yaml has another sha256\n" in capsys.readouterr().out
    with pytest.raises(UserError, match=f"{tmp_path} is no record"):
        call(check, tmp_path)


@pytest.mark.parametrize(("of_run", "verified", "status"), [([], 0, 0), (["x"], 0, 1), ([], 1, 1)])
def test_a_run_is_compared_and_verified(of_run, verified, status, place, tmp_path, monkeypatch):
    run, given = tmp_path / "run", []
    run.mkdir()
    (run / "config.yaml").write_text("{}")
    monkeypatch.setattr(checking, "_of_run", lambda *words: given.append(words[2:]) or iter(of_run))

    def verify(run, replay, **moved):
        given.append((run, replay, moved))
        return verified

    monkeypatch.setattr("pretrain.commands.verify.__main__.verify", verify)
    assert call(check, place, run=run, replay=3, data="moved", eval_data="bench") == status
    assert given == [(run, "bench", "moved"), (run, 3, {"data.folder": "moved"})]
    assert call(check, place, run=run) == status and given[2:] == [(run, "", ""), (run, 0, {})]


def test_what_is_of_a_run_needs_one(place, tmp_path):
    for flags in ({"replay": 1}, {"eval_data": "d"}, {"data": "d"}):
        with pytest.raises(UserError, match="are of a run: name it by --run"):
            call(check, place, **flags)
    with pytest.raises(UserError, match="not the folder of a run"):
        call(check, place, run=tmp_path)


def test_a_text_is_prepared_again_by_the_recipe(place, monkeypatch, capsys):
    made, texts, digest = [], {"enwiki": "1", "books": "2"}, ["d"]
    monkeypatch.setattr(checking, "prepare", lambda **settings: made.append(settings))
    monkeypatch.setattr(checking, "corpus_of", lambda sources, out: texts)
    monkeypatch.setattr(checking, "read_manifest", lambda folder: folder)
    monkeypatch.setattr(checking, "digest_of", lambda folder: digest[0])
    assert call(check, place, text="a.gz,b.gz") == 0
    out = made[0].pop("out")
    assert made == [{"vocabulary": 512, "sources": ["a.gz", "b.gz"]}] and not out.exists()
    digest[0] = "other"
    assert call(check, place, text="a.gz") == 1
    assert "a.gz: not as recorded\n  it gives other shards" in capsys.readouterr().out
    digest[0], texts = "d", {"books": "2", "enwiki": "1"}  # in another order
    assert call(check, place, text="a.gz") == 1


def test_a_run_of_another_seed_or_without_weights_is_no_run_of_the_record(tmp_path, monkeypatch):
    config = load_config("contrastive_micro", {"train.seed": 4})
    monkeypatch.setattr(checking, "load_config", lambda *_: config)
    monkeypatch.setattr(checking, "read_policy", lambda *_: None)
    record = {"seeds": {"3": {}, "5": {}}}
    with pytest.raises(UserError, match="has seed 4, and the record 3, 5"):
        list(checking._of_run(record, tmp_path, tmp_path, "", ""))
    record["seeds"]["4"] = {}
    with pytest.raises(UserError, match="has no weights to compare"):
        list(checking._of_run(record, tmp_path, tmp_path, "", ""))
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "model.safetensors").touch()
    with pytest.raises(UserError, match="has no weights to compare"):
        list(checking._of_run(record, tmp_path, tmp_path, "", ""))


def test_what_is_derived_is_made_again_before_it_is_scored(tmp_path, monkeypatch):
    made = []
    record = {
        "seeds": {"4": {"step": 1, "weights": "w", "scores": {"a": 1.0}}},
        "derive": "whiten=0",
        "data": 0,
    }
    run = tmp_path / "run"
    (run / "derived").mkdir(parents=True)
    (run / "derived" / "model.safetensors").touch()
    config = load_config("contrastive_micro", {"train.seed": 4, "data.folder": str(tmp_path / "shards")})
    stand_ins = {"load_config": config, "read_policy": {"step": 2}, "follows": True, "read_manifest": 0}
    for name, value in (stand_ins | {"digest_of": 0, "weights_digest": "w", "make_retrieval": 0}).items():
        monkeypatch.setattr(checking, name, lambda *_, value=value: value)
    monkeypatch.setattr(checking, "make_derived", lambda *words: made.append(words))
    monkeypatch.setattr(checking, "evaluate", lambda model, *_: made.append(model) or {"a": 1.04})
    assert list(checking._of_run(record, tmp_path, run, "bench", "")) == []
    (words, model) = made
    assert words == ("whiten=0", run / "best", tmp_path / "shards", model) and run not in model.parents


# -- submit --------------------------------------------------------------


def test_submit_names_what_to_commit(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(board, "enter", lambda folder, board: board / f"{folder.name}-1")
    assert call(submit, "mine", board=tmp_path / "records") == 0
    assert f"{tmp_path}/records/mine-1 is the record" in (said := capsys.readouterr().out)
    assert f"{tmp_path}/records.md has it" in said
