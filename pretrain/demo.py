"""`make demo`: from raw text to an evaluated, exported encoder, by the commands that a user would type."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from pretrain.common import cli
from pretrain.common.environment import choose_accelerator
from pretrain.common.errors import UserError
from pretrain.common.processes import free_port
from pretrain.config.recipe import RECIPES

ROOT = Path(__file__).resolve().parents[1]
RECIPE = RECIPES / "demo.yaml"


def main(*, source: str = "embedded", eval_data: str = "", run: str = "", data: str = "") -> int:
    """Prepare a corpus, pretrain, evaluate and export.

    Args:
        source: `embedded`, or a text, jsonl or parquet file or glob, or a Hugging Face dataset.
        eval_data: folder of the benchmarks, for an evaluation on STS.
        run: run folder; a demo that was interrupted continues from its last checkpoint.
        data: folder for the prepared data.
    """
    choose_accelerator()  # children inherit it
    started = time.monotonic()
    tag = "demo" if source == "embedded" else "demo-" + hashlib.sha256(source.encode()).hexdigest()[:8]
    folder, data = run or f"runs/{tag}", data or f"data/{tag}"
    if (Path(folder) / "report" / "summary.json").exists():
        raise UserError(
            f"{folder} holds a finished demo; remove it to run another, or use it: python -m finetune.sts "
            f"{folder}"
        )
    step(1, "prepare: clean, split, de-duplicate, train a tokenizer, write shards")
    call("-m", "pretrain.prepare", "--config", str(RECIPE), "--source", source, "--out", data)
    step(2, "pretrain: masked-language and contrastive loss, on-line augmentation; export")
    call(
        "--log_level",
        "error",
        "--master_port",  # DeepSpeed's own is taken where another run trains on this machine
        str(free_port()),
        str(ROOT / "pretrain" / "main.py"),
        "--config",
        str(RECIPE),
        "--data",
        data,
        "--run",
        folder,
        "--resume",
        "auto",
        *(["--eval-data", eval_data] if eval_data else []),
        launcher="deepspeed",
    )
    if not (Path(folder) / "report" / "summary.json").exists():
        raise UserError("the run stopped before its last step; the same command continues it")
    report = json.loads((Path(folder) / "report" / "summary.json").read_text())
    place = Path(folder) / "report" / "page.html"
    if eval_data:
        step(3, "evaluate: seven semantic textual similarity tasks, Spearman x 100")
        call("-m", "finetune.sts", folder, "--eval-data", eval_data)
    step(4 if eval_data else 3, "show: curves, a batch, and what search finds before and after training")
    call("-m", "pretrain.show", folder, "--out", str(place))
    step(5 if eval_data else 4, f"done in {(time.monotonic() - started) / 60:.1f} minutes")
    print(f"  encoder        {report['export']}  (loads in transformers and sentence-transformers)")
    print(f"  page           {place.resolve()}")
    print(f"  run            {folder}  (metrics.jsonl, tensorboard, checkpoints, best)")
    print(f"  data           {data}")
    print(f"  curves         tensorboard --logdir {folder}/tensorboard")
    print(f"  see a batch    python -m pretrain.inspect --config demo --data {data}")
    return 0


def step(number: int, text: str) -> None:
    print(f"\n== {number}. {text}", flush=True)


def call(*words: str, launcher: str | None = None) -> None:
    """Print a command of the project and run it in a process of its own."""
    program = str(Path(sys.executable).with_name(launcher)) if launcher else sys.executable
    print("$ " + shlex.join([launcher or "python", *words]), flush=True)
    code = subprocess.run(
        [program, *words], check=False, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ).returncode
    if code:
        raise UserError(f"that command failed with status {code}; its message is above")


if __name__ == "__main__":
    cli.run(main)
