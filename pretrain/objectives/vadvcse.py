"""V-advCSE (Ko, "Virtual Adversarial Contrastive Learning for Sentence Embeddings")."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from pretrain.config.run import Config
from pretrain.losses.contrastive import info_nce
from pretrain.losses.virtual_adversarial import adversarial_noise, at_lengths_of, divergence, sequence_noise
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.heads import batch_norm_head
from pretrain.objectives.base import BatchContext, Objective, Views
from pretrain.objectives.parts import joint, pair

RADIUS_OF_WORD = 0.01


class Vadvcse(Objective):
    """V-advCSE: SimCSE's loss, and lambda times how far outputs move under the worst change of words.

    Both passes of a sentence share their dropout, or the distance would measure that; batch norm uses the
    statistics that the clean batch has, as constants, and its running ones are not touched by the extra
    passes. No code was published: the paper leaves sigma, epsilon, eta and the meaning of "output
    distribution" open, and the defaults are those of the packages that offer its options (see
    `losses.virtual_adversarial`).
    """

    sequence_term = "vadvcse_adversarial"

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = settings = config.objective.vadvcse
        self.head = batch_norm_head(encoder.hidden_size)
        self.sequence_roles = ("anchor",) if settings.adversarial_weight else ()
        self.radius = None
        if settings.projection != "smart":
            words = encoder.lm.get_input_embeddings().weight.detach()
            self.radius = settings.radius or RADIUS_OF_WORD * float(words.norm(dim=1).mean())
        self._statistics = ()

    def weights(self, step: int) -> dict[str, float]:
        rise = self.settings.rise(step)
        return {
            "vadvcse": self.settings.weight * rise,
            self.sequence_term: self.settings.adversarial_weight * rise,
        }

    def negatives(self, batch: int) -> int:
        return batch - 1

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        z = joint(self.head, [views["anchor"], views["positive"]])
        return {"vadvcse": info_nce(z[0], z[1], self.settings.temperature, **pair(self.settings, context))}

    def conditions(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        self._statistics = self.head.statistics(torch.cat([views["anchor"], views["positive"]]))
        return {}

    def sequence_loss(
        self,
        encoder: SentenceEncoder,
        role: str,
        ids: Tensor,
        lengths: Tensor,
        condition: Tensor | None,
        keys: np.ndarray,
        seed: int,
    ) -> Tensor:
        settings = self.settings

        def output(noise: Tensor | None, learned: bool = False) -> Tensor:
            torch.manual_seed(seed)
            vectors = encoder.embed(
                ids, lengths, edit=None if noise is None else lambda words: words + noise, keys=keys
            )
            if learned and self.probe is not None:
                self.probe.watch(vectors)
            if settings.distribution == "vector":
                return vectors
            with self.head.with_statistics(self._statistics):
                return self.head(vectors)

        with torch.set_grad_enabled(torch.is_grad_enabled() and settings.clean_gradient):
            clean = output(None, learned=True)
        noise = adversarial_noise(
            lambda r: divergence(output(r), clean.detach(), settings.divergence, "sum"),
            (len(ids), encoder.hidden_size),
            keys,
            sigma=settings.sigma,
            step_size=settings.step_size,
            steps=settings.steps,
            norm=settings.norm,
            mode=settings.projection,
            radius=self.radius,
            lengths=lengths,
            device=ids.device,
            dtype=clean.dtype,
        )
        if self.probe is not None:
            with torch.no_grad():
                start = sequence_noise(keys, lengths, encoder.hidden_size, ids.device).to(noise.dtype)
                cosines = cosine_similarity(noise, start)
                random = divergence(output(at_lengths_of(noise, start)), clean, settings.divergence, "sum")
                self.probe.add(random=random, cosines=cosines.sum(), tokens=torch.ones_like(cosines).sum())
        loss = divergence(output(noise, learned=True), clean, settings.divergence, "sum")
        if self.probe is not None:
            self.probe.add(adversarial=loss)
        return loss

    def sequence_checks(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        ratio = sums["adversarial"] / sums["random"]
        return {
            # no noise and no loss: not harder than random either
            "vadvcse_adversarial_over_random": torch.where(sums["random"] > 0, ratio, 1.0),
            "vadvcse_cosine_with_start": sums["cosines"] / sums["tokens"],
        }

    def sequence_scale(self, sequences: int, tokens: int) -> float:
        return 1.0 if self.settings.reduction == "sum" else 1.0 / max(1, sequences)
