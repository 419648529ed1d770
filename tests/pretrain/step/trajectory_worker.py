"""One rank of a training of some steps, whose schedules are held against a plain float64 loop.

Run as `python trajectory_worker.py OUT.json STAGE CASE` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
set. The batch grows, the rate of masking falls, and the learning rate warms up, stays and decays (or the
optimizer is Muon). The reference takes batches of the same size, masked at the same rate, computes the
gradient of the whole batch on one device in float64, and steps with torch's own optimizer at learning rates
that are written out here.
"""

import json
import math
import os
import sys
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import deepspeed
import numpy as np
import torch
import torch.distributed as dist

from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from pretrain.data.masking import Masking, mask_tokens
from pretrain.model.layer import layer_matrices
from pretrain.step.engine import build_engine, start_processes
from pretrain.step.optimizer import learning_rate
from pretrain.step.update import Update
from pretrain.step.whole_batch import WholeBatch

# isort: split
import exactness_worker
from exactness_cases import CASES, CLS, MASK, PAD, SEED, SEP, VOCABULARY, make_batch, share

RATE, CLIP, STEPS = 2e-3, 0.5, 8
WSD = {"schedule": "wsd", "decay_steps": 3, "decay_shape": "1-sqrt"}
GROWING = {"batch_start": 4, "batch_warmup_steps": 6}
COMMON = {"steps": STEPS, "warmup_steps": 2, "lr": RATE, "clip": CLIP, "eps": 1e-4}
CASES |= {
    "schedules": {
        "objective": {"mlm": {"rate": 0.6, "later_rates": {2: 0.3, 5: 0.1}}},
        "data": {"lanes": 4},
        "train": COMMON | WSD | GROWING,
    },
    "schedules_muon": {
        "objective": {"mlm": {"rate": 0.6, "later_rates": {2: 0.3, 6: 0.1}, "rate_change": "linear"}},
        "data": {"lanes": 4},
        "train": COMMON | GROWING | {"optimizer": "muon"},
    },
}
# of each step, by hand
SIZES = [4, 4, 8, 8, 12, 12, 16, 16]
MASKED = {
    "schedules": [0.6, 0.6, 0.3, 0.3, 0.3, 0.1, 0.1, 0.1],
    "schedules_muon": [0.6, 0.45, 0.3, 0.25, 0.2, 0.15, 0.1, 0.1],
}
RATES = {
    "schedules": [RATE / 2, *[RATE] * 5, RATE * (1 - math.sqrt(1 / 3)), RATE * (1 - math.sqrt(2 / 3))],
    "schedules_muon": [RATE / 2, RATE, *(RATE * (1 - done / 6) for done in range(6))],
}


def batch_of(step: int, size: int, rate: float, roles: tuple[str, ...]) -> dict:
    """Return the global batch of a step: `size` sequences, masked at `rate`."""
    whole = make_batch(step, 1, roles)
    for part in ("originals", "labels"):
        whole[part] = whole[part][:size]
    for part in ("views", "unprompted", "identities", "present"):
        whole[part] = {role: rows[:size] for role, rows in whole[part].items()}
    original = Ragged.from_sequences(whole["originals"])
    keys = sequence_keys(SEED, 0, np.arange(size, dtype=np.uint64), step, "mask")
    special = np.arange(VOCABULARY) < 5
    words = np.ones(VOCABULARY, bool), np.where(special, 0, 1).astype(np.uint8)
    vocabulary = Vocabulary(VOCABULARY, PAD, CLS, SEP, MASK, -1, special, *words)
    masked = mask_tokens(original, keys, vocabulary, np.full(size, rate))
    own = np.searchsorted(original.offsets, masked.positions, side="right") - 1
    positions = [(masked.positions[own == i] - original.offsets[i]).tolist() for i in range(size)]
    whole["masked"] = [([masked.batch[i].tolist() for i in range(size)], positions)]
    return whole


def reference_optimizer(config, model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Return torch's own optimizers of float64 parameters, one or, with Muon, two."""
    settings = config.train
    muon = layer_matrices(model) if settings.optimizer == "muon" else set()
    of_adamw = [p for p in model.parameters() if p.requires_grad and id(p) not in muon]
    groups = [
        {"params": [p for p in of_adamw if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in of_adamw if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizers = [torch.optim.AdamW(groups, betas=settings.betas, eps=settings.eps)]
    if muon:
        matrices = [p for p in model.parameters() if id(p) in muon]
        optimizers.append(
            torch.optim.Muon(matrices, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw")
        )
    return optimizers


def main() -> None:
    out, stage, case = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    start_processes()
    rank, world = dist.get_rank(), dist.get_world_size()
    config, model = exactness_worker.build(case, stage, "fp32", 0.0)
    _, plain = exactness_worker.build(case, stage, "fp32", 0.0)
    plain.double()
    begun = {name: p.detach().clone() for name, p in plain.named_parameters()}
    engine = build_engine(model, config)
    whole_batch = WholeBatch(engine, SEED, 150, lanes=config.data.lanes)
    update, optimizers = Update(engine, CLIP), reference_optimizer(config, plain)
    masking, rows = Masking.of(config.objective), []
    for step in range(STEPS):
        size = config.batch_sizes.at_step(step)
        rate = float(masking.rate_at(np.array([step]))[0])
        whole = batch_of(step, size, rate, model.objective.roles)
        for group in engine.optimizer.param_groups:
            group["lr"] = learning_rate(config.train, step) * group["lr_scale"]
        result = whole_batch.compute(share(whole, rank, world, step))
        norm, applied = update.apply(result.losses["total"])

        expected = batch_of(step, SIZES[step], MASKED[case][step], model.objective.roles)
        losses, gradients, _ = exactness_worker.reference_gradients(
            plain, expected, config, world, tuple(model.objective.terms), False
        )
        for name, parameter in plain.named_parameters():
            parameter.grad = gradients[name].reshape(parameter.shape) if name in gradients else None
        expected_norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), CLIP)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = RATES[case][step]
            optimizer.step()
        moved = {name: p.detach() - begun[name] for name, p in plain.named_parameters()}
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=stage == 3):
            got = {name: p.detach().double() - begun[name] for name, p in engine.module.named_parameters()}
        rows.append(
            {
                "applied": bool(applied),
                "norm": float(norm),
                "expected_norm": float(expected_norm),
                "loss": float(result.losses["total"]),
                "expected_loss": sum(losses.values()),
                "micro_batches": result.micro_batches,
                **exactness_worker.errors(got, moved),
            }
        )
    engine.destroy()
    if rank == 0:
        out.write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
