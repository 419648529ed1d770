"""Read rows of jsonl, csv, tsv and parquet files and Hugging Face datasets, and the documents of any source.

A task reads its own share: every S-th row of a csv file (a quoted field may hold line breaks, so only the
whole file tells where rows begin), a range of a parquet file's row groups, a range of a saved dataset's rows,
one file of a streamed one.
"""

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from augment.core.errors import shortened
from pretrain.common.errors import UserError
from pretrain.config.data import Source
from pretrain.prepare.sources import readers
from pretrain.prepare.sources.readers import ReadTask, where
from pretrain.prepare.sources.structure import Document
from pretrain.prepare.wrapping import margin, unwrap, words_of

_BATCH = 256
_PROBE = 1 << 20
_BETWEEN = re.compile(r"[\s,\[\]]*")  # the objects of an array

Row = dict[str, Any]
Choose = Callable[[tuple[str, ...]], Sequence[str]]
"""Of the names of all columns, those that are to be read. Raises UserError if they do not fit."""


@dataclass(frozen=True)
class BrokenRow:
    """A row that cannot be read, and why."""

    why: str


def is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8.

    It cannot with half of a surrogate pair (`"\\ud800"` in JSON), or a byte that was not UTF-8 to begin with.
    """
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def json_rows(task: ReadTask) -> Iterator[tuple[int, Row | BrokenRow]]:
    """Yield (position, object) of every line of a jsonl file, or of every member of a JSON array."""
    if task.layout == "array":
        yield from _array_rows(task)
        return
    for position, line in readers.numbered_documents(task):
        row: Any = None
        try:
            row = json.loads(line.removeprefix("\ufeff"))  # a file's byte order mark
            why = "" if isinstance(row, dict) else "not a JSON object"
        except RecursionError:
            why = "JSON that is nested too deep"
        except ValueError as error:
            why = f"not JSON ({error})"
        yield position, BrokenRow(f"{why}; the line begins {line[:60]!r}") if why else row


def _array_rows(task: ReadTask) -> Iterator[tuple[int, Row | BrokenRow]]:
    """Yield (line, member) of an array of objects, or of objects that are written over several lines each."""
    decode = json.JSONDecoder().raw_decode
    with readers.naming_damage(task.place), readers.open_file(task.place) as stream:
        text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape")
        buffer, line, number, array = "", 0, 0, None
        while block := text.read(_PROBE):
            buffer, at, fault = buffer + block, 0, ""
            if array is None:
                array = buffer.lstrip()[:1] == "["
            try:
                while True:
                    start = _BETWEEN.match(buffer, at).end()  # type: ignore[union-attr]
                    row, behind = decode(buffer, start)
                    if behind - start > task.longest:
                        break
                    line += buffer.count("\n", at, start)
                    if number % task.stripes == task.stripe:
                        yield line, row if isinstance(row, dict) else BrokenRow("not a JSON object")
                    line, number, at = line + buffer.count("\n", start, behind), number + 1, behind
            except json.JSONDecodeError:
                pass  # the next block has the rest of the object
            except RecursionError:
                fault = "JSON that is nested too deep"
            except ValueError as error:  # a number of thousands of digits
                fault = f"not JSON ({error})"
            rest = buffer[at:].lstrip(", \r\n\t")
            line += buffer.count("\n", at, len(buffer) - len(rest))
            buffer = rest
            if fault:
                raise UserError(f"source {where(task, line)}: {fault}; it begins {buffer[:60]!r}.")
            if len(buffer) > task.longest:
                raise readers.too_long(task, line, f", or not JSON from here: {buffer[:60]!r}")
        ending = "".join(buffer.split())
        if ending not in (("]", "[]") if array else ("",)):
            fault = f"not JSON, or the file is cut short here: {buffer[:60]!r}"
            if not ending:
                fault = "the array has no end: the file is cut short"
            raise UserError(f"source {where(task, line)}: {fault}.")


def about_first_line(task: ReadTask, fields: Sequence[str]) -> str:
    """Say in an error, with a blank behind it, what the first line of a csv or tsv file should be."""
    if task.kind not in ("csv", "tsv"):
        return ""
    if task.kind == "csv" and len(fields) == 1 and "\t" in fields[0]:
        return "Between its fields stands a tab: its format is tsv. "
    return f"The first line of a {task.kind} file names its columns; add it if it is missing. "


def table_rows(task: ReadTask, source: Source, choose: Choose) -> Iterator[tuple[int, Row | BrokenRow]]:
    """Yield (position, fields) of the task's rows of a table or dataset, of the columns chosen."""

    def choose_once(fields: tuple[str, ...]) -> Sequence[str]:
        chosen = choose(fields)
        if twice := [field for field in chosen if fields.count(field) > 1]:
            raise UserError(f"source {task.place} has two columns {twice[0]!r}. Rename one of them.")
        return chosen

    if task.kind in ("csv", "tsv"):
        rows = _csv_rows(task, choose_once)
    elif task.kind == "parquet":
        rows = _parquet_rows(task, choose_once)
    else:
        rows = _dataset_rows(task, source, choose_once)
    for position, row in rows:
        texts = () if isinstance(row, BrokenRow) else row.values()
        if any(isinstance(text, str) and len(text) > task.longest for text in texts):
            raise readers.too_long(task, position)
        yield position, row


def rows_of(
    task: ReadTask, source: Source, choose: Choose = lambda names: names
) -> Iterator[tuple[int, Row | BrokenRow]]:
    """Yield (position, fields) of rows, texts without the source's markup; of a table the columns chosen."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(one) for one in value]
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        return Document.marked(value, source.markup).text if isinstance(value, str) else value

    for position, row in json_rows(task) if task.kind == "jsonl" else table_rows(task, source, choose):
        if source.markup != "none" and not isinstance(row, BrokenRow):
            try:
                row = plain(row)
            except RecursionError:
                row = BrokenRow("JSON that is nested too deep")
        yield position, row


def _csv_rows(task: ReadTask, choose: Choose) -> Iterator[tuple[int, Row | BrokenRow]]:
    csv.field_size_limit(task.longest)
    with readers.naming_damage(task.place), readers.open_file(task.place) as stream:
        rows = _numbered_rows(task, stream)
        header = next(rows, (0, []))[1]
        if not all(map(is_unicode, header)):
            readers.read_head(Path(task.place))  # it says of what encoding the file is, and refuses it
        wanted = set(choose(tuple(header)))
        chosen = [(number, field) for number, field in enumerate(header) if field in wanted]
        for count, (position, row) in enumerate(rows):
            if count % task.stripes != task.stripe:
                continue
            if len(row) != len(header):
                names = shortened(", ".join(header))
                yield position, BrokenRow(f"{len(row)} fields where the header has {len(header)} ({names})")
            else:
                yield position, {field: row[number] for number, field in chosen}


def _numbered_rows(task: ReadTask, stream: readers.Stream) -> Iterator[tuple[int, list[str]]]:
    """Yield rows that are not blank, each with the number of its first line from 0."""
    # Bytes that are not UTF-8 become halves of surrogate pairs, which `is_unicode` finds in their row.
    text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")

    def lines() -> Iterator[str]:
        while line := text.readline(task.longest + 1):
            if len(line) > task.longest:
                raise readers.too_long(task, reader.line_num)
            yield line

    if task.kind == "tsv":  # has no quotes: a field is what lies between tabs
        reader = csv.reader(lines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines(), strict=True, **_dialect(task.place))
    while True:
        position = reader.line_num
        try:
            row = next(reader, None)
        except csv.Error as error:
            if "field limit" in str(error):
                raise readers.too_long(task, position) from error
            hint = "" if task.kind == "tsv" else " A quote inside quotes is written twice."
            raise UserError(f"source {where(task, position)}: not {task.kind} ({error}).{hint}") from error
        if row is None:
            return
        if row:
            yield position, row


def _dialect(place: str) -> dict[str, Any]:
    """Return how a csv file is written.

    Between fields may stand `;`, as spreadsheets write where 1,5 is a number; a quote inside quotes may be
    \\", as Spark and MySQL write.
    """
    with readers.open_file(place) as stream:
        head = stream.read(_PROBE).decode("utf-8-sig", "replace")
    lines = head.splitlines(keepends=True)
    delimiter, escape = ",", None
    try:
        by = {mark: len(next(filter(None, csv.reader(lines, delimiter=mark)), [])) for mark in ",\t;"}
        delimiter = ";" if by[";"] > max(by[","], by["\t"]) else ","
        if '\\"' in head:
            list(csv.reader(lines, strict=True, delimiter=delimiter))
    except csv.Error as error:  # and not that `head` ends inside quotes
        escape = "\\" if "expected after" in str(error) else None
    return {"delimiter": delimiter, "escapechar": escape}


def _parquet_rows(task: ReadTask, choose: Choose) -> Iterator[tuple[int, Row | BrokenRow]]:
    import pyarrow
    import pyarrow.parquet

    position = 0
    try:
        with pyarrow.parquet.ParquetFile(task.place) as table:
            count = table.num_row_groups
            first, last = (count * stripe // task.stripes for stripe in (task.stripe, task.stripe + 1))
            columns = list(choose(tuple(table.schema_arrow.names)))
            if first == last:
                return
            position = sum(table.metadata.row_group(group).num_rows for group in range(first))
            for batch in table.iter_batches(_BATCH, row_groups=list(range(first, last)), columns=columns):
                yield from _arrow_rows(batch, position)
                position += batch.num_rows
    except (OSError, pyarrow.ArrowException) as error:
        place = where(task, position)
        raise UserError(f"source {place}: cannot be read ({error}). Download it again.") from error


def _arrow_rows(batch: Any, position: int) -> Iterator[tuple[int, Row | BrokenRow]]:
    try:
        rows: list[Row | BrokenRow] = batch.to_pylist()
    except UnicodeDecodeError:  # in one of them: arrow does not check what files hold
        rows = []
        for number in range(batch.num_rows):
            try:
                rows += batch.slice(number, 1).to_pylist()
            except UnicodeDecodeError as error:
                rows.append(BrokenRow(f"not UTF-8 ({error})"))
    yield from enumerate(rows, position)


def _dataset_rows(task: ReadTask, source: Source, choose: Choose) -> Iterator[tuple[int, Row | BrokenRow]]:
    position = 0
    try:
        dataset = _open_dataset(task, source)
        names = dataset.column_names
        if names is None:  # a stream whose files do not say
            names = list(next(iter(dataset), {}))
        dataset = dataset.select_columns(list(choose(tuple(names))))
        if source.streaming and task.kind == "hub":
            rows = dataset.shard(task.stripes, task.stripe) if task.stripes > 1 else dataset
        else:
            position, last = (len(dataset) * n // task.stripes for n in (task.stripe, task.stripe + 1))
            rows = dataset.select(range(position, last))
        for row in rows:
            yield position, row
            position += 1
    except UserError:
        raise
    except Exception as error:  # datasets raises whatever its readers do
        raise UserError(f"source {where(task, position)}: {type(error).__name__}: {error}.") from error


def _open_dataset(task: ReadTask, source: Source) -> Any:
    import datasets

    if task.kind == "hub":
        return datasets.load_dataset(
            task.place,
            source.subset,
            split=source.split,
            revision=source.revision,
            streaming=source.streaming,
        )
    place = Path(task.place)
    if (place / "dataset_dict.json").is_file():
        place /= source.split
        if not place.is_dir():
            raise UserError(f"source {task.place} has no split {source.split!r}.")
    return datasets.load_from_disk(str(place))


# -- the documents of a task, from any source ------------------------------------
#
# A broken line among good ones is left out. A file that is broken from the beginning is not what its name
# says, and is refused.

MOST_NAMED, _MOST_PRINTED = 5, 20  # of a task's broken rows; of those of several
# broken rows at the beginning of a task, without a good one: the file is not what its name says
_BROKEN_AT_ONCE = 10
_NESTED = ", and fields within fields are not read: docs/data.md has the jq command"


@dataclass
class RowFaults:
    """What a task could not read: how often, and the first few by file and line."""

    counts: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)

    def add(self, name: str, task: ReadTask, position: int, why: str) -> None:
        """Count a fault under `name`; keep where it is and why while there are few."""
        self.counts[name] += 1
        if len(self.named) < MOST_NAMED:
            self.named.append(f"{where(task, position)}: {why}")

    def print(self) -> None:
        """Print what was counted, and the first of what is named, to standard error."""
        notes = [f"note: {count:,} {name.replace('_', ' ')}" for name, count in sorted(self.counts.items())]
        named = [f"  {fault}" for fault in self.named[:_MOST_PRINTED]]
        print(*notes, *named, sep="\n", end="\n" if notes else "", file=sys.stderr, flush=True)


def documents(task: ReadTask, source: Source, faults: RowFaults) -> Iterator[str]:
    """Yield the texts of the documents of a task, in order."""
    if task.kind == "embedded":
        from pretrain.prepare.sources.embedded import module_documents

        yield from module_documents(task.stripe, task.stripes)
        return
    if task.kind == "text":
        texts = readers.numbered_documents(task)
    else:
        texts = _field_texts(task, source, faults)
        if source.layout == "passages":
            texts = readers.passages(texts)
    words = words_of(readers.read_head(Path(task.place))) if task.width else frozenset()
    for position, text in texts:
        text = as_unicode(text, task, position, faults)
        width = task.width
        if source.unwrap == "auto" and task.kind != "text":
            width = margin(text)
            words = words_of(text) if width else words
        if width or source.unwrap is True:
            joined = unwrap(text, width, words)
            faults.counts["documents_unwrapped"] += joined.count("\n") < text.rstrip().count("\n")
            text = joined
        yield text


def as_unicode(text: str, task: ReadTask, position: int, faults: RowFaults) -> str:
    """Return a text without bytes that are not UTF-8 (halves of surrogate pairs), which are a fault."""
    if is_unicode(text):
        return text
    faults.add("documents_not_utf8", task, position, "not UTF-8; the bytes that are not were left out")
    return text.encode("utf-8", "ignore").decode()


def _field_texts(task: ReadTask, source: Source, faults: RowFaults) -> Iterator[tuple[int, str]]:
    """Yield the text field of every row that can be read, with its position."""
    key = source.text_key

    def choose(fields: tuple[str, ...]) -> list[str]:
        if key in fields:
            return [key]
        raise UserError(
            f"source {task.place} has no column {key!r}; it has {shortened(', '.join(fields)) or 'none'}. "
            f"{about_first_line(task, fields)}{_how_to_set_key(task, source)}"
        )

    first = ""  # the fault that the task begins with
    broken = 0
    good = False
    for position, row in rows_of(task, source, choose):
        text = None if isinstance(row, BrokenRow) else row.get(key)
        remedy = "Is the file whole, of the format that its name says (or `format:`), and UTF-8?"
        if isinstance(row, BrokenRow):
            why = row.why
        elif key not in row:
            why = f"no field {key!r} (its fields: {', '.join(map(str, row))[:200] or 'none'})"
            remedy = _how_to_set_key(task, source)
            if "." in key:
                why += _NESTED
        elif text is None or text == "":
            faults.counts["records_without_text"] += 1
            continue
        elif not isinstance(text, str):
            why = f"field {key!r} holds no text, but {str(text)[:60]!r}"
            remedy = _how_to_set_key(task, source)
            if isinstance(text, list | dict):
                why += _NESTED
        elif not is_unicode(text):
            why = f"field {key!r} is not Unicode (half of a surrogate pair, or bytes that are not UTF-8)"
        else:
            good = True
            yield position, text
            continue
        faults.add("broken_records", task, position, why)
        if not good:
            broken += 1
            first = first or f"source {where(task, position)}: {why}. All rows read are like it. {remedy}"
            if broken == _BROKEN_AT_ONCE:
                break
    if first and not good:
        raise UserError(first)


def _how_to_set_key(task: ReadTask, source: Source) -> str:
    """Say what to type to set the key, also if only some files of a folder or glob have other fields."""
    how = source.how_to_set("text_key")
    if task.place == source.source:
        return how
    return f"{how} If other files have other fields, give each kind as a source of its own in that list."
