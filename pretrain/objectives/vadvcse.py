"""V-advCSE (Ko, "Virtual Adversarial Contrastive Learning for Sentence Embeddings")."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from pretrain.common.transfer import send
from pretrain.config.run import Config
from pretrain.losses.contrastive import info_nce
from pretrain.losses.exclusions import Guide
from pretrain.losses.vectors import unit_vectors
from pretrain.losses.virtual_adversarial import (
    Ascent,
    adversarial_noise,
    at_lengths_of,
    divergence,
    in_batch_logits,
    repeated_texts,
    sequence_noise,
    sizes,
)
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.heads import batch_norm_head
from pretrain.objectives.base import (
    BatchContext,
    Objective,
    Views,
    exclusions,
    joint,
    running_statistics_kept,
)


class Vadvcse(Objective):
    """V-advCSE: SimCSE's loss, and lambda times how far outputs move under the worst change of words.

    No code was published, and the paper leaves open what decides the loss: `reading` says how it is taken
    (`pretrain.config.terms`).

    Both passes of a sentence share their dropout, or the distance would measure that. What the output takes
    from the batch is the whole batch's, held constant: batch norm's statistics, and in the reading `in-batch`
    the vectors of the positive views, over which p(y | x) is. So the perturbed sentence alone learns from it.
    Running statistics are not touched by the extra passes.
    """

    sequence_term = "vadvcse_adversarial"

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = config.objective.vadvcse
        self.reading = self.settings.resolved
        self.head = batch_norm_head(encoder.hidden_size)
        self.sequence_roles = ("anchor",) if self.reading.adversarial_weight else ()
        self._statistics = ()
        self._candidates: Tensor | None = None
        self._repeated: Tensor | None = None

    def weights(self, step: int) -> dict[str, float]:
        rise = self.settings.rise(step)
        return {
            "vadvcse": self.settings.weight * rise,
            self.sequence_term: self.reading.adversarial_weight * rise,
        }

    def negatives(self, batch: int) -> int:
        return batch - 1

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        def loss(views: Views, guide: Guide | None) -> Tensor:
            z = joint(self.head, [views["anchor"], views["positive"]])
            same = exclusions(self.settings, context, guide)
            return info_nce(z[0], z[1], self.settings.temperature, same)

        return {"vadvcse": self.contrast("vadvcse", views, context, loss)}

    def conditions(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        self._statistics = self.head.statistics(torch.cat([views["anchor"], views["positive"]]))
        if self.reading.over == "batch":
            with running_statistics_kept(self.head):
                z = joint(self.head, [views["anchor"], views["positive"]])
            raw = self.settings.distribution == "vector"
            self._candidates = unit_vectors(views["positive"] if raw else z[1])
            texts = context.identity("positive")
            self._repeated = None
            if texts is not None:
                (self._repeated,) = send([repeated_texts(texts)], self._candidates.device)
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
        settings, reading = self.settings, self.reading
        embedded: list[Tensor] = []

        def output(noise: Tensor | None, learned: bool = False) -> Tensor:
            def edit(words: Tensor) -> Tensor:
                if noise is not None:
                    return words + noise
                embedded.append(words.detach())
                return words

            torch.manual_seed(seed)
            vectors = encoder.embed(ids, lengths, edit=edit, keys=keys)
            if learned and self.probe is not None:
                self.probe.watch(vectors)
            if settings.distribution == "projection":
                with self.head.with_statistics(self._statistics):
                    vectors = self.head(vectors)
            if self._candidates is None:
                return vectors
            return in_batch_logits(vectors, self._candidates, settings.temperature, self._repeated)

        def moved(noise: Tensor, clean: Tensor, learned: bool = False) -> Tensor:
            return divergence(output(noise, learned), clean, settings.divergence, reading.form)

        with torch.set_grad_enabled(torch.is_grad_enabled() and reading.clean_gradient):
            clean = output(None, learned=True)
        radius = None
        if reading.radius is not None:
            radius = reading.radius * sizes(embedded[0], lengths, reading.norm)
        start = sequence_noise(keys, lengths, encoder.hidden_size, ids.device).to(clean.dtype)
        ascent = Ascent(
            reading.sigma,
            reading.step_size,
            settings.steps,
            reading.norm,
            reading.projection,
            radius,
            reading.scope,
        )
        noise = adversarial_noise(lambda r: moved(r, clean.detach()), start, lengths, ascent)
        if self.probe is not None:
            with torch.no_grad():
                cosines = cosine_similarity(noise, start)
                random = moved(at_lengths_of(noise, start), clean)
                counts = {"tokens": len(cosines), "sequences": len(lengths)}
                self.probe.add(
                    random=random,
                    cosines=cosines.sum(),
                    **{name: cosines.new_full((), count) for name, count in counts.items()},
                )
        loss = moved(noise, clean, learned=True)
        if self.probe is not None:
            self.probe.add(adversarial=loss)
        return loss

    def sequence_checks(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        # What float32 cannot tell from 0: a saturated softmax does not move at all under random noise.
        least = torch.finfo(torch.float32).eps * sums["sequences"]
        adversarial, random = (sums[name].clamp_min(least) for name in ("adversarial", "random"))
        return {
            "vadvcse_adversarial_over_random": adversarial / random,
            "vadvcse_cosine_with_start": sums["cosines"] / sums["tokens"],
        }

    def sequence_scale(self, sequences: int, tokens: int) -> float:
        return 1.0 if self.reading.reduction == "sum" else 1.0 / max(1, sequences)
