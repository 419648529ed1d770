"""Every fault at every operation of a checkpoint in DeepSpeed's universal format."""

from pathlib import Path

import torch
from checkpoint_helpers import PlainEngine
from write_faults import Subject, require_all, state_of

from pretrain.checkpoint import store
from pretrain.common.errors import UserError
from pretrain.export.universal import export_universal


def test_a_universal_checkpoint(tmp_path):
    engine = PlainEngine()
    groups = [[engine.module.weight], [engine.module.bias]]  # with weight decay and without
    engine.optimizer = torch.optim.AdamW([{"params": group} for group in groups])
    engine.step()
    train = {
        "optimizer": "adamw",
        "weight_decay": 0.1,
        "head_lr_scale": 1.0,
        "betas": [0.9, 0.98],
        "eps": 1e-6,
    }
    state = {"step": 1, "config": {"train": train}}
    checkpoint = store.save(tmp_path / "run" / "checkpoints", engine, state, keep=1)
    whole = state_of(export_universal(checkpoint, tmp_path / "whole"))
    weights = torch.load(tmp_path / "whole" / "global_step1_universal" / "zero" / "weight" / "fp32.pt")
    assert weights["param"].equal(engine.module.weight)

    def act(folder: Path) -> None:
        if not (folder / "out").exists():  # it refuses to replace one
            export_universal(checkpoint, folder / "out")

    def find(folder: Path) -> str:
        if not (folder / "out").exists():
            return "old"
        assert state_of(folder / "out") == whole
        return "new"

    cases = require_all(Subject(act, find, errors=(UserError,)), tmp_path / "cases", least=40, every=16)
    assert cases.found == {"old", "new"}
