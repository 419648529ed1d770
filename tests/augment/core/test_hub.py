"""A hub that does not answer is said at once: its own library tries for half a minute for each file."""

import socket
import time
from collections.abc import Iterator

import pytest
from datasets.load import CachedDatasetModuleFactory
from huggingface_hub import constants
from transformers import AutoTokenizer

from augment.core.errors import CannotLoad
from augment.core.pretrained import pretrained
from pretrain.common.errors import UserError
from pretrain.config.data import Source
from pretrain.prepare.sources.planning import _in_cache, plan_tasks


@pytest.fixture(params=["refused", "none"])
def silent(request, tmp_path, monkeypatch) -> Iterator[str]:
    """The address of a hub that refuses connections, or accepts them and says nothing; the cache is empty."""
    monkeypatch.setattr("augment.core.pretrained.SECONDS", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        if request.param == "refused":
            server.close()
        begun = time.monotonic()
        yield address
        assert time.monotonic() - begun < 25


def test_a_model_is_refused(silent):
    with pytest.raises(CannotLoad, match=rf"no folder bert-base-uncased here, and {silent} does not answer"):
        pretrained(AutoTokenizer, "bert-base-uncased")


@pytest.mark.parametrize("name", ["simcse-wiki1m", "nli-for-simcse", "wikipedia", "hub:OWNER/NAME"])
def test_a_corpus_is_refused_with_what_to_do(silent, name):
    with pytest.raises(
        UserError, match=rf"{silent} does not answer.*download .* elsewhere.*HF_HUB_OFFLINE=1"
    ):
        plan_tasks([Source.model_validate(name)])


@pytest.mark.parametrize(("name", "folder"), [("OWNER/SomeName", "OWNER___some_name"), ("name", "name")])
def test_a_data_set_in_the_cache_needs_no_hub(tmp_path, monkeypatch, name, folder):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path))
    assert not _in_cache(name)
    (tmp_path / folder / "default" / "0.0.0" / "hash").mkdir(parents=True)
    assert _in_cache(name)
    CachedDatasetModuleFactory(name, cache_dir=str(tmp_path)).get_module()  # the library finds it there, too
