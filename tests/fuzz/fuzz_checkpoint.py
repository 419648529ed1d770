"""Fuzz target: checkpoint folders, `pretrain.checkpoint.store`."""

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from fuzz_target import Target, refused, to_json
from mutations import mutated_bytes, mutated_tree

from pretrain.checkpoint import store as checkpoint
from pretrain.checkpoint.folder_writer import TensorEntry, TensorFileWriter
from pretrain.checkpoint.store import CheckpointError

_SERIES = ("parameters", "exp_avg")


class Checkpoints(Target):
    """A case is {file name: content, byte n as character n}."""

    name = "checkpoint"
    about = "manifest, state and tensors of a checkpoint; what is good can be read whole"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._root = folder / "checkpoints"
        self._path = self._root / "step-00000010"
        self._files: dict[str, bytes] = {}
        tensors = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.bias": torch.arange(3, dtype=torch.int64)}
        for series in _SERIES:
            file = folder / f"{series}-00000.safetensors"
            entries = [
                TensorEntry(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()
            ]
            writer = TensorFileWriter(file, entries)
            for name, tensor in tensors.items():
                writer.write(name, tensor)
            writer.close()
            self._files[file.name] = file.read_bytes()
        self._state = {"series": dict.fromkeys(_SERIES, len(tensors)), "state": {"step": 10, "config": {}}}

    def generate(self, chance: random.Random) -> bytes:
        """Damage one of the files, mostly with a manifest that agrees with the damage."""
        state, draw = self._state, chance.random()
        if draw < 0.3:
            state = mutated_tree(chance, state)
        files = {"state.json": to_json(state), **self._files}
        if 0.25 < draw < 0.6:
            name = chance.choice(list(files))
            files[name] = self._damaged(chance, files[name])
        manifest: Any = {
            "format_version": 1,
            "files": {
                name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                for name, data in files.items()
            },
        }
        if draw > 0.5:
            manifest = mutated_tree(chance, manifest)
        files["manifest.json"] = to_json(manifest)
        if draw > 0.9:
            name = chance.choice(list(files))
            files[name] = self._damaged(chance, files[name])
        if chance.random() < 0.05:
            del files[chance.choice(list(files))]
        return to_json({name: data.decode("latin-1") for name, data in files.items()})

    def _damaged(self, chance: random.Random, data: bytes) -> bytes:
        """Mutate the bytes, or the header of a file of tensors as a tree."""
        size = int.from_bytes(data[:8], "little")
        if data[:1] == b"{" or size > len(data) or chance.random() < 0.3:
            return mutated_bytes(chance, data)
        header = to_json(mutated_tree(chance, json.loads(data[8 : 8 + size])))
        return len(header).to_bytes(8, "little") + header + data[8 + size :]

    def check(self, case: bytes) -> str:
        shutil.rmtree(self._root, ignore_errors=True)
        self._path.mkdir(parents=True)
        for name, text in json.loads(case).items():
            (self._path / name).write_bytes(text.encode("latin-1"))
        try:
            choice = checkpoint.choose(self._root)
        except CheckpointError as error:
            return refused(error, "step-00000010")
        assert choice is not None and choice.path == self._path
        self._read()
        return "accepted"

    def _read(self) -> None:
        """Read all of a good checkpoint."""
        assert isinstance(checkpoint.read_state(self._path), dict)
        for series, count in json.loads((self._path / "state.json").read_bytes())["series"].items():
            names = list(checkpoint.locate(self._path, series))
            assert len(names) == count, f"{len(names)} names where {count} tensors of {series} were counted"
            reader = checkpoint.TensorReader()
            for name, file in checkpoint.locate(self._path, series).items():
                (found,) = (
                    tensor for found, tensor in checkpoint.read_tensors(self._path, series) if found == name
                )
                part = reader.elements(file, name, slice(0, found.numel()))
                assert part.numel() == found.numel()
