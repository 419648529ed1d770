"""What the steps of runs give, by the worlds that did them: ranks, ZeRO stage, micro-batches."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
from run_helpers import command, finish, records, start
from safetensors import safe_open

from pretrain.checkpoint.store import candidates, read_tensors, step_of

MOST_STEPS = 24  # of a run that has been made longer
EVERY = 2  # steps from one checkpoint to the next
FLAGS = {
    "model__layers": 1,
    "model__hidden_size": 16,
    "model__dropout": 0,  # another split draws other dropout masks
    "model__attention_dropout": 0,
    "train__schedule": "constant",  # a longer run has the same rates
    "checkpoint__every": EVERY,
    "evaluate__every": 3,
    "evaluate__heldout_sequences": 8,
    "evaluate__partners": 8,
    "track": "none",
    "train__rendezvous_seconds": 60,
}
SAME = "loss", "gradient_norm", "evaluation", "lr", "tokens", "ledger"


class World(NamedTuple):
    """What decides a run's bits beside its recipe."""

    ranks: int
    zero: int
    micro: int = 256

    @property
    def flags(self) -> dict:
        return {"train__zero": self.zero, "train__micro_batch_tokens": self.micro}


History = tuple[World, ...]
"""The world of each step done."""


@dataclass
class Seen:
    """What steps gave in all runs of a test, by the worlds that did them and those before."""

    data: Path
    folder: Path
    kept: dict[tuple[str, History], object] = field(default_factory=dict)
    by_step: dict[int, dict] = field(default_factory=dict)
    worlds: set[World] = field(default_factory=set)
    happened: Counter[str] = field(default_factory=Counter)
    """How often each kind of event has come about; a kill that is drawn behind the end has not."""

    def require_same(self, kind: str, history: History, found: object) -> None:
        expected = self.kept.setdefault((kind, history), found)
        assert found == expected, f"{kind} of step {len(history)} under {history[-1]}"

    def require_near(self, step: int, row: dict) -> None:
        """Compare with the same step of another world."""
        expected = self.by_step.setdefault(step, row)
        assert row["ledger"] == expected["ledger"] and row["tokens"] == expected["tokens"], step
        assert row["loss"] == pytest.approx(expected["loss"], rel=2e-5), step

    def require_reference(self, world: World) -> None:
        """Do all steps in one world, unless that has been done."""
        if world in self.worlds:
            return
        self.worlds.add(world)
        run = self.folder / "-".join(map(str, world))
        flags = FLAGS | world.flags | {"train__steps": MOST_STEPS, "checkpoint__keep": 99}
        finish(start(command(self.data, run, **flags), world.ranks))
        require_rows(run, self, dict.fromkeys(range(1, MOST_STEPS + 1), world))
        for checkpoint in candidates(run / "checkpoints"):
            self.require_same("checkpoint", (world,) * step_of(checkpoint), content_of(checkpoint))
        self.require_same("export", (world,) * MOST_STEPS, weights_of(run / "export"))


def require_rows(run: Path, seen: Seen, worlds: dict[int, World]) -> list[int]:
    """Compare all rows of a run with what has been seen; return their steps."""
    steps = []
    for row in records(run):
        step = row["step"]
        history = tuple(worlds[before] for before in range(1, step + 1))
        for kind in SAME:
            if kind in row and step:
                seen.require_same(kind, history, row[kind])
        if "loss" in row:
            seen.require_near(step, row)
            steps.append(step)
    return steps


def content_of(checkpoint: Path) -> str:
    """Return a hash of all tensors of a checkpoint, whatever files they are in."""
    series = ("parameters", "exp_avg", "exp_avg_sq", "buffers")
    tensors = {(kind, name): tensor for kind in series for name, tensor in read_tensors(checkpoint, kind)}
    whole = hashlib.sha256()
    for key in sorted(tensors):
        whole.update(repr(key).encode() + tensors[key].numpy().tobytes())
    return whole.hexdigest()


def weights_of(export: Path) -> str:
    with safe_open(export / "model.safetensors", framework="pt") as tensors:
        parts = [tensors.get_tensor(name).numpy().tobytes() for name in sorted(tensors.keys())]
    return hashlib.sha256(b"".join(parts)).hexdigest()
