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
from pretrain.model.precision import DTYPES
from pretrain.objectives import BatchContext, Views, WholeObjective


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

    def forward(self, request: Request) -> Any:
        return request.method(self, *request.arguments)

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
        device = row.ids.device.type
        if row.seed is not None and device == "cpu":  # the other costs a pass of a small model
            torch.default_generator.manual_seed(row.seed)
        elif row.seed is not None:
            torch.manual_seed(row.seed)
        if self.precision == "fp32":
            return torch.autocast(device, enabled=False)
        return torch.autocast(device, dtype=DTYPES[self.precision])

    # -- what a request may ask for

    def embed(self, row: MicroBatch) -> Tensor:
        """Embed a packed row as a view: sentence vectors float32[n, d] (float64 from a float64 model)."""
        dropout = self.objective.view_dropout
        with self.autocast(row):
            vectors = self.encoder.embed(row.ids, row.lengths, keys=row.keys, dropout=dropout)
        return vectors if vectors.dtype == torch.float64 else vectors.float()

    def embed_for_use(self, row: MicroBatch) -> Tensor:
        """Embed a packed row as evaluations and exports do: `embed`, and the head that is kept, if any."""
        vectors, head = self.embed(row), self.objective.kept_head
        return vectors if head is None else head(vectors)

    def embed_by_momentum(self, row: MicroBatch) -> Tensor:
        """Embed a packed row by the encoder that follows the trained one, without dropout or gradients."""
        with torch.no_grad(), self.autocast(row):
            return self.objective.momentum_encoder().copy.embed(row.ids, row.lengths).float()

    def embed_by_guide(self, row: MicroBatch) -> Tensor:
        """Embed a packed row by the guide of false negatives, without dropout or gradients."""
        guide = self.objective.guide
        assert guide is not None  # the step has no such pass without one
        with torch.no_grad(), self.autocast(row):
            return guide.to(row.ids.device).embed(row.ids, row.lengths).float()

    def masked_loss(self, row: MicroBatch) -> Tensor:
        """Sum the cross-entropies over a row's masked positions: a scalar."""
        with self.autocast(row):
            hidden = self.encoder.forward_packed(row.ids, row.lengths, row.keys)
            return masked_lm_loss(self.encoder, hidden, row.positions, row.labels)

    def sequence_loss(self, name: str, role: str, row: MicroBatch, condition: Tensor | None) -> Tensor:
        """Sum a term's loss over the sequences of a row (`Objective.sequence_loss`): a scalar.

        condition: [n, c], what the sequences' losses are conditioned on, or None.
        """
        term = self.objective.terms[name]
        assert row.keys is not None and row.seed is not None  # the loss draws; a view's rows have both
        with self.autocast(row):
            return term.sequence_loss(self.encoder, role, row.ids, row.lengths, condition, row.keys, row.seed)

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


class Request:
    """One computation of a `SentenceModel`: `Request(SentenceModel.embed, row)`.

    One object, so that the engine's hooks look at no tensor of the arguments.
    """

    def __init__(self, method: Callable[..., Any], *arguments: Any):
        self.method, self.arguments = method, arguments
