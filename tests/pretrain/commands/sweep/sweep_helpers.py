"""Sweep files for tests."""

from pathlib import Path

import yaml

from finetune.results import Evaluation, write
from pretrain.commands.sweep.file import expand, read_sweep

ROOT = Path(__file__).parents[4]


def write_sweep(folder, **tree):
    """Write a sweep of one row, with the keys of `tree` in place of its own; return its path."""
    recipe = str(ROOT / "configs" / "simcse_micro.yaml")
    tree = {"title": "T", "recipe": recipe, "seeds": [42], "rows": {"one": {}}} | tree
    path = folder / "sweep.yaml"
    path.write_text(
        yaml.safe_dump({key: value for key, value in tree.items() if value is not None}, sort_keys=False)
    )
    return path


def entries_of(folder, given=None, size="", **tree):
    """Return the rows of `write_sweep`, expanded."""
    path = write_sweep(folder, **tree)
    return expand(read_sweep(path), path.parent, given or {}, size)


def write_sts(folder, figures, answers=None):
    """Write what `clearly sts` writes of a model that pools the mean."""
    found = Evaluation("sts", "m", "mean", "mean", "cosine")
    for task, figure in figures.items():
        scores = {"mean" if task.startswith("average") else "spearman_all": figure}
        found.add(task, next(iter(scores)), scores, answers=(answers or {}).get(task))
    write(found, folder)
