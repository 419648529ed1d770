"""Share hand-made sentences and counterparts in Python with the tests of compiled code."""

import re
from dataclasses import dataclass
from typing import Any

from augment_reference import MASK64, mix
from parse_builder import parse as by_hand

from augment.rules import spelling
from augment.text import parsed
from augment.text.parsed import without_parse

COPULAS = [
    by_hand("She is tall.", "She/PRP/nsubj/3 is/VBZ/cop/3 tall/JJ/ROOT/0 ././punct/3"),
    by_hand("Tall is she, is she", "Tall/JJ/ROOT/0 is/VBZ/cop/1 she/PRP/nsubj/1 ,/,/punct/1 is/VBZ/cop/1 "
                                   "she/PRP/nsubj/1"),
    # a copula that is a root
    by_hand("Er ist groß.", "Er/PRP/nsubj/2 ist/VBZ/cop/2 groß/JJ/acomp/2 ././punct/2"),
    without_parse("Zoë läuft — 北京 😀 e\u0301"),
    without_parse(""),
]  # fmt: skip
METHODS = ["word", "children", "subtree", "relation", "verb", "auxiliaries", "subject"]


def outcome(function, *arguments):
    """Return what a call gives, or the kind of error that it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        return type(error)


@dataclass(frozen=True)
class PlainSentence:
    """Hold the fields of `ParsedSentence`, with the compiled methods in Python."""

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    tags: tuple[str, ...]
    pos: tuple[str, ...]
    lemmas: tuple[str, ...]
    heads: tuple[int, ...]
    deps: tuple[str, ...]
    language: str
    _children: Any = None
    _copulas: Any = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def words(self) -> list[str]:
        text = self.text
        return [text[start:end] for start, end in zip(self.starts, self.ends)]

    def word(self, i: int) -> str:
        return self.text[self.starts[i] : self.ends[i]]

    def lower(self, i: int) -> str:
        return self.word(i).lower() if 0 <= i < len(self.starts) else ""

    def children(self, i: int) -> list[int]:
        lists = self._children
        if lists is None:
            lists = [[] for _ in self.heads]
            for child, head in enumerate(self.heads):
                if child != head:
                    lists[head].append(child)
            object.__setattr__(self, "_children", lists)
        return lists[i]

    def subtree(self, i: int) -> tuple[int, int]:
        self.children(i)
        children = self._children
        assert children is not None  # the call has found them
        words = [i]
        for word in words:
            if len(words) > len(children):  # heads make a circle
                break
            words += children[word]
        return min(words), max(words)

    def with_relation(self, wanted: frozenset[str]) -> list[int]:
        kinds = map(parsed._BASE.__getitem__, self.deps)
        return [i for i, kind in enumerate(kinds) if kind in wanted]

    def relation(self, i: int) -> str:
        label = self.deps[i]
        return parsed._CLEARNLP.get(label, label)

    def verb(self, i: int) -> int:
        found = self._copulas
        if found is None:
            found = {}
            for child, label in enumerate(self.deps):
                if label == "cop" and self.heads[child] != child:
                    found.setdefault(self.heads[child], child)
            object.__setattr__(self, "_copulas", found)
        return found.get(i, i)

    def auxiliaries(self, i: int) -> list[int]:
        return [child for child in self.children(i) if self.relation(child) in parsed._AUXILIARIES]

    def subject(self, i: int) -> int | None:
        found = [child for child in self.children(i) if self.relation(child) in parsed.SUBJECTS]
        verb = self.verb(i)
        before = [child for child in found if child < verb]
        return before[-1] if before else found[0] if found else None


GOLDEN = 0x9E3779B97F4A7C15


class PlainDraws:
    """Draw as the compiled draws do."""

    __slots__ = ("_chances", "_state")

    def __init__(self, key: int):
        self._state = mix(((int(key) & MASK64) + GOLDEN) & MASK64)
        self._chances = 0  # 32 bits for the next `chance` below a 1; 0: none are left

    def bits(self) -> int:
        self._state = value = (self._state + GOLDEN) & MASK64
        # `mix`, written out
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK64
        return value ^ (value >> 31)

    def uniform(self) -> float:
        return (self.bits() >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        if n < 1:
            raise ValueError(f"nothing can be drawn below {n}")
        return (self.bits() * n) >> 64

    def chance(self, p: float) -> bool:
        bits = self._chances
        if bits:
            self._chances = 0
            return bits & 0xFFFFFFFF < p * 4294967296.0
        bits = self.bits()
        self._chances = bits >> 32 | 1 << 32
        return bits & 0xFFFFFFFF < p * 4294967296.0

    def choice(self, items: Any) -> Any:
        return items[self.below(len(items))]

    def sample(self, items: Any, k: int) -> list:
        pool = list(items)
        size = len(pool)
        k = max(0, min(k, size))
        fraction = told = 0
        for i in range(k):
            left = size - i
            if told < left:
                fraction, told = self.bits(), 1 << 32
            told //= left
            fraction *= left
            j = i + (fraction >> 64)
            fraction &= MASK64
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:k]


WORD = re.compile(r"\w(?:\S*\w)?(?:(?<=\.\w)\.|(?<=\b[A-Z])\.(?=\s)|(?<=\b[A-Z][a-z])\.(?=\s))?")


def plain_word_spans(text: str) -> list[tuple[int, int]]:
    return [word.span() for word in WORD.finditer(text)]


def plain_cut(text: str, spans: list[tuple[int, int]]) -> str:
    parts: list[str] = []
    position = 0
    for start, end in spans:
        before = text[position:start].rstrip()
        if len(before) == start - position:
            behind = re.compile(r"\s*").match(text, end)
            assert behind is not None  # it may be empty
            end = behind.end()
        parts.append(before)
        position = end
    return "".join((*parts, text[position:]))


def plain_look_alike(text: str, threshold: int, draws: PlainDraws, urls: list[tuple[int, int]]) -> str:
    made: list[str] = []
    bits = 1
    for letter, similar in zip(text, map(spelling._LOOK_ALIKE.get, text)):
        if similar:
            if bits == 1:  # 21 bits a letter, three letters a draw, under a 1 that marks their end
                bits = draws.bits() >> 1 | 1 << 63
            share = bits & 0x1FFFFF
            bits >>= 21
            # They say whether, and where below the threshold they are which one.
            if share < threshold and not any(start <= len(made) < end for start, end in urls):
                letter = similar[share * len(similar) // threshold]
        made.append(letter)
    return "".join(made)
