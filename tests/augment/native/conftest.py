"""Share fixtures for compiled code: sentences, and `ParsedSentence` with its methods in Python."""

import dataclasses
import importlib.util
import os
import shutil
import sys

import pytest
from native_sentences import COPULAS, METHODS
from random_parses import random_parse

from augment.core.compiled import VARIABLE, native
from augment.text import parsed
from augment.text.parsed import ParsedSentence

COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))


@pytest.fixture(scope="session", autouse=True)
def _built():
    if os.environ.get(VARIABLE) == "0":
        pytest.skip(f"{VARIABLE}=0: what is compiled is not used")
    if native is None and not COMPILER:
        pytest.skip("augment._native is not there, and no C++ compiler to build it")
    if native is None:
        pytest.fail(
            "augment._native is missing or was compiled from other sources, though there is a C++ compiler: "
            "pip install -e . builds it",
            pytrace=False,
        )


@pytest.fixture(scope="session")
def plain_sentence():
    """Return a converter to a `ParsedSentence` with methods in Python, from its module loaded once more."""
    spec = importlib.util.spec_from_file_location("augment.parsed_in_python", parsed.__file__)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("augment.core.compiled.native", None)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    kind = module.ParsedSentence
    assert all(
        type(getattr(kind, name)) is not type(getattr(ParsedSentence, name))
        for name in [*METHODS, "lower", "with_relation"]
    )
    return lambda sentence: kind(
        *(getattr(sentence, field.name) for field in dataclasses.fields(kind) if field.init)
    )


@pytest.fixture(scope="session")
def sentences():
    made = [random_parse(number, "zh" if number % 5 == 0 else "en") for number in range(400)] + COPULAS
    labels = {label for sentence in made for label in sentence.deps}
    assert {"cop", "auxpass", "aux:pass", "nsubjpass", "acl:relcl", "relcl", "root", "ROOT"} <= labels
    roots = [sum(head == i for i, head in enumerate(sentence.heads)) for sentence in made]
    assert 0 in roots and max(roots) > 1 and not all(sentence.text.isascii() for sentence in made)
    return made
