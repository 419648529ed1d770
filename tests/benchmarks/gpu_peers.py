"""The peers of `gpu_accept.py`, at its sizes: transformers, compiled, and sentence-transformers' cached loss.

Each returns real tokens per second, filler left out; `accept` has device, sizes, texts and models.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from gpu_accept import Accept


class Skipped(Exception):
    """A part cannot run here; the message says why."""


def peer_speed(
    accept: Accept,
    model: torch.nn.Module,
    loss: Callable[[], torch.Tensor],
    tokens: int,
    count: int,
    before: int = 3,
) -> float:
    """Return tokens per second of a plain loop: bfloat16, clipped, torch's fused AdamW; after some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    started = 0.0
    for number in range(count + before):
        if number == before:
            started = accept.seconds()
        with torch.autocast(accept.device.type, dtype=torch.bfloat16):
            value = loss()
        if value.requires_grad:
            value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return tokens * count / (accept.seconds() - started)


def compiled_sentences(accept: Accept, batch: int) -> float:
    """Return the speed of transformers, compiled, on sentences padded to the longest that there may be."""
    base = accept.library_model().base_model
    call = torch.compile(base) if accept.device.type == "cuda" else base
    taken = accept.sentences.take(np.random.default_rng(1).integers(0, len(accept.sentences), batch))
    ids, mask = (torch.cat([part, part]) for part in accept.padded(taken))
    of_one = torch.arange(batch, device=accept.device)

    def loss() -> torch.Tensor:
        hidden = call(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        vectors = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        anchors, positives = torch.nn.functional.normalize(vectors, dim=1).split(batch)
        return torch.nn.functional.cross_entropy(anchors @ positives.T / 0.05, of_one)

    return peer_speed(accept, base, loss, 2 * int(taken.lengths.sum()), accept.size.steps)


def compiled_masked(accept: Accept) -> float:
    """Return the speed of transformers, compiled, on rows of one length."""
    model, size = accept.library_model(), accept.size
    call = torch.compile(model) if accept.device.type == "cuda" else model
    rows = max(1, size.micro_batch_tokens // size.length)
    ids = torch.randint(5, size.vocabulary, (rows, size.length), device=accept.device)
    labels = torch.where(torch.rand(ids.shape, device=accept.device) < 0.15, ids, -100)
    tokens = rows * size.length
    return peer_speed(accept, model, lambda: call(input_ids=ids, labels=labels).loss, tokens, size.steps)


def cached(accept: Accept, batch: int) -> float:
    """Return the speed of sentence-transformers' cached loss."""
    if not find_spec("sentence_transformers"):
        raise Skipped("sentence_transformers is not installed")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    with tempfile.TemporaryDirectory() as folder:
        accept.library_model().base_model.save_pretrained(folder)
        accept.tokenizer.save_pretrained(folder)
        words = Transformer(
            folder, max_seq_length=accept.size.short, model_kwargs={"attn_implementation": "sdpa"}
        )
    modules = [words, Pooling(accept.size.width, "mean")]
    model = SentenceTransformer(modules=modules, device=accept.device.type).train()
    loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=accept.size.mini_batch)
    taken = accept.sentences.take(np.random.default_rng(1).integers(0, len(accept.sentences), batch))
    ids, mask = accept.padded(taken)
    views = [{"input_ids": ids, "attention_mask": mask} for _ in range(2)]
    tokens = 2 * int(taken.lengths.sum())
    return peer_speed(accept, model, lambda: loss(list(map(dict, views)), None), tokens, 1, before=1)
