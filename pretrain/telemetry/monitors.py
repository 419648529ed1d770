"""Measure whether a step's sentence vectors are healthy, and raise alarms.

The measures read the vectors that the objective was computed on, so they cost no forward pass. All use at
most `SAMPLE` sequences, O(SAMPLE^2 d) a step, whatever the batch. effective_rank needs a decomposition: it
is computed at the steps that end a row of metrics, all others at every step.

Alarms for what one step can do (a gradient that explodes) check every step. Alarms for what takes time
(collapse, nothing learned) check the rows, which are means over their steps.

- alignment: mean squared distance of a sequence's two views (Wang and Isola 2020, alpha 2). 0: the same
  point.
- uniformity: log of the mean exp(-2 distance^2) over pairs (ibid., t 2). 0: all in one point; -4: spread
  evenly.
- positive_cosine: mean cosine of a sequence's two views.
- negative_cosine: mean cosine of views of different sequences.
- length_variance: share of the vectors' variance that the sequence's length explains (linear regression).
- effective_rank: exp of the entropy of the singular values (Roy and Vetterli 2007): how many directions the
  vectors use.
- effective_negatives: how many candidates each anchor is contrasted with (2N - 2 for NT-Xent), in the mean,
  without the hard negatives that the batch lacks, and without texts of the anchor's meaning; left out where
  the objective has none.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

import torch
from torch import Tensor

from pretrain.common.transfer import send
from pretrain.telemetry.mechanisms import InertTerms

SAMPLE = 512
MIN_SEQUENCES = 64
"""With fewer, a regression and a spectrum mean nothing."""


def normalise(vectors: Tensor) -> Tensor:
    """Scale rows to unit norm, in float32 or wider; a zero row stays zero."""
    wide = vectors if vectors.dtype == torch.float64 else vectors.float()
    return torch.nn.functional.normalize(wide, dim=-1)


def alignment(first: Tensor, second: Tensor) -> Tensor:
    """Return the mean squared distance of corresponding rows of two unit-norm [N, d]."""
    return (first - second).square().sum(-1).mean()


def uniformity(points: Tensor) -> Tensor:
    """Return log mean exp(-2 |x - y|^2) over pairs of different rows of unit-norm [N, d]."""
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
    """Return exp(entropy) of the normalised singular values of the centred vectors [N, d].

    It is between 1 and min(N - 1, d), and 0 for a single point.
    """
    x = vectors.double() - vectors.double().mean(0)
    small = x @ x.T if len(x) <= x.shape[1] else x.T @ x
    singular = torch.linalg.eigvalsh(small).clamp_min(0).sqrt()
    # rounding of the square
    singular = torch.where(singular > 1e-7 * singular.max().clamp_min(1e-12), singular, 0.0)
    share = singular / singular.sum()
    return torch.where(singular.sum() > 1e-9, torch.exp(-torch.xlogy(share, share).sum()), 0.0)


@dataclass(frozen=True)
class RowAlarm:
    """An alarm for what takes time.

    figures: names in a row, of which the row must have all; holds: whether the condition holds for their
    values; message: {0}, {1} ... are the values, {since} the step since which it holds, {temperature} and
    {warmup_steps} settings of the objectives in use. patience: rows in a row, in units of the monitor's.
    """

    figures: tuple[str, ...]
    holds: Callable[..., bool]
    message: str
    patience: int = 1


ROW_ALARMS = {
    "collapse": RowAlarm(
        ("uniformity", "negative_cosine"),
        lambda spread, cosine: spread > -0.2 or cosine > 0.95,
        "the sentence vectors are collapsing into one direction since step {since}: uniformity {0:.3f} (0 is "
        "a point), cosine of different sentences {1:.3f}. Try mean pooling where it is cls (model.pooling), "
        "a larger train.global_batch, a lower {temperature}, or a longer {warmup_steps}, in a new run.",
    ),
    "length": RowAlarm(
        ("length_variance",),
        lambda share: share > 0.5,
        "the sentence vectors say little but the length since step {since}: it explains {0:.0%} of their "
        "variance. Views may be matched by their length. Try mean pooling where it is cls (model.pooling), "
        "or views whose lengths differ (another augmentation or rate in augment.positive), in a new run.",
    ),
    "alone": RowAlarm(
        ("effective_negatives",),
        lambda negatives: negatives < 1,
        "an anchor has {0:.2g} negatives since step {since}: nearly all records of a batch share texts, "
        "directly or by others. Take out texts that many records have, or set objective.mask_duplicates to "
        "false, in a new run.",
    ),
    "chance": RowAlarm(
        ("contrastive", "chance"),
        lambda loss, chance: loss > 0.98 * chance,
        "the contrastive loss learns nothing since step {since}: {0:.3f}, where guessing gives "
        "log(2N - 1) = {1:.3f}. Try mean pooling where it is cls, a higher train.lr or longer training, a "
        "lower objective.contrastive.temperature, or weaker augmentations, in a new run.",
        patience=4,
    ),
    "solved": RowAlarm(
        ("contrastive", "chance"),
        lambda loss, chance: loss < 0.01 * chance,
        "the contrastive loss has vanished since step {since}: {0:.4f} of {1:.2f} at chance. The views are "
        "too easy to match, so nothing more is learned from them (CLEAR saw this with subs and reorder "
        "alone). In a new run, try --aug crop:rate=1:min_rate=0.7,del-span,reorder, higher rates, or a "
        "larger train.global_batch.",
    ),
}
"""Name -> alarm, in the order in which they are given."""


@dataclass
class _Episode:
    """Since when an alarm's condition holds, how often in a row, and whether the alarm was raised."""

    since: int | None = None
    count: int = 0
    raised: bool = False

    def update(self, holds: bool, step: int, patience: int) -> bool:
        """Return True once when the condition has held `patience` times in a row; again after it ended."""
        if not holds:
            self.since, self.count, self.raised = None, 0, False
            return False
        self.since = step if self.since is None else self.since
        self.count += 1
        if self.count >= patience and not self.raised:
            self.raised = True
            return True
        return False


@dataclass
class Monitor:
    """Measure a step's vectors and raise alarms, with the history that these need.

    Attributes:
        patience: rows in a row for which a condition must hold before its alarm.
        explosion: a gradient norm this many times the running median (of 100 steps) is an alarm.
        advice: what to change where a loss or gradient is not finite.
        terms: the sections of the objectives in use, whose settings alarms name.
        quiet: steps between two alarms of an exploding gradient.
        state: what `memory` returned at the checkpoint that the run resumes from.
    """

    patience: int = 5
    explosion: float = 10.0
    advice: str = "lower train.lr"
    terms: Sequence[str] = ("contrastive",)
    quiet: int = 1
    state: InitVar[dict[str, Any] | None] = None

    def __post_init__(self, state: dict[str, Any] | None) -> None:
        state = state or {}
        self._norms: deque[float] = deque(state.get("norms", ()), maxlen=100)
        self._episodes = {name: _Episode(*episode) for name, episode in state.get("episodes", {}).items()}
        self._last_explosion: int | None = state.get("last_explosion")
        self._inert = InertTerms(state.get("inert"))
        self.dead_loss = False
        """Whether the last row raised the alarm of a contrastive loss at chance."""

    def memory(self) -> dict[str, Any]:
        """Return the alarms' history as JSON: a resumed run raises the alarms of an unbroken one."""
        episodes = {
            name: [episode.since, episode.count, episode.raised] for name, episode in self._episodes.items()
        }
        return {
            "norms": list(self._norms),
            "episodes": episodes,
            "last_explosion": self._last_explosion,
            "inert": self._inert.state(),
        }

    @torch.no_grad()
    def measure(
        self, views: Tensor, lengths: Tensor, negatives: float | None, spectrum: bool = True
    ) -> dict[str, Tensor | float]:
        """Return the measures that the module lists: scalars on the vectors' device, which are not read.

        Args:
            views: float[2, N, d], the global batch's vectors, of any norm (further views are ignored).
            lengths: int64[N], tokens of the original sequences; on the CPU.
            negatives: how many an anchor is contrasted with, in the mean; None: the objective has none.
            spectrum: whether to compute effective_rank, which decomposes a matrix.
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

    def alarms_of_step(self, step: int, losses: dict[str, float], norm: float) -> list[str]:
        """Return the alarms of this step, usually none: each names what was seen and what to try.

        Args:
            losses: name -> loss of the global batch.
            norm: global gradient norm.
        """
        return [
            alarm
            for alarm in (self._explosion(step, norm), self._not_finite(step, losses))
            if alarm is not None
        ]

    def alarms_of_row(
        self, step: int, losses: dict[str, float], metrics: dict[str, Any], risen: bool = True
    ) -> list[str]:
        """Return the alarms of the rows up to this one: each names what was seen, since when, what to try.

        Args:
            losses: name -> mean loss of the row; "contrastive" is compared with chance.
            metrics: the row's means of what `measure` returned (may lack any), and its checks of mechanisms.
            risen: whether all losses have their full weight: else none is called inert.
        """
        figures, alarms, self.dead_loss = dict(metrics), [], False
        if "contrastive" in losses and metrics.get("effective_negatives", 0) > 0:
            chance = math.log(metrics["effective_negatives"] + 1)
            figures |= {"contrastive": losses["contrastive"], "chance": chance}
        for name, alarm in ROW_ALARMS.items():
            if not all(figure in figures for figure in alarm.figures):
                continue
            values = [figures[figure] for figure in alarm.figures]
            since = self._held(name, alarm.holds(*values), step, alarm.patience * self.patience)
            if since is not None:
                self.dead_loss |= name == "chance"
                settings = {name: self._settings(name) for name in ("temperature", "warmup_steps")}
                alarms.append(alarm.message.format(*values, since=since, **settings))
        if risen:
            alarms += self._inert.warnings(metrics)
        return alarms

    def _held(self, name: str, holds: bool, step: int, patience: int) -> int | None:
        """Return the step since which a condition holds, if its alarm is due."""
        episode = self._episodes.setdefault(name, _Episode())
        return episode.since if episode.update(holds, step, patience) else None

    def _settings(self, name: str) -> str:
        return " or ".join(f"objective.{term}.{name}" for term in self.terms) or name

    def _explosion(self, step: int, norm: float) -> str | None:
        median = sorted(self._norms)[len(self._norms) // 2] if len(self._norms) >= 10 else None
        large = not math.isfinite(norm) or (median is not None and norm > self.explosion * median)
        if math.isfinite(norm):
            self._norms.append(norm)
        recent = self._last_explosion is not None and step - self._last_explosion < self.quiet
        if self._held("explosion", large, step, 1) is None or recent:
            return None
        self._last_explosion = step
        usual = "" if median is None else f", {norm / median:.0f} times the running median {median:.3g}"
        return (
            f"gradient norm {norm:.3g}{usual}. CLEAR saw gradients explode with subs and reorder alone. If "
            f"it comes again: {self.advice}; with --resume auto."
        )

    def _not_finite(self, step: int, losses: dict[str, float]) -> str | None:
        broken = [name for name, value in losses.items() if not math.isfinite(value)]
        if self._held("not finite", bool(broken), step, 1) is None:
            return None
        return f"the loss is not finite ({', '.join(broken)}). {self.advice}; with --resume auto."
