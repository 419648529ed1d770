"""Baselines: LSA against scikit-learn's pipeline, averaged word vectors by hand."""

import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from test_embed import folder  # noqa: F401 - a small BERT with its tokenizer
from transformers import AutoTokenizer

from augment.ragged import Ragged
from finetune import baselines
from finetune.models import open_model
from pretrain.errors import UserError
from pretrain.shards import write_folder


@pytest.fixture
def prepared(folder, tmp_path):  # noqa: F811
    """Prepared data of 60 made-up sentences over the small BERT's vocabulary."""
    rng = np.random.RandomState(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [[2, *rng.randint(5, len(tokenizer), rng.randint(2, 9)), 3] for _ in range(60)]
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    sequences = Ragged(np.concatenate(rows).astype(np.int32), np.cumsum([0, *map(len, rows)]))
    write_folder(tmp_path, {"train": sequences}, len(tokenizer), 16)
    return tmp_path, rows, tokenizer


def test_lsa_is_scikit_learns(prepared):
    data, rows, tokenizer = prepared
    counts = np.zeros((len(rows), len(tokenizer)))
    for number, row in enumerate(rows):
        np.add.at(counts[number], [token for token in row if token not in tokenizer.all_special_ids], 1)
    transformer = TfidfTransformer().fit(counts)
    expected = TruncatedSVD(8, random_state=1).fit_transform(transformer.transform(counts))
    baselines.save(baselines.lsa_vectors(data, 8), data / "tokenizer", data / "lsa")
    texts = [" ".join(tokenizer.convert_ids_to_tokens(row[1:-1])) for row in rows]
    keep = [n for n, text in enumerate(texts) if "##" not in text]
    found = open_model(str(data / "lsa")).encode([texts[n] for n in keep])
    expected = expected[keep]
    cosine = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    np.testing.assert_allclose(cosine, 1, atol=1e-5)


def test_averaged_vectors_are_means_of_the_input_rows(folder, tmp_path):  # noqa: F811
    baselines.main("averaged", str(tmp_path / "averaged"), model=str(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    table = baselines.averaged_vectors(str(folder))
    text = "a man rides the horse"
    expected = table[tokenizer(text, add_special_tokens=False)["input_ids"]].mean(0)
    np.testing.assert_allclose(open_model(str(tmp_path / "averaged")).encode([text])[0], expected, rtol=1e-5, atol=1e-6)


def test_mistakes_are_named(tmp_path):
    for words, match in ((("svd",), "choose lsa or averaged"), (("lsa",), "--data"), (("averaged",), "--model")):
        with pytest.raises(UserError, match=match):
            baselines.main(*words, out=str(tmp_path / "x"))
    with pytest.raises(UserError, match="--out"):
        baselines.main("lsa")
