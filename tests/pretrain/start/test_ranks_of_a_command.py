"""The other ranks that a plain command starts: their numbers, how they end, and the launcher that is read."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_helpers import fork, status_of, wait_for
from safetensors.torch import save_file
from torch import zeros

from pretrain import main
from pretrain.common.errors import UserError
from pretrain.common.processes import start_of
from pretrain.config.recipe import load_config
from pretrain.data.manifest import MANIFEST
from pretrain.start import local_ranks
from pretrain.watch.heartbeat import state_of

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")
NAMES += (local_ranks.LOCAL_RANKS,)


@pytest.fixture
def no_launcher(monkeypatch):
    for name in (*NAMES, "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("run", "flags", "fault"),
    [
        ("/proc/none/run", {}, "/proc/none/run: /proc is not writable"),
        ("file/run", {}, "/file/run: .*/file is not a folder"),
        ("file", {}, "/file: .*/file is not a folder"),
        ("dangling", {}, "/dangling: .*/dangling is not a folder"),
        ("file/run", {"dry_run": True}, r"/file/run\.dry-run: .*/file is not a folder"),
    ],
)
def test_a_run_folder_that_cannot_be_made_is_refused_before_ranks_start(
    tmp_path, no_launcher, monkeypatch, run, flags, fault
):
    class RanksStart(Exception):
        pass

    def choose_ranks(_):
        raise RanksStart

    monkeypatch.setattr(main, "choose_ranks", choose_ranks)
    monkeypatch.setattr(main, "choose_accelerator", lambda: None)
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("no-such-folder")
    with pytest.raises(UserError, match=f"^--run .*{fault}.*; name another place$"):
        main.main(run=str(tmp_path / run), **flags)
    monkeypatch.setenv("RANK", "1")  # of another node, perhaps: it does not write there
    with pytest.raises(RanksStart):
        main.main(run=str(tmp_path / run), **flags)


@pytest.mark.parametrize("launcher", [{}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "77"}])
def test_each_rank_is_the_same_command_with_a_number_of_its_own(tmp_path, no_launcher, launcher):
    code = (
        "import json, os, sys\n"
        "open(f'{sys.argv[1]}/' + os.environ['RANK'], 'w').write(json.dumps(dict(os.environ)))"
    )

    def begin():
        os.environ.update(launcher)
        sys.orig_argv = ["clearly", "-c", code, str(tmp_path)]
        others = local_ranks.start_local_ranks(3)
        statuses = [one.wait() for one in others]
        (tmp_path / "own").write_text(json.dumps(dict(os.environ)))
        return statuses != [0, 0]

    assert status_of(fork(begin)) == 0
    index, processes = int(launcher.get("RANK", 0)), int(launcher.get("WORLD_SIZE", 1))
    first = 3 * index
    seen = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert seen.keys() == {"own", str(first + 1), str(first + 2)}
    ports = {variables["MASTER_PORT"] for variables in seen.values()}
    assert len(ports) == 1 and (int(ports.pop()) == 77 or not launcher)
    for name, variables in seen.items():
        number = str(first) if name == "own" else name
        whole = str(3 * processes)
        given = {key: variables[key] for key in NAMES if key != "MASTER_PORT"}
        assert given == dict.fromkeys(NAMES[2:5], whole) | {
            "RANK": number,
            "LOCAL_RANK": number,
            "MASTER_ADDR": "127.0.0.1",
            local_ranks.LOCAL_RANKS: whole,
        }


def test_one_rank_starts_nobody_and_changes_nothing(no_launcher):
    before = dict(os.environ)
    assert local_ranks.start_local_ranks(1) == [] and dict(os.environ) == before


def test_the_others_end_with_the_first(tmp_path, no_launcher):
    def begin():
        sys.orig_argv = ["clearly", "-c", "import time; time.sleep(600)"]
        (other,) = local_ranks.start_local_ranks(2)
        (tmp_path / "pid").write_text(f"{other.pid} {start_of(other.pid)}")

    assert status_of(fork(begin)) == 0
    pid, started = map(int, (tmp_path / "pid").read_text().split())
    wait_for(lambda: start_of(pid) != started or state_of(pid) in "ZX", [])


def ended(*codes: int | None):
    """Processes that have ended with statuses; None: one that runs."""
    return [SimpleNamespace(poll=lambda code=code: code, returncode=code) for code in codes]


@pytest.mark.parametrize("codes, status", [((0, 0), 0), ((None, 3), 1), ((0, -9), 1), ((1, None), 1)])
def test_a_rank_ends_soon_after_another_has_failed(monkeypatch, tmp_path, codes, status):
    slept = []
    monkeypatch.setattr(local_ranks, "time", SimpleNamespace(sleep=slept.append))

    def watch():
        os.dup2(os.open(tmp_path / "said", os.O_CREAT | os.O_WRONLY), 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - not pytest's
        local_ranks._end_with_any(ended(*codes))
        return 0

    assert status_of(fork(watch)) == status
    failed = next((code for code in codes if code), None)
    said = f"error: a rank ended with status {failed}\n" if failed else ""
    assert (tmp_path / "said").read_text() == said


def test_a_rank_is_given_time_to_explain_and_is_watched_while_any_runs(monkeypatch):
    class Ends(BaseException):
        pass

    def end(status):
        raise Ends(status)

    slept, left = [], [None, None, None, 4]
    monkeypatch.setattr(local_ranks, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr(os, "_exit", end)
    one = SimpleNamespace(poll=lambda: left[len(slept) // 2], returncode=4)
    with pytest.raises(Ends):
        local_ranks._end_with_any([*ended(0), one])
    assert slept == [0.5] * 6 + [30.0], slept


def test_at_the_end_the_others_have_a_minute(monkeypatch):
    now, killed, given = [100.0], [], []

    class Other:
        def __init__(self, name, takes):
            self.name, self.takes = name, takes

        def wait(self, seconds):
            given.append(seconds)
            now[0] += min(seconds, self.takes)
            if self.takes > seconds:
                raise subprocess.TimeoutExpired("rank", seconds)

        def kill(self):
            killed.append(self.name)

    monkeypatch.setattr(local_ranks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    local_ranks._wait_for_end([Other("a", 20), Other("b", 70), Other("c", 1), Other("d", 0)])
    assert given == [60.0, 40.0, 0.0, 0.0] and killed == ["b", "c"]


def test_the_launchers_command_lines_are_read_up_to_the_script(tmp_path, monkeypatch):
    waits = "import sys, os; print(os.getpid(), flush=True); sys.stdin.read()"
    starts = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"
    for name, code in (("deepspeed", starts), ("launch.py", waits)):
        (tmp_path / name).write_text(code)
    inner = [
        "launch.py",
        "deepspeed.launcher.launch",
        "--world_info=x",
        "pretrain/main.py",
        "--num_gpus",
        "3",
    ]
    words = [sys.executable, "deepspeed", *inner]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, cwd=tmp_path, **pipes)
    child = int(process.stdout.readline())
    monkeypatch.setattr(os, "getppid", lambda: child)
    found = local_ranks._launcher_commands()
    assert found == [[sys.executable, *inner[:3]], [sys.executable, "deepspeed", *inner[:3]]]
    monkeypatch.setattr(os, "getppid", lambda: process.pid)
    assert local_ranks._launcher_commands() == found[1:]
    monkeypatch.setattr(os, "getppid", lambda: 2**22 + 1)
    assert local_ranks._launcher_commands() == []
    process.communicate()


def test_memory_is_for_the_models_parameters_or_its_weights_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(local_ranks, "processes_that_fit", lambda parameters, more: (parameters, more))
    sizes = {"model.hidden_size": 64, "model.heads": 2, "model.layers": 3, "data.prepare.vocabulary": 1000}
    config = load_config(None, sizes)
    assert local_ranks._fitting_memory(config) == (64 * (12 * 3 * 64 + 1000), 2 * 1024**3)
    for number in range(2):
        save_file({"weights": zeros(100)}, tmp_path / f"part-{number}.safetensors")
    (tmp_path / "more.bin").write_bytes(bytes(999))
    size = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    config = load_config(None, {"model.init": str(tmp_path)})
    assert local_ranks._fitting_memory(config)[0] == size / 4


def manifest(folder: Path, longest: int) -> Path:
    folder.mkdir()
    (folder / MANIFEST).write_text(json.dumps({"format_version": 1, "max_length": longest, "splits": {}}))
    return folder


def test_data_that_is_longer_than_the_model_is_refused_with_the_flags(tmp_path, monkeypatch):
    monkeypatch.setattr(
        local_ranks, "read_manifest", lambda folder: json.loads((folder / MANIFEST).read_text())
    )
    short, long = manifest(tmp_path / "short", 64), manifest(tmp_path / "long", 65)
    own = load_config(None, {"data.folder": str(long)})
    with pytest.raises(UserError, match=r"up to 65 tokens.*give --model.max_positions 65.*max_length 64"):
        local_ranks.require_positions(own, 64)
    local_ranks.require_positions(own, 65)
    with pytest.raises(UserError, match="init=there takes 64 positions: name one with 65"):
        local_ranks.require_positions(own, 64, "model.init=there")
    several = load_config(None, {"data.sets": f"[{{folder: {short}}}, {{folder: {long}}}]"})
    with pytest.raises(UserError, match=f"{long} has"):
        local_ranks.require_positions(several, 64)
    made = {"data.prepare.sources": "[a.txt]", "data.prepare.max_length": 65, "folder": str(tmp_path / "run")}
    with pytest.raises(UserError, match=r"data.prepare.max_length makes .*--data.prepare.max_length 64"):
        local_ranks.require_positions(load_config(None, made), 64)
    remote = load_config(None, made | {"data.remote": "https://somewhere/data"})
    local_ranks.require_positions(remote, 64)  # not known before it is there
    there = load_config(None, made | {"data.folder": str(short)})
    local_ranks.require_positions(there, 64)
