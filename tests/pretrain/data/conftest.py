"""Small shards for the loader's tests."""

from pathlib import Path

import loader_helpers as helpers
import pytest
from loader_helpers import write_folder

from pretrain.data import loader


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return 500 sequences in chunks of 400 tokens: 25 steps of the helpers are two epochs and a half."""
    sequences = helpers.some_sequences(500)
    write_folder(tmp_path, {"train": sequences}, helpers.SIZE, 40, chunk_tokens=400, chunks_per_shard=6)
    return tmp_path


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Cut blocks of a few steps, so that a run of 25 is many of them."""
    monkeypatch.setattr(loader, "BLOCK_SEQUENCES", 100)
