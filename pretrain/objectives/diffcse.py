"""DiffCSE (Chuang et al. 2022): SimCSE, and replaced-token detection conditioned on the sentence vector."""

import copy

import numpy as np
import torch
from torch import Tensor, nn

from augment.core.keys import derive, token_bits, uniform
from pretrain.common.errors import UserError, naming
from pretrain.common.transfer import send
from pretrain.config.run import Config
from pretrain.data.microbatches import MicroBatch
from pretrain.losses.contrastive import info_nce
from pretrain.model.encoder import SentenceEncoder, load_encoder
from pretrain.model.heads import batch_norm_head
from pretrain.model.kernels.plain import cross_entropy_sum
from pretrain.objectives.base import BatchContext, Objective, Views, joint, running_statistics_kept


class Diffcse(Objective):
    """DiffCSE: SimCSE, and a discriminator that must find the tokens which a frozen generator has replaced.

    The discriminator is a second encoder that starts as a copy of the trained one. In place of its first
    token's embedding it reads the projected sentence vector.

    Reading `code`: the edited sentence has the generator's likeliest token at every position; `paper`: one
    drawn from its distribution, at masked positions only.

    As in the public code the generator's dropout is on. Padding counts nowhere (in the code it does, so that
    its loss depends on the padding's width). The gradient that reaches the sentence vector is that of the
    whole global batch, batch norm included, whatever the number of micro-batches and ranks.
    """

    sequence_term = "diffcse_replaced_token"
    rivals = 1

    def __init__(self, config: Config, encoder: SentenceEncoder, tokenizer):
        super().__init__()
        self.settings = settings = config.objective.diffcse
        self.full_weights = {"diffcse": settings.weight, self.sequence_term: settings.replaced_token_weight}
        self.head = batch_norm_head(encoder.hidden_size)
        if not settings.replaced_token_weight:
            return
        self.sequence_roles = ("anchor", "positive")
        # In a list: frozen, so neither partitioned nor saved; it is read from its folder at every start.
        self._generator = [_load_generator(settings.generator, tokenizer, encoder)]
        generator = self._generator[0]
        self.discriminator = copy.deepcopy(encoder)
        base = {id(parameter) for parameter in self.discriminator.lm.base_model.parameters()}
        for parameter in self.discriminator.lm.parameters():
            parameter.requires_grad_(id(parameter) in base)
        self.replaced = nn.Linear(encoder.hidden_size, 2)
        self.mask_id = tokenizer.mask_token_id
        # Tokens that both models have a row for. A published generator knows none that was added since, such
        # as [DEL].
        self.vocabulary = min(len(tokenizer), generator.vocab_size, encoder.vocab_size)
        self.most_positions = generator.max_positions
        self.register_buffer("special", torch.tensor(sorted(tokenizer.all_special_ids)), persistent=False)

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        z = joint(self.head, [views["anchor"], views["positive"]])
        for role, vectors in zip(("anchor", "positive"), z):
            context.condition(role, vectors)

        return self.contrast("diffcse", self.head, views, context, self.of_two_views(info_nce), z=z)

    def conditions(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        with running_statistics_kept(self.head):
            z = joint(self.head, [views["anchor"], views["positive"]])
        return {"anchor": z[0], "positive": z[1]}

    def sequence_loss(
        self, encoder: SentenceEncoder | None, role: str, row: MicroBatch, condition: Tensor | None
    ) -> Tensor:
        assert condition is not None and row.keys is not None  # `conditions` gives one for each role
        edited = self.edit(row.ids, row.lengths, row.keys)
        (first,) = send([row.lengths.cumsum(0) - row.lengths], row.ids.device)
        hidden = self.discriminator.states(
            edited,
            row.lengths,
            None,
            edit=lambda words: words.index_copy(0, first, condition.to(words.dtype)),
            keys=row.keys,
        ).last
        logits, replaced = self.replaced(hidden.to(self.replaced.weight.dtype)), edited != row.ids
        if self.probe is not None:
            right = (logits[:, 1] > logits[:, 0]) == replaced
            tokens = torch.ones_like(replaced).sum()
            self.probe.add(right=right.sum(), original=(~replaced).sum(), tokens=tokens)
        return replaced_token_loss(logits, replaced)

    def sequence_checks(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            "diffcse_replaced_token_accuracy": sums["right"] / sums["tokens"],
            "diffcse_always_original_accuracy": sums["original"] / sums["tokens"],
        }

    def sequence_scale(self, sequences: int, tokens: int) -> float:
        return 1.0 / max(1, tokens)

    def touch_unused_heads(self, device: torch.device) -> Tensor:
        if not self.sequence_roles:
            return super().touch_unused_heads(device)
        nothing = torch.zeros(0, dtype=torch.long, device=device)
        row = MicroBatch(nothing, nothing.cpu(), nothing, keys=np.zeros(0, np.uint64))
        condition = torch.zeros(0, self.replaced.in_features, device=device)
        return self.sequence_loss(None, "anchor", row, condition) * 0.0

    @torch.no_grad()
    def edit(self, ids: Tensor, lengths: Tensor, keys: np.ndarray) -> Tensor:
        """Return the generator's version of packed ids, int64[T].

        What is masked depends on a sequence's key (uint64[n]) alone. A token that the generator does not know
        is shown to it as [MASK], and stays unchanged.
        """
        if not len(ids):
            return ids
        settings, counts = self.settings, lengths.numpy()
        if (longest := int(counts.max())) > (most := self.most_positions):
            # an augmentation may lengthen what was short enough
            raise UserError(
                f"objective.diffcse.generator={settings.generator} takes {most} positions: name one with "
                f"{longest}, or prepare the data with max_length {most}"
            )
        in_vocabulary = ids < self.vocabulary
        drawn = [
            torch.from_numpy(uniform(keys, counts) < settings.mask_rate),
            torch.from_numpy(uniform(keys, counts, 1)),
            torch.from_numpy(token_bits(keys, counts, 2).astype(np.int64) % self.vocabulary),
            torch.from_numpy(uniform(keys, counts, 3)),
            lengths.cumsum(0) - lengths,
        ]
        masks, kind, random, draws, starts = send(drawn, ids.device)
        chosen = masks & ~torch.isin(ids, self.special)
        other = torch.where(chosen & (kind >= 0.9), random, ids)
        masked = torch.where(chosen & (kind < 0.8), self.mask_id, other)
        masked = torch.where(in_vocabulary, masked, self.mask_id)
        generator = self._generator[0].to(ids.device).train(self.training)
        hidden = generator.states(masked, lengths, None, keys=derive(keys, "generator")).last
        logits = generator.mlm_logits(hidden)[:, : self.vocabulary].float()
        if settings.reading == "code":
            first = torch.zeros_like(in_vocabulary).index_fill_(0, starts, True)
            return torch.where(first | ~in_vocabulary, ids, logits.argmax(1))
        # inverse of the distribution function: one draw a token
        below = logits.softmax(1).cumsum(1) < draws.to(logits.dtype)[:, None]
        return torch.where(chosen & in_vocabulary, below.sum(1).clamp(max=logits.shape[1] - 1), ids)


def replaced_token_loss(logits: Tensor, replaced: Tensor) -> Tensor:
    """SUM over the tokens of -log p(replaced or not): a scalar, float32 (float64 from float64).

    A sum, because the right mean is over the tokens of the whole global batch, which only the caller knows.
    All tokens count, position 0 too, whose embedding is the sentence vector and which is never replaced: as
    in the authors' code, which counts padding too, as class 0 (voidism/DiffCSE#25).

    logits: [T, 2] of a packed row. replaced: bool[T], where the token is not the original's.
    """
    with torch.autocast(logits.device.type, enabled=False):
        return cross_entropy_sum(logits, replaced.long(), 2)


def _load_generator(source: str | None, tokenizer, encoder: SentenceEncoder) -> SentenceEncoder:
    if source is None:
        raise UserError(
            "diffcse needs a generator: set objective.diffcse.generator to a masked language model with the "
            "encoder's vocabulary (the paper's for BERT is distilbert-base-uncased)"
        )
    with naming(f"objective.diffcse.generator={source}", UserError):
        generator = load_encoder(source, tokenizer, role="generator")
    if generator.random_head:
        raise UserError(f"objective.diffcse.generator={source} is no masked language model: no head")
    if generator.vocab_size not in (len(tokenizer), tokenizer.vocab_size, encoder.vocab_size):
        raise UserError(
            f"objective.diffcse.generator={source} has {generator.vocab_size:,} tokens, the encoder's "
            f"vocabulary {encoder.vocab_size:,}: both must read the same token ids"
        )
    return generator.requires_grad_(False)
