"""Specifications of augmentations, "del-span,reorder" and the like, into pipelines over batches.

none                    the identity: dropout alone tells the views apart (SimCSE)
del-span,reorder        stages, left to right
subs|repeat             alternatives: one drawn for each sentence, evenly; `none` may be one of them
subs|repeat,del-span    `|` binds tighter than `,`: one of two, then del-span
del-span:spans=3:rate=0.1   parameters
"""

from __future__ import annotations

import difflib
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from augment.catalogue import CATALOGUE
from augment.entry import Entry
from augment.errors import AugmentationError
from augment.keys import bits_per_sequence, derive
from augment.ragged import Ragged
from augment.synonyms import SynonymTable
from augment.vocabulary import Vocabulary

IDENTITY = "none"
# Tokens augmented at a time: what a stage allocates stays in the cache, and the hundred or so array
# operations of a pipeline cost little beside their work. Two views of del-span,reorder, one core, source
# tokens/s: at 29 tokens a sequence 14 million with blocks of 2**14, 20 with 2**17, 13 with 2**20; at 512
# tokens 39, 121 and 163.
BLOCK_TOKENS = 1 << 17


@dataclass(frozen=True)
class Step:
    """One augmentation with its parameters, all of them, in the order of the catalogue."""

    name: str
    parameters: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        """As one would write it: only parameters that are not at their default."""
        entry = CATALOGUE.get(self.name)
        defaults = {} if entry is None else {parameter.name: parameter.default for parameter in entry.parameters}
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


@dataclass(frozen=True)
class Pipeline:
    """A specification made ready for one tokenizer: a Ragged and one key per sequence to a new Ragged of the same N.

    What a sequence becomes depends on its tokens and its key only. Stage i draws with keys derived from i, so
    a name that stands twice draws anew. Pickles, so it can be handed to workers.
    """

    specification: Specification
    stages: tuple[tuple[functools.partial | None, ...], ...]

    @property
    def name(self) -> str:
        """The canonical specification."""
        return str(self.specification)

    @property
    def is_identity(self) -> bool:
        return all(step.name == IDENTITY for step in self.specification.steps)

    def __call__(self, batch: Ragged, keys: np.ndarray) -> Ragged:
        """keys: uint64[N], as `keys.sequence_keys` makes them. Raises AugmentationError on a batch it cannot take."""
        if len(keys) != len(batch):
            raise ValueError(f"{len(keys)} keys for {len(batch)} sequences: one key per sequence is needed")
        if self.is_identity or len(batch) == 0:
            return batch
        blocks = []
        start = 0
        while start < len(batch):
            reach = batch.offsets[start] + BLOCK_TOKENS
            stop = max(start + 1, int(np.searchsorted(batch.offsets, reach, side="right")) - 1)
            blocks.append(self._block(batch.slice(start, stop), keys[start:stop]))
            start = stop
        return Ragged.concatenate(blocks)

    def choices(self, keys: np.ndarray, stage: int = 0) -> np.ndarray:
        """Which alternative of a stage each sequence takes, from 0: int64[N]. A function of the keys alone."""
        draws = bits_per_sequence(derive(keys, stage, "alternative"), 1)[:, 0] >> np.uint64(32)
        return ((draws * np.uint64(len(self.stages[stage]))) >> np.uint64(32)).astype(np.int64)

    def _block(self, batch: Ragged, keys: np.ndarray) -> Ragged:
        for number, alternatives in enumerate(self.stages):
            stage_keys = derive(keys, number)
            if len(alternatives) == 1:
                batch = _apply(alternatives[0], batch, stage_keys)
                continue
            choice = self.choices(keys, number)
            groups = [np.flatnonzero(choice == index) for index in range(len(alternatives))]
            parts = [
                _apply(function, batch.take(group), stage_keys[group])
                for function, group in zip(alternatives, groups, strict=True)
            ]
            batch = Ragged.concatenate(parts).take(np.argsort(np.concatenate(groups)))
        return batch


def parse(spec: str) -> Specification:
    """A specification from its text. Raises AugmentationError that names the place and the nearest name."""
    if not isinstance(spec, str):
        raise AugmentationError(f"a specification is a text such as 'del-span,reorder', not {spec!r}")
    stages = []
    position = 0
    for stage in spec.split(","):
        steps = []
        for text in stage.split("|"):
            steps.append(_parse_step(text, position, spec))
            position += len(text) + 1
        stages.append(tuple(steps))
    stages = tuple(stage for stage in stages if any(step.name != IDENTITY for step in stage))
    return Specification(stages)


def build(spec: str, vocabulary: Vocabulary, synonyms: SynonymTable | None = None) -> Pipeline:
    """A pipeline for a tokenizer. Raises AugmentationError when the specification is wrong, or when it needs
    [DEL] or a synonym table that is not there.
    """
    specification = parse(spec)
    if synonyms is not None and synonyms.vocabulary.size != vocabulary.size:
        raise AugmentationError(
            f"the synonym table was made for a tokenizer of {synonyms.vocabulary.size:,} tokens, this one "
            f"has {vocabulary.size:,}: load the table again with this tokenizer"
        )
    stages = tuple(tuple(_bind(step, vocabulary, synonyms) for step in stage) for stage in specification.stages)
    return Pipeline(specification, stages)


def alternatives(spec: str) -> list[str]:
    """The alternatives of 'a|b|c', as text. Raises AugmentationError for a specification of several stages, or without
    any augmentation: what it does to a sequence has no one name.
    """
    stages = parse(spec).stages
    if len(stages) != 1:
        raise AugmentationError(
            f"the augmentation of a labelled view must be alternatives, as in 'a|b|c', each sequence's label the one "
            f"that it took; {spec!r} " + ("has several stages" if stages else "changes nothing")
        )
    return [str(step) for step in stages[0]]


def needs_synonyms(spec: str) -> bool:
    """Whether a specification needs a synonym table: loading one takes seconds."""
    names = [step.name for step in parse(spec).steps if step.name != IDENTITY]
    return any("synonyms" in CATALOGUE[name].needs for name in names)


def catalogue() -> list[Entry]:
    """All augmentations there are."""
    return list(CATALOGUE.values())


def _apply(function: functools.partial | None, batch: Ragged, keys: np.ndarray) -> Ragged:
    return batch if function is None or len(batch) == 0 else function(batch, keys)


def _bind(step: Step, vocabulary: Vocabulary, synonyms: SynonymTable | None) -> functools.partial | None:
    if step.name == IDENTITY:
        return None
    entry = CATALOGUE[step.name]
    if entry.kind != "token":
        raise AugmentationError(f"{step.name} works on text, not on tokens: prepare a corpus with it first")
    arguments = dict(step.parameters)
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
    return functools.partial(entry.function, vocabulary=vocabulary, **arguments)


def _parse_step(text: str, position: int, spec: str) -> Step:
    name, *settings = text.strip().split(":")
    name = name.strip()
    place = f"at character {position + 1} of {spec!r}"
    if not name:
        raise AugmentationError(
            f"an augmentation is missing {place}: write names with ',' (one after the other) or '|' (one of them) between, or "
            f"'{IDENTITY}' for no augmentation"
        )
    if name == IDENTITY:
        if settings:
            raise AugmentationError(f"'{IDENTITY}' {place} takes no parameters")
        return Step(IDENTITY)
    if name not in CATALOGUE:
        raise AugmentationError(
            f"there is no augmentation {name!r} ({place}){_nearest(name, [*CATALOGUE, IDENTITY])}; there are "
            f"{', '.join([*CATALOGUE, IDENTITY])} (python -m augment --list)"
        )
    entry = CATALOGUE[name]
    parameters = {parameter.name: parameter for parameter in entry.parameters}
    values = {parameter.name: parameter.default for parameter in entry.parameters}
    given = set()
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not value:
            raise AugmentationError(f"{setting.strip()!r} {place} is no parameter: write {name}:key=value, as in {entry.example}")
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
    low = -np.inf if parameter.low is None else parameter.low
    high = np.inf if parameter.high is None else parameter.high
    if kind in (int, float) and not low <= value <= high:  # also catches nan
        raise AugmentationError(f"{where}: {parameter.name}={text} is outside {low:g}..{high:g} ({parameter.meaning})")
    return value


def _nearest(name: str, names: list[str]) -> str:
    match = difflib.get_close_matches(name.lower().replace("_", "-"), names, n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else ""
