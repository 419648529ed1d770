"""The whole run on one screen: config, data, model, objective, loop, export.

Importing it takes seconds (torch, DeepSpeed, transformers): `pretrain/main.py` checks the flags before.
"""

import functools
import os
from pathlib import Path
from typing import Any

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
from pretrain.objectives import build_objective
from pretrain.start import continuity, summary
from pretrain.start.best import keep_start, repair_best
from pretrain.start.checkpoints import Checkpoints
from pretrain.start.data import open_data, report_damage
from pretrain.start.devices import choose_precision, set_deterministic, set_threads
from pretrain.start.encoder import check_sources, guiding_encoder, starting_encoder
from pretrain.start.evaluation import Evaluation, require_sts
from pretrain.start.folder import dry_run_config, empty_run_folder, hold_run_folder
from pretrain.start.identical_views import require_different_views
from pretrain.start.in_force import read_back
from pretrain.start.inputs import as_comments
from pretrain.start.local_ranks import has_local_negatives
from pretrain.start.recorded_batch import compare_last_batch
from pretrain.start.resume import check_requested, resume_from
from pretrain.start.rollback import roll_back
from pretrain.step import engine as engines
from pretrain.step.faults import OverBudget
from pretrain.step.model import SentenceModel
from pretrain.step.progress import Progress
from pretrain.telemetry.metrics_file import read_metrics
from pretrain.telemetry.run import Telemetry
from pretrain.telemetry.trackers.outside import require_trackers
from pretrain.trainer import train
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
            code = run(config, default_recipe, min(config.train.steps, 2) if dry_run else None, watchdog)
        if dry_run and dist.get_rank() == 0:
            rows = read_metrics(config.run_folder / "metrics.jsonl")
            print(*whole_run(rows, config.train.steps, dist.get_world_size(), full_steps), sep="\n")
        dist.barrier()
        on_rank_zero(lambda: remove_folder(config.run_folder))
    dist.destroy_process_group()
    return code


def run(config: Config, default_recipe: str | Path | None, stop_step: int | None, watchdog: Watchdog) -> int:
    """Train in a run folder that this process holds; return the exit code.

    Args:
        default_recipe: the recipe where the command named none.
        stop_step: where to stop; None: at `train.steps`.
        watchdog: begins to watch when the data is prepared.
    """
    folder, threads = config.run_folder, set_threads(config)
    stop_step = stop_step or config.train.steps
    set_deterministic(config)

    # data, and the checkpoint to resume from
    data = open_data(config)
    checkpoint, state = resume_from(config, data.inputs)
    progress = Progress(**state["progress"]) if state else Progress()
    watchdog.begin(progress.step)
    config.train.precision = choose_precision(config, state)

    # model, objective, engine
    encoder = starting_encoder(config, data.tokenizer)
    prompts = prompt_tokens(data.tokenizer, config.data.prompts)
    encoder.leave_out(() if config.data.prompts_pooled else prompts.values())
    guide = guiding_encoder(config, data.tokenizer, data.train.max_length)
    longest = encoder.max_positions
    objective = build_objective(config, encoder, data.tokenizer, data.labels, guide)
    objective.require_positions(min(longest, data.train.max_length))
    masking = Masking.of(config.objective)
    spec = BatchSpec(data.views, masking, data.vocabulary, data.synonyms, longest, prompts)
    if checkpoint is None:
        require_different_views(config, data, objective, spec)
    in_force = read_back(config, encoder, objective, data.views)
    flops = summary.flops_meter(config, encoder, objective, data)
    engine = engines.build_engine(SentenceModel(encoder, objective, config.train.precision), config)
    checkpoints = Checkpoints(config, engine, data.inputs, data.of_start)
    if checkpoint is not None:
        # while the model is as it starts
        repair_best(folder, progress, functools.partial(checkpoints.save, Progress(), wait=True))
        store.load(checkpoint, engine, verify=False)  # verified when it was chosen
    recipe = to_yaml(config) + as_comments(data.inputs)
    on_rank_zero(lambda: replace_durably(folder / "config.yaml", recipe.encode()))

    # batches, evaluation, checkpoints
    of_ledger = compare_last_batch(config, data.train, spec, progress, checkpoint)
    rank, world = dist.get_rank(), dist.get_world_size()

    def loader() -> Loader:
        position = Position(
            progress.step, stop_step, rank, world, progress.substitutions, jumps=config.train.faults.jumps
        )
        return Loader(data.train, spec, LoaderSettings.of(config), position)

    batches = loader()
    sts = StsEvaluator(config.evaluate.sts or os.environ.get("CLEAR_DATA"))
    evaluate = Evaluation(config, data, engine, sts, progress)

    def keep_best(source: Path) -> None:
        on_rank_zero(lambda: export(source, folder / "best"))

    # the loop
    with (
        checkpoints,
        Telemetry(
            folder,
            stop_step,
            rank,
            progress.step,
            progress.tokens,
            flops,
            sequences_before=config.batch_sizes.before,
            track=config.track or (),
            name=config.name,
            settings=dict(leaves(config.model_dump(mode="json"))),
        ) as telemetry,
        watchdog.end_after_errors(),
    ):
        if default_recipe is not None:
            telemetry.say(summary.describe_default(default_recipe))
        lengths = summary.measure_views(config, data, encoder, progress)
        summary.print_summary(
            config, data, encoder, objective, progress, checkpoint, threads, lengths, telemetry
        )
        of_lengths = summary.length_only(objective, lengths)

        def beside(step: int) -> dict[str, Any]:
            return of_lengths(config.batch_sizes.at_step(step - 1)) | batches.counts(step)

        if of_ledger is not None:
            telemetry.say(of_ledger)
        continuity.print_changes(progress.changes, progress.step, telemetry)
        report_damage(data, evaluate.heldout, progress, telemetry)
        summary.print_idle_augmentations(data, telemetry)
        if progress.step == 0:  # also a pre-flight: an evaluation that cannot run must not fail after a month
            scores = evaluate()
            telemetry.log(0, {"evaluation": scores})
            progress.note_scores(scores, config.model.init is None, config.evaluate.best_by, evaluate.random)
            keep_start(folder, functools.partial(checkpoints.save, progress, wait=True), keep_best)
        steps = iter(batches)  # forks the workers, which must not have the run's signal handlers
        shutdown = Shutdown(folder, watch_file=rank == 0)
        decode = functools.partial(data.tokenizer.decode, skip_special_tokens=True)
        of_run = (
            evaluate,
            checkpoints,
            keep_best,
            telemetry,
            shutdown,
            progress,
            stop_step,
            watchdog,
            beside,
        )
        while True:
            try:
                code = train(config, engine, steps, *of_run, decode)
                break
            except OverBudget as fault:
                steps.close()
                with watchdog("roll-back"):
                    roll_back(fault, config, engine, progress, stop_step, checkpoints, telemetry)
            batches = loader()
            steps = iter(batches)

    def conclude() -> None:
        export(folder / "checkpoints", folder / "export")
        summary.report(config, progress, data.inputs, in_force, evaluate.random)

    if progress.step == stop_step:
        with watchdog("export"):
            on_rank_zero(conclude)
    return code
