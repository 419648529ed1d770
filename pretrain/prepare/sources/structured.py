"""Read the documents of a source with the structure that their files give them."""

import codecs
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from statistics import fmean

from augment.core.errors import shortened
from augment.text.cleaning import clean
from pretrain.common.errors import UserError, not_utf8
from pretrain.config.data import Source
from pretrain.prepare.sources.markup import HTML, MARKDOWN, MARKUP, WIKITEXT
from pretrain.prepare.sources.readers import COMPRESSIONS, ReadTask, naming_damage, open_file, too_long
from pretrain.prepare.sources.records import text_fields
from pretrain.prepare.sources.rows import BrokenRow, RowFaults, as_unicode, documents, rows_of
from pretrain.prepare.sources.structure import Document

COLUMNS = {
    "title": ("text", "body", "content", "abstract", "description", "article", "summary"),
    "headline": ("text", "body", "content", "article", "description", "short_description"),
    "question": ("answer", "answers", "response", "context", "passage"),
    "query": ("positive", "answer", "document", "passage", "text"),
    "text": ("positive",),
    "anchor": ("positive",),
    "sent0": ("sent1",),
    "instruction": ("response", "output", "completion"),
    "prompt": ("response", "output", "completion"),
}
"""Names of columns that belong together, the one that is asked with first."""
_OF_ROWS = ("jsonl", "csv", "tsv", "parquet")
_SAMPLE = 100  # rows by which columns without such names are judged
_ANSWER_CHARACTERS, _DIFFERENT = 20, 0.5  # of an answer, in the mean; the share, of what is no label
_LABELS = 10  # a short text that is repeated is one if there are fewer
# a code, number or address
_NO_WORDS = re.compile(r"(?=\D*\d)(?![A-Za-z]*[a-z]\d+\Z)[!-~]*|[\d\W_]*|[^\s@]+@\S+|(?:\w+://|www\.)\S*")
_TAG = re.compile(r"(?i)</(?:[abip]|div|em|h[1-6]|li|span|strong|td)>|<br ?/?>")
_NO_TITLE = re.compile(r"(?i)(?:\W|[\d_]|\b(?:copy|kopie|of|ohne|titel|unbenannt|untitled|von)\b)*")
_DECLARED = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_AS_BROWSERS = {"iso8859-1": "cp1252", "iso8859-9": "cp1254", "shift_jis": "cp932", "gb2312": "gb18030",
                "gbk": "gb18030", "euc_kr": "cp949", "big5": "big5hkscs", "tis-620": "cp874"}  # fmt: skip
"""Encodings, as Python names them, that browsers read as larger ones."""

Columns = tuple[str, ...]
"""The names of two columns that belong together, or of all whose text is read."""


def structured(task: ReadTask, source: Source, faults: RowFaults, whole: bool = False) -> Iterator[Document]:
    """Yield the documents of a task that was planned for structure, in order.

    whole: the task was planned for all of the text: a row's columns, all texts of each, are one document.
    """
    if task.kind in MARKUP.values():
        with naming_damage(task.place), open_file(task.place) as stream:
            raw = stream.read(task.longest + 1)
        if len(raw) > task.longest:
            raise too_long(task, 0)
        text = as_unicode(_decode(raw, task), task, 0, faults)
        name = re.sub(rf"\.\w+({'|'.join(map(re.escape, COMPRESSIONS))})?$", "", Path(task.place).name)
        is_note = task.kind == MARKDOWN and " " in name and not _NO_TITLE.fullmatch(name)
        name = clean(name.replace("_", " "))
        names = {"title": name} if task.kind == WIKITEXT else {"name": name} if is_note else {}
        yield Document.marked(text.replace("\r\n", "\n"), task.kind, **names)
        return
    if (columns := task.columns) is None:
        yield from map(Document, documents(task, source, faults))
        return
    for position, row in rows_of(task, source, lambda _: columns):
        if isinstance(row, BrokenRow):
            faults.add("broken_records", task, position, row.why)
            continue
        texts = [_texts(row.get(name)) for name in columns]
        if whole:
            yield Document("\n".join(as_unicode(text, task, position, faults) for of in texts for text in of))
            continue
        title, text = (as_unicode(of[0] if of else "", task, position, faults) for of in texts)
        if text.strip():
            yield Document(text, title.strip())


def _decode(raw: bytes, task: ReadTask) -> str:
    """Return the text of a file with markup: UTF-8, or in HTML what the page declares.

    Bytes that are wrong in the declared encoding become halves of surrogate pairs. Raises UserError: the file
    is not UTF-8, and declares no encoding, or one that it cannot have.
    """
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        declared = _DECLARED.search(raw[:1024]) if task.kind == HTML else None
        if declared is not None:
            encoding = declared[1].decode().lower()
            with suppress(LookupError, UnicodeError):
                encoding = codecs.lookup(encoding.removeprefix("x-")).name
                encoding = _AS_BROWSERS.get(encoding, encoding)
                # not UTF-16 and the like: the declaration itself could not be read in them
                if declared[0].decode(encoding) == declared[0].decode():
                    return raw.decode(encoding, "surrogateescape")
        raise UserError(f"source {not_utf8(Path(task.place), raw, f'byte {error.start}')}") from error


def columns_of(task: ReadTask, source: Source, whole: bool = False) -> Columns | None:
    """Return the two columns of a file's rows that belong together; None: its text is one column's.

    A column that the source names is the text, and alone, unless it names the positive's, too. task: the
    first of the file. whole: return all columns that are named in `COLUMNS`, if there are several. Raises
    UserError: no row has a column that the source names.
    """
    named = {"text_key", "positive_key"} & source.model_fields_set
    if task.kind not in _OF_ROWS or named == {"text_key"}:
        return None
    good = (row for _, row in rows_of(task, source) if not isinstance(row, BrokenRow))
    rows = list(islice(good, _SAMPLE))
    if "positive_key" in named:  # of a table the header names all columns; else they may begin further down
        _require_columns(task, source, rows, good if task.kind == "jsonl" else ())
        return source.text_key, source.positive_key
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if all(_texts(row[name]) for row in rows if row.get(name))  # no objects
        and not all("".join(_texts(row.get(name) or "0")[:1]).isdecimal() for row in rows)  # no numbers
    ]
    known = tuple(name for name in names if name in COLUMNS or name in chain(*COLUMNS.values()))
    if whole and len(known) > 1:
        return known
    for first, seconds in COLUMNS.items():
        if first in names:
            for second in seconds:
                if second in names:
                    return first, second
    return None if task.kind == "jsonl" or source.text_key in names else _columns_of_texts(rows, names)


def note_tags(tasks: Iterable[ReadTask], sources: Sequence[Source], records: bool = False) -> None:
    """Say which columns that are read have texts with HTML tags, in a source's first file of each format.

    A source that has the key `markup` says itself what becomes of them.
    """
    firsts: dict[tuple[int, str], ReadTask] = {}
    for task in tasks:
        if "markup" not in sources[task.source].model_fields_set and task.kind in _OF_ROWS:
            firsts.setdefault((task.source, task.kind), task)
    for task in firsts.values():
        _note_tags(task, sources[task.source], records)


def _note_tags(task: ReadTask, source: Source, records: bool) -> None:
    def read(fields: tuple[str, ...]) -> list[str]:
        wanted = text_fields(fields, source) if records else task.columns or (source.text_key,)
        return [name for name in wanted if name in fields]

    rows, names = list[dict](), dict[str, None]()
    with suppress(UserError):  # who reads all of it says what is wrong
        found = islice(rows_of(task, source, read), _SAMPLE)
        rows += (row for _, row in found if not isinstance(row, BrokenRow))
        names |= dict.fromkeys(name for row in rows for name in read(tuple(row)))
    for name in names:
        texts = [json.dumps(row.get(name), ensure_ascii=False, default=str) for row in rows]
        if 10 * sum(map(bool, map(_TAG.search, texts))) > len(rows):
            said = f"texts in {name!r} have HTML tags, which stay, unless the source has `markup: html`"
            print(f"note: {task.place}: {said}", file=sys.stderr, flush=True)


def _require_columns(task: ReadTask, source: Source, rows: list[dict], further: Iterable[dict]) -> None:
    """Raise UserError unless the two columns that a source names have texts in its rows, or may have them."""
    missing = [source.text_key, source.positive_key]
    if source.text_key == source.positive_key:
        raise UserError(f"source {task.place}: text_key and positive_key both name {source.text_key!r}")
    for row in chain(rows, further):
        # what is empty here may have a text further down
        empty = [name for name in missing if row.get(name, 0) in (None, "", [])]
        missing = [name for name in missing if name not in empty and not _texts(row.get(name))]
        if not missing:
            break
    if missing and rows:
        there = shortened(", ".join(dict.fromkeys(name for row in rows for name in row)))
        what = f"has no text in the column {missing[0]!r} of any row"
        raise UserError(f"source {task.place} {what}; it has {there}.")


def _columns_of_texts(rows: list[dict], names: list[str]) -> Columns | None:
    """Return the first two columns of texts, of which the second holds answers; None: there are none."""
    texts = {name: [text for row in rows for text in _texts(row.get(name))[:1]] for name in names}
    texts = {name: of for name, of in texts.items() if len(of) >= max(1, _DIFFERENT * len(rows))}
    texts = {name: of for name, of in texts.items() if fmean(map(bool, map(_NO_WORDS.fullmatch, of))) < 0.5}
    long = {name for name, of in texts.items() if fmean(map(len, of)) >= _ANSWER_CHARACTERS}
    single = {name for name, of in texts.items() if len(set(of)) >= _DIFFERENT * len(of)}
    alone = [name for name in texts if name in single]
    # one with many: a premise with its hypotheses
    repeated = (name for name in texts if name in long or len(set(texts[name])) >= _LABELS)
    first = alone[0] if len(alone) > 1 else next(repeated, "")
    second = next((name for name in alone if name != first), "")
    return (first, second) if second in long else None


def _texts(value: object) -> list[str]:
    """Return the texts of a field, of a list all, that are not empty."""
    values = value if isinstance(value, list) else [value]
    return [text for text in values if text and isinstance(text, str)]
