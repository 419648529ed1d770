"""Checkpoints: whole, by name, verified, and atomic.

A checkpoint is a folder that knows nothing of ranks and holds no pickles:

    step-00001234/
      parameters-00000.safetensors   fp32 parameters by name (tied weights once)
      exp_avg-00000.safetensors      the optimizer's moments by parameter name, one series of files a moment
      exp_avg_sq-00000.safetensors
      buffers-00000.safetensors      batch-norm statistics and the like
      state.json                     the trainer's state, step counts, loss scale, library versions
      manifest.json                  size and sha256 of every file above

It loads at any world size and ZeRO stage. All ranks save together (`pretrain.checkpoint.saver`), each some of
the tensors, into a hidden folder; their number decides how many files a series has, which no reader needs to
know. Every file is fsynced, the folder is renamed to its name, the parent is fsynced, and only then `latest`
is replaced. So a folder with the name of a checkpoint is whole, whenever a process dies. The hashes find what
happens to it on the disk afterwards, and a resume takes the newest checkpoint that verifies. Damaged ones are
renamed (`step-00001234.damaged`), never removed.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from pretrain.checkpoint.engine_state import engine_state, parameter_shape
from pretrain.checkpoint.folder import (
    CheckpointError,
    Choice,
    TensorReader,
    choose,
    latest,
    locate,
    problem_with,
    read_json,
    read_state,
    read_tensors,
    tensor_names,
)
from pretrain.common.ranks import on_rank_zero

__all__ = [
    "CheckpointError",
    "latest",
    "load",
    "problem_with",
    "read_state",
    "read_tensors",
    "resume_point",
    "tensor_names",
]


def resume_point(root: Path) -> Choice | None:
    """Return what `choose` finds, on rank 0 for all; it raises on every rank. Collective."""
    return on_rank_zero(lambda: choose(root))


def load(path: Path, engine) -> dict[str, Any]:
    """Put a checkpoint into `engine`, at whatever world size and ZeRO stage it has. Collective.

    Each rank reads from the disk only what its stage keeps on it.

    Parameters, moments, step counts, learning rates, loss scale and the engine's counters become exactly
    those that were saved; an engine that has never stepped gets an optimizer state first.

    Args:
        path: of one that has been verified, as by `resume_point`: no hash is compared here.

    Returns:
        The trainer's state as given to `save`.

    Raises:
        CheckpointError: it is of another model: names or shapes differ, and are listed.
    """
    path = Path(path)
    content = read_json(path)
    view = engine_state(engine)
    parameters = dict(view.named_parameters())
    moments = content["optimizer"]["moments"]
    files = {series: locate(path, series) for series in ("parameters", "buffers", *moments)}
    _check_same_model(path, {name: parameter_shape(parameter) for name, parameter in parameters.items()})

    view.prepare({id(p): [key for key in moments if n in files[key]] for n, p in parameters.items()})
    reader = TensorReader()
    with torch.no_grad():
        for name, parameter in parameters.items():
            wanted = view.wanted(parameter, None)
            view.set(parameter, None, reader.elements(files["parameters"][name], name, wanted))
            if id(parameter) in view.holders:
                for key in moments:
                    if name in files[key]:
                        wanted = view.wanted(parameter, key)
                        view.set(parameter, key, reader.elements(files[key][name], name, wanted))
        for name, buffer in view.named_buffers():
            if name in files["buffers"]:
                every = slice(0, buffer.numel())
                buffer.copy_(reader.elements(files["buffers"][name], name, every).reshape(buffer.shape))
    numbers: dict[int, dict[str, float | int]] = {}
    for key, by_name in content["optimizer"]["scalars"].items():
        for name, number in by_name.items():
            numbers.setdefault(id(parameters[name]), {})[key] = number
    view.set_scalars(numbers)
    view.finish()
    rates = content["optimizer"]["learning_rates"]
    if len(rates) == len(view.inner.param_groups):
        for group, rate in zip(view.inner.param_groups, rates, strict=True):
            group["lr"] = rate
    for name, value in content["counters"].items():
        if hasattr(engine, name):
            setattr(engine, name, value)
    return content["state"]


def _check_same_model(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    saved: dict[str, tuple[int, ...]] = {}
    for name, file in locate(path, "parameters").items():
        with safe_open(file, framework="pt") as tensors:
            saved[name] = tuple(tensors.get_slice(name).get_shape())
    differences = [
        f"{name} is {saved.get(name, 'not')} in the checkpoint, {shapes.get(name, 'not')} in the model"
        for name in {**shapes, **saved}
        if saved.get(name) != shapes.get(name)
    ]
    if differences:
        more = f"; and {len(differences) - 8} more" if len(differences) > 8 else ""
        raise CheckpointError(
            f"{path} is of another model than the config builds: {'; '.join(differences[:8])}{more}"
            ". Resume with the run folder's own config.yaml, or start a new run folder"
        )
