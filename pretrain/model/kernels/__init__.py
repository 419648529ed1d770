"""The encoder layer's operations on packed tokens [T, ...], without padding, and who computes them.

`plain` defines them. `native` and `fused` are modules with the same functions, all differentiable, that
drop the same values for the same keys (`pretrain.model.kernels.dropout`). Activations are bfloat16, float16,
float32 or float64; biases and the norms' parameters are float32 whatever the activations are (float64 for
float64), and so are their gradients' sums. Statistics, scores and softmax are float32, of float64 values
float64.
"""

import os
from types import ModuleType

import torch

from pretrain.common.errors import UserError
from pretrain.model.kernels import fused, native, plain


def kernels_for(device: torch.device, dtype: torch.dtype) -> ModuleType:
    """Choose the implementation for activations of this type on this device.

    Raises:
        UserError: the environment variable CLEAR_KERNELS names another than plain or native, or asks for
            native kernels that are not compiled. plain also turns off the programs of a GPU.
    """
    chosen = os.environ.get(native.VARIABLE)
    if chosen not in (None, "", "plain", "native"):
        raise UserError(f"{native.VARIABLE}={chosen}: give plain or native, or nothing for the faster one.")
    if device.type == "cuda" and dtype != torch.float64 and chosen != "plain" and fused.available():
        return fused
    if device.type != "cpu" or dtype not in native.DTYPES or chosen == "plain":
        return plain
    if native.available() is not None:
        return native
    if chosen == "native":
        raise UserError(
            f"{native.VARIABLE}=native: the kernels are not compiled here; `pip install -e .` compiles "
            "them where it finds GCC 12 or later."
        )
    return plain
