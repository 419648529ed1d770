"""Train a sentence-aware encoder: `deepspeed pretrain/main.py --aug del-span,reorder`.

The whole run on one screen: config, data, model, objective, loop, export. `--help` lists every key of the config.
"""

import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a script: import the packages, not this folder's files by their bare names
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import pretrain.environment  # noqa: F401  (sets variables that torch and DeepSpeed read when they are imported)

# isort: split
import functools
import os

import torch
import torch.distributed as dist

from finetune.sts import StsEvaluator
from pretrain import announce, cached_views, checkpoint, command, continuity, setup_run
from pretrain import engine as engines
from pretrain.blocks import number_of_labels
from pretrain.config import DEFAULT_RECIPE, SHORT_FLAGS, Config, describe, load_config, to_yaml
from pretrain.durable import replace_durably
from pretrain.export import export
from pretrain.heldout import Heldout, evaluation_mode, text_embedder
from pretrain.inputs import as_comments
from pretrain.leaving import Leaving
from pretrain.length_shortcut import measure_lengths
from pretrain.loader import Loader
from pretrain.model import SentenceModel
from pretrain.objectives import build_objective, view_specs
from pretrain.telemetry import Telemetry
from pretrain.trainer import Progress, save_checkpoint, train


def main(config: str | None = None, dry_run: bool = False, **overrides: str) -> int:
    """Train, evaluate, checkpoint and export one run; returns the exit code.

    Args:
        config: YAML recipe; without one, configs/clear_micro.yaml. configs/clear_base.yaml is the paper's.
        dry_run: two steps, one evaluation, one checkpoint and one export in RUN.dry-run, then stop.
        overrides: any key of the config, dotted (`--train.lr 1e-4`), or a short flag (`--aug`, `--data`, `--run` ...).
    """
    recipe, dry_run = config or DEFAULT_RECIPE, command.as_bool(dry_run, "dry-run")
    settings = load_config(recipe, overrides)
    announce.quiet_libraries()
    setup_run.check_sources(settings)
    engines.start_processes(settings.train.rendezvous_seconds)
    engines.deepspeed_config(settings, dist.get_world_size())  # a wrong option is found before data is prepared
    if dry_run:
        settings = setup_run.dry_run(settings)
    with setup_run.one_writer(settings.run_folder):
        return run(settings, recipe, config is not None, dry_run)


def run(settings: Config, recipe: str | Path, explicit: bool, dry_run: bool) -> int:
    """The run itself, in a folder that this process holds; returns the exit code.

    Args:
        recipe, explicit: the recipe's file, and whether the command named it.
    """
    if dry_run:
        setup_run.empty_folder(settings.run_folder)
    rank, world = dist.get_rank(), dist.get_world_size()
    setup_run.check_world(settings, world)
    threads = setup_run.set_threads(settings)

    data = setup_run.open_data(settings)
    resumed, state = setup_run.resume_from(settings, data)
    settings.train.precision = setup_run.choose_precision(settings, state)
    torch.manual_seed(settings.train.seed)
    encoder = setup_run.make_encoder(settings, data.tokenizer)
    setup_run.check_budget(settings, encoder)
    loaded = cached_views.trains_on(settings)
    views = view_specs(loaded)
    labelled = next((view for view in views if view.labelled), None)
    objective = build_objective(settings, encoder, data.tokenizer,
                                number_of_labels(labelled, data.train) if labelled is not None else 0)
    objective.require_positions(min(encoder.max_positions, data.train.max_length))
    meter = announce.flops_meter(settings, encoder, objective, data)
    engine = engines.build_engine(SentenceModel(encoder, objective, settings.train.precision), settings)
    if resumed is not None:
        checkpoint.load(resumed, engine, verify=False)  # verified when it was chosen
    progress = Progress(**state["progress"]) if state else Progress()
    stop_step = min(settings.train.steps, 2) if dry_run else settings.train.steps
    if rank == 0:
        replace_durably(settings.run_folder / "config.yaml", (to_yaml(settings) + as_comments(data.inputs)).encode())

    mlm = settings.objective.mlm
    batches = Loader(
        data.train, data.vocabulary, seed=settings.train.seed, global_batch=settings.train.global_batch,
        lanes=settings.data.lanes, rank=rank, world_size=world, views=views,
        mask_rate=mlm.rate, mask_share=mlm.mask, random_share=mlm.random, mask_copies=objective.masked_copies,
        workers=settings.data.workers, start_step=progress.step, stop_step=stop_step, synonyms=data.synonyms,
        max_length=encoder.max_positions, damaged=settings.data.damaged,
        recorded=progress.substitutions)
    heldout = Heldout(data.heldout, data.vocabulary, loaded, data.synonyms, encoder.max_positions, progress.heldout_left_out)
    sts = StsEvaluator(settings.evaluate.sts or os.environ.get("CLEAR_DATA"))
    with_sts = setup_run.sts_everywhere(settings, "STS-B-dev" in sts.available())
    embed = text_embedder(engine, data.tokenizer, encoder.max_positions, settings.train.micro_batch_tokens)
    telemetry = Telemetry(settings.run_folder, stop_step, rank=rank, start_step=progress.step, start_tokens=progress.tokens,
                          flops=meter)

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
        setup_run.repair_best(settings.run_folder, progress)
    with telemetry:
        announce.announce(settings, recipe, explicit, telemetry, data, encoder, objective, threads, resumed,
                          progress.step,
                          setup_run.on_rank_zero(lambda: measure_lengths(  # only rank 0 prints it
                              settings, data.train, data.vocabulary, views, data.synonyms, encoder.max_positions,
                              progress.substitutions)))
        continuity.announce_changes(progress.changes, progress.step, telemetry)
        setup_run.note_damage(data, heldout, progress, telemetry)
        announce.announce_idle(loaded, telemetry, data)
        if progress.step == 0:  # also a pre-flight: an evaluation that cannot run must not fail after a month
            scores = evaluate(0)
            telemetry.log(0, {"evaluation": scores})
            progress.note_scores(scores)
            setup_run.keep_start(settings.run_folder, functools.partial(save, progress), keep_best)
        code = train(settings, engine, iter(batches), evaluate, save, keep_best, telemetry,
                     Leaving(settings.run_folder, watch_file=rank == 0), progress, stop_step)
    if progress.step == stop_step:
        export_checkpoint(settings.run_folder / "export", settings.run_folder / "checkpoints")
        if rank == 0:
            announce.report(settings, progress, settings.run_folder / "export", data.inputs)
    dist.barrier()
    dist.destroy_process_group()
    return code


def help_text() -> str:
    """The page that --help prints."""
    short = ", ".join(f"--{flag} = --{key}" for flag, key in SHORT_FLAGS.items())
    return (f"{__doc__}\nFlags: --config RECIPE.yaml, --dry-run, and any key below.\nShort: {short}\n\n"
            + command.key_table(describe()))


if __name__ == "__main__":
    command.run(main, help_text)
