"""Train a few steps of each case on a device that is none, and write where its host waited for it.

Run as `python waits_worker.py OUT.json STAGE CASE,CASE... DROPOUT LOG_EVERY`. A case `kept NAME` keeps the
frozen encoder's vectors.
"""

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pretrain.common.environment  # noqa: F401  isort: skip
import numpy as np
import torch
import torch.distributed as dist
from exactness_cases import N, make_batch, share
from exactness_worker import build
from pretended_device import PretendedDevice

from pretrain.common.shutdown import NONE
from pretrain.data.ledger import begin_ledger
from pretrain.run import TrainingRun
from pretrain.start.checkpoints import Checkpoints
from pretrain.step.engine import build_engine, start_processes
from pretrain.step.progress import Progress
from pretrain.telemetry.run import Telemetry
from pretrain.watch.deadline import Watchdog

FIRST, LAST = 3, 5  # steps that are counted, the last one excluded; the first ones still read what was loaded


class Running:
    """Stands for `Shutdown` where nobody asks for one."""

    def requested(self) -> int:
        return NONE


class Kept:
    """Stands for `FrozenVectors` of one batch, which comes again."""

    def __init__(self) -> None:
        self.vectors: np.ndarray | None = None

    def of(self, ids, sequences, embed) -> np.ndarray:
        if self.vectors is None:
            self.vectors = embed(sequences)
        return self.vectors


def counted_steps(case: str, stage: int, dropout: float, log_every: int) -> PretendedDevice:
    """Train on the pretended device in steps FIRST to LAST - 1, four micro-batches of views each."""
    config, model = build(case.removeprefix("kept "), stage, "fp32", dropout)
    config.train.steps, config.evaluate.every, config.checkpoint.every = 100, 0, 0
    config.train.clip, config.train.log_every, config.train.global_batch = 1.0, log_every, N
    config.train.micro_batch_tokens = 64
    engine = build_engine(model, config)
    device = PretendedDevice()
    whole = make_batch(5, model.objective.masked_copies, model.objective.roles)

    def batches():
        for step in range(FIRST):
            yield share(whole, 0, 1, step)
        with device():
            for step in range(FIRST, LAST):
                yield share(whole, 0, 1, step)

    def never(*_):
        raise AssertionError("neither evaluated nor saved within these steps")

    run = TrainingRun(config, None, 100, Watchdog(Path(), None))
    run.engine, run.progress, run.checkpoints = (
        engine,
        Progress(ledger=begin_ledger(0)),
        Checkpoints(config, engine, {}),
    )
    run.data, run.spec = SimpleNamespace(train=None), None
    run.telemetry, run.shutdown = Telemetry(Path(), 100, rank=1), Running()
    run.evaluation = run.checkpoints.keep_best = never
    run.extra_metrics = lambda step: {}
    with contextlib.suppress(StopIteration):
        run.prepare_steps()
        run.whole.adds = stage <= 1  # as on a GPU
        run.whole.guide_store = Kept() if case.startswith("kept ") else None
        run.train(batches())
    engine.destroy()
    return device


def main() -> None:
    out, stage, cases = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
    dropout, log_every = float(sys.argv[4]), int(sys.argv[5])
    torch.set_num_threads(1)
    start_processes()
    report = {}
    for case in cases:
        device = counted_steps(case, stage, dropout, log_every)
        report[case] = {
            "steps": LAST - FIRST,
            "reads": device.read,
            "waits": {place: count / (LAST - FIRST) for place, count in device.waits.items()},
        }
    out.write_text(json.dumps(report, indent=1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
