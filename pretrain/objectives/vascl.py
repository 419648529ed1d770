"""VaSCL (Zhang et al. 2022): virtual augmentation in the neighbourhood of a sentence vector."""

from dataclasses import replace

import torch
from torch import Tensor

from pretrain.config.run import Config
from pretrain.losses.contrastive import nt_xent
from pretrain.losses.exclusions import Guide, Meanings
from pretrain.losses.neighbourhood import (
    NONE,
    nearest_neighbours,
    neighbourhood_loss,
    random_directions,
    virtual_augmentation,
)
from pretrain.losses.vectors import unit_vectors
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.heads import vascl_head
from pretrain.objectives.base import BatchContext, Objective, Views, exclusions, joint


class Vascl(Objective):
    """VaSCL: NT-Xent of two dropout views, and the neighbourhood-constrained loss of a virtual augmentation.

    Equations 1, and 2 to 5, through a head d -> d -> 128 without biases. Neighbours are those of the whole
    global batch.

    Reading `code`: the sentence vector under the virtual augmentation is detached, so that the neighbourhood
    loss shapes the head alone; neighbours are the nearest by dot product; the augmentation's start is uniform
    on a cube. `paper`: the loss trains the encoder too, as equation 5 reads; "similarity" is the cosine, as
    beside equation 1; the start is Gaussian.
    """

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = settings = config.objective.vascl
        self.as_printed = settings.reading == "paper"
        self.smallest_batch = settings.neighbours + 1 if settings.neighbourhood_weight else 2
        self.head = vascl_head(encoder.hidden_size, settings.projection_size)

    def weights(self, step: int) -> dict[str, float]:
        weight, rise = self.settings.weight, self.settings.rise(step)
        return {"vascl": weight * rise, "vascl_neighbourhood": self.settings.neighbourhood_weight * rise}

    def negatives(self, batch: int) -> int:
        return 2 * batch - 2

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        settings, first = self.settings, views["anchor"]
        same = exclusions(settings, context, None)

        def loss(views: Views, guide: Guide | None) -> Tensor:
            return nt_xent(
                joint(self.head, [views["anchor"], views["positive"]]),
                settings.temperature,
                replace(same, guide=guide),
            )

        losses = {"vascl": self.contrast("vascl", views, context, loss)}
        if settings.neighbourhood_weight:
            still = first.detach()
            neighbours = nearest_neighbours(
                unit_vectors(still) if self.as_printed else still,
                settings.neighbours,
                groups=same.groups,
                identities=None
                if same.identities is None
                else Meanings.of(same.identities, still.device).records,
            )
            # Of texts that fill most of a batch, few others are left: such rows have fewer neighbours, and
            # are counted.
            context.measures["vascl_rows_short_of_neighbours"] = (neighbours[:, -1] == NONE).sum()
            start = random_directions(still, context.generator(), gaussian=self.as_printed)
            delta = virtual_augmentation(
                self.head, still, neighbours, settings.temperature, settings.radius, start
            )
            reached = first if self.as_printed else still
            clean = self.head(reached) if self.as_printed else self.head(reached).detach()
            if context.collects_diagnostics:
                at_rest, at_random = self._unattacked(still, clean.detach(), neighbours, start)
            losses["vascl_neighbourhood"] = neighbourhood_loss(
                clean, self.head(reached + delta), neighbours, settings.temperature
            )
            if context.collects_diagnostics:
                attacked = losses["vascl_neighbourhood"].detach()
                context.measures["vascl_neighbourhood_rise"] = attacked - at_rest
                context.measures["vascl_neighbourhood_rise_of_random"] = at_random - at_rest
        return losses

    @torch.no_grad()
    def _unattacked(
        self, vectors: Tensor, clean: Tensor, neighbours: Tensor, start: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the neighbourhood loss without a delta, and with a random one of the same length.

        The random one is the start that the virtual augmentation discards.
        """
        delta = self.settings.radius * start
        return tuple(
            neighbourhood_loss(clean, moved, neighbours, self.settings.temperature)
            for moved in (clean, self.head(vectors + delta))
        )
