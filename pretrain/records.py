"""Records: texts that belong together, read from jsonl, csv and text files.

A record has a text and may have a positive (a text of the same meaning), a negative (a text of another meaning, close in
words), an augmented version of the text and a label: sentence pairs, NLI triples, AugCSE's sentences with a cached
augmentation and its number. Nothing about a record is guessed or
dropped: a field that is missing, misspelt or of the wrong kind is one error that names the file and the line.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from augment.cleaning import clean
from pretrain import readers
from pretrain.corpora import Source, Task
from pretrain.errors import UserError

COLUMNS = ("text", "positive", "negative", "augmented")
LABEL = "label"
MOST_LABEL = 2**31 - 1
_SIMCSE = {"sent0": "text", "sent1": "positive", "hard_neg": "negative"}  # the header of its nli_for_simcse.csv
_FIELD_CHARACTERS = 1 << 24  # the csv module's own limit is 131,072


@dataclass(frozen=True)
class Record:
    """texts: cleaned, in the order of `COLUMNS`, "" where there is none. position: where it begins (`readers.where`)."""

    texts: tuple[str, ...]
    label: int | None
    position: int

    def joined(self) -> bytes:
        """Texts and label in one piece, a line each: what makes two records the same."""
        lines = (*self.texts, "" if self.label is None else str(self.label))
        return "\n".join(lines).encode("utf-8", "replace")


def split_joined(text: str) -> tuple[list[str], int | None]:
    """(texts, label) of `Record.joined`, decoded."""
    *texts, label = text.split("\n")
    return texts, int(label) if label else None


def records(task: Task, source: Source) -> Iterator[Record]:
    """The records of a task, in order.

    Raises: UserError, naming file and line, for what is no record, and where one has a label and another has none.
    """
    rows = {"jsonl": _jsonl_rows, "csv": _csv_rows, "text": _text_rows}[task.kind](task, source)
    first: Record | None = None
    for position, row in rows:
        record = _record(row, position, lambda what, position=position: _fault(task, position, what))
        if first is None:
            first = record
        elif (record.label is None) != (first.label is None):
            here, there = ("no", "one") if record.label is None else ("a", "none")
            before = readers.where(task, first.position)
            raise _fault(task, position, f"this record has {here} label, and the one in {before} has {there}")
        yield record


def _record(row: dict[str, Any], position: int, fault: Callable[[str], UserError]) -> Record:
    """row: what was found, by column."""
    texts = []
    for column in COLUMNS:
        value = row.get(column)
        if value is not None and not isinstance(value, str):
            raise fault(f"the {column} is {value!r}, not text")
        texts.append(clean(value or ""))
    if not texts[0]:
        raise fault("the record has no text")
    label = row.get(LABEL)
    if label is not None and (isinstance(label, bool) or not isinstance(label, int) or not 0 <= label <= MOST_LABEL):
        raise fault(f"the label is {label!r}, not a whole number from 0 on")
    return Record(tuple(texts), label, position)


def _text_rows(task: Task, source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    for position, text in readers.numbered_documents(task):
        if clean(text):  # blank to the eye: no document at all
            yield position, {"text": text}


def _jsonl_rows(task: Task, source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    known: dict[tuple[str, ...], dict[str, str]] = {}
    for position, line in readers.numbered_documents(task):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise _fault(task, position, f"not JSON ({error}); the line begins {line[:60]!r}") from error
        if not isinstance(row, dict):
            raise _fault(task, position, f"not a JSON object; the line begins {line[:60]!r}")
        fields = tuple(row)
        if fields not in known:
            known[fields] = _columns(fields, source, lambda what, position=position: _fault(task, position, what))
        yield position, {column: row[field] for field, column in known[fields].items()}


def _csv_rows(task: Task, source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(_FIELD_CHARACTERS)
    with readers.naming_damage(task.place), readers.open_file(task.place) as stream:
        rows = _numbered_rows(task, stream)
        header = next(rows, (0, []))[1]
        columns = _columns(tuple(header), source, lambda what: _fault(task, 0, what))
        chosen = [(number, columns[field]) for number, field in enumerate(header) if field in columns]
        for count, (position, row) in enumerate(rows):
            if count % task.stripes != task.stripe:
                continue
            if len(row) != len(header):
                raise _fault(task, position, f"{len(row)} fields where the header has {len(header)} ({', '.join(header)})")
            found: dict[str, Any] = {column: row[number] for number, column in chosen}
            if LABEL in found:
                found[LABEL] = _number(found[LABEL])
            yield position, found


def _numbered_rows(task: Task, stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the number of its first line from 0: a quoted field may hold line breaks."""
    reader = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""), strict=True)
    while True:
        position = reader.line_num
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise _fault(task, position, f"not csv ({error})") from error
        except UnicodeDecodeError as error:
            raise _fault(task, position, f"not UTF-8 from here on ({error})") from error
        if row is None:
            return
        if row:
            yield position, row


def _number(text: str) -> int | str | None:
    text = text.strip()
    return int(text) if text.isdecimal() else text or None


def _columns(fields: tuple[str, ...], source: Source, fault: Callable[[str], UserError]) -> dict[str, str]:
    """Field -> column, for the fields that a record has."""
    keys = {column: getattr(source, f"{column}_key") for column in (*COLUMNS, LABEL)}
    meant = {key: column for column, key in keys.items()}
    for field, column in _SIMCSE.items():
        if keys[column] == column:  # nobody has said otherwise
            meant.setdefault(field, column)
    found: dict[str, str] = {}
    for field in fields:
        column = meant.get(field)
        if column is None:
            near = difflib.get_close_matches(str(field), [key for key in meant if key not in fields], 1, 0.6)
            if near or source.other_fields == "refuse":
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise fault(
                    f"there is no column {field!r}{hint} (columns are {', '.join(meant)}). Name the columns in the source's "
                    f"{', '.join(f'{column}_key' for column in keys)}, or leave others out by other_fields: ignore"
                )
        elif column in found.values():
            raise fault(f"the {column} is there twice: {', '.join(f for f in fields if meant.get(f) == column)}")
        else:
            found[field] = column
    if "text" not in found.values():
        raise fault(f"there is no column {source.text_key!r}; there are {', '.join(map(str, fields)) or 'none'}. Set text_key")
    return found


def _fault(task: Task, position: int, what: str) -> UserError:
    return UserError(f"source {readers.where(task, position)}: {what}.")
