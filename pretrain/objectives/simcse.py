"""SimCSE (Gao, Yao and Chen 2021), and what is SimCSE but for its views: SDA, ESimCSE, DeCLUTR."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from pretrain.common.transfer import send
from pretrain.config.run import Config
from pretrain.data.batch import NEGATIVE
from pretrain.losses.contrastive import (
    Negatives,
    info_nce,
    nt_xent,
    relaxed_negative_info_nce,
    symmetric_info_nce,
)
from pretrain.losses.exclusions import Exclusions
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.heads import ProjectionHead, batch_norm_head, simcse_head
from pretrain.objectives.base import (
    BatchContext,
    MomentumEncoder,
    Objective,
    Views,
    joint,
    share_of_loss,
    stacked_identities,
)

HEADS: dict[str, Callable[[int], nn.Module]] = {
    "mlp": simcse_head,
    "batch-norm": batch_norm_head,
    "none": nn.Identity,
}
"""`objective.simcse.head` -> the head on vectors of this width."""


class Simcse(Objective):
    """SimCSE: a sentence is its own positive, under other dropout (`--aug none`).

    Supervised, on data with columns, the positive of an NLI premise is the entailed hypothesis, and its hard
    negative the contradicting one.

    Equation 1 and, with hard negatives, 5: as the public code has it, every row sees all hard negatives, and
    only its own have `hard_negative_logit` added. A record may have several, each of role `negative`,
    `negative2` ...; those that it lacks add nothing. So may it have several `positives`. The MLP head is
    trained only, and the vector in use is the one before it, unless `keep_head`: the public code drops it at
    test after unsupervised training (`cls_before_pooler`) and keeps it after supervised.
    """

    @classmethod
    def roles_of(cls, config: Config) -> tuple[str, ...]:
        settings, numbers = config.objective.simcse, range(1, 1 + int(config.objective.simcse.hard_negatives))
        further = (f"positive{number}" for number in range(2, int(settings.positives) + 1))
        negatives = (NEGATIVE if number == 1 else f"{NEGATIVE}{number}" for number in numbers)
        return (*cls.roles, *further, *negatives)

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = settings = config.objective.simcse
        self.full_weights = {"simcse": self.settings.weight}
        self.roles = self.roles_of(config)
        self.head = HEADS[settings.head](encoder.hidden_size)

    @property
    def kept_head(self) -> ProjectionHead | None:
        return self.head if self.settings.keep_head else None

    def negatives(self, batch: int) -> int:
        if not self.settings.in_batch:
            return self.given_negatives(batch)
        return 2 * batch - 2 if self.settings.form == "2n-2" else batch - 1 + self.given_negatives(batch)

    def given_negatives(self, batch: int) -> int:
        return len(self.given_roles) * (batch if self.settings.in_batch else 1)

    @property
    def given_roles(self) -> tuple[str, ...]:
        return self.roles[2:] if self.settings.in_batch else super().given_roles

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        settings, head, temperature = self.settings, self.head, self.settings.temperature
        if settings.keep_head:  # the vector in use is its output
            views, head = dict(zip(views, joint(head, list(views.values())), strict=True)), nn.Identity()

        def loss(z: Tensor, same: Exclusions, whole: bool) -> Tensor:
            if settings.form == "2n-2":
                return nt_xent(z[:2], temperature, same)
            if settings.form == "symmetric":
                return symmetric_info_nce(z[0], z[1], temperature, same)
            count = max(1, int(settings.positives))
            hard, roles = None, self.roles[1 + count :]
            if roles:
                identities = stacked_identities(context, roles)
                hard = Negatives(
                    z[1 + count :].flatten(0, 1),
                    torch.cat([context.present[role] for role in roles]),
                    None if identities is None else send([identities.flatten()], z.device)[0],
                    settings.hard_negative_logit,
                )
            positives, there = z[1], None
            if count > 1:
                positives = z[1 : 1 + count]
                there = torch.stack([context.present[role] for role in self.roles[1 : 1 + count]])
            in_batch = settings.in_batch
            return info_nce(z[0], positives, temperature, same, hard, present=there, in_batch=in_batch)

        return self.contrast("simcse", head, views, context, loss, self.roles)


class Sda(Objective):
    """SDA (Zhu et al.): a discrete augmentation as positive, the own negation as a relaxed negative.

    Equation 4; the printed one lacks the -log. Where an augmentation did not apply, the positive is the
    sentence under other dropout, and there is no negation.
    """

    @classmethod
    def roles_of(cls, config: Config) -> tuple[str, ...]:
        return (*cls.roles, NEGATIVE) if config.objective.sda.negatives else cls.roles

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = config.objective.sda
        self.full_weights = {"sda": self.settings.weight}
        self.roles = self.roles_of(config)
        self.head = batch_norm_head(encoder.hidden_size)

    def negatives(self, batch: int) -> int:
        return batch if self.settings.negatives else batch - 1

    def given_negatives(self, batch: int) -> int:
        return 1 if self.settings.negatives else 0

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        settings = self.settings
        present = context.present["negative"] if settings.negatives else None

        def loss(z: Tensor, same: Exclusions, whole: bool) -> Tensor:
            if present is None:
                return info_nce(z[0], z[1], settings.temperature, same)
            value = relaxed_negative_info_nce(
                z[0], z[1], z[2], present, settings.temperature, margin=settings.margin, exclusions=same
            )
            if context.collects_diagnostics and whole:
                with torch.no_grad():
                    positive, negation = cosine_similarity(z[0], z[1]), cosine_similarity(z[0], z[2])
                    nearer = ((negation > positive) & present).sum() / present.sum().clamp_min(1)
                    context.measures["sda_negation_nearer_than_positive"] = nearer
                    without = info_nce(z[0], z[1], settings.temperature, same)
                    context.measures["sda_negation_share_of_loss"] = share_of_loss(value, without)
            return value

        return self.contrast("sda", self.head, views, context, loss)


class Esimcse(Objective):
    """ESimCSE (Wu et al. 2022): SimCSE with repeated words, and a queue of negatives.

    The positive repeats words (`--augment.positive repeat`), so that length does not give it away. The queue
    holds earlier batches, embedded by a momentum encoder without dropout (equation 4).
    """

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = settings = config.objective.esimcse
        self.full_weights = {"esimcse": self.settings.weight}
        self.head = simcse_head(encoder.hidden_size)
        self.queue_size = size = round(settings.queue * config.train.global_batch)
        if size:
            self.momentum_role = "anchor"
            self.momentum = MomentumEncoder(encoder, settings.momentum)
            self.momentum_head = MomentumEncoder(self.head, settings.momentum)
            self.register_buffer("queue", torch.zeros(size, encoder.hidden_size))
            self.register_buffer("queue_identities", torch.zeros(size, dtype=torch.long))
            self.register_buffer("filled", torch.zeros((), dtype=torch.long))
            self._known = (-1, 0)  # version of `filled`, and the number in it: read where others have set it

    def negatives(self, batch: int) -> int:
        return batch - 1 + self.queue_size

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        temperature = self.settings.temperature

        def loss(z: Tensor, same: Exclusions, whole: bool) -> Tensor:
            # The queue holds outputs of the head, of whole vectors: narrower ones have the batch alone.
            if not whole or not (self.momentum_role and (filled := self._filled())):
                return info_nce(z[0], z[1], temperature, same)
            texts = None if context.identities is None else self.queue_identities[:filled]
            value = info_nce(z[0], z[1], temperature, same, Negatives(self.queue[:filled], identities=texts))
            if context.collects_diagnostics:
                with torch.no_grad():
                    without = info_nce(z[0], z[1], temperature, same)
                context.measures["esimcse_queue_share_of_loss"] = share_of_loss(value, without)
            return value

        return self.contrast("esimcse", self.head, views, context, loss)

    @torch.no_grad()
    def remember(self, vectors: Tensor, identities: Tensor) -> None:
        newest = self.momentum_head(vectors)[-len(self.queue) :]
        # a batch that is not finite costs its step, and not all that would be compared with it later
        newest = torch.where(newest.isfinite(), newest, 0.0)
        for queue, rows in ((self.queue, newest), (self.queue_identities, identities[-len(self.queue) :])):
            queue.copy_(torch.cat([rows, queue])[: len(queue)])
        count = min(self._filled() + len(newest), len(self.queue))
        self.filled.fill_(count)
        self._known = (self.filled._version, count)

    def _filled(self) -> int:
        """Return how many rows of the queue have been written; waits for the device after a resume alone."""
        if self._known[0] != self.filled._version:
            self._known = (self.filled._version, int(self.filled))
        return self._known[1]


class Declutr(Objective):
    """DeCLUTR (Giorgi et al. 2021): spans of one document are neighbours, beside masked language modelling.

    An anchor span and the mean vector of several positive spans are compared by NT-Xent (equation 4), without
    a head.
    """

    rivals = 2

    @classmethod
    def roles_of(cls, config: Config) -> tuple[str, ...]:
        return (*cls.roles, *(f"positive{i}" for i in range(2, config.objective.declutr.positives + 1)))

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = config.objective.declutr
        self.full_weights = {"declutr": self.settings.weight}
        self.roles = self.roles_of(config)

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        if context.guided is not None:
            context = replace(context, guided=self._averaged(context.guided))

        return self.contrast("declutr", nn.Identity(), self._averaged(views), context, self.of_views(nt_xent))

    def _averaged(self, views: Views) -> Views:
        """Return the anchors, and the mean of each one's positives."""
        positives = torch.stack([views[role] for role in self.roles[1:]])
        return {"anchor": views["anchor"], "positive": positives.mean(0)}
