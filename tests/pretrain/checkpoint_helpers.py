"""A small engine to take checkpoints of, and ways to damage them."""

from pathlib import Path

import torch


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


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
