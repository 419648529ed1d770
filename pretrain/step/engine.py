"""The DeepSpeed engine: its configuration, process group and start."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pretrain.common.errors import UserError
from pretrain.common.rendezvous import join
from pretrain.config.run import Config
from pretrain.model.layer import PostNormLayer, PreNormLayer
from pretrain.step.engine_options import check_options
from pretrain.step.optimizer import build_optimizer
from pretrain.step.reduction import BUCKET

# DeepSpeed keys that our own tree decides, with the key that does.
OURS = {
    "train_batch_size": "train.global_batch",
    "train_micro_batch_size_per_gpu": "train.micro_batch_tokens",
    "gradient_accumulation_steps": "train.micro_batch_tokens",
    "gradient_clipping": "train.clip",
    "optimizer": "train.optimizer",
    "scheduler": "train.schedule",
    "bf16": "train.precision",
    "fp16": "train.precision",
    "torch_autocast": "train.precision",
    "amp": "train.precision",
    "managed_gradient_accumulation": "nothing: the loop owns accumulation",
    "communication_data_type": "train.communication_dtype",
    "zero_optimization.stage": "train.zero",
}
# What DeepSpeed may be told of its reduction where gradients are reduced by ours: what changes nothing.
NEUTRAL = {"prescale_gradients": False, "gradient_predivide_factor": 1.0, "gradient_allreduce_op": "mean"}


def deepspeed_config(config: Config, world_size: int) -> dict[str, Any]:
    """Return the engine's JSON: ours, with the recipe's `deepspeed:` merged over it.

    Raises:
        UserError: `deepspeed:` sets a key that contradicts the tree (both are named), or that DeepSpeed does
            not have.
    """
    ours: dict[str, Any] = {
        # in DeepSpeed's own units; the loop cuts micro-batches by tokens itself
        "train_batch_size": world_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # always written: DeepSpeed's default clips at 1.0; at ZeRO 0 `pretrain.step.update` clips
        "gradient_clipping": config.train.clip if config.train.zero else 0.0,
        "zero_optimization": {
            "stage": config.train.zero,
            "overlap_comm": False,
            "contiguous_gradients": True,
        },
        "communication_data_type": config.train.communication_dtype,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,  # telemetry is ours
        # it waits for the device at every forward pass and every step
        "timers": {"throughput": {"enabled": False}},
    }
    if config.train.zero <= 1:
        ours["zero_optimization"]["reduce_bucket_size"] = BUCKET
    _merge(ours, config.deepspeed, "")
    check_options(ours)
    if config.train.zero <= 1:
        for key, neutral in NEUTRAL.items():
            if ours.get(key, neutral) != neutral:
                what = f"deepspeed.{key}={ours[key]!r} would do nothing with train.zero={config.train.zero}"
                raise UserError(f"{what}: pretrain/step/reduction.py averages gradients; drop it")
    return ours


def _merge(ours: dict[str, Any], theirs: dict[str, Any], prefix: str) -> None:
    for key, value in theirs.items():
        name = prefix + key
        if name in OURS and ours.get(key) != value:
            raise UserError(f"deepspeed.{name}={value!r}: {OURS[name]} decides it; set that instead")
        if isinstance(value, dict) and isinstance(ours.get(key), dict):
            _merge(ours[key], value, f"{name}.")
        else:
            ours[key] = value


def start_processes(patience: int = 600, seconds: int = 1800) -> None:
    """Join the process group that RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT describe.

    Where they are not set, this process is alone.

    Args:
        patience: seconds to wait for the other ranks to arrive and to connect.
        seconds: that a collective of the run may take.

    Raises:
        UserError: they did not all arrive; the message says who is missing, and where the ranks meet.
    """
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("LOCAL_RANK", "0")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if int(os.environ["WORLD_SIZE"]) == 1:
        os.environ.setdefault("MASTER_PORT", "0")  # a store of its own: any free port
    import deepspeed

    without_shared_memory_reduction()
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        join("nccl" if torch.cuda.is_available() else "gloo", patience, seconds)
    deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)


def without_shared_memory_reduction() -> None:
    """Keep DeepSpeed from loading the all-reduce that it has for inference on CPUs, which nothing here calls.

    It is compiled at its first use, and every run of several ranks leaves 66 MiB a rank in /dev/shm, which is
    memory, until the machine starts anew. To read the table, rather than set it, would run compilers for
    every operator that DeepSpeed has.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}


def device() -> torch.device:
    """Return this process's device."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cpu")


def build_engine(module: nn.Module, config: Config):
    """Wrap `module` in a DeepSpeed engine with our optimizer.

    An update that is not finite is left out, at ZeRO 0 by `pretrain.step.update`, else by `engine.step()`.
    """
    import deepspeed
    from deepspeed.utils import set_z3_leaf_modules

    module.to(device())
    if config.train.zero == 3:
        # They read their submodules' weights themselves, past the hooks that would gather them.
        set_z3_leaf_modules(module, [PostNormLayer, PreNormLayer], raise_if_not_found=False)
    optimizer = build_optimizer(module, config.train, device())
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        dist_init_required=False,
        config=deepspeed_config(config, dist.get_world_size()),
    )
    if hasattr(engine.optimizer, "check_grad_overflow"):
        # ZeRO 1 and 2 read their gradients' norm in every step, which is not finite where a gradient is not:
        # a look at every gradient would be a second wait for the device.
        engine.optimizer.check_grad_overflow = not engine.optimizer.compute_grad_norm
    return engine
