"""A small model with its masked-language head."""

import pytest
from model_folders import make_tokenizer, save_bert
from word_sentences import sentences


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small BERT with its masked-language head and a tokenizer that has [DEL]."""
    tokenizer = make_tokenizer(sentences(200), 120, None, additional_special_tokens=["[DEL]"])
    shape = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    return save_bert(tmp_path_factory.mktemp("model"), tokenizer, max_position_embeddings=40, **shape)
