"""Split a text of few documents into parts that count as documents: a book, a handful of large pages.

Parts are contiguous. What lies between a held-out part and one to train on is neither, so that no sentence is
trained on whose neighbour is asked for.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

from pretrain.config.data import Source
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.sources.readers import ReadTask
from pretrain.prepare.sources.rows import RowFaults
from pretrain.prepare.sources.structure import Document
from pretrain.prepare.sources.structured import structured

FEW = 50
"""A text of fewer documents is split."""
PARTS, SMALLEST = 200, 1000
"""About so many parts; each has at least so many characters."""
GAP = 300
"""Characters at least between a held-out part and one to train on: a paragraph or a section is left out."""

Part = list[Document]
"""Sections or paragraphs that follow each other."""


def part_size(tasks: Sequence[ReadTask], sources: Sequence[Source]) -> int:
    """Return of how many characters parts should be; 0: there are documents enough."""
    characters = 0
    for number, document in enumerate(_wholes(tasks, sources, RowFaults()), 1):
        if number == FEW:
            return 0
        characters += len(document.text)
    return max(SMALLEST, characters // PARTS)


def groups(
    tasks: Sequence[ReadTask], sources: Sequence[Source], size: int, faults: RowFaults
) -> Iterator[tuple[int, list[Part]]]:
    """Yield (source, parts) of each document, in order; without a size the whole is the only part."""
    for task in tasks:
        for document in (
            _wholes([task], sources, faults) if size else structured(task, sources[task.source], faults)
        ):
            yield task.source, _parts(document, size) if size else [[document]]


def joined(part: Part) -> Document:
    """Return the document that a part is."""
    if len(part) == 1:
        return part[0]
    if any(one.sections for one in part):
        return Document.of_sections(chain.from_iterable(one.sections for one in part))
    return Document("\n".join(one.text for one in part))


def without_neighbours(parts: Sequence[Part], held: Sequence[bool]) -> list[Part]:
    """Return the parts, those that are not held out without the text next to one that is."""
    found = []
    for number, part in enumerate(parts):
        if not held[number]:
            if number and held[number - 1]:
                part = _after_gap(part)
            if number + 1 < len(parts) and held[number + 1]:
                part = _after_gap(part[::-1])[::-1]
        found.append(part)
    return found


def _after_gap(part: Part) -> Part:
    """Return a part without its first pieces of `GAP` characters."""
    ends = accumulate(len(one.text) for one in part)
    return part[next((number for number, end in enumerate(ends, 1) if end >= GAP), len(part)) :]


def _wholes(tasks: Sequence[ReadTask], sources: Sequence[Source], faults: RowFaults) -> Iterator[Document]:
    """Yield the documents as they were read; running text, as a book is, of which a file is one."""
    for task in tasks:
        documents = structured(task, sources[task.source], faults)
        if task.kind == "text" and (task.width or task.layout == "passages"):
            yield Document("\n".join(one.text for one in documents))
        else:
            yield from documents


def _parts(document: Document, size: int) -> list[Part]:
    """Return the parts of a document, each of `size` characters or more, but for the last."""
    parts: list[Part] = [[]]
    length = 0
    for piece in _pieces(document, size):
        if length >= size:
            parts.append([])
            length = 0
        parts[-1].append(piece)
        length += len(piece.text)
    return parts if len(parts) > 1 else [[document]]


def _pieces(document: Document, size: int) -> Iterator[Document]:
    """Yield the sections of a document, else its paragraphs; of one larger than a part its sentences."""
    for heading, text in document.sections or [("", document.text)]:
        if document.sections and len(text) <= size:
            yield Document.of_sections([(heading, text)])
            continue
        for line in text.split("\n"):
            for piece in [line] if len(line) <= size else sentences_of(line):
                # the heading is of the first piece alone: no query of two parts
                yield Document.of_sections([(heading, piece)]) if document.sections else Document(piece)
                heading = ""
