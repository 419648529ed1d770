"""Every fault at every operation of the folder that stands for prepared data elsewhere."""

from pathlib import Path

from write_faults import Subject, require_all

from pretrain.common.errors import UserError
from pretrain.data.manifest import MANIFEST
from pretrain.data.remote.mirror import REMOTE, mirror
from pretrain.data.shards import ShardReader


def test_a_mirror_with_a_manifest_is_whole(tiny_data, tmp_path):
    """The first thing that is there is the tokenizer, the last the manifest."""
    url = f"file://{tiny_data}"

    def find(folder: Path) -> str:
        place = folder / "mirror"
        if not (place / MANIFEST).is_file():
            return "old"
        reader, local = ShardReader(place), ShardReader(tiny_data)
        assert reader.manifest == local.manifest and (place / REMOTE).is_file()
        assert reader.read(0).stored == local.read(0).stored
        return "new"

    subject = Subject(
        act=lambda folder: mirror(url, folder / "mirror", 1 << 20),
        find=find,
        errors=(UserError, OSError),
        same=lambda path: "" if "chunks" in path else path,  # the reader's
    )
    cases = require_all(subject, tmp_path / "cases", least=16, every=2)
    assert cases.found == {"old", "new"}
