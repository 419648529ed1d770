"""The peers of `gpu_accept.py`, at its sizes: transformers, compiled, and sentence-transformers' cached loss.

Compiling takes most of a minute. So each peer is a process that starts beside the parts that time nothing,
compiles, and waits until it is asked:

    python gpu_peers.py PART cuda|cpu FOLDER

writes FOLDER/ready when it has taken its first steps, waits for FOLDER/go, and writes FOLDER/found.json: real
tokens per second, filler left out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from gpu_accept import Accept

LIMIT = 120
"""Seconds that a peer may take until it is ready, from when it starts."""
Speed = Callable[[], float]


class Skipped(Exception):
    """A part cannot run here; the message says why."""


class Late(Exception):
    """A part had no time; the message says which."""


class Peer:
    """One peer, in a process of its own."""

    def __init__(self, part: str, device: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path, self.until = Path(self.folder.name), time.monotonic() + LIMIT
        with (self.path / "said").open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, __file__, part, device, self.folder.name],
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def settle(self) -> None:
        """Wait until it does nothing but wait; end it if that takes too long."""
        while self.process.poll() is None and not (self.path / "ready").exists():
            if time.monotonic() > self.until:
                self.stop()
            time.sleep(0.1)

    def speed(self) -> dict[str, Any]:
        """Return what it found; raise Skipped where it cannot run, Late where it was not ready in time."""
        self.settle()
        (self.path / "go").touch()
        code = self.process.wait()
        if not (found := self.path / "found.json").exists():
            if code == -signal.SIGKILL:
                raise Late(f"the peer was not ready after {LIMIT} s")
            raise Skipped(f"the peer died: {(self.path / 'said').read_text()[-300:]}")
        outcome = json.loads(found.read_text())
        if "reason" in outcome:
            raise Skipped(outcome["reason"])
        return outcome

    def stop(self) -> None:
        """End it, and what it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def peer_speed(
    accept: Accept,
    model: torch.nn.Module,
    loss: Callable[[], torch.Tensor],
    tokens: int,
    count: int,
    before: int = 3,
) -> Speed:
    """Take some steps, and return what takes more, and returns their tokens per second.

    A plain loop: bfloat16, clipped, torch's fused AdamW.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def take(steps: int) -> None:
        for _ in range(steps):
            with torch.autocast(accept.device.type, dtype=torch.bfloat16):
                value = loss()
            if value.requires_grad:
                value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def speed() -> float:
        take(min(count - 1, 1))  # a device that has waited for long is slow
        started = accept.seconds()
        take(count)
        return tokens * count / (accept.seconds() - started)

    take(before)
    return speed


def compiled_sentences(accept: Accept, batch: int) -> Speed:
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


def compiled_masked(accept: Accept) -> Speed:
    """Return the speed of transformers, compiled, on rows of one length."""
    model, size = accept.library_model(), accept.size
    call = torch.compile(model) if accept.device.type == "cuda" else model
    rows = max(1, size.micro_batch_tokens // size.length)
    ids = torch.randint(5, size.vocabulary, (rows, size.length), device=accept.device)
    labels = torch.where(torch.rand(ids.shape, device=accept.device) < 0.15, ids, -100)
    tokens = rows * size.length
    return peer_speed(accept, model, lambda: call(input_ids=ids, labels=labels).loss, tokens, size.steps)


def cached(accept: Accept, batch: int) -> Speed:
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


PEERS: dict[str, tuple[str, Callable[[Accept], Speed]]] = {
    "peer512": ("batch512", lambda accept: compiled_sentences(accept, accept.batch("batch512"))),
    "peer8192": ("batch8192", lambda accept: cached(accept, accept.batch("batch8192"))),
    "peer_masked": ("masked", compiled_masked),
    "peer64": ("batch64", lambda accept: compiled_sentences(accept, accept.batch("batch64"))),
}
"""Part -> the part that it is beside, and what prepares it."""


def main() -> None:
    part, device, folder, parent = sys.argv[1], sys.argv[2], Path(sys.argv[3]), os.getppid()
    from gpu_accept import Accept

    try:
        accept = Accept(device)
        speed = PEERS[part][1](accept)
        accept.free()
        (folder / "ready").touch()
        while not (folder / "go").exists():
            if os.getppid() != parent:
                return
            time.sleep(0.05)
        found = {"peer_tokens_per_second": round(speed()), "peer_peak_gb": round(accept.peak_gb(), 2)}
    except Skipped as reason:
        found = {"reason": str(reason)}
    except Exception as error:  # theirs, not ours
        found = {"reason": f"the peer failed: {type(error).__name__}: {str(error)[:200]}"}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
