"""`Entry`: what the catalogue says of one augmentation. Each module of augmentations has its own table of
them, `ENTRIES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Meaning = Literal["preserving", "possibly altering", "altering"]


@dataclass(frozen=True)
class Parameter:
    """A parameter as `name:key=value` sets it. The type is that of the default: int, float, bool or str.

    low, high: bounds of a number. choices: what a str may be; empty: anything. variable: of the environment,
    which says the value where the specification leaves it empty.
    """

    name: str
    default: Any
    meaning: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    variable: str = ""


@dataclass(frozen=True)
class Entry:
    """An augmentation.

    kind "token": function(batch: Ragged, keys: uint64[N], vocabulary, **parameters) -> Ragged of the same N.
    kind "text": function(sentence: ParsedSentence, draws: Draws, **parameters) -> str | None
    (`augment.text.draws`); with `batch`, function(sentences: Sequence[ParsedSentence], draws:
    Sequence[Draws], **parameters) -> list[str | None] of N sentences with their N draws, where a sentence
    becomes the same whoever shares its batch.
    paper: where it is from. description: what it does. example: a specification. sample: (before, after), of
    text.
    meaning: what it does to the meaning.
    needs: of tokens "synonyms" (a SynonymTable, by keyword), "del" (a tokenizer with [DEL]), "punctuation"
    (one with punctuation marks); of text "parse" (heads and relations, tags and lemmas too), "tags" (tags,
    parts of speech and lemmas), "wordnet", "model:NAME" (a model or vectors that the parameters name).
    check: a rule over all parameters together, that returns what is wrong, or None. require: called when a
    pipeline is built, raises AugmentationError when something on this machine (a word list, WordNet) is
    missing. load: the same for what the parameters name, with their values: loads models and word vectors
    into this process.
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
    load: Callable[[dict[str, Any]], Any] | None = None
    batch: bool = False
