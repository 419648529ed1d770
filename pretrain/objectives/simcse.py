"""SimCSE (Gao, Yao and Chen 2021), and what is SimCSE but for its views: SDA, ESimCSE, DeCLUTR."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from pretrain.config.run import Config
from pretrain.losses.contrastive import info_nce, nt_xent, relaxed_negative_info_nce, symmetric_info_nce
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.heads import ProjectionHead, batch_norm_head, simcse_head
from pretrain.model.momentum import MomentumEncoder
from pretrain.objectives.base import BatchContext, Objective, Views
from pretrain.objectives.parts import joint, local_groups, pair, share_of_loss, stacked_identities

HEADS: dict[str, Callable[[int], nn.Module]] = {
    "mlp": simcse_head,
    "batch-norm": batch_norm_head,
    "none": nn.Identity,
}
"""`objective.simcse.head` -> the head on vectors of this width."""

WITH_NEGATIVE = ("anchor", "positive", "negative")


class Simcse(Objective):
    """SimCSE: a sentence is its own positive, under other dropout (`--aug none`).

    Supervised, on data with columns, the positive of an NLI premise is the entailed hypothesis, and its hard
    negative the contradicting one.

    Equation 1 and, with hard negatives, 5: as the public code has it, every row sees all hard negatives, and
    only its own has `hard_negative_logit` added. The MLP head is trained only, and the vector in use is the
    one before it, unless `keep_head`: the public code drops it at test after unsupervised training
    (`cls_before_pooler`) and keeps it after supervised.
    """

    @classmethod
    def roles_of(cls, config: Config) -> tuple[str, ...]:
        return WITH_NEGATIVE if config.objective.simcse.hard_negatives else cls.roles

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = settings = config.objective.simcse
        self.roles = self.roles_of(config)
        self.head = HEADS[settings.head](encoder.hidden_size)

    @property
    def kept_head(self) -> ProjectionHead | None:
        return self.head if self.settings.keep_head else None

    def weights(self, step: int) -> dict[str, float]:
        return {"simcse": self.settings.weight * self.settings.rise(step)}

    def negatives(self, batch: int) -> int:
        return (
            2 * batch - 2
            if self.settings.form == "2n-2"
            else (2 * batch if self.settings.hard_negatives else batch) - 1
        )

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        settings = self.settings
        z = joint(self.head, [views[role] for role in self.roles])
        if settings.form == "2n-2":
            return {
                "simcse": nt_xent(
                    z,
                    settings.temperature,
                    groups=local_groups(settings, context),
                    identities=stacked_identities(context, self.roles),
                )
            }
        loss = info_nce if settings.form == "one-direction" else symmetric_info_nce
        more = {}
        if settings.hard_negatives:
            more = {
                "negatives": z[2],
                "own_negative_bias": settings.hard_negative_logit,
                "negative_identities": context.identity("negative"),
            }
        return {"simcse": loss(z[0], z[1], settings.temperature, **pair(settings, context), **more)}


class Sda(Objective):
    """SDA (Zhu et al.): a discrete augmentation as positive, the own negation as a relaxed negative.

    Equation 4; the printed one lacks the -log. Where an augmentation did not apply, the positive is the
    sentence under other dropout, and there is no negation.
    """

    @classmethod
    def roles_of(cls, config: Config) -> tuple[str, ...]:
        return WITH_NEGATIVE if config.objective.sda.negatives else cls.roles

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = config.objective.sda
        self.roles = self.roles_of(config)
        self.head = batch_norm_head(encoder.hidden_size)

    def weights(self, step: int) -> dict[str, float]:
        return {"sda": self.settings.weight * self.settings.rise(step)}

    def negatives(self, batch: int) -> int:
        return batch if self.settings.negatives else batch - 1

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        settings = self.settings
        z = joint(self.head, [views[role] for role in self.roles])
        same = pair(settings, context)
        if not settings.negatives:
            return {"sda": info_nce(z[0], z[1], settings.temperature, **same)}
        present = context.present["negative"]
        loss = relaxed_negative_info_nce(
            z[0], z[1], z[2], present, settings.temperature, settings.margin, **same
        )
        if context.probing:
            with torch.no_grad():
                positive, negation = cosine_similarity(z[0], z[1]), cosine_similarity(z[0], z[2])
                nearer = ((negation > positive) & present).sum() / present.sum().clamp_min(1)
                context.measures["sda_negation_nearer_than_positive"] = nearer
                without = info_nce(z[0], z[1], settings.temperature, **same)
                context.measures["sda_negation_share_of_loss"] = share_of_loss(loss, without)
        return {"sda": loss}


class Esimcse(Objective):
    """ESimCSE (Wu et al. 2022): SimCSE with repeated words, and a queue of negatives.

    The positive repeats words (`--augment.positive repeat`), so that length does not give it away. The queue
    holds earlier batches, embedded by a momentum encoder without dropout (equation 4).
    """

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = settings = config.objective.esimcse
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

    def weights(self, step: int) -> dict[str, float]:
        return {"esimcse": self.settings.weight * self.settings.rise(step)}

    def negatives(self, batch: int) -> int:
        return batch - 1 + self.queue_size

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        z = joint(self.head, [views["anchor"], views["positive"]])
        negatives = negative_identities = None
        if self.momentum_role and (filled := self._filled()):
            negatives = self.queue[:filled]
            if context.identities is not None:
                negative_identities = self.queue_identities[:filled]
        loss = info_nce(
            z[0],
            z[1],
            self.settings.temperature,
            negatives=negatives,
            negative_identities=negative_identities,
            **pair(self.settings, context),
        )
        if context.probing and negatives is not None:
            with torch.no_grad():
                without = info_nce(z[0], z[1], self.settings.temperature, **pair(self.settings, context))
            context.measures["esimcse_queue_share_of_loss"] = share_of_loss(loss, without)
        return {"esimcse": loss}

    @torch.no_grad()
    def remember(self, vectors: Tensor, identities: Tensor) -> None:
        newest = self.momentum_head(vectors)[-len(self.queue) :]
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

    @classmethod
    def roles_of(cls, config: Config) -> tuple[str, ...]:
        return (*cls.roles, *(f"positive{i}" for i in range(2, config.objective.declutr.positives + 1)))

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = config.objective.declutr
        self.roles = self.roles_of(config)

    def weights(self, step: int) -> dict[str, float]:
        return {"declutr": self.settings.weight * self.settings.rise(step)}

    def negatives(self, batch: int) -> int:
        return 2 * batch - 2

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        positive = torch.stack([views[role] for role in self.roles[1:]]).mean(0)
        return {
            "declutr": nt_xent(
                torch.stack([views["anchor"], positive]),
                self.settings.temperature,
                groups=local_groups(self.settings, context),
                identities=stacked_identities(context, self.roles[:2]),
            )
        }
