"""Designed experiments: many factors varied at once, and what each of them does by itself.

A sweep file names factors and their levels:

    design:
      runs: 48
      response: dev.change
      interactions: [[views, dropout]]
      factors:
        views: {dropout alone: {augment.spec: none}, crops: {augment.spec: "crop:rate=0.5"}}
        dropout: {"0.1": {model.dropout: 0.1}, "0.3": {model.dropout: 0.3}}

Each run has one level of every factor, drawn so that the levels of a factor are equally frequent and those of
two factors nearly independent (a Latin hypercube), and one of the sweep's seeds. A linear model with an
effect for every level, fitted by least squares, tells the factors apart. So every run informs about every
factor, which one factor at a time does not give, and what holds only beside certain levels of another factor
shows as an interaction (Box, Hunter and Hunter 2005, chapters 5 and 6).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pretrain.telemetry.intervals import LEVEL, interval_text

FREEDOM = 5
"""Fewest runs beyond the number of effects: the error is estimated from what is left."""

Levels = dict[str, str]
"""Factor -> level of one run."""


class Design(BaseModel):
    """A designed experiment of a sweep file."""

    model_config = ConfigDict(extra="forbid")

    runs: int = Field(ge=2, description="how many runs, each with one level of every factor and one seed")
    draw: int = Field(0, ge=0, description="seed of the draw of levels; the runs' own seeds are the sweep's")
    response: str = Field("dev.change", description="metric that effects are estimated of")
    factors: dict[str, dict[str, dict[str, Any]]] = Field(
        min_length=1, description="factor -> level -> what it sets"
    )
    interactions: list[tuple[str, str]] = Field(
        [], description="pairs of factors whose levels are estimated together as well"
    )

    @model_validator(mode="after")
    def _can_be_estimated(self) -> Design:
        for name, levels in self.factors.items():
            if len(levels) < 2:
                raise ValueError(f"design: factor {name!r} has {len(levels)} level; give at least two")
        setters: dict[str, str] = {}
        for name, levels in self.factors.items():
            for key in {key for settings in levels.values() for key in settings}:
                if (other := setters.setdefault(key, name)) != name:
                    raise ValueError(f"design: {key} is set by two factors, {other!r} and {name!r}")
        for pair in self.interactions:
            if unknown := [name for name in pair if name not in self.factors]:
                raise ValueError(
                    f"design: an interaction names {unknown[0]!r}, which is no factor; there are "
                    f"{', '.join(self.factors)}"
                )
            if pair[0] == pair[1]:
                raise ValueError(f"design: an interaction of {pair[0]!r} with itself")
        if self.runs < (least := self._effects + FREEDOM):
            raise ValueError(
                f"design: {self.runs} runs are too few for {self._effects} effects; give {least} or more"
            )
        return self

    @property
    def _effects(self) -> int:
        """Parameters of the linear model, the mean included."""
        sizes = {name: len(levels) for name, levels in self.factors.items()}
        together = sum((sizes[one] - 1) * (sizes[other] - 1) for one, other in self.interactions)
        return 1 + sum(size - 1 for size in sizes.values()) + together

    def drawn(self) -> list[Levels]:
        """Return the levels of every run; the same in every session."""
        from scipy.stats import qmc  # half a second, which --help need not wait for

        cube = qmc.LatinHypercube(len(self.factors), optimization="random-cd", rng=self.draw)
        found = []
        for point in cube.random(self.runs):
            chosen = {}
            for share, (name, levels) in zip(point, self.factors.items(), strict=True):
                chosen[name] = list(levels)[int(share * len(levels))]
            found.append(chosen)
        return found

    @property
    def evaluated(self) -> bool:
        """Whether the response is of an evaluation of its own, and not of training's."""
        return not self.response.startswith(("dev", "run."))

    def settings(self, levels: Levels) -> dict[str, Any]:
        """Return what a run's levels set."""
        return {
            key: value for name, level in levels.items() for key, value in self.factors[name][level].items()
        }


@dataclass(frozen=True)
class Effect:
    """What a level adds to the mean response, the other factors' levels being equally frequent.

    low, high: interval of `LEVEL`, by Student's t. runs: with this level.
    """

    mean: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Analysis:
    """Effects of a design's factors on a response.

    mean: of the response, all levels equally frequent. deviation: of what the effects leave unexplained,
    with `freedom` degrees of freedom. explained: share of the variance that all effects explain together.
    shares: factor, or "one x other" -> share of the variance that is lost without its effects.
    effects: the same -> level -> Effect; of an interaction, what two levels do beyond the sum of their own.
    """

    mean: float
    deviation: float
    freedom: int
    explained: float
    shares: dict[str, float]
    effects: dict[str, dict[str, Effect]]


def analyse(design: Design, levels: Sequence[Levels], response: Sequence[float]) -> Analysis | None:
    """Return the effects of a design's factors, by least squares with effects that sum to zero.

    Args:
        levels: of the runs that are done.
        response: float[R], of these runs.

    Returns:
        None where the runs that are done are too few to tell all effects apart.
    """
    from scipy import stats

    values = np.asarray(response, np.float64)
    terms = [(name,) for name in design.factors] + list(design.interactions)
    blocks = [_columns(design, term, levels) for term in terms]
    matrix = np.hstack([np.ones((len(values), 1)), *blocks])
    freedom = len(values) - matrix.shape[1]
    if freedom < 1 or np.linalg.matrix_rank(matrix) < matrix.shape[1]:
        return None
    coefficients, left = _fit(matrix, values)
    covariance = left / freedom * np.linalg.inv(matrix.T @ matrix)
    t = float(stats.t.ppf((1 + LEVEL) / 2, freedom))
    total = float(((values - values.mean()) ** 2).sum())
    shares: dict[str, float] = {}
    effects: dict[str, dict[str, Effect]] = {}
    start = 1
    for term, block in zip(terms, blocks, strict=True):
        own = slice(start, start + block.shape[1])
        start = own.stop
        without = _fit(np.delete(matrix, own, axis=1), values)[1]
        name = " x ".join(term)
        shares[name] = (without - left) / total if total else 0.0
        effects[name] = {}
        for chosen in itertools.product(*(design.factors[factor] for factor in term)):
            weights = _codes_of(design, term, chosen)
            mean = float(weights @ coefficients[own])
            half = t * math.sqrt(max(float(weights @ covariance[own, own] @ weights), 0.0))
            runs = sum(tuple(run[factor] for factor in term) == chosen for run in levels)
            effects[name][", ".join(chosen)] = Effect(mean, mean - half, mean + half, runs)
    explained = 1 - left / total if total else 0.0
    return Analysis(float(coefficients[0]), math.sqrt(left / freedom), freedom, explained, shares, effects)


def _fit(matrix: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the coefficients of least squares, and the sum of squares that they leave."""
    coefficients = np.linalg.lstsq(matrix, values, rcond=None)[0]
    return coefficients, float(((values - matrix @ coefficients) ** 2).sum())


def _columns(design: Design, term: tuple[str, ...], levels: Sequence[Levels]) -> np.ndarray:
    """Return a term's columns of the linear model, float64[R, parameters]."""
    return np.stack([_codes_of(design, term, tuple(run[name] for name in term)) for run in levels])


def _codes_of(design: Design, term: tuple[str, ...], chosen: tuple[str, ...]) -> np.ndarray:
    """Return what a term's parameters are multiplied by at these levels: float64[parameters].

    A factor has a parameter for each level but the last, whose effect is minus their sum; an interaction has
    one for each product of two.
    """
    codes = np.ones(1)
    for name, level in zip(term, chosen, strict=True):
        count, number = len(design.factors[name]), list(design.factors[name]).index(level)
        own = np.eye(count)[number, :-1] if number < count - 1 else -np.ones(count - 1)
        codes = np.outer(codes, own).ravel()
    return codes


def effects_of(design: Design, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a design's part of a table's content: its effects, where they can be told apart yet.

    Args:
        rows: of the table's content; `levels` of each, and `response`, where its run is done.
    """
    done = [row for row in rows if row.get("response") is not None]
    found = analyse(design, [row["levels"] for row in done], [row["response"] for row in done])
    content: dict[str, Any] = {"response": design.response, "runs": len(rows), "done": len(done)}
    if found is not None:
        content["analysis"] = dataclasses.asdict(found)
    return content


def describe_effects(content: dict[str, Any]) -> str:
    """Return a design's tables in Markdown: factors by share, runs from the best down; "": no design."""
    if "design" not in content:
        return ""
    design, runs = content["design"], [row for row in content["rows"] if "levels" in row]
    found = design.get("analysis")
    lines = [
        "",
        f"## {design['done']} of {design['runs']} designed runs: what moves {design['response']}",
        "",
    ]
    if found is None:
        lines += ["Too few runs are done to tell the factors apart.", ""]
    else:
        lines += [
            f"Mean {found['mean']:+.2f}. The effects explain {100 * found['explained']:.0f}% of the "
            f"variance, and leave a standard deviation of {found['deviation']:.2f} ({found['freedom']} "
            "degrees of freedom). Share: of the variance, lost without the factor. Effect: what a level adds "
            "to the mean, the other factors' levels being equally frequent, with its 95% interval; ~: it "
            "holds 0.",
            "",
            "| factor | share | level | runs | effect |",
            "|---|---|---|---|---|",
        ]
        for name in sorted(found["shares"], key=found["shares"].__getitem__, reverse=True):
            cells = [name, f"{100 * found['shares'][name]:.0f}%"]
            for level, effect in found["effects"][name].items():
                around = interval_text(effect["mean"], effect["low"], effect["high"])
                lines.append("| " + " | ".join([*cells, level, str(effect["runs"]), around]) + " |")
                cells = ["", ""]
        lines.append("")
    factors = list(runs[0]["levels"])
    lines += [
        "| " + " | ".join(["run", *factors, design["response"]]) + " |",
        "|---" * (len(factors) + 2) + "|",
    ]
    done = sorted((row for row in runs if row.get("response") is not None), key=lambda row: -row["response"])
    for row in done:
        cells = [row["name"], *row["levels"].values(), f"{row['response']:+.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
