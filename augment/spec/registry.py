"""Specifications of augmentations, "del-span,reorder" and the like, into pipelines over batches.

none                    the identity: dropout alone tells the views apart (SimCSE)
del-span,reorder        stages, left to right
subs|repeat             alternatives: one drawn for each sentence, evenly; `none` may be one of them
subs|repeat,del-span    `|` binds tighter than `,`: one of two, then del-span
del-span:spans=3:rate=0.1   parameters
pi|mv|dn,del-word       augmentations of text stand before those of tokens
augcse-12-2             a set of alternatives by its name (`augment.spec.sets`)
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

from augment.core.entry import Entry
from augment.core.errors import AugmentationError
from augment.core.vocabulary import Vocabulary
from augment.spec.catalogue import CATALOGUE
from augment.spec.pipeline import Bound, Pipeline
from augment.spec.sets import SETS, WITHOUT_MODELS, expand
from augment.text.encoder import TextEncoder
from augment.tokens.synonyms import SynonymTable

IDENTITY = "none"


@dataclass(frozen=True)
class Step:
    """One augmentation with its parameters, all of them, in the order of the catalogue."""

    name: str
    parameters: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        """As one would write it: only parameters that are not at their default."""
        entry = CATALOGUE.get(self.name)
        defaults = (
            {} if entry is None else {parameter.name: parameter.default for parameter in entry.parameters}
        )
        changed = [f":{name}={value!s}" for name, value in self.parameters if value != defaults[name]]
        return self.name + "".join(changed)


@dataclass(frozen=True)
class Specification:
    """What a specification says: stages, left to right, each of one or more alternatives."""

    stages: tuple[tuple[Step, ...], ...]

    def __str__(self) -> str:
        """The canonical text; parses to the same Specification."""
        return ",".join("|".join(map(str, stage)) for stage in self.stages) or IDENTITY

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for stage in self.stages for step in stage)

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return all(step.name == IDENTITY for step in self.steps)


def parse(spec: str) -> Specification:
    """A specification from its text. Raises AugmentationError that names the place and the nearest name."""
    if not isinstance(spec, str):
        raise AugmentationError(f"a specification is a text such as 'del-span,reorder', not {spec!r}")
    spec = expand(spec)
    stages = []
    position = 0
    for stage in spec.split(","):
        steps = []
        for text in stage.split("|"):
            steps.append(_parse_step(text, position, spec))
            position += len(text) + 1
        stages.append(tuple(steps))
    stages = tuple(stage for stage in stages if any(step.name != IDENTITY for step in stage))
    specification = Specification(stages)
    _check_order(specification)
    return specification


def build(
    spec: str,
    vocabulary: Vocabulary,
    synonyms: SynonymTable | None = None,
    encoder: TextEncoder | None = None,
) -> Pipeline:
    """A pipeline for a tokenizer. encoder: how text becomes tokens, for a specification that `needs_text`.

    Models and word vectors are loaded now, into this process, so that workers forked from it share them.

    Raises AugmentationError when the specification is wrong, or needs [DEL], a synonym table, text, a model
    or another resource that is not there; what several augmentations lack is one error.
    """
    specification = parse(spec)
    if synonyms is not None and synonyms.vocabulary.size != vocabulary.size:
        raise AugmentationError(
            f"the synonym table was made for a tokenizer of {synonyms.vocabulary.size:,} tokens, this one "
            f"has {vocabulary.size:,}: load the table again with this tokenizer"
        )
    if encoder is None and (of_text := [step.name for step in specification.steps if _is_text(step)]):
        raise AugmentationError(
            f"{of_text[0]} works on text, and there are only tokens here: prepare the corpus with "
            "--annotate MODEL, which "
            "keeps text and parse beside the tokens"
        )
    _require(specification.steps, spec)
    stages = tuple(
        tuple(
            _bind_text(step) if _is_text(step) else _bind_tokens(step, vocabulary, synonyms) for step in stage
        )
        for stage in specification.stages
    )
    return Pipeline(specification, stages, encoder)


def build_texts(spec: str) -> Pipeline:
    """A pipeline for `Pipeline.texts` alone, without a tokenizer. Raises as `build`, but for what tokens
    would need."""
    specification = parse(spec)
    _require(filter(_is_text, specification.steps), spec)
    stages = tuple(
        tuple(_bind_text(step) if _is_text(step) else Bound(step.name, False, None) for step in stage)
        for stage in specification.stages
    )
    return Pipeline(specification, stages)


def require(specs: Iterable[str], load: bool = True) -> None:
    """Look for all that augmentations need on this machine, the table of synonyms aside. load: models and
    word vectors are loaded into this process; False: they must be named, and are not opened.

    Raises AugmentationError, one for all that several lack.
    """
    specs = list(specs)
    _require((step for spec in specs for step in parse(spec).steps), ",".join(specs), load)


def from_environment(specs: Iterable[str]) -> dict[str, str]:
    """What the environment says in place of specifications, variable -> value: models and files that they
    leave open."""
    used = {}
    for step in (step for spec in specs for step in parse(spec).steps if step.name != IDENTITY):
        values = dict(step.parameters)
        for parameter in CATALOGUE[step.name].parameters:
            if parameter.variable and not values[parameter.name] and parameter.variable in os.environ:
                used[parameter.variable] = os.environ[parameter.variable]
    return used


def alternatives(spec: str) -> list[str]:
    """The alternatives of 'a|b|c', as text. Raises AugmentationError for a specification of several stages,
    or without any augmentation: what it does to a sequence has no one name.
    """
    stages = parse(spec).stages
    if len(stages) != 1:
        raise AugmentationError(
            "the augmentation of a labelled view must be alternatives, as in 'a|b|c', each sequence's "
            "label the one "
            f"that it took; {spec!r} " + ("has several stages" if stages else "changes nothing")
        )
    return [str(step) for step in stages[0]]


def needs_synonyms(spec: str) -> bool:
    """Whether a specification needs a synonym table: loading one takes seconds."""
    names = [step.name for step in parse(spec).steps if step.name != IDENTITY]
    return any("synonyms" in CATALOGUE[name].needs for name in names)


def loads_models(spec: str) -> bool:
    """Whether a specification has augmentations that load a model or word vectors."""
    return any(step.name != IDENTITY and CATALOGUE[step.name].load is not None for step in parse(spec).steps)


def needs_text(spec: str) -> bool:
    """Whether a specification has augmentations of text."""
    return any(_is_text(step) for step in parse(spec).steps)


def needs_parse(spec: str) -> bool:
    """Whether a specification has augmentations that read tags or the parse."""
    return any(_reads_parse(step) for step in parse(spec).steps)


def catalogue() -> list[Entry]:
    """All augmentations there are."""
    return list(CATALOGUE.values())


def _is_text(step: Step) -> bool:
    return step.name != IDENTITY and CATALOGUE[step.name].kind == "text"


def _reads_parse(step: Step) -> bool:
    return _is_text(step) and not {"parse", "tags"}.isdisjoint(CATALOGUE[step.name].needs)


def _check_order(specification: Specification) -> None:
    """Augmentations of text come first, and only the first stage of them has a parse to read."""
    after: Step | None = None  # the first augmentation of tokens
    for number, stage in enumerate(specification.stages):
        for step in stage:
            if _is_text(step) and after is not None:
                raise AugmentationError(
                    f"{step.name} works on text and stands behind {after.name}, which works on tokens: "
                    "write it first, as in "
                    f"'{step.name},{after.name}'"
                )
            if number and _reads_parse(step):
                raise AugmentationError(
                    f"{step.name} reads the parse of the sentence, which is gone once another augmentation "
                    "has changed the text: "
                    "write it first, or as an alternative, as in "
                    f"'{specification.stages[0][0].name}|{step.name}'"
                )
        tokens = [step for step in stage if step.name != IDENTITY and not _is_text(step)]
        after = after or (tokens[0] if tokens else None)


def _require(steps: Iterable[Step], spec: str, load: bool = True) -> None:
    """Raises one AugmentationError for all that the augmentations lack on this machine. spec: as it was
    written."""
    lacking = {}
    for step in dict.fromkeys(step for step in steps if step.name != IDENTITY):
        entry = CATALOGUE[step.name]
        try:
            if entry.require is not None:
                entry.require()
            if entry.load is not None and (load or not _names_models(step)):
                entry.load(values_of(step))  # says what is not named before it loads anything
        except AugmentationError as error:
            lacking[str(error)] = entry
    if not lacking:
        return
    message = ". ".join(text.rstrip(".") for text in lacking)
    written = [name.strip() for stage in spec.split(",") for name in stage.split("|")]
    smaller = {name: WITHOUT_MODELS[name] for name in written if name in WITHOUT_MODELS}
    if smaller and any(need.startswith("model:") for entry in lacking.values() for need in entry.needs):
        message += ". " + ", ".join(
            f"{small} is {name} without language models" for name, small in smaller.items()
        )
    raise AugmentationError(message)


def values_of(step: Step) -> dict[str, Any]:
    """A step's parameters, those left empty as the environment says them."""
    values = dict(step.parameters)
    for parameter in CATALOGUE[step.name].parameters:
        if parameter.variable and not values[parameter.name]:
            values[parameter.name] = os.environ.get(parameter.variable, "")
    return values


def _names_models(step: Step) -> bool:
    """Whether a step, or the environment for it, names all models or files that it loads."""
    values = values_of(step)
    return all(values[parameter.name] for parameter in CATALOGUE[step.name].parameters if parameter.variable)


def _bind_text(step: Step) -> Bound:
    entry = CATALOGUE[step.name]
    return Bound(step.name, True, functools.partial(entry.function, **values_of(step)), entry.batch)


def _bind_tokens(step: Step, vocabulary: Vocabulary, synonyms: SynonymTable | None) -> Bound:
    if step.name == IDENTITY:
        return Bound(IDENTITY, False, None)
    entry = CATALOGUE[step.name]
    arguments = values_of(step)
    if "synonyms" in entry.needs:
        if synonyms is None:
            raise AugmentationError(
                f"{step.name} needs a synonym table: name one with --synonyms PATH, or set CLEAR_DATA to a "
                "folder that has synonyms/counterfitted_neighbors.json"
            )
        arguments["synonyms"] = synonyms
    if "del" in entry.needs:
        vocabulary.require_del(step.name)
    if "punctuation" in entry.needs:
        vocabulary.require_punctuation(step.name)
    return Bound(step.name, False, functools.partial(entry.function, vocabulary=vocabulary, **arguments))


def _parse_step(text: str, position: int, spec: str) -> Step:
    name, *settings = text.strip().split(":")
    name = name.strip()
    place = f"at character {position + 1} of {spec!r}"
    if not name:
        raise AugmentationError(
            f"an augmentation is missing {place}: write names with ',' (one after the other) or '|' (one of "
            "them) between, or "
            f"'{IDENTITY}' for no augmentation"
        )
    if name == IDENTITY:
        if settings:
            raise AugmentationError(f"'{IDENTITY}' {place} takes no parameters")
        return Step(IDENTITY)
    if name in SETS:  # without parameters it would have been expanded
        raise AugmentationError(
            f"{name} {place} is a set, which takes no parameters: write its members out, {SETS[name]}, or "
            "name models in the "
            "environment (python -m augment --list)"
        )
    if name not in CATALOGUE:
        raise AugmentationError(
            f"there is no augmentation {name!r} ({place}){_nearest(name, [*CATALOGUE, *SETS, IDENTITY])}; "
            "there are "
            f"{', '.join([*CATALOGUE, IDENTITY])} (python -m augment --list)"
        )
    entry = CATALOGUE[name]
    parameters = {parameter.name: parameter for parameter in entry.parameters}
    values = {parameter.name: parameter.default for parameter in entry.parameters}
    given = set()
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not value:
            raise AugmentationError(
                f"{setting.strip()!r} {place} is no parameter: write {name}:key=value, as in {entry.example}"
            )
        if key not in parameters:
            raise AugmentationError(
                f"{name} {place} has no parameter {key!r}{_nearest(key, list(parameters))}; it has "
                + ", ".join(f"{parameter.name}={parameter.default}" for parameter in entry.parameters)
            )
        if key in given:
            raise AugmentationError(f"{name} {place} sets {key} twice")
        given.add(key)
        values[key] = _parse_value(value, parameters[key], f"{name} {place}")
    problem = entry.check(values) if entry.check else None
    if problem:
        raise AugmentationError(f"{name} {place}: {problem}")
    return Step(name, tuple(values.items()))


def _parse_value(text: str, parameter: Any, where: str) -> Any:
    kind = type(parameter.default)
    try:
        if kind is bool:
            value = {"true": True, "false": False}[text.lower()]
        else:
            value = kind(text)
    except (ValueError, KeyError):
        names = {int: "a whole number", float: "a number", bool: "true or false"}
        raise AugmentationError(
            f"{where}: {parameter.name}={text} is not {names.get(kind, kind.__name__)} ({parameter.meaning})"
        ) from None
    if parameter.choices and value not in parameter.choices:
        raise AugmentationError(
            f"{where}: {parameter.name}={text} is none of {', '.join(parameter.choices)} "
            f"({parameter.meaning})" + _nearest(text, list(parameter.choices))
        )
    low = -inf if parameter.low is None else parameter.low
    high = inf if parameter.high is None else parameter.high
    if kind in (int, float) and not low <= value <= high:  # also catches nan
        raise AugmentationError(
            f"{where}: {parameter.name}={text} is outside {low:g}..{high:g} ({parameter.meaning})"
        )
    return value


def _nearest(name: str, names: list[str]) -> str:
    match = difflib.get_close_matches(name.lower().replace("_", "-"), names, n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else ""
