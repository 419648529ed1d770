"""Post-training of a published encoder keeps what it brought: modules, length, prompts, tokenizer."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from model_folders import save_guest
from published_folders import texts, write_published
from run_helpers import command, finish, start, write_corpus
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from transformers import AutoTokenizer

from finetune.encoders.models import open_model
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.start.encoder import adopt_interface

PROMPTS = {"query": "find : ", "document": "read : "}


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return write_published("bert", tmp_path_factory.mktemp("guests") / "bert")


def settings_of(folder: Path) -> list[object]:
    """What an application reads of a folder beside weights and tokenizer."""
    model = SentenceTransformer(str(folder), device="cpu")
    modules = [type(module).__name__ for module in model]
    said = json.loads((folder / "config_sentence_transformers.json").read_text())
    of_texts = [model.max_seq_length, model.prompts, said["default_prompt_name"]]
    return [modules, model[1].pooling_mode, *of_texts, model.similarity_fn_name]


@pytest.mark.parametrize(
    "pooling,after,flags,takes",
    [
        ("cls", (), {}, "cls"),
        ("mean", (Normalize(),), {}, "mean"),
        ("mean", (), {"model.pooling": "cls"}, "cls"),
        ("max", (), {}, "pooling max"),
        ("cls", (Dense(32, 8),), {}, "Dense"),
        ("max", (), {"model.pooling": "mean"}, "mean"),
    ],
)
def test_the_pooling_is_the_starts_unless_a_flag_gives_one(bert, tmp_path, pooling, after, flags, takes):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {pooling: first-last}\n")
    guest = save_guest(bert, tmp_path / "guest", pooling, *after)
    config = load_config(recipe, {"init": str(guest)} | flags)
    if takes not in ("cls", "mean"):
        with pytest.raises(UserError, match=rf"training cannot keep \({takes}\); give --model.pooling"):
            adopt_interface(config)
        return
    interface = adopt_interface(config)
    assert interface is not None and config.model.pooling == takes
    assert interface.normalize == bool(after) and adopt_interface(config) == interface
    of_recipe = tmp_path / "with_start.yaml"
    of_recipe.write_text(f"model: {{pooling: first-last, init: {guest}}}\n")
    config = load_config(of_recipe, {})
    adopt_interface(config)
    assert config.model.pooling == "first-last"


@pytest.mark.full
def test_a_start_without_a_tokenizer_is_named(bert, tmp_path):
    """Data of another tokenizer would be trained on as if it fitted."""
    bare, corpus = tmp_path / "bare", write_corpus(tmp_path / "corpus.txt", documents=40)
    shutil.copytree(bert, bare, ignore=shutil.ignore_patterns("*token*", "vocab*"))
    given = {"init": bare, "data__prepare__sources": corpus, "data__prepare__tokenizer": bert}
    given |= {"train__steps": 1, "train__warmup_steps": 0, "objective": "simcse", "aug": "none"}
    given |= {f"model__{key}": None for key in ("layers", "hidden_size", "heads", "max_positions")}
    output = finish(start(command(tmp_path / "data", tmp_path / "run", **given)))
    assert f"{bare} has no tokenizer: whether the data has its tokens is not known" in output


@pytest.mark.full
def test_exports_of_a_run_and_of_its_resume_are_used_as_the_start(bert, tmp_path):
    said = {"prompts": PROMPTS, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    guest = save_guest(bert, tmp_path / "guest", "cls", Normalize(), longest=24, **said)
    run, corpus = tmp_path / "run", write_corpus(tmp_path / "corpus.txt", documents=40)
    given = {"init": guest, "train__steps": 2, "train__lr": 1e-12, "train__weight_decay": 0, "aug": "none"}
    given |= {
        "train__warmup_steps": 0,
        "objective": "simcse",
        "objective__mlm__weight": 0,
        "data__prepare__sources": corpus,
    }
    given |= {f"model__{key}": None for key in ("layers", "hidden_size", "heads", "max_positions", "pooling")}
    output = finish(start(command(tmp_path / "data", run, **given)))
    kept = "cls pooling, normalised; at most 24 tokens; prompts document, query"
    assert f"exports as {guest}: {kept}" in output and "; its tokenizer\n" in output
    # the loss of masked tokens is not used
    assert "masked-language head" not in output and "corrupted" not in output
    sentences = texts(bert.parent)[:9]
    expected = SentenceTransformer(str(guest), device="cpu").encode(sentences)
    resumed = given | {"train__steps": 4, "checkpoint__resume": "auto"}
    for step in (2, 4):
        if step == 4:
            assert "resumed from" in finish(start(command(tmp_path / "data", run, **resumed)))
        for folder in (run / "export", run / "best"):
            assert settings_of(folder) == settings_of(guest)
            tokens = [AutoTokenizer.from_pretrained(one).get_vocab() for one in (folder, guest)]
            assert tokens[0] == tokens[1] and "[DEL]" not in tokens[0]
            found = SentenceTransformer(str(folder), device="cpu").encode(sentences)
            np.testing.assert_allclose(found, expected, atol=1e-6)
            np.testing.assert_allclose(open_model(folder).encode(sentences), expected, atol=1e-6)
    assert torch.allclose(torch.from_numpy(expected).norm(dim=1), torch.ones(9))
