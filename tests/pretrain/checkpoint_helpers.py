"""A small engine to take checkpoints of, and ways to damage them."""

from pathlib import Path

import torch

from pretrain.checkpoint.folder_writer import Retention
from pretrain.checkpoint.saver import MAX_FILE_BYTES, Saver


class PlainEngine:
    """What a checkpoint needs of an engine."""

    def __init__(self, width: int = 3) -> None:
        torch.manual_seed(width)
        self.module = torch.nn.Linear(width, width)
        self.optimizer = torch.optim.AdamW(self.module.parameters())
        self.global_steps = 0

    def step(self) -> None:
        self.module(torch.ones(1, self.module.in_features)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.global_steps += 1


def save(root: Path, engine, state: dict, keep: int, max_file_bytes: int = MAX_FILE_BYTES) -> Path:
    """Write one checkpoint of `engine` under `root`, and return it when it is whole. Collective."""
    saver = Saver(engine, max_file_bytes)
    try:
        return saver.save(root, state, Retention(keep), background=False)
    finally:
        saver.close()


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
