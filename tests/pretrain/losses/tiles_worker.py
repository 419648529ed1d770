"""One rank of a ZeRO-3 run whose ranks need different numbers of vocabulary tiles: the summed gradient is
printed.

Run as `python tiles_worker.py OUT.pt` with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set.
"""

import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_grad
from encoder_helpers import make_encoder, random_ids

from pretrain.losses import mlm
from pretrain.losses.mlm import masked_lm_loss
from pretrain.step.engine import without_shared_memory_reduction

MASKED = (3, 70)  # masked positions of each rank: on CPU 64 and 128 rows, 4 and 8 tiles of 16


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = make_encoder("bert")

    def forward(self, rank: int) -> torch.Tensor:
        lengths = torch.tensor([40, 39 + rank])
        ids = random_ids(lengths, seed=rank)
        hidden = self.encoder.states(ids, lengths, None).last
        positions = torch.arange(MASKED[rank])
        return masked_lm_loss(self.encoder, hidden, positions, ids[positions])


def main() -> None:
    mlm.TILE_BYTES["cpu"] = 4 * 16 * Model().encoder.vocab_size
    without_shared_memory_reduction()
    deepspeed.init_distributed("gloo", verbose=False)
    rank = dist.get_rank()
    engine, *_ = deepspeed.initialize(
        model=(model := Model()),
        optimizer=torch.optim.AdamW(model.parameters()),
        dist_init_required=False,
        config={
            "train_batch_size": 2,
            # Nothing may stay gathered: so small a model otherwise would, and no tile would need a
            # collective.
            "zero_optimization": {
                "stage": 3,
                "stage3_param_persistence_threshold": 0,
                "stage3_max_live_parameters": 0,
                "stage3_max_reuse_distance": 0,
                "stage3_prefetch_bucket_size": 0,
            },
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 0.0,
        },
    )
    engine.backward(engine(rank) * dist.get_world_size())
    gradients = {name: safe_get_full_grad(p).clone() for name, p in engine.module.named_parameters()}
    if rank == 0:
        torch.save(gradients, sys.argv[1])
    dist.barrier()
    dist.destroy_process_group()  # gloo's threads, alive at the interpreter's end, may abort the process


if __name__ == "__main__":
    main()
