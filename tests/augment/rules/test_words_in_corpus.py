"""All rules over some 300 sentences of Wikipedia, parsed: properties that hold for every one."""

import gzip
import itertools

import numpy as np
import pytest
from real_data import DATA, parser_folder

from augment.core.errors import AugmentationError
from augment.core.keys import sequence_keys
from augment.spec.catalogue import CATALOGUE
from augment.text.draws import draws_for
from augment.text.parsing import parse_texts
from augment.text.word_forms import balanced, repeats

ENTRIES = [entry for entry in CATALOGUE.values() if entry.function.__module__.startswith("augment.rules.")]


@pytest.fixture(scope="module")
def sentences():
    corpus = DATA / "text" / "wiki_sentences_200k.txt.gz"
    if not corpus.exists():
        pytest.skip("CLEAR_DATA has no text/wiki_sentences_200k.txt.gz")
    model = parser_folder()
    with gzip.open(corpus, "rt", encoding="utf-8") as file:
        texts = [line.strip() for line in itertools.islice(file, 0, 60_000, 200)]
    return list(parse_texts(texts, model))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_properties(entry, sentences):
    if entry.require is not None:
        try:
            entry.require()
        except AugmentationError as error:
            pytest.skip(str(error))
    _check_properties(entry, sentences)


@pytest.mark.parametrize("variant", ["sense", "code"])
@pytest.mark.parametrize("entry", [e for e in ENTRIES if "wordnet" in e.needs], ids=lambda entry: entry.name)
def test_properties_with_the_whole_wordnet(entry, variant, sentences, whole_wordnet):
    _check_properties(entry, sentences, variant=variant)


def _check_properties(entry, sentences, **given):
    parameters = {parameter.name: parameter.default for parameter in entry.parameters} | given
    keys = sequence_keys(1, 0, np.arange(len(sentences)), 1, "augment")
    passes = [
        [
            entry.function(sentence, draws, **parameters)
            for sentence, draws in zip(sentences, draws_for(keys, entry.name))
        ]
        for _ in range(2)
    ]
    assert passes[0] == passes[1]
    for sentence, result in zip(sentences, passes[0]):
        if result is None:
            continue
        assert (
            result
            and result != sentence.text
            and result == result.strip()
            and result.count("_") <= sentence.text.count("_")
        )
        assert "  " not in result or "  " in sentence.text, result
        if entry.name != "phonemes":  # its letters are no words
            assert repeats(result) <= repeats(sentence.text), result
        assert balanced(result) or not balanced(sentence.text), result
