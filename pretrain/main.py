"""Train a sentence-aware encoder: `deepspeed pretrain/main.py --aug del-span,reorder`.

`--help` lists every key of the config. The run itself is in `pretrain.run`.
"""

import os
import sys
from pathlib import Path

# run as a script: import the packages, not this folder's files by their bare names
if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

# first: sets variables that numpy, torch and DeepSpeed read when they are imported
from pretrain.common.environment import choose_accelerator

# isort: split
from pretrain.common import cli
from pretrain.common.error_output import print_whoever_reads
from pretrain.common.files import require_writable
from pretrain.config.recipe import DEFAULT_RECIPE, flags, load_config
from pretrain.start.local_ranks import choose_ranks, require_positions, start_local_ranks


def main(*, config: str | None = None, dry_run: bool = False, **overrides: str) -> int:
    """Train, evaluate, checkpoint and export one run.

    Args:
        config: YAML recipe; default: configs/clear_micro.yaml. configs/clear_base.yaml is the paper's.
        dry_run: two steps, one evaluation, one checkpoint and one export in RUN.dry-run, then stop.
        overrides: any key of the config, dotted (`--train.lr 1e-4`), or one of SHORT_FLAGS (`--aug`).
    """
    recipe = config or DEFAULT_RECIPE
    settings = load_config(recipe, overrides)
    if settings.model.init is None:
        require_positions(settings, settings.model.max_positions)
    if os.environ.get("RANK", "0") == "0":  # only this one writes there
        require_writable(f"{settings.run_folder}{'.dry-run' if dry_run else ''}", "--run")
    choose_accelerator()
    print_whoever_reads(of_run=True)
    start_local_ranks(choose_ranks(settings))
    from pretrain import run  # seconds: not before the flags and the recipe are checked

    return run.start(settings, None if config else recipe, dry_run)


if __name__ == "__main__":
    cli.run(main, keys=flags)
