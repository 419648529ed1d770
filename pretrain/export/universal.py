"""Write a checkpoint in DeepSpeed's universal format, for a program that trains with DeepSpeed's own.

DeepSpeed loads it with {"checkpoint": {"load_universal": true}} and `engine.load_checkpoint(FOLDER)`, at ZeRO
1, 2 or 3 and on any number of ranks. The layout is that of deepspeed/checkpoint/ds_to_universal.py:

    latest_universal                       the name of the folder below
    global_step1234_universal/
      zero/PARAMETER/fp32.pt               {"param": float32, of the parameter's shape}
      zero/PARAMETER/exp_avg.pt            its moments, in the same way
      zero/PARAMETER/exp_avg_sq.pt
      zero/PARAMETER/step.pt               the steps that the optimizer has done
      zero/optimizer_state.pt              hyperparameters of the parameter groups
      mp_rank_00_model_states.pt           counters, weights and buffers; "clear": our state.json's state
      zero_pp_rank_0_mp_rank_00_...pt      the same, by the name that ZeRO 3 looks for
"""

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pretrain.checkpoint.folder import CheckpointError, locate, read_json, read_tensors
from pretrain.common.errors import UserError
from pretrain.common.files import create, discard, make_folder, put_in_place, remove_tree, write_durably
from pretrain.export.folder import find_source, is_export
from pretrain.model.modules import grouped

MOMENTS = ("exp_avg", "exp_avg_sq")
_MODEL_STATES = "mp_rank_00_model_states.pt"


def export_universal(source: str | Path, out: str | Path | None = None, step: int | str = "latest") -> Path:
    """Write a checkpoint of AdamW as DeepSpeed's universal checkpoint.

    Args:
        source: a run folder, its checkpoints/ folder, or one checkpoint's folder.
        out: the folder to write, new or empty; None: RUN/deepspeed-universal.
        step: which checkpoint of a run: "latest" (the newest that verifies), or a step number.

    Returns:
        The folder written.

    Raises:
        UserError: there is no such checkpoint, it is damaged, its optimizer is not AdamW or has not stepped
            yet, or `out` holds something.
    """
    if is_export(Path(source)):
        raise UserError(
            f"{source} is an export, without the optimizer's state: give the folder of its run, or of a "
            "checkpoint"
        )
    run, checkpoint = find_source(Path(source), str(step))
    if is_export(checkpoint):
        raise UserError(
            f"{checkpoint} is an export, without the optimizer's state: choose a checkpoint by --step latest "
            "or by a number"
        )
    content = read_json(checkpoint)
    _require_adamw(checkpoint, content)
    out = Path(out) if out is not None else run / "deepspeed-universal"
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} is not empty: name another folder with --out, or remove it")
    hidden = out.with_name(f".{out.name}.tmp")
    try:
        remove_tree(hidden)
        make_folder(hidden)
        try:
            _write(checkpoint, content, hidden)
            put_in_place(hidden, out)
        finally:
            discard(hidden)
    except (OSError, CheckpointError) as error:
        if not checkpoint.exists():
            raise UserError(
                f"{checkpoint} is gone: the run that is training in {run} has replaced it by a newer one "
                "meanwhile. Give the same command again."
            ) from error
        if isinstance(error, CheckpointError):
            raise
        raise UserError(
            f"cannot write {out}: {error.strerror or error}. Free some space, or name another folder with "
            "--out."
        ) from error
    return out


def _require_adamw(checkpoint: Path, content: dict[str, Any]) -> None:
    """Refuse what DeepSpeed could not continue: it flattens parameters, and has no Muon with AdamW."""
    chosen = content["state"]["config"]["train"]["optimizer"]
    if chosen != "adamw":
        raise UserError(
            f"{checkpoint} is of train.optimizer {chosen}: DeepSpeed's universal checkpoints hold AdamW's "
            "state alone. Export its encoder instead, without --format."
        )
    if sorted(content["optimizer"]["moments"]) != sorted(MOMENTS):
        raise UserError(
            f"{checkpoint} has no optimizer state: no step is done yet. Choose a later checkpoint with "
            "--step."
        )


def _write(checkpoint: Path, content: dict[str, Any], out: Path) -> None:
    folder = out / f"global_step{content['state']['step']}_universal"
    zero = folder / "zero"
    weights: dict[str, torch.Tensor] = {}
    steps = content["optimizer"]["scalars"]["step"]
    # Of a parameter that never had a gradient there is no state at ZeRO 0. At ZeRO 1 to 3, for which this is,
    # it lies flat among others: zeros, and their count.
    most = max(steps.values())
    for name, tensor in read_tensors(checkpoint, "parameters"):
        weights[name] = tensor
        make_folder(zero / name)
        _save({"param": tensor}, zero / name / "fp32.pt")
        _save(_count(content, most), zero / name / "step.pt")
    for moment in MOMENTS:
        lacking = weights.keys() - locate(checkpoint, moment).keys()
        for name in lacking:
            _save({"param": torch.zeros_like(weights[name])}, zero / name / f"{moment}.pt")
        for name, tensor in read_tensors(checkpoint, moment):
            _save({"param": tensor}, zero / name / f"{moment}.pt")
    _save(_optimizer_state(checkpoint, content, weights, most), zero / "optimizer_state.pt")

    module = weights | dict(read_tensors(checkpoint, "buffers"))
    module |= {alias: weights[name] for alias, name in content["aliases"].items()}
    counters = content["counters"]
    states = {
        "module": module,
        "ds_version": version("deepspeed"),
        "dp_world_size": 1,  # not what it was: parts belong to no rank any more
        "mp_world_size": 1,
        "global_steps": counters.get("global_steps", content["state"]["step"]),
        "global_samples": counters.get("global_samples", 0),
        "skipped_steps": counters.get("skipped_steps", 0),
        "lr_scheduler": None,
        "clear": content["state"],
    }
    _save(states, folder / _MODEL_STATES)
    os.link(folder / _MODEL_STATES, folder / f"zero_pp_rank_0_{_MODEL_STATES}")
    write_durably(out / "latest_universal", folder.name.encode())


def _save(value: Any, path: Path) -> None:
    """Save what torch saves; a disk that is full is an OSError, as it is not where torch opens the file."""
    with create(path) as file:
        torch.save(value, file)


def _count(content: dict[str, Any], steps: float) -> torch.Tensor | int:
    """Return a count of steps as the optimizer keeps it: torch's as a tensor, those of CUDA as a number."""
    return int(steps) if content["optimizer"]["class"] == "FusedAdam" else torch.tensor(float(steps))


def _optimizer_state(
    checkpoint: Path, content: dict[str, Any], weights: dict[str, torch.Tensor], steps: float
) -> dict[str, Any]:
    """Return the content of optimizer_state.pt: the groups as `parameter_groups` makes them.

    ZeRO 1 and 2 read `param_groups`, one for each group of the engine's optimizer. ZeRO 3 reads the first
    group, and the first state's count, from `optimizer_state_dict`.
    """
    train = content["state"]["config"]["train"]
    groups = grouped(weights, train["weight_decay"], train["head_lr_scale"])
    rates = content["optimizer"]["learning_rates"]
    if len(groups) != len(rates):
        raise UserError(
            f"{checkpoint} has {len(rates)} groups of parameters, and its recipe makes {len(groups)}: it was "
            "not written by training of this program, so its groups are not known"
        )
    numbers = iter(range(len(weights)))
    described = [
        group
        | {"params": [next(numbers) for _ in group["params"]], "lr": rate}
        | {"betas": tuple(train["betas"]), "eps": train["eps"]}
        for group, rate in zip(groups, rates, strict=True)
    ]
    return {
        "ds_version": version("deepspeed"),
        "param_groups": described,
        "optimizer_state_dict": {"state": {0: {"step": _count(content, steps)}}, "param_groups": described},
    }
