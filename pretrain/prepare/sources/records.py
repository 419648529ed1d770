"""Read records, which are texts that belong together, from files and Hugging Face datasets.

A record has a text and may have a positive (a text of the same meaning), negatives (texts of another
meaning, close in words), an augmented version of the text and a label: sentence pairs, NLI triples, mined
negatives, AugCSE's sentences with a cached augmentation and its number. A row with several positives is a
record for each. Nothing about a record is guessed or dropped: a field that is missing, misspelt or of the
wrong kind is one error that names the file and the line.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from augment.core.errors import nearest_name, shortened, shown
from augment.text.cleaning import clean
from pretrain.common.errors import UserError
from pretrain.config.data import Source
from pretrain.data.batch import NEGATIVE, column_of
from pretrain.prepare.sources import readers
from pretrain.prepare.sources.readers import ReadTask
from pretrain.prepare.sources.rows import BrokenRow, Row, about_first_line, is_unicode, json_rows, table_rows

COLUMNS = ("text", "positive", "negative", "augmented")
LABEL = "label"
MOST_LABEL = 2**31 - 1
MOST_NEGATIVES = 100
# SimCSE's csv files, sentence-transformers' data sets, FlagEmbedding's and Tevatron's training files
_OTHER_NAMES = {
    "text": ("sent0", "anchor", "query", "question", "sentence1"),
    "positive": ("sent1", "answer", "sentence2", "pos", "positive_passages"),
    "negative": ("hard_neg", "neg", "negatives", "negative_passages"),
}
_SCORES = ("score", "scores", "similarity_score", "pos_scores", "neg_scores")
_NUMBERED = re.compile(r"(.*?)_?(\d+)")  # negative_1, negative_2 ...


def column_names(count: int) -> list[str]:
    """Return the columns of a record's first `count` texts.

    >>> column_names(6)
    ['text', 'positive', 'negative', 'augmented', 'negative2', 'negative3']
    """
    return [*COLUMNS, *(f"negative{number}" for number in range(2, count - len(COLUMNS) + 2))]


@dataclass(frozen=True)
class TextRecord:
    """Texts that belong together, cleaned, in the order of `column_names`; "" if there is none.

    position: where the record begins (`readers.where`).
    """

    texts: tuple[str, ...]
    label: int | None
    position: int

    def joined(self) -> bytes:
        """Return texts and label in one piece, a line each: what makes two records the same."""
        first, further = self.texts[: len(COLUMNS)], self.texts[len(COLUMNS) :]
        lines = (*first, "" if self.label is None else str(self.label), *further)
        return "\n".join(lines).encode("utf-8", "replace")


def split_joined(text: str) -> tuple[list[str], int | None]:
    """Return (texts, label) of a decoded `TextRecord.joined`."""
    texts = text.split("\n")
    label = texts.pop(len(COLUMNS))
    return texts, int(label) if label else None


def records(task: ReadTask, source: Source) -> Iterator[TextRecord]:
    """Yield the records of a task, in order.

    Raises: UserError, naming file and line, for what is no record, and where one has a label and another has
    none.
    """
    rows = _text_rows(task) if task.kind == "text" else _rows_of_fields(task, source)
    first: TextRecord | None = None
    for position, row in rows:
        for record in _records(row, position, partial(_fault, task, position)):
            if first is None:
                first = record
            elif (record.label is None) != (first.label is None):
                here, there = ("no", "one") if record.label is None else ("a", "none")
                before = readers.where(task, first.position)
                raise _fault(task, position, f"this record has {here} label, and {before} has {there}")
            yield record


def _records(row: dict[str, Any], position: int, fault: Callable[[str], UserError]) -> list[TextRecord]:
    """Return the records of a row, whose values are by column: one for each of its positives."""

    def texts_of(column: str) -> list[str]:
        value = row.get(column)
        if not isinstance(value, list) or column_of(column) not in ("positive", NEGATIVE):
            value = [value]
        return [text for one in value if (text := _text(one, column, fault))]

    text = texts_of("text")
    if not text:
        raise fault("the record has no text")
    # in the order of their numbers: negative_2 before negative_10
    columns = sorted(
        (name for name in row if column_of(name) == NEGATIVE), key=lambda name: (len(name), name)
    )
    negatives = [text for column in columns for text in texts_of(column)]
    if len(negatives) > MOST_NEGATIVES:
        raise fault(f"{len(negatives)} negatives, more than {MOST_NEGATIVES}; keep the hardest")
    further, augmented = negatives[1:], (texts_of("augmented") or [""])[0]
    label = row.get(LABEL)
    if label is not None and (
        isinstance(label, bool) or not isinstance(label, int) or not 0 <= label <= MOST_LABEL
    ):
        raise fault(f"the label is {shown(label)}, not a whole number from 0 on")
    return [
        TextRecord((text[0], positive, (negatives or [""])[0], augmented, *further), label, position)
        for positive in texts_of("positive") or [""]
    ]


def _text(value: Any, column: str, fault: Callable[[str], UserError]) -> str:
    """Return a text of a field, cleaned; a passage, with title and text, is one text as in BEIR's corpora."""
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = f"{value.get('title') or ''} {value['text']}"
    if value is not None and not isinstance(value, str):
        raise fault(f"the {column} is {shown(value)}, not text")
    if value and not is_unicode(value):
        raise fault(f"the {column} is not Unicode: {value[:60]!a}")
    return clean(value or "")


def _text_rows(task: ReadTask) -> Iterator[tuple[int, dict[str, Any]]]:
    for position, text in readers.numbered_documents(task):
        if clean(text):  # blank to the eye: no document at all
            yield position, {"text": text}


def _rows_of_fields(task: ReadTask, source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a file with fields, or of a data set, by column."""
    known: dict[tuple[str, ...], dict[str, str]] = {}  # fields -> field -> column

    def choose(fields: tuple[str, ...]) -> list[str]:
        hint = about_first_line(task, fields)
        found = _columns(fields, source, lambda what: UserError(f"{_fault(task, 0, what)} {hint}".rstrip()))
        known[tuple(found)] = found
        return list(found)

    rows = json_rows(task) if task.kind == "jsonl" else table_rows(task, source, choose)
    for position, row in rows:
        row = _whole(task, position, row)
        fields = tuple(row)
        if fields not in known:
            known[fields] = _columns(fields, source, partial(_fault, task, position))
        record = {column: row[field] for field, column in known[fields].items()}
        if task.kind != "jsonl" and isinstance(record.get(LABEL), str):  # csv has no numbers
            record[LABEL] = _number(record[LABEL])
        yield position, record


def _whole(task: ReadTask, position: int, row: Row | BrokenRow) -> Row:
    if isinstance(row, BrokenRow):
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
    for standard, names in _OTHER_NAMES.items():
        # nobody has said otherwise; of a file that has both, one is another field
        if keys[standard] == standard and (standard not in fields or source.other_fields == "refuse"):
            meant |= {name: standard for name in names if name not in meant}
    filled = {meant[field] for field in fields if field in meant}
    unlabelled = "sentence2" in fields and meant.get("sentence2") == "positive" and keys[LABEL] == LABEL
    if unlabelled:
        filled.add(LABEL)
    columns: dict[str, str] = {}
    for field in fields:
        column = meant.get(field)
        numbered = _NUMBERED.fullmatch(str(field))
        if column is None and numbered and meant.get(numbered[1]) == NEGATIVE:
            column = f"{NEGATIVE}{int(numbered[2])}"
        if column is None:
            near = nearest_name(str(field), [key for key in meant if meant[key] not in filled])
            if near or source.other_fields == "refuse":
                hint = f"; did you mean {near!r}?" if near else ""
                if field in _SCORES:
                    hint = ", which says how alike texts are and is not used: keep pairs that mean the same"
                raise fault(
                    f"there is no column {shown(field)}{hint} (columns are {', '.join(meant)}). Name the "
                    f"columns in the source's {', '.join(f'{column}_key' for column in keys)}, or leave "
                    "others out by other_fields: ignore"
                )
        elif column in columns.values():
            both = _names([*(name for name, of in columns.items() if of == column), field])
            raise fault(f"there are two columns for {column}: {both}")
        else:
            columns[field] = column
    if unlabelled and LABEL in columns.values():
        raise fault(
            "a label beside sentence2: keep pairs that mean the same, and remove it, or give label_key"
        )
    if "text" not in columns.values():
        raise fault(
            f"there is no column {source.text_key!r}; there are {_names(fields)}. "
            + source.how_to_set("text_key").removesuffix(".")
        )
    return columns


def _names(fields: Iterable[str]) -> str:
    return shortened(", ".join(map(str, fields))) or "none"


def _fault(task: ReadTask, position: int, what: str) -> UserError:
    return UserError(f"source {readers.where(task, position)}: {what}.")
