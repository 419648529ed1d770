"""Encoders saved and loaded: plain Hugging Face folders, tokenizers that grow, and what is refused."""

import json

import pytest
import torch
from encoder_helpers import MAX_POSITIONS, make_encoder, make_tokenizer, random_ids
from tokenizers import Tokenizer
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    T5Config,
)

from pretrain.common.errors import UserError
from pretrain.model.encoder import SentenceEncoder, load_encoder

LENGTHS = torch.tensor([5, 1, 2, MAX_POSITIONS, 7, 7, 1, 19, MAX_POSITIONS, 5])


def pad(ids: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.long)  # [PAD] is 0
    for row, sequence in zip(rows, ids.split(lengths.tolist())):
        row[: len(sequence)] = sequence
    return rows, (torch.arange(rows.shape[1]) < lengths[:, None])


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_saved_folder_is_plain_hugging_face_and_loads_back(family, tmp_path):
    encoder = make_encoder(family).eval()
    encoder.lm.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    assert "packed" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))

    ids = random_ids(LENGTHS)
    rows, mask = pad(ids, LENGTHS)
    plain = AutoModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(
        plain(rows, attention_mask=mask.long()).last_hidden_state[mask],
        encoder.states(ids, LENGTHS, None).last,
        rtol=0,
        atol=1e-5,
    )
    again = load_encoder(tmp_path, make_tokenizer()).eval()
    for (name, parameter), other in zip(again.named_parameters(), encoder.named_parameters(), strict=True):
        assert torch.equal(parameter, other[1]), name
    assert torch.equal(again.embed(ids, LENGTHS), encoder.embed(ids, LENGTHS))


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "distilbert"])
def test_embedding_and_tied_head_grow_for_new_tokens(family, tmp_path):
    encoder = make_encoder(family)
    with torch.no_grad():
        encoder.lm.get_output_embeddings().bias.normal_()
    encoder.lm.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    tokenizer = make_tokenizer("[DEL]")
    grown = load_encoder(tmp_path, tokenizer)
    lm, old = grown.lm, encoder.lm
    size = len(make_tokenizer())
    assert grown.vocab_size == lm.config.vocab_size == size + 1
    table, before = lm.get_input_embeddings().weight, old.get_input_embeddings().weight
    assert lm.get_output_embeddings().weight is table
    assert torch.equal(table[:size], before)
    torch.testing.assert_close(table[size], before.mean(0))
    bias, bias_before = lm.get_output_embeddings().bias, old.get_output_embeddings().bias
    assert torch.equal(bias[:size], bias_before)
    torch.testing.assert_close(bias[size], bias_before.mean())
    ids = torch.tensor([1, tokenizer.convert_tokens_to_ids("[DEL]"), 2])
    assert grown.mlm_logits(grown.states(ids, torch.tensor([3]), None).last).shape == (3, size + 1)

    lm.save_pretrained(tmp_path / "grown")
    tokenizer.save_pretrained(tmp_path / "grown")
    again = load_encoder(tmp_path / "grown", tokenizer)
    assert torch.equal(again.lm.get_output_embeddings().bias, bias)
    assert again.lm.get_output_embeddings().weight is again.lm.get_input_embeddings().weight


def test_a_tokenizer_of_another_vocabulary_is_an_error(tmp_path):
    encoder = make_encoder("bert")
    encoder.lm.save_pretrained(tmp_path)
    other = make_tokenizer()
    swapped = json.loads(other.backend_tokenizer.to_str())
    vocabulary = swapped["model"]["vocab"]
    vocabulary["w3"], vocabulary["w4"] = vocabulary["w4"], vocabulary["w3"]
    stranger = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(swapped)), pad_token="[PAD]"
    )
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="'w3' has id 9 in the tokenizer and 8"):
        load_encoder(tmp_path, stranger)


def test_a_folder_without_an_encoder_is_an_error(tmp_path):
    with pytest.raises(UserError, match="cannot load the encoder"):
        load_encoder(tmp_path, make_tokenizer())


@pytest.mark.parametrize("number", [1e37, float("inf"), float("nan")])
def test_weights_that_no_cosine_follows_from_are_named(tmp_path, number):
    lm = make_encoder("bert").lm
    lm.bert.encoder.layer[0].intermediate.dense.weight.data[1, 2] = number
    lm.save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=rf"'{tmp_path}' .*: bert\.encoder\.layer\.0\..* has NaN, infinity or"
    ):
        load_encoder(tmp_path, make_tokenizer())


def test_an_unsupported_model_type_is_named_before_its_weights_are_read(tmp_path):
    T5Config().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"'t5' is not supported.*bert"):
        load_encoder(tmp_path, make_tokenizer())


def test_a_checkpoint_without_a_masked_language_head_has_a_random_one(tmp_path, capfd):
    whole = make_encoder("bert")
    whole.lm.base_model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path, make_tokenizer()).eval()
    assert loaded.random_head and "corrupted" not in "".join(capfd.readouterr())
    ids = random_ids(LENGTHS)
    assert torch.equal(loaded.embed(ids, LENGTHS), whole.eval().embed(ids, LENGTHS))


def test_a_checkpoint_that_lacks_encoder_weights_is_an_error(tmp_path):
    encoder = make_encoder("bert")
    weights = {k: v for k, v in encoder.lm.state_dict().items() if "layer.1.output" not in k}
    encoder.lm.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(UserError, match=r"incomplete: no weights for bert.encoder.layer.1.output"):
        load_encoder(tmp_path, make_tokenizer())


def test_a_decoder_is_an_error():
    config = BertConfig(
        vocab_size=65,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        is_decoder=True,
    )
    with pytest.raises(UserError, match="is_decoder"):
        SentenceEncoder(BertForMaskedLM(config))
