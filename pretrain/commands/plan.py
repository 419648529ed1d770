"""`clearly plan`: what a run will need, before it is started.

Memory per rank by part, the largest micro-batch that fits, and time, at every ZeRO stage.
docs/training.md says what is measured, what is computed, and how far off it may be.

    clearly plan --config configs/clear_base.yaml --gpus 256 --gpu h200
    clearly plan --config C --gpus 64 --gpu a100-80 --data DATA --mfu 0.35
"""

from typing import Annotated, Any

from pydantic import Field

from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.config.recipe import DEFAULT_RECIPE, flags, load_config
from pretrain.config.run import Config
from pretrain.data.manifest import MANIFEST
from pretrain.start import estimate
from pretrain.start.estimate import BatchSize, ModelSize, assumed_batch, layout_of
from pretrain.telemetry.formats import columns, format_count

Positive = Annotated[float, Field(gt=0)]

GPUS = {
    "h200": (989.5, 67.0, 141.0),
    "h100": (989.5, 67.0, 80.0),
    "a100-80": (312.0, 19.5, 80.0),
    "a100-40": (312.0, 19.5, 40.0),
    "l40s": (362.05, 91.6, 48.0),
}
"""Name -> TFLOP/s in half precision without sparsity, and in float32, and GB of memory (NVIDIA's sheets)."""
MFU = 0.3
"""Share of the peak of the run's precision if nobody has measured it: assumed."""
MEASURED = {
    "h200": estimate.Reached(short=0.418, long=0.385, half=4000, host=0.0093, fp32=0.31, launches=0.00375)
}
"""What BERT-base reached, in half precision (docs/performance.md, "On a GPU"). `launches` is of one host:
with another, steps without graphs took up to 1.5 times as long."""


def plan(
    *,
    config: str | None = None,
    gpus: Annotated[int, Field(ge=1, le=65_536)] = 1,
    gpu: str = "h200",
    mfu: Annotated[float, Field(gt=0, le=1)] | None = None,
    length: cli.Count | None = None,
    peak: Positive | None = None,
    memory: Positive | None = None,
    **overrides: Any,
) -> None:
    """Print what a run will need: memory, the largest micro-batch and time.

    Args:
        config: the recipe, or the config.yaml of a run; default: what training would take.
        gpus: number of ranks, one a GPU.
        gpu: h200, h100, a100-80, a100-40, l40s.
        mfu: share of the peak that a step's work reaches, replay included, as `hfu` in the metrics.jsonl of a
            run; default: as BERT-base did on an H200; on others, and with peak, 0.3 is assumed.
        length: mean tokens of a sequence; none: of the data, else 24 for sentences, else max_length.
        peak: TFLOP/s of a GPU in the run's precision, without sparsity; none: the table's.
        memory: GB of a GPU; none: the table's.
        overrides: any key of the configuration, as for training.
    """
    if gpu not in GPUS:
        raise UserError(f"--gpu {gpu}: give one of {', '.join(GPUS)}")
    settings = load_config(config or DEFAULT_RECIPE, overrides)
    prepared = (settings.data_folder / MANIFEST).is_file()
    if {"data", "data.folder"} & overrides.keys() and not prepared:
        raise UserError(f"{settings.data_folder} holds no prepared data: prepare it, or leave out --data")
    tokenizer: Any = estimate.PlannedTokenizer(settings.data.prepare.vocabulary)
    longest, from_data = None, prepared and length is None
    if prepared:
        # these import torch and transformers: seconds, so not for --help and wrong flags
        from pretrain.data.tokenizer import load_tokenizer
        from pretrain.start.data import open_train

        tokenizer, reader = load_tokenizer(settings.data_folder / "tokenizer"), open_train(settings)
        if from_data:
            texts, longest = reader.num_sequences * len(reader.columns), reader.max_length
            length = max(1, reader.num_tokens // texts)
    batch, mean = assumed_batch(settings, length, longest)
    precision = settings.train.precision.replace("auto", "bf16")
    model = estimate.measure_model(settings, tokenizer, mean, precision)
    in_half, in_full, capacity = GPUS[gpu]
    speed, capacity = peak or (in_full if precision == "fp32" else in_half), memory or capacity
    if settings.train.micro_batch_tokens == "auto":
        tokens = estimate.fitting_micro_batch(settings, tokenizer, batch.longest, gpus, capacity * 1e9)
        settings.train.micro_batch_tokens = tokens
    flops, shares, said = gpus * speed * 1e12, [mfu or MFU] * 4, "--mfu" if mfu else "assumed"
    if mfu is None and peak is None and (reached := MEASURED.get(gpu)):
        layouts = [layout_of(settings, gpus, zero) for zero in range(4)]
        shares = [estimate.share_reached(reached, model, batch, layout, mean, flops) for layout in layouts]
        shares = [reached.fp32] * 4 if precision == "fp32" else shares
        said = f"as BERT-base reached on an {gpu}"
    frozen = f" and {format_count(model.frozen)} frozen" if model.frozen else ""
    lengths = "of the data" if from_data else "assumed: --data or --length say more"
    lines = [
        f"run      {settings.name}: {settings.objective.name}, {settings.train.steps:,} steps of "
        f"{batch.sequences:,} sequences, {precision}; {format_count(model.trained)} parameters{frozen}",
        f"tokens   {batch.tokens:,.0f} per step: {batch.masked_tokens:,.0f} masked, {batch.view_tokens:,.0f} "
        f"of {batch.views} views; mean length {mean} ({lengths})",
        f"device   {gpus:,} x {gpu}: {speed:,.4g} TFLOP/s, {capacity:,.1f} GB",
        f"speed    {shares[settings.train.zero]:.1%} of the peak ({said}), replayed work included",
    ]
    speeds = [flops * share for share in shares]
    stages = stage_table(settings, model, batch, gpus, estimate.USABLE * capacity * 1e9, speeds)
    legend = "GB: per rank at the peak, of which a GPU has 90%. s/step, run: computing, without exchanges"
    print(*lines, *details(settings, model, batch, gpus), "", stages, "", legend, sep="\n")


def details(config: Config, model: ModelSize, batch: BatchSize, ranks: int) -> list[str]:
    """Return the memory per rank, one part per line, at the recipe's ZeRO stage."""
    layout = layout_of(config, ranks, config.train.zero)
    need = estimate.memory(model, batch, layout)
    lines = ["", f"memory per rank at ZeRO {layout.zero}, GB"]
    lines += [f"  {need[name] / 1e9:9.3f}  {what}" for name, what in estimate.PARTS.items() if need[name]]
    budget = f"with train.micro_batch_tokens {layout.micro_batch_tokens:,}"
    lines.append(f"  {estimate.peak(need) / 1e9:9.3f}  at the peak, {budget}")
    if config.checkpoint.background and config.checkpoint.every:
        copied = estimate.checkpoint_bytes(model) / ranks
        lines.append(f"  {copied / 1e9:9.3f}  in the machine's own memory (checkpoint.background)")
    return lines


def stage_table(
    config: Config, model: ModelSize, batch: BatchSize, ranks: int, available: float, speeds: list[float]
) -> str:
    """Return a table with a row for each ZeRO stage that the run may have: all for AdamW, else 0 alone.

    available: bytes of a GPU. speeds: FLOP/s of all ranks, by stage.
    """
    rows = []
    steps = config.batch_sizes.full_steps(config.train.steps)
    for zero in range(4) if config.train.optimizer == "adamw" else (0,):
        layout = layout_of(config, ranks, zero)
        need = estimate.peak(estimate.memory(model, batch, layout))
        largest = estimate.largest_micro_batch(model, batch, layout, available)
        seconds = estimate.step_flops(model, batch, layout) / speeds[zero]
        hours = seconds * steps / 3600
        short = f"{60 * hours:.3g} min" if hours < 1 else f"{hours:.1f} h"
        cells = (
            str(zero),
            f"{need / 1e9:,.2f}" + " too much" * (need > available),
            "none" if largest is None else "all" if largest >= batch.largest_pass / ranks else f"{largest:,}",
            f"{seconds:.3g}",
            format_count(batch.tokens / seconds),
            short if hours < 48 else f"{hours / 24:,.1f} d",
        )
        rows.append(cells)
    return columns(("ZeRO", "GB", "largest micro-batch", "s/step", "tokens/s", "run"), rows)


if __name__ == "__main__":
    cli.run(plan, keys=flags, first=("config", "gpus", "gpu", "data", "length", "mfu", "memory"))
