"""Write one checkpoint's folder, and remove those that it makes superfluous."""

from __future__ import annotations

import logging
import os
import shutil
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from pretrain.checkpoint.folder import FORMAT_VERSION, candidates, set_aside, step_of
from pretrain.checkpoint.tensor_file import TensorEntry, TensorFileWriter, split_entries
from pretrain.common.files import fsync_folder, replace_durably, to_json, write_durably

logger = logging.getLogger(__name__)


class FolderWriter:
    """Write one checkpoint folder: hidden while it is written, named when it is whole."""

    def __init__(self, folder: Path, max_file_bytes: int) -> None:
        self.folder = folder
        self.hidden = folder.with_name(f".tmp-{folder.name}")
        self.max_file_bytes = max_file_bytes
        self.files: dict[str, dict[str, object]] = {}
        self._planned: deque[tuple[str, list[TensorEntry]]] = deque()  # file name, its tensors in order
        self._open: TensorFileWriter | None = None

    def attempt(self, action) -> OSError | None:
        """Run one step of writing; on failure remove what there is and return the error.

        It must not be raised: the other ranks are waiting in the next collective.
        """
        try:
            action()
        except OSError as error:
            if self._open is not None:
                self._open.abandon()
            shutil.rmtree(self.hidden, ignore_errors=True)
            return error
        return None

    def begin(self, plan: dict[str, list[tuple[TensorEntry, Any]]]) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.parent.glob(".tmp-step-*"):  # of a save that was killed
            shutil.rmtree(leftover)
        entries = {kind: [entry for entry, _ in items] for kind, items in plan.items()}
        need = sum(entry.num_bytes for series in entries.values() for entry in series)
        free = shutil.disk_usage(self.folder.parent).free
        if need > free:
            raise OSError(28, f"{need / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free")
        self.hidden.mkdir()
        for kind, series in entries.items():
            for number, batch in enumerate(split_entries(series, self.max_file_bytes)):
                self._planned.append((f"{kind}-{number:05d}.safetensors", batch))

    def write(self, entry: TensorEntry, tensor: torch.Tensor) -> None:
        if self._open is None:
            name, batch = self._planned.popleft()
            self._open = TensorFileWriter(self.hidden / name, batch)
        self._open.write(entry.name, tensor)
        if self._open.is_complete:
            self.files[self._open.path.name] = self._open.close()
            self._open = None

    def finish(self, engine_json: dict[str, Any], state: dict[str, Any]) -> None:
        content = {"format_version": FORMAT_VERSION, "state": state, **engine_json}
        self.files["state.json"] = write_durably(self.hidden / "state.json", to_json(content))
        manifest = {"format_version": FORMAT_VERSION, "files": self.files}
        write_durably(self.hidden / "manifest.json", to_json(manifest))
        fsync_folder(self.hidden)
        if self.folder.exists():
            # The same step again (it was damaged, or a resume started before it). Between the two renames the
            # old one still counts under its other name: at no instant is there no checkpoint of this step.
            replaced = self.folder.with_name(f"{self.folder.name}.replaced")
            if replaced.exists():
                shutil.rmtree(replaced)
            os.rename(self.folder, replaced)
        os.rename(self.hidden, self.folder)
        fsync_folder(self.folder.parent)
        replace_durably(self.folder.parent / "latest", f"{self.folder.name}\n".encode())


def failed_save_message(folder: Path, error: OSError) -> str:
    """Return the message for a checkpoint that could not be written."""
    previous = [path.name for path in candidates(folder.parent)]
    good = f"The last complete one, {previous[0]}, is untouched" if previous else "There is no earlier one"
    return (
        f"could not write checkpoint {folder.name} under {folder.parent}: {error.strerror or error}. "
        f"{good}, and nothing half-written was left. Free some space, keep fewer checkpoints, or give the "
        "run folder another disk; then resume."
    )


def remove_superfluous(newest: Path, keep: int, keep_step: int | None = None) -> None:
    """Remove what the new checkpoint makes superfluous. Failing to is a warning: the new one is good.

    keep: how many checkpoints stay, the new one included. keep_step: stays beside them.
    """
    step = step_of(newest)
    older = [path for path in candidates(newest.parent) if path != newest]
    for path in older:
        if step_of(path) > step:
            try:
                renamed = set_aside(path, "abandoned")
            except OSError as error:
                logger.warning("could not rename %s: %s", path, error)
                continue
            logger.warning(
                "%s is now %s: it is of a later step than the one that this run was resumed from",
                path,
                renamed.name,
            )
    earlier = [path for path in older if step_of(path) < step and step_of(path) != keep_step]
    doomed = [path for path in older if step_of(path) == step] + earlier[keep - 1 :]
    for path in doomed:
        hidden = path.with_name(f".old-{path.name}")
        with suppress(OSError):
            # rename first: a half-removed folder must not look like a damaged checkpoint
            os.rename(path, hidden)
    for leftover in newest.parent.glob(".old-step-*"):
        try:
            shutil.rmtree(leftover)
        except OSError as error:
            logger.warning("could not remove the old checkpoint %s: %s", leftover, error)
