"""The baseline of whitening, against the paper's algorithm."""

import numpy as np
import pytest
from commands import call
from model_folders import save_bert, save_run

from finetune import baselines
from finetune.encoders.models import open_model
from pretrain.common.errors import UserError


def papers_whitening(vectors, dimensions):
    """Su et al. 2021, algorithm 1: the whitened vectors float64[N, k], and the map's parts."""
    vectors = vectors.astype(np.float64)
    mean = vectors.mean(axis=0)
    covariance = (vectors - mean).T @ (vectors - mean) / len(vectors)
    basis, variances, _ = np.linalg.svd(covariance)
    matrix = (basis @ np.diag(1 / np.sqrt(variances)))[:, :dimensions]
    return (vectors - mean) @ matrix, mean, matrix


def anisotropic(count, width, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(count, width)) @ rng.normal(size=(width, width)) + 5 * rng.normal(size=width)
    ).astype(np.float32)


@pytest.mark.parametrize("dimensions", [12, 5])
def test_whitening_is_the_papers(dimensions):
    vectors = anisotropic(9000, 12)  # more than one block of rows
    expected, mean, _ = papers_whitening(vectors, dimensions)
    matrix, bias = baselines.whitening(vectors, dimensions)
    found = vectors @ matrix + bias
    # up to the axes' signs
    np.testing.assert_allclose(found @ found[:50].T, expected @ expected[:50].T, atol=1e-6)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(found.T @ found / len(found), np.eye(dimensions), atol=1e-9)
    # the same dimensions are kept, largest first
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-6)
    np.testing.assert_allclose(bias, -mean @ matrix, atol=1e-9)


def test_directions_without_variance_are_left_out():
    vectors = anisotropic(300, 8)
    vectors[:, 3] = vectors[:, 1] - vectors[:, 2]
    matrix, bias = baselines.whitening(vectors)
    assert matrix.shape == (8, 7)
    found = vectors @ matrix + bias
    np.testing.assert_allclose(found.T @ found / 300, np.eye(7), atol=1e-6)
    with pytest.raises(UserError, match="300 sentences vary in 7 of 8 dimensions: give fewer --dimensions"):
        baselines.whitening(vectors, 8)
    with pytest.raises(UserError, match="vary in 0 of 8"):
        baselines.whitening(np.ones((20, 8), np.float32))


WORDS = ["a", "man", "woman", "cat", "dogs", "bark", "at", "night", "plays"]
TEXTS = [" ".join(np.random.RandomState(n).choice(WORDS, 3 + n % 9)) for n in range(120)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A Hugging Face folder, a run trained for cls pooling, a sentence-transformers folder with a prompt."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    root = tmp_path_factory.mktemp("models")
    bert = save_bert(root / "bert")
    modules = [Transformer(str(bert)), Pooling(32, "max")]
    peer = SentenceTransformer(modules=modules, device="cpu", prompts={"x": "cats "}, default_prompt_name="x")
    peer.save(str(root / "st"))
    return {"bert": bert, "run": save_run(bert, root / "run", "cls"), "st": root / "st"}


@pytest.mark.parametrize(
    "kind,pooling", [("bert", "first-last"), ("bert", "embedding-last"), ("run", ""), ("st", "")]
)
def test_whitened_folders_load_everywhere(models, tmp_path, kind, pooling):
    from sentence_transformers import SentenceTransformer

    (tmp_path / "text").write_text("\n".join(TEXTS) + "\n")
    words = {
        "source": str(tmp_path / "text"),
        "out": str(tmp_path / "out"),
        "pooling": pooling,
        "dimensions": "16",
    }
    call(baselines.whiten, str(models[kind]), **words)
    base = open_model(models[kind], pooling)
    vectors = base.encode(list(dict.fromkeys(TEXTS)))
    whitened, mean, matrix = papers_whitening(vectors, 16)
    # the last is longer than the model takes
    again = [*TEXTS[:20], "the cat and dogs", " ".join(["bark"] * 100)]
    expected = (base.encode(again).astype(np.float64) - mean) @ matrix
    for found in (
        open_model(tmp_path / "out").encode(again),
        SentenceTransformer(str(tmp_path / "out")).encode(again),
    ):
        assert found.shape == (22, 16)
        np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=2e-3)
    assert (np.abs(whitened.T @ whitened / len(vectors) - np.eye(16)) < 1e-6).all()


def test_mistakes_are_named(tmp_path, models):
    (tmp_path / "text").write_text("\n".join(TEXTS) + "\n")
    text, bert = str(tmp_path / "text"), str(models["bert"])
    for function, words, flags, match in (
        (baselines.whiten, (), {"source": text}, "MODEL is missing"),
        (baselines.whiten, (bert,), {}, "--source is missing"),
        (baselines.whiten, (bert,), {"source": tmp_path / "none"}, "--source .* there is no such file"),
        (baselines.whiten, (bert,), {"source": text, "dimensions": "33"}, r"vary in \d+ of 32 dimensions"),
        (baselines.whiten, ("finetune.encoders.embed:embed_sentences",), {"source": text}, "is a function"),
        (baselines.whiten, (bert,), {"source": text, "dimensions": "one"}, "--dimensions: .*integer"),
    ):
        with pytest.raises(UserError, match=match):
            call(function, *words, **flags, out=tmp_path / "x")
    with pytest.raises(UserError, match="--out is missing"):
        call(baselines.whiten, bert, source=text)
    with pytest.raises(UserError, match="the model's own folder"):
        call(baselines.whiten, str(models["run"]), source=text, out=str(models["run"] / "export"))
