"""Does the contrastive loss teach anything? CLEAR and its baselines at a size that trains on two CPU cores.

    python tests/benchmarks/bench_learning.py --data PREPARED --out runs/learning --steps 1200 --seeds 1
    python tests/benchmarks/bench_learning.py --data PREPARED --out runs/learning --steps 400 --seeds 1,2,3

For every seed: masked language modelling alone; with del-span,reorder; with del-word; all at the same number
of steps; and masked language modelling alone for as long as del-span,reorder took. Then what is pooled from
[CLS], with dropout and without, and the effects of a projection head and of the temperature apart (`--systems
"A;B"` chooses). Every run is `pretrain/main.py` with configs/clear_micro.yaml, so an interrupted benchmark
goes on where it was. Prints a table (Spearman x 100 by [CLS] and by mean pooling) and writes table.md,
results.json and curves.png below OUT. CLEAR_DATA must point at a folder with SentEval's STS data.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fire
import numpy as np
from bench_helpers import processor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

# Crops at random rates: what is left of a sentence no longer tells its length.
VARIED = "crop:rate=0.4|crop:rate=0.6|crop:rate=0.8|crop:rate=1.0,del-span,reorder"
NO_DROPOUT = {"model.dropout": "0", "model.attention_dropout": "0"}
SYSTEMS: dict[str, dict[str, str]] = {
    "MLM": {"objective.name": "mlm"},
    "MLM+del-span+reorder": {"aug": "del-span,reorder"},
    "MLM+del-word": {"aug": "del-word"},
    "MLM, same time": {"objective.name": "mlm"},
    "[CLS] MLM+del-span+reorder": {"aug": "del-span,reorder", "model.pooling": "cls"},
    "[CLS] MLM+del-span+reorder, no dropout": {
        "aug": "del-span,reorder",
        "model.pooling": "cls",
        **NO_DROPOUT,
    },
    "[CLS] the same, lengths varied": {"aug": VARIED, "model.pooling": "cls", **NO_DROPOUT},
    "MLM+del-span+reorder, no dropout": {"aug": "del-span,reorder", **NO_DROPOUT},
    "MLM, no dropout": {"objective.name": "mlm", **NO_DROPOUT},
    "MLM+del-span+reorder through a head": {
        "aug": "del-span,reorder",
        "objective.contrastive.projection_layers": "2",
    },
    "MLM+del-span+reorder at 0.1": {"aug": "del-span,reorder", "objective.contrastive.temperature": "0.1"},
}


def main(
    data: str,
    out: str = "runs/learning",
    steps: str = "1200",
    seeds: str = "1",
    systems: str = "",
    threads: str = "1",
    parallel: str = "2",
) -> None:
    """Run what is not there yet, judge, tabulate. `parallel` runs at a time with `threads` threads each."""
    chosen = [s.strip() for s in systems.split(";")] if systems else list(SYSTEMS)
    folder, jobs = Path(out) / f"{steps}-steps", []
    for seed in seeds.split(","):
        jobs += [(name, int(seed)) for name in chosen]
    # "Same time" must know how long the others took, so it comes in a second wave.
    with ThreadPoolExecutor(int(parallel)) as pool:
        for late in (False, True):
            wave = [job for job in jobs if ("same time" in job[0]) == late]
            for _ in pool.map(lambda job: train(folder, data, int(steps), *job, int(threads)), wave):
                pass
    rows = [judge(folder, name, seed) for name, seed in jobs]
    rows.append(untrained(folder, chosen[0], int(seeds.split(",")[0])))
    (folder / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    table = tabulate(rows, steps)
    (folder / "table.md").write_text(table + "\n")
    print(table)
    plot(folder, jobs)
    print(f"curves: {folder / 'curves.png'}")


def run_folder(folder: Path, name: str, seed: int) -> Path:
    slug = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
    return folder / f"{slug}-seed{seed}"


def train(folder: Path, data: str, steps: int, name: str, seed: int, threads: int) -> None:
    run = run_folder(folder, name, seed)
    if (run / "report" / "summary.json").exists():
        return
    if "same time" in name:
        steps = round(
            steps
            * cost_ratio(*(run_folder(folder, other, seed) for other in ("MLM+del-span+reorder", "MLM")))
        )
    quarter = max(1, steps // 4)
    flags = {
        "config": str(ROOT / "configs" / "clear_micro.yaml"),
        "augment.excerpt": "none",
        "data": data,
        "run": str(run),
        "resume": "auto",
        "steps": steps,
        "train.warmup_steps": steps // 10,
        "train.seed": seed,
        "train.threads": threads,
        "train.precision": "bf16",
        "evaluate.every": quarter,
        "checkpoint.every": quarter,
        **SYSTEMS[name],
    }
    words = [f"--{key}={value}" for key, value in flags.items()]
    run.mkdir(parents=True, exist_ok=True)
    print(f"{name}, seed {seed}: {steps} steps", flush=True)
    with open(run / "log.txt", "a") as log:
        subprocess.run(
            [sys.executable, str(ROOT / "pretrain" / "main.py"), *words],
            check=True,
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )


def step_times(run: Path) -> np.ndarray:
    """float64[S, 2]: number and wall-clock time of the steps that were written down."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return np.array([(r["step"], r["wall_time"]) for r in records if "loss" in r])


def cost_ratio(costly: Path, cheap: Path) -> float:
    """How many steps of `cheap` take as long as one of `costly`: by the time in which both ran side by side,
    where there is such a time, since then both had the same machine; else by the means of the whole runs."""
    slow, fast = step_times(costly), step_times(cheap)
    begin, end = max(slow[0, 1], fast[0, 1]), min(slow[-1, 1], fast[-1, 1])
    if end - begin < 120:
        return float((np.ptp(slow[:, 1]) / np.ptp(slow[:, 0])) / (np.ptp(fast[:, 1]) / np.ptp(fast[:, 0])))
    done = [
        np.interp(end, times[:, 1], times[:, 0]) - np.interp(begin, times[:, 1], times[:, 0])
        for times in (slow, fast)
    ]
    return float(done[1] / done[0])


def sts(model: Path, target: Path) -> dict:
    """Average of the seven tasks and STS-B dev, by both poolings."""
    from pretrain.benchmarks.sts_tasks import SEVEN_TASKS

    poolings = ("cls", "mean")
    if not target.exists():
        subprocess.run(
            [
                sys.executable,
                "-m",
                "finetune.sts",
                str(model),
                "--pooling",
                ",".join(poolings),
                "--out",
                str(target),
            ],
            check=True,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    scores = {}
    for pooling in poolings:
        tasks = json.loads((target / f"sts-{pooling}.json").read_text())["tasks"]
        scores[f"{pooling}_average"] = float(np.mean([tasks[task]["value"] for task in SEVEN_TASKS]))
        scores[f"{pooling}_dev"] = tasks["STS-B-dev"]["value"]
    return scores


def judge(folder: Path, name: str, seed: int) -> dict:
    run = run_folder(folder, name, seed)
    summary = json.loads((run / "report" / "summary.json").read_text())
    return {
        "system": name,
        "seed": seed,
        "steps": summary["steps"],
        "minutes": summary["seconds"] / 60,
        "tokens": summary["tokens"],
        "mlm_loss": summary["trained"]["heldout_mlm_loss"],
        **sts((run / "export").resolve(), (run / "sts").resolve()),
    }


def untrained(folder: Path, name: str, seed: int) -> dict:
    """The same architecture with random weights."""
    import torch
    import yaml
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    from pretrain.model.architectures import config_from

    target, run = folder / "untrained", run_folder(folder, name, seed)
    if not (target / "config.json").exists():
        model = yaml.safe_load((run / "config.yaml").read_text())["model"]
        architecture = {k: v for k, v in model.items() if k not in ("init", "pooling") and v is not None}
        architecture.setdefault("intermediate_size", 4 * model["hidden_size"])
        tokenizer = AutoTokenizer.from_pretrained(run / "export")
        torch.manual_seed(seed)
        AutoModelForMaskedLM.from_config(config_from(architecture, tokenizer)).save_pretrained(target)
        tokenizer.save_pretrained(target)
    loss = json.loads((run / "report" / "summary.json").read_text())["start"]["heldout_mlm_loss"]
    return {
        "system": "untrained",
        "seed": seed,
        "steps": 0,
        "minutes": 0.0,
        "tokens": 0,
        "mlm_loss": loss,
        **sts(target.resolve(), (folder / "untrained.json").resolve()),
    }


def tabulate(rows: list[dict], steps: str) -> str:
    """Mean (and standard deviation over seeds, where there are several) as a Markdown table."""
    lines = [
        f"| system ({steps} steps) | steps | minutes | held-out MLM | STS-B dev [CLS] | STS-B dev mean | 7 "
        "STS [CLS] "
        "| 7 STS mean |",
        "|---|---|---|---|---|---|---|---|",
    ]
    names = sorted({r["system"] for r in rows}, key=["untrained", *SYSTEMS].index)
    for name in names:
        group = [r for r in rows if r["system"] == name]

        def cell(key: str, digits: int = 1, group=group) -> str:
            values = [r[key] for r in group]
            spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
            return f"{np.mean(values):.{digits}f}{spread}"

        lines.append(
            f"| {name} | {cell('steps', 0)} | {cell('minutes')} | {cell('mlm_loss', 2)} | "
            f"{cell('cls_dev')} | "
            f"{cell('mean_dev')} | {cell('cls_average')} | {cell('mean_average')} |"
        )
    seeds = sorted({r["seed"] for r in rows})
    lines.append(f"\nSeeds {seeds}; minutes of training, evaluations excluded; {processor()}.")
    return "\n".join(lines)


def plot(folder: Path, jobs: list[tuple[str, int]]) -> None:
    """Losses over steps of the first seed's runs, one panel each."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = ("mlm", "contrastive", "length_variance", "stsb-dev")
    titles = (
        "masked-language loss (training)",
        "contrastive loss",
        "R² of length from the vector",
        "STS-B dev, own pooling",
    )
    figure, axes = plt.subplots(1, len(panels), figsize=(19, 4.2))
    first = jobs[0][1]
    for name, seed in jobs:
        if seed != first:
            continue
        lines = [
            json.loads(line)
            for line in (run_folder(folder, name, seed) / "metrics.jsonl").read_text().splitlines()
        ]
        for axis, panel in zip(axes, panels):
            points = [
                (r["step"], value)
                for r in lines
                if (value := r.get("loss", {}).get(panel, r.get(panel, r.get("evaluation", {}).get(panel))))
                is not None
            ]
            if points:
                axis.plot(*zip(*points), label=name, linewidth=1.2, color=f"C{list(SYSTEMS).index(name)}")
    for axis, title in zip(axes, titles):
        axis.set_title(title)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "curves.png", dpi=110)


if __name__ == "__main__":
    fire.Fire(fire.decorators.SetParseFn(str)(main))
