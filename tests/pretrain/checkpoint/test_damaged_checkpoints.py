"""What is resumed from where a checkpoint is damaged, cannot be read now, or is of a newer format; and that
nothing is lost."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from checkpoint_helpers import PlainEngine, flip
from run_helpers import command, curve, finish, records, start
from safetensors.torch import save_file

from pretrain.checkpoint import store
from pretrain.checkpoint.store import QUARANTINED, choose
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.data.batch import BatchSpec, ViewSpec
from pretrain.start import resume as resuming
from pretrain.step.progress import Progress


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rewrite_manifest(folder: Path, **changes) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))


def manifest_without(name: str):
    def damage(folder: Path) -> None:
        files = json.loads((folder / "manifest.json").read_text())["files"]
        rewrite_manifest(
            folder, files={key: value for key, value in files.items() if not key.startswith(name)}
        )

    return damage


DAMAGES = {
    "parameters-00000.safetensors does not have": lambda folder: flip(
        folder / "parameters-00000.safetensors"
    ),
    "100 bytes instead of": lambda folder: os.truncate(folder / "exp_avg-00000.safetensors", 100),
    "exp_avg_sq-00000.safetensors is missing": lambda folder: (
        folder / "exp_avg_sq-00000.safetensors"
    ).unlink(),
    "state.json does not have": lambda folder: flip(folder / "state.json"),
    "can't be read (JSONDecodeError": lambda folder: (folder / "manifest.json").write_text("{"),
    "manifest.json is missing": lambda folder: (folder / "manifest.json").unlink(),
    "is not a checkpoint's manifest": lambda folder: rewrite_manifest(folder, files={}),
    "can't be read (TypeError": lambda folder: (folder / "manifest.json").write_text("[]"),
    "can't be read (KeyError": lambda folder: rewrite_manifest(folder, files={"state.json": {"bytes": 3}}),
    "is not a checkpoint's manifest #2": lambda folder: rewrite_manifest(folder, files={"../state.json": {}}),
    "is not a checkpoint's manifest #3": manifest_without("state"),
    "0 of the 2 tensors of parameters": manifest_without("parameters"),
    "0 of the 2 tensors of exp_avg_sq": manifest_without("exp_avg_sq"),
}


@pytest.mark.parametrize("said", list(DAMAGES))
def test_resume_walks_back_past_damage_and_names_it(saved, caplog, said):
    DAMAGES[said](saved / "step-00000003")
    said = said.partition(" #")[0]
    flip(saved / "step-00000002" / "parameters-00000.safetensors")
    assert store.latest(saved) == saved / "step-00000001"
    assert (
        "step-00000003 is damaged" in caplog.text and said in caplog.text and "step-00000002" in caplog.text
    )


UNREADABLE = {
    # the kernel's own errors: this file says EIO to whoever reads it, and a link to itself says ELOOP
    "Input/output error": lambda folder: replace_by_link(folder / "manifest.json", "/proc/self/mem"),
    "Too many levels of symbolic links": lambda folder: replace_by_link(folder / "state.json", "state.json"),
}


def replace_by_link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


@pytest.mark.parametrize("said", list(UNREADABLE))
def test_what_cannot_be_read_now_is_not_passed_over(saved, said):
    UNREADABLE[said](saved / "step-00000003")
    with pytest.raises(
        store.CheckpointError, match=rf"step-00000003 cannot be read now: {said}.*same command again"
    ):
        store.latest(saved)
    shutil.rmtree(saved / "step-00000003")
    assert store.latest(saved) == saved / "step-00000002"


@pytest.mark.parametrize("version", [store.FORMAT_VERSION + 1, 7])
def test_a_newer_format_is_not_passed_over(saved, version):
    rewrite_manifest(saved / "step-00000003", format_version=version)
    with pytest.raises(
        store.CheckpointError,
        match=rf"step-00000003 is of a newer format: it has format {version}, .*newer one",
    ):
        store.latest(saved)


def test_where_none_verifies_all_are_named_and_nothing_is_chosen(saved):
    for step, damage in (
        (3, "is not a checkpoint's manifest"),
        (2, "manifest.json is missing"),
        (1, "state.json does not have"),
    ):
        DAMAGES[damage](saved / f"step-0000000{step}")
    before = tree(saved)
    with pytest.raises(store.CheckpointError) as error:
        choose(saved)
    for said in (
        "step-00000003 is damaged: manifest.json is not a checkpoint's manifest",
        "step-00000002 is damaged: manifest.json is missing",
        "step-00000001 is damaged: state.json does not have",
        "--run",
    ):
        assert said in str(error.value)
    assert tree(saved) == before


def test_checkpoints_that_were_set_aside_are_no_empty_folder(tmp_path):
    (tmp_path / "step-00000003.damaged").mkdir()
    with pytest.raises(store.CheckpointError, match=r"step-00000003\.damaged was set aside"):
        store.latest(tmp_path)


def test_nothing_to_resume_from(tmp_path):
    assert store.latest(tmp_path) is None
    assert store.latest(tmp_path / "absent") is None
    with pytest.raises(store.CheckpointError, match="not a readable checkpoint"):
        store.read_state(tmp_path)


def test_what_is_loaded_is_what_the_manifest_lists(saved):
    folder = saved / "step-00000003"
    save_file(
        {"weight": torch.full((3, 3), 9.0), "bias": torch.full((3,), 9.0)},
        folder / "parameters-00001.safetensors",
    )
    assert store.problem_with(folder) is None
    engine = PlainEngine()
    store.load(folder, engine)
    assert not (engine.module.weight == 9).any() and not (engine.module.bias == 9).any()
    assert not any((tensor == 9).any() for _, tensor in store.read_tensors(folder))


# -- by the command -----------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tiny_data, tmp_path_factory) -> Path:
    """A run with three checkpoints."""
    run = tmp_path_factory.mktemp("damaged") / "run"
    finish(start(command(tiny_data, run, checkpoint__keep=9)))
    return run


def resume(data: Path, run: Path, expect: int = 0, how: str = "auto", **flags) -> str:
    return finish(
        start(command(data, run, checkpoint__keep=9, checkpoint__resume=how, **flags)), expect=expect
    )


@pytest.mark.full
def test_resuming_where_no_checkpoint_is_whole_stops_and_touches_nothing(tiny_data, whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    steps = sorted((run / "checkpoints").glob("step-*"))
    for folder in steps:
        flip(folder / "state.json")
    before = tree(run)
    output = resume(tiny_data, run, expect=2)
    assert all(f"{folder.name} is damaged: state.json does not have" in output for folder in steps)
    assert "--run" in output and "Traceback" not in output and output.count("error:") == 1
    assert tree(run) == before


@pytest.mark.full
def test_a_damaged_checkpoint_is_renamed_and_the_run_goes_on_from_the_one_before(tiny_data, whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    newest = store.latest(run / "checkpoints")
    flip(newest / "parameters-00000.safetensors")
    evidence = tree(newest)
    output = resume(tiny_data, run)
    assert f"{newest.name}.damaged" in output and "parameters-00000.safetensors does not have" in output
    assert tree(newest.with_name(f"{newest.name}.damaged")) == evidence
    assert curve(run) == curve(whole)
    assert store.latest(run / "checkpoints") == newest


@pytest.mark.full
def test_resuming_from_a_named_checkpoint_keeps_the_later_ones_and_takes_none_of_another_run(
    tiny_data, whole, tmp_path
):
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(whole, run)
    shutil.copytree(whole, other)
    output = resume(tiny_data, run, expect=2, how=str(other / "checkpoints" / "step-00000003"))
    assert "of another run" in output and "--run" in output
    later = [path.name for path in sorted((run / "checkpoints").glob("step-*"))[1:]]
    resume(tiny_data, run, how=str(run / "checkpoints" / "step-00000003"))
    kept = {path.name for path in (run / "checkpoints").iterdir() if QUARANTINED.fullmatch(path.name)}
    assert kept == {f"{name}.abandoned" for name in later}
    assert curve(run) == curve(whole) and records(run)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Runs of folders alone: `start` goes on from one, and says what was chosen and what is there."""
    bad, cut = set(), store.Problem("damaged", "is cut")
    (tmp_path / "data" / "tokenizer").mkdir(parents=True)
    (tmp_path / "data" / "tokenizer" / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(store, "problem_with", lambda path: cut if path in bad else None)
    progress = {"best_score": 5.0, "unimproved": 2}

    def read_state(path):
        rows = {"rows": {"of": store.step_of(path)}}
        return {
            "step": store.step_of(path),
            "inputs": "then",
            "progress": {"changes": [], **progress, **rows},
        }

    def require_same(source, before, now, accept):
        assert (before, now, accept) == ("then", "now", "vocabulary")
        return [{"key": "input vocabulary"}]

    monkeypatch.setattr(store, "read_state", read_state)
    monkeypatch.setattr(resuming.continuity, "require_same", require_same)
    monkeypatch.setattr(resuming.continuity, "record_changes", lambda *_: None)

    def make(run, *steps):
        for step in steps:
            (tmp_path / run / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
        return [tmp_path / run / "checkpoints" / f"step-{step:08d}" for step in steps]

    def start(how, run="run"):
        given = {"folder": str(tmp_path / run), "data.folder": str(tmp_path / "data")}
        given |= {"checkpoint.resume": str(how), "checkpoint.accept": "vocabulary"}
        chosen, state = resuming.resume_from(load_config(None, given), "now")
        assert (chosen is None) is (state is None)
        assert (tmp_path / run / "tokenizer" / "tokenizer.json").read_text() == "{}"
        if state is not None:
            assert state["progress"]["changes"] == [{"step": state["step"], "key": "input vocabulary"}]
            own = chosen.parents[1] == tmp_path / run
            expected = (5.0, 2) if own else (None, 0)
            assert (state["progress"]["best_score"], state["progress"]["unimproved"]) == expected
        return chosen, sorted(
            path.name[5:].lstrip("0") for path in (tmp_path / run / "checkpoints").iterdir()
        )

    return SimpleNamespace(start=start, make=make, bad=bad)


def test_which_checkpoint_is_gone_on_from_and_what_becomes_of_others(folders, tmp_path, capsys):
    assert folders.start("auto") == folders.start("never") == (None, [])
    three, six, nine = folders.make("run", 3, 6, 9)
    with pytest.raises(
        UserError, match=r"run already holds a run \(step-00000009\): resume it with --resume auto"
    ):
        folders.start("never")
    assert folders.start("auto") == (nine, ["3", "6", "9"]) and not capsys.readouterr().err
    folders.bad.add(nine)
    with pytest.raises(
        UserError, match=r"it is damaged: is cut\. --resume auto takes the newest good checkpoint"
    ):
        folders.start(nine)
    assert folders.start("auto") == (six, ["3", "6", "9.damaged"])
    said = f"{nine} to {nine.name}.damaged: it is damaged: is cut. This run resumes from {six.name}\n"
    assert capsys.readouterr().err == f"warning: renamed {said}"
    assert folders.start(three) == (three, ["3", "6.abandoned", "9.damaged"])
    assert f"abandoned: --resume {three} takes an earlier one. This run" in capsys.readouterr().err
    assert folders.start("auto") == (three, ["3", "6.abandoned", "9.damaged"])
    three.rename(three.with_name(f"{three.name}.abandoned"))  # a run that has been set aside is one
    with pytest.raises(UserError, match="already holds a run"):
        folders.start("never")


def test_a_branch_has_the_table_of_its_trunk_and_leaves_it_as_it_was(folders, tmp_path, monkeypatch):
    three, six = folders.make("trunk", 3, 6)
    copied = []
    monkeypatch.setattr(resuming, "copy_metrics", lambda *given: copied.append(given) or ("rows",))
    assert folders.start(three) == (three, [])
    tables = [tmp_path / name / "metrics.jsonl" for name in ("trunk", "run")]
    assert copied == [(*tables, 0)]  # the trunk has none: a new chain begins
    (tmp_path / "trunk" / "metrics.jsonl").touch()
    copied.clear()
    assert folders.start(three) == (three, []) and six.is_dir()
    assert copied == [(*tables, 3, {"of": 3})]
    tables[1].touch()  # of an earlier start, whose first checkpoint was not made
    assert folders.start(three) == (three, []) and len(copied) == 1
    (own,) = folders.make("run", 4)
    with pytest.raises(
        UserError, match=r"is of another run, and \S+run has checkpoints of its own \(step-00000004\)"
    ):
        folders.start(three)
    assert folders.start("auto") == (own, ["4"])


@pytest.mark.parametrize(
    "made,changes,accept,says",
    [
        ({}, [], "", "the batch of step 7 is as recorded (sequences, views)"),
        (None, [], "", "a chunk of the last batch is damaged since: it cannot be compared"),
        ({"sequences": "s2"}, [], "", "its sequences have the hash s2, recorded is s; the data is not"),
        ({"views": "v2"}, [], "", "its views have the hash v2, recorded is v; augmentation or masking"),
        ({"sequences": "s2", "views": "v2"}, [], "", "its sequences have the hash s2"),
        ({"views": "v2"}, [{"step": 7, "key": "input vocabulary"}], "", "is as recorded (sequences)"),
        ({"sequences": "s2"}, [{"step": 7, "key": "input vocabulary"}], "", "its sequences have the hash s2"),
        ({"views": "v2"}, [{"step": 6, "key": "input vocabulary"}], "", "its views have the hash v2"),
        ({"views": "v2"}, [{"step": 7, "key": "train.lr"}], "", "its views have the hash v2"),
        ({"views": "v2"}, [], "batches", {"from": "views v", "to": "views v2"}),
        ({"sequences": "s2"}, [], "batches", {"from": "sequences s", "to": "sequences s2"}),
    ],
)
def test_the_last_batch_is_made_again_and_compared(made, changes, accept, says, monkeypatch):
    recorded = {"sequences": "s", "views": "v"}
    progress = Progress(step=7, changes=list(changes), ledger={"last": recorded})
    monkeypatch.setattr(resuming, "_make_again", lambda *_: None if made is None else recorded | made)
    spec = BatchSpec([ViewSpec("anchor", "del-word")], None, None)

    def verify():
        given = load_config(None, {"checkpoint.accept": accept} if accept else {})
        return resuming.verify_resumed_batch(given, None, spec, progress, "SOURCE")

    if isinstance(says, dict):
        assert verify() is None and progress.changes == [{"step": 7, "key": "batches", **says}]
    elif "have the hash" in says:
        with pytest.raises(UserError) as refused:
            verify()
        assert str(refused.value).startswith("SOURCE: the batch of step 7") and says in str(refused.value)
    else:
        assert says in verify() and progress.changes == changes
    for ledger in ({}, {"last": {}, "since": 7}):  # no step since it began
        progress.ledger = ledger
        assert verify() is None and progress.ledger["since"] == 7 and progress.ledger["last"] == {}
