"""`aten::_flash_attention_forward` and its backward in plain torch, for a CPU, by the schema that they have.

torch has them for CUDA only. Registered for the CPU here, they let the variable-length branch run anywhere,
through torch's own derivative of the operator: forward, backward and dropout that is replayed from the state
that the forward returns. Any floating type; products and softmax are float32, float64 for float64.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from pretrain.model import attention as flash

TYPES = (*flash.HALF, torch.float32, torch.float64)
calls: list[dict] = []
"""What every forward was called with: longest, dropout, scale, window, head size."""


@contextmanager
def flash_on_cpu() -> Iterator[list[dict]]:
    """Let the encoder take the variable-length branch on a CPU, in any type; yields `calls`, emptied."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", _forward, "CPU")
    library.impl("_flash_attention_backward", _backward, "CPU")
    calls.clear()
    with (
        patch.object(flash, "HALF", TYPES),
        patch.object(flash, "_runs_flash", lambda device: True),
        patch.object(torch.backends.cuda, "is_flash_attention_available", lambda: True),
    ):
        try:
            yield calls
        finally:
            library._destroy()


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float,
    window_size_left: int,
    window_size_right: int,
    **of_inference: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    assert not is_causal and not return_debug_mask and not of_inference
    assert query.shape == key.shape == value.shape and query.shape[-1] % 8 == 0
    assert cum_seq_q.dtype == torch.int32 and torch.equal(cum_seq_q, cum_seq_k)
    assert int(cum_seq_q[0]) == 0 and int(cum_seq_q[-1]) == len(query)
    assert int(cum_seq_q.diff().min()) >= 0 and int(cum_seq_q.diff().max()) <= max_q == max_k
    window = (window_size_left, window_size_right)
    calls.append(
        {
            "longest": max_q,
            "dropout": dropout_p,
            "scale": scale,
            "window": window,
            "head_size": query.shape[-1],
        }
    )
    state = torch.randint(2**62, (2,)).to(torch.uint64) if dropout_p else torch.zeros(2, dtype=torch.uint64)
    sequences = _sequences((query, key, value), cum_seq_q, dropout_p, state, scale, window)
    output = torch.cat(
        [torch.einsum("hij,jhd->ihd", exact * factor, v) for _, _, v, exact, factor in sequences]
    ).to(query.dtype)
    sums = query.new_zeros((query.shape[1], len(query)), dtype=torch.float32)
    return output, sums, state, torch.zeros((), dtype=torch.uint64), query.new_zeros(0)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float,
    window_size_left: int,
    window_size_right: int,
) -> tuple[Tensor, ...]:
    window, gradients = (window_size_left, window_size_right), []
    tensors = (query, key, value, grad_out)
    for q, k, v, upstream, exact, factor in _sequences(
        tensors, cum_seq_q, dropout_p, rng_state, scale, window
    ):
        of_values = torch.einsum("hij,ihd->jhd", exact * factor, upstream)
        of_exact = torch.einsum("ihd,jhd->hij", upstream, v) * factor
        of_scores = exact * (of_exact - (of_exact * exact).sum(-1, keepdim=True)) * scale
        of_queries = torch.einsum("hij,jhd->ihd", of_scores, k)
        gradients.append((of_queries, torch.einsum("hij,ihd->jhd", of_scores, q), of_values))
    return tuple(torch.cat(parts).to(query.dtype) for parts in zip(*gradients))


def _sequences(
    tensors: tuple[Tensor, ...],
    boundaries: Tensor,
    rate: float,
    state: Tensor,
    scale: float,
    window: tuple[int, int],
) -> Iterator[tuple[Tensor, ...]]:
    """Yield each sequence's share of the tensors (queries and keys come first), its probabilities
    [heads, L, L], and what dropout multiplies them by."""
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    generator = torch.Generator().manual_seed(int(state[0]))
    for parts in zip(*(x.to(wide).split(boundaries.diff().tolist()) for x in tensors)):
        scores = torch.einsum("ihd,jhd->hij", parts[0], parts[1]) * scale
        if window != (-1, -1):
            distance = torch.arange(len(parts[0]))[:, None] - torch.arange(len(parts[0]))
            scores = scores.masked_fill((distance > window[0]) | (-distance > window[1]), -torch.inf)
        factor = torch.ones((), dtype=wide)
        if rate:
            factor = (torch.rand(scores.shape, generator=generator) >= rate) / (1 - rate)
        yield *parts, scores.softmax(-1), factor
