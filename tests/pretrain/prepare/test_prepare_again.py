"""What a folder holds already: its own source, the work of another process, data and unfinished work of
another version."""

import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cache_helpers import make as make_cache
from loader_helpers import write_folder
from prepare_helpers import config, digest, make_corpus
from run_helpers import command, finish, start

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.common.folder_lock import folder_lock
from pretrain.config.data import DataConfig, Source
from pretrain.data.manifest import PREPARATION, outdated, read_manifest
from pretrain.data.shards import ShardReader
from pretrain.prepare import jobs
from pretrain.prepare.run import _plan, _unfinished_plan, prepare
from pretrain.prepare.sources import planning
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.work_folder import PreparationPlan, SentenceCounts
from pretrain.start.data import check_parts

QUIETLY = {"workers": 1, "progress": False}


@pytest.fixture
def corpus(tmp_path) -> Path:
    make_corpus(tmp_path / "corpus.txt", documents=40)
    return tmp_path / "corpus.txt"


def make_old(out: Path, **changes) -> dict:
    """Rewrite a manifest as the first version left it."""
    manifest = read_manifest(out)
    del manifest["preparation"]
    (out / "manifest.json").write_text(json.dumps(manifest | changes))
    return manifest


def leave_unfinished(made, out: Path, monkeypatch) -> Path:
    """A preparation that ended before its first task; returns its plan's file."""
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "run_jobs", lambda *_: exit("killed"))
        with pytest.raises(SystemExit):
            prepare(made, out, **QUIETLY)
    return out / ".work/plan.json"


# -- its own files are no source ------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("inside", ["prepared", "."])
def test_a_folder_is_prepared_into_itself(corpus, tmp_path, monkeypatch, inside):
    """What preparation keeps there while it works is no text, at the first start and at the next one."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text(corpus.read_text())
    out = folder / inside
    leave_unfinished(config(folder), out, monkeypatch)
    prepare(config(folder), out, **QUIETLY)
    prepare(config(folder / "a.txt"), tmp_path / "alone", **QUIETLY)
    alone = read_manifest(tmp_path / "alone")["splits"]
    assert read_manifest(out)["splits"] == alone
    (out / "prepare.json").write_text("{}")  # a training's
    assert prepare(config(folder), out, **QUIETLY, overwrite=True)["splits"] == alone
    assert prepare(config(folder), folder / "second", **QUIETLY)["splits"] == alone


def test_only_what_preparation_makes_is_left_out_of_a_folder(tmp_path):
    """Files of the same names that stand elsewhere are text, and a hidden file that is named is read."""
    names = ["manifest.json", "tokenizer/a.json", "b/prepare.json", ".hidden/c.txt", "b/.d.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "x"}\n')
    (tmp_path / "manifest.json").rename(tmp_path / "b/manifest.json")
    found = [task.place for task in plan_tasks([Source(source=str(tmp_path))])]
    assert found == [
        str(tmp_path / name) for name in ("b/manifest.json", "b/prepare.json", "tokenizer/a.json")
    ]
    for named in (".hidden/c.txt", ".hidden", "b/.*.txt"):
        assert len(plan_tasks([Source(source=str(tmp_path / named))])) == 1


# -- by another process, before the lock was ours ---------------------------------


def finished_meanwhile(monkeypatch, work) -> None:
    """Let another process do `work` after the first look at a folder and before its lock is taken."""

    @contextmanager
    def late(folder: Path):
        monkeypatch.setattr(jobs, "folder_lock", folder_lock)
        work()
        with folder_lock(folder):
            yield

    monkeypatch.setattr(jobs, "folder_lock", late)


@pytest.mark.parametrize("longest", [64, 32])
def test_a_preparation_that_another_process_has_finished_is_compared_and_kept(
    corpus, tmp_path, monkeypatch, longest
):
    out, before = tmp_path / "out", {}

    def other() -> None:
        prepare(config(corpus), out, **QUIETLY)
        before.update(digest(out))

    finished_meanwhile(monkeypatch, other)
    monkeypatch.setattr(jobs, "run_jobs", once(jobs.run_jobs))
    if longest == 64:
        assert prepare(config(corpus), out, **QUIETLY) == read_manifest(out)
    else:
        with pytest.raises(UserError, match="max_length is 64 there and 32 now"):
            prepare(config(corpus, max_length=32), out, **QUIETLY)
    assert digest(out) == before


@pytest.mark.parametrize("spec", ["crop|repeat", "crop|reorder"])
def test_a_cache_that_another_process_has_finished_is_compared_and_kept(
    tiny_data, tmp_path, monkeypatch, spec
):
    out, before = tmp_path / "out", {}

    def other() -> None:
        make_cache(tiny_data, out, {"augmented": "crop|repeat"}, **QUIETLY)
        before.update(digest(out))

    finished_meanwhile(monkeypatch, other)
    monkeypatch.setattr(jobs, "run_jobs", once(jobs.run_jobs))
    if spec == "crop|repeat":
        assert make_cache(tiny_data, out, {"augmented": spec}, **QUIETLY) == read_manifest(out)
    else:
        with pytest.raises(UserError, match=": columns is"):
            make_cache(tiny_data, out, {"augmented": spec}, **QUIETLY)
    assert digest(out) == before


def once(work):
    """A function that is to be called once only."""
    calls = []

    def called(*arguments):
        calls.append(arguments)
        assert len(calls) == 1, "made again"
        return work(*arguments)

    return called


# -- by another version -----------------------------------------------------------


def test_data_of_an_earlier_version_is_used_and_said_so(corpus, tmp_path, capsys):
    out = tmp_path / "out"
    assert prepare(config(corpus), out, **QUIETLY)["preparation"] == PREPARATION
    prepare(config(corpus), out, **QUIETLY)
    check_parts(ShardReader(out), "refuse")
    assert "WARNING" not in capsys.readouterr().err
    make_old(out)
    for look in (
        lambda: prepare(config(corpus), out, **QUIETLY),
        lambda: check_parts(ShardReader(out), "refuse"),
    ):
        look()
        (line,) = capsys.readouterr().err.splitlines()
        assert str(out) in line and "earlier version (1, this is " in line and "--overwrite" in line
    assert prepare(config(corpus), out, **QUIETLY, overwrite=True)["preparation"] == PREPARATION
    assert outdated(out, read_manifest(out)) is None


def test_what_is_made_of_old_data_is_old(tiny_data, tmp_path):
    shutil.copytree(tiny_data, tmp_path / "data")
    make_old(tmp_path / "data")
    manifest = make_cache(tmp_path / "data", tmp_path / "cache", {"augmented": "crop|repeat"}, **QUIETLY)
    assert manifest["preparation"] == 1 and "clearly cache" in outdated(tmp_path / "cache", manifest)
    assert (
        make_cache(tiny_data, tmp_path / "new", {"augmented": "crop|repeat"}, **QUIETLY)["preparation"]
        == PREPARATION
    )


def test_sequences_that_no_preparation_made_have_no_version(tmp_path):
    sequences = Ragged.from_sequences([[2, *range(5, 6 + n % 7), 3] for n in range(20)])
    write_folder(tmp_path, {"train": sequences, "heldout": sequences}, 100, 16)
    assert outdated(tmp_path, read_manifest(tmp_path)) is None


@pytest.mark.full
def test_a_run_on_old_data_says_so_and_is_resumed(tiny_data, tmp_path):
    """The version decides no batch: a run that began before it was recorded goes on with the same inputs."""
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data)
    new = read_manifest(data)
    make_old(data)
    steps = {"train__steps": 2, "train__warmup_steps": 1, "checkpoint__every": 1}
    output = finish(start(command(data, tmp_path / "run", **steps)))
    assert output.count("prepared by an earlier version") == 1
    (data / "manifest.json").write_text(json.dumps(new))
    output = finish(
        start(command(data, tmp_path / "run", **(steps | {"train__steps": 3}), checkpoint__resume="auto"))
    )
    assert "prepared by an earlier version" not in output and "other inputs" not in output


@pytest.mark.full
@pytest.mark.parametrize("unit", ["sentence", "sequence"])
@pytest.mark.parametrize("version", [None, PREPARATION - 1, PREPARATION + 1])
def test_an_unfinished_preparation_of_another_version_is_refused(
    corpus, tmp_path, monkeypatch, unit, version
):
    made, out = config(corpus, unit=unit), tmp_path / "out"
    path = leave_unfinished(made, out, monkeypatch)
    plan = json.loads(path.read_text())
    assert plan.pop("preparation") == PREPARATION
    SentenceCounts({}).write(path.parent)  # a task has ended
    path.write_text(json.dumps(plan if version is None else plan | {"preparation": version}))
    with pytest.raises(UserError, match=r"unfinished preparation of another version.*--overwrite"):
        prepare(made, out, **QUIETLY)
    prepare(made, out, **QUIETLY, overwrite=True)
    prepare(made, tmp_path / "fresh", **QUIETLY)
    assert digest(out) == digest(tmp_path / "fresh")


def test_what_a_user_has_in_the_folder_is_neither_removed_nor_written_over(corpus, tmp_path, monkeypatch):
    wrong, right, out = config(corpus, max_length=8), config(corpus), tmp_path / "out"
    (out / "train").mkdir(parents=True)
    (out / "train" / "mine.jsonl").write_text("mine")
    for flags in ({}, {"overwrite": True}):
        with pytest.raises(UserError, match="holds train/ of something else"):
            prepare(right, out, **QUIETLY, **flags)
    (out / "train").rename(tmp_path / "aside")
    leave_unfinished(wrong, out, monkeypatch)
    (tmp_path / "aside").rename(out / "train")
    leave_unfinished(right, out, monkeypatch)  # with a corrected flag
    assert (out / "train" / "mine.jsonl").read_text() == "mine"


def test_another_tokenizer_in_the_folder_is_refused_and_moved_away_the_work_continues(
    corpus, tmp_path, monkeypatch
):
    made, out = config(corpus), tmp_path / "out"
    prepare(config(corpus, vocabulary=384), tmp_path / "other", **QUIETLY)
    leave_unfinished(made, out, monkeypatch)
    shutil.copytree(tmp_path / "other" / "tokenizer", out / "tokenizer")
    with pytest.raises(
        UserError, match="tokenizer is not that of the shards: move it away, and give the same command"
    ):
        prepare(made, out, **QUIETLY)
    shutil.rmtree(out / "tokenizer")
    prepare(made, out, **QUIETLY)
    prepare(made, tmp_path / "fresh", **QUIETLY)
    assert digest(out) == digest(tmp_path / "fresh")


def test_a_refused_input_leaves_nothing_and_finished_tasks_stay(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"body": "a text under another name"}\n')
    make_corpus(tmp_path / "corpus.txt", documents=40)
    (tmp_path / "mine").mkdir()
    for out in (tmp_path / "new", tmp_path / "mine"):
        for source in ("rows.jsonl", "no.txt"):
            with pytest.raises(UserError):
                prepare(config(tmp_path / source), out, **QUIETLY)
    assert not (tmp_path / "new").exists() and not list((tmp_path / "mine").iterdir())
    both = config(tmp_path / "corpus.txt")
    both = both.model_copy(update={"tokenizer": str(tmp_path / "no tokenizer")})
    with pytest.raises(UserError, match="no tokenizer"):  # when the text has been read
        prepare(both, tmp_path / "new", **QUIETLY)
    assert list((tmp_path / "new" / ".work").glob("logs/*/completions/*"))


def test_another_config_is_refused_only_where_a_task_has_ended(corpus, tmp_path, monkeypatch):
    """The first mistake in a flag must not make the corrected command fail."""
    wrong, right, out = config(corpus, max_length=8), config(corpus), tmp_path / "out"
    plan = leave_unfinished(wrong, out, monkeypatch)
    SentenceCounts({}).write(plan.parent)
    with pytest.raises(UserError, match=r"unfinished preparation with another config: max_length is 8 there"):
        prepare(right, out, **QUIETLY)
    shutil.rmtree(plan.parent / "counts")
    prepare(right, out, **QUIETLY)
    prepare(right, tmp_path / "fresh", **QUIETLY)
    assert digest(out) == digest(tmp_path / "fresh")


@pytest.mark.parametrize("written", ["beginning", "end", "three bytes"])
def test_a_source_that_was_written_since_is_not_mixed_with_what_was_read_of_it(
    corpus, tmp_path, monkeypatch, written
):
    """Stripes of the old file and of the new one would be shards of neither. Three bytes: their share of a
    stripe's size may be none. The other ones leave the size, and the time of change may be a copy's."""
    monkeypatch.setattr(planning, "TASK_BYTES", corpus.stat().st_size // 8)
    made, work = config(corpus), tmp_path / "out" / ".work"
    begun = _plan(made, plan_tasks(made.sources), work)
    assert len(begun.tasks) > 3 and _plan(made, plan_tasks(made.sources), work) == begun
    SentenceCounts({}).write(work)
    old, stamp = corpus.read_text(), corpus.stat().st_mtime_ns
    size = len(old) - len(old) % len(begun.tasks)
    corpus.write_text({"beginning": "A" + old[1:], "end": old[:-2] + "A\n"}.get(written, old[:size] + "end"))
    os.utime(corpus, ns=(stamp, stamp))
    with pytest.raises(UserError, match=r"sources have changed since \S+out was begun: .*corpus.txt"):
        _plan(made, plan_tasks(made.sources), work)
    corpus.write_text(old)
    os.utime(corpus, ns=(stamp, stamp + 10**9))  # copied anew
    assert _plan(made, plan_tasks(made.sources), work) == begun


def test_what_no_task_reads_as_a_file_is_none_that_may_change(corpus, tmp_path, monkeypatch):
    """The embedded corpus beside a folder or file of that name, which may be --out; a folder of a dataset."""
    from datasets import Dataset

    monkeypatch.chdir(tmp_path)
    made = DataConfig.model_validate(
        {"sources": [{"source": name} for name in ("embedded", "rows", str(corpus))]}
    )
    for name in ("embedded", "rows"):
        Dataset.from_dict({"text": ["It was a river."]}).save_to_disk(name)
    plan = _plan(made, plan_tasks(made.sources), tmp_path / "embedded" / ".work")
    assert {task.kind for task in plan.tasks} == {"embedded", "disk", "text"} and list(plan.files) == [
        str(corpus)
    ]


def test_the_batch_script_says_how_to_submit_it():
    script = Path(__file__).resolve().parents[3] / "slurm" / "prepare_data.sh"
    variables = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, env=variables)
    assert done.returncode == 2 and "sbatch" in done.stderr


def test_an_unfinished_preparation_goes_on_only_with_what_it_was_begun_with(corpus, tmp_path):
    made, work = config(corpus), tmp_path / "out" / ".work"
    tasks = plan_tasks(made.sources)
    begun = PreparationPlan(preparation=PREPARATION, config=made, tasks=tasks, buckets=3, described="it")

    def found(plan=begun, wanted=made, tasks=tasks):
        plan.write(work)
        return _unfinished_plan(wanted, tasks, work)

    assert found() == begun
    another = "out holds an unfinished preparation of another version: give --overwrite true"
    for version in (PREPARATION - 1, PREPARATION + 1):
        with pytest.raises(UserError, match=another):
            found(begun.model_copy(update={"preparation": version}))
    with pytest.raises(
        UserError, match=r"holds an unfinished preparation with another config: max_length is"
    ):
        found(wanted=config(corpus, max_length=9))
    grown = [replace(task, size=task.size + 1) for task in tasks]
    for others in (grown, [], [*tasks, *tasks]):
        with pytest.raises(
            UserError, match=r"The sources have changed since \S+out was begun: give --overwrite"
        ):
            found(tasks=others)
    (work / "plan.json").write_text('{"preparation": 1}')
    with pytest.raises(UserError, match=another):
        _unfinished_plan(made, tasks, work)
