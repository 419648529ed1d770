"""Packed sentence vectors against padded models and sentence-transformers; the STS command on a folder."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from forked_python import run_python
from model_folders import LONG_AND_SHORT, albert, save_guest, save_run, save_wide_bert
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from finetune.encoders.embed import (
    POOLINGS,
    embed_poolings,
    embed_sentences,
    load_model,
    load_pooler,
    parse_poolings,
)
from finetune.encoders.models import open_model
from finetune.encoders.source import resolve
from pretrain.common.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_wide_bert(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def loaded(folder):
    return load_model(resolve(folder))


def padded_reference(folder, tokenizer, sentences):
    """Every pooling from the library's own padded model."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    batch = tokenizer(list(sentences), padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch, output_hidden_states=True).hidden_states
    weight = batch["attention_mask"][:, :, None].float()

    def mean(state):
        return ((state * weight).sum(1) / weight.sum(1)).numpy()

    last = mean(hidden[-1])
    return {
        "cls": hidden[-1][:, 0].numpy(),
        "mean": last,
        "first-last": (mean(hidden[1]) + last) / 2,
        "embedding-last": (mean(hidden[0]) + last) / 2,
        "last-two": (mean(hidden[-2]) + last) / 2,
    }


@pytest.mark.parametrize(
    "token_budget", [pytest.param(1, marks=pytest.mark.full), 40, pytest.param(16384, marks=pytest.mark.full)]
)
def test_every_pooling_equals_the_padded_model(folder, loaded, token_budget):
    encoder, tokenizer = loaded
    reference = padded_reference(folder, tokenizer, LONG_AND_SHORT)
    vectors = embed_poolings(encoder, tokenizer, LONG_AND_SHORT, POOLINGS, token_budget)
    assert list(vectors) == list(POOLINGS)
    for name in POOLINGS:
        np.testing.assert_allclose(vectors[name], reference[name], atol=2e-5)
        alone = embed_sentences(encoder, tokenizer, LONG_AND_SHORT, name, token_budget)
        np.testing.assert_array_equal(alone, vectors[name])


def test_mean_pooling_equals_sentence_transformers(folder, loaded):
    from sentence_transformers import SentenceTransformer

    encoder, tokenizer = loaded
    peer = SentenceTransformer(str(folder), device="cpu")  # without a modules.json it pools the mean
    vectors = embed_sentences(encoder, tokenizer, LONG_AND_SHORT, "mean")
    np.testing.assert_allclose(vectors, peer.encode(LONG_AND_SHORT), atol=2e-5)


def test_training_mode_is_left_as_it_was_and_does_not_reach_the_vectors(loaded):
    encoder, tokenizer = loaded
    quiet = embed_sentences(encoder, tokenizer, LONG_AND_SHORT)
    encoder.train()
    try:
        np.testing.assert_array_equal(embed_sentences(encoder, tokenizer, LONG_AND_SHORT), quiet)
        assert encoder.training
    finally:
        encoder.eval()


def test_long_sentences_are_cut_and_no_sentences_give_no_vectors(folder, loaded):
    encoder, tokenizer = loaded
    text = "word " * 200
    np.testing.assert_allclose(
        embed_sentences(encoder, tokenizer, [text], "mean"),
        padded_reference(folder, tokenizer, [text])["mean"],
        atol=2e-5,
    )
    assert embed_sentences(encoder, tokenizer, []).shape == (0, 32)


def test_poolings_are_parsed():
    assert parse_poolings("all") == list(POOLINGS)
    assert parse_poolings("mean, cls,mean") == ["mean", "cls"]
    assert parse_poolings("pooler") == ["pooler"]
    with pytest.raises(UserError, match="pooler is evaluated alone"):
        parse_poolings("cls,pooler")
    with pytest.raises(UserError, match="unknown pooling 'median'"):
        parse_poolings("cls,median")
    for alone in ("words,cls", "mean, pooler, cls"):
        with pytest.raises(
            UserError, match=r"(words|pooler) is evaluated alone; give it in a command of its"
        ):
            parse_poolings(alone)
    assert parse_poolings("words") == ["words"] and parse_poolings(" ,cls,") == ["cls"]
    for nothing in ("", " , "):
        with pytest.raises(UserError, match="no pooling given"):
            parse_poolings(nothing)


def test_a_run_folder_stands_for_its_best_weights_or_else_its_export(folder, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("name: x\n")
    with pytest.raises(UserError, match="without an export yet"):
        load_model(resolve(tmp_path))
    (tmp_path / "export").symlink_to(folder)
    load_model(resolve(tmp_path))
    assert f"{tmp_path}: weights from {tmp_path / 'export'}" in capsys.readouterr().err
    (tmp_path / "best").symlink_to(folder)
    load_model(resolve(tmp_path))
    assert f"{tmp_path}: weights from {tmp_path / 'best'}" in capsys.readouterr().err
    with pytest.raises(UserError, match="there is no folder"):
        load_model(resolve(tmp_path / "absent"))


def test_the_encoder_runs_once_for_each_other_layer_and_batch(loaded, monkeypatch):
    """First hidden states, cls and the mean share a pass with one of those that are averaged with another."""
    encoder, tokenizer = loaded
    passes, states_for = [], encoder.states_for
    monkeypatch.setattr(encoder, "states_for", lambda *given: passes.append(given[0]) or states_for(*given))
    texts = LONG_AND_SHORT[:20]
    for poolings, budget, count in (
        (POOLINGS, 16384, 3),
        (["cls", "mean"], 16384, 1),
        (["mean", "last-two"], 16384, 1),
        (["first-last", "last-two"], 16384, 2),
        (["mean"], 1, None),
    ):
        passes.clear()
        embed_poolings(encoder, tokenizer, texts, poolings, budget)
        assert len(passes) == count or (count is None and len(passes) > 5)


def test_texts_are_cut_at_the_shortest_limit(loaded, folder, tmp_path):
    encoder, tokenizer = loaded
    long, short = "the quick brown fox jumps over", "the quick brown"
    cut = embed_sentences(encoder, tokenizer, [long], "mean", max_length=5)  # with [CLS] and [SEP]
    np.testing.assert_allclose(cut, embed_sentences(encoder, tokenizer, [short], "mean"), atol=1e-5)
    whole = embed_sentences(encoder, tokenizer, [long, "a cat"], "mean", max_length=500)
    np.testing.assert_allclose(whole[:1], embed_sentences(encoder, tokenizer, [long], "mean"), atol=1e-5)
    guest = save_guest(folder, tmp_path / "guest", "mean", longest=7)
    lengths = {most: open_model(guest, max_length=most).longest for most in (None, 5, 7, 9)}
    assert lengths == {None: 7, 5: 5, 7: 7, 9: 7} and open_model(folder, "cls").longest == 64


def test_a_pooler_is_read_or_refused_and_what_a_run_was_trained_with_is_said(folder, tmp_path, capsys):
    with pytest.raises(UserError, match="cannot load a model from"):
        load_pooler(tmp_path / "none")
    with pytest.raises(UserError, match=r"the pooler of \S+ is not a linear map and tanh"):
        load_pooler(albert(tmp_path / "albert"))
    run = resolve(save_run(folder, tmp_path / "run", "first-last"))
    capsys.readouterr()
    assert load_model(run)[0].pooling == "first-last"
    assert capsys.readouterr().err == "trained with first-last pooling\n"
    assert load_model(run, quiet=True)[0].head is None and capsys.readouterr().err == ""
    assert load_model(resolve(folder))[0].pooling == "mean" and capsys.readouterr().err == ""


def run_sts(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("CLEAR_DATA", None)
    root = Path(__file__).resolve().parents[3]
    return run_python(["-m", "finetune.sts", *map(str, arguments)], environment, root)


def write_benchmark(data: Path) -> None:
    """Write a small STS-B dev set below a data folder."""
    benchmark = data / "STS" / "STSBenchmark"
    benchmark.mkdir(parents=True)
    pairs = enumerate(zip(LONG_AND_SHORT[4:], LONG_AND_SHORT[7:]))
    rows = [f"g\tf\ty\t{n}\t{n % 6}\t{a}\t{b}\n" for n, (a, b) in pairs]
    (benchmark / "sts-dev.csv").write_text("".join(rows))


@pytest.mark.full
def test_the_sts_command(folder, tmp_path):
    write_benchmark(tmp_path)
    done = run_sts(folder, "--pooling", "cls,mean", "--eval-data", tmp_path, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["pooling", "STS-B-dev", "average"]
    for line, pooling in zip(lines[1:3], ("cls", "mean")):
        tasks = json.loads((tmp_path / f"sts-{pooling}.json").read_text())["tasks"]
        assert line.split() == [pooling, f"{tasks['STS-B-dev']['value']:.2f}", "-"]


@pytest.mark.full
def test_the_sts_command_refuses_bad_input_in_one_message(folder, tmp_path):
    write_benchmark(tmp_path)
    for arguments, message in (
        ((folder, "--eval-data", tmp_path / "empty"), "no STS task"),
        ((folder, "--eval-data", tmp_path, "--tasks", "STS-B-def"), "did you mean"),
        ((folder, "--pooling", "max", "--eval-data", tmp_path), "unknown pooling 'max'"),
    ):
        done = run_sts(*arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_special_tokens_typed_in_a_text_are_those_tokens_as_in_the_library(folder, tmp_path):
    texts = ["a man [MASK] plays", "a man [SEP] plays", "[CLS]", "a man plays"]
    guest = save_guest(folder, tmp_path / "guest", "mean")
    library = SentenceTransformer(str(guest), device="cpu")
    ours = open_model(guest).encode(texts)
    np.testing.assert_allclose(ours, library.encode(texts), atol=2e-5)
    special = {library.tokenizer.mask_token_id, library.tokenizer.sep_token_id}
    assert special <= {token for row in library.tokenizer(texts)["input_ids"] for token in row[1:-1]}
