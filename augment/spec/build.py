"""Build the pipeline of a specification: look for what its augmentations need, and bind their parameters."""

import functools
from collections.abc import Iterable

from augment.core.errors import AugmentationError
from augment.core.vocabulary import Vocabulary
from augment.spec.grammar import Specification, Step, parse
from augment.spec.pipeline import BoundStep, Pipeline
from augment.spec.sets import WITHOUT_MODELS
from augment.text.encoder import TextEncoder
from augment.tokens.synonyms import SynonymTable


def build(
    spec: str,
    vocabulary: Vocabulary,
    synonyms: SynonymTable | None = None,
    encoder: TextEncoder | None = None,
) -> Pipeline:
    """Build a pipeline, its models loaded, for forked workers to share; one error lists what is lacking."""
    specification = parse(spec)
    if synonyms is not None and synonyms.vocabulary.size != vocabulary.size:
        raise AugmentationError(
            f"the synonym table was made for a tokenizer of {synonyms.vocabulary.size:,} tokens, this one "
            f"has {vocabulary.size:,}: load the table again with this tokenizer"
        )
    text_steps = [step for step in specification.augmentations if step.is_text]
    if encoder is None and text_steps:
        raise AugmentationError(
            f"{text_steps[0].name} works on text, but this data has no text: prepare it with --annotate MODEL"
        )
    _require(specification.augmentations, spec)
    return Pipeline(specification, _bound(specification, vocabulary, synonyms), encoder)


def build_texts(spec: str) -> Pipeline:
    """Build a pipeline for `Pipeline.texts` alone, without a tokenizer."""
    specification = parse(spec)
    _require((step for step in specification.augmentations if step.is_text), spec)
    return Pipeline(specification, _bound(specification))


def _bound(
    specification: Specification, vocabulary: Vocabulary | None = None, synonyms: SynonymTable | None = None
) -> tuple[tuple[BoundStep, ...], ...]:
    return tuple(tuple(_bind(step, vocabulary, synonyms) for step in stage) for stage in specification.stages)


def _bind(step: Step, vocabulary: Vocabulary | None, synonyms: SynonymTable | None) -> BoundStep:
    """Bind a step's parameters; without a vocabulary a step on tokens does nothing."""
    if step.is_identity or (vocabulary is None and not step.is_text):
        return BoundStep(step.name, False, None)
    entry, arguments = step.entry, step.values()
    if vocabulary is not None and not step.is_text:
        arguments["vocabulary"] = vocabulary
        if "synonyms" in entry.needs:
            if synonyms is None:
                raise AugmentationError(f"{step.name} needs a synonym table: name one with --synonyms PATH")
            arguments["synonyms"] = synonyms
        if "del" in entry.needs:
            vocabulary.require_del(step.name)
        if "punctuation" in entry.needs:
            vocabulary.require_punctuation(step.name)
    function = functools.partial(entry.function, **arguments)
    return BoundStep(step.name, step.is_text, function, entry.batch, entry.languages)


def require(specs: Iterable[str], load: bool = True) -> None:
    """Check that what augmentations need is here, the synonym table aside; load: open their models too."""
    specs = list(specs)
    _require((step for spec in specs for step in parse(spec).augmentations), ",".join(specs), load)


def _require(steps: Iterable[Step], spec: str, load: bool = True) -> None:
    """Raise one AugmentationError for all that augmentations lack; spec: as the user wrote it."""
    lacking = {}
    for step in dict.fromkeys(steps):
        entry = step.entry
        try:
            if entry.require is not None:
                entry.require()
            values = step.values()
            empty = [one for one in entry.parameters if one.variable and not values[one.name]]
            models = [need.removeprefix("model:") for need in entry.needs if need.startswith("model:")]
            if empty and models:
                written = "".join(f":{one.name}=NAME" for one in empty)
                variables = " and ".join(one.variable for one in empty)
                raise AugmentationError(
                    f"{entry.name} needs {models[0]}: name files, folders or models of the hub in the "
                    f"specification, {entry.name}{written} (as in {entry.example}), or in {variables}, which "
                    "also takes names with ':' ',' or '|' in them"
                )
            if entry.load is not None and load:
                entry.load(values)
        except AugmentationError as error:
            lacking[str(error)] = entry
    if not lacking:
        return
    problems = [text.rstrip(".") for text in lacking]
    if any(need.startswith("model:") for entry in lacking.values() for need in entry.needs):
        names = (name.strip() for name in spec.replace("|", ",").split(","))
        smaller = [name for name in names if name in WITHOUT_MODELS]
        problems += [f"{WITHOUT_MODELS[name]} is {name} without language models" for name in smaller]
    raise AugmentationError(". ".join(problems))
