"""Checkpoints as a run has left them, by their facts alone."""

from dataclasses import asdict

from pretrain.commands.verify.files import Saved
from pretrain.config.recipe import load_config
from pretrain.step.progress import Progress

CONFIG = load_config(None, {"folder": "r"}).model_dump(mode="json")


def saved(step, name=None, every=4, keep_every=0, ranks=1, progress=(), **machine):
    """A checkpoint; an export, which has no state, if it is named."""
    config = CONFIG | {"checkpoint": {"every": every, "keep": 3, "keep_every": keep_every}}
    state = {} if name else {"world_size": ranks, "machine": machine}
    return Saved(name or f"step-{step:08d}", step, asdict(Progress()) | dict(progress), config, state)
