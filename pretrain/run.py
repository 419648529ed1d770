"""One training run in four phases: `TrainingRun.open`, `build`, `loop`, `conclude`.

Importing it takes seconds (torch, DeepSpeed, transformers): `pretrain/main.py` checks the flags before.
"""

import hashlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pretrain.common.files import replace_durably
from pretrain.common.memory import FlatMemory
from pretrain.common.ranks import destroy_groups, on_rank_zero
from pretrain.common.run_folder import require_in_place
from pretrain.common.shutdown import DEAD_LOSS, EXIT_CODES, MOVED, NONE, REASONS, STOP, UNSAVED, Shutdown
from pretrain.config.recipe import to_yaml
from pretrain.config.run import Config
from pretrain.config.validation import leaves
from pretrain.data.batch import BatchSpec, RankBatch
from pretrain.data.lanes import require_lanes
from pretrain.data.ledger import extend_ledger
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.masking import Masking
from pretrain.data.tokenizer import prompt_tokens
from pretrain.export.folder import export
from pretrain.export.sentence_transformers import unpooled_prompts
from pretrain.objectives import build_objective
from pretrain.start import continuity, devices, summary
from pretrain.start.checkpoints import Checkpoints
from pretrain.start.data import open_data, report_damage, require_different_views, require_signal
from pretrain.start.encoder import (
    check_sources,
    guiding_encoder,
    start_at_frequencies,
    starting_encoder,
    weigh_by_frequency,
)
from pretrain.start.evaluation import RunEvaluation, require_sts, sets_of
from pretrain.start.folder import dry_run_config, empty_run_folder, hold_run_folder, whole_run
from pretrain.start.resume import check_requested, resume_from, roll_back, verify_resumed_batch
from pretrain.step import engine as engines
from pretrain.step.faults import Faults, OverBudget
from pretrain.step.frozen_vectors import keep_vectors
from pretrain.step.graphs import Graphs
from pretrain.step.log import StepLog, is_due
from pretrain.step.model import SentenceModel
from pretrain.step.optimizer import learning_rate
from pretrain.step.precision import LossScale
from pretrain.step.progress import Progress
from pretrain.step.update import Update
from pretrain.step.whole_batch import StepResult, WholeBatch
from pretrain.telemetry.metrics_file import read_metrics
from pretrain.telemetry.run import Telemetry
from pretrain.telemetry.stopwatch import Stopwatch
from pretrain.telemetry.throughput import Throughput
from pretrain.telemetry.trackers import Tracking, require_trackers
from pretrain.watch.deadline import Watchdog, record_collectives
from pretrain.watch.ending import remove_folder


def start(
    config: Config, default_recipe: str | Path | None, dry_run: bool, kind: "type[TrainingRun] | None" = None
) -> int:
    """Train, evaluate, checkpoint and export one run, among the ranks of its job; return the exit code.

    dry_run: two steps, one evaluation, one checkpoint and one export, in a folder of their own.
    """
    summary.quiet_libraries()
    check_sources(config)
    check_requested(config)
    require_sts(config.evaluate.sts)
    require_trackers(config.track or ())
    record_collectives(config.run_folder)
    engines.start_processes(config.train.rendezvous_seconds)
    # before data is prepared: a wrong option, and a number of ranks that does not fit
    engines.deepspeed_config(config, dist.get_world_size())
    require_lanes(config.data.lanes, dist.get_world_size(), equal=config.objective.scope == "local")
    full_steps = config.batch_sizes.full_steps(config.train.steps)
    if dry_run:
        config = dry_run_config(config)
    with hold_run_folder(config.run_folder):
        if dry_run:
            empty_run_folder(config.run_folder)
        with Watchdog(config.run_folder, config.train.step_deadline) as watchdog:
            stop = min(config.train.steps, 2) if dry_run else None
            run = (kind or TrainingRun)(config, default_recipe, stop, watchdog)
            run.open()
            run.build()
            code = run.loop()
            run.conclude()
            run.engine.destroy()  # its parameters hold a group, and hooks in C++ hold them
        if dry_run and dist.get_rank() == 0:
            rows = read_metrics(config.run_folder / "metrics.jsonl")
            print(*whole_run(rows, config.train.steps, dist.get_world_size(), full_steps), sep="\n")
        dist.barrier()
        on_rank_zero(lambda: remove_folder(config.run_folder))
    destroy_groups()
    return code


class TrainingRun:
    """One run in a folder that this process holds: open, build, loop, conclude, in this order. Collective."""

    def __init__(
        self, config: Config, default_recipe: str | Path | None, stop_step: int | None, watchdog: Watchdog
    ) -> None:
        """default_recipe: if the command named none. stop_step: None: `train.steps`."""
        self.config, self.folder, self.watchdog = config, config.run_folder, watchdog
        self.default_recipe, self.stop_step = default_recipe, stop_step or config.train.steps
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    # -- open: the data, and the checkpoint to resume from ---------------------------------

    def open(self) -> None:
        """Open the data, preparing it if there is none, and find the checkpoint to resume from."""
        self.threads = devices.set_threads(self.config)
        devices.set_deterministic(self.config)
        self.sets = on_rank_zero(lambda: sets_of(self.config.evaluate))
        self.data = open_data(self.config)
        self.checkpoint, state = resume_from(self.config, self.data.inputs)
        self.progress = Progress(**state["progress"]) if state else Progress()
        if state is not None:  # best/ may be the start, as it was
            began = state["config"]["objective"]["mlm"].get("initial_bias", "zero")
            self.config.objective.mlm.initial_bias = began
        self.watchdog.begin(self.progress.step)
        self.config.train.precision = devices.choose_precision(self.config, state)
        self.config.train.micro_batch_tokens = devices.choose_micro_batch(self.config, state, self.data)
        devices.allow_tf32(self.config)

    # -- build: model, batches, engine, evaluation -------------------------------------------

    def build(self) -> None:
        """Build encoder, objective and engine, load the checkpoint, and prepare batches and evaluation."""
        config, data = self.config, self.data

        # the model: an encoder, and the objective with its heads
        self.encoder = starting_encoder(config, data.tokenizer)
        reads = config.objective.mlm.initial_bias == "frequencies" and config.model.init is None
        if reads and self.progress.best_step == 0:  # else a checkpoint replaces it unseen
            start_at_frequencies(self.encoder, data.train, data.tokenizer)
        if config.model.token_weights == "sif":
            weigh_by_frequency(self.encoder, data.train)
        longest = self.encoder.max_positions
        prompts, use = prompt_tokens(data.tokenizer, config.data.prompts), data.export_interface(longest)
        left_out = () if config.data.prompts_pooled else prompts.values()
        self.encoder.leave_out([*left_out, *unpooled_prompts(use, data.tokenizer)])
        guide = guiding_encoder(config, data.tokenizer)
        self.objective = build_objective(config, self.encoder, data.tokenizer, data.labels, guide)

        # what a batch is made of
        masking = Masking.of(config.objective)
        self.spec = BatchSpec(data.views, masking, data.vocabulary, data.synonyms, longest, prompts)
        if self.checkpoint is None:
            require_different_views(config, data, self.objective, self.spec)

        # the engine, and what it resumes from
        self.flops = summary.flops_meter(config, self.encoder, self.objective, data)
        model = SentenceModel(self.encoder, self.objective, config.train.precision)
        self.engine = engines.build_engine(model, config)
        self.checkpoints = Checkpoints(config, self.engine, data.inputs, data.of_start)
        if self.checkpoint is not None:
            # while the model is as it starts
            self.checkpoints.repair_best(self.progress)
            self.checkpoints.load(self.checkpoint)
        spec, progress, checkpoint = self.spec, self.progress, self.checkpoint
        self.ledger_message = verify_resumed_batch(config, data.train, spec, progress, checkpoint)
        self.evaluation = RunEvaluation(config, data, self.engine, progress, self.sets)

    # -- loop: train step by step; evaluate, save and log between the steps ------------------

    def loop(self) -> int:
        """Train from where the run stands to `stop_step`, rolling back after faults; return the exit code."""
        with closing(self.checkpoints), self._telemetry() as self.telemetry, self.watchdog.end_after_errors():
            self._record_what_runs()
            if self.progress.step == 0:
                # the start is the best so far; and an evaluation that cannot run must not fail after a month
                self._evaluate()
                self.progress.rows = on_rank_zero(self.telemetry.sync)
                self.checkpoints.keep_start(self.progress)
                if (signal := self.evaluation.scores.get("view_signal")) is not None:
                    require_signal(self.config, self.objective, signal, self.telemetry.warn)
            # kick off the workers now: forked later, they would have the signal handlers of the run
            batches = self._batches()
            self.shutdown = Shutdown(self.folder, watch_file=self.rank == 0)
            while True:
                self.prepare_steps()
                try:
                    return self.train(batches)
                except OverBudget as fault:
                    batches.close()
                    with self.watchdog("roll-back"):
                        roll_back(fault, self.progress, self.stop_step, self.checkpoints, self.telemetry)
                batches = self._batches()

    def prepare_steps(self) -> None:
        """Make what computes, applies, judges and logs the steps to come."""
        config, progress, telemetry = self.config, self.progress, self.telemetry
        settings, objective = config.train, self.engine.module.objective
        self.clock, self.memory = Stopwatch(), FlatMemory()
        self.scale = LossScale(self.engine.module) if settings.precision == "fp16" else None
        if self.scale is not None and progress.loss_scale:
            self.scale.restore(progress.loss_scale)
        self.whole = WholeBatch(
            self.engine,
            settings.seed,
            settings.micro_batch,
            self.scale,
            self.clock,
            lanes=config.data.lanes,
            graphs=Graphs(self.engine, settings.graphs, telemetry.say),
        )
        self.whole.guide_store = keep_vectors(config, objective, self.data.train, self.spec, telemetry.say)
        self.update = Update(self.engine, settings.clip, self.scale, self.whole.graphs)
        self.faults = Faults(settings.faults, self.whole, self.update, telemetry, progress, self.decode)
        self.log = StepLog(
            config, progress, telemetry, self.faults, self.clock, self.scale, objective, self.extra_metrics
        )

    def train(self, batches: Iterator[RankBatch]) -> int:
        """Train from `progress.step` until the run is complete, and return 0; or another exit code.

        Raises OverBudget if too many steps had a loss or gradient that is not finite, or a spike.
        """
        config, progress = self.config, self.progress
        self.engine.train()
        self.watchdog.follow(lambda: self.clock.part)
        self.telemetry.throughput.begin(progress.step)
        while not self.is_complete:
            result = self._step(batches)

            last = progress.step == self.stop_step
            # moved back meanwhile: what ranks were asked for besides comes with the next step
            request = NONE if last or result.request == MOVED else result.request
            evaluates = last or is_due(progress.step, config.evaluate.every)
            saves = last or request or self.checkpoints.due(progress.step)
            if evaluates or saves:
                self.log.write()  # both want to know this step's numbers
                self.checkpoints.require_finite_weights(progress)
            is_best = evaluates and self._evaluate()
            if self.is_complete:
                last, request = True, NONE
            if saves or is_best or last:
                # a request, the end and best/ need the whole checkpoint; else training goes on meanwhile
                path = self._save(wait=bool(last or request or is_best), is_best=is_best)
            if evaluates or saves:
                self.memory.after_pause()
            if request:
                said = f"stopping after step {progress.step}: {REASONS[request]}; saved {path}"
                self.telemetry.say(f"{said}. Resume with the same command and --resume auto")
                if request == STOP:
                    self.shutdown.clear_stop_file()
                return EXIT_CODES[request]
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
        ends_row = number in (1, self.stop_step) or is_due(number, settings.log_every)
        request = max(self.shutdown.requested(), UNSAVED if self.checkpoints.failed else NONE)
        if self.log.monitor.dead_loss and settings.faults.dead_loss == "stop":
            request = max(request, DEAD_LOSS)
        result = self.whole.compute(batch, request, collects_diagnostics=ends_row)
        if result.request == MOVED:
            on_rank_zero(lambda: require_in_place(self.folder))
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
        progress.ledger = extend_ledger(progress.ledger, result.sums)
        self.log.add(batch, result, rate, norm, applied, ends_row)
        return result

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to train for: `stop_step` is reached, or `train.patience` lost."""
        return self.progress.step >= self.stop_step or self.progress.lost(self.config.train.patience)

    def _evaluate(self) -> bool:
        """Evaluate, log and record the scores; return whether they are the best so far."""
        with self.watchdog("evaluation"):
            scores = self.evaluation()
        self.telemetry.log(self.progress.step, {"evaluation": scores})
        from_random, best_by = self.config.model.init is None, self.config.evaluate.best_by
        return self.progress.note_scores(scores, from_random, best_by, self.evaluation.random)

    def _save(self, wait: bool, is_best: bool) -> Path:
        """Save a checkpoint, and export it to best/ if it is the best; return its folder."""
        progress = self.progress
        progress.loss_scale = self.scale.state() if self.scale is not None else {}
        progress.window, progress.monitor = self.log.window.state(), self.log.monitor.memory()
        with self.watchdog("checkpoint"):
            progress.rows = on_rank_zero(self.telemetry.sync)
            path = self.checkpoints.save_progress(progress, wait=wait, say=self.telemetry.say)
            if is_best:
                self.checkpoints.keep_best(path)
        self.telemetry.throughput.pause()
        return path

    # -- conclude: export, and the summary -------------------------------------------------

    def conclude(self) -> None:
        """Export the last step, and write the summary, if the run has come to its end."""
        if not self.is_complete:
            return
        with self.watchdog("export"):
            on_rank_zero(lambda: export(self.folder / "checkpoints", self.folder / "export"))
            on_rank_zero(
                lambda: summary.report(self.config, self.progress, self.data.inputs, self.evaluation)
            )

    # -- parts of the phases -------------------------------------------------------

    def _batches(self) -> Generator[RankBatch]:
        """Return the batches of this rank from where the run stands."""
        progress, jumps = self.progress, self.config.train.faults.jumps
        position = Position(
            progress.step, self.stop_step, self.rank, self.world, progress.substitutions, jumps=jumps
        )
        self.loader = Loader(self.data.train, self.spec, LoaderSettings.of(self.config), position)
        return iter(self.loader)

    def _telemetry(self) -> Telemetry:
        config, progress = self.config, self.progress
        every, work = config.evaluate.every, config.batch_sizes.total_before
        speed = Throughput(every=every, work=work, flops=self.flops)
        tracking = Tracking(config.track or (), config.name, dict(leaves(config.model_dump(mode="json"))))
        return Telemetry(
            self.folder, self.stop_step, self.rank, progress.step, progress.rows, speed, tracking=tracking
        )

    def _record_what_runs(self) -> None:
        """Write and print what is about to run."""
        config, data, progress, telemetry = self.config, self.data, self.progress, self.telemetry
        recipe = to_yaml(config).encode()
        on_rank_zero(lambda: replace_durably(self.folder / "config.yaml", recipe))
        telemetry.log(progress.step, {"config_sha256": hashlib.sha256(recipe).hexdigest()})
        if self.default_recipe is not None:
            telemetry.say(f"no --config given: using {self.default_recipe}")
        resumed = ""
        if self.checkpoint is not None:
            resumed = f", resumed from {self.checkpoint} at step {progress.step}"
        for line in summary.lines_of_run(config, data, self.engine.module, self.threads, resumed):
            telemetry.say(line)
        for one in filter(lambda one: one.about, self.sets):
            telemetry.say(f"set        {one.name}: {one.about}")
        if self.ledger_message is not None:
            telemetry.say(self.ledger_message)
        continuity.print_changes(progress.changes, progress.step, telemetry)
        report_damage(data, self.evaluation.heldout, progress, telemetry)

    def extra_metrics(self, step: int) -> dict[str, Any]:
        """Return what a row of metrics holds besides the steps' own numbers, after `step` steps."""
        return self.loader.counts(step)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.data.tokenizer.decode(tokens, skip_special_tokens=True)
