"""Read records, which are texts that belong together, from files and Hugging Face datasets.

A record has a text and may have a positive (a text of the same meaning), a negative (a text of another
meaning, close in words), an augmented version of the text and a label: sentence pairs, NLI triples, AugCSE's
sentences with a cached augmentation and its number. Nothing about a record is guessed or
dropped: a field that is missing, misspelt or of the wrong kind is one error that names the file and the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from augment.core.errors import nearest_name, shortened, shown
from augment.text.cleaning import clean
from pretrain.common.errors import UserError
from pretrain.config.data import Source
from pretrain.prepare.sources import readers
from pretrain.prepare.sources.rows import Broken, Row, about_first_line, is_unicode, json_rows, table_rows
from pretrain.prepare.tasks import Task

COLUMNS = ("text", "positive", "negative", "augmented")
LABEL = "label"
MOST_LABEL = 2**31 - 1
# the header of SimCSE's nli_for_simcse.csv; sentence-transformers' name of a triple's first text
_OTHER_NAMES = {"sent0": "text", "sent1": "positive", "hard_neg": "negative", "anchor": "text"}


@dataclass(frozen=True)
class Record:
    """Texts that belong together, cleaned, in the order of `COLUMNS`; "" where there is none.

    position: where the record begins (`readers.where`).
    """

    texts: tuple[str, ...]
    label: int | None
    position: int

    def joined(self) -> bytes:
        """Return texts and label in one piece, a line each: what makes two records the same."""
        lines = (*self.texts, "" if self.label is None else str(self.label))
        return "\n".join(lines).encode("utf-8", "replace")


def split_joined(text: str) -> tuple[list[str], int | None]:
    """Return (texts, label) of a decoded `Record.joined`."""
    *texts, label = text.split("\n")
    return texts, int(label) if label else None


def records(task: Task, source: Source) -> Iterator[Record]:
    """Yield the records of a task, in order.

    Raises: UserError, naming file and line, for what is no record, and where one has a label and another has
    none.
    """
    rows = {"jsonl": _jsonl_rows, "text": _text_rows}.get(task.kind, _table_rows)(task, source)
    first: Record | None = None
    for position, row in rows:
        record = _record(row, position, partial(_fault, task, position))
        if first is None:
            first = record
        elif (record.label is None) != (first.label is None):
            here, there = ("no", "one") if record.label is None else ("a", "none")
            before = readers.where(task, first.position)
            raise _fault(task, position, f"this record has {here} label, and the one in {before} has {there}")
        yield record


def _record(row: dict[str, Any], position: int, fault: Callable[[str], UserError]) -> Record:
    """Return the record of a row, whose values are by column."""
    texts = []
    for column in COLUMNS:
        value = row.get(column)
        if value is not None and not isinstance(value, str):
            raise fault(f"the {column} is {shown(value)}, not text")
        if value and not is_unicode(value):
            raise fault(
                f"the {column} is not Unicode (half of a surrogate pair, or bytes that are not UTF-8): "
                f"{value[:60]!a}"
            )
        texts.append(clean(value or ""))
    if not texts[0]:
        raise fault("the record has no text")
    label = row.get(LABEL)
    if label is not None and (
        isinstance(label, bool) or not isinstance(label, int) or not 0 <= label <= MOST_LABEL
    ):
        raise fault(f"the label is {shown(label)}, not a whole number from 0 on")
    return Record(tuple(texts), label, position)


def _text_rows(task: Task, source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    for position, text in readers.numbered_documents(task):
        if clean(text):  # blank to the eye: no document at all
            yield position, {"text": text}


def _jsonl_rows(task: Task, source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    known: dict[tuple[str, ...], dict[str, str]] = {}
    for position, row in json_rows(task):
        row = _whole(task, position, row)
        fields = tuple(row)
        if fields not in known:
            known[fields] = _columns(fields, source, partial(_fault, task, position))
        yield position, {column: row[field] for field, column in known[fields].items()}


def _table_rows(task: Task, source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    columns: dict[str, str] = {}

    def choose(fields: tuple[str, ...]) -> list[str]:
        hint = about_first_line(task, fields)
        columns.update(
            _columns(fields, source, lambda what: UserError(f"{_fault(task, 0, what)} {hint}".rstrip()))
        )
        return list(columns)

    for position, row in table_rows(task, source, choose):
        record = {columns[field]: value for field, value in _whole(task, position, row).items()}
        if isinstance(record.get(LABEL), str):  # csv has no numbers
            record[LABEL] = _number(record[LABEL])
        yield position, record


def _whole(task: Task, position: int, row: Row | Broken) -> Row:
    if isinstance(row, Broken):
        raise _fault(task, position, row.why)
    return row


def _number(text: str) -> int | str | None:
    text = text.strip()
    # more than 20 digits are too large a label, and far more are no number to Python
    return int(text) if text.isdecimal() and len(text) <= 20 else text or None


def _columns(fields: tuple[str, ...], source: Source, fault: Callable[[str], UserError]) -> dict[str, str]:
    """Return field -> column, for the fields that a record has."""
    keys = {column: getattr(source, f"{column}_key") for column in (*COLUMNS, LABEL)}
    meant = {key: column for column, key in keys.items()}
    for field, standard in _OTHER_NAMES.items():
        if keys[standard] == standard:  # nobody has said otherwise
            meant.setdefault(field, standard)
    column_of: dict[str, str] = {}
    for field in fields:
        column = meant.get(field)
        if column is None:
            near = nearest_name(str(field), [key for key in meant if key not in fields])
            if near or source.other_fields == "refuse":
                hint = f"; did you mean {near!r}?" if near else ""
                raise fault(
                    f"there is no column {shown(field)}{hint} (columns are {', '.join(meant)}). Name the "
                    f"columns in the source's {', '.join(f'{column}_key' for column in keys)}, or leave "
                    "others out by other_fields: ignore"
                )
        elif column in column_of.values():
            names = _names(name for name in fields if meant.get(name) == column)
            raise fault(f"there are two columns for {column}: {names}")
        else:
            column_of[field] = column
    if "text" not in column_of.values():
        raise fault(
            f"there is no column {source.text_key!r}; there are {_names(fields)}. "
            + source.how_to_set("text_key").removesuffix(".")
        )
    return column_of


def _names(fields: Iterable[str]) -> str:
    return shortened(", ".join(map(str, fields))) or "none"


def _fault(task: Task, position: int, what: str) -> UserError:
    return UserError(f"source {readers.where(task, position)}: {what}.")
