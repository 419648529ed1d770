"""Flash attention over sequences of many lengths, laid end to end: one kernel for a whole row, on CUDA.

torch has the kernel (Dao 2023, "FlashAttention-2") with a backward, windows, and dropout on the
probabilities, as `aten::_flash_attention_forward` (what it makes public, `torch.nn.attention.varlen`, has no
dropout). It draws its dropout from torch's generator on the device, so a second pass drops the same where the
generator was seeded the same (`SentenceModel.autocast`).
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from pretrain.model.attention import PackedLayout

HALF = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256
_HEAD_MULTIPLE = 8


def takes_flash(qkv: Tensor) -> bool:
    """Return whether the kernel takes tensors like `qkv` [..., D]."""
    if qkv.dtype not in HALF or qkv.shape[-1] > _LARGEST_HEAD or not _runs_flash(qkv.device):
        return False
    return torch.backends.cuda.is_flash_attention_available()


def attend(qkv: Tensor, layout: PackedLayout, dropout: float, half_window: int | None) -> Tensor:
    """Attend within each sequence, by heads of any size D: [T, 3, heads, D] -> [T, heads, D].

    half_window: the largest distance that is seen; None: any.
    """
    size = qkv.shape[-1]
    missing = -size % _HEAD_MULTIPLE
    if missing:  # zeros add nothing to a score, and give values that are cut off again
        qkv = pad(qkv, (0, missing))
    window = -1 if half_window is None else half_window
    output = torch.ops.aten._flash_attention_forward(
        *qkv.unbind(1),
        layout.boundaries,
        layout.boundaries,
        layout.longest,
        layout.longest,
        dropout,
        False,  # not causal
        False,  # no copy of the probabilities for debugging
        scale=size**-0.5,
        window_size_left=window,
        window_size_right=window,
    )[0]
    return output[..., :size] if missing else output


@cache
def _runs_flash(device: torch.device) -> bool:
    """Return whether the device is of NVIDIA's Ampere generation or later."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
