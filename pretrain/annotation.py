"""`Annotation`: text and parse of a chunk's sequences as compact arrays, and back to `ParsedSentence`.

Of every stored sequence (row k * C + c is column c of record k) a chunk of annotated data has, little-endian:

    texts.utf8            the texts, end to end
    text_ends.u32         where each ends, in bytes
    words.u16             how many words each has
    word_starts.u16, word_ends.u16      of every word, in characters of its text
    word_heads.u16        the word it depends on, in its text
    word_tags.u16, word_relations.u8, word_lemmas.u16   rows of the chunk's tables; lemma 0 is the word in lower case
    tables.json           {"tags": [[tag, part of speech], ...], "relations": [...], "lemmas": [...]}

11 bytes a word and the text; nothing is decoded before a rule asks for the sentence.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from augment.compiled import native
from augment.parsed import ParsedSentence
from augment.ragged import offsets_of

MOST_CHARACTERS = 65535  # of a text with a parse: offsets are 16 bits
_WORD_ARRAYS = {
    "word_starts": "<u2",
    "word_ends": "<u2",
    "word_heads": "<u2",
    "word_tags": "<u2",
    "word_lemmas": "<u2",
    "word_relations": "u1",
}
_SUFFIX = {"<u2": "u16", "u1": "u8"}


class Annotation:
    """Text and parse of the N stored sequences of a chunk.

    members: as `pack` makes them. language: of the parser. Raises KeyError or ValueError where members are missing or cut.
    """

    __slots__ = (
        "_bounds", "_columns", "_compiled", "_language", "_lemmas", "_pos", "_relations", "_tags", "_text_ends", "_texts",
    )  # fmt: skip

    def __init__(self, members: dict[str, bytes], language: str):
        self._texts, self._language = members["texts.utf8"], language
        # As `array`, whose items are looked up in half the time of numpy's and take no more memory.
        self._text_ends = array("q", [0, *np.frombuffer(members["text_ends.u32"], "<u4").tolist()])
        self._bounds = array("q", offsets_of(np.frombuffer(members["words.u16"], "<u2")).tobytes())
        arrays = [np.frombuffer(members[f"{name}.{_SUFFIX[code]}"], code) for name, code in _WORD_ARRAYS.items()]
        tables = json.loads(members["tables.json"])
        self._tags, self._pos = [[row[place] for row in tables["tags"]] for place in (0, 1)]
        self._relations, self._lemmas = tables["relations"], ["", *tables["lemmas"]]
        whole = len(self._bounds) == len(self._text_ends) and self._text_ends[-1] == len(self._texts)
        if not whole or any(len(array) != self._bounds[-1] for array in arrays):
            raise ValueError("texts and words of the annotation do not belong together")
        self._columns = np.stack(arrays).astype("u2")  # one slice, one conversion for all that a sentence has
        self._compile()

    def __len__(self) -> int:
        return len(self._text_ends) - 1

    def _compile(self) -> None:
        self._compiled = None  # what reads sentences, where there is one
        if native is not None:
            tables = map(tuple, (self._tags, self._pos, self._relations, self._lemmas))
            self._compiled = native.Columns(self._texts, self._text_ends, self._bounds, self._columns, *tables, self._language)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "_compiled"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._compile()

    def text(self, row: int) -> str:
        return self._texts[self._text_ends[row] : self._text_ends[row + 1]].decode()

    def __getitem__(self, row: int) -> ParsedSentence:
        """The sentence of a row; without words where the row has no text, or one longer than `MOST_CHARACTERS`."""
        if self._compiled is not None:
            return self._compiled.sentence(row)
        text = self.text(row)
        starts, ends, heads, tags, lemmas, relations = self._columns[:, self._bounds[row] : self._bounds[row + 1]].tolist()
        return ParsedSentence(
            text,
            tuple(starts),
            tuple(ends),
            tuple(map(self._tags.__getitem__, tags)),
            tuple(map(self._pos.__getitem__, tags)),
            _Lemmas(text, starts, ends, lemmas, self._lemmas),
            tuple(heads),
            tuple(map(self._relations.__getitem__, relations)),
            self._language,
        )


class _Lemmas(Sequence[str]):
    """The lemmas of a stored sentence, made as they are asked for: a rule reads a few, and all would take as long as the rest."""

    __slots__ = ("_ends", "_numbers", "_starts", "_table", "_text")

    def __init__(self, text: str, starts: list[int], ends: list[int], numbers: list[int], table: list[str]):
        self._text, self._starts, self._ends, self._numbers, self._table = text, starts, ends, numbers, table

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return tuple([self[j] for j in range(*i.indices(len(self)))])
        number = self._numbers[i]
        return self._table[number] if number else self._text[self._starts[i] : self._ends[i]].lower()

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (tuple, _Lemmas)) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)


class Sentences(Sequence[ParsedSentence]):
    """The parses of n records, one column of each, decoded as they are asked for.

    annotations: of the chunks, by number; chunk, row: int64[n], the chunk of each and its row there.
    """

    def __init__(self, annotations: dict[int, Annotation], chunk: np.ndarray, row: np.ndarray):
        self._annotations, self._chunk, self._row = annotations, chunk.tolist(), row.tolist()

    def __len__(self) -> int:
        return len(self._row)

    def __getitem__(self, number: int) -> ParsedSentence:
        return self._annotations[self._chunk[number]][self._row[number]]


def pack(sentences: Sequence[ParsedSentence]) -> dict[str, bytes]:
    """The members of an annotated chunk, by name. Raises ValueError for more than 256 relations or 65,535 lemmas or tags."""
    tags: dict[tuple[str, str], int] = {}
    relations: dict[str, int] = {}
    lemmas: dict[str, int] = {}
    columns: dict[str, list[int]] = {name: [] for name in _WORD_ARRAYS}
    for sentence in sentences:
        columns["word_starts"] += sentence.starts
        columns["word_ends"] += sentence.ends
        columns["word_heads"] += sentence.heads
        columns["word_tags"] += [tags.setdefault(tag, len(tags)) for tag in zip(sentence.tags, sentence.pos)]
        columns["word_relations"] += [relations.setdefault(relation, len(relations)) for relation in sentence.deps]
        columns["word_lemmas"] += [
            0 if lemma == word.lower() else lemmas.setdefault(lemma, len(lemmas) + 1)
            for lemma, word in zip(sentence.lemmas, sentence.words)
        ]
    if len(relations) > 256 or max(len(tags), len(lemmas)) > 65535:
        raise ValueError(f"{len(relations)} relations, {len(tags)} tags and {len(lemmas)} lemmas in a chunk are too many")
    texts = [sentence.text.encode() for sentence in sentences]
    members = {
        "texts.utf8": b"".join(texts),
        "text_ends.u32": np.cumsum([len(text) for text in texts], dtype="<u4").tobytes(),
        "words.u16": np.array([len(sentence) for sentence in sentences], "<u2").tobytes(),
    }
    for name, code in _WORD_ARRAYS.items():
        members[f"{name}.{_SUFFIX[code]}"] = np.array(columns[name], code).tobytes()
    tables = {"tags": list(tags), "relations": list(relations), "lemmas": list(lemmas)}
    members["tables.json"] = json.dumps(tables, ensure_ascii=False, separators=(",", ":")).encode()
    return members
