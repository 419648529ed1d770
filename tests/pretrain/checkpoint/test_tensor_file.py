"""The streamed tensor files: what safetensors writes and reads."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretrain.checkpoint.folder_writer import TensorEntry, TensorFileWriter
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
