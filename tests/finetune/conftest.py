"""Small models for the tests of fine-tuning."""

import pytest
from finetuning_helpers import save_model

from finetune.tuning.labelled import open_source


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        kind: save_model(tmp_path_factory.mktemp(kind), kind) for kind in ("bert", "roberta", "modernbert")
    }


@pytest.fixture(scope="module")
def source(folders):
    return open_source(folders["bert"])
