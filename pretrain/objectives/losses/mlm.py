"""Masked language modelling (Devlin et al. 2019), on the masked positions only and in bounded memory.

Of a batch's tokens 15% are masked, so the vocabulary projection, the widest product of a small model, runs on
15% of the rows.
"""

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from pretrain.common.memory import rounded_rows
from pretrain.model.kernels import fused, kernels_for
from pretrain.model.kernels.fused import IGNORED, scaled

if TYPE_CHECKING:
    from pretrain.model.encoder import SentenceEncoder

TILE_ELEMENTS = {"cpu": 2**25, "cuda": 2**28}
"""Most logits [positions, vocabulary] alive at once: 128 MiB on CPU, 1 GiB on CUDA, in float32."""


def masked_lm_loss(
    encoder: "SentenceEncoder",
    hidden: Tensor,
    positions: Tensor,
    labels: Tensor,
    tile_elements: int | None = None,
) -> Tensor:
    """SUM over the masked positions of -log p(label): a scalar, float32 (float64 from float64 hidden states).

    A sum, because the right mean is over the masked tokens of the whole global batch, which only the caller
    knows. Where [P, V] exceeds the bound, positions are cut into tiles whose logits are computed again in the
    backward pass (one more forward of the head); the calls go through the head's modules, so ZeRO-3's hooks
    gather their weights.

    Args:
        hidden: last hidden states [T, H] from `encoder.forward_packed`.
        positions: int64[P] into hidden, on its device. P = 0 gives 0 that still reaches every parameter.
        labels: integers [P], the original token ids.
        tile_elements: most logits alive at once; default by device, `TILE_ELEMENTS`.
    """
    bound = tile_elements or TILE_ELEMENTS.get(hidden.device.type, TILE_ELEMENTS["cuda"])
    rows = max(1, bound // encoder.vocab_size)
    positions, labels = _round_up(positions, labels.long())
    tiles = list(zip(hidden.index_select(0, positions).split(rows), labels.split(rows), strict=True))
    tiles += [(hidden[:0], labels[:0])] * (_agreed_count(encoder, len(tiles)) - len(tiles))

    def tile_loss(states: Tensor, targets: Tensor) -> Tensor:
        logits, vocabulary = encoder.filled_logits(states), encoder.vocab_size
        kernels = kernels_for(logits.device, logits.dtype)
        if kernels is fused and logits.dtype != torch.float64:
            return fused.cross_entropy_sum(logits, targets, vocabulary)
        return cross_entropy_sum(logits[:, :vocabulary], targets)

    if len(tiles) == 1 or not torch.is_grad_enabled():
        return torch.stack([tile_loss(states, targets) for states, targets in tiles]).sum()
    # Without early stop: it leaves a module's forward by an exception, past the hook that gives weights back.
    # The head draws no random numbers, so there is no random state to keep for the recomputation.
    with set_checkpoint_early_stop(False):
        losses = [
            checkpoint(tile_loss, states, targets, use_reentrant=False, preserve_rng_state=False)
            for states, targets in tiles
        ]
    return torch.stack(losses).sum()


def _agreed_count(encoder: "SentenceEncoder", tiles: int) -> int:
    """Return the largest number of tiles over ranks where ZeRO-3 gathers weights.

    That is a collective, which all ranks must enter equally often: a rank that needs fewer tiles runs empty
    ones. It costs one small reduction, and none at other stages.
    """
    output = encoder.lm.get_output_embeddings().weight
    if not hasattr(output, "ds_id") or not dist.is_initialized() or dist.get_world_size() == 1:
        return tiles
    count = torch.tensor(tiles, device=encoder.lm.device)
    dist.all_reduce(count, dist.ReduceOp.MAX)
    return int(count)


def _round_up(positions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Fill up with ignored rows, so that few shapes occur (see `pretrain.common.memory`)."""
    filler = rounded_rows(len(positions)) - len(positions)
    pad = torch.nn.functional.pad
    return pad(positions, (0, filler)), pad(labels, (0, filler), value=IGNORED)


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum -log softmax(logits)[label] over rows: float32, or float64 from float64.

    logits: [P, V]. labels: int64[P].

    Half-precision logits are read in float32. The gradient, softmax - onehot, is made in the forward pass in
    the logits' dtype, and is all that is kept: autograd's own chain would hold float32 copies of [P, V] three
    times.
    """
    return _CrossEntropySum.apply(logits, labels)


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, labels: Tensor) -> Tensor:
        wide = logits if logits.dtype == torch.float64 else logits.float()
        ignored = (labels == IGNORED)[:, None]
        target = labels.clamp(min=0)[:, None]
        log_sum = wide.logsumexp(1, keepdim=True)
        loss = (log_sum - wide.gather(1, target)).masked_fill(ignored, 0.0).sum()
        if ctx.needs_input_grad[0]:
            gradient = (wide - log_sum).exp_()
            gradient.scatter_add_(1, target, gradient.new_full(target.shape, -1.0))
            gradient.masked_fill_(ignored, 0.0)
            ctx.save_for_backward(gradient.to(logits.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return scaled(gradient, upstream), None


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
    tokens, labels = int(lengths.sum()), replaced.long()
    assert logits.shape == (len(labels), 2) and tokens <= len(labels)
    if tokens < len(labels):
        labels = torch.cat([labels[:tokens], labels.new_full((len(labels) - tokens,), IGNORED)])
    with torch.autocast(logits.device.type, enabled=False):
        return cross_entropy_sum(logits, labels)
