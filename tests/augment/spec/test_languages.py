"""An augmentation of text meets the parse of a language that it is not written for."""

from dataclasses import replace

import numpy as np
import pytest

from augment.core.errors import AugmentationError
from augment.core.keys import sequence_keys
from augment.spec.build import build_texts
from augment.spec.catalogue import CATALOGUE
from tests.augment.parse_builder import parse

ENGLISH = parse(
    "He bought two red cars in Paris.",
    "He/PRP/nsubj/2 bought/VBD/root/0 two/CD/nummod/5 red/JJ/amod/5 cars/NNS/obj/2 in/IN/case/7 "
    "Paris/NNP/obl/2 ././punct/2",
)
RULES = {
    name: entry
    for name, entry in CATALOGUE.items()
    if entry.kind == "text" and not any(need.startswith("model:") for need in entry.needs)
}


def texts(name, language):
    try:
        pipeline = build_texts(name)
    except AugmentationError as error:
        pytest.skip(str(error))
    keys = sequence_keys(3, 0, np.arange(8, dtype=np.uint64), 0, "augment")
    return pipeline.texts(keys, [replace(ENGLISH, language=language)] * 8)


@pytest.mark.parametrize("name", [name for name, entry in RULES.items() if entry.languages])
def test_a_rule_refuses_a_parse_of_another_language(name):
    with pytest.raises(AugmentationError, match=f"{name} is written for 'en'.* parsed as 'de': 'He bought"):
        texts(name, "de")
    texts(name, "en")


@pytest.mark.parametrize("name", [name for name, entry in RULES.items() if not entry.languages])
def test_a_rule_without_words_of_a_language_takes_any(name):
    assert texts(name, "de") == texts(name, "en")


@pytest.mark.parametrize("name", RULES)
def test_what_looks_words_or_relations_up_names_its_languages(name):
    """Sentences of a text are put in another order by their marks, whatever the parse says."""
    entry = RULES[name]
    assert (
        entry.languages or not {"parse", "wordnet"}.intersection(entry.needs) or name == "sentence-reordering"
    )
