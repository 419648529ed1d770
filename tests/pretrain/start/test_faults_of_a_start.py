"""What a start says of a disk that refuses, and what it sets aside; each part alone."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pretrain.checkpoint.store import Choice
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.start import checkpoints, folder, resume, summary
from pretrain.step.progress import Progress


def refuses(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def checkpoint(place: Path, step: int) -> Path:
    path = place / f"step-{step:08d}"
    path.mkdir(parents=True)
    (path / "manifest.json").touch()
    return path


def test_later_and_damaged_checkpoints_are_set_aside_and_named(tmp_path, capsys):
    place = tmp_path / "checkpoints"
    paths = {step: checkpoint(place, step) for step in (2, 4, 6, 8)}
    choice = Choice(paths[4], [(paths[8], "has lost a byte")])
    resume._set_others_aside(choice, 4, place)
    names = {path.name for path in place.iterdir()}
    assert len(names) == 4 and names >= {"step-00000002", "step-00000004"}
    assert not names & {"step-00000006", "step-00000008"}
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and all("This run resumes from step-00000004" in line for line in said)
    damaged, abandoned = (next(line for line in said if str(paths[step]) in line) for step in (8, 6))
    assert "it has lost a byte" in damaged and f"--resume {paths[4]} takes an earlier one" in abandoned
    assert any("damaged" in name for name in names) and any("abandoned" in name for name in names)


def test_checkpoints_of_another_run_are_left_alone(tmp_path, capsys):
    own, other = tmp_path / "own", tmp_path / "other"
    chosen, later = checkpoint(other, 4), checkpoint(own, 6)
    resume._set_others_aside(Choice(chosen), 4, own)
    assert later.is_dir() and capsys.readouterr().err == ""


def test_a_checkpoint_that_cannot_be_renamed_is_one_error(tmp_path, monkeypatch):
    chosen, later = checkpoint(tmp_path, 4), checkpoint(tmp_path, 6)
    monkeypatch.setattr(resume, "quarantine", refuses)
    with pytest.raises(UserError, match=rf"cannot rename {later}, to be passed over .*No space left"):
        resume._set_others_aside(Choice(chosen), 4, tmp_path)
    monkeypatch.setattr(checkpoints, "quarantine", refuses)
    (tmp_path / "run" / "best").mkdir(parents=True)
    with pytest.raises(UserError, match=rf"cannot rename {tmp_path / 'run' / 'best'}: No space left"):
        checkpoints._export_best(tmp_path / "run", Progress(best_step=4, best_score=1.0), tmp_path / "none")


def test_a_run_folder_that_cannot_be_made_is_one_error_and_an_empty_one_goes(tmp_path, monkeypatch):
    with folder.hold_run_folder(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists(), "a start that wrote nothing leaves nothing"
    with folder.hold_run_folder(tmp_path / "used"):
        (tmp_path / "used" / "file").touch()
    assert (tmp_path / "used" / "file").exists()
    monkeypatch.setattr(folder, "make_folder", refuses)
    with (
        pytest.raises(UserError, match=r"cannot make .*No space left on device; name another with --run"),
        folder.hold_run_folder(tmp_path / "third"),
    ):
        pass


def test_an_earlier_dry_run_is_removed_but_for_the_lock(tmp_path):
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    for name in ("metrics.jsonl", f"{folder.LOCK}", f"{folder.LOCK}.more"):
        (tmp_path / name).touch()
    folder.empty_run_folder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {folder.LOCK, f"{folder.LOCK}.more"}


def evaluation(random=(), **tasks):
    sets = [SimpleNamespace(tasks=tasks)] if tasks else []
    return SimpleNamespace(random=random, sets=sets)


def finished(place: Path, *scores: dict | None, **flags):
    """Make a run folder with evaluations at steps 0, 1 ...; None: a row without one. Return its config."""
    (place / "export").mkdir(parents=True)
    (place / "export" / "model.safetensors").write_bytes(b"weights")
    rows = [{"step": step} | ({} if one is None else {"evaluation": one}) for step, one in enumerate(scores)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_config(None, {"folder": str(place)} | flags)


def test_a_summary_that_cannot_be_written_says_what_to_do(tmp_path, monkeypatch):
    config = finished(tmp_path / "run", {"heldout_mlm_loss": 3.0})
    monkeypatch.setattr(summary, "replace_durably", refuses)
    with pytest.raises(
        UserError, match=r"cannot write \S+summary.json: No space left on device. Make room, then"
    ):
        summary.report(config, Progress(step=1), {}, evaluation())


def test_the_table_has_what_was_evaluated_at_the_end_and_a_dash_for_what_was_not(tmp_path, capsys):
    before, best = {"heldout_mlm_loss": 9.0, "partner_found": 0.5}, {"heldout_mlm_loss": 2.25}
    last = {
        "heldout_mlm_loss": 2.5,
        "partner_found": 0.8125,
        "partner_among": 1024.0,
        "mine": 44.444,
        "own": 1.0,
    }
    config = finished(
        tmp_path / "run",
        before,
        best,
        None,
        last,
        **{"objective.mlm.later_rates": "{4: 0.3}", "train.steps": "900"},
    )
    progress = Progress(
        step=3, best_step=1, best_by="heldout_mlm_loss", best_score=-2.25, tokens=5_600_000, seconds=3700
    )
    summary.report(
        config, progress, {"shards": {"sha256": "abc"}}, evaluation(("heldout_mlm_loss",), mine="accuracy")
    )
    said = capsys.readouterr().out
    lines = {line[2:54].rstrip(): line[54:].split() for line in said.splitlines() if line.startswith("  ")}
    rate = f"{config.heldout_rate:.3g}"
    assert lines[f"held-out MLM loss at {rate} (nats)"] == ["random", "2.25", "2.50"]
    assert lines["top-1 retrieval of the other view (1,024 candidates)"] == ["50.0%", "-", "81.2%"]
    assert lines["mine (accuracy x 100)"] == ["-", "-", "44.44"] and "own" not in said
    assert "3 steps, 5.6M tokens in 01:01:40" in said and "use its export/: clearly sts" in said
    assert "stopped early" not in said and "the start was the best" not in said
    content = json.loads((tmp_path / "run" / "report" / "summary.json").read_text())
    assert content["random_at_start"] == ["heldout_mlm_loss"] and content["inputs"] == {"shards": "abc"}
    assert content["start"] == before and content["best"] == best and content["trained"] == last
    assert content["labels"]["mine"] == "mine (accuracy x 100)"


def test_without_metrics_there_is_a_summary_without_scores(tmp_path, capsys):
    config = finished(tmp_path / "run")
    (tmp_path / "run" / "best").mkdir()
    summary.report(config, Progress(step=0, best_by="mine"), {}, evaluation(mine="spearman"))
    said = capsys.readouterr().out
    assert "the start was the best by mine (spearman x 100): training has not improved it" in said
    assert "use its best/, step 0 (highest mine (spearman x 100))" in said
    content = json.loads((tmp_path / "run" / "report" / "summary.json").read_text())
    assert content["start"] == content["best"] == content["trained"] == {}


@pytest.mark.parametrize("steps, unimproved, early", [(5, 3, True), (5, 2, False), (9, 3, False)])
def test_a_run_that_lost_patience_before_its_last_step_has_stopped_early(
    tmp_path, capsys, steps, unimproved, early
):
    config = finished(
        tmp_path / "run",
        {"stsb-dev": 70.0},
        **{"train.steps": "9", "train.patience": "3", "train.warmup_steps": "1"},
    )
    progress = Progress(step=steps, best_step=2, best_by="stsb-dev", unimproved=unimproved)
    summary.report(config, progress, {}, evaluation())
    said = capsys.readouterr().out
    assert ("stopped early" in said) == early
    assert json.loads((tmp_path / "run" / "report" / "summary.json").read_text())["stopped_early"] == early
    if early:
        assert f"after step 5 of 9: the last {unimproved} evaluations were no better by STS-B dev" in said


def test_a_dry_run_counts_the_steps_that_the_whole_batch_would_take():
    rows = [{"step": 0, "evaluation": {}}, {"step": 1, "loss": {}, "seconds": 3.0, "tokens": 10}]
    last = {
        "step": 2,
        "loss": {},
        "seconds": 5.0,
        "tokens": 4010,
        "memory": {"peak_gb": 9.0, "gpu_peak_gb": 1.25},
    }
    assert folder.whole_run([*rows, last], 1000, 1, 700.5) == [
        "  whole run: 1,000 steps of 2.00 s at the full batch, 2k tokens/s, are 23:21, without evaluations "
        "and checkpoints",
        "  GPU memory: 1.2 GB per rank at the peak, 1.2 GB for 1 rank; other machines: clearly plan",
    ]
    (alone,) = folder.whole_run([last | {"memory": {}}], 10, 3, 10.0)
    assert alone.startswith("  whole run: 10 steps of 5.00 s, 802 tokens/s, are 00:50,")


def test_a_dry_run_tries_the_whole_step_and_leaves_nothing_out():
    flags = {
        "train.batch_warmup_steps": "9",
        "train.batch_start": "16",
        "train.global_batch": "32",
        "data.lanes": "8",
    }
    flags |= {
        "train.faults.skip": "3",
        "train.faults.jump": "5-7",
        "objective.start_step": "50",
        "evaluate.partners": "900",
    }
    flags |= {
        "objective.warmup_steps": "20",
        "track": "tensorboard,wandb",
        "checkpoint.resume": "auto",
        "folder": "a/run",
    }
    flags |= {"evaluate.heldout_sequences": "50", "evaluate.partners": "900", "model.dropout": "0.3"}
    found = folder.dry_run_config(load_config(None, flags))
    assert found.run_folder == Path("a/run.dry-run") and tuple(found.track) == ("tensorboard",)
    assert (found.train.batch_warmup_steps, found.train.batch_start, found.train.global_batch) == (
        0,
        None,
        32,
    )
    assert (found.train.log_every, found.train.faults.skip, found.train.faults.rollbacks) == (1, 0, 0)
    assert not found.train.faults.jump and (found.objective.start_step, found.objective.warmup_steps) == (
        0,
        0,
    )
    assert (found.evaluate.every, found.evaluate.heldout_sequences, found.evaluate.partners) == (2, 50, 200)
    assert (found.checkpoint.every, found.checkpoint.resume, found.model.dropout) == (2, "never", 0.3)
    assert "attention_dropout" not in found.model.model_fields_set, "what was not given is not"
