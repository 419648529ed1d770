"""The peers of `gpu_accept.py`, at its sizes: transformers, compiled, and sentence-transformers' cached loss.

Compiling takes most of a minute. So each peer is a process that starts beside the parts that time nothing,
compiles, and waits until it is asked:

    python gpu_peers.py PART cuda|cpu FOLDER PARENT

writes FOLDER/ready when it has taken its first steps, waits for FOLDER/go, and writes FOLDER/found.json: real
tokens per second, filler left out. It ends where the process PARENT does.
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
COMPILING = {"TORCHINDUCTOR_COMPILE_THREADS": "4"}
"""Processes that compile for one peer: four peers start at once, beside tests."""
Speed = Callable[[], float]


class Skipped(Exception):
    """A part cannot run here; the message says why."""


class Late(Exception):
    """A part had no time; the message says which."""


class Peer:
    """One peer, in a process of its own. late: whether it was ended because it was not ready in time."""

    def __init__(self, part: str, device: str) -> None:
        self.late = False
        self.folder = tempfile.TemporaryDirectory()
        self.path, self.until = Path(self.folder.name), time.monotonic() + LIMIT
        with (self.path / "said").open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, __file__, part, device, self.folder.name, str(os.getpid())],
                env=os.environ | COMPILING,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def settle(self) -> None:
        """Wait until it does nothing but wait; end it if that takes too long."""
        while self.process.poll() is None and not self.ready:
            if time.monotonic() > self.until:
                self.late = True
                self.stop()
            time.sleep(0.1)

    @property
    def ready(self) -> bool:
        return (self.path / "ready").exists()

    def speed(self) -> dict[str, Any]:
        """Return what it found.

        Raises:
            Skipped: it is not installed. Late: it was not ready in time. RuntimeError: it failed, or died.
        """
        self.settle()
        (self.path / "go").touch()
        code = self.process.wait()
        if not (found := self.path / "found.json").exists():
            if self.late:
                raise Late(f"the peer was not ready after {LIMIT} s")
            raise RuntimeError(f"the peer died with {code}: {(self.path / 'said').read_text()[-300:]}")
        outcome = json.loads(found.read_text())
        if "skipped" in outcome:
            raise Skipped(outcome["skipped"])
        if "failed" in outcome:
            raise RuntimeError(f"the peer failed: {outcome['failed']}")
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

    A plain loop: bfloat16 by autocast, else TF32, clipped, torch's fused AdamW.
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
        if count > 1:  # a device that has waited for long is slow at first; one step of seconds hides that
            take(1)
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
    # as their trainer has it: the loss reads sentences again, and backward, in a hook outside the loop's own
    model.forward = torch.autocast(accept.device.type, dtype=torch.bfloat16)(model.forward)
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


def of_peer(part: str) -> Callable[[Accept], dict[str, Any]]:
    """Return the part of a peer's speed, and our ratio to it."""

    def run_part(accept: Accept) -> dict[str, Any]:
        accept.free()
        theirs, found = accept.peers[part].speed(), accept.found.get(PEERS[part][0], {})
        ours = found.get("graphs auto") or found.get("fast, graphs auto")
        ratio = ours and round(ours["tokens_per_second"] / theirs["peer_tokens_per_second"], 2)
        return theirs | ({"ratio": ratio} if ratio else {})

    return run_part


def settle(accept: Accept) -> dict[str, Any]:
    """Wait until all peers only wait."""
    for peer in accept.peers.values():
        peer.settle()
    return {"ready": [part for part, peer in accept.peers.items() if peer.ready]}


def main() -> None:
    part, device, folder, parent = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    from gpu_accept import Accept

    torch.backends.cuda.matmul.allow_tf32 = True  # as our runs in bfloat16 have it
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
        found = {"skipped": str(reason)}
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
