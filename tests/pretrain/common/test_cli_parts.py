"""The command line at its edges: how words are read, what is refused, and how a command ends."""

import errno
import os
import sys
from pathlib import Path

import pytest
import torch

from augment.core.errors import AugmentationError
from pretrain.common import cli, cores
from pretrain.common.cli import (
    Command,
    Count,
    Flag,
    OutFile,
    SayWhatLoads,
    described_parameters,
    key_table,
    usage_line,
)
from pretrain.common.credentials import require_no_credentials, without_credentials
from pretrain.common.error_output import _Output, mark_printed
from pretrain.common.errors import CollapsedEncoder, UserError, not_utf8
from pretrain.common.files import is_of_disk, require_writable, require_writable_file
from pretrain.common.passing_faults import ERRNOS, fault_of
from pretrain.common.run_folder import export_of, guard, moved, require_folder


@pytest.fixture
def ended(monkeypatch, capsys):
    """Run a function as a command; return its exit status, output and error output."""

    def run(action, *words, **options):
        def function(text: str = "", *, number: Count = 1) -> object:
            """Do it."""
            return action()

        monkeypatch.setattr(sys, "argv", ["x", *words])
        with pytest.raises(SystemExit) as left:
            cli.run(function, **options)
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return run


def raising(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize(("result", "status"), [(None, 0), (0, 0), (7, 7), (True, 1), ("text", 0), (2.5, 0)])
def test_a_number_is_the_status_and_what_is_returned_is_not_printed(result, status, ended):
    assert ended(lambda: result) == (status, "", "")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("odd"), 2, "error: odd"),
        (CollapsedEncoder("odd"), 1, "error: odd"),
        (AugmentationError("odd"), 2, "error: odd"),
        (OSError(errno.ENOSPC, "full", "/a"), 2, "error: /a: full; what was finished before is kept"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_of_users_and_disks_are_one_message(error, status, said, ended):
    code, out, err = ended(raising(error))
    assert code == status and said in err and out == "" and "Traceback" not in err


def test_a_bug_is_raised_unless_it_is_printed_or_another_rank_ended(ended, monkeypatch):
    for error in (
        KeyError("bug"),
        OSError(errno.ENOSPC, "without a file"),
        OSError(errno.ENOENT, "none", "/a"),
    ):
        with pytest.raises(type(error)):
            ended(raising(error))
    printed = KeyError("bug")
    mark_printed(printed)
    assert ended(raising(printed)) == (1, "", "")
    left = []
    monkeypatch.setattr(os, "_exit", lambda code: left.append(code) or sys.exit(code))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    code, _, err = ended(raising(RuntimeError("Connection closed by peer")))
    assert code == 1 and left == [1] and "another rank ended" in err and "Traceback" not in err


def test_a_reader_that_has_seen_enough_ends_the_command(ended):
    """What a real one is still owed is dropped without a word: test_error_output.py."""
    assert ended(raising(BrokenPipeError()))[0] == 141 and _Output.goes_on


def test_words_of_launchers_and_urls_with_passwords(ended):
    assert ended(lambda: 5, "--local_rank=3")[0] == 5
    secret = "https://jane:pw@host/x"
    for words, place in (
        (("--text", secret), "--text"),
        ((f"--text={secret}",), "--text"),
        ((secret,), "the command"),
    ):
        code, _, err = ended(lambda: 5, *words)
        assert code == 2 and f"error: {place}: a URL with a password" in err and "pw" not in err
    assert ended(lambda: 5, f"look at {secret} there")[0] == 5  # a text that is searched


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_first_rank_says_that_it_loads_libraries(rank, ended, monkeypatch, capsys):
    finders = list(sys.meta_path)
    monkeypatch.setattr(sys, "meta_path", finders)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(cli, "LARGE_LIBRARIES", {"no_such_library", "another"})
    ended(lambda: 0)
    added = [finder for finder in finders if isinstance(finder, SayWhatLoads)]
    assert len(added) == (rank == "0")
    for finder in added:
        for name in ("json", "no_such_library", "another"):
            assert finder.find_spec(name) is None
        assert capsys.readouterr().err.count("loading no_such_library and other libraries ...") == 1
    monkeypatch.setattr(cli, "LARGE_LIBRARIES", {"json"})  # imported already
    ended(lambda: 0)
    assert len([finder for finder in finders if isinstance(finder, SayWhatLoads)]) == (rank == "0")


@pytest.mark.parametrize(
    ("word", "is_flag"),
    [
        ("--a", True),
        ("-h", True),
        ("-", False),
        ("-5", False),
        ("-.5", False),
        ("-a5", True),
        ("a", False),
        ("--5", True),
        ("", False),
    ],
)
def test_numbers_below_zero_and_a_dash_are_values(word, is_flag):
    assert cli._is_flag(word) is is_flag


def test_a_misspelt_command_is_told_from_a_file(ended):
    def other(text: str) -> None:
        """Other."""

    for words, said in (
        (("othr", "x"), "unknown command 'othr'; did you mean other?"),
        (("a", "b"), "unexpected word 'b'"),
    ):
        assert said in ended(lambda: 0, *words, other=other)[2]
    assert "unexpected word 'b'" in ended(lambda: 0, "./othr", "b", other=other)[2]


def test_out_is_a_folder_or_a_file_that_can_be_written(tmp_path):
    def to_folder(*, out: Path | None = None) -> Path | None:
        """Do."""
        return out

    def to_file(*, out: OutFile | None = None) -> Path | None:
        """Do."""
        return out

    folder, file = Command(to_folder, "x"), Command(to_file, "x")
    assert folder(out=str(tmp_path)) == tmp_path and folder() is None
    assert file(out=str(tmp_path / "new" / "file")) == tmp_path / "new" / "file"
    with pytest.raises(UserError, match="a folder; name a file in it"):
        file(out=str(tmp_path))
    (tmp_path / "file").touch()
    for command in (folder, file):
        with pytest.raises(UserError, match=r"--out .*: .*file is not a folder; name another place"):
            command(out=str(tmp_path / "file" / "x"))
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]  # nothing is left of the trial
    require_writable(""), require_writable_file("")
    with pytest.raises(UserError, match=r"--own .*: .* cannot be used \(File name too long\)"):
        require_writable(tmp_path / ("x" * 300), "--own")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO])
def test_a_place_that_takes_no_file_is_refused_and_a_full_disk_an_error(number, tmp_path, monkeypatch):
    def refuse(path, *_):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError if number in (errno.EACCES, errno.EROFS) else OSError) as refused:
        require_writable(tmp_path)
    monkeypatch.undo()
    if number in (errno.EACCES, errno.EROFS):
        assert f"is not writable ({os.strerror(number)})" in str(refused.value)
    assert is_of_disk(OSError(number, "x", "/a")) == (number != errno.EACCES)
    assert not is_of_disk(OSError(number, "x")) and not is_of_disk(ValueError("x"))


def test_help_is_laid_out_for_80_columns():
    flags = [
        Flag("a", "int", "required", "word " * 40),
        Flag("b", "str", "", ""),
        Flag("c", "float", "0.5", "short"),
    ]
    lines = key_table(flags).splitlines()
    assert lines[0] == "  a int (required)" and lines[-3:] == [
        "  b str",
        "  c float (default 0.5)",
        "        short",
    ]
    body = lines[1:-3]
    assert all(line.startswith(" " * 8 + "word") and len(line) <= 72 for line in body) and len(body) == 4
    widths = [
        len(key_table([Flag("a", "int", "", text + " x" * 40)]).splitlines()[1]) for text in ("x", "xx")
    ]
    assert widths == [71, 72]
    usage = usage_line(
        " ".join(["clearly", "x", *(f"--flag-{n} VALUE" for n in range(8)), "[--flag value ...]"])
    )
    assert all(len(line) <= 80 for line in usage.splitlines()) and usage.startswith(
        "usage: clearly x --flag-0"
    )
    assert usage.splitlines()[1].startswith("       --flag") and usage.endswith("[--flag value ...]")

    def documented():
        """Do.

        Args:
            a, b: first
                goes on.
            c: third: with a colon
          odd line
                of nothing
            d_e: last

        Returns: x
        """

    assert described_parameters(documented) == {
        "a": "first goes on.", "b": "first goes on.", "c": "third: with a colon", "d_e": "last",
    }  # fmt: skip


# -- what messages say ------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://jane@host/x", "http://***@host/x"),
        ("https://jane:p@w@host", "https://***@host"),
        ("s3://key:secret@bucket", "s3://***@bucket"),
        ("abfs://container@account/x", None),
        ("http://host:80/a@b", None),
        ("http://host:8080", None),
        ("mail jane@host.org", None),
        ("s3://b?X-Amz-Signature=1f&x=2", "s3://b?***&x=2"),
        ("u?sig=a;token=b&AccessKeyId=c", "u?***;***&***"),
        ("u?design=a", None),
        ("u?api_key=k'", "u?***'"),
        ("u?my-password=k", "u?***"),
        ("u?auth=k&x_auth=k&Authorization=k", "u?***&***&***"),
        ("u?author=a", None),
        ("wss://tok@host/x and ws://tok@host", "wss://***@host/x and ws://***@host"),
        ("news://jane@host", None),
        ("http://host:port and jane@host", None),
        ("http://host:port" + " " * 60 + "# note", None),  # at once
        ("at http://host:80 ask jane@host.org", None),
        ("at http://host: ask jane@host.org", None),
        ("a://b:c\nask jane@host.org", None),
        ("{'a': 's3://b:c', 'd': 'jane@host'}", None),
        ("hdfs://name:node/path, ask jane@host.org", None),
    ],
)
def test_what_urls_hold_of_secrets_is_left_out(text, shown):
    assert without_credentials(text) == (shown or text)
    if shown:
        with pytest.raises(UserError, match="here: a URL with a password or a key"):
            require_no_credentials(text, "here")
    else:
        require_no_credentials(text, "here")


@pytest.mark.parametrize(
    ("name", "start", "said"),
    [
        ("a.txt", b"\xff\xfea\0", "perhaps UTF-16. Convert it: iconv -f UTF-16 -t UTF-8 a.txt >a-utf8.txt"),
        ("a.txt", b"\xfe\xff\0a", "perhaps UTF-16."),
        ("a.txt", b"a\0b\xff", "a.txt is a binary file"),
        ("a.txt", b"caf\xe9", "perhaps LATIN1. Convert it: iconv -f LATIN1"),
        ("a.txt", b"caf\xe9 \x80", "perhaps CP1252"),
        ("a.txt", b"caf\xe9 \x9f", "perhaps CP1252"),
        ("a.txt", b"caf\xe9 \xa0", "perhaps LATIN1"),
        ("a b.tsv.gz", b"\xe9", "gzip -dc 'a b.tsv.gz' | iconv -f LATIN1 -t UTF-8 >'a b-utf8.tsv'"),
        ("a.zst", b"\xe9", "zstd -dc a.zst | iconv"),
        ("a.bz2", b"\xe9", "bzip2 -dc a.bz2 | iconv"),
        ("a.xz", b"\xe9", "xz -dc a.xz | iconv"),
    ],
)
def test_a_file_of_another_encoding_is_answered_by_the_command_that_converts_it(name, start, said):
    assert said in not_utf8(Path(name), start, "line 3")


MESSAGES = {  # as gloo, NCCL, torch's store, CUDA and the kernel write them
    "lost peer": (
        "Connection closed by peer [1.2.3.4]|Connection reset by peer|Broken pipe|Application "
        "timeout caused pair closure|NCCL: remote process exited or there was a network "
        "error|remote process exiting|ncclRemoteError: A call failed|ncclSystemError: System "
        "call|NCCL communicator was aborted on rank 3|Connection was likely closed. Did the remote "
        "server shut down|No route to host|Network is unreachable"
    ),
    "time-out": (
        "Timed out waiting 1800000ms for recv|Watchdog caught collective operation timeout: "
        "WorkNCCL|Some NCCL operations have failed or timed out.|wait timeout after 300000ms|Socket "
        "Timeout|Connection timed out"
    ),
    "device": (
        "uncorrectable ECC error encountered|uncorrectable NVLink error detected|unspecified launch "
        "failure|CUDA error: unknown error|GPU is lost|all CUDA-capable device(s) is/are busy or "
        "unavailable|no CUDA-capable device is detected|hardware stack error|system not yet "
        "initialized|an invalid operation or a hardware error"
    ),
    "storage": ("Stale file handle|Input/output error|Transport endpoint is not connected"),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_messages_of_libraries_show_faults_that_pass(kind):
    for text in MESSAGES[kind].split("|"):
        found = fault_of(RuntimeError(f"[rank 3] {text} (x)"))
        assert found is not None and found.kind == kind, text
    assert fault_of(RuntimeError("shapes differ")) is None


def test_errors_of_the_system_that_pass_are_those_of_storage():
    numbers = ("EIO", "ESTALE", "ENOTCONN", "ESHUTDOWN", "ETIMEDOUT", "EHOSTDOWN", "EREMOTEIO")
    assert {getattr(errno, name) for name in numbers} == ERRNOS
    for name in numbers:
        assert fault_of(OSError(getattr(errno, name), "x")).kind == "storage"
    assert fault_of(OSError(errno.ENOENT, "x")) is None
    for text in ("CUDA out of memory", "an illegal memory access", "device-side assert triggered"):
        assert fault_of(RuntimeError(f"{text}: Connection reset by peer")) is None
    assert fault_of(MemoryError("Broken pipe")) is None
    outer = ValueError("odd")
    outer.__cause__ = RuntimeError("remote process exited")
    assert fault_of(outer).kind == "lost peer"
    outer.__cause__.__context__ = MemoryError()
    assert fault_of(outer) is None
    outer.__cause__ = outer  # a circle
    assert fault_of(outer) is None


# -- cores and folders --------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "quota"),
    [
        ("max 100000\n", None),
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("x\n", None),
        (None, None),
    ],
)
def test_a_quota_is_of_whole_cores(content, quota, tmp_path, monkeypatch):
    if content is not None:
        (tmp_path / "cpu.max").write_text(content)
    monkeypatch.setattr(cores, "_QUOTA", tmp_path / "cpu.max")
    assert cores._quota() == quota
    monkeypatch.setattr(cores, "physical_cores", lambda: list(range(4)))
    assert cores.usable_cores() == (quota or 4)
    monkeypatch.setattr(cores, "physical_cores", lambda: [3])
    assert cores.usable_cores() == 1


@pytest.mark.parametrize(
    ("given", "ranks", "elastic", "threads"),
    [
        (None, None, False, None),
        ("", None, False, None),
        ("4,2", None, False, 4),
        (" 3 ", None, False, 3),
        ("0", None, False, None),
        ("x", None, False, None),
        ("-1", None, False, None),
        ("1", "2", False, 1),
        ("1", "2", True, None),
        ("1", "1", True, 1),
        ("2", "2", True, 2),
    ],
)
def test_threads_are_the_users_and_not_torchruns(given, ranks, elastic, threads, monkeypatch):
    for name, value in (("OMP_NUM_THREADS", given), ("LOCAL_WORLD_SIZE", ranks), ("LOCAL_SIZE", None),
                        ("TORCHELASTIC_RUN_ID", "x" if elastic else None)):  # fmt: skip
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, raising=False)
    assert cores.threads_of_user() == threads and cores.ranks_here() == int(ranks or 1)
    monkeypatch.setenv("LOCAL_SIZE", "5")
    assert cores.ranks_here() == int(ranks or 5)


def test_a_guarded_folder_that_is_gone_or_another_is_told(tmp_path, monkeypatch):
    run, other = tmp_path / "run", tmp_path / "running"
    for folder in (run, other):
        folder.mkdir()
        (folder / "mark").write_text(folder.name)
    with guard(run, "mark"):
        assert moved() is None and moved(run / "a") is None
        (run / "mark").write_text("another's")
        assert "was renamed or removed" in str(moved()) and moved(run) and moved(run / "a" / "b")
        assert moved(other / "a") is None and moved(tmp_path) is None  # a name that begins alike is another
        (run / "mark").unlink()
        assert moved(run / "a")
        (run / "mark").mkdir()  # cannot be read: it may come back
        assert moved(run / "a") is None
    assert moved() is None
    with pytest.raises(UserError, match=r"did you mean .*running"):
        require_folder(tmp_path / "runing")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert export_of("~/elsewhere") == f"{tmp_path}/elsewhere" and export_of("a/b") == "a/b"
