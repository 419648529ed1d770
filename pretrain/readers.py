"""Readers: the documents of one task, streamed, from text, jsonl, parquet and Hugging Face datasets.

Records, which have columns, are read by `pretrain.records` on top of this.

A task reads its own share and no other: a byte range of a plain file (a document belongs to the range in
which it begins), every S-th document of a compressed one, a range of a parquet file's row groups.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from pretrain.corpora import Source, Task
from pretrain.errors import UserError

PASSAGE_CHARACTERS = 32768
_PROBE_BYTES = 1 << 20


def open_file(path: str | Path) -> BinaryIO:
    """The decompressed bytes of a file, as a stream."""
    name = str(path)
    if name.endswith(".gz"):
        return gzip.open(name, "rb")
    if name.endswith(".zst"):
        import zstandard

        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(open(name, "rb")), 1 << 18)
    return open(name, "rb", 1 << 18)


def _is_compressed(path: str) -> bool:
    return path.endswith((".gz", ".zst"))


def detect_layout(path: Path) -> str:
    """`paragraphs` if there is a blank line between text in the first megabyte, else `lines`.

    Raises: UserError if the file is not UTF-8 text or cannot be decompressed.
    """
    try:
        with open_file(path) as stream:
            probe = stream.read(_PROBE_BYTES)
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(probe)
    except UnicodeDecodeError as error:
        raise UserError(
            f"source {path} is not UTF-8 text (byte {error.start}). Convert it: iconv -f LATIN1 -t UTF-8 {path}"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"source {path} cannot be read: {error}.") from error
    except Exception as error:
        if type(error).__module__.startswith("zstandard"):
            raise UserError(f"source {path} cannot be decompressed: {error}.") from error
        raise
    seen_text = blank = False
    for line in text.split("\n")[:-1]:
        if not line.strip():
            blank = seen_text
        elif blank:
            return "paragraphs"
        else:
            seen_text = True
    return "lines"


def text_documents(task: Task) -> Iterator[str]:
    """Documents of a text file in the task's layout (lines, paragraphs or passages)."""
    return (text for _, text in numbered_documents(task))


def numbered_documents(task: Task) -> Iterator[tuple[int, str]]:
    """`text_documents`, each with its position: the byte at which it begins in a plain file, the number of its first line
    (from 0) in a compressed one. `where` makes words of it. (Of passages the position says nothing.)
    """
    group = {"lines": _lines, "paragraphs": _paragraphs, "passages": _passages}[task.layout]
    if not _is_compressed(task.place):
        size = os.path.getsize(task.place)
        begin, end = (size * stripe // task.stripes for stripe in (task.stripe, task.stripe + 1))
        with open(task.place, "rb", 1 << 18) as stream:
            yield from group(_owned_lines(stream, begin if task.stripe else None, end, task.layout))
        return
    with naming_damage(task.place), open_file(task.place) as stream:
        for number, (position, text) in enumerate(group(enumerate(stream))):
            if number % task.stripes == task.stripe:
                yield position, text


@contextlib.contextmanager
def naming_damage(place: str) -> Iterator[None]:
    """Turn what decompressors raise for a damaged file into a UserError that names it."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"source {place} is cut short or damaged ({error}). Download it again.") from error
    except Exception as error:
        if type(error).__module__.startswith("zstandard"):
            raise UserError(f"source {place} is damaged ({error}). Download it again.") from error
        raise


def where(task: Task, position: int) -> str:
    """`FILE, line N` for a position of `numbered_documents` (of a csv file: the number of a line, from 0)."""
    line = position
    if task.kind != "csv" and not _is_compressed(task.place):
        line = 0
        with open(task.place, "rb") as stream:
            while position > 0 and (block := stream.read(min(position, _PROBE_BYTES))):
                line += block.count(b"\n")
                position -= len(block)
    return f"{task.place}, line {line + 1}"


def _owned_lines(stream: BinaryIO, begin: int | None, end: int, layout: str) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of the documents that begin in (begin, end]; in [0, end] for the first range (None).

    The line that holds byte `begin` began before it, so it belongs to the range before; a paragraph
    document is entered at the first text line after a blank one, and followed past `end` to its own end.
    """
    paragraphs = layout == "paragraphs"
    position, inside = 0, True
    if begin is not None:
        window = max(0, begin - _PROBE_BYTES)
        stream.seek(window)
        position = window + stream.read(begin - window).rfind(b"\n") + 1
        stream.seek(position)
        line = stream.readline()
        position += len(line)
        inside = not paragraphs or not line.strip()
    entering = True
    for line in stream:
        blank = not line.strip()
        if not inside:
            inside = blank
        elif position > end and (not paragraphs or entering):
            return
        else:
            yield position, line
        entering = blank
        position += len(line)
        if paragraphs and blank and position > end:
            return


def _decode(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _lines(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
    for position, line in lines:
        if not line.isspace():
            yield position, _decode(line)


def _paragraphs(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
    collected: list[bytes] = []
    first = 0
    for position, line in lines:
        if line.isspace():
            if collected:
                yield first, _decode(b"".join(collected))
                collected = []
        else:
            if not collected:
                first = position
            collected.append(line)
    if collected:
        yield first, _decode(b"".join(collected))


def _passages(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
    return enumerate(passages(_decode(line).rstrip("\r\n") for _, line in lines))


def passages(records: Iterable[str]) -> Iterator[str]:
    """Records that follow each other, joined line by line into documents of 32 thousand characters."""
    collected: list[str] = []
    size = 0
    for record in records:
        collected.append(record)
        size += len(record) + 1
        if size >= PASSAGE_CHARACTERS:
            yield "\n".join(collected)
            collected, size = [], 0
    if collected:
        yield "\n".join(collected)


def jsonl_documents(task: Task, source: Source, counts: Counter[str]) -> Iterator[str]:
    """The text field of every line of a jsonl file; broken lines are counted as `broken_records`.

    Raises: UserError if the first line of the task is no JSON object or lacks the field.
    """
    first = True
    for line in text_documents(task):
        try:
            text = json.loads(line)[source.text_key]
            if not isinstance(text, str):
                raise TypeError(f"field {source.text_key!r} holds no text")
        except (ValueError, KeyError, TypeError) as error:
            if first:
                why = f"no field {error}" if isinstance(error, KeyError) else str(error)
                raise UserError(
                    f"source {task.place}: not one JSON object with text per line ({why}; the line begins "
                    f"{line[:60]!r}). Set text_key to the field that holds the text."
                ) from error
            counts["broken_records"] += 1
            continue
        first = False
        yield text


def parquet_documents(task: Task, source: Source) -> Iterator[str]:
    """The text column of the task's row groups."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(task.place) as table:
        count = table.num_row_groups
        groups = range(count * task.stripe // task.stripes, count * (task.stripe + 1) // task.stripes)
        if not groups:
            return
        for batch in table.iter_batches(256, row_groups=list(groups), columns=[source.text_key]):
            yield from (text for text in batch.column(0).to_pylist() if text)


def dataset_documents(task: Task, source: Source) -> Iterator[str]:
    """The text column of a hub dataset or a `save_to_disk` folder, through datatrove's reader.

    Raises: UserError if the split or the column is not there, or the dataset cannot be read.
    """
    from datatrove.pipeline.readers import HuggingFaceDatasetReader

    options: dict = {"text_key": source.text_key}
    if task.kind == "disk":
        place = Path(task.place)
        if (place / "dataset_dict.json").is_file():
            place /= source.split
            if not place.is_dir():
                raise UserError(f"source {task.place} has no split {source.split!r}.")
        reader = HuggingFaceDatasetReader(str(place), load_from_disk=True, **options)
    else:
        chosen = {"split": source.split, "name": source.subset, "revision": source.revision}
        dataset_options = {key: value for key, value in chosen.items() if value}
        reader = HuggingFaceDatasetReader(task.place, dataset_options=dataset_options, streaming=source.streaming, **options)
    empty = True
    try:
        for document in reader.run(None, task.stripe, task.stripes):
            empty = False
            yield document.text
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"source {task.place} cannot be read: {type(error).__name__}: {error}") from error
    if empty and task.stripe == 0:
        raise UserError(f"source {task.place} gave no text; is text_key={source.text_key!r} the right column?")
