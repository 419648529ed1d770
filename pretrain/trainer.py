"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from pretrain.common.memory import FlatMemory
from pretrain.common.shutdown import EXIT_CODES, NONE, REASONS, STOP, UNSAVED, Shutdown
from pretrain.common.transfer import Numbers
from pretrain.config.run import Config
from pretrain.data.batch import RankBatch
from pretrain.data.damage import describe_substitution
from pretrain.ledger import chain
from pretrain.model.precision import LossScale
from pretrain.start.checkpoints import Checkpoints
from pretrain.start.evaluation import Evaluation
from pretrain.step.faults import Decode, Faults, Judged, steadier_settings
from pretrain.step.optimizer import learning_rate
from pretrain.step.progress import Progress
from pretrain.step.update import Update
from pretrain.step.whole_batch import StepResult, WholeBatch
from pretrain.telemetry.averages import Window
from pretrain.telemetry.monitors import Monitor
from pretrain.telemetry.run import Telemetry
from pretrain.telemetry.stopwatch import Stopwatch
from pretrain.watch.deadline import Watchdog
from pretrain.watch.stragglers import Stragglers

Beside = Callable[[int], Mapping[str, Any]]


def train(
    config: Config,
    engine,
    batches: Iterator[RankBatch],
    evaluate: Evaluation,
    checkpoints: Checkpoints,
    keep_best: Callable[[Path], None],
    telemetry: Telemetry,
    shutdown: Shutdown,
    progress: Progress,
    stop_step: int,
    watchdog: Watchdog,
    beside: Beside = lambda step: {},
    decode: Decode = str,
) -> int:
    """Train from `progress.step` to `stop_step`; return the exit code, 0 when the run is complete.

    Args:
        engine: DeepSpeed engine around a `SentenceModel`.
        batches: this rank's batches from `progress.step` on, without those that `train.faults` jumps over.
        evaluate: evaluates the engine's model on all ranks together; must return the same dict on each.
        checkpoints: of the engine and the progress.
        keep_best: called on all ranks with the checkpoint of the step whose `selection_score` is the best so
            far.
        watchdog: is told of every step that is done.
        beside: number of steps done -> what a row of metrics says besides.
        decode: token ids -> text, for a report.

    Raises:
        OverBudget: too many steps had a loss or gradient that is not finite, or a spike. The checkpoints are
            as they were.
    """
    settings, clock, memory = config.train, Stopwatch(), FlatMemory()
    scale = LossScale(engine.module) if settings.precision == "fp16" else None
    if scale is not None and progress.loss_scale:
        scale.restore(progress.loss_scale)
    whole = WholeBatch(
        engine,
        settings.seed,
        settings.micro_batch_tokens,
        scale,
        clock,
        config.objective.mask_duplicates,
        settings.balance,
        lanes=config.data.lanes,
    )
    update = Update(engine, settings.clip, scale)
    faults = Faults(config, whole, update, telemetry, progress, decode)
    stragglers = Stragglers(clock, config.run_folder, speaks=dist.get_rank() == 0)
    log = _StepLog(config, engine, telemetry, progress, clock, stragglers, scale, beside, faults)
    engine.train()
    watchdog.follow(clock)
    telemetry.throughput.begin(progress.step)

    while progress.step < stop_step:
        clock.start_step()
        with clock("data"):
            batch = next(batches)
        if batch.step > progress.step:
            log.write()
            faults.jump_to(batch.step)
        rate = learning_rate(settings, progress.step)
        for group in engine.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        last = progress.step + 1 == stop_step
        ends_row = last or progress.step == 0 or _is_due(progress.step + 1, settings.log_every)
        asked = max(shutdown.requested(), UNSAVED if checkpoints.failed else NONE)
        result = whole.compute(batch, asked, probing=ends_row, busy=stragglers.busy())
        with clock("step"):
            norm, applied = update.apply(result.losses["total"], faults.largest_applied(progress.step + 1))
        memory.after_step()

        log.write()  # the step before, while a GPU is busy with this one
        progress.step += 1
        progress.tokens += result.tokens
        seconds = clock.end_step()
        progress.seconds += seconds
        watchdog.end_step(progress.step, seconds)
        progress.substitutions += result.substitutions
        progress.ledger = chain.extend(progress.ledger, result.sums)
        evaluates = last or _is_due(progress.step, config.evaluate.every)
        request = NONE if last else result.request

        log.add(batch, result, rate, norm, applied, ends_row)
        due = checkpoints.due(progress.step)
        if evaluates or request or due:
            log.write()

        best = False
        if evaluates:
            with watchdog("evaluation"):
                scores = evaluate()
            telemetry.log(progress.step, {"evaluation": scores})
            best = progress.note_scores(
                scores, config.model.init is None, config.evaluate.best_by, evaluate.random
            )

        if last or request or best or due:
            progress.loss_scale = scale.state() if scale is not None else {}
            progress.window, progress.monitor = log.window.state(), log.monitor.memory()
            # what is asked of the checkpoint at once needs it whole; else training goes on meanwhile
            with watchdog("checkpoint"):
                telemetry.sync()
                path = checkpoints.save(progress, wait=bool(last or request or best), say=telemetry.say)
                if best:
                    keep_best(path)
            telemetry.throughput.pause()
        if evaluates or request or due:
            memory.after_pause()

        if request:
            telemetry.say(
                f"stopping after step {progress.step}: {REASONS[request]}; saved {path}. "
                "Resume with the same command and --resume auto"
            )
            if request == STOP:
                shutdown.clear_stop_file()
            return EXIT_CODES[request]
    return 0


def _is_due(step: int, every: int) -> bool:
    """Return whether something done every so many steps (0: never) is due."""
    return bool(every) and step % every == 0


@dataclass
class _Step:
    """A step that has been queued, and what is known of it before its numbers have come.

    ends_row: whether it ends a row of metrics. of_row: what that row says of the run so far.
    """

    number: int
    batch: RankBatch
    result: StepResult
    rate: float
    coming: Numbers
    ends_row: bool
    of_row: dict[str, Any]


class _StepLog:
    """Turn each step's numbers into the progress bar, rows of metrics, and alarms, a step late.

    Reading a step's numbers waits until a GPU has made them. So `add` queues them for the way to the host,
    and `write` reads them, when the next step has been queued, or when somebody wants to know them.
    """

    def __init__(
        self,
        config: Config,
        engine,
        telemetry: Telemetry,
        progress: Progress,
        clock: Stopwatch,
        stragglers: Stragglers,
        scale: LossScale | None,
        beside: Beside,
        faults: Faults,
    ) -> None:
        self.faults = faults
        self.beside, self.sizes = beside, config.batch_sizes
        self.config, self.engine, self.telemetry = config, engine, telemetry
        self.progress, self.clock, self.stragglers, self.scale = progress, clock, stragglers, scale
        self.window = Window(progress.window)
        self.monitor = Monitor(
            explosion=config.train.faults.spike_factor,
            advice=steadier_settings(config),
            terms=config.objective.sections,
            quiet=config.train.log_every,
            state=progress.monitor,
        )
        self._queued: _Step | None = None

    def add(
        self,
        batch: RankBatch,
        result: StepResult,
        rate: float,
        norm: Tensor | float,
        applied: Tensor,
        ends_row: bool,
    ) -> None:
        """Take a step that `progress` has counted already; the one before must have been written.

        Args:
            rate: the learning rate.
            norm, applied: as `Update.apply` gives them.
            ends_row: whether the step ends a row of metrics.
        """
        progress, sequences = self.progress, self.sizes.at_step(self.progress.step - 1)
        measures = dict(result.measures)
        # rank 0 alone writes rows, checkpoints (with the window), and alarms
        if result.views is not None and dist.get_rank() == 0:
            objective = self.engine.module.objective
            pool = objective.pool(sequences, dist.get_world_size())
            negatives = objective.negatives(pool, result.present)
            measures |= self.monitor.measure(result.views[:2], result.lengths, negatives, spectrum=ends_row)
        numbers: dict[str, Tensor | float] = {"norm": norm, "applied": applied}
        numbers |= {f"{_LOSS}{name}": value for name, value in result.losses.items()}
        numbers |= {f"{_MEASURE}{name}": value for name, value in measures.items()}
        if self.scale is not None:
            numbers["scale"] = self.scale.value
        result.views = None  # the next step needs the memory
        of_row: dict[str, Any] = {"lr": rate, "tokens": progress.tokens}
        if ends_row:
            of_row |= {"seconds": progress.seconds, "time": self.clock.shares()} | dict(
                self.beside(progress.step)
            )
            of_row["ledger"] = chain.of_row(progress.ledger)
            slowest, warning = self.stragglers.end_row(result.busy)
            of_row |= slowest
            if warning:
                self.telemetry.warn(warning)
            if self.sizes.growth_steps:
                of_row["global_batch"] = sequences
        self._queued = _Step(progress.step, batch, result, rate, Numbers(numbers), ends_row, of_row)

    def write(self) -> None:
        """Log the step that was added last, unless that has been done.

        A step with a fault is no part of a row's means, and has a record of its own.

        Raises:
            OverBudget: one step with a fault too many.
        """
        if self._queued is None:
            return
        step, self._queued = self._queued, None
        result, numbers = step.result, step.coming.read()
        losses, measures = _of(numbers, _LOSS), _of(numbers, _MEASURE)
        norm, applied = numbers["norm"], bool(numbers["applied"])
        self.progress.skipped_steps += not applied
        sound = self.faults.judge(
            Judged(step.number, step.batch, losses, norm, applied, numbers.get("scale"))
        )
        sequences = self.sizes.at_step(step.number - 1)
        self.telemetry.advance(step.number, losses, step.rate, result.tokens, sequences, step.coming.came)
        for row in result.substitutions:
            self.telemetry.warn(describe_substitution(row))
        if sound:
            self.window.add(losses, norm, measures, result.masked_tokens, result.micro_batches)
        alarms = self.monitor.alarms_of_step(step.number, losses, norm) if applied else []
        if step.ends_row and self.window.steps:
            metrics = self.window.close() | step.of_row
            metrics["skipped_steps"] = self.progress.skipped_steps
            alarms += self.monitor.alarms_of_row(
                step.number, metrics["loss"], metrics, self._risen(step.number)
            )
            self.telemetry.log(step.number, metrics)
        for alarm in alarms:
            self.telemetry.warn(alarm)

    def _risen(self, step: int) -> bool:
        """Return whether all losses had their full weight at a step, the first being 1."""
        weights = self.engine.module.objective.weights
        return weights(step - 1) == weights(self.config.train.steps - 1)


_LOSS, _MEASURE = "loss ", "measure "  # what the names of these numbers of a step begin with


def _of(numbers: dict[str, float], prefix: str) -> dict[str, float]:
    """Return the numbers whose name begins with `prefix`, by the rest of their name."""
    return {name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)}
