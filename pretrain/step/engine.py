"""The DeepSpeed engine: its configuration, process group and start."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import nn

from pretrain.common.errors import UserError
from pretrain.common.rendezvous import join
from pretrain.common.typed_values import faults, nearest
from pretrain.config.run import Config
from pretrain.model.layer import PostNormLayer, PreNormLayer
from pretrain.step.optimizer import build_optimizer
from pretrain.step.reduction import BUCKET

_COLLECTIVE_SECONDS = 1800  # that a collective of a run may take
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
        # always written: DeepSpeed's default clips at 1.0. At ZeRO 0, and at 1 with torch's AdamW,
        # `pretrain.step.update` clips.
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


# -- DeepSpeed's own options: typos found before anything is built ---------------------
#
# DeepSpeed reads its options from a dictionary. Some sections are models that refuse unknown keys; of the
# others a key that nobody looks up is ignored. Here DeepSpeed reads a dictionary that records what is looked
# up: what was given and not looked up is unknown. So nothing here lists DeepSpeed's keys, which change.


class KeyRecorder(dict):
    """A tree of options in which every section records the keys that were looked up in it."""

    def __init__(self, tree: dict[str, Any]):
        self.looked_up: set[str] = set()
        sections = {key: KeyRecorder(value) for key, value in tree.items() if type(value) is dict}
        super().__init__(tree | sections)

    def __getitem__(self, key: str) -> Any:
        self.looked_up.add(str(key))
        return super().__getitem__(key)

    # defined, it lets `f(**section)` look up every key, and not copy the table
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def __copy__(self) -> "KeyRecorder":
        copied = KeyRecorder(dict(super().items()))
        copied.looked_up = self.looked_up
        return copied

    # these look keys up by the methods above, where dict's own read its table
    __contains__, get = Mapping.__contains__, Mapping.get  # type: ignore[assignment]
    keys, items = Mapping.keys, Mapping.items  # type: ignore[assignment]

    def unknown(self, path: str = "") -> list[tuple[str, set[str]]]:
        """Return (dotted name, keys looked up beside it) of what was given and never read.

        A section of which nothing was read was handed on whole, to a model that refuses unknown keys itself.
        """
        unknown = []
        for key, value in super().items():
            if key not in self.looked_up:
                unknown.append((path + key, self.looked_up))
            elif isinstance(value, KeyRecorder) and value.looked_up:
                unknown += value.unknown(f"{path}{key}.")
        return unknown


def check_options(options: dict[str, Any]) -> None:
    """Let DeepSpeed read its options, without building anything.

    Raises:
        UserError: a key is unknown, a value is not of its type, or the option is one that does not work here.
    """
    zero = options.get("zero_optimization", {})
    for key, value in zero.items() if isinstance(zero, dict) else ():
        offloads = value and ("offload" in key or key == "zenflow")
        if offloads and not (isinstance(value, dict) and value.get("device", "none") in (None, "none")):
            raise UserError(
                f"deepspeed.zero_optimization.{key}: offload is not supported; against memory use train.zero "
                "3 or a smaller train.micro_batch_tokens"
            )
    from deepspeed.runtime.config import DeepSpeedConfig

    tree = KeyRecorder(options)
    try:
        DeepSpeedConfig(tree)
    except ValidationError as error:
        what = faults(error, lambda key: f"unknown key {key}")
        raise UserError(f"DeepSpeed refuses the options under deepspeed, {error.title}: {what}") from None
    # DeepSpeed's own checks raise what comes to hand: assertions, ValueError, KeyError, its own
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"DeepSpeed refuses the options under deepspeed: {what}") from None
    if unknown := tree.unknown():
        texts = []
        for name, known in unknown:
            section, _, key = f"deepspeed.{name}".rpartition(".")
            texts.append(f"unknown key {section}.{key}{nearest(key, sorted(known), f'{section}.')}")
        raise UserError("; ".join(texts))


# -- the engine --------------------------------------------------------


def start_processes(patience: int = 600) -> None:
    """Join the process group that RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT describe.

    Where they are not set, this process is alone.

    Args:
        patience: seconds to wait for the other ranks to arrive and to connect.

    Raises:
        UserError: they did not all arrive; the message says who is missing, and where the ranks meet.
    """
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    if int(os.environ["WORLD_SIZE"]) == 1:
        os.environ.setdefault("MASTER_PORT", "0")  # a store of its own: any free port
    import deepspeed

    without_shared_memory_reduction()
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        join("nccl" if torch.cuda.is_available() else "gloo", patience, _COLLECTIVE_SECONDS)
    deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)


def without_shared_memory_reduction() -> None:
    """Keep DeepSpeed from loading the all-reduce that it has for inference on CPUs, which nothing here calls.

    It is compiled at its first use, and every run of several ranks leaves 66 MiB per rank in /dev/shm, which
    is memory, until the machine starts anew. To read the table, rather than set it, would run compilers for
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

    `pretrain.step.update` leaves out an update that is not finite, by itself or by DeepSpeed's step.
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
        # DeepSpeed's step at ZeRO 1 and 2 reads the gradients' norm, not finite if a gradient is not:
        # a look at every gradient would be a second wait for the device.
        engine.optimizer.check_grad_overflow = not engine.optimizer.compute_grad_norm
    return engine
