"""`python -m pretrain.plan`: what a run will need, before it is started.

Memory of a rank by part, the largest micro-batch that fits, tokens a second, bytes on the wire, time and
cost: for the asked number of GPUs at every ZeRO stage, and for 1 to 1,024 GPUs. docs/planning.md says what is
measured, what is computed, and how far off it may be.

    python -m pretrain.plan --config configs/clear_base.yaml --gpus 256 --gpu h200
    python -m pretrain.plan --config C --gpus 64 --gpu a100-80 --data DATA --measured runs/NAME --price 1.5
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from rich.console import Console

from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.config.recipe import DEFAULT_RECIPE, flags, load_config
from pretrain.data.manifest import MANIFEST
from pretrain.estimate.devices import CPU, device_named, overridden

Positive = Annotated[float, Field(gt=0)]

MFU = 0.3
"""Share of the peak where nobody has measured it: assumed."""
MOST_GPUS = 65_536


def plan(
    *,
    config: str | None = None,
    gpus: Annotated[int, Field(ge=1, le=MOST_GPUS)] = 1,
    gpu: str = "h200",
    mfu: Annotated[float, Field(gt=0, le=1)] | None = None,
    measured: Path | None = None,
    length: cli.Count | None = None,
    price: Annotated[float, Field(ge=0)] = 0.0,
    disk: Positive = 1.0,
    peak: Positive | None = None,
    memory: Positive | None = None,
    network: Positive | None = None,
    **overrides: Any,
) -> None:
    """Print what a run will need: memory, the largest micro-batch, tokens a second, time and cost.

    Args:
        config: the recipe, or the config.yaml of a run; default: what training would take.
        gpus: number of ranks, one a GPU.
        gpu: h200, h100, a100-80, a100-40, l40s; cpu: this machine.
        mfu: share of the peak that a step's work reaches, replay included; none: 0.3, cpu: measured.
        measured: folder of a finished run of this kind, whose share of the peak is taken.
        length: mean tokens of a sequence; none: of the data, else 24 for sentences, else max_length.
        price: price of a GPU for an hour.
        disk: GB/s at which checkpoints are written.
        peak: TFLOP/s of a GPU at bfloat16 products, without sparsity; none: the table's.
        memory: GB of a GPU; none: the table's.
        network: Gb/s of a GPU between nodes; none: the table's.
        overrides: any key of the configuration, as for training.

    Raises:
        UserError: a flag, the configuration, or the data is wrong.
    """
    if mfu is not None and measured is not None:
        raise UserError("--mfu and --measured both say what share of the peak is reached: give one of them")
    device = None if gpu == CPU else device_named(gpu, peak, memory, network)
    settings = load_config(config or DEFAULT_RECIPE, overrides)
    if {"data", "data.folder"} & overrides.keys() and not (settings.data_folder / MANIFEST).is_file():
        raise UserError(
            f"{settings.data_folder} holds no prepared data: leave out --data, or prepare it first"
        )
    # these import torch and transformers: seconds, so not for --help and wrong flags
    from pretrain.estimate.machine import this_machine, utilisation_of
    from pretrain.estimate.measure import measure_utilisation
    from pretrain.estimate.scenario import open_scenario, precision_of
    from pretrain.estimate.tables import print_plan

    share = mfu if measured is None else utilisation_of(measured)
    precision = precision_of(settings, gpu != CPU)
    if device is None:
        device = overridden(this_machine(gpus, settings.train.threads, precision), peak, memory, network)
    scenario = open_scenario(settings, length, gpu, device, precision, price, disk * 1e9)
    said = "assumed" if measured is None and mfu is None else f"of {measured}" if measured else "--mfu"
    if share is None and gpu == CPU:
        tokens = max(scenario.length, min(settings.train.micro_batch_tokens, 4096))
        share = measure_utilisation(settings, tokens, scenario.length, precision, device.peak)
        said = "measured here"
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, 118)  # the tables'; lines wrap where the terminal does
    print_plan(scenario, gpus, share or MFU, said, console)


if __name__ == "__main__":
    cli.run(
        plan,
        keys=flags,
        first=("config", "gpus", "gpu", "data", "length", "mfu", "measured", "price", "memory", "network"),
    )
