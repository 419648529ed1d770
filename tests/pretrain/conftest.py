"""Prepared data that several tests train on."""

from pathlib import Path

import pytest
from checkpoint_helpers import PlainEngine, save
from forked_python import run_python
from run_helpers import ROOT, environment, preparation_of, write_corpus


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory) -> Path:
    """A small prepared corpus, by the command that users have."""
    folder = tmp_path_factory.mktemp("tiny")
    corpus = write_corpus(folder / "corpus.txt")
    words = preparation_of(corpus, folder / "data")
    done = run_python(words[1:], environment(), ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "data"


@pytest.fixture
def several_tasks(monkeypatch):
    """Cut small corpora into several reading tasks and buckets, as large ones are."""
    monkeypatch.setattr("pretrain.prepare.sources.planning.TASK_BYTES", 6000)
    monkeypatch.setattr("pretrain.prepare.run._SMALL_BUCKET", 8000)


@pytest.fixture
def saved(tmp_path) -> Path:
    """A folder with the checkpoints of three steps."""
    engine = PlainEngine()
    for step in range(1, 4):
        engine.step()
        save(tmp_path, engine, {"step": step, "best": 0.1 + 0.2}, keep=3)
    return tmp_path
