"""Share fixtures for compiled code: sentences, and a converter to those with methods in Python."""

import dataclasses

import pytest
from native_sentences import COPULAS, PlainSentence
from random_parses import random_parse

from augment.text.parsed import ParsedSentence


@pytest.fixture(scope="session")
def plain_sentence():
    """Return a converter to a `PlainSentence`."""
    names = [field.name for field in dataclasses.fields(ParsedSentence) if field.init]
    return lambda sentence: PlainSentence(*(getattr(sentence, name) for name in names))


@pytest.fixture(scope="session")
def sentences():
    made = [random_parse(number, "zh" if number % 5 == 0 else "en") for number in range(400)] + COPULAS
    labels = {label for sentence in made for label in sentence.deps}
    assert {"cop", "auxpass", "aux:pass", "nsubjpass", "acl:relcl", "relcl", "root", "ROOT"} <= labels
    roots = [sum(head == i for i, head in enumerate(sentence.heads)) for sentence in made]
    assert 0 in roots and max(roots) > 1 and not all(sentence.text.isascii() for sentence in made)
    return made
