"""Static tables by words that were met before: the vectors are the library's, to the bit."""

import random
from pathlib import Path

import numpy as np
import pytest
from model_folders import make_tokenizer
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from finetune.encoders import static
from finetune.encoders.models import open_model
from finetune.encoders.static import StaticModel
from pretrain.data.tokenizer import cleaning_tokenizer

PIECES = [
    *("a man plays", "Guitar", "CATS", "at night, and", "don't", "[MASK]", "x[MASK]y", "[UNK]", "[SEP]"),
    *(
        "\t",
        "\n",
        "\x0b",
        "\x1c",
        "\x85",
        "\u00a0",
        "\u3000",
        "\u200b",
        "\u00ad",
        "\x00",
        " ",
        "  ",
        "\u2028",
    ),
    *(
        "\u0301",
        "e\u0301",
        "É",
        "ß",
        "İ",
        "日本語",
        "中",
        "한국어",
        "👩‍🔬",
        "ﬁ",
        "١٢",
        "!?",
        "a" * 120,
        "cat" * 40,
    ),
]


def texts(count: int) -> list[str]:
    draw = random.Random(0)
    made = {draw.choice(["", " "]).join(draw.choices(PIECES, k=draw.randrange(9))) for _ in range(count)}
    return ["", *sorted(made - {""})]


def bert_tokenizer(cleans: bool) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer([*PIECES, "日 本 語 a b c d e"])
    backend = tokenizer.backend_tokenizer
    backend.normalizer, backend.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    return cleaning_tokenizer(tokenizer) if cleans else tokenizer


def saved(folder: Path, tokenizer: PreTrainedTokenizerFast, dtype: type, *after: object) -> Path:
    table = np.random.RandomState(0).randn(len(tokenizer), 24).astype(dtype)
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, table), *after], device="cpu").save(str(folder))
    return folder


@pytest.mark.parametrize("cleans", [False, True])
@pytest.mark.parametrize("dtype, after", [(np.float16, ()), (np.float32, (Normalize(),))])
def test_vectors_are_the_librarys(tmp_path, monkeypatch, cleans, dtype, after):
    folder = saved(tmp_path, bert_tokenizer(cleans), dtype, *after)
    model, given = open_model(folder), texts(3000)
    assert isinstance(model.runs, StaticModel)
    expected = SentenceTransformer(str(folder), device="cpu").encode(given, batch_size=len(given))
    assert np.array_equal(model.encode(given), expected.astype(np.float32))
    assert np.array_equal(model.encode(given[::-1])[::-1], expected.astype(np.float32))
    monkeypatch.setattr(static, "TEXTS_AT_ONCE", 7)
    assert np.array_equal(open_model(folder).encode(given), expected.astype(np.float32))
    assert open_model(folder).encode([]).shape[0] == 0


def test_tokens_that_hold_blanks_are_found(tmp_path):
    tokenizer = bert_tokenizer(False)
    tokenizer.add_tokens(["at night"])
    for name, one in (("whitespace", make_tokenizer()), ("blank", tokenizer)):
        folder, given = saved(tmp_path / name, one, np.float32), ["cats at night", "man  plays", "a [MASK] b"]
        expected = SentenceTransformer(str(folder), device="cpu").encode(given)
        assert np.array_equal(open_model(folder).encode(given), expected)
