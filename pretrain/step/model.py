"""The module that DeepSpeed wraps: encoder and objective, entered by stage.

All work goes through `forward(stage, ...)`, because the engine's forward is where ZeRO-3 gathers parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor, nn

from pretrain.losses.mlm import masked_lm_loss
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.precision import DTYPES
from pretrain.objectives import BatchContext, WholeObjective


class SentenceModel(nn.Module):
    """Encoder + objective.

    Parameters stay float32; the encoder's forward runs under autocast in `precision`. (Measured against
    bfloat16 weights the recast costs little, and ZeRO then accumulates and reduces in float32 at every
    stage.) Heads and losses run in float32 with autocast off.
    """

    def __init__(self, encoder: SentenceEncoder, objective: WholeObjective, precision: str = "fp32"):
        super().__init__()
        self.encoder = encoder
        self.objective = objective
        self.precision = precision
        if not objective.masked_copies:  # the library's MLM head would never get a gradient
            shared = {id(p) for p in encoder.lm.base_model.parameters()}
            for parameter in encoder.lm.parameters():
                if id(parameter) not in shared:
                    parameter.requires_grad_(False)

    def forward(self, stage: str, *inputs):
        stages: dict[str, Callable] = {
            "embed": self._embed,
            "vectors": self._vectors,
            "condition": self._condition,
            "sequence": self._sequence,
            "relate": self._relate,
            "momentum": self._momentum,
            "idle": self._idle,
            "mlm": self._mlm,
        }
        return stages[stage](*inputs)

    def _autocast(self, device: torch.device) -> AbstractContextManager:
        if self.precision == "fp32":
            return torch.autocast(device.type, enabled=False)
        return torch.autocast(device.type, dtype=DTYPES[self.precision])

    def _embed(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Packed ids int64[T] and lengths int64[n] (on the CPU) -> sentence vectors float32[n, d]."""
        with self._autocast(ids.device):
            vectors = self.encoder.embed(ids, lengths)
        return vectors if vectors.dtype == torch.float64 else vectors.float()

    def _vectors(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """As `_embed`, and through the head that is kept for use, if any: the vectors that are evaluated and
        exported."""
        head = self.objective.kept_head
        return self._embed(ids, lengths) if head is None else head(self._embed(ids, lengths))

    def _momentum(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """As `_embed`, by the encoder that follows the trained one, without dropout."""
        with torch.no_grad(), self._autocast(ids.device):
            follower = self.objective.momentum_encoder()
            return follower.copy.embed(ids, lengths).float()

    def _relate(self, views: Tensor, context: BatchContext) -> dict[str, Tensor]:
        """views: float32[V, N, d], in the order of the objective's roles."""
        with torch.autocast(views.device.type, enabled=False):
            return self.objective.relate(dict(zip(self.objective.roles, views)), context)

    def _condition(self, views: Tensor, context: BatchContext) -> dict[str, dict[str, Tensor]]:
        with torch.autocast(views.device.type, enabled=False):
            return self.objective.conditions(dict(zip(self.objective.roles, views)), context)

    def _sequence(
        self,
        term: str,
        role: str,
        ids: Tensor,
        lengths: Tensor,
        condition: Tensor | None,
        keys: np.ndarray,
        seed: int,
    ) -> Tensor:
        """Sum over the sequences of the term's loss (`Objective.sequence_loss`)."""
        with self._autocast(ids.device):
            return self.objective.terms[term].sequence_loss(
                self.encoder, role, ids, lengths, condition, keys, seed
            )

    def _idle(self, device: torch.device) -> Tensor:
        with torch.autocast(device.type, enabled=False):
            return self.objective.untrained_heads_touch(self.encoder.hidden_size, device)

    def _mlm(self, ids: Tensor, lengths: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
        """Sum of cross-entropies over the masked positions (int64[P], into ids; labels int64[P])."""
        with self._autocast(ids.device):
            hidden = self.encoder.forward_packed(ids, lengths)
            return masked_lm_loss(self.encoder, hidden, positions, labels)
