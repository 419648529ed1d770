"""Objectives: what is learned from a global batch, written as in the papers.

An objective owns its heads and says, of the sentence vectors of the WHOLE global batch, what the loss is. It
knows nothing of micro-batches, ranks or memory: `pretrain.whole_batch` sees to it that the gradient is that of
the whole batch. A token-level loss (masked language modelling) is declared by a weight alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pretrain.config import Config
from pretrain.heads import ProjectionHead
from pretrain.losses.contrastive import nt_xent


@dataclass(frozen=True)
class BatchContext:
    """What an objective may know of the global batch beside the sentence vectors.

    step: optimizer step, from 0.
    groups: int64[N], the rank that holds each sequence; only for objectives whose negatives are local.
    """

    step: int
    groups: Tensor


class Objective(nn.Module):
    """Base of all objectives; its submodules are the heads, kept in float32 and dropped at export.

    views: how many augmented views of each sequence the objective embeds.
    masked_copies: how many maskings of each sequence the masked-language loss reads.
    """

    views: int = 0
    masked_copies: int = 1

    def weights(self, step: int) -> dict[str, float]:
        """Weight of every named loss at this step; a view-level loss of weight 0 is not computed at all."""
        raise NotImplementedError

    def relate(self, views: Tensor, context: BatchContext) -> dict[str, Tensor]:
        """Named sentence-level losses, unweighted scalars, of `views` (float32[views, N, d], whole global batch)."""
        return {}

    def needs_views(self, step: int) -> bool:
        return self.views > 0 and any(w > 0 for name, w in self.weights(step).items() if name != "mlm")


class MaskedLanguage(Objective):
    """Masked language modelling alone (Devlin et al. 2019); with `copies: 2`, CLEAR's Double MLM baseline."""

    def __init__(self, config: Config):
        super().__init__()
        self.weight = config.objective.mlm.weight
        self.masked_copies = config.objective.masked_copies

    def weights(self, step: int) -> dict[str, float]:
        return {"mlm": self.weight}


class Clear(Objective):
    """CLEAR (Wu et al. 2020): L = L_MLM + L_CL, L_CL = NT-Xent of g(f(view 1)), g(f(view 2)) (equations 1 to 3).

    Equation 2 sums over the 2N views; here it is their mean times `contrastive.weight`, so that the weight means
    the same at every batch size.
    """

    views = 2

    def __init__(self, config: Config, hidden_size: int):
        super().__init__()
        self.mlm_weight = config.objective.mlm.weight
        self.masked_copies = config.objective.masked_copies
        self.settings = settings = config.objective.contrastive
        self.projection: nn.Module = nn.Identity()
        if settings.projection_layers:
            self.projection = ProjectionHead(hidden_size, settings.projection_hidden or hidden_size,
                                             settings.projection_size, layers=settings.projection_layers,
                                             batch_norm=settings.projection_batch_norm)

    def weights(self, step: int) -> dict[str, float]:
        start, warmup = self.settings.start_step, self.settings.warmup_steps
        rise = 0.0 if step < start else min(1.0, (step - start + 1) / warmup) if warmup else 1.0
        return {"mlm": self.mlm_weight if self.masked_copies else 0.0, "contrastive": self.settings.weight * rise}

    def relate(self, views: Tensor, context: BatchContext) -> dict[str, Tensor]:
        z = self.projection(views.flatten(0, 1)).unflatten(0, views.shape[:2])
        groups = context.groups if self.settings.scope == "local" else None
        return {"contrastive": nt_xent(z, self.settings.temperature, groups=groups)}


def build_objective(config: Config, hidden_size: int) -> Objective:
    """The objective that `objective.name` asks for, heads freshly initialised."""
    if config.objective.name == "mlm":
        return MaskedLanguage(config)
    return Clear(config, hidden_size)


def untrained_heads_touch(objective: Objective, hidden_size: int, device: torch.device) -> Tensor:
    """A zero that depends on every head parameter, for steps whose sentence-level weight is 0.

    Every parameter then has a gradient on every rank at every step, which ZeRO's partitioned reductions want.
    """
    shape = (max(objective.views, 1), 2, hidden_size)
    noise = torch.linspace(-1, 1, shape[0] * 2 * hidden_size, device=device).view(shape)
    context = BatchContext(step=0, groups=torch.zeros(2, dtype=torch.long, device=device))
    training = objective.training
    objective.eval()  # batch norm must not count these vectors
    terms = objective.relate(noise, context)
    objective.train(training)
    return sum((term * 0.0 for term in terms.values()), torch.zeros((), device=device))
