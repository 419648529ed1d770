"""Each loss's share of the encoder's gradient, at the steps that end a row of metrics.

A share is the norm of a loss's gradient, its weight included, over that of the reference: the first loss of
the objective whose weight is not 0, which is the contrastive one of the first system in a sum. Gradients are
those on the sentence vectors of the whole global batch, all views together, so no split into micro-batches or
ranks changes them. Of a loss that runs the encoder by itself (V-advCSE's), it is the gradient on the vectors
that enter the loss. Masked language modelling has no sentence vectors, and no share.

Nothing here is read by the host.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pretrain.objectives import BatchContext, Objective
from pretrain.objectives.base import running_statistics_kept
from pretrain.step.model import Request, SentenceModel
from pretrain.telemetry.monitors import COSINE, SHARE


@dataclass
class SequenceLosses:
    """What a step knows of the gradients of losses of one sequence at a time.

    conditioned: name of the loss whose gradient reaches the sentence vectors by what it was conditioned on
        (`BatchContext.condition`), if there is one.
    squared: name -> squared norm of the gradient on the vectors that enter the loss, float64.
    """

    conditioned: str | None = None
    squared: dict[str, Tensor] = field(default_factory=dict)

    def finish(self, term: Objective, factor: Tensor | float) -> dict[str, Tensor]:
        """Take a term's probe, and return its checks. Collective.

        factor: by which the loss went backward, beyond its weight and scale.
        """
        assert term.probe is not None
        sums, term.probe = term.probe.gather(), None
        if (squared := sums.pop("squared_gradient", None)) is not None:
            self.squared[term.sequence_term] = squared / factor**2
        return term.sequence_checks(sums)


def measure_shares(
    model: SentenceModel,
    whole: Tensor,
    context: BatchContext,
    names: list[str],
    weights: dict[str, float],
    of_sequences: SequenceLosses,
) -> dict[str, Tensor]:
    """Return NAME_gradient_share of every loss, and NAME_gradient_cosine with the reference's gradient.

    The cosine is that of two gradients on the same vectors: a loss without any there (V-advCSE's) has none.
    All but one of the gradients cost a computation of the losses each; the reference's is what they leave of
    the total. Collective if the losses are shared over ranks.

    Args:
        model: computes the losses again. Not its engine: whose outputs would start a backward pass of
            the engine's.
        whole: float[views, N, d] with the gradient of the weighted total in `grad`.
        names: the sentence-level losses, in order.
    """
    active = [name for name in names if weights[name] != 0]
    if not active or whole.grad is None:
        return {}
    reference, *others = active
    gradients = {
        name: _gradient_of(model, whole, context, name, weights)
        for name in (*others, of_sequences.conditioned)
        if name is not None
    }
    of_reference = whole.grad.clone()
    for gradient in gradients.values():
        of_reference -= gradient
    unit = torch.linalg.vector_norm(of_reference, dtype=torch.float64).clamp_min(1e-300)
    shares = {f"{reference}{SHARE}": torch.ones_like(unit)}
    for name, gradient in gradients.items():
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float64)
        product = (gradient * of_reference).sum(dtype=torch.float64)
        shares[f"{name}{SHARE}"] = norm / unit
        shares[f"{name}{COSINE}"] = product / (norm.clamp_min(1e-300) * unit)
    for name, squared in of_sequences.squared.items():
        shares[f"{name}{SHARE}"] = squared.sqrt() / unit
    return shares


def _gradient_of(
    model: SentenceModel, whole: Tensor, context: BatchContext, name: str, weights: dict[str, float]
) -> Tensor:
    """Return the gradient of one weighted loss on the vectors, of their shape.

    In a graph of its own: ZeRO 3 gathers a head's parameters once for each forward pass, so a graph cannot be
    walked twice.
    """
    vectors = whole.detach().requires_grad_()
    again = replace(context, surrogates=[], measures={}, collects_diagnostics=False)
    views = dict(zip(model.objective.roles, vectors))
    with running_statistics_kept(model.objective):
        losses = model(Request(SentenceModel.relate, views, again))
    loss = weights[name] * losses[name] if name in losses else sum(again.surrogates)
    (gradient,) = torch.autograd.grad(loss, vectors, allow_unused=True)
    return torch.zeros_like(vectors) if gradient is None else gradient
