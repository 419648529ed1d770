"""Parse specifications of augmentations, "del-span,reorder" and the like (`clearly augment --help all`).

A specification may name an augmentation of the user's own, in a file: `--aug my.py:function`.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from augment.core.entry import Entry, Parameter, kind_of
from augment.core.errors import AugmentationError, excerpt, nearest_name, shortened
from augment.core.own_code import OWN, load
from augment.core.ragged import Ragged
from augment.spec.catalogue import CATALOGUE
from augment.spec.sets import SETS, expand
from augment.text.parsed import ParsedSentence

IDENTITY = "none"


@dataclass(frozen=True)
class Step:
    """Name one augmentation with all its parameters, in the order of the catalogue.

    >>> Step("del-span", (("spans", 3), ("rate", 0.05)))
    Step(name='del-span', parameters=(('spans', 3), ('rate', 0.05)))
    """

    name: str
    parameters: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        """Write the step as a user would: only parameters that differ from their defaults."""
        defaults = {} if self.is_identity else {one.name: one.default for one in self.entry.parameters}
        changed = [f":{name}={value!s}" for name, value in self.parameters if value != defaults[name]]
        return self.name + "".join(changed)

    @property
    def is_identity(self) -> bool:
        """Return whether the step is `none`, which is in no catalogue."""
        return self.name == IDENTITY

    @property
    def entry(self) -> Entry:
        """Return what the catalogue, or its own file, says of it; `none` has no entry (KeyError)."""
        return own_entry(self.name) if self.is_own else CATALOGUE[self.name]

    @property
    def is_own(self) -> bool:
        return OWN.match(self.name) is not None

    @property
    def is_text(self) -> bool:
        return not self.is_identity and self.entry.kind == "text"

    @property
    def reads_parse(self) -> bool:
        """Return whether the step reads tags or the parse of a sentence."""
        return self.is_text and not {"parse", "tags"}.isdisjoint(self.entry.needs)

    def values(self) -> dict[str, Any]:
        """Return the parameters by name; the environment fills those that are empty and have a variable."""
        values = dict(self.parameters)
        for parameter in self.entry.parameters:
            if parameter.variable and not values[parameter.name]:
                values[parameter.name] = os.environ.get(parameter.variable, "")
        return values


@dataclass(frozen=True)
class Specification:
    """List stages, applied from left to right, each of one or more alternatives.

    >>> specification = parse("pi | none, del-span:rate=0.10:spans=5")
    >>> str(specification)
    'pi|none,del-span:rate=0.1'
    >>> [[step.name for step in stage] for stage in specification.stages]
    [['pi', 'none'], ['del-span']]
    >>> specification.stages[1][0].parameters
    (('spans', 5), ('rate', 0.1))
    """

    stages: tuple[tuple[Step, ...], ...]

    def __str__(self) -> str:
        """Write the canonical text, which parses to an equal Specification."""
        return ",".join("|".join(map(str, stage)) for stage in self.stages) or IDENTITY

    @property
    def augmentations(self) -> tuple[Step, ...]:
        """Return the steps of all stages, `none` left out."""
        return tuple(step for stage in self.stages for step in stage if not step.is_identity)

    @property
    def is_identity(self) -> bool:
        return not self.augmentations


def parse(spec: str) -> Specification:
    """Parse a specification; an AugmentationError names the place of a fault, and the nearest name."""
    if not isinstance(spec, str):
        raise AugmentationError(f"a specification is a text such as 'del-span,reorder', not {excerpt(spec)}")
    spec = expand(spec)
    stages = []
    position = 0
    for stage in spec.split(","):
        steps = []
        for text in stage.split("|"):
            steps.append(_parse_step(text, position, spec))
            position += len(text) + 1
        stages.append(tuple(steps))
    changing = (stage for stage in stages if not all(step.is_identity for step in stage))
    specification = Specification(tuple(changing))
    _check_order(specification)
    return specification


def alternatives(spec: str) -> list[str]:
    """Return the alternatives of a specification of one stage, as text.

    >>> alternatives("pi|mv|del-word:rate=0.50")
    ['pi', 'mv', 'del-word:rate=0.5']
    """
    stages = parse(spec).stages
    if len(stages) != 1:
        problem = "has several stages" if stages else "changes nothing"
        raise AugmentationError(f"a labelled view needs alternatives, 'a|b|c'; {excerpt(spec)} {problem}")
    return [str(step) for step in stages[0]]


def with_excerpt(step: str, spec: str) -> str:
    """Return a specification with `step`, an excerpt, before augmentations of tokens, behind those of text.

    >>> with_excerpt("span", "pi|mv,del-span"), with_excerpt("none", "del-span"), with_excerpt("span", "none")
    ('pi|mv,span,del-span', 'del-span', 'span')
    """
    if not parse(step).stages:
        return spec
    stages = [stage for stage in expand(spec).split(",") if parse(stage).stages]
    texts = sum(map(needs_text, stages))  # they come first
    return ",".join([*stages[:texts], step, *stages[texts:]])


def _has_step(test: Callable[[Step], bool]) -> Callable[[str], bool]:
    """Return a function that tells whether a specification has an augmentation which passes a test."""
    return lambda spec: any(map(test, parse(spec).augmentations))


needs_synonyms = _has_step(lambda step: "synonyms" in step.entry.needs)
"""Tell whether a specification needs a synonym table, which takes seconds to load."""
writes_del = _has_step(lambda step: "del" in step.entry.needs)
loads_models = _has_step(lambda step: step.entry.load is not None)
"""Tell whether a specification has augmentations that load a model or word vectors."""
needs_text = _has_step(lambda step: step.is_text)
needs_parse = _has_step(lambda step: step.reads_parse)
"""Tell whether a specification has augmentations that read tags or the parse."""


def from_environment(specs: Iterable[str]) -> dict[str, str]:
    """Return the variables that fill what specifications leave open (models, files), with their values."""
    return {
        parameter.variable: os.environ[parameter.variable]
        for spec in specs
        for step in parse(spec).augmentations
        for parameter in step.entry.parameters
        if parameter.variable in os.environ and not dict(step.parameters)[parameter.name]
    }


def _check_order(specification: Specification) -> None:
    """Refuse text augmentations behind those of tokens, and a parse read behind another text augmentation."""
    after: Step | None = None  # the first augmentation of tokens
    for number, stage in enumerate(specification.stages):
        for step in stage:
            if step.is_text and after is not None:
                raise AugmentationError(
                    f"{step.name} works on text, {after.name} on tokens: write '{step.name},{after.name}'"
                )
            if number and step.reads_parse:
                raise AugmentationError(
                    f"{step.name} reads the parse, which is lost once another augmentation has changed the "
                    f"text: write it first, or '{specification.stages[0][0].name}|{step.name}'"
                )
        after = after or next((step for step in stage if not (step.is_identity or step.is_text)), None)


def _parse_step(text: str, position: int, spec: str) -> Step:
    name, *settings = text.strip().split(":")
    name = name.strip()
    place = f"at character {position + 1} of {excerpt(spec)}"
    if not name:
        raise AugmentationError(f"an augmentation is missing {place}; '{IDENTITY}' stands for none")
    if name == IDENTITY:
        if settings:
            raise AugmentationError(f"'{IDENTITY}' {place} takes no parameters")
        return Step(IDENTITY)
    if name in SETS:  # without parameters it would have been expanded
        raise AugmentationError(
            f"{name} {place} is a set, which takes no parameters: write its members out, {SETS[name]}"
        )
    if name.endswith(".py"):
        own = f"{name}:{settings.pop(0).strip() if settings else ''}"
        if not OWN.match(own):
            raise AugmentationError(f"{name} {place}: name a function in that file, as in {name}:function")
        return Step(own, _parse_settings(own_entry(own), settings, place))
    if name not in CATALOGUE:
        near = _nearest(name, [*CATALOGUE, *SETS, IDENTITY])
        raise AugmentationError(
            f"there is no augmentation {excerpt(name)} ({place}){near} (--list shows all)"
        )
    return Step(name, _parse_settings(CATALOGUE[name], settings, place))


def _parse_settings(entry: Entry, settings: Iterable[str], place: str) -> tuple[tuple[str, Any], ...]:
    """Return all parameters of an augmentation with their values, from its settings "key=value"."""
    where = f"{entry.name} {place}"
    parameters = {parameter.name: parameter for parameter in entry.parameters}
    values = {parameter.name: parameter.default for parameter in entry.parameters}
    given = set()
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not value:
            wanted = f"write {entry.name}:key=value, as in {entry.example}"
            raise AugmentationError(f"{excerpt(setting.strip())} {place} is not a parameter: {wanted}")
        if key not in parameters:
            known = ", ".join(f"{name}={default}" for name, default in values.items())
            near = _nearest(key, list(parameters))
            raise AugmentationError(f"{where} has no parameter {excerpt(key)}{near}; it has {known}")
        if key in given:
            raise AugmentationError(f"{where} sets {key} twice")
        given.add(key)
        values[key] = _parse_value(value, parameters[key], where)
    problem = entry.check(values) if entry.check else None
    if problem:
        raise AugmentationError(f"{where}: {problem}")
    return tuple(values.items())


def _parse_value(text: str, parameter: Parameter, where: str) -> Any:
    kind = type(parameter.default)
    low = -inf if parameter.low is None else parameter.low
    high = inf if parameter.high is None else parameter.high
    problem = ""
    try:
        value = {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
        if parameter.choices and value not in parameter.choices:
            problem = f"not one of {', '.join(parameter.choices)}"
        elif kind in (int, float) and not low <= value <= high:  # also catches nan
            problem = f"outside {low:g}..{high:g}"
    except (ValueError, KeyError):
        problem = {int: "not a whole number", float: "not a number", bool: "not true or false"}[kind]
    if problem:
        near = _nearest(text, list(parameter.choices))
        raise AugmentationError(
            f"{where}: {parameter.name}={shortened(text)} is {problem} ({parameter.meaning}){near}"
        )
    return value


def _nearest(name: str, names: list[str]) -> str:
    near = nearest_name(name, names)
    return f"; did you mean {near!r}?" if near else ""


@functools.cache
def own_entry(name: str) -> Entry:
    """Return the entry of FILE.py:NAME, which names a function, or an `Entry` that says more of it.

    A function with a parameter `vocabulary` works on tokens, another one on text (`Entry`).
    """
    found = load(name)
    if isinstance(found, Entry):
        return replace(found, name=name, example=name, function=functools.partial(_own, name))
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
        function=functools.partial(_own, name),
        meaning="possibly altering",
        parameters=tuple(Parameter(one.name, one.default, "a parameter of yours") for one in own),
    )


def _own(name: str, *arguments: Any, **parameters: Any) -> Any:
    """Call what FILE.py:NAME names: by name, so that another process imports the file itself."""
    found, first = load(name), arguments[0]
    try:
        new = (found.function if isinstance(found, Entry) else found)(*arguments, **parameters)
    except AugmentationError:
        raise
    except Exception as error:
        raise AugmentationError(f"{name} failed: {type(error).__name__}: {error}") from error
    if isinstance(first, Ragged):
        size = parameters["vocabulary"].size
        ids = new.ids if isinstance(new, Ragged) and len(new) == len(first) else np.array([-1])
        if len(ids) and not 0 <= ids.min() <= ids.max() < size:
            raise AugmentationError(
                f"{name} must give a Ragged of {len(first):,} sequences, with ids below {size:,}"
            )
    elif isinstance(first, ParsedSentence) and new is not None and not (isinstance(new, str) and new.strip()):
        raise AugmentationError(f"{name} gave {new!r} for {first.text!r}: it must give a text, or None")
    return new
