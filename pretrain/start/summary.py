"""What a run prints before it starts and when it is done, and its speed as a share of the machine's."""

import json
import logging
import os
import shlex
import warnings

import numpy as np
import torch
import torch.distributed as dist

from pretrain.common.cores import threads_of_user
from pretrain.common.error_output import LOCAL_RANKS
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably, sha256_of
from pretrain.common.run_folder import LOWER_IS_BETTER, describe_export
from pretrain.config.run import Config
from pretrain.data.batch import NEGATIVE
from pretrain.data.masking import Masking
from pretrain.data.shards import ShardReader
from pretrain.export.folder import read_policy
from pretrain.export.sentence_transformers import Interface
from pretrain.model.encoder import SentenceEncoder, own_tokenizer
from pretrain.model.pooling import WORDS
from pretrain.objectives import WholeObjective
from pretrain.start.continuity import Inputs
from pretrain.start.data import Data
from pretrain.start.evaluation import RunEvaluation
from pretrain.step.model import SentenceModel
from pretrain.step.precision import DTYPES
from pretrain.step.progress import Progress
from pretrain.telemetry.formats import LABELS, format_count, format_seconds
from pretrain.telemetry.metrics_file import read_metrics
from pretrain.telemetry.throughput import FlopsMeter, measure_peak_flops, model_flops_per_token


def quiet_libraries() -> None:
    """Show only warnings of libraries, and of DeepSpeed only errors."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for name in ("DeepSpeed", "deepspeed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)


def flops_meter(
    config: Config, encoder: SentenceEncoder, objective: WholeObjective, data: Data
) -> FlopsMeter:
    """Measure what model FLOPs utilisation needs: FLOPs per token, and the peak of all devices. Collective.

    The views' first pass, without gradients, and layers that are computed again count as repeated.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    own = measure_peak_flops(device, DTYPES[config.train.precision])
    peak = torch.tensor([own], dtype=torch.float64, device=device)
    dist.all_reduce(peak)
    mean = max(1, round(data.train.num_tokens / data.train.num_sequences))
    copies, views = objective.masked_copies, len(objective.roles)
    # of a step's tokens, those of masked originals; views are somewhat shorter
    share = copies / max(1, copies + views)
    rates = Masking.of(config.objective).rate_at(np.arange(config.train.steps))
    if encoder.pooling == WORDS and not copies:  # look-ups alone
        return FlopsMeter(0.0, float(peak))
    per_token = model_flops_per_token(encoder.lm, [mean], float(rates.mean()) * share)
    repeated = (1 - share + config.train.activation_checkpointing) * model_flops_per_token(encoder.lm, [mean])
    return FlopsMeter(per_token, float(peak), repeated_per_token=repeated / 3)


def lines_of_run(config: Config, data: Data, model: SentenceModel, threads: int, resumed: str) -> list[str]:
    """Say what is about to run, so that a wrong setting is seen before it costs a day."""
    train, sizes, encoder, objective = config.train, config.batch_sizes, model.encoder, model.objective
    from_user = " (OMP_NUM_THREADS)" if train.threads is None and threads_of_user() else ""
    cpu = f"CPU, threads per rank: {threads}{from_user}"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu
    chosen = " (one rank per core; --train.threads decides otherwise)" if LOCAL_RANKS in os.environ else ""
    falls = f", decay {train.decay_shape} over the last {train.steps - train.decay_begins:,}"
    grown = f" from step {sizes.growth_steps:,} on, {sizes.start:,} at the first"
    grows = grown if sizes.growth_steps else ""
    return [
        f"run        {config.run_folder}{resumed}",
        f"devices    {dist.get_world_size()} x {device}; ZeRO {train.zero}, {train.precision}{chosen}",
        *_data_lines(config, data.train),
        f"schedule   {train.schedule}, peak {train.lr:g}, warm-up over {train.warmup_steps:,} of "
        f"{train.steps:,} steps{falls if train.schedule == 'wsd' else ''}",
        *_encoder_lines(config, encoder, data, objective),
        *_objective_lines(config, data.train, objective, encoder.hidden_size),
        f"batch      {train.global_batch:,} sequences per step{grows}, up to {train.micro_batch:,} "
        "tokens in one pass",
    ]


def _data_lines(config: Config, reader: ShardReader) -> list[str]:
    """Say what is read: a line for a folder, and for several sets one each, with its share of the steps."""
    steps, lines = config.train.steps, list[str]()
    for part, share in zip(reader.parts, reader.shares):
        epochs = share * config.batch_sizes.total_before(steps) / max(1, part.num_sequences)
        of_steps = f"{share:.1%} of " if len(reader.parts) > 1 else ""
        lines.append(
            f"{'' if lines else 'data':11}{part.folder}: {part.num_sequences:,} sequences, "
            f"{part.num_tokens:,} tokens, unit {part.unit}; {epochs:.3g} epochs in {of_steps}{steps:,} steps"
        )
    return lines


def _encoder_lines(
    config: Config, encoder: SentenceEncoder, data: Data, objective: WholeObjective
) -> list[str]:
    model, init = config.model, config.model.init
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in encoder.lm.parameters())
    without = "" if config.data.prompts_pooled else " without prompts"
    lines = [
        f"encoder    {encoder.lm.config.model_type}, {format_count(parameters)} parameters, pooling "
        f"{encoder.pooling}{without}, dropout {model.dropout:g} ({model.attention_dropout:g} on attention)"
        + (f"; from {init}" if init else "")
    ]
    policy = (read_policy(init) if init else None) or {}
    if weights := describe_export(policy):
        lines.append(f"           {init}: {weights}")
    if init and own_tokenizer(init) is None:
        lines.append(f"           {init} has no tokenizer: whether the data has its tokens is not known")
    if policy.get("kept_head"):
        lines.append(f"           {init} keeps a head for use: training starts without it")
    if data.interface is not None and init:
        lines.append(f"           exports as {init}: {_kept(init, data.interface, encoder, data, config)}")
    if encoder.random_head and objective.masked_copies:
        random = "a random one is trained, and does not choose best/"
        lines.append(f"           {init} has no masked-language head: {random}")
    return lines


def _kept(init: str, interface: Interface, encoder: SentenceEncoder, data: Data, config: Config) -> str:
    """Say what exports take over from the starting model."""
    pooled = f"{encoder.pooling} pooling" + (", normalised" if interface.normalize else "")
    kept = [pooled, f"at most {interface.max_length or encoder.max_positions:,} tokens"]
    if config.data.prompts:
        kept.append("with the prompts of data.prompts")
    elif any(interface.prompts.values()):
        kept.append(f"prompts {', '.join(interface.prompts)} (not before training texts: data.prompts)")
    added = len(data.tokenizer) - len(own) if (own := own_tokenizer(init)) is not None else 0
    kept.append(f"its tokenizer with {added:,} more tokens" if added else "its tokenizer")
    return "; ".join(kept)


def _objective_lines(
    config: Config, reader: ShardReader, objective: WholeObjective, hidden_size: int
) -> list[str]:
    settings = config.objective
    if not objective.roles:
        return [f"objective  {settings.name}, {objective.masked_copies} masking(s) per sequence"]
    by_spec: dict[str, list[str]] = {}
    for role in objective.roles:
        by_spec.setdefault(config.augment.of_role(role), []).append(role)
    specs = "; ".join(f"{', '.join(roles)}: {spec}" for spec, roles in by_spec.items())
    pool = objective.pool(config.train.global_batch, dist.get_world_size())
    count = objective.negatives(pool)
    negatives = f"{count:,.0f} negatives per anchor" if count else "no negatives"
    lacking = [part for part in reader.parts if NEGATIVE in reader.columns and NEGATIVE not in part.columns]
    if lacking and (fewer := objective.negatives(pool, present=0.0)) < count:
        # of a set without the column; one that has it may have records without a negative, too
        negatives += f", {fewer:,.0f} in {' and '.join(str(part.folder) for part in lacking)}"
    if count and config.batch_sizes.growth_steps:
        negatives += " at the full batch"
    scope = "local" if objective.is_local else "global"
    lines = [
        f"objective  {settings.name}; {specs}; {negatives} ({len(objective.roles)} views x {pool:,} "
        f"sequences, {scope})"
    ]
    if (widths := settings.widths) and hidden_size not in widths:
        untrained = f"the whole width, {hidden_size}, untrained"
        lines.append(f"           warning: objective.matryoshka leaves {untrained}")
    if (guide := objective.guide) is not None:
        size = format_count(sum(parameter.numel() for parameter in guide.parameters()))
        kind = f"{guide.lm.config.model_type}, {size} parameters, pooling {guide.pooling}"
        lines.append(f"           the frozen encoder {settings.guide}: {kind}")
    if objective.kept_head is not None:
        lines.append("           its head is kept: evaluated and exported vectors are its output")
    return lines


def report(config: Config, progress: Progress, inputs: Inputs, evaluation: RunEvaluation) -> None:
    """Print the scores beside those at the start, and write report/summary.json."""
    random, own = evaluation.random, [task for one in evaluation.sets for task in one.tasks.items()]
    labels = LABELS | {task: LABELS.get(task, f"{task} ({metric} x 100)") for task, metric in own}
    run, steps = config.run_folder, progress.step
    records = [record for record in read_metrics(run / "metrics.jsonl") if "evaluation" in record]
    # empty if somebody has removed them
    scores = {record["step"]: record["evaluation"] for record in records}
    first, last = (records[0]["evaluation"], records[-1]["evaluation"]) if records else ({}, {})
    best = scores.get(progress.best_step, {})
    print(f"\n{'':54}{'at start':>12}{f'step {progress.best_step:,}':>14}{f'step {steps:,}':>14}")
    print(f"{'':54}{'':>12}{'(best)':>14}{'(last)':>14}")
    for name, label in labels.items():
        if name in last:
            label += f" ({last['partner_among']:,.0f} candidates)" if name == "partner_found" else ""
            if name == "heldout_mlm_loss" and (config.objective.mlm.later_rates or config.evaluate.mask_rate):
                label = f"held-out MLM loss at {config.heldout_rate:.3g} (nats)"
            start, at_best, end = (_number(name, of_step.get(name)) for of_step in (first, best, last))
            print(f"  {label:52}{'random' if name in random else start:>12}{at_best:>14}{end:>14}")
    by, has_best = labels.get(progress.best_by, progress.best_by), (run / "best").is_dir()
    if progress.best_step == 0 and has_best:
        print(f"\n  the start was the best by {by}: training has not improved it. best/ is the start")
    early = steps < config.train.steps and progress.lost(config.train.patience)
    if early:
        print(
            f"\n  stopped early (train.patience), after step {steps:,} of {config.train.steps:,}: the last "
            f"{progress.unimproved} evaluations were no better by {by} than step {progress.best_step:,}'s"
        )
    kind = "lowest" if progress.best_by in LOWER_IS_BETTER else "highest"
    which = f"best/, step {progress.best_step:,} ({kind} {by})" if has_best else "export/"
    print(
        f"\n  {steps:,} steps, {format_count(progress.tokens)} tokens in {format_seconds(progress.seconds)}; "
        f"the last step is exported to {run / 'export'}\n  evaluations of {run} use its {which}: "
        + shlex.join(["clearly", "sts", str(run)])
    )
    content = {
        "start": first,
        "best": best,
        "trained": last,
        "steps": steps,
        "tokens": progress.tokens,
        "seconds": progress.seconds,
        "best_step": progress.best_step,
        "best_by": progress.best_by,
        "stopped_early": early,
        "labels": labels,
        "random_at_start": list(random),
        "export": str(run / "export"),
        "weights": sha256_of(run / "export" / "model.safetensors"),
        "inputs": {name: value["sha256"] for name, value in inputs.items()},
    }
    path = run / "report" / "summary.json"
    try:
        make_folder(path.parent)
        replace_durably(path, (json.dumps(content, indent=2) + "\n").encode())
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"cannot write {path}: {why}. Make room, then --resume auto") from None


def _number(name: str, value: float | None) -> str:
    if value is None:  # not evaluated then, or not a number
        return "-"
    return f"{100 * value:.1f}%" if name == "partner_found" else f"{value:.2f}"
