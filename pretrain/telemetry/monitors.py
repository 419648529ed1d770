"""Measure whether a step's sentence vectors are healthy, and raise alarms.

The measures read the vectors that the objective was computed on, so they cost no forward pass. All use at
most `SAMPLE` sequences, O(SAMPLE^2 d) a step, whatever the batch. effective_rank needs a decomposition: it
is computed at the steps that end a row of metrics, all others at every step. docs/runs.md, "Health of the
vectors", says what each of them means.

Alarms for what one step can do (a gradient that explodes) check every step. Alarms for what takes time
(collapse, nothing learned, a loss without gradient) check the rows, which are means over their steps. A row
also holds each loss's share of the encoder's gradient, and figures of each objective's own mechanism, of the
row's last step: docs/objectives.md, "Is the mechanism alive?", says from which value on one does nothing.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pretrain.common.transfer import send
from pretrain.telemetry.formats import flatten

SAMPLE = 512
MIN_SEQUENCES = 64
"""With fewer, a regression and a spectrum mean nothing."""


def normalise(vectors: Tensor) -> Tensor:
    """Scale rows to unit norm, in float32 or wider; a zero row stays zero."""
    wide = vectors if vectors.dtype == torch.float64 else vectors.float()
    return torch.nn.functional.normalize(wide, dim=-1)


def alignment(first: Tensor, second: Tensor) -> Tensor:
    """Mean squared distance of rows of unit-norm [N, d]: 0, the same (Wang and Isola 2020, alpha 2)."""
    return (first - second).square().sum(-1).mean()


def uniformity(points: Tensor) -> Tensor:
    """Log mean exp(-2 |x - y|^2) over pairs of unit-norm rows: 0, one point; -4, even (ibid., t 2)."""
    squared = 2 - 2 * points @ points.T
    rows, columns = torch.triu_indices(len(points), len(points), offset=1, device=points.device)
    pairs = -2 * squared[rows, columns].clamp_min(0)
    return torch.logsumexp(pairs, 0) - math.log(len(pairs))


def negative_cosine(first: Tensor, second: Tensor) -> Tensor:
    """Return the mean cosine of rows i and j != i of two unit-norm [N, d]."""
    count = len(first)
    total = (first.sum(0) * second.sum(0)).sum() - (first * second).sum()
    return total / (count * (count - 1))


def length_variance(vectors: Tensor, lengths: Tensor) -> Tensor:
    """Return the share of the variance of vectors [N, d] that is linear in the lengths [N], 0 to 1."""
    x = vectors.double() - vectors.double().mean(0)
    y = lengths.to(vectors.device).double()
    y = y - y.mean()
    whole, spread = x.square().sum(), y.square().sum()
    return torch.where((whole > 0) & (spread > 0), (y @ x).square().sum() / spread / whole, 0.0)


def effective_rank(vectors: Tensor) -> Tensor:
    """Return how many directions the centred vectors [N, d] use: at most min(N - 1, d), 0 for one point.

    It is exp of the entropy of their normalised singular values (Roy and Vetterli 2007).
    """
    x = vectors.double() - vectors.double().mean(0)
    small = x @ x.T if len(x) <= x.shape[1] else x.T @ x
    singular = torch.linalg.eigvalsh(small).clamp_min(0).sqrt()
    # rounding of the square
    singular = torch.where(singular > 1e-7 * singular.max().clamp_min(1e-12), singular, 0.0)
    share = singular / singular.sum()
    return torch.where(singular.sum() > 1e-9, torch.exp(-torch.xlogy(share, share).sum()), 0.0)


LEAST_SHARE = 1e-3
"""A loss with less than this part of the contrastive loss's gradient is inert."""
MASKED = "_masked_share"
"""After a loss's name: the share of its negatives that a guide left out (`objective.false_negatives`)."""
MOST_MASKED = 0.9
"""With more of the negatives left out, a contrastive loss has next to nothing to tell apart."""

SHARE, COSINE = "_gradient_share", "_gradient_cosine"
AT_ONCE = 5
"""Rows in succession in which a condition must hold."""
LEARNED = 20
"""The same, of what has to be learned first."""


@dataclass(frozen=True)
class Check:
    """A condition on the figures of rows of metrics, and the warning that it gives.

    figures: names in a row, flattened; the check is of rows that have them all. holds: of their values, in
    this order. message: {0}, {1} ... are the values. rows: how many in succession must meet the condition.
    """

    figures: tuple[str, ...]
    holds: Callable[..., bool]
    message: str
    rows: int = AT_ONCE


def checks_of(row: Mapping[str, float]) -> Iterator[tuple[str, Check]]:
    """Yield (name, check) of every check that a flattened row has the figures of.

    Shares of gradients and of masked negatives come first, then alarms.
    """
    for name in row:
        for ending, (holds, message) in SHARE_ALARMS.items():
            if name.endswith(ending):
                yield name, Check((name,), holds, message.replace("LOSS", name.removesuffix(ending)))
    for name, check in ROW_ALARMS.items():
        if all(figure in row for figure in check.figures):
            yield name, check


# -- alarms ------------------------------------------------------------

SHARE_ALARMS: dict[str, tuple[Callable[[float], bool], str]] = {
    SHARE: (
        lambda share: share < LEAST_SHARE,
        "the loss LOSS has {0:.2g} of the contrastive loss's gradient on the sentence vectors (below "
        f"{LEAST_SHARE:g}): it does not train the encoder. Raise its weight (in objective.vascl.reading code "
        "VaSCL's neighbourhood loss trains its head alone).",
    ),
    MASKED: (
        lambda share: share == 0 or share > MOST_MASKED,
        "the guide of false negatives leaves {0:.2g} of the negatives of the loss LOSS out. If none, raise "
        "objective.false_negatives.margin, or set its guide to none; if nearly all, lower the margin.",
    ),
}
"""End of a figure's name -> alarm for each such figure: when it holds, and what it says of LOSS."""
ROW_ALARMS = {
    "collapse": Check(
        ("uniformity", "negative_cosine"),
        lambda spread, cosine: spread > -0.2 or cosine > 0.95,
        "the sentence vectors are collapsing into one direction since step {since}: uniformity {0:.3f}, "
        "cosine of different sentences {1:.3f}. In a new run, try model.pooling mean, a larger "
        "train.global_batch, a lower {temperature}, or a longer objective.warmup_steps.",
    ),
    "length": Check(
        ("length_variance",),
        lambda share: share > 0.5,
        "the sentence vectors say little but the length since step {since}: it explains {0:.0%} of their "
        "variance. In a new run, try model.pooling mean, or views whose lengths differ (augment.positive).",
    ),
    "alone": Check(
        ("effective_negatives",),
        lambda negatives: negatives < 1,
        "an anchor has {0:.2g} negatives since step {since}: nearly all records of a batch share texts. Take "
        "out texts that many records have, or set objective.mask_duplicates to false, in a new run.",
    ),
    "chance": Check(
        ("contrastive", "chance"),
        lambda loss, chance: loss > 0.98 * chance,
        "the contrastive loss learns nothing since step {since}: {0:.3f} (chance: {1:.3f}). Try in a new run "
        "model.pooling mean, a higher train.lr, a lower temperature, or weaker augmentations.",
        rows=LEARNED,
    ),
    "solved": Check(
        ("contrastive", "chance"),
        lambda loss, chance: loss < 0.01 * chance,
        "the contrastive loss has vanished since step {since}: {0:.4f} (chance: {1:.2f}). The views are too "
        "easy to match: in a new run, try --augment.excerpt crop:rate=1:min_rate=0.7, higher rates, or a "
        "larger train.global_batch.",
    ),
}
"""Name -> alarm for what takes time, in order. In messages {since} is the step since
which the condition holds, {temperature} is a setting of the objectives in use."""


class Monitor:
    """Measure a step's vectors and raise alarms, with the history that these need."""

    def __init__(
        self,
        explosion: float = 10.0,
        advice: str = "lower train.lr",
        terms: Sequence[str] = ("contrastive",),
        quiet: int = 1,
        state: dict[str, Any] | None = None,
    ) -> None:
        """
        Args:
            explosion: a gradient norm this many times the running median (of 100 steps) is an alarm.
            advice, quiet: what to change after one, and the steps between two.
            terms: the sections of the objectives in use, whose settings alarms name.
            state: what `memory` returned at the checkpoint that the run resumes from.
        """
        self.explosion, self.advice, self.terms, self.quiet = explosion, advice, terms, quiet
        state = state or {}
        self._norms: deque[float] = deque(state.get("norms", ()), maxlen=100)
        # alarm -> since when its condition holds, for how many rows or steps, whether the alarm was raised
        self._episodes: dict[str, tuple[int | None, int, bool]] = dict(state.get("episodes", {}))
        self._last_explosion: int | None = state.get("last_explosion")
        self.dead_loss = False
        """Whether the last row raised the alarm of a contrastive loss at chance."""

    def memory(self) -> dict[str, Any]:
        """Return the alarms' history as JSON: a resumed run raises the alarms of an unbroken one."""
        return {
            "norms": list(self._norms),
            "episodes": dict(self._episodes),
            "last_explosion": self._last_explosion,
        }

    @torch.no_grad()
    def measure(
        self, views: Tensor, lengths: Tensor, negatives: float | None, spectrum: bool = True
    ) -> dict[str, Tensor | float]:
        """Return the measures, scalars on the vectors' device, which are not read.

        views: float[2, N, d], the global batch's vectors, of any norm. lengths: int64[N], tokens of the
        originals; on the CPU. negatives: candidates that an anchor is contrasted with, in the mean, without
        absent ones and texts of its meaning. spectrum: whether with effective_rank.
        """
        count = views.shape[1]
        # Evenly spaced rows: every rank's and lane's share is in the sample.
        rows = torch.linspace(0, count - 1, min(count, SAMPLE)).round().long()
        chosen, sampled = send([rows, lengths[rows]], views.device)
        first, second = normalise(views[0, chosen]), normalise(views[1, chosen])
        measures: dict[str, Tensor | float] = {
            "alignment": alignment(first, second),
            "positive_cosine": (first * second).sum(-1).mean(),
        }
        if len(rows) > 1:
            measures |= {
                "uniformity": (uniformity(first) + uniformity(second)) / 2,
                "negative_cosine": negative_cosine(first, second),
            }
        if len(rows) >= MIN_SEQUENCES:
            measures["length_variance"] = length_variance(first, sampled)
            if spectrum:
                measures["effective_rank"] = effective_rank(first)
        return measures | ({} if negatives is None else {"effective_negatives": negatives})

    def alarms_of_row(
        self, step: int, losses: dict[str, float], metrics: dict[str, Any], risen: bool = True
    ) -> list[str]:
        """Return the alarms of the rows up to this one: each names what was seen, since when, what to try.

        losses: name -> mean loss of the row; "contrastive" is compared with chance. metrics: the row's means
        of `measure`, and its shares, of which nothing is said until all losses have `risen`.
        """
        figures, alarms, self.dead_loss = dict(flatten(metrics)), [], False
        if "contrastive" in losses and metrics.get("effective_negatives", 0) > 0:
            chance = math.log(metrics["effective_negatives"] + 1)
            figures |= {"contrastive": losses["contrastive"], "chance": chance}
        temperature = " or ".join(f"objective.{term}.temperature" for term in self.terms) or "temperature"
        for name, check in checks_of(figures):
            if name not in ROW_ALARMS and not risen:
                continue
            values = [figures[figure] for figure in check.figures]
            since = self._held(name, check.holds(*values), step, check.rows)
            if since is not None:
                self.dead_loss |= name == "chance"
                alarms.append(check.message.format(*values, since=since, temperature=temperature))
        return alarms

    def _held(self, name: str, holds: bool, step: int, rows: int) -> int | None:
        """Return the step since which a condition holds, once when it has held `rows` times in a row."""
        since, count, raised = self._episodes.get(name, (None, 0, False)) if holds else (None, 0, False)
        since, count = (step if since is None else since), count + holds
        due = holds and count >= rows and not raised
        self._episodes[name] = since if holds else None, count, raised or due
        return since if due else None

    def alarm_of_step(self, step: int, norm: float) -> str | None:
        """Return the alarm of an applied step whose gradient norm explodes; None: it does not."""
        median = sorted(self._norms)[len(self._norms) // 2] if len(self._norms) >= 10 else math.inf
        self._norms.append(norm)
        recent = self._last_explosion is not None and step - self._last_explosion < self.quiet
        if self._held("explosion", norm > self.explosion * median, step, 1) is None or recent:
            return None
        self._last_explosion = step
        return (
            f"gradient norm {norm:.3g}, {norm / median:.0f} times the running median {median:.3g}. CLEAR saw "
            f"gradients explode with subs and reorder alone. If it comes again: {self.advice}; with --resume "
            "auto."
        )
