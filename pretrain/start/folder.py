"""The run folder before training: who may write into it, and what a dry run leaves in it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pretrain.common.errors import UserError
from pretrain.common.files import discard, make_folder, remove_if_empty
from pretrain.common.folder_lock import LOCK, folder_lock
from pretrain.common.ranks import on_rank_zero
from pretrain.config.run import Config


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
    for section in tree.get("objective", {}).values():
        if isinstance(section, dict) and {"start_step", "warmup_steps"} & set(section):
            section |= {"start_step": 0, "warmup_steps": 0}  # try the whole step, not its first phase
    return Config.model_validate(tree)


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
