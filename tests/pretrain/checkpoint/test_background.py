"""Checkpoints that are written while training goes on: order, kills at every operation, what stays."""

import itertools
import os
import random
import shutil
import signal
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from checkpoint_helpers import PlainEngine, save
from run_helpers import command, fork, outputs_of, records, start, status_of, wait_for
from safetensors.torch import save_file
from test_checkpoint import launch, results_of

from pretrain.checkpoint import store
from pretrain.checkpoint.engine_state import engine_state
from pretrain.checkpoint.folder_writer import Retention, TensorFileWriter
from pretrain.checkpoint.saver import Saver, items_of
from pretrain.checkpoint.store import TensorReader
from pretrain.common import files
from pretrain.config.recipe import validate_config
from pretrain.start.checkpoints import Checkpoints
from pretrain.step.progress import Progress


@pytest.fixture
def disk(monkeypatch):
    """A disk on which nothing becomes durable before the event is set."""
    goes, fsync = threading.Event(), os.fsync

    def waiting(descriptor):
        assert goes.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", waiting)
    yield goes
    goes.set()


def test_steps_do_not_change_what_is_being_saved(tmp_path, disk):
    engine = PlainEngine(40)
    engine.step()
    expected = engine.module.weight.detach().clone()
    saver = Saver(engine)
    path = saver.save(tmp_path, {"step": 1}, Retention(1))
    engine.step()
    assert saver.in_flight and not path.exists() and not engine.module.weight.equal(expected)
    disk.set()
    saver.wait()
    other = PlainEngine(40)
    assert store.load(path, other) == {"step": 1} and other.module.weight.equal(expected)
    engine.step()
    saver.save(tmp_path, {"step": 3}, Retention(2))  # into the same memory
    saver.wait()
    store.load(path, other)
    assert other.module.weight.equal(expected)


def test_the_engines_counters_go_on_where_they_were(tmp_path):
    engine, other = PlainEngine(), PlainEngine()
    for _ in range(3):
        engine.step()
    engine.skipped_steps, other.skipped_steps = 2, 0
    path = save(tmp_path, engine, {"step": 5}, keep=1)
    store.load(path, other)
    assert (other.global_steps, other.skipped_steps) == (3, 2)


def test_a_save_waits_for_the_one_before(tmp_path, disk):
    engine = PlainEngine()
    saver = Saver(engine)
    saver.save(tmp_path, {"step": 1}, Retention(2))
    second = threading.Thread(target=saver.save, args=(tmp_path, {"step": 2}, Retention(2)))
    second.start()
    second.join(0.2)
    assert second.is_alive() and not list(tmp_path.glob(".tmp-step-00000002"))
    disk.set()
    second.join()
    saver.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000001", "step-00000002"]


@pytest.fixture
def alone():
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def run_of(folder: Path, **checkpoint) -> tuple[Checkpoints, PlainEngine]:
    engine = PlainEngine()
    engine.module.objective = SimpleNamespace(kept_head_name=None)
    config = validate_config({"folder": str(folder), "checkpoint": checkpoint}, "test")
    return Checkpoints(config, engine, {"tokenizer": {"sha256": "0"}}), engine


def test_a_run_says_that_it_waited(tmp_path, alone, disk, monkeypatch):
    checkpoints, _ = run_of(tmp_path)

    def wait_for_the_disk(wait=checkpoints.wait) -> None:  # which goes on when it is waited for, not before
        threading.Timer(0.2, disk.set).start()
        wait()

    monkeypatch.setattr(checkpoints, "wait", wait_for_the_disk)
    said: list[str] = []
    with closing(checkpoints):
        checkpoints.save_progress(Progress(step=1), say=said.append)
        assert not said
        last = checkpoints.save_progress(Progress(step=2), wait=True, say=said.append)
        assert store.problem_with(last) is None
    (text,) = said
    assert "for the checkpoint before to be written" in text and float(text.split()[1]) >= 0.1


def test_without_room_in_memory_training_waits_and_a_run_says_so_once(tmp_path, alone, monkeypatch):
    monkeypatch.setattr("pretrain.checkpoint.saver.free_memory", lambda: 50)
    checkpoints, _ = run_of(tmp_path)
    said: list[str] = []
    for step in (1, 2):
        path = checkpoints.save_progress(Progress(step=step), say=said.append)
        assert store.problem_with(path) is None
    assert len(said) == 1 and "memory has no room" in said[0]


def test_copies_of_all_ranks_of_a_machine_must_fit(tmp_path, monkeypatch):
    engine = PlainEngine(40)
    copies = sum(4 * parameter.numel() for parameter in engine.module.parameters())
    monkeypatch.setattr("pretrain.checkpoint.saver.free_memory", lambda: 2 * copies)
    for ranks in (1, 2):
        monkeypatch.setattr("pretrain.checkpoint.saver.ranks_here", lambda ranks=ranks: ranks)
        saver = Saver(engine)
        saver.save(tmp_path, {"step": ranks}, Retention(1))
        saver.wait()
        assert saver.has_room == (ranks == 1)


@pytest.mark.parametrize(("own", "other"), [(True, True), (True, False), (False, True)])
def test_where_one_rank_lacks_room_no_rank_copies(own, other, monkeypatch):
    monkeypatch.setattr("pretrain.checkpoint.saver.free_memory", lambda: 1e9 if own else 50)
    monkeypatch.setattr("pretrain.checkpoint.saver.gathered", lambda fits, group: [fits, other])
    engine = PlainEngine(40)
    saver = Saver(engine)
    room = saver._find_room(items_of(engine_state(engine), 0, 1))
    assert room == saver.has_room == (own and other)


def test_copies_are_made_where_the_system_does_not_say_what_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr("pretrain.checkpoint.saver.free_memory", lambda: 0)
    saver = Saver(PlainEngine(40))
    saver.save(tmp_path, {"step": 1}, Retention(1))
    saver.wait()
    assert saver.has_room


def test_a_run_keeps_the_newest_each_nth_the_best_and_the_branch_point(tmp_path, alone):
    checkpoints, _ = run_of(tmp_path, every=1, keep=2, keep_every=4, keep_best=True)
    with closing(checkpoints):
        for step in range(1, 12):
            checkpoints.save_progress(Progress(step=step, best_step=min(step, 6)))
    assert {path.name for path in (tmp_path / "checkpoints").glob("step-*")} == {
        f"step-{step:08d}" for step in (4, 6, 8, 10, 11)
    }


@pytest.mark.parametrize("seed", range(3))
def test_what_stays_is_what_the_rules_say(tmp_path, seed):
    generator = random.Random(seed)
    newest, every = generator.randint(1, 4), generator.choice([0, 2, 3])
    beside = frozenset(generator.sample(range(1, 13), 2))
    saver = Saver(PlainEngine())
    for step in range(1, 13):
        saver.save(tmp_path, {"step": step}, Retention(newest, every, beside))
    saver.wait()
    spared = {step for step in range(1, 12) if step in beside or (every and step % every == 0)}
    others = [step for step in range(1, 12) if step not in spared]
    expected = {12} | spared | set(others[len(others) - (newest - 1) :])
    assert {int(path.name[5:]) for path in tmp_path.glob("step-*")} == expected


@pytest.mark.parametrize("every", [0, 4])
def test_keeping_steps_without_a_checkpoint_is_refused(every):
    with pytest.raises(Exception, match=r"checkpoint\.keep_every must be a multiple"):
        validate_config({"checkpoint": {"every": every, "keep_every": 6}}, "test")


# -- kills ---------------------------------------------------------------------

OPERATIONS = [
    (os, "fsync"), (os, "rename"), (os, "replace"), (os, "mkdir"), (shutil, "rmtree"), (os, "unlink"),
    (TensorFileWriter, "_put"), (TensorFileWriter, "close"), (files, "write_durably"),
]  # fmt: skip


@pytest.mark.full
def test_a_kill_before_every_operation_leaves_a_whole_checkpoint(tmp_path):
    """Step 2 over step 1, with one to keep: killed before its first operation, its second, and so on."""
    left = []
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        status = status_of(fork(lambda folder=folder, number=number: _save_and_die(folder, number)))
        engine, whole = PlainEngine(), PlainEngine()
        path = store.latest(folder)
        step = store.load(path, engine)["step"]
        for _ in range(step):
            whole.step()
        for engine_ in (engine, whole):
            while engine_.global_steps < 4:
                engine_.step()
        assert engine.module.weight.equal(whole.module.weight), number
        assert all(store.problem_with(there) is None for there in folder.glob("step-*"))
        left.append(step)
        # what a kill leaves does not keep the next save from its place, and goes with it
        save(folder, whole, {"step": 5}, keep=1)
        assert sorted(there.name for there in folder.iterdir()) == ["latest", "step-00000005"]
        if status == 0:
            break
    assert left == sorted(left) and len(left) > 20 and set(left) == {1, 2}


def _save_and_die(folder: Path, number: int) -> None:
    engine = PlainEngine()
    engine.step()
    saver = Saver(engine)
    saver.save(folder, {"step": 1}, Retention(1))
    saver.wait()
    calls = itertools.count(1)

    def counted(call):
        def first_asks(*arguments, **options):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return first_asks

    for owner, name in OPERATIONS:
        setattr(owner, name, counted(getattr(owner, name)))
    engine.step()
    saver.save(folder, {"step": 2}, Retention(1))
    engine.step()
    saver.wait()


KILLS = {
    "os.fsync": (1, 3),  # while it writes its part
    "TensorFileWriter.write": (0, 3),
    "os.rename": (0, 3),  # all is written, the folder has not got its name
    "os.rename 2": (0, 6),  # it has, and `latest` does not name it yet
}


@pytest.mark.full
def test_one_of_two_ranks_killed_at_any_stage_and_resumed_is_bitwise_the_unbroken_run(tmp_path):
    for place, (rank, step) in KILLS.items():
        root = tmp_path / place
        ranks = launch(2, tmp_path, "run", [["killed", {"root": str(root), "at": place, "rank": rank}]])
        try:
            assert ranks[rank].wait(120) == -signal.SIGKILL
        finally:
            for one in ranks:  # as a launcher does
                one.kill()
        outputs_of(ranks, 60)
        assert store.latest(root).name == f"step-{step:08d}", place
    actions = [["after_kills", {"root": str(tmp_path), "kills": list(KILLS)}]]
    for result in results_of(launch(2, tmp_path, "after", actions), tmp_path, "after"):
        assert result == {
            place: {"step": step, "end": [], "losses": True} for place, (_, step) in KILLS.items()
        }


@pytest.mark.full
def test_a_run_whose_checkpoint_cannot_be_written_ends_before_the_next_is_due(tiny_data, tmp_path):
    """The folder of checkpoints is exchanged for a file: an error of the operating system, as a full disk."""
    run, every = tmp_path / "run", 50
    flags = {"train__steps": 100_000, "checkpoint__every": every, "evaluate__every": 0}
    flags |= {"checkpoint__keep": 999}  # none goes while it is looked at
    ranks = start(command(tiny_data, run, **flags), ranks=2)
    checkpoints = run / "checkpoints"
    wait_for(lambda: store.latest(checkpoints) is not None, ranks)
    good = store.latest(checkpoints)
    (run / "elsewhere").touch()
    files.exchange(checkpoints, run / "elsewhere")
    outputs = outputs_of(ranks, 240)
    assert [rank.returncode for rank in ranks] == [2, 2], outputs
    told = "".join(outputs)
    assert "error: could not write checkpoint" in told and "Traceback" not in told
    steps = [row["step"] for row in records(run)]
    assert steps[-1] % every, "it ended where the next was due"
    assert store.problem_with(run / "elsewhere" / good.name) is None


# -- reading -------------------------------------------------------------------


def test_elements_are_those_of_the_flattened_tensor(tmp_path):
    generator = random.Random(0)
    tensors = {
        str(shape): torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
        for shape in [(7,), (5, 3), (2, 3, 4), (1, 9), (0, 4), ()]
    }
    save_file(tensors, tmp_path / "file.safetensors")
    reader = TensorReader()
    for name, tensor in tensors.items():
        flat = tensor.reshape(-1)
        for _ in range(30):
            first, last = sorted(generator.randrange(flat.numel() + 1) for _ in range(2))
            found = reader.elements(tmp_path / "file.safetensors", name, slice(first, last))
            assert found.equal(flat[first:last]), (name, first, last)
