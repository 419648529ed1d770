"""Texts before every sentence: after augmentation, with the tokens that users of the export have."""

import loader_helpers as helpers
import numpy as np
import pytest
import torch
from encoder_helpers import make_encoder
from export_helpers import make_run, make_tokenizer
from loader_helpers import batches

from augment.core.ragged import Ragged
from finetune.encoders.models import open_model
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
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
    with pytest.raises(UserError, match=r"data\.prompts\.anchor='nobody'.*try 'nobody '"):
        prompt_tokens(tokenizer, {"anchor": "nobody"})
    with pytest.raises(UserError, match=r"positive=' ' joins 'A man.*try ''"):  # it has no tokens
        prompt_tokens(tokenizer, {"positive": " "})


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
    documents = ours.encode([ours.prompts["document"] + one for one in SENTENCES], "")
    np.testing.assert_allclose(documents, library.encode_document(SENTENCES), atol=1e-5)
    assert np.abs(documents - expected).max() > 0.01
    monkeypatch.setenv("CLEAR_VECTORS", str(tmp_path / "kept"))
    again = open_model(out)
    for prompt, vectors in ((None, expected), ("", ours.encode(SENTENCES, ""))):
        np.testing.assert_allclose(again.encode(SENTENCES, prompt), vectors, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "last-two"])
def test_means_without_prompts_are_those_of_sentence_transformers(tmp_path, pooling):
    from sentence_transformers import SentenceTransformer

    make_run(tmp_path / "run", pooling=pooling, prompts=PROMPTS, prompts_pooled=False)
    make_run(tmp_path / "all", pooling=pooling, prompts=PROMPTS)
    library, ours = SentenceTransformer(str(out := export(tmp_path / "run")), device="cpu"), open_model(out)
    for found, expected in (
        (ours.encode(SENTENCES), library.encode_query(SENTENCES)),
        (
            ours.encode([PROMPTS["positive"] + one for one in SENTENCES], ""),
            library.encode_document(SENTENCES),
        ),
        (ours.encode(SENTENCES, ""), library.encode(SENTENCES, prompt="")),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    with_prompts = open_model(export(tmp_path / "all"))
    assert np.abs(with_prompts.encode(SENTENCES) - ours.encode(SENTENCES)).max() > 0.01
    same = [model.encode(SENTENCES, "") for model in (with_prompts, ours)]
    np.testing.assert_array_equal(*same)


def test_only_the_rows_that_begin_with_a_prompt_are_pooled_without_it():
    """In one packed row, against the mean of the states of each sequence's tokens; gradients too."""
    encoder = make_encoder("bert", "mean").double()
    ids = torch.tensor([1, 7, 8, 20, 21, 2, 1, 7, 9, 20, 2, 1, 9, 30, 2, 1, 7, 8, 1, 20, 7, 8, 2])
    lengths = torch.tensor([6, 5, 4, 3, 5])
    encoder.leave_out([np.array(prompt, np.int32) for prompt in ([7, 8], [9], [])])
    parts = encoder.states(ids, lengths, None).last.split(lengths.tolist())
    means = torch.stack([part[skip:].mean(0) for part, skip in zip(parts, (3, 0, 2, 0, 0))])
    vectors = encoder.embed(ids, lengths)
    torch.testing.assert_close(vectors, means)
    weight = next(encoder.lm.base_model.encoder.parameters())
    mine, expected = (torch.autograd.grad(x.square().sum(), weight)[0] for x in (vectors, means))
    torch.testing.assert_close(mine, expected)
    encoder.leave_out([])
    plain = torch.stack([part.mean(0) for part in parts])
    torch.testing.assert_close(encoder.embed(ids, lengths), plain)


@pytest.mark.parametrize(
    "flags, says",
    [
        ({"data.prompts_pooled": "false", "model.pooling": "mean"}, "without data.prompts"),
        (
            {"data.prompts_pooled": "false", "data.prompts": "{anchor: 'a: '}", "model.pooling": "cls"},
            "pooling=cls",
        ),
    ],
)
def test_leaving_out_what_is_not_there_is_refused(flags, says):
    with pytest.raises(UserError, match=f"data.prompts_pooled=false changes nothing.*{says}"):
        load_config(None, flags)
