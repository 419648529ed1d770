"""What a sample of the data shows of the views before training: their lengths, and whether they differ.

A contrastive loss learns the easiest feature. Where two views of a sequence are about equally long, and those
of others are not, that feature is their length. `measure_lengths` augments a sample as training does, and
computes what an encoder that reads nothing but lengths could reach.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from augment.spec.grammar import loads_models, parse
from pretrain.common.errors import UserError
from pretrain.config.objectives import ObjectiveConfig
from pretrain.config.run import Config
from pretrain.data.batch import BatchSpec, ViewSpec
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.masking import Masking
from pretrain.objectives import SYSTEMS, WholeObjective
from pretrain.start.data import Data

# sequences and tokens augmented at most: a second, and a few chunks read
SAMPLE, SAMPLE_TOKENS = 8192, 1 << 21
SAMPLE_OF_MODELS = 512  # where language models make the views
DROWNED = 0.05  # least `signal_to_noise` at which a sentence loss learns; from 0.11 it did, by short excerpts
_STEP = 512
_BINS = (1, 4, 8, 16, 32, 64, 128)
_SMOOTHING = (0.01, 0.1, 1.0)


@dataclass(frozen=True)
class LengthShortcut:
    """What lengths alone reveal of a sample of the data.

    Attributes:
        sequences: how many were augmented.
        candidates: N, among which each view's partner is.
        correlation: of the two views' lengths (Pearson; 0 where all lengths of one are equal).
        loss: NT-Xent in nats of a matcher that sees lengths alone; chance is ln N.
        lengths: int64[2, sequences], of the two views. losses: by the number of candidates.
    """

    sequences: int
    candidates: int
    correlation: float
    loss: float
    lengths: np.ndarray = field(repr=False, compare=False)
    losses: dict[float, float] = field(default_factory=dict, repr=False, compare=False)

    def loss_among(self, candidates: int) -> float:
        """Return the loss of that matcher where a view's partner is among N candidates.

        CLEAR's loss has 2N - 1: the views of other sequences, both of each, count as N does here.
        """
        if candidates not in self.losses:
            self.losses[candidates] = matcher_loss(self.lengths[0], self.lengths[1], candidates)
        return self.losses[candidates]

    def __str__(self) -> str:
        return (
            f"the lengths of two views correlate at {self.correlation:.3f}; lengths alone would give NT-Xent "
            f"{self.loss:.2f} (chance: {math.log(self.candidates):.2f}; {self.sequences:,} sequences)"
        )


def measure_lengths(data: Data, max_length: int, recorded: Sequence[dict] = ()) -> LengthShortcut | None:
    """Augment a sample of the data as training does, and compare the lengths of its first two views.

    A view's partner is among the sequences of a global batch.

    Args:
        max_length, recorded: as for `Loader`.

    Returns:
        None where there are fewer than two views.
    """
    if len(data.views) < 2:
        return None
    train, reader = data.config.train, data.train.parts[0]
    views = [ViewSpec(view.role, view.augmentation) for view in data.views[:2]]
    wanted = SAMPLE_OF_MODELS if any(loads_models(view.augmentation) for view in views) else SAMPLE
    size = min(_STEP, reader.num_sequences)
    steps = min(-(-wanted // size), reader.num_sequences // size)
    batches = Loader(
        reader,
        BatchSpec(views, Masking(copies=0), data.vocabulary, data.synonyms, max_length),
        LoaderSettings(train.seed, global_batch=size, lanes=1, damaged=data.config.data.damaged),
        Position(0, steps, recorded=recorded),
    )
    lengths: list[np.ndarray] = []
    tokens = 0
    for batch in batches:
        lengths.append(np.stack([view.tokens.lengths for view in batch.views.values()]))
        tokens += batch.original.num_tokens
        if tokens >= SAMPLE_TOKENS:
            break
    both = np.concatenate(lengths, axis=1)
    first, second = both
    varied = first.std() > 0 and second.std() > 0
    correlation = float(np.corrcoef(first, second)[0, 1]) if varied else 0.0
    candidates = train.global_batch
    return LengthShortcut(len(first), candidates, correlation, matcher_loss(first, second, candidates), both)


def matcher_loss(first: np.ndarray, second: np.ndarray, candidates: int) -> float:
    """Return the NT-Xent that a matcher reaches from lengths alone, at N = `candidates`.

    That is the mean of -log (r(a, b) / sum over N of r(a, b')), where r is the ratio of the joint frequency
    of two lengths to the product of their own frequencies, the best possible score. Lengths are put into bins
    of equal counts. r is estimated on every second pair and evaluated on the others, so the loss can really
    be reached; the best of several numbers of bins counts.

    Args:
        first, second: int64[n], lengths of view 1 and 2 of n sequences.
    """
    losses = []
    for bins, smoothing in itertools.product(_BINS, _SMOOTHING):
        rows, columns = _binned(first, bins), _binned(second, bins)
        shape = (rows.max() + 1, columns.max() + 1)
        joint = np.zeros(shape)
        np.add.at(joint, (rows[::2], columns[::2]), 1)
        strangers = np.outer(joint.sum(1), joint.sum(0)) / joint.sum()
        ratio = (joint + smoothing) / (strangers + smoothing)
        a, b = rows[1::2], columns[1::2]
        own = ratio[a, b]
        share = np.bincount(b, minlength=shape[1]) / len(b)
        losses.append(float(np.mean(np.log(own + (candidates - 1) * (ratio @ share)[a]) - np.log(own))))
    return min(losses)


def _binned(lengths: np.ndarray, bins: int) -> np.ndarray:
    """Return the bin of each length, int64[n]; equal lengths share one, and bins hold about as many."""
    edges = np.unique(np.quantile(lengths, np.arange(1, bins) / bins))
    return np.searchsorted(edges, lengths, side="right")


def require_signal(
    config: Config, objective: WholeObjective, signal: float, warn: Callable[[str], None]
) -> None:
    """Warn before the first step that the sentence loss will not learn, or refuse to go on.

    Args:
        signal: `view_signal` of the start (`pretrain.step.heldout`).

    Raises:
        UserError: it will not, and `train.faults.dead_loss` is stop.
    """
    if signal >= DROWNED or not objective.needs_views(config.train.steps - 1):
        return
    model, remedy = config.model, "views that differ less (--augment.excerpt, --aug)"
    if config.objective.view_dropout and (model.dropout or model.attention_dropout):
        remedy = "--objective.view_dropout false (masked language modelling keeps dropout), or " + remedy
    if model.pooling == "cls":
        remedy = "--model.pooling mean, or " + remedy
    message = (
        f"this setting will not learn the sentence loss: two views of a sequence differ more than two "
        f"sequences do (signal to noise {signal:.3f}, pooling {model.pooling}). Give {remedy}"
    )
    if config.train.faults.dead_loss == "stop":
        raise UserError(message)
    warn(message)


def require_different_views(config: Config, data: Data, objective: WholeObjective, spec: BatchSpec) -> None:
    """Refuse views of the same tokens that are embedded without dropout.

    Their vectors are equal, and a contrastive loss can only push sentences apart. Objectives of the user's
    own may draw a difference themselves.
    """
    if config.objective.view_dropout and (config.model.dropout or config.model.attention_dropout):
        return
    views = {view.role: view for view in data.views}

    def text_of(role: str) -> tuple[str, bytes]:
        column, prompt = views[role].column, spec.prompts.get(role)
        return column if column in data.train.columns else "text", b"" if prompt is None else prompt.tobytes()

    for name in filter(SYSTEMS.__contains__, objective.terms):
        section, roles = ObjectiveConfig.section(name), objective.terms[name].compared
        augmented = not all(parse(views[role].augmentation).is_identity for role in roles)
        if augmented or len(set(map(text_of, roles))) > 1 or not getattr(config.objective, section).weight:
            continue
        specs = ", ".join(dict.fromkeys(f"{role} {config.augment.of_role(role)}" for role in roles))
        raise UserError(
            f"the objective {name} compares views of a sentence that are the same tokens (augment: {specs}), "
            "and no dropout tells them apart. Set an augmentation (--aug del-span,reorder) or dropout "
            "(--model.dropout 0.1, objective.view_dropout), or train on data with a column `positive`"
        )
