"""The module that DeepSpeed wraps: encoder and objective, entered by requests.

All work goes through `SentenceModel.forward(request)`, because the engine's forward is where ZeRO-3 gathers
parameters. A request names a method of the model, and has its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.data.microbatches import MicroBatch
from pretrain.losses.mlm import masked_lm_loss
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.rows import PackedRow
from pretrain.objectives import BatchContext, Views, WholeObjective
from pretrain.step.precision import DTYPES, factor_of


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
        parts = [*self.modules(), objective.guide]
        self._encoders = [part for part in parts if isinstance(part, SentenceEncoder)]

    def forward(self, request: Request) -> Any:
        return request.method(self, *request.arguments)

    @contextmanager
    def weights_unchanged(self, anew: bool = False, leaf: bool = False) -> Iterator[None]:
        """Let all encoders make working copies of weights once inside; the weights must not change.

        anew, leaf: as for an encoder.
        """
        with ExitStack() as encoders:
            for encoder in self._encoders:
                encoders.enter_context(encoder.weights_unchanged(anew, leaf))
            yield

    def add_gradients(self) -> None:
        """Add the gradients of weights that were read as leaves, divided as a `LossScale` divides others."""
        for encoder in self._encoders:
            if encoder.copies is not None:
                encoder.copies.add_gradients(factor_of(self))

    def autocast(self, row: MicroBatch) -> AbstractContextManager:
        """Return the encoder's precision for a packed row, and seed the row's random state.

        A second pass over the row then draws the same from torch's generator: dropout of the library's
        layers and of flash kernels, and what a loss draws. Own layers' dropout goes by the row's keys.
        """
        if row.seed is not None:
            seed(row.seed, row.ids.device)
        device = row.ids.device.type
        if self.precision == "fp32":
            return torch.autocast(device, enabled=False)
        return torch.autocast(device, dtype=DTYPES[self.precision])

    # -- what a request may ask for

    def embed(self, row: MicroBatch) -> Tensor:
        """Embed a packed row as a view: sentence vectors float32[n, d] (float64 from a float64 model)."""
        with self.autocast(row):
            return self.embed_row(self.pack(row, self.objective.view_dropout))

    def pack(self, row: MicroBatch, dropout: bool = True) -> PackedRow:
        """Return what the encoder reads of a packed row; dropout: whether training mode has any."""
        return self.encoder.pack(row.ids, row.lengths, keys=row.keys, dropout=dropout)

    def embed_row(self, packed: PackedRow) -> Tensor:
        """Embed what `pack` has made as `embed` does, in the precision of the caller."""
        vectors = self.encoder.embed_row(packed)
        return vectors if vectors.dtype == torch.float64 else vectors.float()

    def embed_for_use(self, row: MicroBatch) -> Tensor:
        """Embed a packed row as evaluations and exports do: `embed`, and the head that is kept, if any."""
        vectors, head = self.embed(row), self.objective.kept_head
        return vectors if head is None else head(vectors)

    def embed_by_momentum(self, row: MicroBatch) -> Tensor:
        """Embed a packed row by the encoder that follows the trained one, without dropout or gradients."""
        momentum = next(term.momentum for term in self.objective.terms.values() if term.momentum_role)
        with torch.no_grad(), self.autocast(row):
            return momentum.copy.embed(row.ids, row.lengths).float()

    def embed_by_guide(self, row: MicroBatch) -> Tensor:
        """Embed a packed row by the guide of false negatives, without dropout or gradients."""
        guide = self.objective.guide
        assert guide is not None  # the step has no such pass without one
        with torch.no_grad(), self.autocast(row):
            return guide.to(row.ids.device).embed(row.ids, row.lengths).float()

    def masked_loss(self, row: MicroBatch) -> Tensor:
        """Sum the cross-entropies over a row's masked positions: a scalar."""
        with self.autocast(row):
            return self.masked_loss_of_row(self.pack(row), row.positions, row.labels)

    def masked_loss_of_row(self, packed: PackedRow, positions: Tensor, labels: Tensor) -> Tensor:
        """Sum the cross-entropies of what `pack` has made, as `masked_loss`, in the caller's precision."""
        return masked_lm_loss(self.encoder, self.encoder.states_of_row(packed).last, positions, labels)

    def sequence_loss(self, name: str, role: str, row: MicroBatch, condition: Tensor | None) -> Tensor:
        """Sum a term's loss over the sequences of a row (`Objective.sequence_loss`): a scalar.

        condition: [n, c], what the sequences' losses are conditioned on, or None.
        """
        term = self.objective.terms[name]
        with self.autocast(row):
            return term.sequence_loss(self.encoder, role, row, condition)

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        """Compute the sentence-level losses, by name, of the whole global batch's vectors."""
        with torch.autocast(context.groups.device.type, enabled=False):
            return self.objective.relate(views, context)

    def conditions(self, views: Views, context: BatchContext) -> dict[str, dict[str, Tensor]]:
        """Compute what sequence losses are conditioned on: term -> role -> [N, c]."""
        with torch.autocast(context.groups.device.type, enabled=False):
            return self.objective.conditions(views, context)

    def touch_unused_heads(self, device: torch.device) -> Tensor:
        """Compute a zero that depends on every head, for steps without sentence-level losses."""
        with torch.autocast(device.type, enabled=False):
            return self.objective.untrained_heads_touch(self.encoder.hidden_size, device)


def seed(number: int, device: torch.device) -> None:
    """Seed torch's generators of the host and of `device`, and no other kind of device's."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


class Request:
    """One computation of a `SentenceModel`: `Request(SentenceModel.embed, row)`.

    One object, so that the engine's hooks look at no tensor of the arguments.
    """

    def __init__(self, method: Callable[..., Any], *arguments: Any):
        self.method, self.arguments = method, arguments
