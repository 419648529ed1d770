"""Augmentations as a small model sees them: vectors, pseudo-perplexity, comparisons."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from transformers import AutoModelForMaskedLM, AutoTokenizer
from word_sentences import sentences

from augment.core.errors import AugmentationError
from finetune.encoders.models import open_model
from finetune.geometry import measures
from finetune.geometry.augmentations import AugmentedSentences, compare, pseudo_perplexity
from pretrain.common.errors import UserError


def letters(texts):
    """A function for an encoder: counts of letters."""
    return np.array([[text.count(letter) for letter in "abcdefghijklm"] for text in texts], np.float32) + 0.01


def test_vectors_of_tokens_are_those_of_text(folder):
    model = open_model(folder, "mean")
    texts = sentences(12)
    augmented = AugmentedSentences(model, texts)
    np.testing.assert_allclose(augmented.vectors, model.encode(texts), atol=1e-6)
    view = augmented.view("del-span")
    # whole words: text and tokens agree
    again = model.encode([augmented.text(view.rows[n]) for n in range(len(texts))])
    np.testing.assert_allclose(view.vectors, again, atol=1e-5)


def test_pseudo_perplexity_is_the_padded_models_loss(folder):
    augmented = AugmentedSentences(open_model(folder, "mean"), sentences(9), seed=5)
    found = augmented.masked_losses(augmented.originals)
    model, tokenizer = (
        AutoModelForMaskedLM.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    from augment.core.keys import sequence_keys
    from finetune.geometry.augmentations import MASK_RATE, MASK_ROUNDS
    from pretrain.data.masking import mask_tokens

    expected = np.zeros((9, 2))
    for number in range(MASK_ROUNDS):
        keys = sequence_keys(5, number, np.arange(9), 0, "mask")
        masked = mask_tokens(
            augmented.originals, keys, augmented.vocabulary, rate=MASK_RATE, mask=1.0, random=0.0
        )
        for row in range(9):
            before, after = augmented.originals[row], masked.batch[row]
            hidden = before != after
            assert (after[hidden] == tokenizer.mask_token_id).all()
            with torch.no_grad():
                logits = model(torch.from_numpy(after.astype(np.int64))[None]).logits[0].log_softmax(-1)
            expected[row] += [-logits[hidden, before[hidden]].sum().item(), hidden.sum()]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert pseudo_perplexity(found) == pytest.approx(
        np.exp(expected[:, 0].sum() / expected[:, 1].sum()), rel=1e-5
    )


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
    assert figures["cond_hm"] == measures.compare_clouds(before, after)["cond_hm"]
    assert figures["perplexity_change"] == pytest.approx(
        figures["perplexity_view"] - figures["perplexity_original"]
    )
    unchanged = compare(augmented, augmented.view("none"))
    assert unchanged == {"changed": 0.0}


def test_a_function_has_no_perplexity_and_no_del(capsys):
    augmented = AugmentedSentences(open_model(letters), sentences(15))
    assert "letters does not run as a masked language model" in augmented.why_no_perplexity
    with pytest.raises(UserError, match="no pseudo-perplexity"):
        augmented.masked_losses(augmented.originals)
    view = augmented.view("crop:rate=0.5")
    assert view.name == "crop:rate=0.5"
    np.testing.assert_allclose(view.vectors, letters([augmented.text(view.rows[n]) for n in range(15)]))
    with pytest.raises(AugmentationError, match="did you mean 'reorder'"):
        augmented.view("reoder")


def test_a_model_without_head_says_so(folder, tmp_path):
    from transformers import AutoModel

    AutoModel.from_pretrained(folder).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    augmented = AugmentedSentences(open_model(tmp_path, "mean"), sentences(5))
    assert "no masked-language head (its config names BertModel)" in augmented.why_no_perplexity
