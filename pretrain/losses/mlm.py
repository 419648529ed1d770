"""Masked language modelling (Devlin et al. 2019), on the masked positions only and in bounded memory.

Of a batch's tokens 15% are masked, so the vocabulary projection, the widest product of a small model, runs on
15% of the rows.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from pretrain.common.memory import rounded_rows
from pretrain.model.kernels import kernels_for
from pretrain.model.kernels.plain import IGNORED

if TYPE_CHECKING:
    from pretrain.model.encoder import SentenceEncoder

TILE_BYTES = {"cpu": 2**27, "cuda": 2**30}
"""Most bytes of logits [positions, vocabulary] alive at once, in their own type; on a CPU in float32, in
which they are read there."""


def masked_lm_loss(encoder: "SentenceEncoder", hidden: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
    """SUM over the masked positions of -log p(label): a scalar, float32 (float64 from float64 hidden states).

    A sum, because the right mean is over the masked tokens of the whole global batch, which only the caller
    knows. Where [P, V] exceeds the bound, positions are cut into tiles whose logits are computed again in the
    backward pass (one more forward of the head); the calls go through the head's modules, so ZeRO-3's hooks
    gather their weights.

    hidden: last hidden states [T, H] from `encoder.states`. positions: int64[P] into hidden, on its device;
    P = 0 gives 0 that still reaches every parameter. labels: integers [P], the original token ids.
    """
    rows = tile_rows(hidden.device, encoder.vocab_size)
    positions, labels = round_up(positions, labels.long())
    tiles = list(zip(hidden.index_select(0, positions).split(rows), labels.split(rows), strict=True))
    tiles += [(hidden[:0], labels[:0])] * (_agreed_count(encoder, len(tiles)) - len(tiles))

    def tile_loss(states: Tensor, targets: Tensor) -> Tensor:
        logits = encoder.filled_logits(states)
        return kernels_for(logits.device, logits.dtype).cross_entropy_sum(logits, targets, encoder.vocab_size)

    # Without early stop: it leaves a module's forward by an exception, past the hook that gives weights back.
    # The head draws no random numbers, so there is no random state to keep for the recomputation.
    run: Callable[[Tensor, Tensor], Tensor] = tile_loss
    if len(tiles) > 1 and torch.is_grad_enabled():
        run = partial(checkpoint, tile_loss, use_reentrant=False, preserve_rng_state=False)
    with set_checkpoint_early_stop(False):
        losses = [run(states, targets) for states, targets in tiles]
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def tile_rows(device: torch.device, vocabulary: int) -> int:
    """Return how many positions a tile of logits has."""
    size = 2 if device.type == "cuda" and torch.is_autocast_enabled("cuda") else 4
    return max(1, TILE_BYTES.get(device.type, TILE_BYTES["cuda"]) // (size * vocabulary))


def _agreed_count(encoder: "SentenceEncoder", tiles: int) -> int:
    """Return the largest number of tiles over ranks if ZeRO-3 gathers weights.

    That is a collective, which all ranks must enter equally often: a rank that needs fewer tiles runs empty
    ones. It costs one small reduction, and none at other stages.
    """
    output = encoder.lm.get_output_embeddings().weight
    if not hasattr(output, "ds_id") or not dist.is_initialized() or dist.get_world_size() == 1:
        return tiles
    count = torch.tensor(tiles, device=encoder.lm.device)
    dist.all_reduce(count, dist.ReduceOp.MAX)
    return int(count)


def round_up(positions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Fill up with ignored rows, so that few shapes occur (see `pretrain.common.memory`)."""
    filler = rounded_rows(len(positions)) - len(positions)
    pad = torch.nn.functional.pad
    return pad(positions, (0, filler)), pad(labels, (0, filler), value=IGNORED)
