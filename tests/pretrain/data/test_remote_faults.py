"""Every fault at every operation of copying prepared data from elsewhere."""

from pathlib import Path

from write_faults import Subject, require_all

from pretrain.common.errors import UserError
from pretrain.data import remote
from pretrain.data.manifest import MANIFEST
from pretrain.data.remote import copy_prepared
from pretrain.data.shards import ShardReader


def test_a_copy_with_a_manifest_is_whole(tiny_data, tmp_path, monkeypatch):
    """The first thing that is there is the tokenizer, the last the manifest."""
    monkeypatch.setattr(remote, "_AT_ONCE", 1)  # operations in one order
    url = f"file://{tiny_data}"

    def find(folder: Path) -> str:
        place = folder / "copy"
        if not (place / MANIFEST).is_file():
            return "old"
        reader, local = ShardReader(place), ShardReader(tiny_data)
        assert reader.manifest == local.manifest
        assert reader.read(0).stored == local.read(0).stored
        return "new"

    subject = Subject(
        act=lambda folder: copy_prepared(url, folder / "copy"),
        find=find,
        errors=(UserError, OSError),
    )
    cases = require_all(subject, tmp_path / "cases", least=16, every=2)
    assert cases.found == {"old", "new"}
