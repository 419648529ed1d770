"""Every fault at every operation of a preparation's last stage, after which the folder counts as prepared."""

from pathlib import Path

import pytest
from prepare_helpers import config, digest, make_corpus
from write_faults import Subject, require_all

from pretrain.common.errors import UserError
from pretrain.data.manifest import MANIFEST
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import tokenizer_hash
from pretrain.prepare.run import prepare
from pretrain.prepare.stages.merge import Merge


def test_a_folder_that_counts_as_prepared_is_whole(tmp_path, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    make_corpus(corpus, documents=40)
    merge = Merge.run

    def make(folder: Path) -> None:
        """All stages but the last."""
        with monkeypatch.context() as patch:
            patch.setattr(Merge, "run", _stop)
            with pytest.raises(_Stopped):
                prepare(config(corpus), folder / "data", workers=1, progress=False)

    def act(folder: Path) -> None:
        merge(Merge(folder / "data" / ".work"))

    def find(folder: Path) -> str:
        data = folder / "data"
        if not (data / MANIFEST).is_file():
            return "old"
        readers = [ShardReader(data, split) for split in ("train", "heldout")]
        assert all(len(reader.read(n).sequences) for reader in readers for n in range(reader.num_chunks))
        assert tokenizer_hash(data) == readers[0].manifest["tokenizer_hash"]
        return "new"

    cases = require_all(Subject(act, find, make, (UserError, OSError)), tmp_path / "cases", least=8, every=4)
    assert cases.found == {"old", "new"}
    # and what is whole is what an undisturbed preparation makes
    prepare(config(corpus), tmp_path / "whole", workers=1, progress=False)
    done = tmp_path / "cases" / "recorded" / "data"
    expected = digest(tmp_path / "whole")
    assert {name: value for name, value in digest(done).items() if not name.startswith(".work")} == expected


class _Stopped(BaseException):
    """As a kill: nothing catches it."""


def _stop(*_: object, **__: object) -> None:
    raise _Stopped
