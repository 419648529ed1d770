"""Augmentations as a small model sees them: vectors, comparisons."""

from difflib import SequenceMatcher

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from word_sentences import sentences

from augment.core.errors import AugmentationError
from finetune.encoders.models import open_model
from finetune.geometry.augmentations import AugmentedSentences, compare, jaccard


def letters(texts):
    """A function for an encoder: counts of letters."""
    return np.array([[text.count(letter) for letter in "abcdefghijklm"] for text in texts], np.float32) + 0.01


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        ("a dog barks", "A dog sings", 2 / 4),
        ("", "!", 1),
        ("", "dog", 0),
        ("dog", "", 0),
        ("dog dog", "dog", 1),
        ("我爱dog", "我 dog", 2 / 3),
        ("well-known it's", "well known its", 0),
    ],
)
def test_jaccard_is_of_words_and_of_chinese_characters(first, second, share):
    assert jaccard(first, second) == share


def test_vectors_of_tokens_are_those_of_text(folder):
    model = open_model(folder, "mean")
    texts = sentences(12)
    augmented = AugmentedSentences(model, texts)
    np.testing.assert_allclose(augmented.vectors, model.encode(texts), atol=1e-6)
    view = augmented.view("del-span")
    # whole words: text and tokens agree
    again = model.encode([augmented.text_of(view, n) for n in range(len(texts))])
    np.testing.assert_allclose(view.vectors, again, atol=1e-5)


def test_comparison_of_an_augmentation(folder):
    augmented = AugmentedSentences(open_model(folder, "mean"), sentences(30))
    view = augmented.view("reorder")
    figures = compare(augmented, view)
    which = np.flatnonzero(view.changed)
    before, after = augmented.vectors[which].astype(float), view.vectors[which].astype(float)
    assert figures["changed"] == pytest.approx(100 * len(which) / 30)
    assert figures["cosine"] == pytest.approx(
        1 - np.diagonal(cdist(before, after, "cosine")).mean(), abs=1e-6
    )
    by_pair = 1 - np.diagonal(cdist(before, after, "cosine"))
    assert figures["cosine_std"] == pytest.approx(by_pair.std(), rel=1e-4)
    rows = [(augmented.originals[n][1:-1].tolist(), view.rows[n][1:-1].tolist()) for n in which]
    alike = [SequenceMatcher(None, one, other, autojunk=False).ratio() for one, other in rows]  # as long
    assert figures["tokens_changed"] == pytest.approx(100 - 100 * np.mean(alike))
    assert figures["jaccard"] == 1.0 and len(figures) == 5  # of words in another order
    unchanged = compare(augmented, augmented.view("none"))
    assert unchanged == {"changed": 0.0}


def test_a_function_gets_its_augmentations_as_text():
    augmented = AugmentedSentences(open_model(letters), sentences(15))
    view = augmented.view("crop:rate=0.5")
    assert view.name == "crop:rate=0.5"
    np.testing.assert_allclose(view.vectors, letters([augmented.text_of(view, n) for n in range(15)]))
    with pytest.raises(AugmentationError, match="did you mean 'reorder'"):
        augmented.view("reoder")
