"""Hold sentences with their words, tags, lemmas and dependencies, parsed once and read by every rule.

Rules see one set of relations, Universal Dependencies (UD), whichever labels the parser writes.
spaCy's English pipelines write ClearNLP's. These differ in names (`dobj`, `nsubjpass`) and in the head of a
clause with a copula ("She is tall": UD's root is `tall` with the child `is`, ClearNLP's is `is`). `relation`
and `verb` hide the two differences.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from augment.core.compiled import native

# ClearNLP's relation -> UD's. Other labels of ClearNLP have no single counterpart (attr, acomp, prep, pobj,
# pcomp) or the same name, and stay unchanged.
_PAIRS = """
ROOT=root agent=obl:agent auxpass=aux:pass complm=mark csubjpass=csubj:pass dative=iobj dobj=obj infmod=acl
intj=discourse neg=advmod nn=compound npadvmod=obl:npmod nsubjpass=nsubj:pass num=nummod oprd=xcomp
partmod=acl poss=nmod:poss preconj=cc:preconj predet=det:predet prt=compound:prt rcmod=acl:relcl
relcl=acl:relcl nsubj:xsubj=nsubj aux:modal=aux
"""  # the last two of spaCy's Chinese pipelines (Stanford Dependencies of Chinese)
_CLEARNLP = dict(pair.split("=") for pair in _PAIRS.split())


class _Bases(dict):
    """Map a parser's label to the relation in UD's terms without its subtype: "relcl" -> "acl"."""

    def __missing__(self, label: str) -> str:
        base = self[label] = _CLEARNLP.get(label, label).partition(":")[0]
        return base


_BASE = _Bases()
SUBJECTS = frozenset({"nsubj", "nsubj:pass", "csubj", "csubj:pass", "expl"})
_AUXILIARIES = frozenset({"aux", "aux:pass"})
_PLACE = itemgetter(0, 1)
_WORD = re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]")


native.set_relations(_CLEARNLP, _BASE, SUBJECTS, _AUXILIARIES)


if TYPE_CHECKING:

    class _Sentence:
        """Declare the compiled Sentence; augment/native/sentence.h says what its methods do."""

        words: list[str]

        def word(self, i: int) -> str: ...
        def lower(self, i: int) -> str: ...
        def children(self, i: int) -> list[int]: ...
        def subtree(self, i: int) -> tuple[int, int]: ...
        def with_relation(self, wanted: frozenset[str]) -> list[int]: ...
        def relation(self, i: int) -> str: ...
        def verb(self, i: int) -> int: ...
        def auxiliaries(self, i: int) -> list[int]: ...
        def subject(self, i: int) -> int | None: ...

else:
    _Sentence = native.Sentence


@dataclass(frozen=True, slots=True)
class ParsedSentence(_Sentence):
    """Hold a sentence of W words with its parse.

    >>> sentence = ParsedSentence(
    ...     text="She is tall.",
    ...     starts=(0, 4, 7, 11),
    ...     ends=(3, 6, 11, 12),
    ...     tags=("PRP", "VBZ", "JJ", "."),
    ...     pos=("PRON", "AUX", "ADJ", "PUNCT"),
    ...     lemmas=("she", "be", "tall", "."),
    ...     heads=(2, 2, 2, 2),
    ...     deps=("nsubj", "cop", "root", "punct"),
    ... )
    >>> sentence.words
    ['She', 'is', 'tall', '.']
    >>> sentence.root, sentence.children(2), sentence.subject(2), sentence.verb(2)
    (2, [0, 1, 3], 0, 1)
    >>> sentence.edit([(0, 3, "He"), (6, 6, " not")])
    'He is not tall.'

    text: the sentence, unchanged.
    starts, ends: int[W], character offsets of the words in `text`, rising, without overlap.
    tags: str[W], fine-grained (Penn Treebank for English: VBZ, NNP).
    pos: str[W], universal (VERB, AUX, NOUN, PROPN).
    lemmas: str[W].
    heads: int[W], the index of the word that each depends on; a root is its own head.
    deps: str[W], the relation to the head as the parser named it; rules call `relation`.
    language: "en", "zh".

    The columns are tuples, not arrays: rules look at single words, where an array costs five times as much.
    """

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    tags: tuple[str, ...]
    pos: tuple[str, ...]
    lemmas: Sequence[str]
    heads: tuple[int, ...]
    deps: tuple[str, ...]
    language: str = "en"
    _children: list[list[int]] | None = field(default=None, init=False, repr=False, compare=False)
    _copulas: dict[int, int] | None = field(default=None, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def is_english(self) -> bool:
        return self.language == "en"

    @property
    def root(self) -> int:
        """Return the root of the (first) sentence; -1 if there is no word."""
        return next((i for i, head in enumerate(self.heads) if i == head), -1)

    def dependents(self, i: int, *relations: str) -> list[int]:
        """Return the words that depend on word i by one of these relations, left to right."""
        return [child for child in self.children(i) if self.relation(child) in relations]

    def has_dependent(self, i: int, *relations: str) -> bool:
        return any(self.relation(child) in relations for child in self.children(i))

    def span(self, first: int, last: int | None = None) -> str:
        """Return the text from word `first` to word `last`."""
        return self.text[self.starts[first] : self.ends[first if last is None else last]]

    def replacement(self, i: int, new: str, last: int | None = None) -> tuple[int, int, str]:
        """Return the edit that puts `new` in the place of word i, or of words i to `last`."""
        return self.starts[i], self.ends[i if last is None else last], new

    def edit(self, replacements: Iterable[tuple[int, int, str]]) -> str:
        """Return the text with each (start, end, new) made: text[start:end] becomes new, in characters."""
        parts: list[str] = []
        position = 0
        for start, end, new in sorted(replacements, key=_PLACE):
            if not position <= start <= end <= len(self.text):
                raise ValueError(
                    f"replacement {start}:{end} overlaps another, or leaves a text of {len(self.text)} "
                    "characters"
                )
            parts += (self.text[position:start], new)
            position = end
        return "".join((*parts, self.text[position:]))


class Parses(Protocol):
    """Read parsed sentences by number: from a list, or from what decodes each when it is read."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> ParsedSentence: ...


def without_parse(text: str, language: str = "en") -> ParsedSentence:
    """Split a text at spaces and punctuation: tags, lemmas, relations are "", every word its own head."""
    spans = [match.span() for match in _WORD.finditer(text)]
    blank = ("",) * len(spans)
    starts, ends = tuple(a for a, _ in spans), tuple(b for _, b in spans)
    return ParsedSentence(text, starts, ends, blank, blank, blank, tuple(range(len(spans))), blank, language)
