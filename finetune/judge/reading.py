"""Read the documents of a user's text with the structure that their files give them."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean

from finetune.judge.structure import MARKUP, Document
from pretrain.common.errors import UserError, not_utf8
from pretrain.config.data import Source
from pretrain.prepare.sources.planning import files_at, kind_of, plan_tasks
from pretrain.prepare.sources.readers import ReadTask
from pretrain.prepare.sources.rows import BrokenRow, Faults, documents, json_rows, table_rows

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
_SAMPLE = 100  # rows by which columns without such names are judged
_ANSWER_CHARACTERS, _ANSWER_DIFFERENT = 20, 0.5  # of what is a text, and no label: in the mean; the share

Columns = tuple[str, str]


@dataclass(frozen=True)
class Piece:
    """What is read at a time: a file with headings, or a task of a source. number: of the source."""

    number: int
    source: Source
    file: Path | None = None
    task: ReadTask | None = None
    columns: Columns | None = None

    def documents(self) -> Iterator[Document]:
        """Yield its documents in order; what is broken in them `clearly prepare` would leave out, too."""
        if self.file is not None:
            try:
                yield Document(self.file.read_text("utf-8"), markup=MARKUP[self.file.suffix.lower()])
            except UnicodeDecodeError as error:
                fault = not_utf8(self.file, self.file.read_bytes(), f"byte {error.start}")
                raise UserError(f"source {fault}") from None
            return
        assert self.task is not None
        if self.columns is None:
            yield from map(Document, documents(self.task, self.source, Faults()))
            return
        for row in _rows(self.task, self.source, self.columns):
            title, text = (_text(row.get(name)) for name in self.columns)
            if text.strip():
                yield Document(text, title.strip())


def pieces_of(sources: Sequence[Source]) -> list[Piece]:
    """Return all that the sources name, in order, each file with the structure that it has.

    Raises:
        UserError: a source is missing, empty, or cannot be read.
    """
    found: list[Piece] = []
    for number, source in enumerate(sources):
        marked, note = files_with_headings(source)
        if note:
            print(note, file=sys.stderr, flush=True)
        if marked:
            found += [Piece(number, source, file=file) for file in marked]
            continue
        tasks = plan_tasks([source])
        columns = {task.place: _columns(task, source) for task in tasks if task.stripe == 0}
        found += [Piece(number, source, task=task, columns=columns[task.place]) for task in tasks]
    for first, second in dict.fromkeys(piece.columns for piece in found if piece.columns):
        print(f"  columns    {first} -> {second}", file=sys.stderr, flush=True)
    return found


def is_read_by_search(sources: Sequence[Source]) -> bool:
    """Return whether `clearly search --split` reads all of these sources, as they are."""
    try:
        for source in sources:
            for task in () if files_with_headings(source)[0] else plan_tasks([source]):
                next(documents(task, source, Faults()), None)
    except UserError:
        return False
    return True


def files_with_headings(source: Source) -> tuple[list[Path], str]:
    """Return the files with headings that a source names, if it is read for them alone; and what to say.

    It is where they hold most of its bytes; beside much data, as the README of a data set, they are left out.
    """
    path = Path(source.source).expanduser()
    there = files_at(path) if source.format == "auto" else []
    marked = [file for file in there if file.suffix.lower() in MARKUP]
    data = [file for file in there if kind_of(file.name)]
    if not marked or not data:
        return marked, ""
    size_of_marked, size_of_data = (sum(file.stat().st_size for file in files) for files in (marked, data))
    by_headings = size_of_marked >= size_of_data or not path.is_dir()
    names = f"{len(marked):,} files with headings", f"{len(data):,} files of data"
    chosen, left_out = names if by_headings else names[::-1]
    return marked if by_headings else [], f"note: of {source} {chosen} are read, {left_out} are not"


def _columns(task: ReadTask, source: Source) -> Columns | None:
    """Return the two columns of a file's rows that belong together; None: its text is one column's.

    A column that the source names is the text, and alone.
    """
    if task.kind not in ("jsonl", "csv", "tsv", "parquet") or "text_key" in source.model_fields_set:
        return None
    rows = list(islice(_rows(task, source, None), _SAMPLE))
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if all(_text(row[name]) for row in rows if row.get(name))  # no numbers, no objects
    ]
    for first, seconds in COLUMNS.items():
        if first in names:
            for second in seconds:
                if second in names:
                    return first, second
    if task.kind == "jsonl" or source.text_key in names or len(names) < 2:
        return None
    texts = [text for row in rows if (text := _text(row.get(names[1])))]
    different = len(set(texts)) / max(1, len(texts))
    is_text = texts and fmean(map(len, texts)) >= _ANSWER_CHARACTERS and different >= _ANSWER_DIFFERENT
    return (names[0], names[1]) if is_text else None


def _text(value: object) -> str:
    """Return the text of a field, of a list of texts the first; "": it holds none."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) else ""


def _rows(task: ReadTask, source: Source, columns: Columns | None) -> Iterator[dict]:
    """Yield the rows of a file that can be read, with these columns at least; None: all of them."""
    if task.kind == "jsonl":
        rows = json_rows(task)
    else:
        rows = table_rows(task, source, lambda names: names if columns is None else columns)
    return (row for _, row in rows if not isinstance(row, BrokenRow))
