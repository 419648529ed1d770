"""AugCSE's adversary (Tang et al. 2022): it tells augmentations, and the encoder learns to hide them."""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import binary_cross_entropy_with_logits

from pretrain.model.kernels.plain import at_least_float32


def reverse_gradient(values: Tensor, scale: float) -> Tensor:
    """Return the values; in the backward pass multiply the gradient by -scale.

    Gradient reversal is Ganin and Lempitsky's (2015); AugCSE, appendix A.4.

    AugCSE's alpha of -1 is a scale of +1.
    """
    return _ReverseGradient.apply(values, scale)


class _ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor, None]:
        return upstream * -ctx.scale, None


class Discriminator(nn.Module):
    """Tells the augmentation from projected vectors of a sentence and its augmentation, side by side.

    form "code" (the authors' repository, training/discriminator.py, two layers):
        dropout, Linear(in, 2 in), tanh, dropout, Linear(2 in, outputs), tanh: logits lie in (-1, 1).
    form "paper" (appendix A.5):
        dropout, Linear(in, 2 in), tanh, dropout, Linear(2 in, in), tanh, which the listing calls a projection
        and which ends there, without a classifier; a Linear(in, outputs) without tanh follows here.

    It computes in its parameters' dtype, also under autocast. The gradient is reversed by the caller
    (`reverse_gradient`).
    """

    def __init__(self, in_features: int, outputs: int, form: str = "code", dropout: float = 0.2):
        """
        Args:
            in_features: width of the input; twice the vectors' for two of them side by side.
            outputs: number of classes; for A augmentations and "none of them", A + 1.
            form: "code" or "paper".
            dropout: probability.
        """
        super().__init__()
        assert form in ("code", "paper") and outputs > 1
        wide = 2 * in_features
        second = outputs if form == "code" else in_features
        modules = [
            nn.Dropout(dropout),
            nn.Linear(in_features, wide),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(wide, second),
            nn.Tanh(),
        ]
        if form == "paper":
            modules.append(nn.Linear(in_features, outputs))
        self.layers = nn.Sequential(*modules)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map [N, in_features] of any floating dtype to logits [N, outputs] in the module's dtype."""
        with torch.autocast(vectors.device.type, enabled=False):
            return self.layers(vectors.to(self.layers[1].weight.dtype))


def discriminator_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over N x outputs of binary cross-entropies against the one-hot label (equation 2).

    It is not a softmax.

    logits: [N, outputs]. labels: int64[N]. With the "code" form's logits in (-1, 1) the least possible loss
    is log(1 + exp(-1)) = 0.313.
    """
    with torch.autocast(logits.device.type, enabled=False):
        values = at_least_float32(logits)
        # not `one_hot`, which reads the labels to check them
        right = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
        return binary_cross_entropy_with_logits(values, right.to(values.dtype))


def discriminator_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of the rows whose largest logit is the label's: a scalar float32 without gradient."""
    return (logits.detach().argmax(1) == labels).float().mean()


def majority_share(labels: Tensor, outputs: int) -> Tensor:
    """Return the accuracy of always answering the most frequent label: a scalar float32.

    labels: int64[N], below `outputs`.

    >>> majority_share(torch.tensor([2, 0, 2, 1]), 4)
    tensor(0.5000)
    """
    # not `bincount`, which reads the labels to size its result
    return (labels[:, None] == torch.arange(outputs, device=labels.device)).float().mean(0).amax()
