"""One training run in four phases: `TrainingRun.open`, `build`, `loop`, `conclude`.

Importing it takes seconds (torch, DeepSpeed, transformers): `pretrain/main.py` checks the flags before.
"""

import functools
import hashlib
import os
from pathlib import Path

import torch.distributed as dist

from finetune.sts.scores import StsEvaluator
from pretrain.checkpoint import store
from pretrain.common.files import replace_durably
from pretrain.common.ranks import on_rank_zero
from pretrain.common.shutdown import Shutdown
from pretrain.config.recipe import to_yaml
from pretrain.config.run import Config
from pretrain.config.validation import leaves
from pretrain.data.batch import BatchSpec
from pretrain.data.lanes import require_lanes
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.masking import Masking
from pretrain.data.tokenizer import prompt_tokens
from pretrain.estimate.dry_run import whole_run
from pretrain.export.folder import export
from pretrain.export.sentence_transformers import unpooled_prompts
from pretrain.objectives import build_objective
from pretrain.start import continuity, summary
from pretrain.start.best import keep_start, repair_best
from pretrain.start.checkpoints import Checkpoints
from pretrain.start.data import as_begun, open_data, report_damage
from pretrain.start.devices import choose_precision, set_deterministic, set_threads
from pretrain.start.encoder import check_sources, guiding_encoder, starting_encoder
from pretrain.start.evaluation import Evaluation, require_sts
from pretrain.start.folder import dry_run_config, empty_run_folder, hold_run_folder
from pretrain.start.identical_views import require_different_views
from pretrain.start.in_force import verify_model_matches_config
from pretrain.start.inputs import as_comments
from pretrain.start.local_ranks import has_local_negatives
from pretrain.start.recorded_batch import verify_resumed_batch
from pretrain.start.resume import check_requested, resume_from
from pretrain.start.rollback import roll_back
from pretrain.step import engine as engines
from pretrain.step.faults import OverBudget
from pretrain.step.model import SentenceModel
from pretrain.step.progress import Progress
from pretrain.telemetry.metrics_file import read_metrics
from pretrain.telemetry.run import Telemetry
from pretrain.telemetry.trackers import require_trackers
from pretrain.trainer import ExtraMetrics, Trainer
from pretrain.watch.deadline import Watchdog, record_collectives
from pretrain.watch.ending import remove_folder


def start(config: Config, default_recipe: str | Path | None, dry_run: bool) -> int:
    """Train, evaluate, checkpoint and export one run, among the ranks of its job; return the exit code.

    Args:
        default_recipe: the recipe where the command named none.
        dry_run: two steps, one evaluation, one checkpoint and one export, in a folder of their own.
    """
    summary.quiet_libraries()
    check_sources(config)
    check_requested(config)
    require_sts(config, StsEvaluator(config.evaluate.sts))
    require_trackers(config.track or ())
    record_collectives(config.run_folder)
    engines.start_processes(config.train.rendezvous_seconds)
    # before data is prepared: a wrong option, and a number of ranks that does not fit
    engines.deepspeed_config(config, dist.get_world_size())
    local = has_local_negatives(config)
    require_lanes(config.data.lanes, config.train.global_batch, dist.get_world_size(), equal=local)
    full_steps = config.batch_sizes.full_steps(config.train.steps)
    if dry_run:
        config = dry_run_config(config)
    with hold_run_folder(config.run_folder):
        if dry_run:
            empty_run_folder(config.run_folder)
        with Watchdog(config.run_folder, config.train.step_deadline) as watchdog:
            run = TrainingRun(
                config, default_recipe, min(config.train.steps, 2) if dry_run else None, watchdog
            )
            run.open()
            run.build()
            code = run.loop()
            run.conclude()
        if dry_run and dist.get_rank() == 0:
            rows = read_metrics(config.run_folder / "metrics.jsonl")
            print(*whole_run(rows, config.train.steps, dist.get_world_size(), full_steps), sep="\n")
        dist.barrier()
        on_rank_zero(lambda: remove_folder(config.run_folder))
    dist.destroy_process_group()
    return code


class TrainingRun:
    """One run in a folder that this process holds: open, build, loop, conclude, in this order. Collective."""

    def __init__(
        self, config: Config, default_recipe: str | Path | None, stop_step: int | None, watchdog: Watchdog
    ) -> None:
        """
        Args:
            default_recipe: the recipe where the command named none.
            stop_step: where to stop; None: at `train.steps`.
            watchdog: begins to watch when the data is prepared.
        """
        self.config, self.folder, self.watchdog = config, config.run_folder, watchdog
        self.default_recipe, self.stop_step = default_recipe, stop_step or config.train.steps
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def open(self) -> None:
        """Open the data, preparing it where there is none, and find the checkpoint to resume from."""
        self.threads = set_threads(self.config)
        set_deterministic(self.config)
        data = open_data(self.config)
        self.checkpoint, state = resume_from(self.config, data.inputs)
        self.data = as_begun(data, state)
        self.progress = Progress(**state["progress"]) if state else Progress()
        self.watchdog.begin(self.progress.step)
        self.config.train.precision = choose_precision(self.config, state)

    def build(self) -> None:
        """Build encoder, objective and engine, load the checkpoint, and prepare batches and evaluation."""
        config, data = self.config, self.data

        # the model: an encoder, and the objective with its heads
        self.encoder = starting_encoder(config, data.tokenizer)
        prompts = prompt_tokens(data.tokenizer, config.data.prompts)
        left_out = () if config.data.prompts_pooled else prompts.values()
        use = data.export_interface(self.encoder.max_positions)
        self.encoder.leave_out([*left_out, *unpooled_prompts(use, data.tokenizer)])
        guide = guiding_encoder(config, data.tokenizer, data.train.max_length)
        self.objective = build_objective(config, self.encoder, data.tokenizer, data.labels, guide)
        longest = self.encoder.max_positions
        self.objective.require_positions(min(longest, data.train.max_length))

        # what a batch is made of
        masking = Masking.of(config.objective)
        self.spec = BatchSpec(data.views, masking, data.vocabulary, data.synonyms, longest, prompts)
        if self.checkpoint is None:
            require_different_views(config, data, self.objective, self.spec)

        # the engine, and what it resumes from; read the settings back before the engine partitions the model
        self.model_settings = verify_model_matches_config(config, self.encoder, self.objective, data.views)
        self.flops = summary.flops_meter(config, self.encoder, self.objective, data)
        model = SentenceModel(self.encoder, self.objective, config.train.precision)
        self.engine = engines.build_engine(model, config)
        self.checkpoints = Checkpoints(config, self.engine, data.inputs, data.of_start)
        if self.checkpoint is not None:
            # while the model is as it starts
            repair_best(self.folder, self.progress, self._save_start)
            store.load(self.checkpoint, self.engine, verify=False)  # verified when it was chosen
        self.ledger_message = verify_resumed_batch(
            config, data.train, self.spec, self.progress, self.checkpoint
        )
        sts = StsEvaluator(config.evaluate.sts or os.environ.get("CLEAR_DATA"))
        self.evaluate = Evaluation(config, data, self.engine, sts, self.progress)

    def loop(self) -> int:
        """Train from where the run stands to `stop_step`, rolling back after faults; return the exit code."""
        config, progress = self.config, self.progress
        self.loader = self._loader()
        with self.checkpoints, self._telemetry() as self.telemetry, self.watchdog.end_after_errors():
            extra_metrics = self._record_what_runs()
            if progress.step == 0:
                self._evaluate_start()
            # kick off the workers now: forked later, they would have the signal handlers of the run
            batches = iter(self.loader)
            shutdown = Shutdown(self.folder, watch_file=self.rank == 0)
            while True:
                trainer = Trainer(
                    config,
                    self.engine,
                    progress,
                    self.stop_step,
                    evaluate=self.evaluate,
                    checkpoints=self.checkpoints,
                    keep_best=self._keep_best,
                    telemetry=self.telemetry,
                    shutdown=shutdown,
                    watchdog=self.watchdog,
                    extra_metrics=extra_metrics,
                    decode=functools.partial(self.data.tokenizer.decode, skip_special_tokens=True),
                )
                try:
                    return trainer.train(batches)
                except OverBudget as fault:
                    batches.close()
                    with self.watchdog("roll-back"):
                        roll_back(
                            fault,
                            config,
                            self.engine,
                            progress,
                            self.stop_step,
                            self.checkpoints,
                            self.telemetry,
                        )
                self.loader = self._loader()
                batches = iter(self.loader)

    def conclude(self) -> None:
        """Export the last step, and write the summary, where the run has come to its end."""
        if self.progress.step < self.stop_step:
            return

        def export_and_report() -> None:
            export(self.folder / "checkpoints", self.folder / "export")
            summary.report(
                self.config, self.progress, self.data.inputs, self.model_settings, self.evaluate.random
            )

        with self.watchdog("export"):
            on_rank_zero(export_and_report)

    # -- parts of the phases -------------------------------------------------------

    def _loader(self) -> Loader:
        """Return the batches of this rank from where the run stands."""
        position = Position(
            self.progress.step,
            self.stop_step,
            self.rank,
            self.world,
            self.progress.substitutions,
            jumps=self.config.train.faults.jumps,
        )
        return Loader(self.data.train, self.spec, LoaderSettings.of(self.config), position)

    def _telemetry(self) -> Telemetry:
        return Telemetry(
            self.folder,
            self.stop_step,
            self.rank,
            self.progress.step,
            self.progress.tokens,
            self.progress.rows,
            self.flops,
            sequences_before=self.config.batch_sizes.before,
            track=self.config.track or (),
            name=self.config.name,
            settings=dict(leaves(self.config.model_dump(mode="json"))),
        )

    def _record_what_runs(self) -> ExtraMetrics:
        """Write and print what is about to run; return what metrics hold besides the trainer's numbers."""
        config, data, progress, telemetry = self.config, self.data, self.progress, self.telemetry
        recipe = (to_yaml(config) + as_comments(data.inputs)).encode()
        on_rank_zero(lambda: replace_durably(self.folder / "config.yaml", recipe))
        telemetry.log(progress.step, {"config_sha256": hashlib.sha256(recipe).hexdigest()})
        if self.default_recipe is not None:
            telemetry.say(summary.describe_default(self.default_recipe))
        lengths = summary.measure_views(config, data, self.encoder, progress)
        summary.print_summary(
            config,
            data,
            self.encoder,
            self.objective,
            progress,
            self.checkpoint,
            self.threads,
            lengths,
            telemetry,
        )
        if self.ledger_message is not None:
            telemetry.say(self.ledger_message)
        continuity.print_changes(progress.changes, progress.step, telemetry)
        report_damage(data, self.evaluate.heldout, progress, telemetry)
        length_baseline = summary.length_only(self.objective, lengths)
        return lambda step: length_baseline(config.batch_sizes.at_step(step - 1)) | self.loader.counts(step)

    def _evaluate_start(self) -> None:
        """Evaluate the start, which is the best so far.

        Also a pre-flight: an evaluation that cannot run must not fail after a month.
        """
        scores = self.evaluate()
        self.telemetry.log(0, {"evaluation": scores})
        from_random, best_by = self.config.model.init is None, self.config.evaluate.best_by
        self.progress.note_scores(scores, from_random, best_by, self.evaluate.random)
        self.progress.rows = on_rank_zero(self.telemetry.sync)
        keep_start(self.folder, self._save_start, self._keep_best)

    def _save_start(self, folder: Path) -> Path:
        """Save the untrained model."""
        start = self.progress if self.progress.step == 0 else Progress()
        return self.checkpoints.save(start, folder, wait=True)

    def _keep_best(self, checkpoint: Path) -> None:
        on_rank_zero(lambda: export(checkpoint, self.folder / "best"))
