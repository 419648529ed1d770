"""Save checkpoints while training goes on.

A save has two halves. The first runs in the training thread, at a step boundary: each rank copies its own
part of the parameters and moments into host memory, without a collective. The second runs in a thread of its
own: ranks exchange parts, so that each tensor is whole on one rank, and every rank writes, hashes and syncs
the tensors that are its own. When all have, rank 0 writes the manifest and gives the folder its name.

The threads speak through a gloo group that nothing else uses. Collectives of the training's own groups must
come in the same order on every rank, and a thread would mix its own among them. Marks in the hidden folder
would need polling, clocks and a file system that shows one machine's files to another at once, and a mark of
a save that was killed looks like one of this save; through a group a rank that dies is noticed.

Who writes a tensor: the rank that holds most of it, so that little is sent; at ZeRO 1 and 2 that is nearly
nothing. Where all hold as much (ZeRO 3), and where all hold all (ZeRO 0), consecutive tensors of about equal
bytes for each rank.
"""

import functools
import json
import math
import platform
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pretrain.checkpoint.engine_state import EngineState, Part, engine_state, parameter_shape
from pretrain.checkpoint.folder_writer import FolderWriter, Retention, TensorEntry, remove_superfluous
from pretrain.checkpoint.store import FORMAT_VERSION, CheckpointError
from pretrain.common.cores import ranks_here
from pretrain.common.files import to_json
from pretrain.common.memory import cut_by_size, free_memory
from pretrain.common.program import DISTRIBUTION, own_version
from pretrain.common.ranks import gathered, new_host_group, on_rank_zero

MAX_FILE_BYTES = 2 << 30
PARAMETERS, BUFFERS = "parameters", "buffers"
_ALIGNED = 64  # bytes; a multiple of every dtype's size
_COUNTERS = ("global_steps", "global_samples", "skipped_steps")
_SHARE_OF_FREE = 0.8  # of a machine's free memory that copies may take


# -- what a checkpoint consists of: tensors, of which each rank has parts, and state.json ----------------


@dataclass(frozen=True)
class Item:
    """One tensor of a checkpoint.

    Attributes:
        series: its series of files ("parameters", "exp_avg", "buffers" ...).
        entry: its name, dtype and whole shape. The same on every rank, as `series` and `owner` are.
        owner: the rank that is to write it if several hold as much of it.
        part: what this rank has of it for the checkpoint; None: nothing, or another rank's is taken.
    """

    series: str
    entry: TensorEntry
    owner: int
    part: Part | None

    def values(self) -> torch.Tensor:
        """Return the part's elements on the CPU, one-dimensional, of the entry's dtype."""
        assert self.part is not None
        return self.part.values.to("cpu", self.entry.dtype)


def items_of(view: EngineState, rank: int, ranks: int) -> list[Item]:
    """Return the tensors of a checkpoint in the order of its files: parameters, moments, buffers.

    Of a tensor that all ranks hold whole, its owner has the part. Ranks own runs of consecutive parameters
    of about equal bytes. Buffers are rank 0's.
    """
    named = list(view.named_parameters())
    shapes = [parameter_shape(parameter) for _, parameter in named]
    series: dict[str, list[Item]] = {PARAMETERS: []}
    for (name, parameter), shape, owner in zip(named, shapes, _owners(shapes, ranks), strict=True):
        entry = TensorEntry(name, torch.float32, shape)
        here = owner == rank or not view.is_whole(parameter)
        for key in (None, *view.moment_keys(parameter)):
            item = Item(key or PARAMETERS, entry, owner, view.part(parameter, key) if here else None)
            series.setdefault(item.series, []).append(item)
    series[BUFFERS] = [
        Item(
            BUFFERS,
            TensorEntry(name, buffer.dtype, tuple(buffer.shape)),
            0,
            Part(buffer.detach().reshape(-1), 0) if rank == 0 else None,
        )
        for name, buffer in view.named_buffers()
    ]
    return [item for items in series.values() for item in items]


def _owners(shapes: list[tuple[int, ...]], ranks: int) -> list[int]:
    """Return a rank for each of the shapes: that of its middle among all elements, cut into `ranks` runs."""
    sizes = [math.prod(shape) for shape in shapes]
    whole, before, owners = max(1, sum(sizes)), 0, []
    for size in sizes:
        owners.append(min(ranks - 1, (2 * before + size) * ranks // (2 * whole)))
        before += size
    return owners


def bytes_of(items: list[Item]) -> int:
    """Return the bytes that copies of this rank's parts take."""
    return sum(
        _aligned(item.part.values.numel() * item.entry.dtype.itemsize)
        for item in items
        if item.part is not None
    )


def _aligned(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED


def engine_json(view: EngineState, engine, items: list[Item]) -> dict[str, Any]:
    """Return what state.json holds beside the trainer's state; `restore_engine` takes it back."""
    series = {PARAMETERS: 0} | dict.fromkeys(item.series for item in items) | {BUFFERS: 0}
    counts = {kind: sum(item.series == kind for item in items) for kind in series}
    scalars: dict[str, dict[str, float | int]] = {}
    for name, parameter in view.named_parameters():
        for key, number in view.scalars(parameter).items():
            scalars.setdefault(key, {})[name] = number
    return {
        "series": counts,
        "aliases": view.aliases(),
        "hugging_face": _hugging_face_config(view.module),
        "optimizer": {
            "class": type(view.inner).__name__,
            "moments": [kind for kind in counts if kind not in (PARAMETERS, BUFFERS)],
            "scalars": scalars,
            "learning_rates": [float(group["lr"]) for group in view.inner.param_groups],
        },
        "lr_scheduler": None,  # rates are a function of the step, and the loss scale is the trainer's
        "loss_scale": [],
        "counters": {name: int(getattr(engine, name)) for name in _COUNTERS if hasattr(engine, name)},
        "versions": dict(_versions()),
    }


@functools.cache
def _versions() -> dict[str, str]:
    """Return what runs, by name; to read what is installed takes a while."""
    versions = {"python": platform.python_version(), DISTRIBUTION: own_version()}
    for package in ("torch", "deepspeed", "transformers", "tokenizers", "safetensors"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _hugging_face_config(module: torch.nn.Module) -> dict[str, Any] | None:
    """Return the prefix of the names of transformers' model in the module, and its config; None: it has none.

    With it a checkpoint can be exported if the recipe's `model.init` no longer exists.
    """
    for prefix, part in module.named_modules():
        if hasattr(part, "save_pretrained") and hasattr(part, "config"):
            return {
                "prefix": f"{prefix}." if prefix else "",
                "config": json.loads(part.config.to_json_string(False)),
            }
    return None


# -- saving ----------------------------------------------------------------


class Saver:
    """Write checkpoints of one engine, one at a time.

    Collective: made, called and closed on every rank, in the same order. Only `failed` may be read by one.
    """

    def __init__(self, engine, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        """
        Args:
            engine: a DeepSpeed engine with fp32 parameters at any ZeRO stage (or an object with `.module` and
                a torch `.optimizer`).
            max_file_bytes: tensors are spread over files of about this size.
        """
        self.engine, self.max_file_bytes = engine, max_file_bytes
        self.has_room = True  # for copies, when they were wanted last
        self._memory = torch.empty(0, dtype=torch.uint8)
        """Host memory of copies, kept between checkpoints: mapping new pages takes longer than the copy."""
        self._ranks = dist.get_world_size() if dist.is_initialized() else 1
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._group: Any = new_host_group() if self._ranks > 1 else None  # of saves alone
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def save(self, root: Path, state: dict[str, Any], retention: Retention, background: bool = True) -> Path:
        """Save the engine at a step boundary, after the save before is whole.

        Args:
            root: folder of checkpoints, on a file system that all ranks see; created when missing.
            state: the trainer's own state, plain JSON, with "step" (int) in it; `load` gives it back.
            retention: which earlier checkpoints stay.
            background: copy this rank's part, and write it while training goes on. Else, and if memory has
                no room for the copies of all ranks, return when the checkpoint is whole, written from the
                engine's own memory.

        Returns:
            The checkpoint's folder, root/step-00001234. It is there after `wait`.

        Raises:
            CheckpointError: as `wait` does, of the save before; or of this one, if it is not in the
                background.
        """
        assert retention.newest >= 1
        self.wait()
        folder = Path(root) / f"step-{int(state['step']):08d}"
        view = engine_state(self.engine)
        items = items_of(view, self._rank, self._ranks)
        content = b""
        if self._rank == 0:
            described = engine_json(view, self.engine, items)
            content = to_json({"format_version": FORMAT_VERSION, "state": state, **described})
        if background and self._find_room(items):
            save = folder, self._copied(items), content, retention
            self._thread = threading.Thread(target=self._write, args=save, name=f"write {folder.name}")
            self._thread.start()
        else:
            self._write(folder, items, content, retention)
            self.wait()
        return folder

    def _find_room(self, items: list[Item]) -> bool:
        """Return whether the copies of all ranks fit into free memory. Collective."""
        more, free = max(0, bytes_of(items) - self._memory.numel()), free_memory()
        fits = not free or more * ranks_here() <= _SHARE_OF_FREE * free
        self.has_room = all(gathered(fits, self._group))
        return self.has_room

    def _copied(self, items: list[Item]) -> list[Item]:
        """Return the items with parts that no later step changes; the copies before are overwritten.

        If parts come from a GPU the memory is pinned, so that they come at the speed of the bus.
        """
        if (need := bytes_of(items)) > self._memory.numel():
            pinned = any(item.part is not None and item.part.values.is_cuda for item in items)
            self._memory = torch.empty(0, dtype=torch.uint8)  # the old memory first
            self._memory = torch.empty(need, dtype=torch.uint8, pin_memory=pinned)
        copied, place = [], 0
        for item in items:
            if item.part is not None:
                count = item.part.values.numel() * item.entry.dtype.itemsize
                values = self._memory[place : place + count].view(item.entry.dtype)
                values.copy_(item.part.values, non_blocking=True)
                item = replace(item, part=Part(values, item.part.start))
                place += _aligned(count)
            copied.append(item)
        if self._memory.is_pinned():
            torch.cuda.synchronize()
        return copied

    @property
    def in_flight(self) -> bool:
        """Whether this rank is still writing, or waits for one that is."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def failed(self) -> bool:
        """Whether the save that was begun last is known here to have failed: `wait` will raise."""
        return self._failure is not None

    def wait(self) -> None:
        """Return when the save in flight is whole.

        Raises:
            CheckpointError: on every rank, when one could not write (disk full, quota, I/O error). Nothing
                half-written is left, and earlier checkpoints are as they were.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if isinstance(failure, CheckpointError):  # agreed on by all ranks

            def fail() -> None:
                raise failure

            on_rank_zero(fail)
        elif failure is not None:
            raise failure

    def close(self) -> None:
        """End the save in flight, and the group. Raises nothing: `wait` does."""
        if self._thread is not None:
            self._thread.join()
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    # -- the second half: after `save` has returned ------------------------------------------------

    def _write(self, folder: Path, items: list[Item], state: bytes, retention: Retention) -> None:
        try:
            message = self._write_folder(folder, items, state, retention)
            self._failure = None if message is None else CheckpointError(message)
        except Exception as error:  # a rank was lost
            self._failure = error

    def _write_folder(
        self, folder: Path, items: list[Item], state: bytes, retention: Retention
    ) -> str | None:
        """Write a checkpoint; return on every rank why that has failed, or None. state: of state.json."""
        first, writer = self._rank == 0, FolderWriter(folder)
        if first:
            writer.attempt(lambda: writer.begin(sum(item.entry.num_bytes for item in items)))
        parts = (Part(torch.empty(0), 0) if item.part is None else item.part for item in items)
        extents = [(part.start, part.values.numel()) for part in parts]
        held = gathered((writer.error, extents), self._group)
        if (error := _first(error for error, _ in held)) is None:
            self._write_own(items, [extents for _, extents in held], writer)
            written = gathered((writer.error, writer.files), self._group)
            if (error := _first(error for error, _ in written)) is None and first:
                files = {name: facts for _, part in written for name, facts in part.items()}
                writer.attempt(lambda: writer.finish(files, state))
                error = writer.error
        message = writer.discard(error) if error is not None and first else None
        if first and error is None:
            remove_superfluous(folder, retention)
        return gathered(message, self._group)[0]

    def _write_own(self, items: list[Item], held: list[list[tuple[int, int]]], writer: FolderWriter) -> None:
        """Send the parts that others write; write the tensors that are this rank's.

        Args:
            held: rank -> of each item, where its part begins and how many elements it has.
        """
        me = self._rank
        # of the ranks that hold most of an item the one nearest to its owner
        writers = [
            max(range(len(held)), key=lambda rank: (held[rank][n][1], -abs(rank - item.owner)))
            for n, item in enumerate(items)
        ]
        writer.plan(self._files_of(me, items, writers))
        sent = [  # with the values, which must stay
            (values := item.values(), dist.isend(values, writers[n], group=self._group, tag=n))
            for n, item in enumerate(items)
            if writers[n] != me and item.part is not None
        ]
        for n, item in enumerate(items):
            if writers[n] == me:
                whole = self._whole(n, item, held)  # also when writing has failed: others are sending
                writer.attempt(functools.partial(writer.write, item.entry, whole))
        for _, work in sent:
            if work is not None:
                work.wait()

    def _whole(self, number: int, item: Item, held: list[list[tuple[int, int]]]) -> torch.Tensor:
        """Return a tensor whole: of this rank's part alone, or with those of others."""
        elements = item.entry.num_bytes // item.entry.dtype.itemsize
        if item.part is not None and item.part.values.numel() == elements:
            return item.values().reshape(item.entry.shape)
        whole = torch.empty(elements, dtype=item.entry.dtype)
        for rank, extents in enumerate(held):
            start, count = extents[number]
            if count and rank == self._rank:
                whole[start : start + count] = item.values()
            elif count:
                dist.recv(whole[start : start + count], rank, group=self._group, tag=number)
        return whole.reshape(item.entry.shape)

    def _files_of(
        self, rank: int, items: list[Item], writers: list[int]
    ) -> list[tuple[str, list[TensorEntry]]]:
        """Return the names of a rank's files, with their tensors: numbers go on from rank to rank."""
        files = []
        for series in dict.fromkeys(item.series for item in items):
            number = 0
            for other in range(rank + 1):
                pairs = zip(items, writers, strict=True)
                entries = [item.entry for item, writer in pairs if (item.series, writer) == (series, other)]
                for batch in cut_by_size(entries, lambda entry: entry.num_bytes, self.max_file_bytes):
                    if other == rank:
                        files.append((f"{series}-{number:05d}.safetensors", batch))
                    number += 1
        return files


def _first(errors) -> str | None:
    return next((error for error in errors if error is not None), None)
