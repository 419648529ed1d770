"""Tokens weighted by frequency in training, in a resume and in the export, and again from that export."""

import shutil

import numpy as np
import pytest
import torch
from commands import call
from run_helpers import command, curve, finish, start
from sentence_transformers import SentenceTransformer
from test_bad_input import refused
from transformers import AutoModel, AutoTokenizer

from finetune.encoders.embed import PackedModel, embed_sentences
from finetune.encoders.models import open_model
from pretrain.commands.export import main as export_command
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import tokenizer_of
from pretrain.export.folder import export
from pretrain.model.encoder import build_encoder
from pretrain.start.encoder import guiding_encoder

TEXTS = ["the river of the town", "a green hill, a stone; the river", "the the the"]


def by_formula(folder, data) -> np.ndarray:
    """The mean of embeddings and last layer by Arora et al.'s weights, float64, counts of all shards."""
    reader = ShardReader(data)
    counts = np.zeros(AutoModel.from_pretrained(folder).config.vocab_size, np.int64)
    for chunk in range(reader.num_chunks):
        np.add.at(counts, reader.read(chunk).stored.ids, 1)
    weights = 0.001 / (0.001 + counts / counts.sum())
    model = AutoModel.from_pretrained(folder, dtype=torch.float64)
    vectors = []
    for text in TEXTS:
        ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            states = model(ids, output_hidden_states=True).hidden_states
        of_tokens = weights[ids[0].numpy()][:, None]
        states = (states[0][0] + states[-1][0]).numpy() / 2
        vectors.append((of_tokens * states).sum(0) / of_tokens.sum())
    return np.stack(vectors)


@pytest.mark.full
def test_training_resume_and_export_weigh_alike(tiny_data, tmp_path):
    run = tmp_path / "run"
    flags = {"model__token_weights": "sif", "model__pooling": "embedding-last", "objective": "simcse"}
    flags |= {"objective__mlm__weight": 0, "train__steps": 4, "checkpoint__every": 2, "checkpoint__keep": 9}
    finish(start(command(tiny_data, run, **flags), ranks=2))
    whole, found = curve(run), open_model(run / "export").encode(TEXTS)
    np.testing.assert_allclose(found, by_formula(run / "export", tiny_data), atol=1e-5)
    assert isinstance(open_model(run / "export").runs, PackedModel)
    theirs = SentenceTransformer(str(run / "export"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found, theirs, atol=1e-6)

    shutil.rmtree(run / "checkpoints" / "step-00000004")
    finish(start(command(tiny_data, run, **flags, checkpoint__resume="auto"), ranks=2))
    assert curve(run) == whole
    assert (open_model(run / "export").encode(TEXTS) == found).all()

    # from its export, and untrained; the data then has other frequencies, which are not asked for
    flags |= {"model__token_weights": None, "model__pooling": None, "train__lr": 1e-12, "init": run}
    flags |= {f"model__{key}": None for key in ("layers", "hidden_size", "heads", "max_positions")}
    finish(start(command(tiny_data, tmp_path / "again", **flags)))
    again = open_model(export(tmp_path / "again", tmp_path / "out")).encode(TEXTS)
    np.testing.assert_allclose(again, found, atol=1e-6)


@pytest.mark.full
def test_a_static_table_is_trained_resumed_and_used_as_the_library_uses_it(tiny_data, tmp_path):
    run = tmp_path / "run"
    flags = {
        "model__pooling": "words",
        "objective": "simcse",
        "objective__mlm__weight": 0,
        "augment__spec": "none",
    }
    flags |= {
        "augment__excerpt": "span:min_length=2",
        "train__steps": 4,
        "checkpoint__every": 2,
        "train__lr": 1e-3,
    }
    finish(start(command(tiny_data, run, **flags), ranks=2))
    whole, export_of_run = curve(run), run / "export"
    texts = [*TEXTS, "", " ".join(TEXTS * 40)]  # no limit of length
    found, tokenizer = open_model(export_of_run).encode(texts), AutoTokenizer.from_pretrained(export_of_run)
    np.testing.assert_allclose(
        found, SentenceTransformer(str(export_of_run), device="cpu").encode(texts), atol=1e-6
    )
    earlier = open_model(export(run, tmp_path / "earlier", step=2)).encode(TEXTS)
    assert np.abs(found[:3] - earlier).max() > 1e-4  # it is trained
    table = AutoModel.from_pretrained(export_of_run).get_input_embeddings().weight.detach().double().numpy()
    for row, text in zip(found[:3], texts):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        np.testing.assert_allclose(row, table[ids].mean(0), atol=1e-6)

    shutil.rmtree(run / "checkpoints" / "step-00000004")
    finish(start(command(tiny_data, run, **flags, checkpoint__resume="auto"), ranks=2))
    assert curve(run) == whole

    guide = load_config(None, {"objective": "simcse+distill", "objective.distill.model": str(export_of_run)})
    frozen = guiding_encoder(guide, tokenizer)
    assert frozen is not None
    np.testing.assert_allclose(embed_sentences(frozen, tokenizer, TEXTS), found[:3], atol=1e-6)

    with pytest.raises(UserError, match="is a static table"):
        call(export_command, run, out=tmp_path / "no", remove=2, text=tiny_data)
    call(export_command, run, out=tmp_path / "white", whiten=8, text=tiny_data)
    white = open_model(tmp_path / "white").encode(["the river", *TEXTS])
    assert white.shape == (4, 8)
    with pytest.raises(UserError, match=r"--pooling words: .* was not trained so"):
        open_model(tmp_path / "white", "words")


@pytest.mark.parametrize(
    "flags,said",
    [
        ({"data__prompts__anchor": "ask: ", "data__prompts_pooled": False}, "data.prompts_pooled=true"),
        ({"objective": "simcse", "objective__simcse__keep_head": True}, "used as a table, without a head"),
        ({"objective": "simcse", "augment__spec": "none", "augment__excerpt": "none"}, "augment"),
        ({"model__token_weights": "sif"}, "choose another pooling"),
    ],
)
def test_what_a_table_cannot_have_is_refused(tiny_data, tmp_path, flags, said):
    """Views of the same tokens differ by dropout, and a table has none."""
    words = {"model__pooling": "words", "objective__mlm__weight": 0, "model__dropout": 0.1}
    refused(command(tiny_data, tmp_path / "run", **words | flags), said)


def test_rows_of_a_vocabulary_that_grows_weigh_one():
    encoder = build_encoder({"type": "bert", "layers": 1, "hidden_size": 16, "heads": 2}, tokenizer_of(TEXTS))
    encoder.weigh_tokens(torch.full((encoder.vocab_size - 2,), 0.5))
    assert encoder.token_weights.tolist()[-3:] == [0.5, 1.0, 1.0]


def test_they_need_a_mean(tiny_data, tmp_path):
    words = command(tiny_data, tmp_path / "run", model__token_weights="sif", model__pooling="cls")
    refused(words, "model.token_weights weighs tokens in a mean of states", "choose another pooling")
