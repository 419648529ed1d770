"""The module that DeepSpeed wraps: encoder and objective, entered by requests.

All work goes through `SentenceModel.forward(request)`, because the engine's forward is where ZeRO-3 gathers
parameters. A request says what to compute and of what; its class says how, and the type of the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from pretrain.data.microbatches import MicroBatch
from pretrain.losses.mlm import masked_lm_loss
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.precision import DTYPES
from pretrain.objectives import BatchContext, Views, WholeObjective

Answer = TypeVar("Answer")


class SentenceModel(nn.Module):
    """Encoder and objective.

    Parameters stay float32; the encoder's forward runs under autocast in `precision`, and own layers take
    working copies of their weights, one for all passes of a step. (Measured against bfloat16 weights the copy
    costs little, and ZeRO then accumulates and reduces in float32 at every stage.) Heads and losses run in
    float32 with autocast off.
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

    def forward(self, request: Request[Answer]) -> Answer:
        return request.answer(self)

    @contextmanager
    def weights_unchanged(self) -> Iterator[None]:
        """Let all encoders make working copies of weights once inside; the weights must not change."""
        with ExitStack() as encoders:
            for module in [*self.modules(), self.objective.guide]:
                if isinstance(module, SentenceEncoder):
                    encoders.enter_context(module.weights_unchanged())
            yield

    def autocast(self, row: MicroBatch) -> AbstractContextManager:
        """Return the encoder's precision for a packed row, and seed the row's random state.

        A second pass over the row then draws the same from torch's generator: dropout of the library's
        layers and of flash kernels, and what a loss draws. Own layers' dropout goes by the row's keys.
        """
        if row.seed is not None:
            torch.manual_seed(row.seed)
        device = row.ids.device.type
        if self.precision == "fp32":
            return torch.autocast(device, enabled=False)
        return torch.autocast(device, dtype=DTYPES[self.precision])


class Request(ABC, Generic[Answer]):
    """One computation of a `SentenceModel`."""

    @abstractmethod
    def answer(self, model: SentenceModel) -> Answer: ...


@dataclass(frozen=True)
class Embed(Request[Tensor]):
    """Embed a packed row as a view: sentence vectors float32[n, d] (float64 from a float64 model)."""

    row: MicroBatch

    def answer(self, model: SentenceModel) -> Tensor:
        row, dropout = self.row, model.objective.view_dropout
        with model.autocast(row):
            vectors = model.encoder.embed(row.ids, row.lengths, keys=row.keys, dropout=dropout)
        return vectors if vectors.dtype == torch.float64 else vectors.float()


@dataclass(frozen=True)
class EmbedForUse(Request[Tensor]):
    """Embed a packed row as evaluations and exports do: `Embed`, and the head that is kept, if any."""

    row: MicroBatch

    def answer(self, model: SentenceModel) -> Tensor:
        vectors, head = Embed(self.row).answer(model), model.objective.kept_head
        return vectors if head is None else head(vectors)


@dataclass(frozen=True)
class EmbedByMomentum(Request[Tensor]):
    """Embed a packed row by the encoder that follows the trained one, without dropout or gradients."""

    row: MicroBatch

    def answer(self, model: SentenceModel) -> Tensor:
        with torch.no_grad(), model.autocast(self.row):
            return model.objective.momentum_encoder().copy.embed(self.row.ids, self.row.lengths).float()


@dataclass(frozen=True)
class EmbedByGuide(Request[Tensor]):
    """Embed a packed row by the guide of false negatives, without dropout or gradients."""

    row: MicroBatch

    def answer(self, model: SentenceModel) -> Tensor:
        guide = model.objective.guide
        assert guide is not None  # the step has no such pass without one
        with torch.no_grad(), model.autocast(self.row):
            return guide.to(self.row.ids.device).embed(self.row.ids, self.row.lengths).float()


@dataclass(frozen=True)
class MaskedLoss(Request[Tensor]):
    """Sum the cross-entropies over a row's masked positions: a scalar."""

    row: MicroBatch

    def answer(self, model: SentenceModel) -> Tensor:
        row = self.row
        with model.autocast(row):
            hidden = model.encoder.forward_packed(row.ids, row.lengths, row.keys)
            return masked_lm_loss(model.encoder, hidden, row.positions, row.labels)


@dataclass(frozen=True)
class SequenceLoss(Request[Tensor]):
    """Sum a term's loss over the sequences of a row (`Objective.sequence_loss`): a scalar.

    condition: [n, c], what the sequences' losses are conditioned on, or None.
    """

    term: str
    role: str
    row: MicroBatch
    condition: Tensor | None

    def answer(self, model: SentenceModel) -> Tensor:
        row, term = self.row, model.objective.terms[self.term]
        assert row.keys is not None and row.seed is not None  # the loss draws; a view's rows have both
        with model.autocast(row):
            return term.sequence_loss(
                model.encoder, self.role, row.ids, row.lengths, self.condition, row.keys, row.seed
            )


@dataclass(frozen=True)
class Relate(Request[dict[str, Tensor]]):
    """Compute the sentence-level losses, by name, of the whole global batch's vectors."""

    views: Views
    context: BatchContext

    def answer(self, model: SentenceModel) -> dict[str, Tensor]:
        with torch.autocast(self.context.groups.device.type, enabled=False):
            return model.objective.relate(self.views, self.context)


@dataclass(frozen=True)
class Condition(Request[dict[str, dict[str, Tensor]]]):
    """Compute what sequence losses are conditioned on: term -> role -> [N, c]."""

    views: Views
    context: BatchContext

    def answer(self, model: SentenceModel) -> dict[str, dict[str, Tensor]]:
        with torch.autocast(self.context.groups.device.type, enabled=False):
            return model.objective.conditions(self.views, self.context)


@dataclass(frozen=True)
class TouchUnusedHeads(Request[Tensor]):
    """Compute a zero that depends on every head, for steps without sentence-level losses."""

    device: torch.device

    def answer(self, model: SentenceModel) -> Tensor:
        with torch.autocast(self.device.type, enabled=False):
            return model.objective.untrained_heads_touch(model.encoder.hidden_size, self.device)
