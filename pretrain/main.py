"""Train a sentence-aware encoder: `deepspeed pretrain/main.py --aug del-span,reorder`.

The whole run on one screen: config, data, model, objective, loop, export. `--help` lists every key of the
config.
"""

import sys
from pathlib import Path

# run as a script: import the packages, not this folder's files by their bare names
if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import pretrain.common.environment  # noqa: F401  (sets variables that torch and DeepSpeed read when they are imported)

# isort: split
import functools
import os

import torch
import torch.distributed as dist

from finetune.sts import StsEvaluator
from pretrain.cache import views as cached_views
from pretrain.checkpoint import store
from pretrain.common import cli
from pretrain.common.durable import replace_durably
from pretrain.common.shutdown import Leaving
from pretrain.config.run import DEFAULT_RECIPE, SHORT_FLAGS, Config, describe, load_config, to_yaml
from pretrain.data.batch import BatchSpec, number_of_labels
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.masking import Masking
from pretrain.export.folder import export
from pretrain.model.modules import evaluation_mode
from pretrain.objectives import build_objective, view_specs
from pretrain.start import continuity, setup, summary
from pretrain.start.inputs import as_comments
from pretrain.start.length_shortcut import measure_lengths
from pretrain.step import engine as engines
from pretrain.step.heldout import Heldout, text_embedder
from pretrain.step.model import SentenceModel
from pretrain.telemetry.run import Telemetry
from pretrain.trainer import Progress, save_checkpoint, train


def main(config: str | None = None, dry_run: bool = False, **overrides: str) -> int:
    """Train, evaluate, checkpoint and export one run; returns the exit code.

    Args:
        config: YAML recipe; without one, configs/clear_micro.yaml. configs/clear_base.yaml is the paper's.
        dry_run: two steps, one evaluation, one checkpoint and one export in RUN.dry-run, then stop.
        overrides: any key of the config, dotted (`--train.lr 1e-4`), or a short flag (`--aug`, `--data`,
            `--run` ...).
    """
    recipe, dry_run = config or DEFAULT_RECIPE, cli.as_bool(dry_run, "dry-run")
    settings = load_config(recipe, overrides)
    summary.quiet_libraries()
    setup.check_sources(settings)
    engines.start_processes(settings.train.rendezvous_seconds)
    # a wrong option is found before data is prepared
    engines.deepspeed_config(settings, dist.get_world_size())
    if dry_run:
        settings = setup.dry_run(settings)
    with setup.one_writer(settings.run_folder):
        return run(settings, recipe, config is not None, dry_run)


def run(settings: Config, recipe: str | Path, explicit: bool, dry_run: bool) -> int:
    """The run itself, in a folder that this process holds; returns the exit code.

    Args:
        recipe, explicit: the recipe's file, and whether the command named it.
    """
    if dry_run:
        setup.empty_folder(settings.run_folder)
    rank, world = dist.get_rank(), dist.get_world_size()
    setup.check_world(settings, world)
    threads = setup.set_threads(settings)

    data = setup.open_data(settings)
    resumed, state = setup.resume_from(settings, data)
    settings.train.precision = setup.choose_precision(settings, state)
    torch.manual_seed(settings.train.seed)
    encoder = setup.make_encoder(settings, data.tokenizer)
    setup.check_budget(settings, encoder)
    loaded = cached_views.trains_on(settings)
    views = view_specs(loaded)
    labelled = next((view for view in views if view.labelled), None)
    objective = build_objective(
        settings,
        encoder,
        data.tokenizer,
        number_of_labels(labelled, data.train) if labelled is not None else 0,
    )
    objective.require_positions(min(encoder.max_positions, data.train.max_length))
    meter = summary.flops_meter(settings, encoder, objective, data)
    engine = engines.build_engine(SentenceModel(encoder, objective, settings.train.precision), settings)
    if resumed is not None:
        store.load(resumed, engine, verify=False)  # verified when it was chosen
    progress = Progress(**state["progress"]) if state else Progress()
    stop_step = min(settings.train.steps, 2) if dry_run else settings.train.steps
    if rank == 0:
        replace_durably(
            settings.run_folder / "config.yaml", (to_yaml(settings) + as_comments(data.inputs)).encode()
        )

    masking = Masking.of(settings.objective)
    batches = Loader(
        data.train,
        BatchSpec(views, masking, data.vocabulary, data.synonyms, encoder.max_positions),
        LoaderSettings.of(settings),
        Position(progress.step, stop_step, rank, world, progress.substitutions),
    )
    heldout = Heldout(
        data.heldout, data.vocabulary, loaded, data.synonyms, encoder.max_positions, progress.heldout_left_out
    )
    sts = StsEvaluator(settings.evaluate.sts or os.environ.get("CLEAR_DATA"))
    with_sts = setup.sts_everywhere(settings, "STS-B-dev" in sts.available())
    embed = text_embedder(engine, data.tokenizer, encoder.max_positions, settings.train.micro_batch_tokens)
    telemetry = Telemetry(
        settings.run_folder,
        stop_step,
        rank=rank,
        start_step=progress.step,
        start_tokens=progress.tokens,
        flops=meter,
    )

    def evaluate(step: int) -> dict[str, float]:
        scores = heldout.evaluate(engine)
        if with_sts:
            with evaluation_mode(engine.module):
                scores["stsb-dev"] = sts.evaluate(embed, ["STS-B-dev"])["STS-B-dev"]["spearman_all"]
        return scores

    def export_checkpoint(out: Path, source: Path) -> None:
        if rank == 0:
            export(source, out)

    save = functools.partial(save_checkpoint, settings, engine, data.inputs)
    keep_best = functools.partial(export_checkpoint, settings.run_folder / "best")
    if resumed is not None:
        setup.repair_best(settings.run_folder, progress)
    with telemetry:
        summary.announce(
            settings,
            recipe,
            explicit,
            telemetry,
            data,
            encoder,
            objective,
            threads,
            resumed,
            progress.step,
            setup.on_rank_zero(
                lambda: measure_lengths(  # only rank 0 prints it
                    settings,
                    data.train,
                    data.vocabulary,
                    views,
                    data.synonyms,
                    encoder.max_positions,
                    progress.substitutions,
                )
            ),
        )
        continuity.announce_changes(progress.changes, progress.step, telemetry)
        setup.note_damage(data, heldout, progress, telemetry)
        summary.announce_idle(loaded, telemetry, data)
        if progress.step == 0:  # also a pre-flight: an evaluation that cannot run must not fail after a month
            scores = evaluate(0)
            telemetry.log(0, {"evaluation": scores})
            progress.note_scores(scores)
            setup.keep_start(settings.run_folder, functools.partial(save, progress), keep_best)
        code = train(
            settings,
            engine,
            iter(batches),
            evaluate,
            save,
            keep_best,
            telemetry,
            Leaving(settings.run_folder, watch_file=rank == 0),
            progress,
            stop_step,
        )
    if progress.step == stop_step:
        export_checkpoint(settings.run_folder / "export", settings.run_folder / "checkpoints")
        if rank == 0:
            summary.report(settings, progress, settings.run_folder / "export", data.inputs)
    dist.barrier()
    dist.destroy_process_group()
    return code


def help_text() -> str:
    """The page that --help prints."""
    short = ", ".join(f"--{flag} = --{key}" for flag, key in SHORT_FLAGS.items())
    return (
        f"{__doc__}\nFlags: --config RECIPE.yaml, --dry-run, and any key below.\nShort: {short}\n\n"
        + cli.key_table(describe())
    )


if __name__ == "__main__":
    cli.run(main, help_text)
