"""Read sweep files: a recipe, rows of overrides, a grid, seeds, and the paper's figures.

    title: Different divergences
    source: V-advCSE, table 5
    recipe: ../vadvcse_bert.yaml           # relative to this file, or the name of one of ours
    set: {train.lr: 3e-5}                  # for all rows
    columns: {STS-B dev: dev}              # title -> metric (pretrain.commands.sweep.evaluations)
    rows:
      JS: {set: {objective.vadvcse.divergence: js}, paper: {STS-B dev: 84.55}}

`grid` multiplies the rows by every combination of its values.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from augment.core.errors import nearest_name
from pretrain.common.errors import UserError, naming
from pretrain.common.typed_values import faults
from pretrain.config.recipe import SHORT_FLAGS, find_recipe, load_config
from pretrain.config.run import Config, Pooling
from pretrain.config.validation import read_yaml

Overrides = dict[str, str]
"""Dotted key of the configuration -> its value as typed on the command line."""

OURS = {"folder", "checkpoint.resume", "train.seed"}
"""Keys that the sweep itself sets for every run."""


class Row(BaseModel, extra="forbid"):
    """A row of a table."""

    kind: Literal["trained", "start", "quoted"] = "trained"
    """trained: a run; start: the model that the recipe starts from, evaluated as it is; quoted: the paper's
    figures alone, of a system that is not here"""
    recipe: Path | None = None
    """in place of the sweep's"""
    set: dict[str, Any] = {}
    """overrides; {times: X} multiplies the value in force"""
    pooling: Pooling | Literal["pooler"] | None = None
    """pooling to evaluate with, if it is not the one trained with"""
    seeds: list[int] | None = Field(None, min_length=1)
    """in place of the sweep's"""
    weights: Literal["best", "export"] = "best"
    """which of a run's are evaluated: of its best step, or of its last"""
    paper: dict[str, float] = {}
    """the paper's figures, by column"""
    spread: dict[str, float] = {}
    """what the paper prints behind its ±"""
    at: dict[str, str | float] = {}
    """where figures draw the row; metrics may name its keys, as {key}"""
    note: str = ""
    """what must be known to compare"""


class FigureSpec(BaseModel, extra="forbid"):
    """A figure that `finetune.figures` draws of a table."""

    kind: Literal["lines", "differences"]
    title: str = ""
    columns: list[str] = []
    """which, a panel each; default: the file's own"""
    x: str = ""
    """lines: the key of rows' `at` that goes to the right"""
    panels: dict[str, dict[str, str]] = {}
    """lines: panel -> where to the right -> column; each row is then a line"""


class Sweep(BaseModel, extra="forbid"):
    """A sweep file."""

    title: str
    """of the table; default: the file's name"""
    source: str = ""
    """paper and table"""
    definitions: Any = None
    """a place for YAML anchors"""
    recipe: Path | None = None
    """base recipe, relative to this file, or the name of one of ours"""
    set: dict[str, Any] = {}
    """overrides of all rows"""
    seeds: list[int] = Field([1, 11, 42, 68, 421], min_length=1)
    """of every row; the default is AugCSE's five"""
    paper_reports: str = ""
    """what the paper's figures are: of one run, a mean, the best of five seeds"""
    columns: dict[str, str | list[str]] = {}
    """title -> metric; of a list the mean"""
    evaluations: dict[str, str] = {}
    """evaluations of finetune beside sts and geometry that the columns want, and flags for each"""
    baseline: str = ""
    """the row that others are compared with; default: the first that is trained"""
    of_start: dict[str, str] = {}
    """evaluations, and flags for each, of the model that the recipes start from; their metrics are
    start.EVALUATION.TASK"""
    figures: dict[str, FigureSpec] = {}
    """name -> figure, drawn beside the table (finetune.figures)"""
    grid: dict[str, list[Any]] = {}
    """key -> values: a row for every combination"""
    notes: list[str] = []
    rows: dict[str, Row] = {}

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise ValueError(f"seeds {seeds}: give different whole numbers from 0 on")
        return seeds

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.rows:
            raise ValueError("rows: there are none")
        if "-trust" in " ".join([*self.evaluations.values(), *self.of_start.values()]):
            raise ValueError("evaluations: --trust is for the command line alone")
        ours = [name for name, row in self.rows.items() if row.kind != "quoted"]
        if self.baseline and self.baseline not in ours:
            raise ValueError(f"baseline {self.baseline!r}: no such row of ours; there are {', '.join(ours)}")
        for name, row in self.rows.items():
            if row.seeds is not None:
                self._distinct(row.seeds)
            if row.kind != "quoted" and row.recipe is None and self.recipe is None:
                raise ValueError(f"row {name!r}: neither it nor the sweep names a recipe")
            for column in {**row.paper, **row.spread}:
                if column not in self.columns:
                    near = nearest_name(column, self.columns)
                    hint = f"; did you mean {near!r}?" if near else ""
                    raise ValueError(f"row {name!r}: paper has {column!r}, which is no column{hint}")
        return self


@dataclass(frozen=True)
class TableEntry:
    """A row of the table: a recipe with overrides, without the seed.

    of: name of the file's row; `name` adds the values of a grid. recipe: of no use if the row is quoted.
    """

    name: str
    of: str
    row: Row
    recipe: Path = Path()
    overrides: Overrides = field(default_factory=dict)
    _configs: dict[int, Config] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def runs(self) -> bool:
        return self.row.kind == "trained"

    def config(self, seed: int) -> Config:
        """Return the configuration with a seed; raise UserError if the recipe or an override is wrong."""
        if seed not in self._configs:
            self._configs[seed] = load_config(self.recipe, self.overrides | {"train.seed": str(seed)})
        return self._configs[seed]


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file."""
    tree = read_yaml(path)
    if "rows" not in tree:
        raise UserError(f"{path} is no sweep: it has no rows. Several seeds of one recipe: --config {path}")
    try:
        return Sweep.model_validate({"title": path.stem} | tree)
    except ValidationError as error:
        raise UserError(f"sweep {path}: {faults(error, lambda key: f'unknown key {key!r}')}") from None


def sweep_of(recipe: Path) -> Sweep:
    """Return the sweep of a single recipe: one row, for several seeds."""
    return Sweep(title=recipe.stem, source=str(recipe), recipe=recipe.resolve(), rows={recipe.stem: Row()})


def expand(sweep: Sweep, folder: Path, given: Mapping[str, str], size: str = "") -> list[TableEntry]:
    """Return the rows, times the grid.

    folder: what recipes' paths are relative to; those not there are names of ours. given: overrides of the
    command line, which win over the file's; a relative value ({times: 2}) multiplies them. size: of the
    recipes to use in place of the file's (`micro`: simcse_micro.yaml for simcse_bert.yaml).
    """
    flags = {SHORT_FLAGS.get(key, key): value for key, value in given.items()}
    if taken := sorted(OURS & flags.keys()):
        raise UserError(f"--{taken[0]} is set by the sweep; give --out or --seed-list")
    entries = []
    for name, row in sweep.rows.items():
        if row.kind == "quoted":
            entries.append(TableEntry(name, name, row))
            continue
        path = row.recipe or sweep.recipe
        assert path is not None  # `Sweep` refuses a row without one
        recipe, axes = _recipe(folder, path, size), sweep.grid if row.kind == "trained" else {}
        for values in itertools.product(*axes.values()):
            cell = dict(zip(axes, values, strict=True))
            labels = [f"{key.split('.')[-1]} {text_of(value)}" for key, value in cell.items()]
            title = ", ".join([name, *labels])
            with naming(f"row {title!r}", UserError):
                overrides = _overrides(recipe, sweep.set, row.set | cell, flags)
                entries.append(TableEntry(title, name, row, recipe, overrides))
                trained_with = entries[-1].config((row.seeds or sweep.seeds)[0]).model.pooling
                if row.kind == "trained" and row.pooling == "words" and trained_with != "words":
                    raise UserError("pooling words is of what was trained with it: set model.pooling")
    return entries


def text_of(value: Any) -> str:
    """Return a value of a YAML file as it is typed after a flag."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def _overrides(recipe: Path, common: dict[str, Any], own: dict[str, Any], flags: Overrides) -> Overrides:
    """Return a row's overrides as texts: those of all rows, its own, and the command line's."""
    common = {SHORT_FLAGS.get(key, key): value for key, value in common.items()}
    own = {SHORT_FLAGS.get(key, key): value for key, value in own.items()}
    # a row's factor multiplies what all rows have, if the file says that
    plain = {key: value for part in (common, own) for key, value in part.items() if not _is_factor(value)}
    overrides = {key: text_of(value) for key, value in plain.items()} | flags
    for key, factor in (common | own).items():
        if _is_factor(factor):
            others = {name: text for name, text in overrides.items() if not name.startswith("augment.")}
            base: Any = load_config(recipe, others)
            for part in key.split("."):
                base = getattr(base, part)
            overrides[key] = text_of(type(base)(base * factor["times"]))
    return overrides


def _is_factor(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"times"}


def _recipe(folder: Path, named: Path, size: str) -> Path:
    """Return the path of a recipe below `folder`, else of one of ours."""
    if size:
        named = named.with_name(f"{named.stem.rsplit('_', 1)[0]}_{size}{named.suffix}")
    path = folder / named
    if not path.is_file() and not (path := find_recipe(named)).is_file():
        path = folder / named
        there = sorted(other.name for other in path.parent.glob(f"{path.stem.split('_')[0]}_*.yaml"))
        hint = f"; there are {', '.join(there)}" if there else ""
        raise UserError(f"there is no recipe {path}{hint}")
    return path.resolve()
