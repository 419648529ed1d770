"""Texts before every sentence: after augmentation, with the tokens that users of the export have."""

import loader_helpers as helpers
import numpy as np
import pytest
from export_helpers import make_run, make_tokenizer
from loader_helpers import batches

from augment.core.ragged import Ragged
from finetune.encoders.models import open_model
from pretrain.common.errors import UserError
from pretrain.data.tokenizer import prompt_tokens
from pretrain.data.worker import with_prompt
from pretrain.export.folder import export

SENTENCES = ["a bird sings", "nobody listens to it while morning comes", "the old roof"]
PROMPTS = {"anchor": "under the roof: ", "positive": "nobody listens: "}


def test_tokens_are_those_of_prompt_and_sentence_together():
    tokenizer = make_tokenizer()
    for role, tokens in prompt_tokens(tokenizer, PROMPTS).items():
        plain = Ragged.from_sequences(tokenizer(SENTENCES)["input_ids"])
        together = tokenizer([PROMPTS[role] + sentence for sentence in SENTENCES])["input_ids"]
        assert with_prompt(plain, tokens) == Ragged.from_sequences(together)
    assert prompt_tokens(tokenizer, {"anchor": ""})["anchor"].size == 0
    with pytest.raises(UserError, match=r"data\.prompts\.anchor='nobody'.*End the prompt.*'nobody '"):
        prompt_tokens(tokenizer, {"anchor": "nobody"})


def test_prompts_are_neither_augmented_nor_masked(folder):
    prompts = {"positive": np.array([7, 8, 9], np.int32)}
    found, plain = batches(folder, prompts=prompts), batches(folder)
    for batch, without in zip(found, plain):
        assert batch.views["anchor"].tokens == without.views["anchor"].tokens
        assert batch.masked[0].batch == without.masked[0].batch
        ours, theirs = batch.views["positive"], without.views["positive"]
        assert np.array_equal(ours.identities, theirs.identities)
        for row in range(len(batch)):
            tokens = ours.tokens[row].tolist()
            assert tokens[:4] == [helpers.CLS, 7, 8, 9]
            assert [tokens[0], *tokens[4:]] == theirs.tokens[row].tolist()
    (cut, *_) = batches(folder, prompts=prompts, max_length=40, stop_step=1)
    lengths = plain[0].views["positive"].tokens.lengths
    assert cut.views["positive"].tokens.lengths.tolist() == np.minimum(lengths + 3, 40).tolist()
    assert (
        cut.views["positive"].tokens.ids[cut.views["positive"].tokens.offsets[1:] - 1] == helpers.SEP
    ).all()


def test_an_export_puts_them_before_what_it_encodes(tmp_path, monkeypatch):
    from sentence_transformers import SentenceTransformer

    make_run(tmp_path, prompts=PROMPTS)
    out = export(tmp_path)
    library, ours = SentenceTransformer(str(out), device="cpu"), open_model(out)
    expected = library.encode([PROMPTS["anchor"] + one for one in SENTENCES], prompt="")
    assert library.prompts["query"] == PROMPTS["anchor"]
    for vectors in (library.encode(SENTENCES), library.encode_query(SENTENCES), ours.encode(SENTENCES)):
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    documents = ours.without_prompt([ours.prompts["document"] + one for one in SENTENCES])
    np.testing.assert_allclose(documents, library.encode_document(SENTENCES), atol=1e-5)
    assert np.abs(documents - expected).max() > 0.01
    monkeypatch.setenv("CLEAR_VECTORS", str(tmp_path / "kept"))
    again = open_model(out)
    for encode, vectors in ((again.encode, expected), (again.without_prompt, ours.without_prompt(SENTENCES))):
        np.testing.assert_allclose(encode(SENTENCES), vectors, atol=1e-5)
