"""`clearly doctor`: what it finds on this machine, and on ones where something is wrong."""

import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from run_helpers import environment

from pretrain.common.folder_lock import folder_lock
from pretrain.doctor import allocation, benchmarks, hardware, software, storage
from pretrain.doctor.findings import Finding, show


def levels(findings):
    return [finding.level for finding in findings]


@pytest.mark.full
def test_a_whole_examination_says_what_there_is_and_what_to_do(tmp_path):
    words = [
        sys.executable,
        "-m",
        "pretrain.doctor",
        "--folder",
        str(tmp_path / "runs"),
        "--data",
        str(tmp_path),
    ]
    run = subprocess.run(words, env=environment(), capture_output=True, text=True)
    assert run.returncode == 0 and "nothing here will fail" in run.stdout, run.stdout + run.stderr
    for what in (
        "software",
        "CPython",
        "torch ",
        "machine",
        "cores",
        "2 ranks meet by",
        "auto chooses",
        "GiB free",
    ):
        assert what in run.stdout, what
    assert f"no lock below {tmp_path / 'runs'}" in run.stdout and "SentEval 0 of" in run.stdout
    words[-1] = str(tmp_path / "nowhere")
    run = subprocess.run(words, env=environment(), capture_output=True, text=True)
    assert run.returncode == 1 and "WRONG" in run.stdout and "1 thing will fail" in run.stdout


def test_what_is_installed_is_compared_with_what_is_required(monkeypatch):
    here = importlib.metadata.version

    def version(name):
        if name == "deepspeed":
            raise importlib.metadata.PackageNotFoundError(name)
        return here(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["torch>=1", "numpy<1", "deepspeed>=0.1"])
    own, numpy, missing = software.packages()
    assert levels([own, numpy, missing]) == ["good", "wrong", "wrong"]
    assert "1 packages as required; torch " in own.what
    assert "<1 is needed" in numpy.what and missing.todo == "pip install 'deepspeed>=0.1'"


def test_locks_of_the_living_and_of_the_dead_are_told_apart(tmp_path):
    (tmp_path / "mine").mkdir()
    code = (
        "import sys, time; from pathlib import Path; from pretrain.common.folder_lock import folder_lock\n"
        "with folder_lock(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(600)"
    )
    (tmp_path / "left").mkdir()
    words = [sys.executable, "-c", code, str(tmp_path / "left")]
    other = subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    other.send_signal(signal.SIGKILL)
    other.wait()
    (just_left,) = storage.locks(tmp_path)
    assert "was held" in just_left.what and "is no process seen here" in just_left.what
    long_ago = time.time() - 1200
    os.utime(tmp_path / "left" / ".lock", (long_ago, long_ago))
    with folder_lock(tmp_path / "mine"):
        left, mine = storage.locks(tmp_path)
    assert left.level == "note" and f"process {other.pid}" in left.what and "20 minutes ago" in left.what
    assert mine.level == "good" and f"being written by process {os.getpid()}" in mine.what
    assert [finding.what for finding in storage.locks(tmp_path / "mine")] == [
        f"no lock below {tmp_path / 'mine'}"
    ]


def test_a_slow_or_full_disk_is_a_note_and_one_that_cannot_be_written_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_rates", lambda path: (20.0, 900.0))
    _, speed = storage.disk(tmp_path)
    assert speed.level == "note" and "writes 20 MiB/s" in speed.what and "faster disk" in speed.todo
    monkeypatch.undo()
    (found,) = storage.disk(Path("/proc/nothing"))
    assert found.level == "wrong" and "/proc/nothing cannot be written" in found.what and found.todo
    assert "cannot be written" in storage.disk(Path("/etc/hosts"))[0].what  # a file


def test_a_folder_that_is_not_there_is_not_made(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_rates", lambda path: (900.0, 900.0))
    assert storage.disk(tmp_path / "runs" / "a")[0].what.startswith(str(tmp_path))
    assert not (tmp_path / "runs").exists()


def test_tasks_look_for_each_others_files(tmp_path):
    slurm = {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
    code = (
        "import os, sys; from pathlib import Path; from pretrain.doctor import storage\n"
        "print(storage.visibility(Path(sys.argv[1]), dict(os.environ), float(sys.argv[2]))[0].what)"
    )
    apart = [tmp_path / "a", tmp_path / "b"]
    for places, seconds, expected in (([tmp_path] * 2, 120, "is seen by"), (apart, 3, "does not see")):
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(place), str(seconds)],
                env=environment() | slurm | {"SLURM_PROCID": str(number)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for number, place in enumerate(places)
        ]
        for process in processes:
            assert expected in process.communicate()[0]
    assert levels(storage.visibility(tmp_path, {})) == ["note"]


JOB = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "low", "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_JOB_CPUS_PER_NODE": "16(x2),8", "SLURM_CPUS_ON_NODE": "16", "SLURM_MEM_PER_NODE": "65536",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1-3]", "SLURM_STEP_TASKS_PER_NODE": "4(x2),2",
    "SLURM_NTASKS": "10", "SLURM_PROCID": "9", "SLURM_NODEID": "2", "SLURMD_NODENAME": "n3",
}  # fmt: skip
"""What srun sets for the last of ten tasks on three nodes, the third of which is smaller."""


def test_a_job_says_which_it_is_and_what_a_task_may_use(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr(allocation, "usable_cores", lambda: 4)
    job, processors = allocation.allocation(JOB)
    assert levels([job, processors]) == ["good", "good"]
    for what in ("job 7", "partition low", "nodes n[1-3]", "task 9 of 10 of step 0", "on n3"):
        assert what in job.what
    assert "8 CPUs, 64 GiB, for 2 tasks; this one may run on 4 CPUs" in processors.what
    assert allocation.share(JOB) == 4 and allocation.share({}) is None

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    fewer = allocation.allocation(JOB)[1]
    assert fewer.level == "note" and "--cpus-per-task 4" in fewer.todo

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(128)))
    monkeypatch.setattr(allocation, "usable_cores", lambda: 64)
    more = allocation.allocation(JOB)[1]
    assert more.level == "note" and "OMP_NUM_THREADS=4" in more.todo
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert allocation.allocation(JOB)[1].level == "good"


def test_a_part_of_a_jobs_nodes_and_a_batch_script_have_what_slurm_says(monkeypatch):
    # a step on the third node alone numbers its nodes from 0
    part = JOB | {"SLURM_STEP_NODELIST": "n3", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"}
    assert allocation.share(part | {"SLURM_CPUS_ON_NODE": "8"}) == 4
    batch = {key: value for key, value in JOB.items() if "STEP" not in key} | {"SLURM_NODEID": "0"}
    assert allocation.share(batch) == 16
    assert "the batch script" in allocation.allocation(batch)[0].what


def test_outside_a_job_slurm_is_named_only_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert allocation.allocation({}) == []
    (tmp_path / "srun").touch(mode=0o755)
    (login,) = allocation.allocation({})
    assert login.level == "note" and "srun --label" in login.todo


def test_ranks_that_cannot_meet_are_wrong(monkeypatch):
    monkeypatch.setattr(hardware, "_MEET", "raise SystemExit('no such interface')")
    (finding,) = hardware.meeting()
    assert finding.level == "wrong" and "no such interface" in finding.what
    monkeypatch.setattr(hardware, "_MEET", "import time; time.sleep(60)")
    monkeypatch.setattr(hardware, "_MEETING_SECONDS", 1.0)
    (finding,) = hardware.meeting()
    assert (
        finding.level == "wrong" and "did not meet" in finding.what and "GLOO_SOCKET_IFNAME" in finding.todo
    )


def test_threads_that_are_given_away_are_noted(monkeypatch):
    monkeypatch.setattr(hardware, "usable_cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert any("OMP_NUM_THREADS is 2, of 8 cores" in finding.what for finding in hardware.processor())
    assert not any("OMP_NUM_THREADS" in finding.what for finding in hardware.processor(2))


def test_a_parser_that_is_not_there_is_wrong(monkeypatch):
    monkeypatch.setenv("CLEAR_PARSER", "/no/such/pipeline")
    (finding,) = benchmarks.parser()
    assert finding.level == "wrong" and "/no/such/pipeline" in finding.what
    monkeypatch.delenv("CLEAR_PARSER")
    assert levels(benchmarks.parser()) == ["note"]


def test_what_to_do_stands_below_a_finding():
    console = Console(record=True, width=60, highlight=False)
    show(console, Finding("note", "the disk is slow", "take another"))
    show(console, Finding("good", "all else"))
    assert console.export_text() == "  note   the disk is slow\n         -> take another\n  ok     all else\n"
