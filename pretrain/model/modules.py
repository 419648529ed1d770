"""What training, evaluation and fine-tuning need of any torch module."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, linalg, nn


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Turn dropout off inside the block, and restore the mode after it."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def unsound(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the name of the first tensor whose norm is not a finite float32 number; "": there is none."""
    return next((name for name, values in tensors if not linalg.vector_norm(values.float()).isfinite()), "")


def parameter_groups(module: nn.Module, weight_decay: float, head_lr_scale: float = 1.0) -> list[dict]:
    """Group a module's trained parameters for an optimizer, as `grouped` does."""
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    return grouped(trained, weight_decay, head_lr_scale)


def grouped(
    parameters: Mapping[str, Tensor], weight_decay: float, head_lr_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Group parameters by their names and dimensions.

    Matrices have weight decay; biases, norms and other vectors have none. Heads form groups of their own
    if their learning rate differs: `lr_scale` is the factor on the learning rate of a group. Heads are
    what `module.objective` owns, but for a second encoder (DiffCSE's discriminator).
    """
    groups = []
    for heads in (False, True):
        scale = head_lr_scale if heads else 1.0
        chosen = [
            p
            for name, p in parameters.items()
            if (name.startswith("objective.") and ".discriminator.lm." not in name and head_lr_scale != 1)
            == heads
        ]
        groups += [
            {"params": [p for p in chosen if p.ndim >= 2], "weight_decay": weight_decay, "lr_scale": scale},
            {"params": [p for p in chosen if p.ndim < 2], "weight_decay": 0.0, "lr_scale": scale},
        ]
    return [group for group in groups if group["params"]]
