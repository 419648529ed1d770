"""Run an evaluation that leaves the weights as they are: read its tasks, open the model, score them.

Each evaluation declares itself beside its scoring, and its command follows from that:

    EVALUATION = Frozen("zh_sts", "cosine, Spearman over all pairs", tuple(TASKS), read_task, score, ...)
    main = command(EVALUATION)
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from finetune.encoders.models import EmbeddingModel, open_model
from finetune.encoders.source import OWN_MODULES
from finetune.flags import EncodingFlags, EvalData, Model, Out
from finetune.results import Evaluation, run_and_write
from pretrain.benchmarks.files import known_name
from pretrain.common import cli


class FrozenFlags(EncodingFlags):
    """Flags of every evaluation of frozen vectors."""

    tasks: cli.Names = Field((), description="names by commas; default: the suite's, or the paper's table")
    eval_data: EvalData = ""
    out: Out = ""


@dataclass(frozen=True)
class Frozen:
    """Declare an evaluation of frozen vectors."""

    name: str
    """`clearly NAME`."""
    protocol: str
    tasks: tuple[str, ...]
    read: Callable[[str, str], Any]
    """(task, folder of evaluation data) -> its examples; a UserError says which file is missing or wrong."""
    score: Callable[[EmbeddingModel, str, Any, Evaluation], str]
    """Add a task's figures to the evaluation, given its examples; return them in words."""
    pooling: tuple[str, str] | None = None
    """That of the paper's figures, and whose they are."""
    max_length: int | None = None
    """Most tokens of a text; None: as many as the model takes."""
    about: str = ""
    """With which the help of its command begins."""

    def evaluate(self, model: EmbeddingModel, loaded: Mapping[str, Any]) -> Evaluation:
        """Score each task, by name as `read` read it."""
        evaluation = Evaluation.of(self.name, model, self.protocol)
        pooling, whose = self.pooling or (model.pooling, "")
        if model.pooling not in (pooling, "function", OWN_MODULES):
            evaluation.notes.append(
                f"{model.pooling} pooling, where {whose} figures are of {pooling} pooling"
            )
        if self.max_length is not None and model.max_length is None:
            evaluation.notes.append(f"{model.name} reads whole texts: it has no limit that could be set")
        for name, examples in loaded.items():
            started = time.perf_counter()
            summary = self.score(model, name, examples, evaluation)
            print(f"{name}: {summary}; {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        return evaluation


def command(evaluation: Frozen) -> Callable[..., int]:
    """Return the command of an evaluation."""

    def main(model: Model, *, flags: FrozenFlags) -> int:
        names = [known_name(name, evaluation.tasks, "task") for name in flags.tasks] or evaluation.tasks
        # before the model: a missing file should not cost the loading
        loaded = {name: evaluation.read(name, flags.eval_data) for name in names}
        opened = open_model(model, flags.pooling, max_length=evaluation.max_length, precision=flags.precision)
        return run_and_write(opened, flags.out, lambda opened: evaluation.evaluate(opened, loaded))

    main.__doc__ = f"{evaluation.about}\n\nTasks: {', '.join(evaluation.tasks)}."
    return main
