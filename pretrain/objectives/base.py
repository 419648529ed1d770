"""What an objective is: losses of the sentence vectors of a whole global batch, written as in the papers.

An objective owns its heads and says, of the sentence vectors of the WHOLE global batch, what its losses are.
It knows nothing of micro-batches, ranks or memory: `pretrain.step.whole_batch` makes sure that the gradient
is that of the whole batch. What it declares:

roles           the views it embeds of each sequence: "anchor", "positive" ...; `augment.*` says how each is
                made
relate          its sentence-level losses
sequence_loss   a loss of one sequence at a time (a perturbed forward pass, replaced-token detection), which
                may be conditioned on a vector that depends on the whole batch
momentum        an encoder that follows the trained one and is not trained
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.config.run import Config
from pretrain.config.terms import FalseNegativesConfig
from pretrain.data.batch import NEGATIVE, column_of
from pretrain.data.microbatches import MicroBatch
from pretrain.losses.exclusions import Exclusions, Guide
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.heads import ProjectionHead


class Probe:
    """Add up numbers over micro-batches and ranks, on the device: the host waits for none of them.

    >>> probe = Probe()
    >>> vectors = torch.ones(2, 3, requires_grad=True)
    >>> probe.watch(vectors)
    >>> probe.add(tokens=torch.tensor(5))
    >>> (2 * vectors).sum().backward()
    >>> {name: float(value) for name, value in probe.sums.items()}
    {'tokens': 5.0, 'squared_gradient': 24.0}
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, **values: Tensor) -> None:
        """Add scalars to the sums of their names, in float64. All ranks must use the same names."""
        for name, value in values.items():
            value = value.detach().double()
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def watch(self, vectors: Tensor) -> None:
        """Add the squares of the gradient on `vectors`, when it comes, to the sum "squared_gradient"."""
        if vectors.requires_grad:
            vectors.register_hook(
                lambda gradient: self.add(squared_gradient=gradient.double().square().sum())
            )

    def gather(self) -> dict[str, Tensor]:
        """Return the sums over all ranks, which must all call it: name -> float64 scalar."""
        names = sorted(self.sums)
        if not names:
            return {}
        values = torch.stack([self.sums[name] for name in names])
        dist.all_reduce(values)
        return dict(zip(names, values))


Views = dict[str, Tensor]
"""Role -> float32[N, d], the sentence vectors of the whole global batch."""


@dataclass(frozen=True)
class BatchContext:
    """What an objective may know of the global batch beside the sentence vectors.

    step: optimizer step, from 0. progress: share of the training done, in [0, 1).
    groups: int64[N], the rank that holds each sequence; only for `objective.scope: local`.
    identities: role -> int64[N] on the CPU, equal if the sources of two views are equal; None if
        duplicates count as negatives.
    present: role -> bool[N], whether the data had a source for the view (else it was made from the sequence
        itself).
    labels: int64[N] of the labelled view, or the bits of `scores`, or None.
    seed: of whatever is random in an objective: the same on every rank.
    guided: role -> float32[N, g], the vectors of the encoder that `objective.false_negatives.guide` names;
        None if it names none.
    condition_gradients: name -> gradient of the sequence losses with respect to `Objective.conditions`;
        surrogates: scalars that carry it through the heads (`condition`).
    measures: where `relate` may leave numbers for the metrics: scalars on the device, which nobody waits for.
    collects_diagnostics: whether the step ends a row of metrics: then `relate` also leaves what is too dear
        for every step (checks of its mechanism).
    """

    step: int
    progress: float
    groups: Tensor
    identities: dict[str, Tensor] | None
    present: dict[str, Tensor]
    labels: Tensor | None
    seed: int
    guided: Views | None = None
    condition_gradients: dict[str, Tensor] = field(default_factory=dict)
    surrogates: list[Tensor] = field(default_factory=list)
    measures: dict[str, Tensor | float] = field(default_factory=dict)
    collects_diagnostics: bool = False

    @property
    def scores(self) -> Tensor:
        """Return how alike the texts of each pair are, of data that has scores: float32[N]."""
        assert self.labels is not None  # the data was checked at the start
        return self.labels.int().view(torch.float32)

    def generator(self, purpose: int = 0) -> torch.Generator:
        """Return a generator on the CPU, the same on every rank at a step; `purpose` tells several apart."""
        seed = np.random.SeedSequence([self.seed, self.step, purpose]).generate_state(1, np.uint64)[0]
        return torch.Generator().manual_seed(int(seed >> 1))

    def condition(self, name: str, values: Tensor) -> None:
        """Let the sequence losses' gradient flow into what `conditions` returned, here with gradients."""
        if name in self.condition_gradients:
            self.surrogates.append((values * self.condition_gradients[name]).sum())


class Objective(nn.Module):
    """Base of all objectives: the losses of a system, and its heads.

    Its submodules are the heads: float32, and dropped at export but for `kept_head`.

    Subclass it in a file of your own and train with `--objective FILE.py:CLASS`; it is built as CLASS(config,
    encoder), with `config.objective.options` for its settings.

    roles: the views that it embeds of each sequence (`roles_of`, where settings decide).
    settings: the section of the configuration that a `Term` describes. full_weights: loss -> weight; an
        objective without them has its own `weights`. The sum lets them rise (`objective.start_step`).
    scored: whether it learns from the scores of pairs (`BatchContext.scores`).
    smallest_batch: the fewest sequences that its losses are defined for.
    rivals: how many vectors of each other sequence are negatives of an anchor (`negatives`).
    sequence_roles: roles whose views `sequence_loss` reads, in passes of their own.
    momentum_role: the role that the momentum encoder embeds, if it has one.
    probe: where `sequence_loss` leaves sums for `sequence_checks`, at steps that end a row of metrics; None
        at all others.
    false_negatives, scope: as in `objective`, for `contrast`. widths: of `objective.matryoshka`; empty: the
        whole width alone. All are set when the sum of objectives is built.

    >>> class Near(Objective):
    ...     def weights(self, step):
    ...         return {"near": 1.0}
    ...
    ...     def relate(self, views, context):
    ...         return {"near": (views["anchor"] - views["positive"]).norm(dim=1).mean()}
    >>> views = {"anchor": torch.tensor([[1.0, 0.0], [0.0, 1.0]]), "positive": torch.zeros(2, 2)}
    >>> Near().relate(views, context=None)
    {'near': tensor(1.)}
    """

    roles: tuple[str, ...] = ("anchor", "positive")
    settings: Any = None
    full_weights: Mapping[str, float] = MappingProxyType({})
    scored: bool = False
    smallest_batch: int = 2
    rivals: int = 0
    sequence_roles: tuple[str, ...] = ()
    sequence_term: str = ""
    momentum_role: str | None = None
    probe: Probe | None = None
    false_negatives: FalseNegativesConfig = FalseNegativesConfig()
    widths: tuple[int, ...] = ()
    scope: Literal["global", "local"] = "global"

    @classmethod
    def roles_of(cls, config: Config) -> tuple[str, ...]:
        """Return the roles under a configuration: the data is opened before the model is built."""
        return cls.roles

    @classmethod
    def labelled_role_of(cls, config: Config) -> str | None:
        """Return the role whose augmentation the objective must know (`BatchContext.labels`), if any."""
        return None

    def weights(self, step: int) -> dict[str, float]:
        """Return the weight of every named loss at this step; if all are 0 nothing is computed."""
        if self.settings is None:
            raise NotImplementedError(f"{type(self).__name__} has no method weights(step)")
        return dict(self.full_weights)

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        """Return the sentence-level losses by name: scalars, without their weights.

        It must leave nothing behind but `context.measures`: at steps that end a row of metrics it is called
        again, for each loss's share of the gradient (`remember` is for what a next step needs).
        """
        raise NotImplementedError

    def contrast(
        self,
        name: str,
        head: nn.Module,
        views: Views,
        context: BatchContext,
        loss: Callable[[Tensor, Exclusions, bool], Tensor],
        roles: tuple[str, ...] = ("anchor", "positive"),
        z: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return a contrastive loss of a head's outputs, by name, as the options of all such losses say.

        With `objective.matryoshka` it is the sum of the losses of vectors that are cut to each width
        (Matryoshka representation learning, Kusupati et al. 2022, equation 1). The coordinates beyond a width
        are 0 and not gone, so that a head, shared by all widths, takes them; a cosine is the same.

        Args:
            name: of the loss, and the start of its measures' names.
            head: on the vectors of all views at once, so that a batch norm sees them all.
            views: V roles -> [N, d].
            loss: of the head's outputs [V, N, e], what is no negative, and whether the vectors have the whole
                width.
            roles: of anchors, positives and, if there are any, hard negatives.
            z: the head's outputs of the whole width, if the caller has them.
        """
        guide = None
        if self.false_negatives.guide != "none":
            guiding = views if self.false_negatives.model is None else context.guided
            assert guiding is not None  # a guide's vectors come with the step's
            anchors, positives, *negatives = (guiding[role].detach() for role in roles)
            guide = Guide(
                anchors,
                positives,
                negatives=torch.cat(negatives) if negatives else None,
                margin=self.false_negatives.margin,
                strategy=self.false_negatives.strategy,
                counting=context.collects_diagnostics,
            )
        same = self.exclusions(context, guide, tuple(r for r in roles if column_of(r) != NEGATIVE))
        vectors = list(views.values())
        whole = vectors[0].shape[1]
        total = None
        for width in self.widths or (whole,):
            if width == whole:
                value = loss(joint(head, vectors) if z is None else z, same, True)
            else:
                with running_statistics_kept(self):  # a head's are of whole vectors
                    value = loss(joint(head, [cut(part, width) for part in vectors]), same, False)
            if self.widths and context.collects_diagnostics:
                context.measures[f"{name}_at_{width}"] = value.detach()
            total = value if total is None else total + value
        if guide is not None and context.collects_diagnostics:
            context.measures[f"{name}_masked_share"] = guide.share()
        return {name: total}

    def of_views(self, loss: Callable[..., Tensor]) -> Callable[[Tensor, Exclusions, bool], Tensor]:
        """Return a loss for `contrast`: of all views together, at the temperature of `settings`."""
        return lambda z, same, whole: loss(z, self.settings.temperature, same)

    def of_two_views(self, loss: Callable[..., Tensor]) -> Callable[[Tensor, Exclusions, bool], Tensor]:
        """Return a loss for `contrast`: of view 1 against view 2 alone, at the temperature of `settings`."""
        return lambda z, same, whole: loss(z[0], z[1], self.settings.temperature, same)

    def exclusions(
        self, context: BatchContext, guide: Guide | None = None, texts: Sequence[str] = ("anchor", "positive")
    ) -> Exclusions:
        """Return what a loss of anchors and positives, views of those roles, must not take for negatives."""
        groups = context.groups if self.scope == "local" else None
        return Exclusions(groups, stacked_identities(context, texts), guide)

    @property
    def compared(self) -> tuple[str, ...]:
        """The roles that its contrastive loss compares: if all are the same, it can learn nothing."""
        return self.roles

    @property
    def kept_head(self) -> ProjectionHead | None:
        """The head whose output is the sentence vector in use: a `simcse_head`; None: the pooled one is."""
        return None

    def negatives(self, batch: int) -> int:
        """Return how many negatives an anchor has in a batch of `batch` sequences, for display; 0: none."""
        return self.rivals * (batch - 1)

    def given_negatives(self, batch: int) -> int:
        """Return how many of `negatives` are views of `given_roles`: none if the data lacks them."""
        return 0

    @property
    def given_roles(self) -> tuple[str, ...]:
        """The roles that `given_negatives` counts."""
        return tuple(role for role in self.roles if column_of(role) == NEGATIVE)

    def conditions(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        """Return what `sequence_loss` is conditioned on: role -> [N, c], without gradients.

        Called before `relate`, which must hand the same values, with gradients, to `BatchContext.condition`.
        """
        return {}

    def sequence_loss(
        self, encoder: SentenceEncoder, role: str, row: MicroBatch, condition: Tensor | None
    ) -> Tensor:
        """Sum the loss `sequence_term` over the n sequences of a packed row.

        Hand the row's keys to the encoder, whose dropout goes by them; `derive` others for a second pass with
        other dropout. Seed torch again by the row's seed for a second pass with the same draws.

        condition: [n, c], the sequences' rows of `conditions()[role]`, or None.
        """
        raise NotImplementedError

    def sequence_scale(self, sequences: int, tokens: int) -> float:
        """Return the factor on the sum of `sequence_loss` over the global batch, all roles together."""
        return 1.0 / max(1, sequences)

    def sequence_checks(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return numbers for the metrics, of the global batch's sums in `probe`: float64 scalars."""
        return {}

    def touch_unused_heads(self, device: torch.device) -> Tensor:
        """Return a zero that depends on every parameter that `relate` does not reach, for idle steps."""
        return torch.zeros((), device=device)

    def remember(self, vectors: Tensor, identities: Tensor) -> None:
        """Take the momentum encoder's vectors of `momentum_role`, after the step's losses.

        vectors: float32[N, d]. identities: int64[N], of their texts.
        """


class MomentumEncoder(nn.Module):
    """A copy of `source` that is never trained and has no dropout; `follow` moves it towards the source.

    m <- gamma m + (1 - gamma) p (He et al. 2020, "MoCo", equation 2). Its parameters are saved with the
    model's. With ZeRO 3 both are cut in the same way, and each rank moves its part.
    """

    def __init__(self, source: nn.Module, momentum: float):
        super().__init__()
        self.copy = copy.deepcopy(source).requires_grad_(False).eval()
        self.momentum = momentum
        self._source = [source]  # in a list: not a submodule of this one

    def train(self, mode: bool = True) -> "MomentumEncoder":
        return super().train(False)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.copy(*inputs)

    @torch.no_grad()
    def follow(self) -> None:
        """One step of the average, in place."""
        for own, followed in zip(self.copy.parameters(), self._source[0].parameters(), strict=True):
            part, towards = (getattr(p, "ds_tensor", p.data) for p in (own, followed))
            part.lerp_(towards.to(part.dtype), 1 - self.momentum)
        for own, followed in zip(self.copy.buffers(), self._source[0].buffers(), strict=True):
            own.copy_(followed)


def cut(vectors: Tensor, width: int) -> Tensor:
    """Return vectors [N, d] with 0 in all coordinates but the first `width`.

    >>> cut(torch.tensor([[3.0, 4.0, 5.0]]), 2)
    tensor([[3., 4., 0.]])
    """
    return torch.nn.functional.pad(vectors[:, :width], (0, vectors.shape[1] - width))


@contextmanager
def running_statistics_kept(module: nn.Module) -> Iterator[None]:
    """Batch norm inside uses the batch's statistics and leaves its running ones as they are."""
    kind = nn.modules.batchnorm._BatchNorm
    norms = [norm for norm in module.modules() if isinstance(norm, kind) and norm.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


def joint(head: nn.Module, views: Sequence[Tensor]) -> Tensor:
    """Apply `head` to all views at once, so that a batch norm sees them all: V x [N, d] -> [V, N, e]."""
    return head(torch.cat(list(views))).unflatten(0, (len(views), -1))


def share_of_loss(loss: Tensor, without: Tensor) -> Tensor:
    """Return the part of a loss, 0 to 1, that it lacks without some of its negatives: a scalar.

    Where positives have nearly all of the softmax, it is those negatives' part of the gradient.
    """
    return torch.where(loss.detach() > 0, 1 - without / loss.detach(), 0.0)


def stacked_identities(context: BatchContext, roles: Sequence[str]) -> Tensor | None:
    """Return int64[len(roles), N], or None if duplicates count as negatives."""
    return None if context.identities is None else torch.stack([context.identities[role] for role in roles])
