"""Exports whose vectors are stored in a byte or a bit a dimension: sentence-transformers' own rounding."""

import json
import re
import shutil

import numpy as np
import pytest
from commands import call
from export_helpers import WORDS, make_run
from loader_helpers import write_folder
from sentence_transformers import SentenceTransformer
from sentence_transformers.util.quantization import quantize_embeddings

from augment.core.ragged import Ragged
from pretrain import api
from pretrain.common.errors import UserError
from pretrain.export.__main__ import main
from pretrain.export.folder import export
from pretrain.export.quantization import PRECISIONS, Quantization, unit

TEXTS = [" ".join(WORDS[start : start + size]) for start in range(12) for size in (1, 3, 6)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    _, tokenizer = make_run(folder, pooling="cls", simcse={"keep_head": True})
    rows = [tokenizer(text)["input_ids"] for text in TEXTS]
    write_folder(folder / "data", {"train": Ragged.from_sequences(rows)}, len(tokenizer), 20)
    return folder


def by_the_library(folder, precision):
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(TEXTS, normalize_embeddings=True)
    return vectors, quantize_embeddings(vectors, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_stored_vectors_are_those_of_the_library(run, tmp_path, precision):
    """Ranges are taken from the data, which holds the same sentences; vectors go through the kept head."""
    folder = export(run, tmp_path / "out", quantize=precision)
    floats, expected = by_the_library(folder, precision)
    stored = api.load(folder).encode(TEXTS)
    assert stored.dtype == expected.dtype and stored.shape == expected.shape
    # packed and padded passes differ by rounding, which moves a value across the edge of its step at most
    if precision.endswith("int8"):
        assert np.abs(stored.astype(int) - expected).max() <= 1 and (stored == expected).mean() > 0.99
    else:
        np.testing.assert_array_equal(stored, expected)
    ours = api.load(folder, quantized=False).encode(TEXTS)
    np.testing.assert_allclose(unit(ours), floats, atol=1e-5)
    assert np.array_equal(stored, api.load(folder).quantization.apply(ours))


def test_the_code_on_the_card_gives_the_stored_vectors(run, tmp_path):
    for precision in ("int8", "binary", "uint8"):  # each replaces the one before, card included
        folder = export(run, tmp_path / "out", quantize=precision)
        card = (folder / "README.md").read_text()
        assert card.count("## Quantised vectors") == 1 and f"stored as {precision}" in card
        code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[-1].replace("PATH", str(folder))
        names: dict = {}
        exec(code.replace('"A sentence."', '"nobody sings", "a bird"'), names)
        stored = api.load(folder).encode(["nobody sings", "a bird"])
        assert np.abs(stored.astype(int) - names["stored"]).max() <= 1
    assert "36 sentences of data" in card
    plain = export(run, tmp_path / "out")
    assert "Quantised" not in (plain / "README.md").read_text()
    assert api.load(plain).encode(["a bird"]).dtype == np.float32


def test_ranges_may_come_from_a_text(run, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS[:20]) + "\n\n" + TEXTS[0])
    call(main, run, out=tmp_path / "out", quantize="int8", sentences=tmp_path / "text.txt")
    said = capsys.readouterr().out
    assert (
        "vectors as int8: cosine of the integers, 16 bytes a vector, ranges of 20 sentences of text.txt"
        in said
    )
    floats, _ = by_the_library(tmp_path / "out", "int8")
    ranges = json.loads((tmp_path / "out" / "quantization.json").read_text())["ranges"]
    np.testing.assert_allclose(ranges, [floats[:20].min(0), floats[:20].max(0)], atol=1e-5)


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_the_cosine_of_signs_is_the_hamming_distance(precision):
    vectors = np.random.default_rng(1).normal(size=(9, 13)).astype(np.float32)
    quantization = Quantization(precision)
    signs = quantization.comparable(quantization.apply(vectors), 13)
    np.testing.assert_array_equal(signs, np.where(vectors > 0, 1, -1))
    hamming = ((vectors[:, None] > 0) != (vectors[None] > 0)).sum(-1)
    np.testing.assert_allclose(signs @ signs.T / 13, 1 - 2 * hamming / 13, rtol=1e-6)


def test_mistakes_are_one_message(run, tmp_path):
    out = tmp_path / "out"
    for flags, said in (
        ({"quantize": "int4"}, "cannot be stored as 'int4'; choose int8"),
        ({"sentences": tmp_path / "x"}, "--sentences says what to --quantize"),
        ({"quantize": "int8", "sentences": tmp_path / "x"}, "cannot be read as text"),
    ):
        with pytest.raises(UserError, match=said):
            call(main, run, out=out, **flags)
    assert not out.exists()
    bare = tmp_path / "bare"
    make_run(bare)  # without shards
    with pytest.raises(UserError, match=r"taken from the sentences of the data.*--sentences FILE"):
        export(bare, out, quantize="uint8")
    export(bare, out, quantize="binary")  # signs need none
    (out / "quantization.json").write_text('{"precision": "int8", "ranges": null, "calibrated_on": null}')
    with pytest.raises(UserError, match=r"quantization.json is damaged \(no ranges\)"):
        api.load(out)


def test_the_best_is_quantised_in_place_where_its_own_folder_is_named(run, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    best = export(folder, folder / "best")
    words = {"step": "best", "out": best, "quantize": "binary"}
    call(main, folder, push="jane/x", dry_run=True, **words)
    assert "vectors as binary" in capsys.readouterr().out and not (best / "quantization.json").exists()
    call(main, folder, **words)
    assert "vectors as binary" in capsys.readouterr().out
    assert api.load(best).encode(TEXTS).dtype == np.int8


def test_ranges_are_of_sentences_with_their_prompt(tmp_path):
    _, tokenizer = make_run(tmp_path, prompts={"anchor": "under the roof: ", "positive": ""})
    rows = Ragged.from_sequences(tokenizer(TEXTS)["input_ids"])
    write_folder(tmp_path / "data", {"train": rows}, len(tokenizer), 20)
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    for sentences in (None, tmp_path / "text.txt"):
        folder = export(tmp_path, quantize="int8", sentences=sentences)
        floats, _ = by_the_library(folder, "int8")
        ranges = json.loads((folder / "quantization.json").read_text())["ranges"]
        np.testing.assert_allclose(ranges, [floats.min(0), floats.max(0)], atol=1e-5)
