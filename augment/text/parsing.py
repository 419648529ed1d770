"""Parse sentences with a spaCy pipeline, and check their script."""

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from augment.core.errors import AugmentationError
from augment.text.languages import SCRIPTS, letters_by_script, script_of
from augment.text.parsed import ParsedSentence

_NOT_READ = ["ner", "textcat", "textcat_multilabel", "entity_linker", "entity_ruler"]
_BATCH, _BATCH_CHARACTERS = 256, 1 << 18  # texts parsed at a time, and their characters
_SAMPLE, _CHARACTERS = 200, 400  # texts read, evenly spaced, and characters of each
_FEWEST = 4  # letters below which nothing is decided
_LEAST = 0.3  # least share of the letters


def parse_texts(texts: Iterable[str], model: str, any_script: bool = False) -> Iterator[ParsedSentence]:
    """Parse texts, in order; memory does not grow with their number (spaCy's `memory_zone`).

    model: an installed spaCy pipeline or the folder of one. any_script: texts in another script too.
    """
    parser = load_parser(model)
    for number, batch in enumerate(_batches(texts)):
        if not number and not any_script:
            check_language(batch, parser.lang, model)
        with parser.memory_zone():
            sentences = [_sentence(doc, parser.lang) for doc in parser.pipe(batch, batch_size=len(batch))]
        yield from sentences


@functools.lru_cache(maxsize=2)
def load_parser(model: str) -> Any:
    """Load the spaCy pipeline `model`, without what rules do not read (named entities, text categories)."""
    import spacy

    try:
        parser = spacy.load(model, exclude=_NOT_READ)
    except (OSError, ValueError, ImportError) as error:
        raise AugmentationError(
            f"the parser {model!r} cannot be loaded ({str(error).splitlines()[0]}): give an installed spaCy "
            "pipeline (python -m spacy download en_core_web_sm) or the folder of one"
        ) from error
    assigned = {attribute for name in parser.pipe_names for attribute in parser.get_pipe_meta(name).assigns}
    needed = {"token.tag": "tagger", "token.dep": "parser"}
    missing = [title for attribute, title in needed.items() if attribute not in assigned]
    if missing:
        raise AugmentationError(
            f"the pipeline {model!r} has no {' and no '.join(missing)}: give one that has both"
        )
    return parser


def find_parser(name: str = "") -> str:
    """Return `name`, else $CLEAR_PARSER, else an installed spaCy pipeline, an English one first."""
    if found := name or os.environ.get("CLEAR_PARSER", ""):
        return found
    from spacy.util import get_installed_models

    if installed := get_installed_models():
        return min(installed, key=lambda model: (not model.startswith("en_"), model))
    raise AugmentationError(
        "augmentations that read a parse need a spaCy pipeline, and none is installed: python -m spacy "
        "download en_core_web_sm, or name one, or its folder, with --parser or in CLEAR_PARSER"
    )


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield batches of `_BATCH` texts, or of fewer long ones: a parser's memory grows with the characters."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == _BATCH or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _sentence(doc: Any, language: str) -> ParsedSentence:
    """Convert a spaCy Doc, leaving its white space out; what depends on that takes the head of it."""
    tokens = [token for token in doc if not token.is_space]
    place = {token.i: number for number, token in enumerate(tokens)}
    deps = [token.dep_ for token in tokens]
    heads: list[int] = []
    orphans: dict[int, list[int]] = {}  # by their root, a white-space token
    for number, token in enumerate(tokens):
        head = token.head
        # compare indices: spaCy makes a new token object at each access
        while head.is_space and head.head.i != head.i:
            head = head.head
        heads.append(place.get(head.i, number))
        if head.is_space:
            orphans.setdefault(head.i, []).append(number)
    for words in orphans.values():
        root = next((number for number in words if tokens[number].pos_ != "PUNCT"), words[0])
        deps[root] = "ROOT"
        for number in words:
            heads[number] = root
    return ParsedSentence(
        doc.text,
        tuple(token.idx for token in tokens),
        tuple(token.idx + len(token.text) for token in tokens),
        tuple(token.tag_ for token in tokens),
        tuple(token.pos_ for token in tokens),
        tuple(token.lemma_ or token.lower_ for token in tokens),
        tuple(heads),
        tuple(deps),
        language,
    )


def check_language(texts: Sequence[str], language: str, parser: str) -> None:
    """Refuse texts most of whose letters, by a sample, are of another script than the parser's language."""
    wanted = SCRIPTS.get(language)  # None: other languages are not checked
    if wanted is None:
        return
    step = max(1, len(texts) // _SAMPLE)
    found = letters_by_script("".join(text[:_CHARACTERS] for text in texts[::step]))
    total = found.total()
    share = sum(found[script] for script in wanted) / max(1, total)
    if total >= _FEWEST and share < _LEAST:
        script = found.most_common(1)[0][0]
        title = "Chinese" if script == "CJK" else script.capitalize()
        example = next(text for text in texts[::step] if script in map(script_of, filter(str.isalpha, text)))
        raise AugmentationError(
            f"the parser {parser!r} is for {language!r}, and {1 - share:.0%} of it is in another script "
            f"({title}: {example[:40]!r}): give a parser for the language of the text"
        )
