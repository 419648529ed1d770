"""Build the pipeline of a specification: look for what its augmentations need, and bind their parameters."""

import functools
from collections.abc import Callable, Iterable

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
    stages = _bound(specification, lambda step: _bind_tokens(step, vocabulary, synonyms))
    return Pipeline(specification, stages, encoder)


def build_texts(spec: str) -> Pipeline:
    """Build a pipeline for `Pipeline.texts` alone, without a tokenizer."""
    specification = parse(spec)
    _require((step for step in specification.augmentations if step.is_text), spec)
    return Pipeline(specification, _bound(specification, lambda step: BoundStep(step.name, False, None)))


def _bound(
    specification: Specification, bind_tokens: Callable[[Step], BoundStep]
) -> tuple[tuple[BoundStep, ...], ...]:
    def bind(step: Step) -> BoundStep:
        if not step.is_text:
            return bind_tokens(step)
        function = functools.partial(step.entry.function, **step.values())
        return BoundStep(step.name, True, function, step.entry.batch, step.entry.languages)

    return tuple(tuple(map(bind, stage)) for stage in specification.stages)


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
            named = all(values[parameter.name] for parameter in entry.parameters if parameter.variable)
            if entry.load is not None and (load or not named):
                entry.load(values)  # reports what is not named before it loads anything
        except AugmentationError as error:
            lacking[str(error)] = entry
    if not lacking:
        return
    problems = [text.rstrip(".") for text in lacking]
    if any(need.startswith("model:") for entry in lacking.values() for need in entry.needs):
        written = [name.strip() for name in spec.replace("|", ",").split(",")]
        smaller = [name for name in written if name in WITHOUT_MODELS]
        problems += [f"{WITHOUT_MODELS[name]} is {name} without language models" for name in smaller]
    raise AugmentationError(". ".join(problems))


def _bind_tokens(step: Step, vocabulary: Vocabulary, synonyms: SynonymTable | None) -> BoundStep:
    if step.is_identity:
        return BoundStep(step.name, False, None)
    arguments, needs = step.values(), step.entry.needs
    if "synonyms" in needs:
        if synonyms is None:
            raise AugmentationError(f"{step.name} needs a synonym table: name one with --synonyms PATH")
        arguments["synonyms"] = synonyms
    if "del" in needs:
        vocabulary.require_del(step.name)
    if "punctuation" in needs:
        vocabulary.require_punctuation(step.name)
    return BoundStep(
        step.name, False, functools.partial(step.entry.function, vocabulary=vocabulary, **arguments)
    )
