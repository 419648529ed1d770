"""Flash attention over sequences of many lengths, laid end to end: one kernel for a whole row, on CUDA.

Two libraries have the kernel (Dao 2023, "FlashAttention-2") with a backward, windows, and dropout on the
probabilities: flash-attn, and torch itself as `aten::_flash_attention_forward` (what torch makes public of
it, `torch.nn.attention.varlen`, has no dropout). Either draws its dropout from torch's generator on the
device, so a second pass drops the same where the generator was seeded the same (`SentenceModel.autocast`).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from pretrain.common.errors import UserError

HALF = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256
_HEAD_MULTIPLE = 8


class VariableLength(Protocol):
    """A kernel: each sequence attends to itself."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        boundaries: Tensor,
        longest: int,
        scale: float,
        dropout: float,
        window: tuple[int, int],
        deterministic: bool,
    ) -> Tensor:
        """Return [T, heads, D] for queries, keys and values of that shape, D a multiple of 8.

        boundaries: int32[N+1] on the device, where sequences begin and the last one ends, at T. longest: most
        tokens of one. window: distances seen to the left and to the right, -1 for any.
        """


def variable_length_kernel(query: Tensor, deterministic: bool = False) -> VariableLength | None:
    """Choose the kernel for tensors like `query` [..., D]; None: there is none, attend by length.

    deterministic: the backward must give the same bits again. It may also be asked of the whole process
    (`torch.use_deterministic_algorithms`), which both libraries' kernels follow.

    Raises:
        UserError: only torch's kernel is there, which listens to the whole process alone.
    """
    if query.dtype not in HALF or query.shape[-1] > _LARGEST_HEAD or not _runs_flash(query.device):
        return None
    if _flash_attn() is not None:
        return _by_flash_attn
    if not torch.backends.cuda.is_flash_attention_available():
        return None
    if deterministic and not torch.are_deterministic_algorithms_enabled():
        raise UserError(
            "the model's config asks for deterministic_flash_attn, which torch's own kernel does for a whole "
            "process only: set --train.deterministic true, install flash-attn, or take it out of the config."
        )
    return _by_torch


def attend(
    kernel: VariableLength,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    boundaries: Tensor,
    longest: int,
    scale: float | None,
    dropout: float,
    half_window: int | None,
    deterministic: bool,
) -> Tensor:
    """Run a kernel on heads of any size D: three [T, heads, D] -> [T, heads, D].

    scale: of the scores; None: 1 / sqrt(D). half_window: the largest distance that is seen; None: any.
    """
    size = q.shape[-1]
    scale = size**-0.5 if scale is None else scale
    window = (-1, -1) if half_window is None else (half_window, half_window)
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    missing = -size % _HEAD_MULTIPLE
    if missing:  # zeros add nothing to a score, and give values that are cut off again
        q, k, v = (pad(x, (0, missing)) for x in (q, k, v))
    output = kernel(q, k, v, boundaries, longest, scale, dropout, window, deterministic)
    return output[..., :size] if missing else output


@cache
def _runs_flash(device: torch.device) -> bool:
    """Return whether the device is of NVIDIA's Ampere generation or later."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def _flash_attn() -> Callable[..., Any] | None:
    """Return flash-attn's function; None where it does not import, be it for another version of torch."""
    try:
        from flash_attn import flash_attn_varlen_func
    except (ImportError, OSError):
        return None
    return flash_attn_varlen_func


def _by_flash_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    boundaries: Tensor,
    longest: int,
    scale: float,
    dropout: float,
    window: tuple[int, int],
    deterministic: bool,
) -> Tensor:
    function = _flash_attn()
    assert function is not None
    return function(
        q,
        k,
        v,
        boundaries,
        boundaries,
        longest,
        longest,
        dropout_p=dropout,
        softmax_scale=scale,
        window_size=window,
        deterministic=deterministic,
    )


def _by_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    boundaries: Tensor,
    longest: int,
    scale: float,
    dropout: float,
    window: tuple[int, int],
    deterministic: bool,
) -> Tensor:
    return torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        boundaries,
        boundaries,
        longest,
        longest,
        dropout,
        False,  # not causal
        False,  # no copy of the probabilities for debugging
        scale=scale,
        window_size_left=window[0],
        window_size_right=window[1],
    )[0]
