"""Convert pickled weights to safetensors: `clearly convert FOLDER`.

Works for any model: every tensor keeps its name and values, and config.json stays as it is. The pickled files
stay too; loaders read the safetensors files from then on.
"""

import json
import shutil
from pathlib import Path

from augment.core.errors import CannotLoad
from augment.core.pretrained import pickled_weights
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import discard, fsync_folder, library_errors, rename_durably, replace_durably
from pretrain.common.run_folder import read_json_file


def convert(folder: str | Path) -> list[Path]:
    """Write a safetensors file beside every pickled weights file of a model's folder; return the new files.

    Sharded weights keep their shards and get an index. Memory: the tensors of one file, twice.
    """
    written = [_convert_file(path) for path in pickled_weights(folder)]
    folders = sorted({file.parent for file in written})
    for index in (path for part in folders for path in sorted(part.glob("pytorch_model*.bin.index.json"))):
        content = read_json_file(index, "copy it again")
        content["weight_map"] = {name: _new_name(file) for name, file in content["weight_map"].items()}
        written.append(index.with_name(_new_name(index.name)))
        replace_durably(written[-1], (json.dumps(content, indent=2) + "\n").encode())
    return written


def _convert_file(path: Path) -> Path:
    import torch
    from safetensors.torch import save_file

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        # clones: safetensors refuses tensors that share memory, as tied embeddings do
        tensors = {name: tensor.contiguous().clone() for name, tensor in state.items()}
    except Exception as error:  # torch, pickle and zipfile each raise their own
        raise CannotLoad(f"{path} holds more than tensors, or is damaged: {error}") from error
    new = path.with_name(_new_name(path.name))
    unfinished = new.with_name(f".{new.name}.partial")
    try:
        with library_errors():
            save_file(tensors, unfinished, {"format": "pt"})
        shutil.copymode(path, unfinished)  # safetensors writes for the owner alone
        fsync_folder(unfinished)  # the same calls sync a file
        rename_durably(unfinished, new)
    finally:
        discard(unfinished)
    return new


def _new_name(file: str) -> str:
    """Return "model-00001-of-00002.safetensors" for "pytorch_model-00001-of-00002.bin"."""
    return file.removeprefix("pytorch_").replace(".bin", ".safetensors")


def main(folder: Path) -> None:
    """Write safetensors files beside the pickled weights of a model.

    Args:
        folder: a model's folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    written = convert(folder)
    print("\n".join(f"wrote {path}" for path in written) or f"{folder} holds no pickled weights to convert")


if __name__ == "__main__":
    cli.run(main)
