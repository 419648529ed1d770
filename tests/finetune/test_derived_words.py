"""What is derived of a run that was trained as a static table, and of prepared data."""

import json
import shutil

import numpy as np
import pytest
import torch
from commands import call
from model_folders import save_bert
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from test_derived import AGAIN, TEXTS, export, models  # noqa: F401 - a fixture
from transformers import AutoModel, AutoTokenizer

from augment.core.ragged import Ragged
from finetune import derived
from finetune.derived import TokenCounts
from finetune.encoders.embed import PackedModel
from finetune.encoders.models import open_model
from finetune.encoders.static import StaticModel
from pretrain.commands.export import main
from pretrain.common.errors import UserError
from pretrain.config.data import data_config
from pretrain.data.shards import ShardReader
from pretrain.export.sentence_transformers import STATIC_FOLDER, Interface, write_static
from pretrain.prepare.run import prepare


@pytest.fixture(scope="module")
def words_run(models, tmp_path_factory):  # noqa: F811
    """A run that was trained as a static table: its export has one beside the encoder."""
    run = tmp_path_factory.mktemp("words") / "run"
    shutil.copytree(models["bert"], run / "export")
    (run / "config.yaml").write_text("name: mine\n")
    table = AutoModel.from_pretrained(models["bert"]).get_input_embeddings().weight
    write_static(run / "export", table, AutoTokenizer.from_pretrained(models["bert"]), Interface(64))
    policy = {"format_version": 1, "pooling": "words", "step": 7}
    (run / "export" / "clear.json").write_text(json.dumps(policy))
    return run


def test_a_run_of_words_pooling_is_a_table_and_stays_one(models, words_run, tmp_path):  # noqa: F811
    tokenizer = AutoTokenizer.from_pretrained(models["bert"])
    table = load_file(words_run / "export" / STATIC_FOLDER / "model.safetensors")["embedding.weight"].numpy()
    ids = tokenizer([text for text in AGAIN if text], add_special_tokens=False)["input_ids"]
    filled, opened = [text for text in AGAIN if text], open_model(words_run)
    assert isinstance(opened.runs, StaticModel) and opened.pooling == opened.trained_pooling == "words"
    np.testing.assert_allclose(opened.encode(filled), [table[row].mean(0) for row in ids], atol=1e-6)
    assert isinstance(open_model(words_run, "mean").runs, PackedModel)

    texts = list(dict.fromkeys(TEXTS))
    for pooling in ("", "words"):  # which are the same
        out = tmp_path / f"whitened{pooling}"
        call(main, words_run, out=out, text=models["text"], whiten=0, pooling=pooling)
        found = SentenceTransformer(str(out), device="cpu").encode(texts).astype(np.float64)
        np.testing.assert_allclose(found.mean(0), 0, atol=2e-2)
        np.testing.assert_allclose(np.cov(found.T, bias=True), np.eye(len(found.T)), atol=2e-2)
    call(main, words_run, out=tmp_path / "sif", text=models["text"], pooling="sif")
    counts = TokenCounts.of([Ragged.from_sequences(tokenizer(texts)["input_ids"])], len(tokenizer))
    weighted = (table - table.mean(0)) * counts.weights("sif")[:, None]  # and in other axes
    found = SentenceTransformer(str(tmp_path / "sif"), device="cpu").encode(filled)
    expected = np.stack([weighted[row].mean(0) for row in ids])
    size = np.square(expected).sum(1).max()
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=5e-3 * size)
    for flags in ({"remove": 1}, {"static": "encoded"}):
        with pytest.raises(UserError, match="is a static table: give --whiten, or --pooling sif or idf"):
            call(main, words_run, out=tmp_path / "none", text=models["text"], **flags)
    out = tmp_path / "encoder"  # asked for by another pooling it is an encoder
    call(main, words_run, out=out, text=models["text"], pooling="mean", remove=1)
    assert isinstance(open_model(out).runs, PackedModel)


def test_rows_of_prepared_data_are_spaced_evenly(models, tmp_path):  # noqa: F811
    sources = {"sources": [{"source": str(models["text"])}], "tokenizer": str(models["bert"])}
    prepare(data_config(sources | {"min_words": 1, "heldout": 0}), tmp_path / "data", 1, progress=False)
    reader = ShardReader(tmp_path / "data")
    whole = [row.tolist() for n in range(reader.num_chunks) for row in reader.read(n).stored if len(row)]
    for most in (5, len(whole), 10_000):
        found = [row.tolist() for row in derived._stored_rows(reader, most)]
        assert len(found) == min(most, len(whole)) and all(row in whole for row in found)
        assert found[0] == whole[0] and found[-1] == whole[-1]
    with pytest.raises(UserError, match=r"with a map needs text, and .* is prepared data: name its sources"):
        export(
            {"bert": models["bert"], "text": tmp_path / "data"},
            "bert",
            tmp_path / "x",
            pooling="sif",
            whiten=4,
        )
    longer = save_bert(
        tmp_path / "short",
        AutoTokenizer.from_pretrained(models["bert"]),
        max_position_embeddings=reader.max_length - 1,
    )
    with pytest.raises(
        UserError, match=rf"prepared data of up to {reader.max_length} tokens without a prompt"
    ):
        export({"x": longer, "text": tmp_path / "data"}, "x", tmp_path / "x", whiten=4)


def test_a_row_that_float16_cannot_hold_is_refused(models, tmp_path):  # noqa: F811
    """As a table is given on in it; one token of many is enough."""
    encoder = AutoModel.from_pretrained(models["bert"])
    tokenizer = AutoTokenizer.from_pretrained(models["bert"])
    for value in (65504.0, -65536.0):
        with torch.no_grad():
            encoder.get_input_embeddings().weight[7, 3] = value
        for one in (encoder, tokenizer):
            one.save_pretrained(tmp_path / "bert")
        if value > 0:
            call(main, tmp_path / "bert", out=tmp_path / "out", static="input")
        else:
            with pytest.raises(UserError, match="too large for float16"):
                call(main, tmp_path / "bert", out=tmp_path / "none", static="input")
