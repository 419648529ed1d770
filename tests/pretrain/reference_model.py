"""A padded float64 copy of a model, by which the references of objectives encode sentences."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from augment.core.keys import sequence_keys


class Reference:
    """A padded float64 copy of a model, and its objective's losses of a whole global batch."""

    def __init__(self, model, pad: int, outside: Sequence[list[int]] = ()):
        """outside: prompts that are no part of a mean, nor is the token before them."""
        self.pad, self.pooling, self.outside = pad, model.encoder.pooling, outside
        self.lm = double(model.encoder.lm)
        self.heads = {
            n: p.detach().double().requires_grad_(p.requires_grad)
            for n, p in model.objective.named_parameters()
        }
        self.model = model

    def padded(self, rows):
        width = max(map(len, rows))
        ids = torch.tensor([list(r) + [self.pad] * (width - len(r)) for r in rows])
        return ids, torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows])

    def hidden(self, rows, lm=None, edit=None):
        """Last hidden states [N, L, H] and the attention mask; `edit` is applied to the embedding block's
        output."""
        lm = lm or self.lm
        ids, attention = self.padded(rows)
        handle = lm.base_model.embeddings.register_forward_hook(lambda m, i, out: edit(out)) if edit else None
        try:
            return lm.base_model(input_ids=ids, attention_mask=attention).last_hidden_state, attention
        finally:
            if handle:
                handle.remove()

    def logits(self, rows):
        """Logits [N, L, V] of the masked-language head."""
        ids, attention = self.padded(rows)
        return self.lm(input_ids=ids, attention_mask=attention).logits

    def vectors(self, rows, edit=None):
        ids, attention = self.padded(rows)
        if self.pooling == "words":
            hidden = self.lm.get_input_embeddings()(ids)
            hidden = edit(hidden) if edit else hidden
        else:
            hidden, _ = self.hidden(rows, edit=edit)
        keep = attention.unsqueeze(-1).double()
        if (weights := self.model.encoder.token_weights) is not None:
            keep = keep * weights.double()[ids].unsqueeze(-1)
        for row, of in zip(rows, keep):
            for prompt in self.outside:
                if list(row[1 : 1 + len(prompt)]) == prompt and len(row) > 1 + len(prompt):
                    of[: 1 + len(prompt)] = 0.0
        return hidden[:, 0] if self.pooling == "cls" else (hidden * keep).sum(1) / keep.sum(1)

    def vectors_of_guide(self, rows):
        """Mean states by the guide of false negatives, without dropout."""
        hidden, attention = Reference.hidden(self, rows, double(self.model.objective.guide.lm))
        keep = attention.unsqueeze(-1).double()
        return ((hidden * keep).sum(1) / keep.sum(1)).detach()

    def linear(self, x, name):
        bias = self.heads.get(f"{name}.bias")
        return F.linear(x, self.heads[f"{name}.weight"], bias)

    def batch_norm(self, x, name, of=None):
        """By the statistics of `of` (default: x itself)."""
        of = x if of is None else of
        x = (x - of.mean(0)) / (of.var(0, unbiased=False) + 1e-5).sqrt()
        return (
            x * self.heads[f"{name}.weight"] + self.heads[f"{name}.bias"]
            if f"{name}.weight" in self.heads
            else x
        )

    def batch_norm_head(self, x, name, of=None):
        """Linear, batch norm, ReLU, Linear, batch norm; `of`: the vectors whose statistics count, as
        constants."""
        first = self.linear(x, f"{name}.layers.0")
        fixed = None if of is None else self.linear(of, f"{name}.layers.0").detach()
        second = self.linear(F.relu(self.batch_norm(first, f"{name}.layers.1", fixed)), f"{name}.layers.3")
        if of is not None:
            fixed = self.linear(
                F.relu(self.batch_norm(fixed, f"{name}.layers.1")), f"{name}.layers.3"
            ).detach()
        return self.batch_norm(second, f"{name}.layers.4", fixed)


class KeyedReference(Reference):
    """The same with dropout, on rows that `assign` was told of: by own layers in float64, in one packed row.

    (Own layers' dropout is held against the library's code in tests/pretrain/model/test_layer.py.)
    """

    def __init__(self, model, pad: int, outside: Sequence[list[int]] = ()):
        super().__init__(model, pad, outside)
        self.encoders, self.keys = {}, {}
        self.lm = self.add(model.encoder)

    def add(self, encoder):
        """Take a float64 copy of an encoder; return its model, by which `hidden` knows it."""
        mine = copy.deepcopy(encoder).double().train()
        self.encoders[id(mine.lm)] = mine
        return mine.lm

    def assign(self, rows, purpose: str, number: int, seed: int):
        """Let the dropout of these rows go by the keys of a pass at step 0."""
        ids = np.arange(len(rows), dtype=np.uint64)
        self.keys[id(rows)] = sequence_keys(seed, 0, ids, number, purpose)

    def hidden(self, rows, lm=None, edit=None):
        _, attention = self.padded(rows)
        real = attention.bool()

        def padded(states):
            return states.new_zeros(*real.shape, states.shape[1]).masked_scatter(real[..., None], states)

        encoder, keys = self.encoders[id(lm or self.lm)], self.keys.get(id(rows))
        states = encoder.train(keys is not None).states(
            torch.tensor([token for row in rows for token in row]),
            attention.sum(1),
            None,
            edit=None if edit is None else lambda words: edit(padded(words))[real],
            keys=keys,
        )
        return padded(states.last), attention

    def logits(self, rows):
        hidden, _ = self.hidden(rows)
        return self.encoders[id(self.lm)].mlm_logits(hidden)


def double(lm):
    config = lm.config.__class__.from_dict(lm.config.to_dict())
    config._attn_implementation = "eager"
    copy = type(lm)(config)
    copy.load_state_dict(lm.state_dict())
    copy.tie_weights()
    return copy.double().eval()
