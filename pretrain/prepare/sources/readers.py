"""Readers of text files: the documents of one task, streamed, plain or compressed.

`pretrain.prepare.sources.rows` reads formats with fields, and makes documents of both;
`pretrain.prepare.sources.records` makes records.

A task reads its own share and no other: a byte range of a plain file (a document belongs to the range in
which it begins), every S-th document of a compressed one.
"""

import bz2
import codecs
import contextlib
import gzip
import io
import itertools
import lzma
import os
import shlex
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pretrain.common.errors import UserError, not_utf8

COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
PASSAGE_CHARACTERS = 32768
_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"BZh": ".bz2", b"\xfd7zXZ\x00": ".xz"}
"""First bytes of a compressed file -> the end that its name must have."""
_PROBE_BYTES = 1 << 20

Stream = io.BufferedReader | gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile
"""A file that is read as bytes, decompressed."""


@dataclass(frozen=True)
class ReadTask:
    """A piece of a source that one task reads: stripe `stripe` of `stripes` of `place`.

    kind: text | jsonl | csv | tsv | parquet | disk | hub | embedded. size: text bytes, estimated. layout: of
    text: lines | paragraphs | passages; of jsonl: lines | array. longest: bytes of a line, or characters of a
    row's text. width: the column at which the lines of a text file are wrapped, 0 if they are not. columns:
    of a table that is read for its structure, two that belong together; for the whole text all that have it.
    """

    source: int
    kind: str
    place: str
    stripe: int
    stripes: int
    size: int
    layout: str = "lines"
    longest: int = 8_000_000
    width: int = 0
    columns: tuple[str, ...] | None = None


def open_file(path: str | Path) -> Stream:
    """Open a file as a stream of decompressed bytes, with \\n in place of \\r if its lines end in \\r alone.

    They do if the first megabyte has no \\n and several \\r.
    """
    stream = _decompressed(str(path))
    if b"\n" in stream.peek(1):
        return stream
    with stream:
        head = stream.read(_PROBE_BYTES)
    stream = _decompressed(str(path))
    ends_in_returns = head.count(b"\r") > 1 and b"\n" not in head
    return io.BufferedReader(_LineFeeds(stream)) if ends_in_returns else stream


class _LineFeeds(io.RawIOBase):
    """A stream whose lines end in \\r alone, as those of old Macintoshes, with \\n in its place."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self.seek = stream.seek  # type: ignore[method-assign]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer)).replace(b"\r", b"\n")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _decompressed(name: str) -> Any:
    if name.endswith(".zst"):
        import pyarrow

        return io.BufferedReader(pyarrow.input_stream(name, compression="zstd"), 1 << 18)
    unpackers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    if unpack := unpackers.get(Path(name).suffix):
        return unpack(name, "rb")
    return io.BufferedReader(io.FileIO(name), 1 << 18)


def read_head(path: Path) -> str:
    """Return the whole lines in the first megabyte of a text file."""
    try:
        with naming_damage(str(path)), open_file(path) as stream:
            probe = stream.read(_PROBE_BYTES)
        return codecs.getincrementaldecoder("utf-8-sig")().decode(probe)
    except UnicodeDecodeError as error:
        ending = next((end for start, end in _MAGIC.items() if probe.startswith(start)), "")
        if ending:
            names = shlex.join([str(path), f"{path}{ending}"])
            raise UserError(f"source {path} is compressed: mv {names}") from error
        raise UserError(f"source {not_utf8(path, probe, f'byte {error.start}')}") from error


def require_utf8(path: Path) -> None:
    """Refuse a file in another encoding: of its first lines that are not ASCII, most are not UTF-8.

    Fewer than ten are left to who reads them, who names damaged rows.
    """
    with naming_damage(str(path)), open_file(path) as stream:
        head = stream.read(_PROBE_BYTES)
    lines = [line for line in head.split(b"\n")[:-1] if not line.isascii() or b"\0" in line]
    broken = sum(b"\0" in line or line.decode("utf-8", "ignore").encode() != line for line in lines)
    if broken >= max(10, len(lines) / 2):
        read_head(path)
        raise UserError(f"source {not_utf8(path, head, 'bytes of zero')}")


def detect_layout(head: str) -> Literal["lines", "paragraphs"]:
    """Return `paragraphs` if there is a blank line between the text of a file's first lines, else `lines`."""
    seen_text = blank = False
    for line in head.split("\n")[:-1]:
        if not line.strip():
            blank = seen_text
        elif blank:
            return "paragraphs"
        else:
            seen_text = True
    return "lines"


def is_array(path: Path) -> bool:
    """Return whether a JSON file is one array, or objects written over several lines: no object a line."""
    with naming_damage(str(path)), open_file(path) as stream:
        head = stream.read(_PROBE_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    return head[:1] == b"[" or head.split(b"\n", 1)[0].strip() == b"{"


def numbered_documents(task: ReadTask) -> Iterator[tuple[int, str]]:
    """Yield the documents of a text file in the task's layout, each with its position.

    A position is the byte at which a document begins in a plain file, and the number of its first line (from
    0) in a compressed one. `where` puts it into words.
    """
    group = {"lines": _lines, "paragraphs": _paragraphs, "passages": _passages}[task.layout]
    if not task.place.endswith(COMPRESSIONS):
        size = os.path.getsize(task.place)
        begin, end = (size * stripe // task.stripes for stripe in (task.stripe, task.stripe + 1))
        with open_file(task.place) as stream:
            yield from group(_owned_lines(stream, begin if task.stripe else None, end, task))
        return
    with naming_damage(task.place), open_file(task.place) as stream:
        for number, (position, text) in enumerate(group(_numbered_lines(stream, task))):
            if number % task.stripes == task.stripe:
                yield position, text


def _numbered_lines(stream: Stream, task: ReadTask) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(iter(lambda: stream.readline(task.longest + 1), b"")):
        if len(line) > task.longest:
            raise too_long(task, number)
        yield number, line


def too_long(task: ReadTask, position: int, otherwise: str = "") -> UserError:
    """Return the error for a line, or the text of a row, that is longer than the source allows.

    otherwise: what else may be wrong.
    """
    return UserError(
        f"source {where(task, position)}: longer than {task.longest / 1e6:g} MB{otherwise}. Break it into "
        "lines or rows, a document each; or allow more (some 130 times the memory if it is one sentence): "
        f"""--source '[{{source: "{task.place}", line_megabytes: N}}]'"""
    )


@contextlib.contextmanager
def naming_damage(place: str) -> Iterator[None]:
    """Turn what decompressors and disks raise for a damaged file into a UserError that names it."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # gzip, bz2 and zstandard have no number
            raise UserError(f"source {place} cannot be read: {error.strerror}.") from error
        fault = f"is cut short or damaged, or not what its name says ({error})"
        raise UserError(f"source {place} {fault}. Download it again, or rename it.") from error


def where(task: ReadTask, position: int) -> str:
    """Return a position of `numbered_documents` or `rows` in words: `FILE, line N`."""
    if task.kind == "hub" and task.stripes > 1:
        return f"hub:{task.place}, file or part {task.stripe + 1} of {task.stripes}, row {position + 1}"
    if task.kind in ("parquet", "disk", "hub"):
        return f"{task.place}, row {position + 1}"
    line = position
    if task.kind not in ("csv", "tsv") and task.layout != "array" and not task.place.endswith(COMPRESSIONS):
        line = 0
        with open_file(task.place) as stream:
            while position > 0 and (block := stream.read(min(position, _PROBE_BYTES))):
                line += block.count(b"\n")
                position -= len(block)
    return f"{task.place}, line {line + 1}"


def _owned_lines(stream: Stream, begin: int | None, end: int, task: ReadTask) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of the documents that begin in (begin, end]; begin None: in [0, end].

    The line that holds byte `begin` began before it, so it belongs to the range before; a paragraph
    document is entered at the first text line after a blank one, and followed past `end` to its own end.
    """
    paragraphs = task.layout == "paragraphs"
    position, inside = 0, True
    if begin is not None:
        window = max(0, begin - _PROBE_BYTES)
        stream.seek(window)
        position = window + stream.read(begin - window).rfind(b"\n") + 1
        stream.seek(position)
        line = stream.readline(task.longest + 1)
        if len(line) > task.longest:
            raise too_long(task, position)
        position += len(line)
        inside = not paragraphs or not line.strip()
    entering = True
    while line := stream.readline(task.longest + 1):
        blank = not line.strip()
        if not inside:
            inside = blank
        elif position > end and (not paragraphs or entering):
            return
        elif len(line) > task.longest:
            raise too_long(task, position)
        else:
            yield position, line
        entering = blank
        position += len(line)
        if paragraphs and blank and position > end:
            return


def _decode(line: bytes) -> str:
    """Return the text of a line; bytes that are not UTF-8 become halves of surrogate pairs."""
    return line.decode("utf-8", "surrogateescape")


def _lines(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
    for position, line in lines:
        if not line.isspace():
            yield position, _decode(line)


def _paragraphs(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
    for blank, run in itertools.groupby(lines, lambda line: line[1].isspace()):
        if not blank:
            positions, texts = zip(*run)
            yield positions[0], _decode(b"".join(texts))


def _passages(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
    return passages((position, _decode(line).rstrip("\r\n")) for position, line in lines)


def passages(texts: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join successive texts, a line each, into documents of 32 thousand characters."""
    collected: list[str] = []
    size = first = 0
    for position, text in texts:
        if not collected:
            first = position
        collected.append(text)
        size += len(text) + 1
        if size >= PASSAGE_CHARACTERS:
            yield first, "\n".join(collected)
            collected, size = [], 0
    if collected:
        yield first, "\n".join(collected)
