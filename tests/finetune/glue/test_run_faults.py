"""Every fault at every operation of a run of GLUE: states to go on from, its model, answers and figures."""

import re
from pathlib import Path

import numpy as np
import pytest
from glue_files import write_glue
from write_faults import Subject, require_all

from finetune.glue.runs import GlueOptions
from finetune.glue.store import RunStore
from finetune.tuning import finetuning, tasks
from finetune.tuning.finetuning import read_tensors


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    root = write_glue(tmp_path_factory.mktemp("labelled"), train=48, dev=6, test=3)
    return {name: tasks.load(name, str(root)) for name in ("MNLI", "AX")}


@pytest.fixture(autouse=True)
def checkpoints(monkeypatch):
    """At every step."""
    monkeypatch.setattr(finetuning, "CHECKPOINT_SECONDS", 0.0)


def require_whole(source, found, folder: Path, every: int) -> None:
    options = GlueOptions(seeds=1, epochs=1, predict=True)
    (run,) = options.runs(["MNLI"])

    def store(place: Path) -> RunStore:
        return RunStore(source, found, options, place / "runs")

    (folder / "whole").mkdir()
    whole = store(folder / "whole")
    whole.compute(run, "")

    def find(place: Path) -> str:
        for state in (place / "runs").glob("*.checkpoint"):
            assert read_tensors(state)["step"] in (1, 2)
        there = store(place)
        result = there.result(run)
        if result is None:
            return "old"
        for key in ("best", "curve", "settings"):
            assert result[key] == whole.result(run)[key]  # bitwise, also where it went on from a state
        for name, logits in whole.predictions(run).items():
            np.testing.assert_array_equal(there.predictions(run)[name], logits)
        assert not there.unfinished([run])
        return "new"

    subject = Subject(act=lambda place: store(place).compute(run, ""), find=find)
    cases = require_all(subject, folder / "cases", least=22, every=every)
    assert cases.found == {"old", "new"}
    operations = [re.sub(r" .*seed1-\w+", " ", one) for one in cases.operations]
    figures, state_goes = operations.index("fsync .json.partial"), operations.index("unlink .checkpoint")
    assert max(n for n, one in enumerate(operations) if "predictions" in one) < figures
    assert figures < state_goes  # a kill before costs no training


@pytest.mark.full
def test_a_run_of_glue(source, found, tmp_path):
    require_whole(source, found, tmp_path, every=16)


@pytest.mark.slow
def test_a_run_of_glue_and_each_next_attempt(source, found, tmp_path):
    require_whole(source, found, tmp_path, every=1)
