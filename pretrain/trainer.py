"""The training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch.distributed as dist

from pretrain.checkpoint import store
from pretrain.common.errors import UserError
from pretrain.common.memory import FlatMemory
from pretrain.common.shutdown import EXIT_CODES, REASONS, STOP, Leaving
from pretrain.config.run import Config
from pretrain.data.batch import RankBatch
from pretrain.data.damage import describe_substitution
from pretrain.model.precision import LossScale, gradient_norm
from pretrain.start.inputs import Inputs
from pretrain.step.optimizer import learning_rate
from pretrain.step.whole_batch import StepResult, WholeBatch
from pretrain.telemetry.averages import Window
from pretrain.telemetry.monitors import Monitor
from pretrain.telemetry.run import Telemetry
from pretrain.telemetry.stopwatch import Stopwatch


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint must know beside the engine's tensors.

    step: optimizer steps done, which is also the position in the data. seconds: training time, over all
    starts.
    changes: settings that were changed when the run was resumed (`pretrain.start.continuity`).
    substitutions: damaged chunks and what was read in their place, of all ranks (`pretrain.data.damage`);
    heldout_left_out: damaged chunks of the held-out split. window, monitor: sums since the last row of
    metrics, and what alarms remember.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_score: float | None = None
    best_step: int = 0
    best_by: str = ""
    skipped_steps: int = 0
    substitutions: list[dict] = field(default_factory=list)
    heldout_left_out: list[dict] = field(default_factory=list)
    loss_scale: dict[str, float] = field(default_factory=dict)
    changes: list[dict] = field(default_factory=list)
    window: dict = field(default_factory=dict)
    monitor: dict = field(default_factory=dict)

    def note_scores(self, scores: dict[str, float]) -> bool:
        """Whether an evaluation is the best so far; by another criterion than before (STS data came or went)
        it is the first."""
        name, score = selection_score(scores)
        if self.best_score is not None and self.best_by == name and not score > self.best_score:
            return False
        self.best_by, self.best_score, self.best_step = name, score, self.step
        return True


class NotFinite(UserError):
    """A loss or gradient is inf or NaN; the step was not applied."""


def train(
    config: Config,
    engine,
    batches: Iterator[RankBatch],
    evaluate: Callable[[int], dict[str, float]],
    save: Callable[[Progress], Path],
    keep_best: Callable[[Path], None],
    telemetry: Telemetry,
    leaving: Leaving,
    progress: Progress,
    stop_step: int,
) -> int:
    """Train from `progress.step` to `stop_step`; returns the exit code, 0 when the run is complete.

    Args:
        engine: DeepSpeed engine around a `SentenceModel`.
        batches: this rank's batches from `progress.step` on.
        evaluate: judges the engine's model on all ranks together; must return the same dict on each.
        save: writes a checkpoint of the engine and the progress.
        keep_best: called on all ranks with the checkpoint of the step whose `selection_score` is the best so
            far.

    Raises:
        NotFinite: a loss or gradient is not finite. Parameters and the last checkpoint are as they were.
    """
    settings, clock = config.train, Stopwatch()
    scale = LossScale(engine.module) if settings.precision == "fp16" else None
    if scale is not None and progress.loss_scale:
        scale.restore(progress.loss_scale)
    whole = WholeBatch(
        engine, settings.seed, settings.micro_batch_tokens, scale, clock, config.objective.mask_duplicates
    )
    monitor = Monitor(
        advice=steadier_settings(config),
        terms=config.objective.sections,
        quiet=settings.log_every,
        state=progress.monitor,
    )
    window, memory = Window(progress.window), FlatMemory()
    engine.train()

    while progress.step < stop_step:
        step = progress.step
        clock.start_step()
        with clock("data"):
            batch = next(batches)
        rate = learning_rate(settings, step)
        for group in engine.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]

        result = whole.compute(batch, leaving.wish())
        _require_finite_losses(result, step, config)
        with clock("step"):
            norm, applied = _apply(engine, scale)
        _require_finite_gradient(applied, norm, scale, result, step, config)

        memory.after_step()
        progress.step += 1
        progress.tokens += result.tokens
        progress.seconds += clock.end_step()
        progress.skipped_steps += not applied
        progress.substitutions += result.substitutions
        last = progress.step == stop_step

        telemetry.advance(progress.step, result.losses, rate, result.tokens, settings.global_batch)
        for row in result.substitutions:
            telemetry.warn(describe_substitution(row))
        ends_row = progress.step % settings.log_every == 0 or last or step == 0
        measures = dict(result.measures)
        # rank 0 alone writes rows, checkpoints (with the window), alarms
        if result.views is not None and dist.get_rank() == 0:
            objective = engine.module.objective
            negatives = objective.negatives(objective.pool(settings.global_batch, dist.get_world_size()))
            measures |= monitor.measure(result.views[:2], result.lengths, negatives, spectrum=ends_row)
        window.add(result.losses, norm, measures, result.masked_tokens, result.micro_batches)
        alarms = monitor.alarms_of_step(progress.step, result.losses, norm) if applied else []
        if ends_row:
            metrics = window.close() | {
                "lr": rate,
                "tokens": progress.tokens,
                "skipped_steps": progress.skipped_steps,
                "seconds": progress.seconds,
                "time": clock.shares(),
            }
            alarms += monitor.alarms_of_row(progress.step, metrics["loss"], metrics)
            telemetry.log(progress.step, metrics)
        for alarm in alarms:
            telemetry.warn(alarm)

        best = False
        if last or (config.evaluate.every and progress.step % config.evaluate.every == 0):
            scores = evaluate(progress.step)
            telemetry.log(progress.step, {"evaluation": scores})
            best = progress.note_scores(scores)

        leave = 0 if last else result.leave
        if (
            last
            or leave
            or best
            or (config.checkpoint.every and progress.step % config.checkpoint.every == 0)
        ):
            progress.loss_scale = scale.state() if scale is not None else {}
            progress.window, progress.monitor = window.state(), monitor.memory()
            path = save(progress)
            if best:
                keep_best(path)
            telemetry.throughput.pause()
            if leave:
                telemetry.say(
                    f"leaving after step {progress.step} at the wish of {REASONS[leave]}; saved {path}. "
                    "Go on with the same command and --resume auto"
                )
                if leave == STOP:
                    leaving.clear_stop_file()
                return EXIT_CODES[leave]
    return 0


LOWER_IS_BETTER = ("heldout_mlm_loss", "partner_loss")


def selection_score(scores: dict[str, float]) -> tuple[str, float]:
    """What `best/` is chosen by, and the score, higher better: STS-B dev where it was evaluated, else a
    held-out loss, with its sign turned: the masked-language one where there is one, else that of finding a
    view's partner."""
    name = next(name for name in ("stsb-dev", *LOWER_IS_BETTER) if name in scores)
    return name, -scores[name] if name in LOWER_IS_BETTER else scores[name]


def save_checkpoint(
    config: Config, engine, inputs: Inputs, progress: Progress, root: Path | None = None
) -> Path:
    """Write a checkpoint into the run folder, or under `root`, and keep the newest `store.keep`.
    Collective."""
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
    """Clip, step and clear gradients, unless one is not finite: (global gradient norm, whether the step was
    applied)."""
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
    return f"the step was not applied and {kept}. To go on: {steadier_settings(config)}; with --resume auto"


def steadier_settings(config: Config) -> str:
    """What to change where a loss or gradient is not finite: settings that may change when the run is
    resumed."""
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
