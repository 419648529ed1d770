"""Read rows of jsonl, csv, tsv and parquet files and Hugging Face datasets, each with its position.

A task reads its own share: every S-th row of a csv file (a quoted field may hold line breaks, so only the
whole file tells where rows begin), a range of a parquet file's row groups, a range of a saved dataset's rows,
one file of a streamed one.
"""

import csv
import io
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augment.core.errors import shortened
from pretrain.common.errors import UserError
from pretrain.config.data import Source
from pretrain.prepare.sources.readers import (
    ReadTask,
    Stream,
    naming_damage,
    numbered_documents,
    open_file,
    too_long,
    where,
)

_BATCH = 256
_PROBE = 1 << 20

Row = dict[str, Any]
Choose = Callable[[tuple[str, ...]], Sequence[str]]
"""Of the names of all columns, those that are to be read. Raises UserError where they do not fit."""


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
    for position, line in numbered_documents(task):
        row: Any = None
        try:
            row = json.loads(line.removeprefix("\ufeff"))  # a file's byte order mark
        except RecursionError:
            row = BrokenRow("JSON that is nested too deep")
        except ValueError as error:
            row = BrokenRow(f"not JSON ({error})")
        if not isinstance(row, dict | BrokenRow):
            row = BrokenRow("not a JSON object")
        if isinstance(row, BrokenRow):
            row = BrokenRow(f"{row.why}; the line begins {line[:60]!r}")
        yield position, row


def _array_rows(task: ReadTask) -> Iterator[tuple[int, Row | BrokenRow]]:
    """Yield (number, member) of an array of objects, which is read whole; one object counts as an array."""
    with naming_damage(task.place), open_file(task.place) as stream:
        try:
            content = json.load(io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape"))
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"source {task.place}: not JSON, or cut short ({error}). Objects one behind the other "
                f"become lines by: jq -c . {shlex.quote(task.place)}"
            ) from error
    members = content if isinstance(content, list) else [content]
    rows = (row if isinstance(row, dict) else BrokenRow("not a JSON object") for row in members)
    yield from _require_short(task, enumerate(rows))


def _require_short(
    task: ReadTask, rows: Iterable[tuple[int, Row | BrokenRow]]
) -> Iterator[tuple[int, Row | BrokenRow]]:
    """Yield rows as they come. Raises: UserError for a text that is longer than the source allows."""
    for position, row in rows:
        texts = () if isinstance(row, BrokenRow) else row.values()
        if any(isinstance(text, str) and len(text) > task.longest for text in texts):
            raise too_long(task, position)
        yield position, row


def about_first_line(task: ReadTask, fields: Sequence[str]) -> str:
    """Say in an error what the first line of a csv or tsv file should be, where it names no wanted column.

    Returns: a sentence with a blank behind it; for other formats nothing.
    """
    if task.kind not in ("csv", "tsv"):
        return ""
    if task.kind == "csv" and len(fields) == 1 and "\t" in fields[0]:
        return "Between its fields stands a tab: its format is tsv. "
    if task.kind == "csv" and len(fields) == 1 and ";" in fields[0]:
        return "Between its fields stands ';': write commas, or tabs and the format tsv. "
    return f"The first line of a {task.kind} file names its columns. "


def table_rows(task: ReadTask, source: Source, choose: Choose) -> Iterator[tuple[int, Row | BrokenRow]]:
    """Yield (position, fields) of the task's rows of a table or dataset, of the columns chosen.

    Raises: UserError, naming file and row or rows, for data that is damaged or not what its name says.
    """

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
    yield from _require_short(task, rows)


def _csv_rows(task: ReadTask, choose: Choose) -> Iterator[tuple[int, Row | BrokenRow]]:
    csv.field_size_limit(task.longest)
    with naming_damage(task.place), open_file(task.place) as stream:
        rows = _numbered_rows(task, stream)
        header = next(rows, (0, []))[1]
        wanted = set(choose(tuple(header)))
        chosen = [(number, field) for number, field in enumerate(header) if field in wanted]
        for count, (position, row) in enumerate(rows):
            if count % task.stripes != task.stripe:
                continue
            if len(row) != len(header):
                names = shortened(", ".join(header))
                why = f"{len(row)} fields where the header has {len(header)} ({names})"
                yield position, BrokenRow(why)
            else:
                yield position, {field: row[number] for number, field in chosen}


def _numbered_rows(task: ReadTask, stream: Stream) -> Iterator[tuple[int, list[str]]]:
    """Yield rows that are not blank, each with the number of its first line from 0.

    A quoted field may hold line breaks.
    """
    # Bytes that are not UTF-8 become halves of surrogate pairs, which `is_unicode` finds in their row.
    text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")

    def lines() -> Iterator[str]:
        while line := text.readline(task.longest + 1):
            if len(line) > task.longest:
                raise too_long(task, reader.line_num)
            yield line

    if task.kind == "tsv":  # has no quotes: a field is what lies between tabs
        reader = csv.reader(lines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(
            lines(), strict=True, escapechar="\\" if _has_escaped_quotes(task.place) else None
        )
    while True:
        position = reader.line_num
        try:
            row = next(reader, None)
        except csv.Error as error:
            if "field limit" in str(error):
                raise too_long(task, position) from error
            hint = "" if task.kind == "tsv" else " A quote inside quotes is written twice."
            raise UserError(f"source {where(task, position)}: not {task.kind} ({error}).{hint}") from error
        if row is None:
            return
        if row:
            yield position, row


def _has_escaped_quotes(place: str) -> bool:
    """Return whether a csv file writes \\" for a quote inside quotes, as Spark and MySQL do."""
    with open_file(place) as stream:
        head = stream.read(_PROBE).decode("utf-8", "replace")
    if '\\"' in head:
        try:
            list(csv.reader(head.splitlines(keepends=True), strict=True))
        except csv.Error as error:  # and not that `head` ends inside quotes
            return "expected after" in str(error)
    return False


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
            position, last = (
                len(dataset) * stripe // task.stripes for stripe in (task.stripe, task.stripe + 1)
            )
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
