"""What survives a power cut: the order in which a save syncs and renames, seen at the operating system's
calls."""

import os
from pathlib import Path

import pytest
import torch
from checkpoint_helpers import PlainEngine, flip, save
from export_helpers import make_run
from run_helpers import fork, status_of

from pretrain.checkpoint import store
from pretrain.checkpoint.folder_writer import FolderWriter, TensorEntry
from pretrain.checkpoint.store import choose, quarantine
from pretrain.common.files import replace_durably
from pretrain.export.folder import export


class Calls:
    """What a block asked the operating system to do, in order: ("sync", path, bytes) and ("rename", from,
    to)."""

    def __init__(self, monkeypatch) -> None:
        self.made: list[tuple] = []
        fsync, rename, replace = os.fsync, os.rename, os.replace

        def synced(descriptor):
            fsync(descriptor)
            self.made.append(
                ("sync", os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size)
            )

        def renamed(call):
            def recorded(source, target):
                contents = files(Path(source))
                call(source, target)
                self.made.append(("rename", str(source), str(target), contents))

            return recorded

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "rename", renamed(rename))
        monkeypatch.setattr(os, "replace", renamed(replace))

    def renames(self) -> list[tuple[int, Path, Path]]:
        """(place in the order, from, to) of what was put into place; what is on its way out has a hidden
        name."""
        return [
            (n, Path(call[1]), Path(call[2]))
            for n, call in enumerate(self.made)
            if call[0] == "rename" and not Path(call[2]).name.startswith(".old-")
        ]

    def require_order(self) -> None:
        """Nothing gets its name before all its bytes are on the disk, and nothing goes on before its name
        is."""
        for place, source, target in self.renames():
            if not target.name.endswith(".replaced"):
                for name, size in self.made[place][3].items():
                    assert ("sync", name, size) in self.made[:place], (
                        f"{name} was renamed before its {size} bytes were synced"
                    )
                if source.suffix != ".partial":
                    last = max(
                        (n for n, c in enumerate(self.made[:place]) if Path(c[1]).parent == source), default=0
                    )
                    assert self.synced(source, self.made[last:place]), (
                        f"{source} was renamed before its names were synced"
                    )
            until = next(
                (n for n, call in enumerate(self.made[place + 1 :], place + 1) if call[0] == "rename"), None
            )
            if not target.name.endswith(".replaced"):  # its place is taken at once, both are synced together
                assert self.synced(target.parent, self.made[place:until]), (
                    f"the name {target} was not synced in time"
                )

    @staticmethod
    def synced(path: Path, calls: list[tuple]) -> bool:
        return any(call[0] == "sync" and call[1] == str(path) for call in calls)


def files(path: Path) -> dict[str, int]:
    """Name -> bytes of a file, or of all files in a folder."""
    return {str(p): p.stat().st_size for p in (path.rglob("*") if path.is_dir() else [path]) if p.is_file()}


@pytest.mark.parametrize("again", [False, True])
def test_a_save_syncs_before_it_names_and_names_before_it_removes(saved, monkeypatch, again):
    """again: the same step once more, which replaces a checkpoint."""
    engine = PlainEngine()
    engine.step()
    step = 3 if again else 4
    calls = Calls(monkeypatch)
    save(saved, engine, {"step": step}, keep=1, max_file_bytes=40)
    calls.require_order()
    order = [target.name for _, _, target in calls.renames()]
    assert order == [*["step-00000003.replaced"] * again, f"step-0000000{step}", "latest"]
    first_removal = next(
        n
        for n, call in enumerate(calls.made)
        if call[0] == "rename" and Path(call[2]).name.startswith(".old-")
    )
    assert first_removal > calls.renames()[-1][0], "an old checkpoint went before the new one had its name"


def test_each_rank_syncs_the_names_of_its_files(tmp_path, monkeypatch):
    """Rank 0's own sync of the folder may know nothing of files that another machine has made."""
    writer, tensor = FolderWriter(tmp_path / "step-00000001"), torch.ones(3)
    writer.begin(0)
    entries = [TensorEntry(name, torch.float32, (3,)) for name in ("a", "b")]
    writer.plan([(f"{entry.name}-00000.safetensors", [entry]) for entry in entries])
    calls = Calls(monkeypatch)
    for entry in entries:
        writer.write(entry, tensor)
    assert calls.made[-1][:2] == ("sync", str(writer.hidden)) and calls.synced(
        writer.hidden / "b-00000.safetensors", calls.made[:-1]
    )


def test_a_replaced_file_is_synced_before_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text("old\n")
    calls = Calls(monkeypatch)
    replace_durably(tmp_path / "metrics.jsonl", b"new\n" * 1000)
    calls.require_order()
    assert [target.name for _, _, target in calls.renames()] == ["metrics.jsonl"]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_an_export_is_synced_before_it_is_named(tmp_path, monkeypatch):
    make_run(tmp_path)
    calls = Calls(monkeypatch)
    out = export(tmp_path)
    (written,) = [place for place, _, target in calls.renames() if target == out]
    assert calls.made[written][3], "an export has files"
    for name, size in calls.made[written][3].items():
        assert ("sync", name, size) in calls.made[:written], (
            f"{name} was renamed before its {size} bytes were synced"
        )
    assert calls.synced(out.parent, calls.made[written:]) and calls.synced(
        out.with_name(".export.tmp"), calls.made[:written]
    )


@pytest.mark.full
def test_two_writers_of_one_file_leave_one_of_both_whole(tmp_path):
    """Neither may write into what the other is about to rename."""
    path = tmp_path / "results.json"

    def write() -> None:
        for _ in range(200):
            replace_durably(path, b"a" * 50_000)

    child = fork(write)
    for _ in range(200):
        replace_durably(path, b"b" * 50_000)
        assert path.read_bytes() in (b"a" * 50_000, b"b" * 50_000)
    assert status_of(child) == 0
    assert os.listdir(tmp_path) == ["results.json"]


def test_setting_aside_is_synced(saved, monkeypatch):
    calls = Calls(monkeypatch)
    there = quarantine(saved / "step-00000003", "damaged")
    assert calls.synced(there.parent, calls.made) and there.name == "step-00000003.damaged"
    os.rename(saved / "step-00000002", saved / "step-00000003")
    assert quarantine(saved / "step-00000003", "damaged").name == "step-00000003.damaged-2"


def test_a_checkpoint_comes_before_the_one_that_it_replaces(saved):
    """A kill between the two renames, or before the replaced one is removed: each moment has a checkpoint of
    the step."""
    engine = PlainEngine()
    store.load(saved / "step-00000003", engine)
    os.rename(saved / "step-00000003", saved / "step-00000003.replaced")
    assert choose(saved).path.name == "step-00000003.replaced"
    with torch.no_grad():
        engine.module.bias.fill_(7)
    save(saved / "other", engine, {"step": 3}, keep=1)
    os.rename(saved / "other" / "step-00000003", saved / "step-00000003")
    assert choose(saved).path.name == "step-00000003"
    other = PlainEngine()
    store.load(choose(saved).path, other)
    assert other.module.bias.tolist() == [7.0] * 3
    flip(saved / "step-00000003" / "state.json")
    assert choose(saved).path.name == "step-00000003.replaced"
