"""Which ends of the ranks requeue the job: by what one rank said for all, else by srun's status."""

import shlex

import pytest

RUN = "runs/test-7"
SAID = f"mkdir -p {RUN}/watch; printf '%s\\nwhy\\n' {{}} >{RUN}/watch/end; exit {{}}"
STEP = f"mkdir -p {RUN}/checkpoints/step-00000040; exit {{}}"


@pytest.mark.parametrize(
    "ends,words,requeued",
    [
        # srun ends with the status of the rank that was killed
        (SAID.format(75, 137), "requeueing 7 (a fault that may pass, exit status 137)", True),
        (SAID.format(75, 75), "requeueing 7 (a fault that may pass", True),
        # no progress; a bad setting; a rank that only lost its connection may end with 75
        (SAID.format(1, 137), "not requeued", False),
        (SAID.format(2, 75), "not requeued", False),
        # nobody could say anything
        ("exit 75", "requeueing 7 (asked to save, or its storage failed, exit status 75", True),
        # no handler yet
        ("kill -USR1 $$", "requeueing 7 (asked to save, before the ranks could, exit status 138)", True),
        ("exit 1", "not requeued", False),
        (STEP.format(1), "not requeued", False),
        (STEP.format(134), "requeueing 7 (killed by signal 6, after a new checkpoint", True),
        ("exit 137", "not requeued", False),
        # its terminal closed, as 130 and 143
        (STEP.format(129), "not requeued", False),
    ],
)
def test_the_job_is_requeued_where_that_may_help(submit, tmp_path, ends, words, requeued):
    done, _ = submit(ENDS=ends)
    said = done.stdout + done.stderr
    assert words in said
    assert (tmp_path / "requeued").exists() == requeued == ("requeueing" in said)


def test_what_an_earlier_start_said_does_not_count(submit, tmp_path):
    submit(ENDS=SAID.format(75, 75))
    (tmp_path / "requeued").unlink()
    done, _ = submit(ENDS="exit 1")
    assert "not requeued" in done.stderr and not (tmp_path / "requeued").exists()


def test_the_command_that_goes_on_shows_nothing_secret_of_urls(submit, tmp_path):
    flags = ["--data.remote", "https://jane:p w@h/d?sig=S3CRET&x=1", "--a=s3://b?token=S3CRET,s3://c/d"]
    done, words = submit(*flags, "--name", "what?", ENDS="exit 1")
    again = shlex.split(done.stderr.strip().splitlines()[-1].partition("To continue: ")[2])
    assert again[2:] == [
        "--data.remote",
        "https://h/d",
        "--a=s3://b,s3://c/d",
        "--name",
        "what?",
        *again[-2:],
    ]
    assert words[2:5] == [*flags[:1], flags[1], flags[2]] and "S3CRET" not in done.stdout + done.stderr
    secrets = '["https://h/d?x=1,2&sig=S3CRET", s3://b/part-??.jsonl, "https://jane:S3/CRET@h/d?k=S3CRET"]'
    done, words = submit("--a", secrets, "--b", "abfs://container@account.net/d", ENDS="exit 1")
    again = shlex.split(done.stderr.strip().splitlines()[-1].partition("To continue: ")[2])
    shown = '["https://h/d", s3://b/part-??.jsonl, "https://h/d"]'
    assert again[2:6] == ["--a", shown, "--b", "abfs://container@account.net/d"]


def test_the_command_that_goes_on_can_be_pasted(submit, tmp_path):
    done, words = submit("--name", "two words", "--run", "my runs/a", ENDS="exit 1")
    script, said = f"{tmp_path}/the project/slurm/pretrain_clear.sh", done.stderr.strip().splitlines()[-1]
    again = shlex.split(said.partition("To continue: ")[2])
    assert again == ["sbatch", script, "--name", "two words", "--run", "my runs/a"]
    assert words[:4] == ["python", f"{tmp_path}/the project/pretrain/main.py", "--name", "two words"]
