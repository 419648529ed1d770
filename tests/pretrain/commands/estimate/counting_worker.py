"""One rank of a tiny engine at ZeRO 0 to 3: what lies in memory, and what goes over the wire in a step.

Run as `python counting_worker.py OUT.json STAGES DTYPES` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
set, STAGES like 0123, DTYPES of gradients between ranks like fp32,bf16.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["DS_ACCELERATOR"] = "cpu"

from collective_counter import count_collectives

# isort: split
import torch
import torch.distributed as dist
from exactness_cases import SEED, N, make_batch, share
from exactness_worker import FakeTokenizer, engine_gradients, errors

from pretrain.config.recipe import validate_config
from pretrain.model.encoder import build_encoder
from pretrain.objectives import build_objective
from pretrain.start.estimate import architecture, measure_model
from pretrain.step.engine import build_engine, start_processes
from pretrain.step.model import SentenceModel
from pretrain.step.update import Update
from pretrain.step.whole_batch import WholeBatch

BUDGET, SMALL = 96, 1000

sent = count_collectives()


def config_of(stage: int, dtype: str = "fp32"):
    options = {"stage3_param_persistence_threshold": SMALL, "reduce_bucket_size": 1_000_000}
    return validate_config(
        {
            "train": {
                "zero": stage,
                "global_batch": N,
                "precision": "fp32",
                "micro_batch_tokens": BUDGET,
                "communication_dtype": dtype,
            },
            "data": {"lanes": N},
            "model": {
                "layers": 2,
                "hidden_size": 64,
                "heads": 2,
                "max_positions": 64,
                "pooling": "mean",
            },
            "objective": {"name": "clear", "contrastive": {"projection_layers": 0}},
            "deepspeed": {"zero_optimization": options},
        },
        "test",
    )


def bytes_of(tensors) -> int:
    """Return the bytes of the storages of tensors, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def states_of(optimizer) -> list[torch.Tensor]:
    inner = getattr(optimizer, "optimizer", optimizer)
    return [
        t for state in inner.state.values() for t in state.values() if torch.is_tensor(t) and t.numel() > 1
    ]


def weights_of(engine, stage: int) -> list[torch.Tensor]:
    parameters = list(engine.module.parameters())
    if stage == 3:
        return [p.ds_tensor for p in parameters]
    return [p.data for p in parameters]


def count(stage: int, dtype: str, gradients: dict) -> dict:
    """Return what the third step holds and sends at a stage.

    gradients: stage -> those of the first step in the first type; those of this type are held against them.
    """
    config = config_of(stage, dtype)
    torch.manual_seed(0)
    encoder = build_encoder(architecture(config), FakeTokenizer(), "mean")
    model = SentenceModel(encoder, build_objective(config, encoder), "fp32")
    engine = build_engine(model, config)
    whole, step = make_batch(0, 1, ("anchor", "positive")), WholeBatch(engine, SEED, BUDGET)
    update = Update(engine, config.train.clip)
    rank, world = dist.get_rank(), dist.get_world_size()
    found: dict = {}
    local = {}

    def first_measured(real):
        def call(*given):
            local["bytes"] = bytes_of(p.grad for p in model.parameters() if p.grad is not None)
            return real(*given)

        return call

    for holder, name in (
        (engine, "_flush_coalesced_reduction_zero12"),
        (engine, "_flush_coalesced_reduction_zero3"),
    ):
        if hasattr(holder, name):
            setattr(holder, name, first_measured(getattr(holder, name)))
    for number in range(3):
        sent.clear()
        result = step.compute(share(whole, rank, world, number))
        if number == 0:
            got = engine_gradients(engine)
            found["error"] = errors(got, gradients.setdefault(stage, got))["error"]
        optimizer = engine.optimizer
        if stage <= 1:
            reduced = 0
            updates = [master.grad for master in optimizer.single_partition_of_fp32_groups] if stage else []
            local["bytes"] = bytes_of([*(p.grad for p in model.parameters() if p.requires_grad), *updates])
        elif stage == 3:
            reduced = bytes_of([optimizer.grad_partitions_flat_buffer])
        else:
            # slices of gradients: one that crosses two ranks' shares keeps the storage of the whole
            reduced = sum(4 * t.numel() for group in optimizer.averaged_gradients.values() for t in group)
        update.apply(result.losses["total"])
    found["weights"] = bytes_of(weights_of(engine, stage))
    found["master"] = bytes_of(optimizer.single_partition_of_fp32_groups) if stage in (1, 2) else 0
    found["optimizer"] = bytes_of(states_of(optimizer))
    found["local"], found["reduced"] = local["bytes"], reduced
    found["sent"] = dict(sent)
    found["micro_batches"] = result.micro_batches
    engine.destroy()
    return found


def main() -> None:
    out, stages, dtypes = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")
    start_processes()
    gradients: dict = {}
    found = {dtype: {stage: count(int(stage), dtype, gradients) for stage in stages} for dtype in dtypes}
    if dist.get_rank() == 0:
        size = measure_model(config_of(0), FakeTokenizer(), 8, "fp32")
        out.write_text(json.dumps({"stages": found, "size": vars(size)}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
