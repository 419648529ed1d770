"""AugCSE (Tang et al. 2022): many augmentations, and a discriminator that must not recognise them."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pretrain.common.transfer import send
from pretrain.config.run import Config
from pretrain.losses.adversary import (
    Discriminator,
    discriminator_accuracy,
    discriminator_loss,
    majority_share,
    reverse_gradient,
)
from pretrain.losses.contrastive import info_nce, symmetric_info_nce
from pretrain.losses.exclusions import Guide
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.heads import batch_norm_head
from pretrain.objectives.base import BatchContext, Objective, Views, exclusions, joint


class Augcse(Objective):
    """AugCSE: a symmetric contrastive loss, and lambda times the loss of a discriminator of augmentations.

    The discriminator reads [P(x); P(aug(x))] and tells the augmentation. Its gradient is reversed (alpha
    = -1), so that the encoder learns to hide it.

    Reading `paper`: the discriminator of its listing A.5; and the contrastive loss is symmetric only where
    the augmentation is the positive (section 5.5), else SimCSE's. `code` has it symmetric always.

    Projection and its batch norm see originals and augmentations together. A label says which augmentation
    was drawn, or that it changed nothing. The discriminator's dropout is the same on every rank.
    """

    @classmethod
    def roles_of(cls, config: Config) -> tuple[str, ...]:
        return (
            ("anchor", "augmented")
            if config.objective.augcse.positive == "augmented"
            else ("anchor", "positive", "augmented")
        )

    @classmethod
    def labelled_role_of(cls, config: Config) -> str | None:
        return "augmented" if config.objective.augcse.discriminator_weight else None

    def __init__(self, config: Config, encoder: SentenceEncoder, number_of_labels: int):
        """`number_of_labels`: augmentations, and one for "nothing changed"."""
        super().__init__()
        self.settings = settings = config.objective.augcse
        self.roles = self.roles_of(config)
        self.number_of_labels = number_of_labels
        outputs = {"augmentation": number_of_labels, "bool": 2, "order": 2}[settings.labels]
        self.head = batch_norm_head(encoder.hidden_size, initializer_range=None)
        if settings.discriminator_weight:
            self.discriminator = Discriminator(2 * encoder.hidden_size, outputs, form=settings.reading)

    def weights(self, step: int) -> dict[str, float]:
        weight, rise = self.settings.weight, self.settings.rise(step)
        return {"augcse": weight * rise, "augcse_discriminator": self.settings.discriminator_weight * rise}

    @property
    def compared(self) -> tuple[str, ...]:
        return self.roles[:2]  # a third is the discriminator's alone

    def alpha(self, progress: float) -> float:
        """Return the factor on the gradient that the encoder gets from the discriminator."""
        if self.settings.alpha_schedule == "constant":
            return self.settings.alpha
        return self.settings.alpha * (2 / (1 + math.exp(-10 * progress)) - 1)

    def negatives(self, batch: int) -> int:
        return batch - 1

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        settings = self.settings

        def projected(vectors: Views) -> Views:
            return dict(
                zip(self.roles, joint(self.head, [vectors[role] for role in self.roles]), strict=True)
            )

        z = projected(views)
        positive = "augmented" if settings.positive == "augmented" else "positive"
        contrast: Callable[..., Tensor] = symmetric_info_nce
        if settings.reading == "paper" and positive == "positive":
            contrast = info_nce

        def loss(vectors: Views, guide: Guide | None) -> Tensor:
            both = z if vectors is views else projected(vectors)
            same = exclusions(settings, context, guide, positive)
            return contrast(both["anchor"], both[positive], settings.temperature, same)

        losses = {"augcse": self.contrast("augcse", views, context, loss, ("anchor", positive))}
        if settings.discriminator_weight:
            logits, labels = self._discriminate(z["anchor"], z["augmented"], context)
            losses["augcse_discriminator"] = discriminator_loss(logits, labels)
            context.measures["discriminator_accuracy"] = discriminator_accuracy(logits, labels)
            context.measures["discriminator_majority_share"] = majority_share(labels, logits.shape[1])
        return losses

    def _discriminate(
        self, original: Tensor, augmented: Tensor, context: BatchContext
    ) -> tuple[Tensor, Tensor]:
        """Logits [N, outputs] and labels int64[N]."""
        assert context.labels is not None  # the view is labelled
        nothing_changed = context.labels == self.number_of_labels - 1
        labels = {"augmentation": context.labels, "bool": (~nothing_changed).long()}.get(self.settings.labels)
        pair = [original, augmented]
        if labels is None:  # order: is the first of the two the augmented one?
            drawn = torch.randint(0, 2, (len(original),), generator=context.generator(1))
            (labels,) = send([drawn], original.device)
            swap = labels.bool()[:, None]
            pair = [torch.where(swap, augmented, original), torch.where(swap, original, augmented)]
        features = reverse_gradient(torch.cat(pair, 1), -self.alpha(context.progress))
        with torch.random.fork_rng(devices=[original.device] if original.is_cuda else []):
            torch.manual_seed(context.generator(2).initial_seed())
            return self.discriminator(features), labels
