"""Small models for the tests of fine-tuning."""

import pytest
from finetuning_helpers import save_model

from augment.core.own_code import ALLOWED
from finetune.tuning.labelled import open_source


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        kind: save_model(tmp_path_factory.mktemp(kind), kind) for kind in ("bert", "roberta", "modernbert")
    }


@pytest.fixture(scope="module")
def source(folders):
    return open_source(folders["bert"])


@pytest.fixture(autouse=True)
def own_code(monkeypatch):
    """Let functions that tests write embed, as where a command names them."""
    monkeypatch.setenv(ALLOWED, "*")
