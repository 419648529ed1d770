"""Check that kills, full disks and existing results change no byte."""

import errno
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from prepare_helpers import WORDS, config, digest, make_corpus, texts_of
from run_helpers import ROOT, paths_in, wait_for

from pretrain.common.errors import UserError
from pretrain.common.folder_lock import folder_lock
from pretrain.config.data import DataConfig
from pretrain.data.manifest import MANIFEST
from pretrain.data.shards import ShardReader
from pretrain.prepare.run import prepare
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.work_folder import Decision, HashRange, WorkFile


@pytest.mark.full
def test_a_decided_split_does_not_depend_on_workers_or_kills(tmp_path, several_tasks):
    """Twenty copies of one long document, in several reading tasks, are one document: its end is held out
    everywhere."""
    sentences = [f"The {WORDS[i % 10]} number {i} is here." for i in range(60)]
    (tmp_path / "text.txt").write_text((" ".join(sentences) + "\n\n") * 20)
    made = config(tmp_path / "text.txt", heldout=0.1, unit="sequence")
    for workers in (1, 2):
        prepare(made, tmp_path / str(workers), workers=workers, progress=False)
    killed = tmp_path / "killed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HashRange, "write", _fail_when_decided)
        with pytest.raises(RuntimeError, match="killed"):
            prepare(made, killed, workers=1, progress=False)
    prepare(made, killed, workers=1, progress=False)
    assert digest(tmp_path / "1") == digest(tmp_path / "2") == digest(killed)
    for folder, resumed in ((killed, True), (tmp_path / "1", False)):
        assert json.loads((folder / MANIFEST).read_text())["run"]["resumed"] == resumed
    held = [s for text in texts_of(killed, "heldout") for s in sentences_of(text)]
    assert sorted(held) == sorted(sentences[-6:])


def _fail_when_decided(hashes: HashRange, work: Path, rank: int) -> None:
    if Decision.exists(work):
        raise RuntimeError("killed")
    WorkFile.write(hashes, work, rank)


COMPLETED = ".work/logs/*/completions/*"
"""A file for each finished task; its folders come and go."""


def _start(arguments: list[str]) -> subprocess.Popen:
    code = (
        "import pretrain.prepare.sources.planning as c, pretrain.prepare.run as p\n"
        "import pretrain.prepare.__main__ as cli\n"
        "c.TASK_BYTES, p._SMALL_BUCKET = 30000, 50000\n"
        "cli.cli.run(cli.main, keys=cli.data_flags)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, start_new_session=True)


@pytest.mark.full
def test_killed_again_and_again_it_ends_with_the_same_bytes(tmp_path, monkeypatch):
    """SIGKILL of the whole process group at three points of the work; workers that outlive it may still
    write."""
    corpus = tmp_path / "corpus.txt"
    make_corpus(corpus, documents=600, seed=5)
    monkeypatch.setattr("pretrain.prepare.sources.planning.TASK_BYTES", 30000)
    monkeypatch.setattr("pretrain.prepare.run._SMALL_BUCKET", 50000)
    prepare(DataConfig(sources=str(corpus), vocabulary=320), tmp_path / "whole", workers=1, progress=False)
    killed = tmp_path / "killed"
    arguments = ["--source", str(corpus), "--vocabulary", "320", "--progress", "false", "--workers", "2"]
    kills = []
    for target in (2, 12, 14, 10**9):  # finished tasks at the kill: reading, at the tokenizer, at the shards
        process = _start([*arguments, "--out", str(killed)])
        while process.poll() is None and len(paths_in(killed, COMPLETED)) < target:
            time.sleep(0.005)
        if process.poll() is not None:
            assert process.returncode == 0
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if (killed / MANIFEST).is_file():  # on a busy machine the kill may come too late
            break
        kills.append(process.pid)
        with pytest.raises(UserError, match="did not finish"):
            ShardReader(killed)
    assert len(kills) >= 2
    assert digest(killed) == digest(tmp_path / "whole")


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "done", "status"), [(signal.SIGTERM, 2, 143), (signal.SIGKILL, 2, -9), (signal.SIGINT, 0, 130)]
)
def test_its_workers_end_with_it_and_print_nothing(tmp_path, number, done, status, capfd):
    """SIGKILL reaches the preparation alone, as when memory runs out; SIGINT all processes, as
    from a terminal, while the one that forks workers imports."""
    corpus, out = tmp_path / "corpus.txt", tmp_path / "out"
    make_corpus(corpus, documents=3000, seed=5)
    flags = ["--vocabulary", "320", "--progress", "false", "--workers", "2"]
    process = _start(["--source", str(corpus), *flags, "--out", str(out)])
    while process.poll() is None and not (
        len(paths_in(out, COMPLETED)) >= done
        and any(
            "forkserver" in " ".join(one.cmdline()) and sum(one.cpu_times()[:2]) > 0.2
            for one in _processes(process.pid)
        )
    ):
        time.sleep(0.005)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    assert process.wait() == status
    wait_for(lambda: not _processes(process.pid), [], timeout=30)
    assert "Traceback" not in capfd.readouterr().err


def _processes(session: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [psutil.Process(one) for one in psutil.pids() if _session(one) == session]
    return _processes(session)


def _session(process: int) -> int | None:
    try:
        return os.getsid(process)
    except ProcessLookupError:
        return None


@pytest.mark.full
@pytest.mark.parametrize("background", [False, True])
def test_a_worker_that_the_kernel_kills_is_noticed(tmp_path, background):
    corpus = tmp_path / "corpus.txt"
    make_corpus(corpus, documents=400, seed=5)
    code = (
        "import os, signal; import pretrain.prepare.sources.planning as c\n"
        "import pretrain.prepare.__main__ as cli, pretrain.prepare.stages.read as s\n"
        "c.TASK_BYTES = 30000\n"
        "class Killed(s.ReadSource):\n"
        "    def run(self, data=None, rank=0, world_size=1):\n"
        "        for document in super().run(data, rank, world_size):\n"
        "            if rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "            yield document\n"
        "s.ReadSource = Killed\n"
        "if __name__ == '__main__': cli.cli.run(cli.main, keys=cli.data_flags)\n"
    )
    (tmp_path / "run.py").write_text(code)
    arguments = ["--source", str(corpus), "--vocabulary", "320", "--progress", "false", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, str(tmp_path / "run.py"), *arguments, "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        # Ignored in a background job of a shell script, where Python has no KeyboardInterrupt.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT,
        signal.SIG_IGN if background else signal.SIG_DFL),
    )  # fmt: skip
    assert done.returncode == 2 and "A process of stage read was killed" in done.stderr


def test_data_from_before_a_key_was_there_counts_as_prepared(tmp_path, corpus):
    first = prepare(config(corpus[0]), tmp_path / "out", workers=1, progress=False)
    for source in first["config"]["sources"]:
        source.pop("positive_key")
    (tmp_path / "out/manifest.json").write_text(json.dumps(first))
    assert prepare(config(corpus[0]), tmp_path / "out", workers=1, progress=False) == first


def test_done_is_done_and_another_config_is_refused(tmp_path, corpus):
    path, _ = corpus
    first = prepare(config(path), tmp_path / "out", workers=1, progress=False)
    assert prepare(config(path), tmp_path / "out", workers=1, progress=False) == first
    with pytest.raises(UserError, match="max_length is 64 there and 32 now"):
        prepare(config(path, max_length=32), tmp_path / "out", workers=1, progress=False)
    again = prepare(config(path, max_length=32), tmp_path / "out", workers=1, progress=False, overwrite=True)
    assert again["max_length"] == 32


@pytest.mark.parametrize("fault", ["no source", "taken", "own output"])
def test_overwriting_removes_nothing_before_it_can_begin(tmp_path, corpus, fault):
    """A source that is not there, a folder that is at work, an input inside it: what is finished stays."""
    out = tmp_path / "out"
    prepare(config(corpus[0]), out, workers=1, progress=False)
    before = digest(out)
    overwriting = {"workers": 1, "progress": False, "overwrite": True}
    if fault == "no source":
        with pytest.raises(UserError, match="no such file"):
            prepare(config(tmp_path / "gone.txt"), out, **overwriting)
    elif fault == "own output":
        with pytest.raises(UserError, match=r"lies in .* which --overwrite would remove"):
            prepare(config(corpus[0], tokenizer=str(out / "tokenizer")), out, **overwriting)
    else:
        with (
            folder_lock(out),
            pytest.raises(UserError, match=f"is being written by process {os.getpid()} on "),
        ):
            prepare(config(corpus[0], max_length=32), out, **overwriting)
    shutil.rmtree(out / ".work", ignore_errors=True)
    assert digest(out) == before


@pytest.mark.full
@pytest.mark.parametrize("function,calls", [("fsync", 0), ("fsync", 6), ("fsync", 4), ("rename", 5)])
def test_a_full_disk(tmp_path, corpus, monkeypatch, function, calls):
    """The disk fills up at some write or other: one clear error, nothing taken for whole, and later it goes
    on."""
    path, _ = corpus
    real, left = getattr(os, function), [calls]

    def full(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(f"os.{function}", full)
        with pytest.raises(UserError, match="No space left"):
            prepare(config(path), tmp_path / "out", workers=1, progress=False)
    assert left[0] < 0 and not (tmp_path / "out/manifest.json").exists()
    assert not list((tmp_path / "out").rglob("*.partial"))
    prepare(config(path), tmp_path / "out", workers=1, progress=False)
    prepare(config(path), tmp_path / "fresh", workers=1, progress=False)
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")
