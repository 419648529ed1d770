"""Damaged chunks are refused by name, and restored they are read as before."""

import pytest
from loader_helpers import assert_same, batches, damage

from pretrain.data.shards import DamagedShard


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how,words", [("flip", "sha256"), ("truncate", "cut short"), ("remove", "missing")])
def test_damage_is_refused_by_name(folder, workers, how, words):
    expected = batches(folder)
    _, good = damage(folder, how)
    with pytest.raises(DamagedShard, match=f"shard-00000.*{words}.*gives the same bytes"):
        batches(folder, workers=workers)
    (folder / "train" / "shard-00000.tar").write_bytes(good)
    for mine, theirs in zip(batches(folder, start_step=9, workers=workers), expected[9:], strict=True):
        assert_same(mine, theirs)
