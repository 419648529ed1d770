"""Every fault at every operation of a save."""

from pathlib import Path

import pytest
import torch
from checkpoint_helpers import PlainEngine, save
from write_faults import Subject, require_all

from pretrain.checkpoint import store
from pretrain.checkpoint.store import CheckpointError, candidates


def save_value(folder: Path, step: int, value: float) -> None:
    engine = PlainEngine()
    engine.step()
    with torch.no_grad():
        engine.module.bias.fill_(value)
    save(folder / "checkpoints", engine, {"step": step}, keep=1)


def saved(folder: Path) -> str:
    """Return which of the two is resumed from; whatever has a checkpoint's name is whole."""
    named = candidates(folder / "checkpoints")
    assert named and all(store.problem_with(path) is None for path in named)
    bias = dict(store.read_tensors(named[0]))["bias"]
    assert bias.tolist() in ([1.0] * 3, [2.0] * 3)
    return {1.0: "old", 2.0: "new"}[bias[0].item()]


@pytest.mark.full
@pytest.mark.parametrize("step", [1, 2], ids=["the same step again", "a later step"])
def test_a_save(tmp_path, step):
    subject = Subject(
        act=lambda folder: save_value(folder, step, 2.0),
        find=saved,
        make=lambda folder: save_value(folder, 1, 1.0),
        errors=(CheckpointError,),
    )
    cases = require_all(subject, tmp_path, least=30, every=2)
    assert cases.found == {"old", "new"}
