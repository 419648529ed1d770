"""AugCSE (Tang et al. 2022): many augmentations, and a discriminator that must not recognise them."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from pretrain.common.transfer import send
from pretrain.config.run import Config
from pretrain.losses.contrastive import info_nce, symmetric_info_nce
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.heads import batch_norm_head
from pretrain.model.kernels.plain import at_least_float32
from pretrain.objectives.base import BatchContext, Objective, Views, joint


class Augcse(Objective):
    """AugCSE: a symmetric contrastive loss, and lambda times the loss of a discriminator of augmentations.

    The discriminator reads [P(x); P(aug(x))] and tells the augmentation. Its gradient is reversed (alpha
    = -1), so that the encoder learns to hide it.

    Reading `paper`: the discriminator of its listing A.5; and the contrastive loss is symmetric only if
    the augmentation is the positive (section 5.5), else SimCSE's. `code` has it symmetric always.

    Projection and its batch norm see originals and augmentations together. A label says which augmentation
    was drawn, or that it changed nothing. The discriminator's dropout is the same on every rank.
    """

    rivals = 1

    @classmethod
    def roles_of(cls, config: Config) -> tuple[str, ...]:
        is_positive = config.objective.augcse.positive == "augmented"
        return ("anchor", "augmented") if is_positive else ("anchor", "positive", "augmented")

    @classmethod
    def labelled_role_of(cls, config: Config) -> str | None:
        return "augmented" if config.objective.augcse.discriminator_weight else None

    def __init__(self, config: Config, encoder: SentenceEncoder, number_of_labels: int):
        super().__init__()
        self.settings = settings = config.objective.augcse
        self.full_weights = {"augcse": settings.weight, "augcse_discriminator": settings.discriminator_weight}
        self.roles = self.roles_of(config)
        self.number_of_labels = number_of_labels
        outputs = {"augmentation": number_of_labels, "bool": 2, "order": 2}[settings.labels]
        self.head = batch_norm_head(encoder.hidden_size, initializer_range=None)
        if settings.discriminator_weight:
            self.discriminator = Discriminator(2 * encoder.hidden_size, outputs, form=settings.reading)

    @property
    def compared(self) -> tuple[str, ...]:
        return self.roles[:2]  # a third is the discriminator's alone

    def alpha(self, progress: float) -> float:
        """Return the factor on the gradient that the encoder gets from the discriminator."""
        if self.settings.alpha_schedule == "constant":
            return self.settings.alpha
        return self.settings.alpha * (2 / (1 + math.exp(-10 * progress)) - 1)

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        settings, z = self.settings, joint(self.head, [views[role] for role in self.roles])
        contrast: Callable[..., Tensor] = symmetric_info_nce
        if settings.reading == "paper" and settings.positive != "augmented":
            contrast = info_nce

        loss = self.of_two_views(contrast)
        losses = self.contrast("augcse", self.head, views, context, loss, self.compared, z)
        if settings.discriminator_weight:
            logits, labels = self._discriminate(z[0], z[-1], context)
            losses["augcse_discriminator"] = discriminator_loss(logits, labels)
            context.measures["discriminator_accuracy"] = (logits.argmax(1) == labels).float().mean()
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


def reverse_gradient(values: Tensor, scale: float) -> Tensor:
    """Return the values; in the backward pass multiply the gradient by -scale (alpha -1 is a scale of +1).

    Gradient reversal is Ganin and Lempitsky's (2015); AugCSE, appendix A.4.
    """
    same = values.view_as(values)
    if same.requires_grad:
        same.register_hook(lambda gradient: gradient * -scale)
    return same


class Discriminator(nn.Module):
    """Tells the augmentation from projected vectors of a sentence and its augmentation, side by side.

    form "code" (the authors' repository, training/discriminator.py, two layers):
        dropout, Linear(in, 2 in), tanh, dropout, Linear(2 in, outputs), tanh: logits lie in (-1, 1).
    form "paper" (appendix A.5):
        dropout, Linear(in, 2 in), tanh, dropout, Linear(2 in, in), tanh, which the listing calls a projection
        and which ends there, without a classifier; a Linear(in, outputs) without tanh follows here.

    It computes in its parameters' dtype, also under autocast.
    """

    def __init__(self, in_features: int, outputs: int, form: str = "code", dropout: float = 0.2):
        super().__init__()
        assert form in ("code", "paper") and outputs > 1
        wide = 2 * in_features
        second = outputs if form == "code" else in_features
        modules = [nn.Dropout(dropout), nn.Linear(in_features, wide), nn.Tanh()]
        modules += [nn.Dropout(dropout), nn.Linear(wide, second), nn.Tanh()]
        if form == "paper":
            modules.append(nn.Linear(in_features, outputs))
        self.layers = nn.Sequential(*modules)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map [N, in_features] of any floating dtype to logits [N, outputs] in the module's dtype."""
        with torch.autocast(vectors.device.type, enabled=False):
            return self.layers(vectors.to(self.layers[1].weight.dtype))


def discriminator_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over N x outputs of binary cross-entropies against the one-hot label (equation 2).

    logits: [N, outputs]. labels: int64[N]. With the "code" form's logits in (-1, 1) the least possible loss
    is log(1 + exp(-1)) = 0.313. It is not a softmax.
    """
    with torch.autocast(logits.device.type, enabled=False):
        values = at_least_float32(logits)
        # not `one_hot`, which reads the labels to check them
        right = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
        return binary_cross_entropy_with_logits(values, right.to(values.dtype))


def majority_share(labels: Tensor, outputs: int) -> Tensor:
    """Return the accuracy of always answering the most frequent label: a scalar float32.

    labels: int64[N], below `outputs`.

    >>> majority_share(torch.tensor([2, 0, 2, 1]), 4)
    tensor(0.5000)
    """
    # not `bincount`, which reads the labels to size its result
    return (labels[:, None] == torch.arange(outputs, device=labels.device)).float().mean(0).amax()
