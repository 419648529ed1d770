"""Check caches whose augmentations run a model."""

import shutil

import pytest
from cache_helpers import make
from loader_helpers import make_loader
from prepare_helpers import digest
from transformers import BertConfig, BertForMaskedLM

from augment.core.errors import AugmentationError
from augment.core.vocabulary import Vocabulary
from augment.spec.resources import resource_hash
from pretrain.common.errors import UserError
from pretrain.data.batch import ViewSpec
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.prepare.cache import run as cache_run

MASKED_LM = "CLEAR_MASKED_LM"


@pytest.fixture(scope="module")
def masked_lm(annotated, tmp_path_factory) -> str:
    """A small random masked language model with the data's tokenizer."""
    folder, tokenizer = tmp_path_factory.mktemp("lm"), load_tokenizer(ShardReader(annotated).tokenizer_path)
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=32, initializer_range=0.3, max_position_embeddings=66)  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_models_named_by_the_environment_are_part_of_what_is_made(
    annotated, masked_lm, tmp_path, monkeypatch
):
    columns = {"augmented": "contextual:rate=0.3|random-swap"}
    monkeypatch.delenv(MASKED_LM, raising=False)
    with pytest.raises(AugmentationError, match=f"contextual needs a masked language model.*{MASKED_LM}"):
        make(annotated, tmp_path / "cache", columns)
    monkeypatch.setenv(MASKED_LM, masked_lm)
    manifest = make(annotated, tmp_path / "cache", columns)
    assert manifest["cache"]["resources"] == {"contextual.model": resource_hash(masked_lm)}
    assert manifest["cache"]["rates"]["augmented"]["contextual:rate=0.3"]["rate"] > 0.8
    moved = tmp_path / "moved"
    shutil.copytree(masked_lm, moved)
    monkeypatch.setenv(MASKED_LM, str(moved))
    assert make(annotated, tmp_path / "cache", columns) == manifest  # the same model elsewhere
    content = bytearray((moved / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (moved / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r": .*\(contextual.model\)"):
        make(annotated, tmp_path / "cache", columns)


def test_a_model_that_loading_fetches_is_hashed_after_that(annotated, masked_lm, tmp_path, monkeypatch):
    monkeypatch.setenv(MASKED_LM, masked_lm)
    open_pipelines, opened = cache_run.open_pipelines, []

    def fetch(*arguments):
        opened.append(arguments)
        return open_pipelines(*arguments)

    monkeypatch.setattr(cache_run, "open_pipelines", fetch)
    monkeypatch.setattr(cache_run, "resource_hash", lambda where: resource_hash(where) if opened else None)
    manifest = make(annotated, tmp_path / "cache", {"augmented": "contextual:rate=0.3|random-swap"})
    assert manifest["cache"]["resources"] == {"contextual.model": resource_hash(masked_lm)}


@pytest.mark.slow
def test_a_model_gives_the_same_bytes_with_any_number_of_workers(annotated, masked_lm, tmp_path, monkeypatch):
    monkeypatch.setenv(MASKED_LM, masked_lm)
    for workers in (1, 2):
        make(
            annotated,
            tmp_path / str(workers),
            {"augmented": "contextual:rate=0.3|random-swap"},
            copies=3,
            workers=workers,
        )
    assert digest(tmp_path / "1") == digest(tmp_path / "2")


def test_forked_loader_workers_run_a_model_that_was_loaded_before(annotated, masked_lm, monkeypatch):
    monkeypatch.setenv(MASKED_LM, masked_lm)
    reader = ShardReader(annotated)
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(reader.tokenizer_path))
    views = [ViewSpec("anchor", "none"), ViewSpec("positive", "contextual:rate=0.3|random-swap")]
    found = []
    for workers in (0, 2):  # blocks of other sentences: each becomes the same
        loader = make_loader(
            annotated,
            vocabulary,
            global_batch=16,
            lanes=4,
            views=views,
            copies=0,
            workers=workers,
            stop_step=4,
        )
        found.append([batch.views["positive"].tokens for batch in loader])
        original = [batch.original for batch in loader]
    assert found[0] == found[1]
    assert sum(first != second for first, second in zip(original, found[0])) == 4
