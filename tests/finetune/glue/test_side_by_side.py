"""GLUE's runs by several processes at once."""

import pytest

from finetune.glue import __main__ as glue
from finetune.glue.runs import GlueOptions
from finetune.glue.store import RunStore
from finetune.tuning import tasks
from pretrain.common.folder_lock import FolderTakenError


def test_a_run_that_another_process_computes_is_left_out(source, data, tmp_path):
    options = GlueOptions(seeds=2, epochs=1)
    store = RunStore(source, {"RTE": tasks.load("RTE", str(data))}, options, tmp_path)
    runs = options.runs(["RTE"])
    with store.claimed(runs[0]):
        with pytest.raises(FolderTakenError, match=r"RTE-.*is being written by"):
            glue.compute_all(store)
        assert store.result(runs[0]) is None and store.result(runs[1]) is not None
    glue.compute_all(store)
    assert not store.unfinished(runs)
