"""The hash of a model: of what loading it reads, and of nothing that other programs put beside that."""

from pathlib import Path

import pytest

from augment.spec.resources import resource_hash

LOADED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
OF_OTHERS = (
    "pytorch_model.bin",
    "modules.json",
    "tf_model.h5",
    "flax_model.msgpack",
    "README.md",
    "LICENSE.txt",
)


@pytest.fixture
def snapshot(tmp_path, monkeypatch) -> Path:
    """The folder of owner/name in a local cache of the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--owner--name"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("c" * 40)
    folder = model / "snapshots" / ("c" * 40)
    folder.mkdir(parents=True)
    return folder


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text(name)


def test_what_other_libraries_fetch_of_a_hub_model_does_not_count(snapshot):
    write(snapshot, *LOADED)
    first = resource_hash("owner/name")
    assert first is not None
    write(snapshot, *OF_OTHERS)
    assert resource_hash("owner/name") == first == resource_hash(snapshot)
    for name in LOADED:
        (snapshot / name).write_text("changed")
        assert resource_hash("owner/name") != first, name
        (snapshot / name).write_text(name)
    write(snapshot, "spiece.model")
    assert resource_hash("owner/name") != first


def test_a_hub_model_has_no_hash_before_its_weights_are_there(snapshot):
    assert resource_hash("owner/name") is None
    write(snapshot, "config.json", "tokenizer.json")  # all that a tokenizer's user fetches
    assert resource_hash("owner/name") is None


def test_every_file_of_a_folder_that_is_no_models_counts(tmp_path):
    write(tmp_path, "index.noun", "data.noun")
    first = resource_hash(tmp_path)
    write(tmp_path, "README.md", ".lock")
    assert resource_hash(tmp_path) == first
    write(tmp_path, "index.verb")
    assert resource_hash(tmp_path) != first
