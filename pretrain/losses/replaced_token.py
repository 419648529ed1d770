"""DiffCSE's replaced-token detection (Chuang et al. 2022, equation 3): which tokens were changed?"""

import torch
from torch import Tensor

from pretrain.losses.mlm import IGNORED, cross_entropy_sum


def replaced_token_loss(logits: Tensor, replaced: Tensor, lengths: Tensor) -> Tensor:
    """SUM over the tokens of -log p(replaced or not): a scalar, float32 (float64 from float64).

    A sum, because the right mean is over the tokens of the whole global batch, which only the caller knows.
    All tokens count, position 0 too, whose embedding is the sentence vector and which is never replaced: as
    in the authors' code. Padding does not exist in packed rows; the authors' code counts it as class 0, so
    that its loss depends on the padding's width (voidism/DiffCSE#25). Tokens beyond the last sequence, which
    fill a row up, count for nothing.

    Args:
        logits: [T, 2] of a packed row.
        replaced: int64[T], 1 where the token is not the original's, else 0.
        lengths: int64[n], tokens of each sequence of the row, their sum at most T.
    """
    if logits.ndim != 2 or logits.shape[1] != 2 or replaced.shape != logits.shape[:1]:
        raise ValueError(
            f"replaced_token_loss takes [T, 2] and [T], not {list(logits.shape)} and {list(replaced.shape)}."
        )
    tokens = int(lengths.sum())
    if tokens > len(replaced):
        raise ValueError(f"sequences of {tokens} tokens in a row of {len(replaced)}.")
    labels = replaced.long()
    if tokens < len(labels):
        labels = torch.cat([labels[:tokens], labels.new_full((len(labels) - tokens,), IGNORED)])
    with torch.autocast(logits.device.type, enabled=False):
        return cross_entropy_sum(logits, labels)
