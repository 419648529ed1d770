"""Where a run stands, and the score by which its best step is chosen."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from pretrain.common.run_folder import LOWER_IS_BETTER


@dataclass
class Progress:
    """All that a checkpoint must know beside the engine's tensors.

    Attributes:
        step: optimizer steps done, which is also the position in the data.
        tokens: trained on so far.
        seconds: training time, over all starts.
        best_score, best_step, best_by: the best evaluation so far (`selection_score`); no score: none yet.
        unimproved: evaluations in a row, up to the last one, that were not the best.
        skipped_steps: steps whose update was left out: something was not finite, or a spike.
        faults: those of them, by number, that count against `train.faults.skip`.
        norms: (step, finite gradient norm) of the last steps, by whose median a spike is recognised.
        rollbacks: returns to an earlier checkpoint: `from` its step, `to` the step from which the run went on
            with its parameters, and why.
        jumped: steps that were not read, as (a, b): where a steps were done, b counted as done.
        substitutions: damaged chunks and what was read in their place, of all ranks
            (`pretrain.data.damage`).
        heldout_left_out: damaged chunks of the held-out split.
        loss_scale: state of the fp16 loss scale.
        changes: settings that were changed when the run was resumed (`pretrain.start.continuity`).
        rows: where metrics.jsonl ended when the checkpoint was begun (`pretrain.telemetry.metrics_file`).
        window: sums since the last row of metrics (`pretrain.step.log.Window`).
        ledger: hashes of all batches so far (`pretrain.data.ledger`).
        monitor: what alarms remember (`pretrain.telemetry.monitors`).
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_score: float | None = None
    best_step: int = 0
    best_by: str = ""
    unimproved: int = 0
    skipped_steps: int = 0
    faults: list[int] = field(default_factory=list)
    norms: list[list[float]] = field(default_factory=list)
    rollbacks: list[dict] = field(default_factory=list)
    jumped: list[list[int]] = field(default_factory=list)
    substitutions: list[dict] = field(default_factory=list)
    heldout_left_out: list[dict] = field(default_factory=list)
    loss_scale: dict[str, float] = field(default_factory=dict)
    changes: list[dict] = field(default_factory=list)
    ledger: dict = field(default_factory=dict)
    rows: dict = field(default_factory=dict)
    window: dict = field(default_factory=dict)
    monitor: dict = field(default_factory=dict)

    def roll_back(self, checkpointed: dict[str, Any], why: str) -> None:
        """Go on, from the step where the run stands, with the progress in a checkpoint.

        The steps in between are counted and have trained nothing. What the run has recorded of its data stays
        (their batches were read), and so do its settings and the best step, whose model is on disk. Faults
        count anew.
        """
        self.rollbacks.append({"from": checkpointed["step"], "to": self.step, "why": why})
        self.faults = []
        for name in ("tokens", "skipped_steps", "norms", "loss_scale", "window", "monitor"):
            setattr(self, name, checkpointed.get(name, type(getattr(self, name))()))

    def lost(self, patience: int | None) -> bool:
        """Return whether the last `patience` evaluations (`train.patience`) were not the best."""
        return patience is not None and self.unimproved >= patience

    def note_scores(
        self,
        scores: dict[str, float],
        from_random: bool = False,
        by: str | None = None,
        random: Collection[str] = (),
    ) -> bool:
        """Record an evaluation if it is the best so far; return whether it is.

        By another criterion than before (STS data came or went) it is the first, and so the best.

        from_random, by, random: as `selection_score` takes them.
        """
        name, score = selection_score(scores, from_random, by, random)
        best = self.best_score if self.best_by == name else None
        if best is not None and not (score > best or (math.isnan(best) and not math.isnan(score))):
            self.unimproved += 1
            return False
        self.best_by, self.best_score, self.best_step, self.unimproved = name, score, self.step, 0
        return True


def selection_score(
    scores: dict[str, float], from_random: bool = False, by: str | None = None, random: Collection[str] = ()
) -> tuple[str, float]:
    """Return the name of the score that selects `best/`, and its value, higher is better.

    It is STS-B dev if that was evaluated, else a held-out loss with its sign turned: the masked-language
    loss if there is one, else the held-out contrastive loss.

    from_random: the run started from random weights. Then the masked-language loss comes first: means of
        random word vectors are better at STS than the vectors of an encoder that has learned masked language
        modelling alone, so that by STS-B dev the start would be the best of such a run.
    by: the score to go by, if it was evaluated (`evaluate.best_by`); None: this order.
    random: scores whose start was random in a model that was not: any step would be better by them. They are
        left out.
    """
    order = ["stsb-dev", *LOWER_IS_BETTER]
    if from_random:
        order.sort(key=lambda name: name != "heldout_mlm_loss")
    if by is not None:
        order.insert(0, by)
    name = next(name for name in order if name in scores and name not in random)
    return name, -scores[name] if name in LOWER_IS_BETTER else scores[name]
