"""Specifications of augmentations, "del-span,reorder" and the like, into pipelines over batches.

none                    the identity: dropout alone tells the views apart (SimCSE)
del-span,reorder        stages, left to right
subs|repeat             alternatives: one drawn for each sentence, evenly; `none` may be one of them
subs|repeat,del-span    `|` binds tighter than `,`: one of two, then del-span
del-span:spans=3:rate=0.1   parameters
pi|mv|dn,del-word       augmentations of text stand before those of tokens
augcse-12-2             a set of alternatives by its name (`augment.sets`)
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from augment.catalogue import CATALOGUE
from augment.entry import Entry
from augment.errors import AugmentationError
from augment.keys import bits_per_sequence, derive
from augment.parsed import ParsedSentence, without_parse
from augment.ragged import Ragged
from augment.sets import SETS, expand
from augment.synonyms import SynonymTable
from augment.text import TextEncoder, draws_for
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

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return all(step.name == IDENTITY for step in self.steps)


@dataclass(frozen=True)
class Bound:
    """A step made ready: its name, whether it works on text, and its function with all parameters (None: the identity)."""

    name: str
    is_text: bool
    function: functools.partial | None


@dataclass(frozen=True)
class Pipeline:
    """A specification made ready for one tokenizer: a Ragged and one key per sequence to a new Ragged of the same N.

    What a sequence becomes depends on its tokens (its text and parse, for augmentations of text) and its key only. Stage i
    draws with keys derived from i, so a name that stands twice draws anew. Pickles, so it can be handed to workers.
    """

    specification: Specification
    stages: tuple[tuple[Bound, ...], ...]
    encoder: TextEncoder | None = None

    @property
    def name(self) -> str:
        """The canonical specification."""
        return str(self.specification)

    @property
    def is_identity(self) -> bool:
        return self.specification.is_identity

    @property
    def needs_text(self) -> bool:
        """Whether a call needs `sentences`."""
        return any(step.is_text for stage in self.stages for step in stage)

    @property
    def works_on_tokens(self) -> bool:
        return any(map(_works_on_tokens, self.stages))

    def __call__(self, batch: Ragged, keys: np.ndarray, sentences: Sequence[ParsedSentence] | None = None) -> Ragged:
        """keys: uint64[N], as `keys.sequence_keys` makes them. sentences: the N parses, needed if `needs_text`.

        Sequences whose text no augmentation changed keep their tokens. Raises AugmentationError on a batch it cannot take.
        """
        if len(keys) != len(batch):
            raise ValueError(f"{len(keys)} keys for {len(batch)} sequences: one key per sequence is needed")
        if self.is_identity or len(batch) == 0:
            return batch
        if self.needs_text:
            if sentences is None:
                raise AugmentationError(f"{self.name} works on text: the sentences' text and parse are needed, not only tokens")
            batch = self._rewrite(batch, keys, sentences)
        if not self.works_on_tokens:
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

    def texts(self, keys: np.ndarray, sentences: Sequence[ParsedSentence]) -> dict[int, str]:
        """What the augmentations of text make of N sentences: sentence number -> new text, of those that they change."""
        changed: dict[int, str] = {}
        for number, alternatives in enumerate(self.stages):
            if not any(step.is_text for step in alternatives):
                break
            stage_keys, choice = derive(keys, number), self.choices(keys, number)
            for index, step in enumerate(alternatives):
                if not step.is_text:
                    continue
                rows = np.flatnonzero(choice == index)
                for row, draws in zip(rows.tolist(), draws_for(stage_keys[rows], step.name)):
                    sentence = sentences[row]
                    if row in changed:  # by an earlier stage, so that its parse is gone
                        sentence = without_parse(changed[row], sentence.language)
                    new = step.function(sentence, draws)
                    if new is not None and new != sentence.text:
                        changed[row] = new
        return changed

    def _rewrite(self, batch: Ragged, keys: np.ndarray, sentences: Sequence[ParsedSentence]) -> Ragged:
        changed = self.texts(keys, sentences)
        if not changed:
            return batch
        order = np.arange(len(batch))
        order[list(changed)] = len(batch) + np.arange(len(changed))
        return Ragged.concatenate([batch, self.encoder(list(changed.values()))]).take(order)

    def _block(self, batch: Ragged, keys: np.ndarray) -> Ragged:
        for number, alternatives in enumerate(self.stages):
            if not _works_on_tokens(alternatives):
                continue
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
    spec: str, vocabulary: Vocabulary, synonyms: SynonymTable | None = None, encoder: TextEncoder | None = None
) -> Pipeline:
    """A pipeline for a tokenizer. encoder: how text becomes tokens, for a specification that `needs_text`.

    Raises AugmentationError when the specification is wrong, or needs [DEL], a synonym table, text or a resource that is not
    there.
    """
    specification = parse(spec)
    if synonyms is not None and synonyms.vocabulary.size != vocabulary.size:
        raise AugmentationError(
            f"the synonym table was made for a tokenizer of {synonyms.vocabulary.size:,} tokens, this one "
            f"has {vocabulary.size:,}: load the table again with this tokenizer"
        )
    stages = tuple(tuple(_bind(step, vocabulary, synonyms, encoder) for step in stage) for stage in specification.stages)
    return Pipeline(specification, stages, encoder)


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
                    f"{step.name} works on text and stands behind {after.name}, which works on tokens: write it first, as in "
                    f"'{step.name},{after.name}'"
                )
            if number and _reads_parse(step):
                raise AugmentationError(
                    f"{step.name} reads the parse of the sentence, which is gone once another augmentation has changed the text: "
                    f"write it first, or as an alternative, as in '{specification.stages[0][0].name}|{step.name}'"
                )
        tokens = [step for step in stage if step.name != IDENTITY and not _is_text(step)]
        after = after or (tokens[0] if tokens else None)


def _works_on_tokens(stage: tuple[Bound, ...]) -> bool:
    return any(step.function is not None and not step.is_text for step in stage)


def _apply(step: Bound, batch: Ragged, keys: np.ndarray) -> Ragged:
    return batch if step.function is None or step.is_text or len(batch) == 0 else step.function(batch, keys)


def _bind(step: Step, vocabulary: Vocabulary, synonyms: SynonymTable | None, encoder: TextEncoder | None) -> Bound:
    if step.name == IDENTITY:
        return Bound(IDENTITY, False, None)
    entry = CATALOGUE[step.name]
    arguments = dict(step.parameters)
    if entry.require is not None:
        entry.require()
    if entry.kind == "text":
        if encoder is None:
            raise AugmentationError(
                f"{step.name} works on text, and there are only tokens here: prepare the corpus with --annotate MODEL, which "
                "keeps text and parse beside the tokens"
            )
        return Bound(step.name, True, functools.partial(entry.function, **arguments))
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
            f"an augmentation is missing {place}: write names with ',' (one after the other) or '|' (one of them) between, or "
            f"'{IDENTITY}' for no augmentation"
        )
    if name == IDENTITY:
        if settings:
            raise AugmentationError(f"'{IDENTITY}' {place} takes no parameters")
        return Step(IDENTITY)
    if name not in CATALOGUE:
        raise AugmentationError(
            f"there is no augmentation {name!r} ({place}){_nearest(name, [*CATALOGUE, *SETS, IDENTITY])}; there are "
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
    if parameter.choices and value not in parameter.choices:
        raise AugmentationError(
            f"{where}: {parameter.name}={text} is none of {', '.join(parameter.choices)} ({parameter.meaning})"
            + _nearest(text, list(parameter.choices))
        )
    low = -np.inf if parameter.low is None else parameter.low
    high = np.inf if parameter.high is None else parameter.high
    if kind in (int, float) and not low <= value <= high:  # also catches nan
        raise AugmentationError(f"{where}: {parameter.name}={text} is outside {low:g}..{high:g} ({parameter.meaning})")
    return value


def _nearest(name: str, names: list[str]) -> str:
    match = difflib.get_close_matches(name.lower().replace("_", "-"), names, n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else ""
