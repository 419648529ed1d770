"""Read the documents of one task, in order, from any source; count and name what cannot be read.

A broken line among good ones is left out. A file that is broken from the beginning is not what its name says,
and is refused.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from augment.core.errors import shortened
from pretrain.common.errors import UserError
from pretrain.config.data import Source
from pretrain.prepare.sources import readers
from pretrain.prepare.sources.readers import ReadTask
from pretrain.prepare.sources.rows import BrokenRow, about_first_line, is_unicode, json_rows, table_rows
from pretrain.prepare.wrapping import margin, unwrap, words_of

MOST_NAMED = 5  # of a task's broken rows
# broken rows at the beginning of a task, without a good one: the file is not what its name says
_BROKEN_AT_ONCE = 10


@dataclass
class Faults:
    """What a task could not read: how often, and the first few by file and line."""

    counts: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)

    def add(self, name: str, task: ReadTask, position: int, why: str) -> None:
        """Count a fault under `name`; keep where it is and why while there are few."""
        self.counts[name] += 1
        if len(self.named) < MOST_NAMED:
            self.named.append(f"{readers.where(task, position)}: {why}")


def documents(task: ReadTask, source: Source, faults: Faults) -> Iterator[str]:
    """Yield the texts of the documents of a task, in order.

    Raises: UserError when the data is not what its name says, or cannot be read.
    """
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
        if not is_unicode(text):
            faults.add(
                "documents_not_utf8", task, position, "not UTF-8; the bytes that are not were left out"
            )
            text = text.encode("utf-8", "surrogateescape").decode("utf-8", "ignore")
        width = task.width
        if source.unwrap == "auto" and task.kind != "text":
            width = margin(text)
            words = words_of(text) if width else words
        if width or source.unwrap is True:
            joined = unwrap(text, width, words)
            faults.counts["documents_unwrapped"] += joined.count("\n") < text.rstrip().count("\n")
            text = joined
        yield text


def _field_texts(task: ReadTask, source: Source, faults: Faults) -> Iterator[tuple[int, str]]:
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
    for position, row in json_rows(task) if task.kind == "jsonl" else table_rows(task, source, choose):
        text = None if isinstance(row, BrokenRow) else row.get(key)
        remedy = "Is the file whole, of the format that its name says (or `format:`), and UTF-8?"
        if isinstance(row, BrokenRow):
            why = row.why
        elif key not in row:
            why = f"no field {key!r} (its fields: {', '.join(map(str, row))[:200] or 'none'})"
            remedy = _how_to_set_key(task, source)
            if "." in key:
                why += ", and fields within fields are not read: docs/data.md has the jq command"
        elif text is None:
            continue  # an empty cell of a table
        elif not isinstance(text, str):
            why, remedy = (
                f"field {key!r} holds no text, but {str(text)[:60]!r}",
                _how_to_set_key(task, source),
            )
        elif not is_unicode(text):
            why = f"field {key!r} is not Unicode (half of a surrogate pair, or bytes that are not UTF-8)"
        else:
            good = True
            yield position, text
            continue
        faults.add("broken_records", task, position, why)
        if not good:
            broken += 1
            first = (
                first or f"source {readers.where(task, position)}: {why}. All rows read are like it. {remedy}"
            )
            if broken == _BROKEN_AT_ONCE:
                break
    if first and not good:
        raise UserError(first)


def _how_to_set_key(task: ReadTask, source: Source) -> str:
    """Say what to type to set the key, also where only some files of a folder or glob have other fields."""
    how = source.how_to_set("text_key")
    if task.place == source.source:
        return how
    return f"{how} If other files have other fields, give each kind as a source of its own in that list."
