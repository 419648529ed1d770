"""One rank of the tests of DeepSpeed's universal checkpoints: `python universal_worker.py SCENARIO.json cpu`.

A scenario is as `checkpoint_worker` describes it.
"""

from pathlib import Path

import checkpoint_worker
import torch
from checkpoint_worker import bits_differ, build, resume, snapshot, train

from pretrain.checkpoint import store

TRAIN = {
    "optimizer": "adamw",
    "weight_decay": 0.1,
    "head_lr_scale": 1.0,
    "betas": [0.9, 0.98],
    "eps": 1e-6,
}
"""What a run's recipe says of the optimizer that `build` makes."""


def save_ours(root: Path, stages: list[int], out: dict) -> None:
    """Three steps, and a checkpoint of ours, at each of the stages."""
    for stage in stages:
        engine = build(stage)
        train(engine, 0, 3)
        store.save(root / str(stage), engine, {"step": 3, "config": {"train": TRAIN}}, keep=1)


def load_theirs(root: Path, saved: list[int], stages: list[int], out: dict) -> None:
    """DeepSpeed loads what was exported: its tensors, and its next step, beside an engine that we resume."""
    for before in saved:
        for stage in stages:
            ours = resume(store.latest(root / str(before)), stage, steps=1)
            engine = build(stage, seed=99, settings={"checkpoint": {"load_universal": True}})
            path, client = engine.load_checkpoint(str(root / f"universal{before}"))
            whole = torch.load(path, weights_only=False)["module"]
            buffers = dict(engine.module.named_buffers())
            with torch.no_grad():
                for name in buffers.keys() & whole.keys():  # DeepSpeed restores none of them
                    buffers[name].copy_(whole[name])
            frozen = {name for name, p in engine.module.named_parameters() if not p.requires_grad}
            at_load = snapshot(engine)
            decays = [group["weight_decay"] for group in engine.optimizer.param_groups]
            assert decays == ([0.1, 0.1] if stage == 3 else [0.1, 0.0])
            if stage == 3:  # it sets the first group's for all, and one count of steps: as docs/runs.md says
                engine.optimizer.param_groups[1]["weight_decay"] = 0.0
                for state in engine.optimizer.optimizer.state.values():
                    state["step"] = state["step"].clone()
            counts = [engine.global_steps, engine.skipped_steps]
            train(engine, 3, 4)
            changed = bits_differ(ours["at_load"], at_load)
            after = bits_differ(ours["at_end"], snapshot(engine))
            out[f"{before} -> {stage}"] = {
                "load": [name for name in changed if name.partition("/")[2] not in frozen],
                "step": [name for name in after if name.partition("/")[2] not in frozen],
                "client": client["clear"]["step"],
                "counts": counts,
            }


if __name__ == "__main__":
    vars(checkpoint_worker).update(save_ours=save_ours, load_theirs=load_theirs)
    checkpoint_worker.main()
