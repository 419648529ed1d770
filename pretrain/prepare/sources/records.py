"""Read records, which are texts that belong together, from files and Hugging Face datasets.

A record has a text and may have a positive (a text of the same meaning), negatives (texts of another
meaning, close in words), an augmented version of the text and a label, or a score of how alike text and
positive are: sentence pairs, NLI triples, mined negatives, AugCSE's sentences with a cached augmentation and
its number, STS's judged pairs. A row with several positives is a record for each, or one of all. Nothing
about a record is guessed or dropped: a field that is missing, misspelt or of the wrong kind is one error that
names the file and the line.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from augment.core.errors import excerpt, nearest_name, shortened
from augment.text.cleaning import clean
from pretrain.common.errors import UserError
from pretrain.config.data import Source
from pretrain.data.batch import NEGATIVE, column_of
from pretrain.prepare.sources import readers
from pretrain.prepare.sources.readers import ReadTask
from pretrain.prepare.sources.rows import BrokenRow, about_first_line, is_unicode, rows_of

COLUMNS = ("text", "positive", "negative", "augmented")
LABEL, SCORE = "label", "score"
MOST_LABEL = 2**31 - 1
MOST_SCORE = 3.4e38  # of a float32
MOST_NEGATIVES = 100
MOST_POSITIVES = 100
_BETWEEN = "\x1f"  # positives of one record; `clean` leaves no such character in a text
# SimCSE's csv files, sentence-transformers' data sets, FlagEmbedding's and Tevatron's training files
_OTHER_NAMES = {
    "text": ("sent0", "anchor", "query", "question", "sentence1"),
    "positive": ("sent1", "answer", "sentence2", "pos", "positive_passages"),
    "negative": ("hard_neg", "neg", "negatives", "negative_passages"),
    SCORE: ("similarity_score",),
}
_NUMBERED = re.compile(r"(.*?)_?(\d+)")  # negative_1, negative_2 ...


def column_names(count: int) -> list[str]:
    """Return the columns of a record's first `count` texts.

    >>> column_names(6)
    ['text', 'positive', 'negative', 'augmented', 'negative2', 'negative3']
    """
    return [*COLUMNS, *(f"negative{number}" for number in range(2, count - len(COLUMNS) + 2))]


def by_column(texts: Sequence[str]) -> dict[str, str]:
    """Return column -> text of a record's texts, those of several positives one by one.

    >>> by_column(["a", "b\x1fc", "", ""])
    {'text': 'a', 'positive': 'b', 'negative': '', 'augmented': '', 'positive2': 'c'}
    """
    columns = dict(zip(column_names(len(texts)), texts))
    positives = dict(enumerate(columns["positive"].split(_BETWEEN), 1))
    return columns | {f"positive{number if number > 1 else ''}": text for number, text in positives.items()}


@dataclass(frozen=True)
class TextRecord:
    """Texts that belong together, cleaned, in the order of `column_names`; "" if there is none.

    texts: several positives of one record are one text (`by_column`).
    label: an int is a label, a float a score. position: where the record begins (`readers.where`).
    """

    texts: tuple[str, ...]
    label: int | float | None
    position: int

    def joined(self) -> bytes:
        """Return texts and label in one piece, a line each: what makes two records the same."""
        first, further = self.texts[: len(COLUMNS)], self.texts[len(COLUMNS) :]
        lines = (*first, "" if self.label is None else str(self.label), *further)
        return "\n".join(lines).encode("utf-8", "replace")


def split_joined(text: str) -> tuple[list[str], int | float | None]:
    """Return (texts, label or score) of a decoded `TextRecord.joined`."""
    texts = text.split("\n")
    label = texts.pop(len(COLUMNS))
    return texts, (int(label) if label.isdecimal() else float(label)) if label else None


def records(task: ReadTask, source: Source, together: bool = False) -> Iterator[TextRecord]:
    """Yield the records of a task, in order; of a row with several positives one for each, or `together`."""
    rows = _rows_of_fields(task, source)
    if task.kind == "text":  # without what is blank to the eye: no document at all
        rows = ((place, {"text": text}) for place, text in readers.numbered_documents(task) if clean(text))
    first: TextRecord | None = None
    for position, row in rows:
        for record in _records(row, position, together, partial(_fault, task, position)):
            if first is None:
                first = record
            elif type(record.label) is not type(first.label):
                here, there = ("no", "one") if record.label is None else ("a", "none")
                kind = "score" if float in map(type, (record.label, first.label)) else "label"
                before = readers.where(task, first.position)
                raise _fault(task, position, f"this record has {here} {kind}, and {before} has {there}")
            yield record


def _records(
    row: dict[str, Any], position: int, together: bool, fault: Callable[[str], UserError]
) -> list[TextRecord]:
    """Return the records of a row, whose values are by column: one for each of its positives, or of all."""

    def texts_of(column: str) -> list[str]:
        value = row.get(column)
        if not isinstance(value, list) or column_of(column) not in ("positive", NEGATIVE):
            value = [value]
        return [text for one in value if (text := _text(one, column, fault))]

    text = texts_of("text")
    if not text:
        raise fault("the record has no text")
    # in the order of their numbers: negative_2 before negative_10
    columns = sorted(row, key=lambda name: (len(name), name))
    positives, negatives = (
        [text for column in columns if column_of(column) == kind for text in texts_of(column)]
        for kind in ("positive", NEGATIVE)
    )
    if len(negatives) > MOST_NEGATIVES:
        raise fault(f"{len(negatives)} negatives, more than {MOST_NEGATIVES}; keep the hardest")
    if together and len(positives) > MOST_POSITIVES:
        raise fault(f"{len(positives)} positives together, more than {MOST_POSITIVES}; keep the best")
    further, augmented = negatives[1:], (texts_of("augmented") or [""])[0]
    label = row.get(LABEL)
    is_whole = isinstance(label, int) and not isinstance(label, bool)
    if label is not None and not (is_whole and 0 <= label <= MOST_LABEL):
        raise fault(f"the label is {excerpt(label)}, not a whole number from 0 on")
    if (score := row.get(SCORE)) is not None:
        if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) <= MOST_SCORE:
            raise fault(f"the score is {excerpt(score)}, not a number of float32")
        if label is not None or negatives or len(positives) != 1:
            raise fault("a score is of a text and one positive: leave label and negatives out")
        label = float(score)
    return [
        TextRecord((text[0], positive, (negatives or [""])[0], augmented, *further), label, position)
        for positive in ([_BETWEEN.join(positives)] if together else positives or [""])
    ]


def _text(value: Any, column: str, fault: Callable[[str], UserError]) -> str:
    """Return a text of a field, cleaned; a passage, with title and text, is one text as in BEIR's corpora."""
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = f"{value.get('title') or ''} {value['text']}"
    if value is not None and not isinstance(value, str):
        raise fault(f"the {column} is {excerpt(value)}, not text")
    if value and not is_unicode(value):
        raise fault(f"the {column} is not Unicode: {value[:60]!a}")
    return clean(value or "")


def _rows_of_fields(task: ReadTask, source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a file with fields, or of a data set, by column."""
    known: dict[tuple[str, ...], dict[str, str]] = {}  # fields -> field -> column

    def choose(fields: tuple[str, ...]) -> list[str]:
        hint = about_first_line(task, fields)
        found = _columns(fields, source, lambda what: UserError(f"{_fault(task, 0, what)} {hint}".rstrip()))
        known[tuple(found)] = found
        return list(found)

    for position, row in rows_of(task, source, choose):
        if isinstance(row, BrokenRow):
            raise _fault(task, position, row.why)
        fields = tuple(row)
        if fields not in known:
            known[fields] = _columns(fields, source, partial(_fault, task, position))
        record = {column: row[field] for field, column in known[fields].items()}
        if task.kind != "jsonl" and isinstance(record.get(LABEL), str):  # csv has no numbers
            record[LABEL] = _number(record[LABEL])
        if task.kind != "jsonl" and isinstance(score := record.get(SCORE), str):
            with suppress(ValueError):  # what is no number is refused as what it is
                record[SCORE] = float(score) if score.strip() else None
        yield position, record


def _number(text: str) -> int | str | None:
    text = text.strip()
    # more than 20 digits are too large a label, and far more are no number to Python
    return int(text) if text.isdecimal() and len(text) <= 20 else text or None


def text_fields(fields: tuple[str, ...], source: Source) -> list[str]:
    """Return the fields that are read as texts of a record. Raises UserError as reading it does."""
    columns = _columns(fields, source, UserError)
    return [field for field, column in columns.items() if column not in (LABEL, SCORE)]


def _columns(fields: tuple[str, ...], source: Source, fault: Callable[[str], UserError]) -> dict[str, str]:
    """Return field -> column, for the fields that a record has."""
    keys = {column: getattr(source, f"{column}_key") for column in (*COLUMNS, LABEL, SCORE)}
    if keys[SCORE] is None and source.other_fields == "refuse":
        keys[SCORE] = SCORE
    meant = {key: column for column, key in keys.items() if key is not None}
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
        several = (NEGATIVE, "positive") if source.other_fields == "refuse" else (NEGATIVE,)
        if column is None and numbered and (kind := meant.get(numbered[1])) in several:
            column = f"{kind}{int(numbered[2])}"
        if column is None:
            near = nearest_name(str(field), [key for key in meant if meant[key] not in filled])
            if near or source.other_fields == "refuse":
                hint = f"; did you mean {near!r}?" if near else ""
                scores = [name for name in fields if meant.get(name) == SCORE]
                wanted = source.model_dump(exclude_defaults=True) | {"other_fields": "ignore"}
                wanted |= {"score_key": scores[0]} if scores else {}  # else it would be left out too
                raise fault(
                    f"there is no column {excerpt(field)}{hint} (columns are {', '.join(meant)}). Name the "
                    f"columns in the source's {', '.join(f'{column}_key' for column in keys)}, or leave "
                    f"others out: --source {shlex.quote(json.dumps([wanted], ensure_ascii=False))}"
                )
        elif column in columns.values():
            both = _names([*(name for name, of in columns.items() if of == column), field])
            raise fault(f"there are two columns for {column}: {both}")
        else:
            columns[field] = column
    if unlabelled and LABEL in columns.values():
        mend = "keep pairs that mean the same, and remove it, or give label_key or score_key"
        raise fault(f"a label beside sentence2: {mend}")
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
