"""Whether a batch job continues, by the states that a cluster reported. `scontrol` is a stand-in."""

import os
import subprocess
from pathlib import Path

import pytest

JOB = Path(__file__).parents[2] / "slurm" / "job.sh"
FIELDS = (
    "JobId=2\n   JobState={state} Reason=None Dependency=(null)\n   Requeue=1 Restarts={restarts} "
    "BatchFlag=1 Reboot=0\n"
    "   StartTime=2026-01-02T10:00:00 EndTime=Unknown\n   PreemptEligibleTime=2026-01-02T10:00:00 "
    "PreemptTime={preempted}\n"
)


def end_job(
    tmp_path,
    code=1,
    request="",
    state="RUNNING",
    restarts=0,
    preempted="None",
    before=0,
    refuses=False,
    **names,
):
    """What end_job says, its exit status, and the jobs that it asked scontrol to requeue."""
    asked = tmp_path / "asked"
    (tmp_path / "fields").write_text(FIELDS.format(state=state, restarts=restarts, preempted=preempted))
    stub = tmp_path / "scontrol"
    stub.write_text(
        f'#!/bin/sh\nif [ "$1" = requeue ]; then echo "$2" >>{asked}; exit {int(refuses)}; fi\n'
        f'echo "$3" >>{asked}.shown\ncat {tmp_path / "fields"}\n'
    )
    stub.chmod(0o755)
    script = f'say() {{ echo "$*"; }}; sleep() {{ :; }}; source {JOB}; end_job {code} "{request}" "again"'
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", **names}
    environment |= {"SLURM_RESTART_COUNT": str(before)} if before else {}
    done = subprocess.run(["bash", "-uc", script], env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr, done.returncode, asked.read_text().split() if asked.exists() else []


def test_a_task_of_an_array_requeues_itself_and_no_other(tmp_path):
    said, code, asked = end_job(tmp_path, 75, "time-limit", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3")
    assert asked == ["7_3"] and code == 75 and "requeueing 7_3 (time-limit, exit status 75)" in said
    assert set((tmp_path / "asked.shown").read_text().split()) == {"7_3"}, (
        "the array's other tasks have other states"
    )


@pytest.mark.parametrize(
    "given,words,requeued",
    [
        ({"request": "time-limit"}, "requeueing 7 (time-limit", True),
        ({"preempted": "2026-01-02T11:00:00"}, "requeueing 7 (preempted at 2026-01-02T11:00:00", True),
        # of an earlier start
        ({"preempted": "2026-01-02T09:00:00"}, "failed (exit status 1): not requeued", False),
        ({}, "failed (exit status 1): not requeued", False),
        ({"state": "COMPLETING", "request": "terminate"}, "cancelled or timed out, not requeued", False),
        ({"state": "CANCELLED"}, "not requeued", False),
        ({"state": "COMPLETING", "restarts": 1}, "Slurm has requeued the job", False),
        ({"state": "PENDING", "restarts": 1}, "Slurm has requeued the job", False),
        (
            {"state": "RUNNING", "restarts": 2, "before": 1, "request": "terminate"},
            "Slurm has requeued the job",
            False,
        ),
        ({"state": "COMPLETING", "restarts": 1, "before": 1}, "not requeued", False),
        ({"request": "time-limit", "refuses": True}, "could not requeue", True),
    ],
)
def test_a_job_is_requeued_once_or_says_why_not(tmp_path, given, words, requeued):
    said, code, asked = end_job(tmp_path, **given)
    assert words in said and code == 1 and asked == ["7"] * requeued
    assert ("not requeued" in said) == ("not requeued" in words)
    assert requeued or "Slurm has requeued" in said or "To continue: again" in said
