"""What a run says before it starts and when it is done, and its speed as a share of the machine's."""

from __future__ import annotations

import json
import logging
import warnings
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist

from augment.spec.grammar import needs_text
from pretrain.common.durable import replace_durably
from pretrain.common.run_folder import describe_export
from pretrain.config.run import Config
from pretrain.data import idle_augmentations
from pretrain.data.damage import first_sound
from pretrain.data.pipelines import build_for
from pretrain.export.folder import read_policy
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.precision import DTYPES
from pretrain.objectives import WholeObjective, view_specs
from pretrain.start.inputs import Inputs
from pretrain.start.length_shortcut import LengthShortcut
from pretrain.start.setup import Data, threads_of_user
from pretrain.telemetry.metrics_file import read_metrics
from pretrain.telemetry.run import Telemetry, format_count, format_seconds
from pretrain.telemetry.throughput import FlopsMeter, measure_peak_flops, model_flops_per_token
from pretrain.trainer import Progress


def quiet_libraries() -> None:
    """Leave the terminal to the run: libraries speak up from warnings on, and DeepSpeed's from errors on."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for name in ("DeepSpeed", "deepspeed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)


def flops_meter(
    config: Config, encoder: SentenceEncoder, objective: WholeObjective, data: Data
) -> FlopsMeter:
    """FLOPs a token of a step and the peak of all devices, for model FLOPs utilisation. Call on every rank.

    The views' first pass, without gradients, is work that only the method adds: it counts as repeated.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    peak = torch.tensor(
        [measure_peak_flops(device, DTYPES[config.train.precision])], dtype=torch.float64, device=device
    )
    dist.all_reduce(peak)
    mean = max(1, round(data.train.num_tokens / data.train.num_sequences))
    copies, views = objective.masked_copies, len(objective.roles)
    # of a step's tokens, those of masked originals; views are somewhat shorter
    share = copies / max(1, copies + views)
    per_token = model_flops_per_token(encoder.lm, [mean], config.objective.mlm.rate * share)
    return FlopsMeter(per_token, float(peak), repeated_per_token=(1 - share) * per_token / 3)


def announce(
    config: Config,
    recipe: Path | str | None,
    explicit: bool,
    telemetry: Telemetry,
    data: Data,
    encoder: SentenceEncoder,
    objective: WholeObjective,
    threads: int,
    resumed: Path | None,
    start: int,
    lengths: LengthShortcut | None,
) -> None:
    """Say what is about to run, so that a wrong setting is seen before it costs a day."""
    world, train = dist.get_world_size(), config.train
    asked = " (OMP_NUM_THREADS)" if config.train.threads is None and threads_of_user() else ""
    where = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {threads} threads a rank{asked}"
    )
    lines = []
    if not explicit:
        there = "which a GPU leaves mostly idle" if torch.cuda.is_available() else "there is no GPU here"
        lines.append(
            f"no --config given: using {recipe} ({there}; configs/clear_base.yaml has the paper's size)"
        )
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in encoder.lm.parameters())
    epochs = train.steps * train.global_batch / max(1, data.train.num_sequences)
    lines += [
        f"run        {config.run_folder}" + (f", resumed from {resumed} at step {start}" if resumed else ""),
        f"devices    {world} x {where}; ZeRO {train.zero}, {train.precision}",
        f"data       {data.train.folder}: {data.train.num_sequences:,} sequences, {data.train.num_tokens:,} "
        "tokens, "
        f"unit {data.train.unit}; {epochs:.3g} epochs in {train.steps:,} steps",
        f"schedule   {train.schedule}, peak {train.lr:g}, warm-up over {train.warmup_steps:,} of "
        f"{train.steps:,} steps",
        f"encoder    {encoder.lm.config.model_type}, {format_count(parameters)} parameters, pooling "
        f"{encoder.pooling}, dropout "
        f"{config.model.dropout:g} ({config.model.attention_dropout:g} on attention)"
        + (f"; from {config.model.init}" if config.model.init else ""),
    ]
    policy = (read_policy(config.model.init) if config.model.init else None) or {}
    if weights := describe_export(policy):
        lines.append(f"           {config.model.init}: {weights}")
    if policy.get("kept_head"):
        lines.append(
            f"           {config.model.init} keeps a head for use: it is left behind, training starts from "
            "the encoder"
        )
    if objective.roles:
        by_spec: dict[str, list[str]] = {}
        for role in objective.roles:
            by_spec.setdefault(config.augment.of_role(role), []).append(role)
        specs = "; ".join(f"{', '.join(roles)}: {spec}" for spec, roles in by_spec.items())
        pool = objective.pool(train.global_batch, world)
        negatives = (
            f"{count:,} negatives per anchor" if (count := objective.negatives(pool)) else "no negatives"
        )
        lines.append(
            f"objective  {config.objective.name}; {specs}; {negatives} "
            f"({len(objective.roles)} views x {pool:,} sequences, "
            f"{'local' if objective.is_local else 'global'})"
        )
        if lengths is not None:
            lines.append(f"lengths    {lengths}")
        if objective.kept_head is not None:
            lines.append("head       kept: evaluated and exported vectors are its output")
    else:
        lines.append(f"objective  {config.objective.name}, {objective.masked_copies} masking(s) a sequence")
    if torch.cuda.is_available() and config.model.attention_dropout > 0 and find_spec("flash_attn") is None:
        lines.append(
            "attention  dropout without flash-attn: one dense product for each length, slower than its "
            "kernel; "
            "pip install flash-attn, or --model.attention_dropout 0"
        )
    lines.append(
        f"batch      {train.global_batch:,} sequences a step, up to {train.micro_batch_tokens:,} tokens in "
        "one pass"
    )
    for line in lines:
        telemetry.say(line)


def announce_idle(config: Config, telemetry: Telemetry, data: Data) -> None:
    """Say which members of sets of augmentations never apply to this data. config: of what the loader reads
    (`pretrain.cache.views.trains_on`)."""
    specs = {view.role: view.augmentation for view in view_specs(config) if needs_text(view.augmentation)}
    lines = idle_augmentations.of_cache(data.train.manifest) if "cache" in data.train.manifest else []
    if specs and dist.get_rank() == 0:
        pipelines = [
            (role, build_for(data.train, spec, data.vocabulary, data.synonyms))
            for role, spec in specs.items()
        ]
        lines += idle_augmentations.of_sentences(pipelines, first_sound(data.train).annotation)
    for line in lines:
        telemetry.say(line)


LABELS = {
    "heldout_mlm_loss": "held-out MLM loss (nats)",
    "partner_found": "view finds its partner",
    "partner_loss": "loss of finding it (nats)",
    "stsb-dev": "STS-B dev (Spearman x 100)",
}


def _number(name: str, value: float | None) -> str:
    if value is None:  # not evaluated then, or not a number
        return "-"
    return f"{100 * value:.1f}%" if name == "partner_found" else f"{value:.2f}"


def report(config: Config, progress: Progress, export: Path, inputs: Inputs) -> dict:
    """Print the scores beside those of the model as it started, and write report/summary.json; returns what
    it holds."""
    records = [
        record for record in read_metrics(config.run_folder / "metrics.jsonl") if "evaluation" in record
    ]
    # a full disk may have silenced the metrics
    scores = {record["step"]: record["evaluation"] for record in records}
    first, last = (records[0]["evaluation"], records[-1]["evaluation"]) if records else ({}, {})
    best = scores.get(progress.best_step, {})
    print(f"\n{'':34}{'at start':>12}{f'step {progress.best_step:,}':>14}{f'step {progress.step:,}':>14}")
    print(f"{'':34}{'':>12}{'(best)':>14}{'(last)':>14}")
    for name, label in LABELS.items():
        if name in last:
            label += f" among {last['partner_among']:,.0f}" if name == "partner_found" else ""
            numbers = (
                _number(name, first.get(name)),
                _number(name, best.get(name)),
                _number(name, last[name]),
            )
            print(f"  {label:32}{numbers[0]:>12}{numbers[1]:>14}{numbers[2]:>14}")
    by = LABELS.get(progress.best_by, progress.best_by)
    kept = (config.run_folder / "best").is_dir()
    if progress.best_step == 0 and kept:
        print(
            f"\n  the start was the best by {by}: training has not improved it. best/ is the model as "
            "it started"
        )
    stands_for = (
        f"best/, step {progress.best_step:,} by {by}" if kept else "export/, since it has no best/ any more"
    )
    print(
        f"\n  {progress.step:,} steps, {format_count(progress.tokens)} tokens in "
        f"{format_seconds(progress.seconds)}; the last "
        f"step is exported to {export}\n  {config.run_folder} stands for its {stands_for}: "
        f"python -m finetune.sts {config.run_folder}"
    )
    summary = {
        "start": first,
        "best": best,
        "trained": last,
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": progress.seconds,
        "best_step": progress.best_step,
        "best_by": progress.best_by,
        "export": str(export),
        "inputs": {name: value["sha256"] for name, value in inputs.items()},
    }
    folder = config.run_folder / "report"
    folder.mkdir(exist_ok=True)
    replace_durably(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary
