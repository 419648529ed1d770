"""Describe augmentations for the catalogue."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Meaning = Literal["preserving", "possibly altering", "altering"]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Parameter:
    """A parameter that `name:key=value` sets, of its default's type: int, float, bool or str.

    low, high: of a number. variable: of the environment; fills what the specification leaves empty.
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
    paper: the source. description: what it does. example: a specification.
    sample: (before, after), for text.
    meaning: whether it keeps the meaning of a sentence.
    needs: for tokens "synonyms" (a SynonymTable, passed by keyword), "del" (a tokenizer with [DEL]),
        "punctuation" (a tokenizer with punctuation marks); for text "parse" (heads and relations, with tags
        and lemmas), "tags" (tags, parts of speech and lemmas), "wordnet", "model:WHAT" (a model or vectors
        that parameters with a `variable` name).
    languages: spaCy's codes of those that it is written for; (): any. A pipeline refuses other parses.
    check: takes all parameters and returns what is wrong with them together, or None.
    require: called when a pipeline is built; raises AugmentationError if this machine lacks something.
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
    require: Callable[[], Any] | None = None
    load: Callable[[dict[str, Any]], Any] | None = None
    batch: bool = False

    def __post_init__(self) -> None:
        settings = [f":{one.name}={one.default}" for one in self.parameters if one.default != ""]
        object.__setattr__(self, "example", self.example or self.name + "".join(settings[:1]))


FIELDS: dict[str, dict[str, Any]] = {}
"""Name of an augmentation -> the fields of its `Entry` that `augmentation` was given."""


def augmentation(*, name: str = "", **fields: Any) -> Callable[[Function], Function]:
    """Give the decorated function fields of `Entry` that word_lists/augmentations.tsv does not have.

    name: in that table; without it, the function's own.
    """

    def register(function: Function) -> Function:
        FIELDS[name or function.__name__.replace("_", "-")] = {"function": function, **fields}
        return function

    return register


def kind_of(function: Callable[..., Any]) -> Literal["token", "text"]:
    """Return "token" for a function that takes a vocabulary, "text" for any other."""
    return "token" if "vocabulary" in inspect.signature(function).parameters else "text"


def summary_of(function: Callable[..., Any]) -> str:
    """Return the first sentence of a function's docstring."""
    paragraph = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph, maxsplit=1)[0]
