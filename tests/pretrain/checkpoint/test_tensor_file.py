"""The streamed tensor files: what safetensors writes and reads."""

import hashlib
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretrain.checkpoint import folder_writer
from pretrain.checkpoint.folder_writer import (
    CheckpointError,
    FolderWriter,
    Retention,
    TensorEntry,
    TensorFileWriter,
    remove_superfluous,
)
from pretrain.common.memory import cut_by_size


def test_streamed_file_is_what_safetensors_writes_and_reads(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "a.weight": torch.randn(3, 5, generator=generator),
        "b": torch.tensor(-0.0),
        "c": torch.randn(4, 2, generator=generator).bfloat16(),
        "d": torch.tensor([True, False]),
        "e": torch.zeros(0, 4),
        "f": torch.arange(6).reshape(2, 3).t(),  # not contiguous
        "g": torch.randn(2, generator=generator).double(),
    }
    entries = [TensorEntry(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
    writer = TensorFileWriter(tmp_path / "ours.safetensors", entries)
    for name, tensor in tensors.items():
        writer.write(name, tensor)
    written = writer.close()
    assert written["bytes"] == (tmp_path / "ours.safetensors").stat().st_size
    back = load_file(tmp_path / "ours.safetensors")
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "theirs.safetensors"
    )
    theirs = load_file(tmp_path / "theirs.safetensors")
    assert set(back) == set(theirs) == set(tensors)
    for name, tensor in tensors.items():
        assert (
            back[name].dtype == tensor.dtype and back[name].equal(tensor) and back[name].equal(theirs[name])
        )
    assert back["b"].signbit()


def test_file_writer_refuses_what_was_not_declared(tmp_path):
    writer = TensorFileWriter(tmp_path / "f.safetensors", [TensorEntry("a", torch.float32, (2,))])
    with pytest.raises(AssertionError):
        writer.write("a", torch.zeros(3))
    with pytest.raises(AssertionError):
        TensorFileWriter(tmp_path / "g.safetensors", [TensorEntry("a", torch.float32, (2,))]).close()


def test_files_are_bounded():
    entries = [TensorEntry(str(i), torch.float32, (size,)) for i, size in enumerate([5, 5, 50, 1, 1])]
    files = cut_by_size(entries, lambda entry: entry.num_bytes, 40)
    assert [[e.name for e in file] for file in files] == [["0", "1"], ["2"], ["3", "4"]]
    assert cut_by_size([], len, 40) == []


@pytest.mark.parametrize("at_once", [0, 40, 1 << 18])
def test_the_sum_is_that_of_the_file_whoever_hashes(tmp_path, monkeypatch, at_once):
    """Larger tensors are hashed by a thread beside the one that writes."""
    monkeypatch.setattr(folder_writer, "_HASHED_AT_ONCE", at_once)
    entries = [TensorEntry(name, torch.float32, (size,)) for name, size in (("a", 3), ("b", 50), ("c", 10))]
    writer = TensorFileWriter(tmp_path / "file", entries)
    for entry in entries:
        assert not writer.is_complete
        writer.write(entry.name, torch.randn(entry.shape))
    assert writer.is_complete
    written, data = writer.close(), (tmp_path / "file").read_bytes()
    assert written == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    header = int.from_bytes(data[:8], "little")
    assert header % 8 == 0  # readers map it without a copy
    assert len(data) == 8 + header + sum(entry.num_bytes for entry in entries)


def test_a_failure_is_kept_and_nothing_is_attempted_after_it(tmp_path, caplog):
    (tmp_path / "hidden").mkdir()
    for error, said in ((OSError(28, "No space left"), "No space left"), (OSError("odd"), "odd")):
        writer, done = FolderWriter(tmp_path / "step-00000001"), []
        writer.hidden = tmp_path / "hidden"
        writer.plan(
            [("file", [TensorEntry("a", torch.float32, (1,)), TensorEntry("b", torch.float32, (1,))])]
        )
        writer.attempt(lambda: writer.write(TensorEntry("a", torch.float32, (1,)), torch.ones(1)))  # noqa: B023
        file = writer._open._file

        def fail(error=error):
            raise error

        writer.attempt(fail)
        writer.attempt(lambda: done.append(1))  # noqa: B023
        assert writer.error == said and not done and file.closed and not caplog.records
    writer = FolderWriter(tmp_path / "step-00000001")
    writer.attempt(lambda: {}["own mistake"])
    assert writer.error == "KeyError: 'own mistake'" and "step-00000001 failed" in caplog.text


def test_a_save_begins_without_what_killed_ones_have_left_and_with_room(tmp_path, monkeypatch):
    root = tmp_path / "checkpoints"
    for name in (".tmp-step-00000003", ".tmp-step-00000008", "step-00000003"):
        (root / name).mkdir(parents=True)
        (root / name / "file").touch()
    for name in (".latest.123.partial", "latest", ".other.partial"):
        (root / name).touch()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**9))
    writer = FolderWriter(root / "step-00000008")
    with pytest.raises(OSError, match=r"1\.50 GB are needed and 1\.00 GB are free") as error:
        writer.begin(1_500_000_000)
    assert error.value.errno == 28 and not writer.hidden.exists()
    writer.begin(10**9)
    left = {".tmp-step-00000008", "step-00000003", "latest", ".other.partial"}
    assert {path.name for path in root.iterdir()} == left and not list(writer.hidden.iterdir())


def test_what_cannot_be_removed_is_a_warning(tmp_path, monkeypatch, caplog):
    """The new checkpoint is good; what a save that was killed has left goes with the next."""
    for name in (
        "step-00000001",
        "step-00000002",
        "step-00000003",
        ".old-step-00000000",
        ".old-step-00000001",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    monkeypatch.setattr(folder_writer, "candidates", lambda root: sorted(root.glob("step-*"), reverse=True))

    def left():
        return sorted(path.name for path in tmp_path.iterdir())

    with monkeypatch.context() as patch:
        fails = OSError(5, "I/O error")
        patch.setattr(folder_writer.files, "remove_tree", lambda path: (_ for _ in ()).throw(fails))
        remove_superfluous(tmp_path / "step-00000003", Retention(1))
    assert len(left()) == 5 and caplog.text.count("could not remove the old checkpoint") == 2
    remove_superfluous(tmp_path / "step-00000003", Retention(2))
    assert left() == ["step-00000002", "step-00000003"]

    def unknown(root):
        raise CheckpointError("stale file handle")

    monkeypatch.setattr(folder_writer, "candidates", unknown)
    remove_superfluous(tmp_path / "step-00000003", Retention(1))
    assert "old checkpoints stay: stale file handle" in caplog.text and len(left()) == 2
