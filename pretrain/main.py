"""Train a sentence-aware encoder: `deepspeed pretrain/main.py --aug del-span,reorder`.

The whole run on one screen: config, data, model, objective, loop, export. `--help` lists every key of the config.
"""

import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a script: import what `python -m pretrain.main` would, not this folder's files by name
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import pretrain.environment  # noqa: F401  (sets allocator and threading variables; must come before torch)

# isort: split
import functools
import os

import torch
import torch.distributed as dist

from finetune.sts import StsEvaluator
from pretrain import checkpoint, command, engine as engines, setup_run
from pretrain.config import Config, load_config, to_yaml
from pretrain.errors import UserError
from pretrain.export import export_engine, export
from pretrain.heldout import Heldout, text_embedder
from pretrain.leaving import Leaving
from pretrain.loader import Loader
from pretrain.model import SentenceModel
from pretrain.objectives import build_objective
from pretrain.telemetry import Telemetry
from pretrain.trainer import Progress, save_checkpoint, train


def main(config: str | None = None, dry_run: bool = False, **overrides: str) -> int:
    """Train, evaluate, checkpoint and export one run; returns the exit code.

    Args:
        config: YAML recipe; without one, configs/clear_base.yaml on a GPU and configs/clear_micro.yaml on a CPU.
        dry_run: two steps, one evaluation, one checkpoint and one export in RUN.dry-run, then stop.
        overrides: any key of the config, dotted (`--train.lr 1e-4`), or a short flag (`--aug`, `--data`, `--run` ...).
    """
    recipe = config or setup_run.default_recipe()
    settings = load_config(recipe, overrides)
    if dry_run:
        settings = setup_run.dry_run(settings)
    engines.start_processes()
    rank, world = dist.get_rank(), dist.get_world_size()
    setup_run.check_world(settings, world)
    torch.manual_seed(settings.train.seed)

    data = setup_run.open_data(settings)
    settings.train.precision, peak_flops = setup_run.choose_precision(settings)
    encoder = setup_run.build_encoder(settings, data.tokenizer)
    model = SentenceModel(encoder, build_objective(settings, encoder.hidden_size), settings.train.precision)
    engine = engines.build_engine(model, settings)

    progress, resumed = setup_run.resume(settings, engine, data)
    stop_step = min(settings.train.steps, 2) if dry_run else settings.train.steps
    if rank == 0:
        (settings.run_folder / "config.yaml").write_text(to_yaml(settings))
    loader = Loader(
        data.train, data.vocabulary, seed=settings.train.seed, global_batch=settings.train.global_batch,
        lanes=settings.data.lanes, rank=rank, world_size=world,
        view_specs=list(settings.augment.views) if model.objective.views else [],
        mask_rate=settings.objective.mlm.rate, mask_share=settings.objective.mlm.mask,
        random_share=settings.objective.mlm.random, mask_copies=model.objective.masked_copies,
        workers=settings.data.workers, start_step=progress.step, stop_step=stop_step, synonyms=data.synonyms,
        max_length=encoder.max_positions, damaged=settings.data.damaged)
    heldout = Heldout(data.heldout, data.vocabulary, settings, data.synonyms)
    sts = StsEvaluator(settings.evaluate.sts or os.environ.get("CLEAR_DATA"))
    telemetry = Telemetry(settings.run_folder, stop_step, rank=rank, start_step=progress.step, start_tokens=progress.tokens,
                          flops=setup_run.flops_meter(settings, encoder, model, world, peak_flops))
    setup_run.announce(settings, telemetry, data, encoder, world, recipe, resumed)

    def evaluate(step: int) -> dict[str, float]:
        scores = heldout.evaluate(engine)
        if sts.available("stsb-dev"):
            embed = text_embedder(engine, data.tokenizer, encoder.max_positions, settings.train.micro_batch_tokens)
            with setup_run.evaluation_mode(engine.module):
                scores["stsb-dev"] = 100 * sts.evaluate(embed, ["stsb-dev"])["stsb-dev"]["spearman_all"]
        return scores

    def keep_best() -> None:
        export_engine(engine, data.tokenizer, settings, progress, settings.run_folder / "best")

    with telemetry:
        if progress.step == 0:  # also a pre-flight: an evaluation that cannot run must not fail after a month
            telemetry.log(0, {"evaluation": evaluate(0)})
        code = train(settings, engine, iter(loader), evaluate, keep_best,
                     functools.partial(save_checkpoint, settings, engine, data.train.tokenizer_hash), telemetry,
                     Leaving(settings.run_folder, watch_file=rank == 0), progress, stop_step)
    if code == 0 and rank == 0:
        export(checkpoint.latest(settings.run_folder / "checkpoints"), settings.run_folder / "export")
        setup_run.report(settings, progress, dry_run)
    dist.barrier()
    return code


if __name__ == "__main__":
    command.run(main, Config, SHORT := None)
