"""The training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch.distributed as dist

from pretrain.checkpoint import store
from pretrain.common.errors import UserError
from pretrain.common.memory import FlatMemory
from pretrain.common.shutdown import EXIT_CODES, NONE, REASONS, STOP, Shutdown
from pretrain.config.run import Config
from pretrain.data.batch import RankBatch
from pretrain.data.damage import describe_substitution
from pretrain.model.precision import LossScale, gradient_norm
from pretrain.start.inputs import Inputs
from pretrain.step.optimizer import learning_rate
from pretrain.step.progress import Progress
from pretrain.step.whole_batch import StepResult, WholeBatch
from pretrain.telemetry.averages import Window
from pretrain.telemetry.monitors import Monitor
from pretrain.telemetry.run import Telemetry
from pretrain.telemetry.stopwatch import Stopwatch


class NotFinite(UserError):
    """A loss or gradient is inf or NaN; the step was not applied."""


def train(
    config: Config,
    engine,
    batches: Iterator[RankBatch],
    evaluate: Callable[[], dict[str, float]],
    save: Callable[[Progress], Path],
    keep_best: Callable[[Path], None],
    telemetry: Telemetry,
    shutdown: Shutdown,
    progress: Progress,
    stop_step: int,
) -> int:
    """Train from `progress.step` to `stop_step`; return the exit code, 0 when the run is complete.

    Args:
        engine: DeepSpeed engine around a `SentenceModel`.
        batches: this rank's batches from `progress.step` on.
        evaluate: evaluates the engine's model on all ranks together; must return the same dict on each.
        save: writes a checkpoint of the engine and the progress.
        keep_best: called on all ranks with the checkpoint of the step whose `selection_score` is the best so
            far.

    Raises:
        NotFinite: a loss or gradient is not finite. Parameters and the last checkpoint are as they were.
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
    )
    log = _StepLog(config, engine, telemetry, progress, clock)
    engine.train()

    while progress.step < stop_step:
        clock.start_step()
        with clock("data"):
            batch = next(batches)
        rate = learning_rate(settings, progress.step)
        for group in engine.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        result = whole.compute(batch, shutdown.requested())
        _require_finite_losses(result, progress.step, config)
        with clock("step"):
            norm, applied = _apply(engine, scale)
        _require_finite_gradient(applied, norm, scale, result, progress.step, config)
        memory.after_step()

        progress.step += 1
        progress.tokens += result.tokens
        progress.seconds += clock.end_step()
        progress.skipped_steps += not applied
        progress.substitutions += result.substitutions
        last = progress.step == stop_step

        log.write(result, rate, norm, applied, last)

        best = False
        if last or _is_due(progress.step, config.evaluate.every):
            scores = evaluate()
            telemetry.log(progress.step, {"evaluation": scores})
            best = progress.note_scores(scores)

        request = NONE if last else result.request
        if last or request or best or _is_due(progress.step, config.checkpoint.every):
            progress.loss_scale = scale.state() if scale is not None else {}
            progress.window, progress.monitor = log.window.state(), log.monitor.memory()
            path = save(progress)
            if best:
                keep_best(path)
            telemetry.throughput.pause()

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


class _StepLog:
    """Turn each step's numbers into the progress bar, rows of metrics, and alarms."""

    def __init__(
        self, config: Config, engine, telemetry: Telemetry, progress: Progress, clock: Stopwatch
    ) -> None:
        self.config, self.engine, self.telemetry = config, engine, telemetry
        self.progress, self.clock = progress, clock
        self.window = Window(progress.window)
        self.monitor = Monitor(
            advice=steadier_settings(config),
            terms=config.objective.sections,
            quiet=config.train.log_every,
            state=progress.monitor,
        )

    def write(self, result: StepResult, rate: float, norm: float, applied: bool, last: bool) -> None:
        """Log a step that `progress` has counted already.

        Args:
            rate: the learning rate.
            norm: the global gradient norm.
            applied: False where fp16 overflowed and the step was skipped.
            last: whether it is the run's last step, which ends a row.
        """
        step, global_batch = self.progress.step, self.config.train.global_batch
        self.telemetry.advance(step, result.losses, rate, result.tokens, global_batch)
        for row in result.substitutions:
            self.telemetry.warn(describe_substitution(row))
        ends_row = step % self.config.train.log_every == 0 or last or step == 1
        measures = dict(result.measures)
        # rank 0 alone writes rows, checkpoints (with the window), and alarms
        if result.views is not None and dist.get_rank() == 0:
            objective = self.engine.module.objective
            negatives = objective.negatives(objective.pool(global_batch, dist.get_world_size()))
            measures |= self.monitor.measure(result.views[:2], result.lengths, negatives, spectrum=ends_row)
        self.window.add(result.losses, norm, measures, result.masked_tokens, result.micro_batches)
        alarms = self.monitor.alarms_of_step(step, result.losses, norm) if applied else []
        if ends_row:
            metrics = self.window.close() | {
                "lr": rate,
                "tokens": self.progress.tokens,
                "skipped_steps": self.progress.skipped_steps,
                "seconds": self.progress.seconds,
                "time": self.clock.shares(),
            }
            alarms += self.monitor.alarms_of_row(step, metrics["loss"], metrics)
            self.telemetry.log(step, metrics)
        for alarm in alarms:
            self.telemetry.warn(alarm)


def save_checkpoint(
    config: Config, engine, inputs: Inputs, progress: Progress, root: Path | None = None
) -> Path:
    """Write a checkpoint, and keep the newest `checkpoint.keep`. Collective.

    Args:
        root: folder of checkpoints; None: the run's own.
    """
    state = {
        "progress": asdict(progress),
        "step": progress.step,
        "config": config.model_dump(mode="json"),
        "tokenizer_hash": inputs["tokenizer"]["sha256"],
        "inputs": inputs,
        "world_size": dist.get_world_size(),
        "kept_head": engine.module.objective.kept_head_name,
    }
    return store.save(root or config.run_folder / "checkpoints", engine, state, config.checkpoint.keep)


def _apply(engine, scale: LossScale | None) -> tuple[float, bool]:
    """Clip, step and clear the gradients, unless one is not finite.

    Returns:
        The global gradient norm, and whether the step was applied.
    """
    if int(engine.zero_optimization_stage()) == 0:
        norm = gradient_norm(engine.module.parameters())
        if not math.isfinite(norm):
            engine.zero_grad()
            return norm, False
        engine.step()
        return norm, True
    engine.step()
    norm = engine.get_global_grad_norm()
    overflow = bool(getattr(engine.optimizer, "overflow", False))
    return (math.nan if norm is None or overflow else float(norm)), not overflow


def _require_finite_losses(result: StepResult, step: int, config: Config) -> None:
    if not math.isfinite(result.losses["total"]):
        parts = ", ".join(f"{name} {value:.4g}" for name, value in result.losses.items())
        raise NotFinite(f"the loss is not finite at step {step + 1} ({parts}); " + _remedy(config))


def _require_finite_gradient(
    applied: bool, norm: float, scale: LossScale | None, result: StepResult, step: int, config: Config
) -> None:
    if scale is not None:
        try:
            scale.update(applied)
        except FloatingPointError as error:
            raise NotFinite(f"{error}, at step {step + 1}; " + _remedy(config)) from None
    elif not applied:
        parts = ", ".join(f"{name} {value:.4g}" for name, value in result.losses.items())
        raise NotFinite(
            f"a gradient is not finite (norm {norm}) at step {step + 1}, losses {parts}; " + _remedy(config)
        )


def _remedy(config: Config) -> str:
    try:
        good = store.latest(config.run_folder / "checkpoints")
        kept = f"the last good checkpoint is {good}" if good else "there is no checkpoint yet"
    except store.CheckpointError as error:
        kept = str(error)
    return (
        f"the step was not applied and {kept}. To continue: {steadier_settings(config)}; with --resume auto"
    )


def steadier_settings(config: Config) -> str:
    """Name what to change where a loss or gradient is not finite: settings that a resume may change."""
    train = config.train
    ways = [
        f"lower train.lr (now {train.lr:g})",
        f"lengthen train.warmup_steps (now {train.warmup_steps})",
        f"lower train.clip (now {train.clip:g})" if train.clip else "set train.clip, as --train.clip 1",
    ]
    for key, way in config.objective.steadier.items():
        section, name = key.split(".")[1:]
        ways.append(f"{way} {key} (now {getattr(getattr(config.objective, section), name):g})")
    if train.precision != "fp32":
        ways.append("--train.precision fp32")
    return ", ".join(ways[:-1]) + f" or {ways[-1]}"
