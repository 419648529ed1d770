"""`Entry`: what the catalogue says of one augmentation. Each module of augmentations has its own table of them, `ENTRIES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Meaning = Literal["preserving", "possibly altering", "altering"]


@dataclass(frozen=True)
class Parameter:
    """A parameter as `name:key=value` sets it. The type is that of the default: int, float, bool or str.

    low, high: bounds of a number. choices: what a str may be; empty: anything.
    """

    name: str
    default: Any
    meaning: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """An augmentation.

    kind "token": function(batch: Ragged, keys: uint64[N], vocabulary, **parameters) -> Ragged of the same N.
    kind "text": function(sentence: ParsedSentence, draws: Draws, **parameters) -> str | None (`augment.text`).
    paper: where it is from. description: what it does. example: a specification. sample: (before, after), of text.
    meaning: what it does to the meaning.
    needs: of tokens "synonyms" (a SynonymTable, by keyword), "del" (a tokenizer with [DEL]), "punctuation" (one with
    punctuation marks); of text "parse" (heads and relations, tags and lemmas too), "tags" (tags, parts of speech and lemmas),
    "wordnet", "model:NAME".
    check: a rule over all parameters together, that returns what is wrong, or None. require: called before any use, raises
    AugmentationError when something on this machine (a word list, WordNet, a model) is missing.
    """

    name: str
    kind: Literal["token", "text"]
    paper: str
    parameters: tuple[Parameter, ...]
    description: str
    example: str
    function: Callable[..., Any]
    meaning: Meaning
    needs: tuple[str, ...] = ()
    sample: tuple[str, str] | None = None
    check: Callable[[dict[str, Any]], str | None] | None = None
    require: Callable[[], None] | None = None
