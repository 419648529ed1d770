"""Print a plan: what was assumed, the memory of a rank by part, and the two tables."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from pretrain.estimate.communication import collectives
from pretrain.estimate.devices import CPU
from pretrain.estimate.memory import USABLE
from pretrain.estimate.scenario import Estimate, Scenario
from pretrain.telemetry.formats import format_count

COUNTS = [2**power for power in range(11)]
"""Numbers of devices of the second table."""
PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer's moments",
    "master": "second copy of this rank's weights (DeepSpeed, stages 1 and 2)",
    "gathered": "weights gathered in a step (stage 3)",
    "copies": "working copies of weights",
    "activations": "activations of a micro-batch",
    "loss": "tile of logits, vectors of the global batch",
    "reduction": "buckets of gradients, when activations are gone",
    "reserved": "buckets of gradients at all times (stage 3)",
    "snapshot": "copy of this rank's share of a checkpoint (checkpoint.background)",
}


def best_of(estimates: list[Estimate]) -> Estimate:
    """Return the fastest of those that fit; where none does, the one that needs the least memory."""
    fitting = [one for one in estimates if one.fits]
    if not fitting:
        return min(estimates, key=lambda one: one.memory.peak)
    return min(fitting, key=lambda one: one.duration.step)


def print_plan(scenario: Scenario, gpus: int, utilisation: float, said: str, console: Console) -> None:
    """Print the whole plan.

    Args:
        gpus: the number of devices that was asked for.
        utilisation: share of the peak. said: where it comes from.
    """
    for line in header(scenario, gpus, utilisation, said):
        console.print(line, soft_wrap=True)
    stages = stages_of(scenario, gpus, utilisation)
    asked = next(one for one in stages if one.layout.zero == scenario.config.train.zero)
    console.print(f"\nmemory of a rank at ZeRO {asked.layout.zero}, GB")
    for line in memory_lines(asked):
        console.print(line, soft_wrap=True)
    console.print(f"\nsent by a rank in a step at ZeRO {asked.layout.zero}, MB")
    for line in communication_lines(scenario, asked):
        console.print(line, soft_wrap=True)
    console.print(_table(scenario, stages, f"{gpus:,} x {scenario.device_name}, by ZeRO stage"))
    rows = []
    if scenario.device_name != CPU:  # this machine has no more cores than it was measured with
        rows = [best_of(stages_of(scenario, count, utilisation)) for count in COUNTS]
        console.print(_table(scenario, rows, "1 to 1,024, at the fastest stage that fits"))
    console.print(
        "GB: of a rank at the peak. micro-batch: the largest train.micro_batch_tokens that fits; all: a "
        "rank's tokens of a pass in one piece. wire, saving: shares of a step that ranks exchange, and that "
        "checkpoints take. run: of all steps, without evaluations and preparation.",
        soft_wrap=True,
    )
    if not all(one.lanes_suffice for one in [asked, *rows]):
        console.print(
            f"* more than data.lanes={scenario.config.data.lanes}: a run refuses it; set data.lanes to a "
            "larger divisor of train.global_batch"
        )


def stages_of(scenario: Scenario, ranks: int, utilisation: float) -> list[Estimate]:
    """Return the estimates at the stages that the run may have: all but AdamW have stage 0 alone."""
    stages = range(4) if scenario.config.train.optimizer == "adamw" else (0,)
    return [scenario.estimate(ranks, stage, utilisation) for stage in stages]


def header(scenario: Scenario, gpus: int, utilisation: float, said: str) -> list[str]:
    """Return what the plan is of, and what it takes for granted."""
    model, batch, device = scenario.model, scenario.batch, scenario.device
    config = scenario.config
    lengths = "of the data" if scenario.sampled else "assumed: --data or --length say more"
    frozen = f" and {format_count(model.frozen)} frozen" if model.frozen else ""
    objective = config.objective.name
    return [
        f"run      {config.name}: {objective}, {config.train.steps:,} steps of {batch.sequences:,} "
        f"sequences, {scenario.precision}; {format_count(model.trained)} parameters{frozen}",
        f"tokens   {batch.tokens:,.0f} a step: {batch.masked_tokens:,.0f} masked, {batch.view_tokens:,.0f} "
        f"of {batch.views} views; mean length {scenario.length} ({lengths})",
        f"device   {gpus:,} x {scenario.device_name}: {device.peak / 1e12:,.4g} TFLOP/s, "
        f"{device.memory / 1e9:,.1f} GB of which {USABLE:.0%} is planned with, "
        f"{device.link / 1e9:,.3g} GB/s in a node of {device.per_node:,}, {device.network / 1e9:,.3g} GB/s "
        "between nodes",
        f"speed    {utilisation:.1%} of the peak ({said}), replayed work included",
    ]


def memory_lines(estimate: Estimate) -> list[str]:
    """Return the memory of a rank, a part a line, without those that are nothing."""
    memory = estimate.memory
    lines = [
        f"  {getattr(memory, name) / 1e9:9.3f}  {meaning}"
        for name, meaning in PARTS.items()
        if getattr(memory, name)
    ]
    tokens = estimate.layout.micro_batch_tokens
    lines.append(f"  {memory.peak / 1e9:9.3f}  at the peak, with train.micro_batch_tokens {tokens:,}")
    if memory.host:
        lines.append(
            f"  {memory.host / 1e9:9.3f}  beside it, in the machine's own memory: {PARTS['snapshot']}"
        )
    return lines


def communication_lines(scenario: Scenario, estimate: Estimate) -> list[str]:
    """Return what a rank sends in a step, an exchange a line."""
    parts = collectives(scenario.model, scenario.batch, estimate.layout)
    if not parts:
        return ["  nothing: there is one rank"]
    ranks = estimate.layout.ranks
    return [f"  {part.sent(ranks) / 1e6:11,.1f}  {part.name} ({part.kind})" for part in parts]


def _table(scenario: Scenario, estimates: list[Estimate], title: str) -> Table:
    headings = [
        "ranks",
        "ZeRO",
        "GB",
        "micro-batch",
        "MB sent",
        "s/step",
        "wire",
        "saving",
        "tokens/s",
        "MFU",
    ]
    headings += ["run"] + ["cost"] * bool(scenario.price)
    table = Table(*headings, title=title, box=SIMPLE, title_justify="left", pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for one in estimates:
        table.add_row(*_cells(scenario, one))
    return table


def _cells(scenario: Scenario, one: Estimate) -> list[str]:
    time, ranks = one.duration, one.layout.ranks
    cells = [
        f"{ranks:,}" + "*" * (not one.lanes_suffice),
        str(one.layout.zero),
        f"{one.memory.peak / 1e9:,.2f}" + " too much" * (not one.fits),
        _largest(one),
        f"{one.sent / 1e6:,.0f}",
        f"{time.step:.3g}",
        f"{time.communication / time.step:.0%}",
        f"{time.checkpoint / time.step:.0%}",
        format_count(time.tokens_per_second),
        f"{time.mfu(scenario.device.peak * ranks):.1%}",
        f"{one.hours:,.1f} h" if one.hours < 48 else f"{one.hours / 24:,.1f} d",
    ]
    return cells + [f"{one.cost:,.0f}"] * bool(scenario.price)


def _largest(one: Estimate) -> str:
    if one.largest is None:
        return "none"
    return "all" if one.largest >= one.all_tokens else f"{one.largest:,}"
