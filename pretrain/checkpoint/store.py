"""Checkpoints: whole, by name, verified, and atomic.

A checkpoint is a folder that knows nothing of ranks and holds no pickles:

    step-00001234/
      parameters-00000.safetensors   fp32 parameters by name (tied weights once)
      exp_avg-00000.safetensors      the optimizer's moments by parameter name, one series of files a moment
      exp_avg_sq-00000.safetensors
      buffers-00000.safetensors      batch-norm statistics and the like
      state.json                     the trainer's state, step counts, loss scale, library versions
      manifest.json                  size and sha256 of every file above

It loads at any world size and ZeRO stage. Saving streams parameter by parameter (peak memory: the largest
parameter) into a hidden folder. Every file is fsynced, the folder is renamed to its name, the parent is
fsynced, and only then `latest` is replaced. So a folder with the name of a checkpoint is whole, whenever the
process dies. The hashes find what happens to it on the disk afterwards, and a resume takes the newest
checkpoint that verifies. Damaged ones are renamed (`step-00001234.damaged`), never removed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from pretrain.checkpoint.engine_state import EngineState, engine_state, parameter_shape
from pretrain.checkpoint.folder import (
    CheckpointError,
    Choice,
    choose,
    in_order,
    latest,
    locate,
    problem_with,
    read_json,
    read_state,
    read_tensors,
    tensor_names,
)
from pretrain.checkpoint.folder_writer import FolderWriter, failed_save_message, remove_superfluous
from pretrain.checkpoint.tensor_file import TensorEntry
from pretrain.common.ranks import is_rank_zero, on_rank_zero

__all__ = [
    "CheckpointError",
    "latest",
    "load",
    "problem_with",
    "read_state",
    "read_tensors",
    "resume_point",
    "save",
    "tensor_names",
]

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 2 << 30


# -- saving --------------------------------------------------------


def save(
    root: Path,
    engine,
    state: dict[str, Any],
    keep: int,
    max_file_bytes: int = MAX_FILE_BYTES,
    keep_step: int | None = None,
) -> Path:
    """Write a checkpoint of `engine` under `root`. Collective: every rank calls it, rank 0 writes.

    Args:
        root: folder of checkpoints, on a file system that all ranks see; created when missing.
        engine: a DeepSpeed engine with fp32 parameters at any ZeRO stage (or an object with `.module` and a
            torch `.optimizer`), at a step boundary.
        state: the trainer's own state, plain JSON, with "step" (int) in it; `load` gives it back.
        keep: how many checkpoints to keep, this one included. Checkpoints of later steps are renamed to
            `step-00001234.abandoned`: a resume from an earlier step has left them behind.
        max_file_bytes: tensors are spread over files of about this size.
        keep_step: a step whose checkpoint stays beside those that `keep` counts.

    Returns:
        The checkpoint's folder, root/step-00001234.

    Raises:
        CheckpointError: on every rank, when rank 0 could not write (disk full, quota, I/O error). Nothing
            half-written is left, and earlier checkpoints are as they were.
    """
    if keep < 1:
        raise CheckpointError(f"at least one checkpoint must be kept; keep is {keep}")
    view = engine_state(engine)
    writing = is_rank_zero()
    folder = Path(root) / f"step-{int(state['step']):08d}"
    error: OSError | None = None
    writer = FolderWriter(folder, max_file_bytes) if writing else None
    plan = _plan(view)
    if writer is not None:
        error = writer.attempt(lambda: writer.begin(plan))
    for kind, items in plan.items():
        if kind == "buffers" and not writing:
            continue
        for entry, tensor in items:
            whole = tensor()  # on every rank: gathering is collective, also when writing has failed
            if writer is not None and error is None:
                error = writer.attempt(lambda e=entry, t=whole: writer.write(e, t))
    if writer is not None and error is None:
        error = writer.attempt(lambda: writer.finish(_engine_json(view, engine, plan), state))
        if error is None:
            remove_superfluous(folder, keep, keep_step)

    def raise_error() -> None:
        if error is not None:
            raise CheckpointError(failed_save_message(folder, error)) from error

    on_rank_zero(raise_error)
    return folder


def _plan(view: EngineState) -> dict[str, list[tuple[TensorEntry, Any]]]:
    """Return series of files -> [(what the tensor is, how to get it whole)], the same on every rank."""
    plan: dict[str, list[tuple[TensorEntry, Any]]] = {"parameters": []}
    for name, parameter in view.named_parameters():
        shape = parameter_shape(parameter)
        plan["parameters"].append(
            (TensorEntry(name, torch.float32, shape), lambda p=parameter: view.full_parameter(p).float())
        )
        for key in view.moment_keys(parameter):
            entry = TensorEntry(name, torch.float32, shape)
            plan.setdefault(key, []).append(
                (entry, lambda p=parameter, k=key, s=shape: view.full_moment(p, k).float().reshape(s))
            )
    plan["buffers"] = [
        (TensorEntry(name, buffer.dtype, tuple(buffer.shape)), lambda b=buffer: b)
        for name, buffer in view.named_buffers()
    ]
    return plan


def _engine_json(view: EngineState, engine, plan: dict[str, list[tuple[TensorEntry, Any]]]) -> dict[str, Any]:
    scalars: dict[str, dict[str, float | int]] = {}
    for name, parameter in view.named_parameters():
        for key, number in view.scalars(parameter).items():
            scalars.setdefault(key, {})[name] = number
    scheduler: Any = getattr(engine, "lr_scheduler", None)
    return {
        "series": {kind: len(items) for kind, items in plan.items()},
        "aliases": view.aliases(),
        "hugging_face": _hugging_face_config(view.module),
        "optimizer": {
            "class": type(view.inner).__name__,
            "moments": [kind for kind in plan if kind not in ("parameters", "buffers")],
            "scalars": scalars,
            "learning_rates": [float(group["lr"]) for group in view.inner.param_groups],
        },
        "lr_scheduler": scheduler.state_dict() if hasattr(scheduler, "state_dict") else None,
        "loss_scale": [scaler for _, scaler in _loss_scalers(engine)],
        "counters": {name: int(getattr(engine, name)) for name in _COUNTERS if hasattr(engine, name)},
        "versions": _versions(),
    }


def _hugging_face_config(module: torch.nn.Module) -> dict[str, Any] | None:
    """Return the prefix of the names of transformers' model in the module, and its config; None: it has none.

    With it a checkpoint can be exported where the recipe's `model.init` no longer exists.
    """
    for prefix, part in module.named_modules():
        if hasattr(part, "save_pretrained") and hasattr(part, "config"):
            return {
                "prefix": f"{prefix}." if prefix else "",
                "config": json.loads(part.config.to_json_string(False)),
            }
    return None


_COUNTERS = ("global_steps", "global_samples", "skipped_steps")
_SCALER_FIELDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def _loss_scalers(engine) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield fp16 loss scalers (of the engine or its optimizer; torch's or DeepSpeed's) and their state."""
    for owner in (engine, engine.optimizer):
        for attribute in (
            "torch_autocast_z0_gradscaler",
            "torch_autocast_gradscaler",
            "loss_scaler",
            "grad_scaler",
        ):
            scaler = getattr(owner, attribute, None)
            if isinstance(scaler, torch.amp.GradScaler):
                yield scaler, {"attribute": attribute, **scaler.state_dict()}
            elif getattr(scaler, "dynamic", False):
                fields = {field: getattr(scaler, field) for field in _SCALER_FIELDS if hasattr(scaler, field)}
                yield scaler, {"attribute": attribute, **fields}


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for package in ("torch", "deepspeed", "transformers", "tokenizers", "safetensors"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def resume_point(root: Path) -> Choice | None:
    """Return what `choose` finds, on rank 0 for all; it raises on every rank. Collective."""
    return on_rank_zero(lambda: choose(root))


# -- loading --------------------------------------------------------


def load(path: Path, engine, verify: bool = True) -> dict[str, Any]:
    """Put a checkpoint into `engine`, at whatever world size and ZeRO stage it has. Collective.

    Parameters, moments, step counts, learning rates, loss scale and the engine's counters become exactly
    those that were saved; an engine that has never stepped gets an optimizer state first.

    Args:
        verify: hash every file first (rank 0). Pass False for a path that `resume_point` has just verified.

    Returns:
        The trainer's state as given to `save`.

    Raises:
        CheckpointError: it is damaged, or of another model: names or shapes differ, and are listed.
    """
    path = Path(path)
    if verify:
        on_rank_zero(lambda: _require_good(path))
    content = read_json(path)
    view = engine_state(engine)
    parameters = dict(view.named_parameters())
    moments = {key: locate(path, key) for key in content["optimizer"]["moments"]}
    _check_same_model(path, {name: parameter_shape(parameter) for name, parameter in parameters.items()})

    view.prepare(
        {id(p): [key for key, files in moments.items() if n in files] for n, p in parameters.items()}
    )
    with torch.no_grad():
        for name, tensor in in_order(locate(path, "parameters"), list(parameters)):
            view.set_parameter(parameters[name], tensor)
        for key, files in moments.items():
            for name, tensor in in_order(files, [name for name in parameters if name in files]):
                if id(parameters[name]) in view.holders:
                    view.set_moment(parameters[name], key, tensor)
        saved_buffers = locate(path, "buffers")
        buffers = dict(view.named_buffers())
        for name, tensor in in_order(saved_buffers, [name for name in buffers if name in saved_buffers]):
            buffers[name].copy_(tensor)
    numbers: dict[int, dict[str, float | int]] = {}
    for key, by_name in content["optimizer"]["scalars"].items():
        for name, number in by_name.items():
            numbers.setdefault(id(parameters[name]), {})[key] = number
    view.set_scalars(numbers)
    view.finish()
    _restore_engine(engine, view, content)
    return content["state"]


def _require_good(path: Path) -> None:
    if (problem := problem_with(path)) is not None:
        raise CheckpointError(f"checkpoint {path} {problem}. {problem.remedy}.")


def _check_same_model(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    saved: dict[str, tuple[int, ...]] = {}
    for name, file in locate(path, "parameters").items():
        with safe_open(file, framework="pt") as tensors:
            saved[name] = tuple(tensors.get_slice(name).get_shape())
    differences = [f"{name} is missing in the checkpoint" for name in shapes if name not in saved]
    differences += [f"{name} is not in the model" for name in saved if name not in shapes]
    differences += [
        f"{name} is {list(saved[name])} in the checkpoint and {list(shape)} in the model"
        for name, shape in shapes.items()
        if name in saved and saved[name] != shape
    ]
    if differences:
        shown = "; ".join(differences[:8]) + (
            f"; and {len(differences) - 8} more" if len(differences) > 8 else ""
        )
        raise CheckpointError(
            f"checkpoint {path} is of another model than the config builds: {shown}. Resume with the run "
            "folder's own config.yaml, or start a new run folder."
        )


def _restore_engine(engine, view: EngineState, content: dict[str, Any]) -> None:
    rates = content["optimizer"]["learning_rates"]
    if len(rates) == len(view.inner.param_groups):
        for group, rate in zip(view.inner.param_groups, rates, strict=True):
            group["lr"] = rate
    scheduler: Any = getattr(engine, "lr_scheduler", None)
    if content["lr_scheduler"] is not None and hasattr(scheduler, "load_state_dict"):
        scheduler.load_state_dict(content["lr_scheduler"])
    saved_scalers = content["loss_scale"]
    for (scaler, _), saved in zip(list(_loss_scalers(engine)), saved_scalers, strict=False):
        values = {key: value for key, value in saved.items() if key != "attribute"}
        if isinstance(scaler, torch.amp.GradScaler) and "scale" in values:
            scaler.load_state_dict(values)
        elif not isinstance(scaler, torch.amp.GradScaler) and "cur_scale" in values:
            for key, value in values.items():
                setattr(scaler, key, value)
    for name, value in content["counters"].items():
        if hasattr(engine, name):
            setattr(engine, name, value)
