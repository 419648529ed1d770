"""The training loop."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from pretrain.common.memory import FlatMemory
from pretrain.common.ranks import on_rank_zero
from pretrain.common.run_folder import require_in_place
from pretrain.common.shutdown import EXIT_CODES, MOVED, NONE, REASONS, STOP, UNSAVED, Shutdown
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

ExtraMetrics = Callable[[int], Mapping[str, Any]]


class Trainer:
    """Train an engine step by step; evaluate, save and log between the steps."""

    def __init__(
        self,
        config: Config,
        engine,
        progress: Progress,
        stop_step: int,
        *,
        evaluate: Evaluation,
        checkpoints: Checkpoints,
        keep_best: Callable[[Path], None],
        telemetry: Telemetry,
        shutdown: Shutdown,
        watchdog: Watchdog,
        extra_metrics: ExtraMetrics = lambda step: {},
        decode: Decode = str,
    ) -> None:
        """
        Args:
            engine: DeepSpeed engine around a `SentenceModel`.
            evaluate: evaluates the engine's model on all ranks together; must return the same dict on each.
            checkpoints: of the engine and the progress.
            keep_best: called on all ranks with the checkpoint of the step whose `selection_score` is the best
                so far.
            watchdog: is told of every step that is done.
            extra_metrics: number of steps done -> what a row of metrics holds besides the trainer's own.
            decode: token ids -> text, for a report.
        """
        self.config, self.engine, self.progress, self.stop_step = config, engine, progress, stop_step
        self.evaluate, self.checkpoints, self.keep_best = evaluate, checkpoints, keep_best
        self.telemetry, self.shutdown, self.watchdog = telemetry, shutdown, watchdog
        self.clock, self.memory = Stopwatch(), FlatMemory()
        settings = config.train
        self.scale = LossScale(engine.module) if settings.precision == "fp16" else None
        if self.scale is not None and progress.loss_scale:
            self.scale.restore(progress.loss_scale)
        self.whole = WholeBatch(
            engine,
            settings.seed,
            settings.micro_batch_tokens,
            self.scale,
            self.clock,
            config.objective.mask_duplicates,
            settings.balance,
            lanes=config.data.lanes,
        )
        self.update = Update(engine, settings.clip, self.scale)
        self.faults = Faults(config, self.whole, self.update, telemetry, progress, decode)
        self.stragglers = Stragglers(self.clock, config.run_folder, speaks=dist.get_rank() == 0)
        self.log = _StepLog(self, extra_metrics)

    def train(self, batches: Iterator[RankBatch]) -> int:
        """Train from `progress.step` to `stop_step`; return the exit code, 0 when the run is complete.

        Args:
            batches: this rank's batches from `progress.step` on, without those that `train.faults` jumps
                over.

        Raises:
            OverBudget: too many steps had a loss or gradient that is not finite, or a spike. The checkpoints
                are as they were.
        """
        config, progress = self.config, self.progress
        self.engine.train()
        self.watchdog.follow(self.clock)
        self.telemetry.throughput.begin(progress.step)
        while progress.step < self.stop_step:
            result = self._step(batches)

            last = progress.step == self.stop_step
            # moved back meanwhile: what ranks were asked for besides comes with the next step
            request = NONE if last or result.request == MOVED else result.request
            evaluates = last or _is_due(progress.step, config.evaluate.every)
            saves = last or request or self.checkpoints.due(progress.step)
            if evaluates or saves:
                self.log.write()  # both want to know this step's numbers
            is_best = evaluates and self._evaluate()
            if saves or is_best:
                # a request, the end and best/ need the whole checkpoint; else training goes on meanwhile
                path = self._save(wait=bool(last or request or is_best), is_best=is_best)
            if evaluates or saves:
                self.memory.after_pause()
            if request:
                return self._stop(request, path)
        return 0

    def _step(self, batches: Iterator[RankBatch]) -> StepResult:
        """Read the next batch and make one optimizer step of it."""
        settings, progress, clock = self.config.train, self.progress, self.clock
        clock.start_step()
        with clock("data"):
            batch = next(batches)
        if batch.step > progress.step:
            self.log.write()
            self.faults.jump_to(batch.step)
        rate = learning_rate(settings, progress.step)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        number = progress.step + 1
        ends_row = number in (1, self.stop_step) or _is_due(number, settings.log_every)
        request = max(self.shutdown.requested(), UNSAVED if self.checkpoints.failed else NONE)
        result = self.whole.compute(batch, request, probing=ends_row, busy=self.stragglers.busy())
        if result.request == MOVED:
            on_rank_zero(lambda: require_in_place(self.config.run_folder))
        with clock("step"):
            norm, applied = self.update.apply(result.losses["total"], self.faults.largest_applied(number))
        self.memory.after_step()

        self.log.write()  # the step before, while a GPU is busy with this one
        progress.step = number
        progress.tokens += result.tokens
        seconds = clock.end_step()
        progress.seconds += seconds
        self.watchdog.end_step(number, seconds)
        progress.substitutions += result.substitutions
        progress.ledger = chain.extend(progress.ledger, result.sums)
        self.log.add(batch, result, rate, norm, applied, ends_row)
        return result

    def _evaluate(self) -> bool:
        """Evaluate and log the scores; return whether they are the best so far."""
        with self.watchdog("evaluation"):
            scores = self.evaluate()
        self.telemetry.log(self.progress.step, {"evaluation": scores})
        from_random, best_by = self.config.model.init is None, self.config.evaluate.best_by
        return self.progress.note_scores(scores, from_random, best_by, self.evaluate.random)

    def _save(self, wait: bool, is_best: bool) -> Path:
        """Save a checkpoint, and export it to best/ if it is the best; return its folder."""
        progress = self.progress
        progress.loss_scale = self.scale.state() if self.scale is not None else {}
        progress.window, progress.monitor = self.log.window.state(), self.log.monitor.memory()
        with self.watchdog("checkpoint"):
            progress.rows = on_rank_zero(self.telemetry.sync)
            path = self.checkpoints.save(progress, wait=wait, say=self.telemetry.say)
            if is_best:
                self.keep_best(path)
        self.telemetry.throughput.pause()
        return path

    def _stop(self, request: int, saved: Path) -> int:
        """Say why the run stops before its last step; return the exit code."""
        self.telemetry.say(
            f"stopping after step {self.progress.step}: {REASONS[request]}; saved {saved}. "
            "Resume with the same command and --resume auto"
        )
        if request == STOP:
            self.shutdown.clear_stop_file()
        return EXIT_CODES[request]


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

    def __init__(self, trainer: Trainer, extra_metrics: ExtraMetrics) -> None:
        config, progress = trainer.config, trainer.progress
        self.config, self.engine, self.telemetry = config, trainer.engine, trainer.telemetry
        self.progress, self.clock, self.scale = progress, trainer.clock, trainer.scale
        self.faults, self.stragglers = trainer.faults, trainer.stragglers
        self.extra_metrics, self.sizes = extra_metrics, config.batch_sizes
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
            views = result.views[:2]
            measures |= self.monitor.measure(views, result.lengths, result.negatives, spectrum=ends_row)
        numbers: dict[str, Tensor | float] = {"norm": norm, "applied": applied}
        numbers |= {f"{_LOSS}{name}": value for name, value in result.losses.items()}
        numbers |= {f"{_MEASURE}{name}": value for name, value in measures.items()}
        if self.scale is not None:
            numbers["scale"] = self.scale.value
        result.views = None  # the next step needs the memory
        of_row: dict[str, Any] = {"lr": rate, "tokens": progress.tokens}
        if ends_row:
            of_row |= {"seconds": progress.seconds, "time": self.clock.shares()}
            of_row |= self.extra_metrics(progress.step)
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
