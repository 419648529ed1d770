"""What is derived from an encoder: by the papers' formulas, in float64, and as the library loads it."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from commands import call
from model_folders import make_tokenizer, save_bert, save_guest, save_prompted, save_run
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer, WordWeights
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, AutoTokenizer

from augment.core.ragged import Ragged
from finetune import derived
from finetune.derived import TokenCounts
from finetune.encoders.embed import PackedModel
from finetune.encoders.models import open_model
from pretrain.commands.export import main
from pretrain.common.errors import UserError
from pretrain.config.data import data_config
from pretrain.config.recipe import load_config
from pretrain.data.shards import ShardReader
from pretrain.prepare.run import prepare
from pretrain.start.encoder import adopt_interface, starting_encoder

WORDS = ["a", "man", "woman", "cat", "dogs", "bark", "at", "night", "plays"]
TEXTS = [" ".join(np.random.RandomState(n).choice(WORDS, 3 + n % 9)) + " ." for n in range(120)]
AGAIN = [*TEXTS[:20], "the cat and dogs", "", " ".join(["bark"] * 100)]  # longer than the model takes


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A Hugging Face folder, a run trained for cls pooling, folders of sentence-transformers."""
    root = tmp_path_factory.mktemp("models")
    bert = save_bert(root / "bert", make_tokenizer(TEXTS))
    save_guest(bert, root / "mean", "mean", Normalize())
    save_guest(bert, root / "max", "max", prompts={"x": "cats "}, default_prompt_name="x")
    save_prompted(bert, root / "prompted", default="query")
    (root / "text.txt").write_text("\n".join(TEXTS) + "\n")
    return {path.stem: path for path in root.iterdir()} | {"run": save_run(bert, root / "run", "cls")}


def export(models, kind, out, **flags):
    """Call `clearly export` with the text of this test."""
    call(main, models[kind], out=out, **{"text": models["text"]} | flags)
    return out


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def read_everywhere(folder, texts, packed):
    """Vectors by the library and by ours, which runs packed or not."""
    ours = open_model(folder)
    assert isinstance(ours.runs, PackedModel) is packed
    return SentenceTransformer(str(folder), device="cpu").encode(texts), ours.encode(texts)


# -- weights of tokens --------------------------------------------------


def test_counts_and_weights_of_tokens():
    rows = [[2, 5, 5, 3], [2, 3], [2, 7, 5, 3]]
    counts = TokenCounts.of([Ragged.from_sequences(rows[:2]), Ragged.from_sequences(rows[2:])], 9)
    occurrences, texts_with = (
        Counter(token for row in rows for token in row),
        Counter(token for row in rows for token in set(row)),
    )
    absent = TokenCounts.of([Ragged.from_sequences([rows[0], [], rows[1], rows[2], []])], 9)  # of records
    assert counts.texts == absent.texts == 3
    assert counts.occurrences.tolist() == [occurrences[token] for token in range(9)]
    assert counts.texts_with.tolist() == [texts_with[token] for token in range(9)]
    by_hand = [1e-3 / (1e-3 + occurrences[token] / 10) for token in range(9)]
    np.testing.assert_allclose(counts.weights("sif"), by_hand, rtol=1e-12)
    idf = (
        TfidfVectorizer(analyzer=lambda row: [*map(str, row)], vocabulary=[*map(str, range(9))])
        .fit(rows)
        .idf_
    )
    np.testing.assert_allclose(counts.weights("idf"), idf, rtol=1e-12)


def reference(models, weights, texts):
    """The mean by weights of the states of tokens, one text at a time, in float64."""
    tokenizer = AutoTokenizer.from_pretrained(models["bert"])
    encoder, vectors = AutoModel.from_pretrained(models["bert"]).double().eval(), []
    for text in texts:
        encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=64)
        with torch.no_grad():
            states = encoder(**encoded).last_hidden_state[0].numpy()
        of_tokens = weights[encoded["input_ids"][0].numpy()]
        vectors.append((of_tokens[:, None] * states).sum(0) / of_tokens.sum())
    return np.stack(vectors)


@pytest.mark.parametrize("kind", ["sif", "idf"])
@pytest.mark.parametrize("model", ["mean", "bert", "prompted"])
def test_a_mean_by_weights_of_tokens(models, tmp_path, capsys, model, kind):
    out = export(models, model, tmp_path / "out", pooling=kind)
    tokenizer = AutoTokenizer.from_pretrained(models["bert"])
    prompt = "the cat " if model == "prompted" else ""
    rows = tokenizer([prompt + one for one in dict.fromkeys(TEXTS)])["input_ids"]
    weights = TokenCounts.of([Ragged.from_sequences(rows)], len(tokenizer)).weights(kind)
    assert f"{kind} weights of {len(tokenizer):,} tokens, from {len(rows)} texts" in capsys.readouterr().out
    expected = reference(models, weights, [prompt + one for one in AGAIN])
    expected = unit(expected) if model == "mean" else expected
    size = np.linalg.norm(expected, axis=1).max()
    for vectors in read_everywhere(out, AGAIN, packed=True):
        np.testing.assert_allclose(vectors, expected, atol=1e-6 * size)
    assert (
        np.abs(expected - open_model(models[model], "" if model != "bert" else "mean").encode(AGAIN)).max()
        > 0.01
    )


@pytest.mark.parametrize("pooling,packed", [("mean", True), ("cls", False)])
def test_weights_that_others_wrote(models, tmp_path, pooling, packed):
    """Words in lower case, tokens without a weight, and texts in which all weigh 0, as the library has it."""
    transformer = Transformer(str(models["bert"]))
    vocabulary = transformer.tokenizer.convert_ids_to_tokens(range(len(transformer.tokenizer)))
    words = WordWeights(vocabulary, {"cat": 2.0, "dogs": 0.5, "[cls]": 0.25}, 0.0 if packed else 1.0)
    SentenceTransformer(modules=[transformer, words, Pooling(32, pooling)], device="cpu").save(str(tmp_path))
    expected, found = read_everywhere(tmp_path, ["a cat", "dogs and cat at night", "a man", ""], packed)
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.linalg.norm(expected, axis=1).max())


@pytest.mark.parametrize("pooling", ["first-last", "embedding-last", "last-two"])
def test_layers_that_are_averaged_run_packed(models, tmp_path, pooling):
    """Also behind a map that is fitted on prepared data: its mean is 0 and its covariance 1 there."""
    run = save_run(models["bert"], tmp_path / "run", pooling)
    sources = {"sources": [{"source": str(models["text"])}], "tokenizer": str(models["bert"])}
    prepare(data_config(sources | {"min_words": 1, "heldout": 0}), tmp_path / "data", 1, progress=False)
    out = export({"run": run, "text": tmp_path / "data"}, "run", tmp_path / "out", whiten=8)
    vectors, found = read_everywhere(out, TEXTS, packed=True)
    size = np.linalg.norm(vectors, axis=1, keepdims=True).max()
    np.testing.assert_allclose(found, vectors, atol=1e-5 * size)
    rows = [row for chunk in [ShardReader(tmp_path / "data").read(0)] for row in chunk.stored]
    words = AutoTokenizer.from_pretrained(models["bert"]).batch_decode(rows, skip_special_tokens=True)
    vectors = open_model(out).encode(words).astype(np.float64)
    np.testing.assert_allclose(vectors.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(np.cov(vectors.T, bias=True), np.eye(8), atol=1e-2)
    with pytest.raises(UserError, match=r"is prepared data, and .* reads text: name its sources"):
        export({"max": models["max"], "text": tmp_path / "data"}, "max", tmp_path / "none", whiten=8)


def test_training_starts_with_the_weights_of_tokens_unless_it_pools_otherwise(models, tmp_path):
    out = export(models, "mean", tmp_path / "out", pooling="sif")
    tokenizer = AutoTokenizer.from_pretrained(out)
    for given, keeps in (({}, True), ({"model.pooling": "cls"}, False)):
        config = load_config(None, {"init": str(out)} | given)
        assert adopt_interface(config) is not None
        encoder = starting_encoder(config, tokenizer)
        assert (encoder.token_weights is not None) == keeps
        if keeps:
            ids = torch.tensor(tokenizer(TEXTS[0])["input_ids"])
            found = encoder.eval().embed(ids, torch.tensor([len(ids)])).detach().numpy()
            expected = SentenceTransformer(str(out), device="cpu").encode(TEXTS[:1])
            np.testing.assert_allclose(unit(found), expected, atol=1e-6)


def test_weights_from_prepared_data_are_of_its_tokens(models, tmp_path, capsys):
    sources = {
        "sources": [{"source": str(models["text"])}],
        "tokenizer": str(models["bert"]),
        "max_length": 64,
    }
    prepare(data_config(sources | {"min_words": 1}), tmp_path / "data", 1, progress=False)
    reader = ShardReader(tmp_path / "data")
    rows = [row.tolist() for chunk in range(reader.num_chunks) for row in reader.read(chunk).stored]
    assert len(rows) > 80
    out = export(models, "mean", tmp_path / "out", pooling="idf", text=tmp_path / "data")
    assert f"from {len(rows)} texts" in capsys.readouterr().out
    found = json.loads((out / "1_WordWeights" / "config.json").read_text())
    numbers = AutoTokenizer.from_pretrained(models["bert"]).get_vocab()
    texts_with = Counter(token for row in rows for token in set(row))
    for word, weight in found["word_weights"].items():
        assert weight == pytest.approx(np.log((1 + len(rows)) / (1 + texts_with[numbers[word]])) + 1)
    other = save_bert(tmp_path / "other", make_tokenizer(["quite other words"]))
    with pytest.raises(UserError, match="the tokenizer does not fit"):
        export({"other": other, "text": tmp_path / "data"}, "other", tmp_path / "none", pooling="idf")


# -- linear maps --------------------------------------------------------


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
    matrix, bias = derived.whitening(vectors, dimensions)
    found = vectors @ matrix + bias
    # up to the axes' signs
    np.testing.assert_allclose(found @ found[:50].T, expected @ expected[:50].T, atol=1e-6)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(found.T @ found / len(found), np.eye(dimensions), atol=1e-9)
    # the same dimensions are kept, largest first
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-6)
    np.testing.assert_allclose(bias, -mean @ matrix, atol=1e-9)


@pytest.mark.parametrize("power", [0.5, 0.25])
def test_a_power_of_the_whitening_leaves_the_rest_of_the_variance(power):
    """W = U diag(s^(-power / 2)) leaves variances of s^(1 - power), largest first."""
    vectors = anisotropic(9000, 12)
    matrix, bias = derived.whitening(vectors, 5, power)
    found = vectors @ matrix + bias
    variances = np.linalg.svd(vectors - vectors.mean(0, dtype=np.float64), compute_uv=False) ** 2 / 9000
    np.testing.assert_allclose(np.cov(found.T, bias=True), np.diag(variances[:5] ** (1 - power)), atol=1e-6)


def test_the_power_is_of_a_whitening(models, tmp_path):
    with pytest.raises(UserError, match=r"^--power is of the whitening: give --whiten N"):
        export(models, "bert", tmp_path / "none", remove=1, power=0.5)


def test_directions_without_variance_are_left_out():
    vectors = anisotropic(300, 8)
    vectors[:, 3] = vectors[:, 1] - vectors[:, 2]
    matrix, bias = derived.whitening(vectors)
    assert matrix.shape == (8, 7)
    found = vectors @ matrix + bias
    np.testing.assert_allclose(found.T @ found / 300, np.eye(7), atol=1e-6)
    with pytest.raises(UserError, match="300 sentences vary in 7 of 8 dimensions: keep fewer"):
        derived.whitening(vectors, 8)
    with pytest.raises(UserError, match="vary in 0 of 8"):
        derived.whitening(np.ones((20, 8), np.float32))


@pytest.mark.parametrize("count", [1, 3])
def test_removal_of_components_is_all_but_the_top(count):
    """Mu and Viswanath 2018, algorithm 1, by scikit-learn's components."""
    vectors = anisotropic(9000, 12)
    components = PCA(12).fit(vectors.astype(np.float64)).components_[:count]
    centred = vectors - vectors.mean(0, dtype=np.float64)
    expected = centred - sum(np.outer(centred @ one, one) for one in components)
    matrix, bias = derived.without_components(vectors, count)
    np.testing.assert_allclose(vectors @ matrix + bias, expected, atol=1e-6)


@pytest.mark.parametrize(
    "kind,flags,packed",
    [
        ("bert", {"pooling": "first-last", "whiten": 16}, True),
        ("run", {"whiten": 16}, True),
        ("max", {"remove": 2}, False),
        ("mean", {"whiten": 0}, True),
        ("mean", {"whiten": 8, "power": 0.5, "pooling": "sif"}, True),
        ("prompted", {"remove": 1}, True),
    ],
)
def test_maps_of_vectors_load_everywhere(models, tmp_path, capsys, kind, flags, packed):
    """Equal to the map in float64 of the vectors without it, before they get length 1.

    The module itself rounds by less than 1e-6 of a vector. What the encoder rounds, by less than 1e-6 of its
    vectors, the map magnifies by its norm, in whichever order it is computed.
    """
    out = export(models, kind, tmp_path / "out", **flags)
    dense = next(out.glob("*_Dense"))
    weight = load_file(dense / "model.safetensors")
    whole = SentenceTransformer(str(out), device="cpu")
    normalizes = isinstance(whole[-1], Normalize)
    bare = SentenceTransformer(modules=[*whole][: -1 - normalizes], device="cpu", prompts=whole.prompts)
    texts = list(dict.fromkeys(TEXTS))
    vectors, fitted = (bare.encode(one, prompt_name=whole.default_prompt_name) for one in (AGAIN, texts))
    matrix = (
        derived.without_components(fitted, flags["remove"])
        if "remove" in flags
        else derived.whitening(fitted, flags["whiten"], flags.get("power", 1))
    )
    expected = vectors.astype(np.float64) @ matrix[0] + matrix[1]
    assert weight["linear.weight"].shape == matrix[0].T.shape
    assert f"of 32 components, fitted on {len(fitted)} sentences" in capsys.readouterr().out
    modes = {path.stat().st_mode for path in out.rglob("*") if path.is_file()}
    assert len(modes) == 1  # whoever reads the folder reads its weights
    expected = unit(expected) if normalizes else expected
    by_library, ours = read_everywhere(out, AGAIN, packed)
    size = np.linalg.norm(expected, axis=1).max()
    for found in (by_library, ours):  # the fit above was on vectors of the library
        np.testing.assert_allclose(found, expected, atol=1e-5 * size)
    stored = {name: one.double().numpy() for name, one in weight.items()}
    exact = vectors.astype(np.float64) @ stored["linear.weight"].T + stored["linear.bias"]
    magnified = np.linalg.norm(stored["linear.weight"], 2) * np.linalg.norm(vectors, axis=1).max()
    magnified /= np.linalg.norm(exact, axis=1).min() if normalizes else 1
    exact = unit(exact) if normalizes else exact
    np.testing.assert_allclose(by_library, exact, atol=1e-6 * size)
    np.testing.assert_allclose(ours, by_library, atol=1e-6 * max(size, magnified))


# -- static tables ------------------------------------------------------


def test_a_static_table_is_model2vecs_recipe(models, tmp_path, capsys, monkeypatch):
    """Tokens alone between [CLS] and [SEP], scikit-learn's components, Arora's weights, and the mean."""
    tokenizer = AutoTokenizer.from_pretrained(models["bert"])
    monkeypatch.setattr(derived, "TABLE_BYTES", 2 * 16 * len(tokenizer) + 7)
    out = export(models, "mean", tmp_path / "out", static="encoded")
    assert f"{len(tokenizer):,} tokens x 16" in capsys.readouterr().out
    encoder = AutoModel.from_pretrained(models["bert"]).double().eval()
    rows = torch.tensor([[2, token, 3] for token in range(len(tokenizer))])
    with torch.no_grad():
        alone = encoder(rows, torch.ones_like(rows)).last_hidden_state.mean(1).numpy()
    counts = TokenCounts.of(
        [Ragged.from_sequences(tokenizer(list(dict.fromkeys(TEXTS)))["input_ids"])], len(tokenizer)
    )
    table = PCA(16, svd_solver="full").fit_transform(alone) * counts.weights("sif")[:, None]
    ids = tokenizer(AGAIN, add_special_tokens=False)["input_ids"]
    expected = unit(np.stack([table[row].mean(0) for row in ids if row]))
    (file,) = out.rglob("model.safetensors")
    (stored,) = load_file(file).values()
    assert stored.dtype == torch.float16 and file.stat().st_size < derived.TABLE_BYTES + 200
    filled = [text for text in AGAIN if text]
    for found in read_everywhere(out, filled, packed=False):
        np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=5e-3)
    # of the table as it is stored, in float32
    exact = SentenceTransformer(str(out), device="cpu").float().encode(filled)
    rounded = unit(np.stack([stored.double().numpy()[row].mean(0) for row in ids if row]))
    np.testing.assert_allclose(exact, rounded, atol=1e-6)
    assert "takes longer" not in capsys.readouterr().err


def test_the_input_rows_as_a_static_table(models, tmp_path):
    """The baseline of averaged word vectors."""
    call(main, models["bert"], out=tmp_path / "out", static="input")
    tokenizer = AutoTokenizer.from_pretrained(models["bert"])
    table = AutoModel.from_pretrained(models["bert"]).get_input_embeddings().weight.detach().numpy()
    for text, *found in zip(TEXTS[:5], *read_everywhere(tmp_path / "out", TEXTS[:5], packed=False)):
        expected = table[tokenizer(text, add_special_tokens=False)["input_ids"]].mean(0)
        np.testing.assert_allclose(found, [expected, expected], atol=1e-6)


@pytest.mark.parametrize("weighting", ["", "sif"])
@pytest.mark.parametrize("static", ["input", "encoded"])
@pytest.mark.parametrize("prepared", [False, True])
def test_a_whitened_table_is_the_whitened_mean_of_its_rows(models, tmp_path, static, weighting, prepared):
    """Mean 0 and covariance 1 over the text; of weighted rows Arora's mean, by the number of tokens."""
    text = models["text"]
    if prepared:
        sources = {"sources": [{"source": str(text)}], "tokenizer": str(models["bert"])}
        text = tmp_path / "data"
        prepare(data_config(sources | {"min_words": 1, "heldout": 0}), text, 1, progress=False)
    out = export(models, "bert", tmp_path / "out", static=static, whiten=0, pooling=weighting, text=text)
    by_library, ours = (one.astype(np.float64) for one in read_everywhere(out, AGAIN[:-2], packed=False))
    np.testing.assert_allclose(ours, by_library, atol=1e-6 * np.linalg.norm(by_library, axis=1).max())
    tokenizer = AutoTokenizer.from_pretrained(models["bert"])
    model = derived.open_base(derived.resolve(str(models["bert"])), "")
    rows = derived.token_vectors(model, static == "encoded").astype(np.float64)
    texts = list(dict.fromkeys(TEXTS))
    if weighting:
        ids = Ragged.from_sequences(tokenizer(texts)["input_ids"])
        rows *= TokenCounts.of([ids], len(tokenizer)).weights("sif")[:, None]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    means = np.stack([rows[one].mean(0) for one in ids])
    matrix, bias = derived.whitening(means.astype(np.float32))
    expected = means @ matrix + bias
    found = SentenceTransformer(str(out), device="cpu").encode(texts).astype(np.float64)
    # up to the axes' signs, which the order of the text moves; rows are float16
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=0.02 * len(matrix))
    np.testing.assert_allclose(found.mean(0), 0, atol=2e-2)
    np.testing.assert_allclose(np.cov(found.T, bias=True), np.eye(len(found.T)), atol=2e-2)


def test_a_whitened_table_leaves_out_whatever_tokens_the_tokenizer_adds(tmp_path):
    """An eos token is special, too, and a table's rows of a text are without special tokens."""
    tokenizer = make_tokenizer(TEXTS, additional_special_tokens=["[EOS]"])
    eos = tokenizer.convert_tokens_to_ids("[EOS]")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A [EOS]", special_tokens=[("[EOS]", eos)]
    )
    guest = save_guest(save_bert(tmp_path / "bert", tokenizer), tmp_path / "guest", "mean")
    (text := tmp_path / "text.txt").write_text("\n".join(TEXTS) + "\n")
    call(main, guest, out=tmp_path / "out", text=text, static="input", whiten=0)
    found = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(list(dict.fromkeys(TEXTS)))
    np.testing.assert_allclose(found.mean(0), 0, atol=2e-2)
    np.testing.assert_allclose(np.cov(found.T, bias=True), np.eye(len(found.T)), atol=2e-2)


def test_texts_without_any_token_are_one_error(models):
    model = derived.open_base(derived.resolve(str(models["mean"])), "")
    table = derived.token_vectors(model, encoded=False)
    with pytest.raises(UserError, match="the tokenizer of here makes no token of any of 2 texts"):
        derived._means_of_rows(table, ["", " "], model, "here", 10)


def test_a_whitened_table_has_8_mb_at_most(models, tmp_path, monkeypatch, capsys):
    tokenizer = AutoTokenizer.from_pretrained(models["bert"])
    monkeypatch.setattr(derived, "TABLE_BYTES", 2 * 8 * len(tokenizer))
    export(models, "mean", tmp_path / "out", static="input", whiten=0)
    assert "whitened, 8 of 32 components" in (said := capsys.readouterr().out)
    assert f"{len(tokenizer):,} tokens x 8" in said
    with pytest.raises(UserError, match="--whiten 9: keep 8 at most, with which a table has 8 MB"):
        export(models, "mean", tmp_path / "none", static="input", whiten=9)


@pytest.mark.parametrize(
    "tokens,width", [(30522, 128), (50368, 72), (250002, 8), (1_000_000, 4), (5_000_000, 1)]
)
def test_the_width_of_a_table_follows_from_its_bytes(tokens, width):
    assert derived.table_width(tokens) == width
    assert tokens > 4_000_000 or 2 * tokens * width <= 8_000_000


# -- mistakes -----------------------------------------------------------


def test_mistakes_are_named(tmp_path, models):
    text, few = models["text"], tmp_path / "few.txt"
    few.write_text("\n".join(TEXTS[:30]) + "\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").touch()
    out = tmp_path / "x"
    for kind, flags, match in (
        ("mean", {"pooling": "sif"}, "give the text that this is fitted on: --text FILES"),
        ("mean", {"whiten": 4, "text": tmp_path / "none"}, "--text .*none"),
        ("mean", {"whiten": 4, "text": few}, "30 different sentences and vectors of 32 numbers: give more"),
        ("bert", {"whiten": 33, "text": text}, r"vary in \d+ of 32 dimensions: keep fewer"),
        ("bert", {"remove": 32, "text": text}, "have 32 components: remove fewer"),
        ("run", {"pooling": "idf", "text": text}, "for a mean over tokens, and .*run has cls pooling"),
        ("max", {"pooling": "idf", "text": text}, "has max pooling"),
        ("mean", {"pooling": "cls", "whiten": 2, "text": text}, "brings its own pooling"),
        ("bert", {"pooling": "ifd", "text": text}, "unknown pooling 'ifd'"),
        ("bert", {"pooling": "pooler", "text": text}, "no modules that a folder could name"),
        ("mean", {"static": "encoded", "remove": 2, "text": text}, "neither --whiten nor --static"),
        ("mean", {"remove": 1, "whiten": 2, "text": text}, "neither --whiten nor --static"),
        (
            "mean",
            {"static": "input", "whiten": 33, "text": text},
            r"vary in \d+ of 32 dimensions: keep fewer",
        ),
        ("mean", {"static": "all", "text": text}, "--static"),
        ("mean", {"text": text}, "--text goes with .*--static: give one"),
        ("mean", {"sentences": 5}, "--sentences goes with .*--static: give one"),
        ("mean", {"static": "input", "text": text}, "is fitted on --text: leave it out"),
        ("bert", {"pooling": "mean", "text": text}, "is fitted on --text: leave it out"),
        ("mean", {"pooling": "sif", "text": text, "sentences": 5}, "is fitted on --sentences: leave it out"),
        ("mean", {"whiten": 4, "text": ",".join([str(tmp_path / "none")] * 300)}, "no such file, folder or"),
        ("mean", {"whiten": "one", "text": text}, "--whiten: .*integer"),
        ("mean", {"whiten": 2, "text": text, "step": 7}, "takes --out FOLDER, and no --step"),
    ):
        with pytest.raises(UserError, match=match):
            call(main, models[kind], **flags, out=out)
        assert not out.exists()
    for place, match in (
        (tmp_path / "mine", "is no folder that this command made"),
        (models["max"], "is no folder that this command made"),
        (models["mean"], "the model's own folder"),
        (models["run"] / "export", "the model's own folder"),
    ):
        with pytest.raises(UserError, match=match):
            call(main, models["run" if "run" in str(place) else "mean"], out=place, static="input")
    with pytest.raises(UserError, match=r"there is no folder \S*nowhere"):
        call(main, tmp_path / "nowhere", out=out, static="input")
    export(models, "mean", out, static="encoded")
    weighted = export(models, "mean", out, pooling="sif")  # in its place
    with pytest.raises(UserError, match="has such weights already"):
        call(main, weighted, pooling="idf", text=text, out=tmp_path / "twice")
