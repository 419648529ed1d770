"""Checkpoints: exact at any world size and ZeRO stage, whole whenever the writer dies, refused when
damaged."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from checkpoint_helpers import PlainEngine, save
from run_helpers import finish, fork, start, status_of

from pretrain.checkpoint import store
from pretrain.checkpoint.folder_writer import Retention
from pretrain.checkpoint.saver import Saver

WORKER = Path(__file__).with_name("checkpoint_worker.py")
DEVICE = "cpu"  # or cuda, where each rank has a GPU
ROOT = Path(__file__).parents[3]


def launch(world_size: int, folder: Path, name: str, actions: list) -> list[subprocess.Popen]:
    scenario = folder / f"{name}.json"
    scenario.write_text(json.dumps({"actions": actions, "out": str(folder / name)}))
    return start([str(WORKER), str(scenario), DEVICE], world_size, DS_ACCELERATOR=DEVICE)


def results_of(ranks: list[subprocess.Popen], folder: Path, name: str) -> list[dict]:
    finish(ranks, timeout=300)
    return [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(len(ranks))]


@pytest.fixture(scope="module")
def launches(tmp_path_factory) -> dict[str, list[dict]]:
    """Three launches for everything: one rank, two ranks (which also read what one rank saved), one rank
    again."""
    folder = tmp_path_factory.mktemp("checkpoints")
    one, two = str(folder / "one"), str(folder / "two")
    Path(one).mkdir()
    Path(two).mkdir()
    first = [
        ["straight_and_resumed", {"root": one, "stages": [0, 1, 2, 3]}],
        ["cross", {"root": one, "pairs": [[1, 3], [3, 0], [0, 2]]}],
        ["before_first_step", {"root": one, "stages": [0, 1, 3]}],
        ["other_model", {"root": one, "stage": 1}],
    ]
    second = [
        ["straight_and_resumed", {"root": two, "stages": [0, 1, 2, 3]}],
        ["cross", {"root": two, "pairs": [[1, 3], [3, 0], [2, 1]]}],
        ["before_first_step", {"root": two, "stages": [2, 3]}],
        ["out_of_disk", {"root": two}],
        ["out_of_disk_in_the_background", {"root": two + "/background"}],
        ["cross", {"root": one, "pairs": [[0, 1], [1, 1], [1, 3], [3, 3]]}],
    ]
    third = [["cross", {"root": two, "pairs": [[1, 1], [3, 0], [2, 3]]}]]
    results = {}
    for name, world_size, actions in [("first", 1, first), ("second", 2, second), ("third", 1, third)]:
        results[name] = results_of(launch(world_size, folder, name, actions), folder, name)
    return results


@pytest.mark.full
@pytest.mark.parametrize("name", ["first", "second"])
def test_resumed_run_is_bitwise_the_uninterrupted_one(launches, name):
    for rank in launches[name]:
        for stage in range(4):
            result = rank[f"same {stage}"]
            assert result == {
                "changed by saving": [], "named too early": False, "load": [], "end": [], "losses": True,
                "step": True,
            }, stage  # fmt: skip


@pytest.mark.parametrize("name", ["first", "second", "third"])
def test_other_world_sizes_and_stages_load_exactly(launches, name):
    for rank in launches[name]:
        crossed = {pair: result for pair, result in rank.items() if "->" in pair}
        assert len(crossed) >= 3
        for pair, result in crossed.items():
            assert result["load"] == [], pair
            assert result["losses"] < 1e-6 and result["end"] < 1e-6, (pair, result)


@pytest.mark.parametrize("name", ["first", "second"])
def test_checkpoint_before_the_first_step_means_no_optimizer_state(launches, name):
    for rank in launches[name]:
        fresh = {key: result for key, result in rank.items() if key.startswith("fresh")}
        assert fresh
        for key, result in fresh.items():
            assert result["losses"] is True, key
            assert [n for n in result["end"] if "unused" not in n] == [], key


def test_a_checkpoint_of_another_model_is_refused_with_the_differences(launches):
    for name, difference in (
        ("width", "embeddings.weight is (11, 13) in the checkpoint, (11, 12) in the model"),
        ("width", "norm.running_mean is (13,) in the checkpoint, (12,) in the model"),
        ("new buffer", "queue is not in the checkpoint, (3,) in the model"),
        ("no buffer", "queue is (3,) in the checkpoint, not in the model"),
    ):
        message = launches["first"][0][f"other model: {name}"]
        assert difference in message and "config.yaml" in message


def test_out_of_disk_is_said_on_every_rank_and_leaves_the_last_checkpoint(launches):
    for rank in launches["second"]:
        result = rank["out of disk"]
        assert (
            "No space left on device" in result["message"]
            and "step-00000001 is untouched" in result["message"]
        )
        assert result["left"] == ["latest", "step-00000001"]
        assert result["good"] is True
        assert result["again"] == ["latest", "step-00000002"]


def test_out_of_disk_in_the_background_is_said_on_every_rank_when_it_is_asked(launches):
    for rank in launches["second"]:
        told = rank["in the background"]
        assert told["failed"] is True and told["losses"] == 2
        assert "No space left on device" in told["message 0"] and "step-00000001 is" in told["message 0"]
        assert told["left"] == ["latest", "step-00000001"]
        assert "message 1" not in told, "an error is told once"
        assert told["again"] == ["latest", "step-00000003"]


def test_only_safe_formats_and_the_layout_documented(saved):
    names = {path.name for path in (saved / "step-00000003").iterdir()}
    assert names == {
        "parameters-00000.safetensors", "exp_avg-00000.safetensors", "exp_avg_sq-00000.safetensors",
        "state.json", "manifest.json",
    }  # fmt: skip
    assert (saved / "latest").read_text() == "step-00000003\n"
    assert store.read_state(saved / "step-00000003") == {"step": 3, "best": 0.1 + 0.2}
    assert list(store.locate(saved / "step-00000003", "parameters")) == ["bias", "weight"]


def test_keeps_the_newest_and_what_is_of_later_steps(saved):
    engine = PlainEngine()
    state = store.load(saved / "step-00000001", engine)
    engine.step()
    save(saved, engine, {"step": state["step"] + 1}, keep=1)
    assert sorted(p.name for p in saved.iterdir()) == ["latest", "step-00000002", "step-00000003"]
    assert (saved / "latest").read_text() == "step-00000002\n"


def test_saving_a_step_again_replaces_it(saved):
    engine = PlainEngine()
    store.load(saved / "step-00000003", engine)
    with torch.no_grad():
        engine.module.bias.fill_(7)
    save(saved, engine, {"step": 3}, keep=3)
    assert sorted(p.name for p in saved.iterdir()) == [
        "latest",
        "step-00000001",
        "step-00000002",
        "step-00000003",
    ]
    other = PlainEngine()
    store.load(store.latest(saved), other)
    assert other.module.bias.tolist() == [7.0] * 3


@pytest.mark.parametrize("background", [False, True])
def test_real_write_failure_leaves_nothing_half(saved, background):
    """A real EFBIG of the operating system, in a child so that the limit stays there."""

    def write() -> None:
        engine = PlainEngine(60)
        engine.step()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
        saver = Saver(engine)
        with pytest.raises(store.CheckpointError, match=r"File too large.* step-00000003 is untouched"):
            saver.save(saved, {"step": 9}, Retention(1), background)
            saver.wait()

    assert status_of(fork(write)) == 0
    assert sorted(p.name for p in saved.iterdir()) == ["latest"] + [f"step-0000000{i}" for i in (1, 2, 3)]
    assert store.latest(saved) == saved / "step-00000003"


def test_disk_that_is_too_small_is_seen_before_writing(saved, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(store.CheckpointError, match=r"are needed and 0\.00 GB are free"):
        save(saved, PlainEngine(), {"step": 9}, keep=1)
    assert store.latest(saved) == saved / "step-00000003"


@pytest.mark.full
def test_killed_at_random_moments_inside_saves(tmp_path):
    """kill -9 a saving process, again and again, in the same folder: there is always a whole checkpoint to go
    on from, never older than the last one whose step was printed."""
    generator = random.Random(5)
    seen, seconds = 0, 0.05  # seconds of a save: of those seen last, because a busy machine takes longer
    for _ in range(30):
        child_out, child_in = os.pipe()
        child = fork(lambda pipe=child_in: _save_until_killed(tmp_path, pipe))
        os.close(child_in)
        with os.fdopen(child_out) as lines:
            assert lines.readline() == "ready\n"
            started = time.monotonic()
            printed = [int(lines.readline()) for _ in range(generator.randrange(3))]
            if printed:
                seconds = (time.monotonic() - started) / len(printed)
            time.sleep(generator.uniform(0, seconds))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            printed += [int(line) for line in lines.read().splitlines()]
        seen = max([seen, *printed])
        path = store.latest(tmp_path)
        step = 0 if path is None else store.read_state(path)["step"]
        assert step >= seen, "a printed checkpoint was lost"
        if path is not None:
            engine = PlainEngine()
            assert store.load(path, engine)["step"] == engine.global_steps == step
    assert seen > 10
    whole = [path.name for path in tmp_path.iterdir() if path.name.startswith("step-")]
    assert all(store.problem_with(tmp_path / name) is None for name in whole)


def _save_until_killed(root: Path, pipe: int) -> None:
    engine = PlainEngine()
    start = store.latest(root)
    step = 0 if start is None else store.load(start, engine)["step"]
    os.write(pipe, b"ready\n")
    while True:
        engine.step()
        step += 1
        save(root, engine, {"step": step}, keep=2, max_file_bytes=40)
        os.write(pipe, f"{step}\n".encode())


@pytest.mark.slow
def test_deepspeed_process_killed_inside_saves(tmp_path):
    for attempt in range(6):
        rank = launch(1, tmp_path, f"kill{attempt}", [["save_forever", {"root": str(tmp_path / "run")}]])[0]
        while rank.stdout.readline() != "ready\n":
            assert rank.poll() is None
        time.sleep(random.Random(attempt).uniform(0.05, 0.4))
        rank.kill()
        printed = [int(line) for line in rank.communicate()[0].splitlines() if line.isdigit()]
        assert store.read_state(store.latest(tmp_path / "run"))["step"] >= max(printed, default=0)
