"""One rank a core for the plain commands: who decides, the same batches, one error, and one end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from run_helpers import ROOT, command, curve, finish, free_port, outputs_of, start, start_rank, wait_for

from pretrain.common.cores import usable_cores
from pretrain.common.memory import processes_that_fit
from pretrain.config.recipe import load_config
from pretrain.start import local_ranks

LAUNCHERS = ("WORLD_SIZE", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS", local_ranks.LOCAL_RANKS)
LAUNCH = ["python", "-u", "-m", "deepspeed.launcher.launch", "--world_info=e30=", "pretrain/main.py"]


def choose(monkeypatch, environment=None, cores=8, memory=64, ancestors=(), **overrides) -> int:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in (environment or {}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(local_ranks, "usable_cores", lambda: cores)
    monkeypatch.setattr(local_ranks, "_fitting_memory", lambda config: memory)
    monkeypatch.setattr(local_ranks, "_launcher_commands", lambda: list(ancestors))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    flags = {"data.lanes": "24", "train.global_batch": "192"}
    return local_ranks.choose_ranks(load_config(None, flags | overrides))


def test_nobody_has_chosen_so_every_core_gets_a_rank_with_a_lane(monkeypatch):
    assert choose(monkeypatch) == 8
    assert choose(monkeypatch, cores=7) == 7
    assert choose(monkeypatch, cores=60) == 24
    assert choose(monkeypatch, cores=1) == 1
    assert choose(monkeypatch, memory=3) == 3
    assert choose(monkeypatch, memory=0) == 1
    one_for_each_of_two_nodes = {"WORLD_SIZE": "2"}
    assert choose(monkeypatch, one_for_each_of_two_nodes, ancestors=[LAUNCH, ["deepspeed"]]) == 4


@pytest.mark.parametrize(
    "environment,ancestors,overrides",
    [
        ({}, (), {"train.threads": "3"}),
        ({"OMP_NUM_THREADS": "4"}, (), {}),
        ({"WORLD_SIZE": "1"}, (), {}),
        ({"WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "7"}, (), {}),
        ({"WORLD_SIZE": "1"}, (LAUNCH, ["deepspeed", "--num_gpus", "1"]), {}),
        ({"WORLD_SIZE": "1"}, (LAUNCH, ["deepspeed", "--num_accelerators=1"]), {}),
        ({"WORLD_SIZE": "8", local_ranks.LOCAL_RANKS: "8"}, (), {}),
        ({}, (), {"objective.scope": "local"}),
    ],
)
def test_what_the_user_has_chosen_stays(monkeypatch, environment, ancestors, overrides):
    assert choose(monkeypatch, environment, ancestors=ancestors, **overrides) == 1


@pytest.mark.full
def test_the_launcher_is_read_from_the_process_tree(tmp_path):
    """The words before the script decide; the script's own may be anything."""
    (tmp_path / "deepspeed").write_text(
        "import subprocess, sys; subprocess.run([sys.executable, 'main.py', '--num_gpus', '3'], check=True)"
    )
    (tmp_path / "main.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pretrain.start.local_ranks import _launcher_commands as words\n"
        "print([command[1:] for command in words()])"
    )

    def shown(*flags: str) -> str:
        starter = [sys.executable, "deepspeed", *flags, "main.py", "--num_gpus", "3"]
        return subprocess.run(starter, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert shown() == "[['deepspeed']]\n"
    assert shown("--num_gpus", "2") == "[['deepspeed', '--num_gpus', '2']]\n"


needs_cores = pytest.mark.skipif(usable_cores() < 2, reason="this machine has one core")
SHARED_MEMORY = Path("/dev/shm")


def plain(words: list[str], **more) -> subprocess.Popen:
    left_out = {"OMP_NUM_THREADS", "CLEAR_DATA"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **more,
    )


@pytest.mark.full
@needs_cores
def test_the_plain_command_runs_a_rank_a_core_and_learns_the_same(tiny_data, tmp_path):
    if processes_that_fit(0, 3 << 30) < usable_cores():
        pytest.skip("other processes have the memory that a rank for each core needs")
    more = {"model__dropout": 0, "model__attention_dropout": 0}
    output = finish([plain(command(tiny_data, tmp_path / "many", train__threads=None, **more))])
    ranks = max(n for n in range(1, usable_cores() + 1) if 4 % n == 0)
    assert f"{ranks} x CPU, threads per rank: 1; " in output and "one rank per core" in output
    finish(start(command(tiny_data, tmp_path / "one", **more)))
    many, one = curve(tmp_path / "many"), curve(tmp_path / "one")
    assert many.keys() == one.keys()
    for step, row in one.items():
        assert many[step].get("tokens") == row.get("tokens")
        for name, value in row.get("loss", {}).items():
            assert many[step]["loss"][name] == pytest.approx(value, rel=1e-4)


@pytest.mark.full
@needs_cores
def test_a_run_of_several_ranks_leaves_nothing_in_shared_memory(tiny_data, tmp_path):
    """What lies there is memory until the machine starts anew; DeepSpeed's all-reduce left 66 MiB a rank."""
    port = free_port()
    words = command(tiny_data, tmp_path / "run", train__steps=2)
    finish([start_rank(words, rank, 2, port) for rank in range(2)])
    assert not list(SHARED_MEMORY.glob(f"*_{port}_*"))


@pytest.mark.full
@needs_cores
def test_an_error_that_all_ranks_meet_is_printed_once(tiny_data, tmp_path):
    wrong = plain([*command(tiny_data, tmp_path / "wrong", train__threads=None), "--init", "nowhere/at/all"])
    output, _ = wrong.communicate()
    assert wrong.returncode == 2 and output.count("error:") == 1, output


@pytest.mark.slow
@needs_cores
def test_what_ranks_meet_after_they_have_met_is_printed_once(tiny_data, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    for folder in (run, other):
        finish(start(command(tiny_data, folder, train__steps=2)))
    elsewhere = other / "checkpoints" / "step-00000002"
    for more, said in (
        ({}, "already holds a run"),
        ({"checkpoint__resume": "auto", "train__seed": 7}, "train.seed=42, this command has 7"),
        ({"checkpoint__resume": elsewhere}, "is of another run"),
        ({"objective": f"{tmp_path}/none.py:Mine"}, "none.py"),
    ):
        words = command(tiny_data, run, train__steps=2, train__threads=None, **more)
        output = finish([plain(words)], expect=2)
        assert output.count("error:") == 1 and said in output, output


@pytest.mark.slow
@needs_cores
def test_the_ranks_end_together(tiny_data, tmp_path):
    run = tmp_path / "run"
    words = command(tiny_data, run, train__threads=None, train__steps=100_000)
    process = plain(words)
    wait_for(lambda: len(curve(run)) > 3, [process])
    others = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGTERM)  # rank 0 alone: the others are told
    (output,) = outputs_of([process], 240)
    assert process.returncode == 143 and "received SIGTERM" in output, output[-3000:]
    left = psutil.wait_procs(others, 120)[1]
    assert not left

    process = plain([*words, "--resume", "auto"])
    begun = max(curve(run))
    wait_for(lambda: max(curve(run)) > begun, [process])
    others = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    left = psutil.wait_procs(others, 120)[1]
    assert not left, "ranks outlive the first one"


def test_hardware_threads_of_a_core_count_once(monkeypatch, tmp_path):
    for number in range(8):
        (tmp_path / str(number)).write_text(f"{number % 4},{number % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr("pretrain.common.cores._SIBLINGS", str(tmp_path / "{}"))
    monkeypatch.setattr("pretrain.common.cores._QUOTA", tmp_path / "cpu.max")
    assert usable_cores() == 4
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert usable_cores() == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(9)))
    assert usable_cores() == 9, "no description of the ninth: each counts"
