"""The encoder layer's operations on packed tokens [T, ...], without padding, and who computes them.

Every implementation is a module with the functions of `Kernels`, all differentiable, that drops the same
values for the same keys (`pretrain.model.kernels.dropout`). Activations are bfloat16, float16, float32 or
float64; biases and the norms' parameters are float32 whatever the activations are (float64 for float64), and
so are their gradients' sums. Statistics, scores and softmax are float32, of float64 values float64.
"""

import os
from typing import Protocol, cast

import torch
from torch import Tensor

from pretrain.common.errors import UserError
from pretrain.model.attention import PackedLayout
from pretrain.model.kernels import fused, native, plain
from pretrain.model.kernels.dropout import Dropout


class Kernels(Protocol):
    """What a layer asks of an implementation; `dropout` None, or of rate 0, is no dropout."""

    def connect(
        self,
        x: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        weight: Tensor,
        norm_bias: Tensor | None,
        eps: float,
        dropout: Dropout | None,
        dtype: torch.dtype,
        post: bool,
    ) -> tuple[Tensor, Tensor]:
        """Add to the residual stream and normalise: (stream, normed), both [T, H].

        sum = residual + dropout(x + bias), without a residual dropout(x + bias) of x's type. The stream goes
        on, in the residual's type, as the sum's layer norm where norms come after the residual connection
        (`post`), else as the sum. normed is the layer norm in `dtype`, for products to read.
        """

    def norm_dropout(
        self, x: Tensor, weight: Tensor, norm_bias: Tensor | None, eps: float, dropout: Dropout | None
    ) -> Tensor:
        """Return dropout(layer norm(x)): [T, H] -> [T, H] of x's type (the embedding block's end)."""

    def bias_gelu(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return gelu(x + bias), in its exact form by erf: [T, I] -> [T, I] of x's type."""

    def gelu_gate(self, x: Tensor, dropout: Dropout | None = None) -> Tensor:
        """Return dropout(gelu(x[:, :I]) * x[:, I:]): [T, 2I] -> [T, I] of x's type."""

    def rotate(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Turn pairs (channel, channel + D/2) of queries and keys by their position's angle (Su et al. 2021).

        qkv: [T, 3, heads, D]; values stay. cos, sin: [T, 1, 1, D], of halves that are equal, float32 at
        least; they get no gradient.
        """

    def attention(
        self,
        qkv: Tensor,
        layout: PackedLayout,
        scale: float,
        half_window: int | None,
        dropout: Dropout | None,
    ) -> Tensor:
        """Let each token attend to its own sequence: [T, 3, heads, D] -> [T, heads, D] of qkv's type.

        half_window: the largest distance that is seen; None: any. scale: of the scores. Filler behind the
        sequences gives zeros and has zero gradients.
        """


def kernels_for(device: torch.device, dtype: torch.dtype) -> Kernels:
    """Choose the implementation for activations of this type on this device.

    Raises:
        UserError: the environment variable CLEAR_KERNELS names another than plain or native, or asks for
            native kernels that are not compiled. plain also turns off the programs of a GPU.
    """
    chosen = os.environ.get(native.VARIABLE)
    if chosen not in (None, "", "plain", "native"):
        raise UserError(f"{native.VARIABLE}={chosen}: give plain or native, or nothing for the faster one.")
    if device.type == "cuda" and chosen != "plain" and fused.available():
        return cast(Kernels, fused)
    if device.type != "cpu" or dtype not in native.DTYPES or chosen == "plain":
        return cast(Kernels, plain)
    if native.available() is not None:
        return cast(Kernels, native)
    if chosen == "native":
        raise UserError(
            f"{native.VARIABLE}=native: the kernels are not compiled here; `pip install -e .` compiles "
            "them where it finds GCC 12 or later."
        )
    return cast(Kernels, plain)
