"""`Annotation`: text and parse of a chunk's sequences as compact arrays, and back to `ParsedSentence`.

Of every stored sequence (row k * C + c is column c of record k) a chunk of annotated data has, little-endian:

    texts.utf8            the texts, end to end
    text_ends.u32         where each ends, in bytes
    words.u16             how many words each has
    word_starts.u16, word_ends.u16      of every word, in characters of its text
    word_heads.u16        the word it depends on, in its text
    word_tags.u16, word_relations.u8, word_lemmas.u16   rows of the chunk's tables; lemma 0 is the word in
                          lower case
    tables.json           {"tags": [[tag, part of speech], ...], "relations": [...], "lemmas": [...]}

11 bytes a word and the text; nothing is decoded before a rule asks for the sentence.
"""

import json
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from augment.core.compiled import native
from augment.core.ragged import offsets_of
from augment.text.parsed import ParsedSentence

MOST_CHARACTERS = 65535  # of a text with a parse: offsets are 16 bits
WHOLE = "whole"  # in the manifest: texts are not cut where the tokens of their sequences are
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
    """Text and parse of the N stored sequences of a chunk, from members as `pack` makes them.

    Raises KeyError or ValueError if members are missing or cut, or name what is not there: rules follow
    heads until a root comes, and look words up in tables, without a check of their own.
    """

    __slots__ = "_compiled", "_given", "_text_ends", "_texts"

    def __init__(self, members: dict[str, bytes], language: str):
        texts = members["texts.utf8"]
        # As `array`, whose items are looked up in half the time of numpy's and take no more memory.
        text_ends = array("q", [0, *np.frombuffer(members["text_ends.u32"], "<u4").tolist()])
        bounds = array("q", offsets_of(np.frombuffer(members["words.u16"], "<u2")).tobytes())
        codes = _WORD_ARRAYS.items()
        arrays = [np.frombuffer(members[f"{name}.{_SUFFIX[code]}"], code) for name, code in codes]
        try:
            tables = _Tables.model_validate_json(members["tables.json"])
        except ValidationError as error:
            fault = error.errors()[0]
            raise ValueError(f"tables.json: {'.'.join(map(str, fault['loc']))} {fault['msg']}") from None
        tags, parts_of_speech = [tag for tag, _ in tables.tags], [pos for _, pos in tables.tags]
        lemmas = ["", *tables.lemmas]
        whole = len(bounds) == len(text_ends) and text_ends[-1] == len(texts)
        if not whole or any(len(array) != bounds[-1] for array in arrays):
            raise ValueError("texts and words of the annotation do not belong together")
        columns = np.stack(arrays).astype("u2")  # one slice, one conversion for all that a sentence has
        sizes = {
            "word_tags": len(tags),
            "word_lemmas": len(lemmas),
            "word_relations": len(tables.relations),
        }
        _check_words(_characters(texts, np.array(text_ends)), np.array(bounds), arrays, sizes)
        names = map(tuple, (tags, parts_of_speech, tables.relations, lemmas))
        self.__setstate__((texts, text_ends, bounds, columns, *names, language))

    def __len__(self) -> int:
        return len(self._text_ends) - 1

    def __getstate__(self) -> tuple[Any, ...]:
        return self._given

    def __setstate__(self, given: tuple[Any, ...]) -> None:
        self._given, self._compiled = given, native.Columns(ParsedSentence, *given)
        self._texts, self._text_ends, *_ = given

    def text(self, row: int) -> str:
        return self._texts[self._text_ends[row] : self._text_ends[row + 1]].decode()

    def __getitem__(self, row: int) -> ParsedSentence:
        """Return the sentence of a row, without words if it has no text or one of over `MOST_CHARACTERS`."""
        return self._compiled.sentence(row)


class _Tables(BaseModel, strict=True):
    """Tags with their parts of speech, relations and lemmas of a chunk: Unicode, without half a surrogate."""

    tags: list[tuple[str, str]]
    relations: list[str]
    lemmas: list[str]


def _characters(texts: bytes, ends: np.ndarray) -> np.ndarray:
    """Count the characters of each text: int64[N].

    ends: int64[N + 1], in bytes. Raises: ValueError for texts that are not UTF-8, or are cut.
    """
    if (np.diff(ends) < 0).any():
        raise ValueError("the ends of the texts do not rise")
    if texts.isascii():
        return np.diff(ends)
    texts.decode()  # a ValueError if it is no UTF-8
    first = (np.frombuffer(texts, "u1") & 0xC0) != 0x80  # the first byte of a character
    if not first[ends[ends < len(texts)]].all():
        raise ValueError("a text ends inside a character")
    return np.diff(np.concatenate([[0], np.cumsum(first)])[ends])


def _check_words(
    characters: np.ndarray, bounds: np.ndarray, arrays: list[np.ndarray], sizes: dict[str, int]
) -> None:
    """Check the words of N texts, all at once: some 2 ms for a chunk of 50,000 words.

    characters: int64[N], of each text. bounds: int64[N + 1], words bounds[n]:bounds[n + 1] are text n's.
    arrays: in the order of `_WORD_ARRAYS`. sizes: of the tables that the arrays index. Raises: ValueError
    that names the text and what is wrong.
    """
    columns = dict(zip(_WORD_ARRAYS, (array.astype(np.int64) for array in arrays)))
    counts = np.diff(bounds)
    text = np.repeat(np.arange(len(counts)), counts)

    def refuse(wrong: np.ndarray, what: str) -> None:
        if wrong.any():
            raise ValueError(f"text {text[int(wrong.argmax())]} of the chunk: {what}")

    starts, ends, heads = columns["word_starts"], columns["word_ends"], columns["word_heads"]
    refuse((starts >= ends) | (ends > characters[text]), "a word lies outside the text")
    overlap = (starts[1:] < ends[:-1]) & (text[1:] == text[:-1])
    refuse(np.append(False, overlap), "words overlap, or are out of order")
    refuse(heads >= counts[text], "a word depends on a word that is not there")
    for name, size in sizes.items():
        refuse(columns[name] >= size, f"{name} names a row that its table does not have")
    # Jump from every word to its head, then twice as far each time: 16 jumps pass any text of 65,535 words,
    # and who has not come to a root by then never will.
    head = heads + bounds[text]
    reached = head
    for _ in range(17):
        further = reached[reached]
        if np.array_equal(further, reached):
            break
        reached = further
    refuse(head[reached] != reached, "words depend on each other in a cycle")


class Sentences:
    """The parses of n records, one column of each, each decoded when it is read.

    annotations: of the chunks, by number; chunk, row: int64[n], the chunk of each and its row there.
    """

    def __init__(self, annotations: dict[int, Annotation], chunk: np.ndarray, row: np.ndarray):
        self._annotations, self._chunk, self._row = annotations, chunk.tolist(), row.tolist()

    def __len__(self) -> int:
        return len(self._row)

    def __getitem__(self, number: int) -> ParsedSentence:
        return self._annotations[self._chunk[number]][self._row[number]]


def pack(sentences: Sequence[ParsedSentence]) -> dict[str, bytes]:
    """Pack sentences into the members of an annotated chunk, by name.

    Raises: ValueError for more than 256 relations, or 65,535 lemmas or tags.
    """
    tags: dict[tuple[str, str], int] = {}
    relations: dict[str, int] = {}
    lemmas: dict[str, int] = {}
    columns: dict[str, list[int]] = {name: [] for name in _WORD_ARRAYS}
    for sentence in sentences:
        columns["word_starts"] += sentence.starts
        columns["word_ends"] += sentence.ends
        columns["word_heads"] += sentence.heads
        columns["word_tags"] += [tags.setdefault(tag, len(tags)) for tag in zip(sentence.tags, sentence.pos)]
        columns["word_relations"] += [relations.setdefault(name, len(relations)) for name in sentence.deps]
        columns["word_lemmas"] += [
            0 if lemma == word.lower() else lemmas.setdefault(lemma, len(lemmas) + 1)
            for lemma, word in zip(sentence.lemmas, sentence.words)
        ]
    if len(relations) > 256 or max(len(tags), len(lemmas)) > 65535:
        raise ValueError(f"{len(relations)} relations, {len(tags)} tags or {len(lemmas)} lemmas are too many")
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
