"""An augmentation of the user's own, from a file: `--aug my.py:function`."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from augment.core.entry import Entry, Parameter, kind_of
from augment.core.errors import AugmentationError
from augment.core.own_code import load
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence


@functools.cache
def own_entry(name: str) -> Entry:
    """Return the entry of FILE.py:NAME, which names a function, or an `Entry` that says more of it.

    A function with a parameter `vocabulary` works on tokens, another one on text (`Entry`).
    """
    found = load(name)
    if isinstance(found, Entry):
        return replace(found, name=name, example=name, function=functools.partial(_of_entry, name))
    if not callable(found):
        raise AugmentationError(f"{name}: the file has no function of that name")
    taken, kind = list(inspect.signature(found).parameters.values()), kind_of(found)
    first = 3 if kind == "token" else 2
    own = [one for one in taken[first:] if isinstance(one.default, bool | int | float | str)]
    if len(taken) < first or len(own) < len(taken) - first:
        raise AugmentationError(
            f"{name} must take (sentence, draws) or (batch, keys, vocabulary), and parameters whose defaults "
            f"are numbers, texts, True or False; it takes {inspect.signature(found)}"
        )
    return Entry(
        name=name,
        kind=kind,
        paper="your own",
        description=inspect.getdoc(found) or "",
        function=functools.partial(_tokens if kind == "token" else _text, name),
        meaning="possibly altering",
        parameters=tuple(Parameter(one.name, one.default, "a parameter of yours") for one in own),
    )


# These carry the name, so that a pipeline can go to another process, which imports the file itself.


def _of_entry(name: str, *arguments: Any, **parameters: Any) -> Any:
    return _called(load(name).function, name, *arguments, **parameters)


def _text(name: str, sentence: ParsedSentence, draws: Draws, **parameters: Any) -> str | None:
    new = _called(load(name), name, sentence, draws, **parameters)
    if new is None or (isinstance(new, str) and new.strip()):
        return new
    raise AugmentationError(f"{name} gave {new!r} for {sentence.text!r}: it must give a text, or None")


def _tokens(name: str, batch: Ragged, keys: np.ndarray, vocabulary: Vocabulary, **parameters: Any) -> Ragged:
    new = _called(load(name), name, batch, keys, vocabulary=vocabulary, **parameters)
    ids = new.ids if isinstance(new, Ragged) and len(new) == len(batch) else np.array([-1])
    if not len(ids) or 0 <= ids.min() <= ids.max() < vocabulary.size:
        return new
    raise AugmentationError(
        f"{name} must give a Ragged of {len(batch):,} sequences, with ids below {vocabulary.size:,}"
    )


def _called(function: Callable, name: str, *arguments: Any, **parameters: Any) -> Any:
    try:
        return function(*arguments, **parameters)
    except AugmentationError:
        raise
    except Exception as error:
        raise AugmentationError(f"{name} failed: {type(error).__name__}: {error}") from error
