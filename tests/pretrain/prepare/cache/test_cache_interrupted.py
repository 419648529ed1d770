"""Check that workers and kills change no byte of a cache, and that other settings are refused."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest
from cache_helpers import TOKENS, make, records_of
from prepare_helpers import digest
from run_helpers import ROOT

from pretrain.common.errors import UserError
from pretrain.common.folder_lock import folder_lock
from pretrain.data.shards import ShardReader
from pretrain.prepare.cache import run as cache_run


@pytest.mark.full
def test_the_same_bytes_with_any_number_of_workers_and_after_a_break(tiny_data, tmp_path, monkeypatch):
    columns = {"augmented": TOKENS}
    make(tiny_data, tmp_path / "one", columns, copies=3)
    make(tiny_data, tmp_path / "two", columns, copies=3, workers=2)
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    run, began = cache_run.AugmentShard.run, []

    def broken(self, data=None, rank=0, world_size=1):
        began.append(rank)
        if len(began) == 3:
            raise KeyboardInterrupt
        run(self, data, rank, world_size)

    monkeypatch.setattr(cache_run.AugmentShard, "run", broken)
    with pytest.raises(KeyboardInterrupt):
        make(tiny_data, tmp_path / "broken", columns, copies=3)
    assert not (tmp_path / "broken" / "manifest.json").exists()
    with pytest.raises(UserError, match="seed is 3 there and 4 now"):
        make(tiny_data, tmp_path / "broken", columns, copies=3, seed=4)
    make(tiny_data, tmp_path / "broken", columns, copies=3)
    assert began[:3] == [0, 1, 2] and began[3:] == [2, 3]
    assert digest(tmp_path / "broken") == digest(tmp_path / "one")
    again = make(tiny_data, tmp_path / "broken", columns, copies=3)
    assert (
        len(began) == 5 and again["splits"]["train"]["sequences"] == 3 * ShardReader(tiny_data).num_sequences
    )


def test_a_cache_of_other_rules_is_named_and_a_cache_draws_each_column_for_itself(
    tiny_data, tmp_path, monkeypatch
):
    columns = {"negative": "del-word:rate=0.5", "augmented": "del-word:rate=0.5"}
    manifest = make(tiny_data, tmp_path / "cache", columns)
    assert re.fullmatch("[0-9a-f]{12}", manifest["cache"]["rules"])
    found, _ = records_of(tmp_path / "cache")
    assert (
        sum(one == other for one, other in zip(found["negative"], found["augmented"]))
        < len(found["text"]) / 4
    )
    monkeypatch.setattr(cache_run, "rules_digest", lambda: "other")
    with pytest.raises(
        UserError,
        match=r"cache: the digest of .* code and word lists.*another --out",
    ):
        make(tiny_data, tmp_path / "cache", columns)


@pytest.mark.full
def test_a_process_killed_alone_leaves_a_folder_that_can_be_finished(tiny_data, tmp_path):
    code = (
        "import os, signal, sys; from pretrain.prepare.cache import run as cache\n"
        "run = cache.AugmentShard.run\n"
        "def killed(self, data=None, rank=0, world_size=1):\n"
        "    run(self, data, rank, world_size)\n"
        "    if rank: os.kill(os.getpid(), signal.SIGKILL)\n"
        "cache.AugmentShard.run = killed\n"
        "data, out, aug = sys.argv[1:]\n"
        "flags = {'seed': 3, 'resample': 3, 'workers': 1, 'progress': False}\n"
        "cache.cache(cache.CacheFlags(data=data, out=out, aug=aug, **flags))\n"
    )
    words = [sys.executable, "-c", code, str(tiny_data), str(tmp_path / "killed"), TOKENS]
    process = subprocess.Popen(
        words, cwd=ROOT, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.wait() == -signal.SIGKILL
        make(tiny_data, tmp_path / "killed", {"augmented": TOKENS}, copies=3)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # datatrove's manager outlives it
    make(tiny_data, tmp_path / "whole", {"augmented": TOKENS}, copies=3)
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")


def test_two_at_once_are_refused(tiny_data, tmp_path):
    (tmp_path / "cache").mkdir()
    with (
        folder_lock(tmp_path / "cache"),
        pytest.raises(UserError, match=f"is being written by process {os.getpid()} on "),
    ):
        make(tiny_data, tmp_path / "cache", {"augmented": TOKENS})
