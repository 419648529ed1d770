"""Describe an augmentation for the catalogue; each module of augmentations lists its entries in `ENTRIES`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Meaning = Literal["preserving", "possibly altering", "altering"]


@dataclass(frozen=True)
class Parameter:
    """Describe a parameter that `name:key=value` sets, of its default's type: int, float, bool or str.

    low, high: bounds of a number.
    choices: the values that a str may have; empty: any.
    variable: the environment variable that gives the value where the specification leaves it empty.
    """

    name: str
    default: Any
    meaning: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    variable: str = ""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Describe an augmentation.

    kind: "token" or "text", which fixes what `function` takes and returns:
        token: (batch: Ragged, keys: uint64[N], vocabulary, **parameters) -> Ragged of the same N.
        text: (sentence: ParsedSentence, draws: Draws, **parameters) -> str | None (`augment.text.draws`).
        text with `batch`: (N sentences, their N draws, **parameters) -> list[str | None] of length N; the
        result for a sentence does not depend on the other sentences.
    paper: the source. description: what it does. example: a specification; its name alone by default.
    sample: (before, after), for text.
    meaning: whether it keeps the meaning of a sentence.
    needs: for tokens "synonyms" (a SynonymTable, passed by keyword), "del" (a tokenizer with [DEL]),
        "punctuation" (a tokenizer with punctuation marks); for text "parse" (heads and relations, with tags
        and lemmas), "tags" (tags, parts of speech and lemmas), "wordnet", "model:NAME" (a model or vectors
        that the parameters name).
    languages: spaCy's codes of those that it is written for; (): any. A pipeline refuses a sentence whose
        parse is of another.
    check: takes all parameters and returns what is wrong with them together, or None.
    require: called when a pipeline is built; raises AugmentationError where this machine lacks a word list or
        WordNet.
    load: called with the parameters' values when a pipeline is built; loads their models and word vectors
        into this process, or raises AugmentationError.
    """

    name: str
    paper: str
    description: str
    function: Callable[..., Any]
    meaning: Meaning
    kind: Literal["token", "text"] = "text"
    parameters: tuple[Parameter, ...] = ()
    example: str = ""
    needs: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    sample: tuple[str, str] | None = None
    check: Callable[[dict[str, Any]], str | None] | None = None
    require: Callable[[], None] | None = None
    load: Callable[[dict[str, Any]], Any] | None = None
    batch: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "example", self.example or self.name)
