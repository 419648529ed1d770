"""The run folder: who may write into it, and what a dry run leaves in it and says."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pretrain.common.errors import UserError
from pretrain.common.files import discard, make_folder, remove_if_empty
from pretrain.common.folder_lock import LOCK, folder_lock
from pretrain.common.ranks import on_rank_zero
from pretrain.config.run import Config
from pretrain.telemetry.formats import format_count, format_seconds


def dry_run_config(config: Config) -> Config:
    """Return the same run in a folder of its own, with an evaluation and a checkpoint at its second step."""
    tree = config.model_dump(exclude_unset=True)  # a key that was not given must not look as if it were
    whole_batch = {"batch_warmup_steps": 0, "batch_start": None}
    strict: dict[str, Any] = {"jump": (), "skip": 0, "rollbacks": 0}  # of two steps, none may be left out
    few = {name: min(200, getattr(config.evaluate, name)) for name in ("heldout_sequences", "partners")}
    tree["track"] = [name for name in config.track or () if name == "tensorboard"]  # it is no run to compare
    tree["folder"] = config.run_folder.with_name(config.run_folder.name + ".dry-run")
    tree["checkpoint"] = tree.get("checkpoint", {}) | {"resume": "never", "every": 2}
    tree["evaluate"] = tree.get("evaluate", {}) | {"every": 2} | few
    tree["train"] = tree.get("train", {}) | {"log_every": 1} | whole_batch
    tree["train"]["faults"] = tree["train"].get("faults", {}) | strict
    at_once = {"start_step": 0, "warmup_steps": 0}  # try the whole step, not its first phase
    tree["objective"] = tree.get("objective", {}) | at_once
    return Config.model_validate(tree)


def whole_run(
    rows: Iterable[dict[str, Any]], steps: int, ranks: int, full_steps: float | None = None
) -> list[str]:
    """Return the lines with which a dry run ends: time of all steps, and memory.

    rows: of its metrics.jsonl, a row a step. The last step counts: the first compiles kernels, and makes the
    optimizer's states. full_steps: how many steps of the whole batch `steps` are worth, if it grows.

    >>> rows = [{"step": 1, "loss": {}, "seconds": 9.0, "tokens": 50},
    ...         {"step": 2, "loss": {}, "seconds": 11.0, "tokens": 100, "memory": {"peak_gb": 1.25}}]
    >>> print("\\n".join(whole_run(rows, 1000, 2)))
      whole run: 1,000 steps of 2.00 s, 25 tokens/s, are 33:20, without evaluations and checkpoints
      memory: 1.2 GB per rank at the peak, 2.5 GB for 2 ranks; other machines: clearly plan
    """
    trained = [row for row in rows if "loss" in row]
    last = trained[-1]
    before: dict[str, Any] = trained[-2] if len(trained) > 1 else {"seconds": 0.0, "tokens": 0}
    seconds = last["seconds"] - before["seconds"]
    rate = format_count((last["tokens"] - before["tokens"]) / max(seconds, 1e-9))
    use = last.get("memory", {})
    growing = " at the full batch" if full_steps is not None and full_steps < steps else ""
    lines = [
        f"  whole run: {steps:,} steps of {seconds:.2f} s{growing}, {rate} tokens/s, are "
        f"{format_seconds((full_steps or steps) * seconds)}, without evaluations and checkpoints"
    ]
    peak = use.get("gpu_peak_gb", use.get("peak_gb"))
    if peak is not None:
        kind = "GPU memory" if "gpu_peak_gb" in use else "memory"
        lines.append(
            f"  {kind}: {peak:.1f} GB per rank at the peak, {ranks * peak:.1f} GB for {ranks:,} "
            f"rank{'s' * (ranks > 1)}; other machines: clearly plan"
        )
    return lines


@contextmanager
def hold_run_folder(folder: Path) -> Iterator[None]:
    """Lock the run folder, on rank 0 for all ranks: no other process may write into it. Collective."""

    def hold() -> None:
        try:
            make_folder(folder)
        except OSError as error:
            raise UserError(f"cannot make {folder}: {error.strerror}; name another with --run") from None
        held.callback(remove_if_empty, folder)  # of a start that is refused before it writes anything
        held.enter_context(folder_lock(folder, says_itself=True))

    with ExitStack() as held:
        on_rank_zero(hold)
        yield


def empty_run_folder(folder: Path) -> None:
    """Remove what an earlier dry run left in a folder that this run holds. Collective."""

    def empty() -> None:
        for path in folder.iterdir():
            if path.is_dir() or not path.name.startswith(LOCK):
                discard(path)

    on_rank_zero(empty)
