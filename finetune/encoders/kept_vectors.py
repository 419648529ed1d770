"""Keep vectors on disk, so that no text is encoded twice by the same weights in the same way.

The folder that the environment's CLEAR_VECTORS names holds a folder for
everything that a vector depends on beside its text, and in it files of some thousand vectors each.
Everything may be removed at any time; what is missing is encoded again.

    3f0c...e1.vectors               MAGIC, checksum, N, d, N digests of texts (16 bytes each), float32[N, d]

A file is written beside its place and renamed, and its checksum covers the rest, so that neither a killed
process nor a damaged disk gives a vector that no encoder has computed. Writers never change a file of
another, so any number of processes may share a folder.
"""

import contextlib
import hashlib
import json
import os
import struct
import sys
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from finetune.encoders.source import ModelSource, cached_folder
from pretrain.common.files import make_folder, remove_file, replace_durably, sha256_of
from pretrain.telemetry.formats import format_seconds

MAGIC = b"vectors1"
SUFFIX = ".vectors"
CHUNK = 2048
"""Texts to a file: what a killed process loses at most."""
SECONDS_BETWEEN_LINES = 30.0
PARTIAL_SECONDS = 3600.0
"""Age at which a file that is still being written belongs to a process that was killed."""
_HEAD = struct.Struct("<8s16sQQ")  # magic, checksum of the rest, N, d
_READ_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model", ".tiktoken")
"""Files by which a model's vectors may change: weights, tokenizer, pooling, prompts, kept heads."""

EncodePoolings = Callable[[Sequence[str], Sequence[str]], Mapping[str, np.ndarray]]


def digest_of(source: ModelSource) -> str | None:
    """Return a digest of what a model's files but checkpoints hold; None: they are not on this machine."""
    folder = source.folder or cached_folder(source.location)
    if folder is None:
        return None
    files = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    read = [one for one in files if one.suffix in _READ_SUFFIXES and not str(one).startswith("checkpoint")]
    named = [f"{one} {sha256_of(folder / one)}" for one in read]
    return hashlib.sha256("\n".join(named).encode()).hexdigest()


@dataclass
class KeptVectors:
    """The vectors of one model below `root`; circumstances: all that they depend on but pooling and text."""

    root: Path
    circumstances: Mapping[str, Any]
    _digests: dict[Path, frozenset[bytes]] = field(default_factory=dict)
    """File that was read or written -> digests of its texts."""

    @classmethod
    def of(cls, source: ModelSource, root: Path, precision: str, max_length: int | None) -> Self | None:
        """Return the vectors of a model that is opened so; None: its files are not on this machine."""
        import torch
        import transformers

        if (contents := digest_of(source)) is None:
            return None
        circumstances = {
            "contents": contents,
            "texts": "with their prompts",
            "precision": precision,
            "max_length": max_length,
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        return cls(root, circumstances)

    def folder(self, pooling: str) -> Path:
        key = json.dumps({**self.circumstances, "pooling": pooling}, sort_keys=True)
        return self.root / hashlib.sha256(key.encode()).hexdigest()[:32]

    def vectors(
        self, texts: Sequence[str], poolings: Sequence[str], encode: EncodePoolings
    ) -> dict[str, np.ndarray]:
        """Return float32[N, d] by pooling for N texts; `encode` gives what is missing, CHUNK at a time."""
        if not texts:
            return dict(encode(texts, poolings))
        order = [_digest(text) for text in texts]
        text_of = dict(zip(order, texts))
        found = {pooling: self._read(pooling, text_of) for pooling in poolings}
        missing = [digest for digest in text_of if any(digest not in found[pooling] for pooling in poolings)]
        missing.sort(key=lambda digest: len(text_of[digest]))
        started = printed = time.monotonic()
        for start in range(0, len(missing), CHUNK):
            chunk = missing[start : start + CHUNK]
            made = encode([text_of[digest] for digest in chunk], poolings)
            for pooling in poolings:
                block = np.ascontiguousarray(made[pooling], np.float32)
                self._keep(pooling, chunk, block)
                found[pooling].update(zip(chunk, block, strict=True))
            if time.monotonic() - printed > SECONDS_BETWEEN_LINES:
                printed = time.monotonic()
                said = f"{start + len(chunk):,} of {len(missing):,} texts encoded"
                print(said, file=sys.stderr, flush=True)
        counts = f"{len(text_of) - len(missing):,} kept from before, {len(missing):,} encoded"
        said = f"vectors of {len(text_of):,} texts: {counts} in {format_seconds(time.monotonic() - started)}"
        print(said, file=sys.stderr, flush=True)
        return {pooling: np.stack([found[pooling][digest] for digest in order]) for pooling in poolings}

    def _read(self, pooling: str, wanted: Collection[bytes]) -> dict[bytes, np.ndarray]:
        """Return the vectors of those of the texts that files have, by the digests of the texts."""
        vectors: dict[bytes, np.ndarray] = {}
        for path in sorted(self.folder(pooling).glob(f"*{SUFFIX}")):
            if path in self._digests and self._digests[path].isdisjoint(wanted):
                continue
            if (read := read_file(path)) is None:  # removed, or damaged
                with contextlib.suppress(OSError):
                    path.open("rb").close()  # one that cannot be opened stays
                    remove_file(path)
                    print(f"note: {path} was damaged: its vectors are made again", file=sys.stderr)
                continue
            self._digests[path] = frozenset(read[0])
            used = {digest: row for digest, row in zip(*read, strict=True) if digest in wanted}
            vectors |= used
            if used:
                with contextlib.suppress(OSError):
                    os.utime(path)  # what was used least recently is removed first
        return vectors

    def _keep(self, pooling: str, names: Sequence[bytes], vectors: np.ndarray) -> None:
        """Write a file of vectors float32[N, d]; a disk that is full costs the file, not the evaluation."""
        if not np.isfinite(vectors).all():
            return  # the evaluation says so
        path = self.folder(pooling) / f"{uuid.uuid4().hex}{SUFFIX}"
        try:
            make_folder(path.parent)
            replace_durably(path, file_content(names, vectors))
        except OSError as error:
            print(f"note: vectors are not kept: {error}", file=sys.stderr)
            return
        self._digests[path] = frozenset(names)


def file_content(names: Sequence[bytes], vectors: np.ndarray) -> bytes:
    """Return a file's bytes: digests of N texts, 16 bytes each, and their vectors float32[N, d]."""
    rest = b"".join(names) + vectors.astype("<f4", copy=False).tobytes()
    return _HEAD.pack(MAGIC, xxhash.xxh3_128(rest).digest(), *vectors.shape) + rest


def read_file(path: Path) -> tuple[list[bytes], np.ndarray] | None:
    """Return what `file_content` was given; None: the file is gone, torn or damaged."""
    try:
        content = path.read_bytes()
        magic, checksum, count, width = _HEAD.unpack_from(content)
    except (OSError, struct.error):
        return None
    rest = memoryview(content)[_HEAD.size :]
    whole = len(rest) == count * (16 + 4 * width)
    if magic != MAGIC or not whole or xxhash.xxh3_128(rest).digest() != checksum:
        return None
    names = [bytes(rest[start : start + 16]) for start in range(0, 16 * count, 16)]
    return names, np.frombuffer(rest[16 * count :], "<f4").reshape(count, width)


def remove_oldest(root: Path, most_bytes: int) -> int:
    """Remove the files used least recently until the rest take `most_bytes`, and half-written ones."""
    files, removed = [], 0
    for path in root.glob("*/*"):
        with contextlib.suppress(OSError):  # removed meanwhile by another process
            status = path.stat()
            if path.suffix == SUFFIX:
                files.append((status.st_mtime, status.st_size, path))
            elif path.suffix == ".partial" and time.time() - status.st_mtime > PARTIAL_SECONDS:
                remove_file(path)
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= most_bytes:
            break
        remove_file(path)
        total, removed = total - size, removed + 1
    return removed


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
