"""What the whole run will take on this machine, by the steps that a dry run has done."""

from collections.abc import Iterable
from typing import Any

from pretrain.telemetry.formats import format_count, format_seconds


def whole_run(
    rows: Iterable[dict[str, Any]], steps: int, ranks: int, full_steps: float | None = None
) -> list[str]:
    """Return the lines with which a dry run ends: time of all steps, and memory.

    Args:
        rows: of its metrics.jsonl, a row a step. The last step counts: the first compiles kernels, and makes
            the optimizer's states.
        steps: of the whole run.
        full_steps: how many steps of the whole batch they are worth, where it grows; None: as many.

    >>> rows = [{"step": 1, "loss": {}, "seconds": 9.0, "tokens": 50},
    ...         {"step": 2, "loss": {}, "seconds": 11.0, "tokens": 100, "memory": {"peak_gb": 1.25}}]
    >>> print("\\n".join(whole_run(rows, 1000, 2)))
      whole run: 1,000 steps of 2.00 s, 25 tokens/s, are 33:20, without evaluations and checkpoints
      memory: 1.2 GB a rank at the peak, 2.5 GB for 2 ranks; other machines: clearly plan
    """
    trained = [row for row in rows if "loss" in row]
    last = trained[-1]
    before: dict[str, Any] = trained[-2] if len(trained) > 1 else {"seconds": 0.0, "tokens": 0}
    seconds = last["seconds"] - before["seconds"]
    rate = format_count((last["tokens"] - before["tokens"]) / max(seconds, 1e-9))
    use = last.get("memory", {})
    growing = " at the full batch" if full_steps is not None and full_steps < steps else ""
    lines = [
        f"  whole run: {steps:,} steps of {seconds:.2f} s{growing}, {rate} tokens/s, are "
        f"{format_seconds((full_steps or steps) * seconds)}, without evaluations and checkpoints"
    ]
    peak = use.get("gpu_peak_gb", use.get("peak_gb"))
    if peak is not None:
        kind = "GPU memory" if "gpu_peak_gb" in use else "memory"
        lines.append(
            f"  {kind}: {peak:.1f} GB a rank at the peak, {ranks * peak:.1f} GB for {ranks:,} "
            f"rank{'s' * (ranks > 1)}; other machines: clearly plan"
        )
    return lines
