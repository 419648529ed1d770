"""Killed at any moment and resumed, a run is the run that was never killed."""

import random
import shutil
import signal
import subprocess

import pytest
from run_helpers import command, curve, finish, kill, records, reproducible_records, start, wait_for

from pretrain.checkpoint import store
from pretrain.common.shutdown import EXIT_REQUEUE


@pytest.fixture(scope="module")
def whole(tiny_data, tmp_path_factory):
    """A run that nothing interrupted."""
    run = tmp_path_factory.mktemp("whole") / "run"
    finish(start(command(tiny_data, run)))
    return run


@pytest.mark.full
@pytest.mark.parametrize("moment", ["between", "in_a_save"])
def test_killed_and_resumed_equals_uninterrupted_bitwise(tiny_data, whole, tmp_path, moment):
    run = tmp_path / "run"
    processes = start(command(tiny_data, run))
    if moment == "between":
        wait_for(lambda: any(r["step"] >= 5 for r in records(run)), processes)
    else:
        # A save in progress shows as a folder that does not have its final name yet.
        checkpoints = run / "checkpoints"
        wait_for(lambda: (checkpoints / "step-00000003").exists(), processes)
        wait_for(
            lambda: (
                any(p.is_dir() and not p.name.startswith("step-") for p in checkpoints.iterdir())
                or (checkpoints / "step-00000006").exists()
            ),
            processes,
            pause=0,
        )
    kill(processes)
    output = finish(start(command(tiny_data, run, checkpoint__resume="auto")))
    assert "resumed from" in output
    assert curve(run) == curve(whole)
    exported = [(r / "export" / "model.safetensors").read_bytes() for r in (run, whole)]
    assert exported[0] == exported[1]


FALLING = {
    "objective__mlm__rate": 0.4,
    "objective__mlm__later_rates": "{4: 0.2, 8: 0.05, 20: 0.05}",
    "objective__mlm__rate_change": "linear",
    "objective__mlm__initial_bias": "frequencies",
    "evaluate__mask_rate": 0.15,
}


def copy_at_first_checkpoint(run, copy):
    """Copy a finished run without its checkpoints after the first."""
    shutil.copytree(run, copy)
    for later in sorted((copy / "checkpoints").glob("step-*"))[1:]:
        shutil.rmtree(later)


@pytest.mark.full
def test_a_rate_of_masking_that_falls_is_resumed_bitwise_and_on_two_ranks(tiny_data, tmp_path):
    run, again, other = (tmp_path / name for name in ("run", "again", "other"))
    flags = FALLING | {"checkpoint__keep": 9, "model__attention_dropout": 0}
    said = finish(start(command(tiny_data, run, **flags)))
    assert "held-out MLM loss at 0.15 (nats)" in said
    rows = {row["step"]: row["masked_tokens"] for row in records(run) if "loss" in row}
    assert rows[1] > 1.5 * rows[5] > 2 * rows[9]
    for copy in (again, other):
        copy_at_first_checkpoint(run, copy)
    zero = flags | {"objective__mlm__initial_bias": "zero"}  # the checkpoint has the bias
    finish(start(command(tiny_data, again, **zero, checkpoint__resume="auto")))
    assert curve(again) == curve(run)
    finish(start(command(tiny_data, other, **flags, checkpoint__resume="auto"), ranks=2))
    on_two = {row["step"]: row["masked_tokens"] for row in records(other) if "loss" in row}
    assert on_two == rows
    for step, row in curve(run).items():
        if "loss" in row:
            assert curve(other)[step]["loss"] == pytest.approx(row["loss"], rel=2e-4)


GROWING = {"train__batch_warmup_steps": 6, "train__batch_start": 4, "objective__name": "esimcse"}


@pytest.mark.full
def test_a_batch_that_grows_is_resumed_bitwise_and_on_two_ranks(tiny_data, tmp_path):
    run, again, other = (tmp_path / name for name in ("run", "again", "other"))
    flags = GROWING | {"checkpoint__keep": 9, "model__attention_dropout": 0}
    said = finish(start(command(tiny_data, run, **flags)))
    assert "16 sequences per step from step 6 on, 4 at the first" in said
    sizes = [4, 4, 8, 8, 12, 12, 16, 16, 16, 16]
    rows = {row["step"]: row for row in records(run) if "loss" in row}
    assert [row["global_batch"] for row in rows.values()] == sizes
    assert all(row["sequences_per_second"] > 0 for row in rows.values())
    for copy in (again, other):
        copy_at_first_checkpoint(run, copy)  # of step 3, in the middle of the growth
    finish(start(command(tiny_data, again, **flags, checkpoint__resume="auto")))
    assert curve(again) == curve(run)
    finish(start(command(tiny_data, other, **flags, checkpoint__resume="auto"), ranks=2))
    for row in (row for row in records(other) if "loss" in row):
        expected = rows[row["step"]]
        assert (row["tokens"], row["global_batch"]) == (expected["tokens"], expected["global_batch"])
        assert row["loss"] == pytest.approx(expected["loss"], rel=2e-4)
        assert row["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=2e-3)


@pytest.mark.full
def test_muon_is_resumed_bitwise_and_on_two_ranks(tiny_data, tmp_path):
    run, again, other = (tmp_path / name for name in ("run", "again", "other"))
    flags = {"train__optimizer": "muon", "train__zero": 0, "checkpoint__keep": 9}
    finish(start(command(tiny_data, run, **flags)))
    for copy in (again, other):
        copy_at_first_checkpoint(run, copy)
    finish(start(command(tiny_data, again, **flags, checkpoint__resume="auto")))
    assert curve(again) == curve(run)
    exported = [(r / "export" / "model.safetensors").read_bytes() for r in (run, again)]
    assert exported[0] == exported[1]
    finish(start(command(tiny_data, other, **flags, checkpoint__resume="auto"), ranks=2))
    for step, row in curve(run).items():
        if "loss" in row:
            assert curve(other)[step]["loss"] == pytest.approx(row["loss"], rel=1e-3)


@pytest.mark.full
def test_rows_are_means_of_all_their_steps_and_do_not_notice_a_resume(tiny_data, whole, tmp_path):
    run = tmp_path / "run"
    flags = {"train__log_every": 4, "checkpoint__keep": 9}
    finish(start(command(tiny_data, run, **flags)))
    single = {row["step"]: row for row in records(whole) if "loss" in row}  # a row a step

    def mean(values, weights):
        return sum(value * weight for value, weight in zip(values, weights)) / sum(weights)

    rows = [row for row in records(run) if "loss" in row]
    assert [row["step"] for row in rows] == [1, 4, 8, 10]
    for before, row in zip([0, 1, 4, 8], rows):
        steps = [single[step] for step in range(before + 1, row["step"] + 1)]
        assert row["steps"] == len(steps)
        norms, masked = [step["gradient_norm"] for step in steps], [step["masked_tokens"] for step in steps]
        assert row["gradient_norm"] == pytest.approx(sum(norms) / len(norms)) and row[
            "gradient_norm_max"
        ] == max(norms)
        assert row["masked_tokens"] == pytest.approx(sum(masked) / len(masked))
        assert row["tokens"] == steps[-1]["tokens"] and row["lr"] == steps[-1]["lr"]
        for name, value in row["loss"].items():
            # a mean over masked tokens, over steps of equal size
            weights = masked if name == "mlm" else [1] * len(steps)
            assert value == pytest.approx(mean([step["loss"][name] for step in steps], weights), rel=1e-12)
        for name in ("alignment", "positive_cosine"):
            assert row[name] == pytest.approx(
                mean([step[name] for step in steps], [1] * len(steps)), rel=1e-12
            )

    again = tmp_path / "again"
    shutil.copytree(run, again)
    shutil.rmtree(again / "checkpoints" / "step-00000009")
    shutil.rmtree(again / "checkpoints" / "step-00000010")
    # from step 6, in the middle of a row
    finish(start(command(tiny_data, again, **flags, checkpoint__resume="auto")))
    assert reproducible_records(again) == reproducible_records(run)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_random_moments_again_and_again(tiny_data, whole, tmp_path, seed):
    run, rng = tmp_path / "run", random.Random(seed)
    for _ in range(4):
        processes = start(command(tiny_data, run, checkpoint__resume="auto", checkpoint__every=1))
        seen = len(records(run))
        # Killed behind its last step, a run has nothing left to write down.
        wait_for(lambda: len(records(run)) > seen or processes[0].poll() == 0, processes)  # noqa: B023 - called at once
        try:
            processes[0].wait(rng.random() * 2)
        except subprocess.TimeoutExpired:
            kill(processes)
        else:
            break
    finish(start(command(tiny_data, run, checkpoint__resume="auto", checkpoint__every=1)))
    assert curve(run) == curve(whole)


@pytest.mark.full
@pytest.mark.parametrize(
    "ranks", [pytest.param(2, marks=pytest.mark.slow), 3]
)  # of 4 lanes: 2 each; 1, 1 and 2
def test_resumes_on_more_ranks_and_another_zero_stage_with_the_same_batches(tiny_data, tmp_path, ranks):
    flags = {"model__dropout": 0, "model__attention_dropout": 0}  # another split draws other dropout masks
    run = tmp_path / "run"
    finish(start(command(tiny_data, run, **flags, checkpoint__keep=9)))
    other = tmp_path / "other"
    copy_at_first_checkpoint(run, other)
    assert store.latest(other / "checkpoints").name == "step-00000003"
    output = finish(
        start(command(tiny_data, other, **flags, checkpoint__resume="auto", train__zero=3), ranks=ranks)
    )
    assert f"{ranks} x CPU" in output and "ZeRO 3" in output
    expected, got = curve(run), curve(other)
    assert expected.keys() == got.keys()
    for step, row in expected.items():
        assert got[step].get("tokens") == row.get("tokens")  # the same sequences, maskings and views
        if "loss" in row:
            assert got[step]["loss"] == pytest.approx(row["loss"], rel=2e-4)
            assert got[step]["gradient_norm"] == pytest.approx(row["gradient_norm"], rel=2e-3)
        if "evaluation" in row:
            assert got[step]["evaluation"] == pytest.approx(row["evaluation"], rel=1e-3, abs=1e-3)


@pytest.mark.full
def test_on_two_balanced_ranks_resumed_equals_uninterrupted_bitwise(tiny_data, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    finish(start(command(tiny_data, run, checkpoint__keep=9), ranks=2))
    copy_at_first_checkpoint(run, other)
    shutil.rmtree(other / "export")
    resume = command(tiny_data, other, checkpoint__resume="auto")
    assert "resumed from" in finish(start(resume, ranks=2))
    assert curve(other) == curve(run)
    exported = [(r / "export" / "model.safetensors").read_bytes() for r in (run, other)]
    assert exported[0] == exported[1]


@pytest.mark.full
@pytest.mark.parametrize("how", ["SIGUSR1", "stop file"])
def test_leaves_at_a_step_boundary_when_asked(tiny_data, whole, tmp_path, how):
    run = tmp_path / "run"
    processes = start(command(tiny_data, run), ranks=2 if how == "SIGUSR1" else 1)
    wait_for(lambda: any(r["step"] >= 1 and "loss" in r for r in records(run)), processes)
    if how == "SIGUSR1":
        processes[1].send_signal(signal.SIGUSR1)  # one rank is enough
        output = finish(processes, expect=EXIT_REQUEUE)
    else:
        (run / "stop").touch()
        output = finish(processes)
        assert not (run / "stop").exists()
    assert "--resume auto" in output
    last = max(r["step"] for r in records(run))
    assert store.latest(run / "checkpoints").name == f"step-{last:08d}"
    if how == "stop file":
        finish(start(command(tiny_data, run, checkpoint__resume="auto")))
        assert curve(run) == curve(whole)
