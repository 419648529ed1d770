"""Share with the benchmarks the machine's name, sentences, a small model, and turns of us and of a peer."""

import argparse
import gzip
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

Turn = Callable[[int], tuple[int, float]]
"""Runs one step to warm up and the given number timed; (items, seconds of CPU) of the timed ones."""


def processor() -> str:
    """Return the model of the processor and the number of cores."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} cores"


def load_sentences(count: int) -> tuple[list[str], str]:
    """Wikipedia's sentences where CLEAR_DATA has them, else made-up ones of their lengths."""
    data = os.environ.get("CLEAR_DATA")
    path = Path(data, "text", "wiki_sentences_200k.txt.gz") if data else None
    if path is not None and path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [line.strip() for _, line in zip(range(count), file, strict=False)], "Wikipedia sentences"
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("etaoinshrdlu"), random.integers(2, 10))) for _ in range(20_000)]
    ranks = np.minimum(random.zipf(1.3, (count, 60)) - 1, len(words) - 1)
    lengths = np.clip(random.lognormal(3.0, 0.5, count).astype(int), 3, 60)
    return [" ".join(words[r] for r in row[:n]) + "." for row, n in zip(ranks, lengths)], "made-up sentences"


def architecture() -> dict:
    return {
        "type": "bert",
        "layers": 4,
        "hidden_size": 256,
        "heads": 4,
        "intermediate_size": 1024,
        "max_positions": 128,
        "dropout": 0.1,
        "attention_dropout": 0.1,
    }


def small_step(tokenizer, objective: dict, options: argparse.Namespace):
    """What computes the gradients of a step, and what updates by them, for a model of `architecture`."""
    import torch

    from pretrain.config.recipe import validate_config
    from pretrain.model.encoder import build_encoder
    from pretrain.objectives import build_objective
    from pretrain.step.engine import build_engine
    from pretrain.step.model import SentenceModel
    from pretrain.step.update import Update
    from pretrain.step.whole_batch import WholeBatch

    sizes = {key: value for key, value in architecture().items() if key != "intermediate_size"}
    train = {"global_batch": options.batch, "steps": 10_000, "zero": 0, "precision": options.precision}
    config = validate_config(
        {
            "name": "bench",
            "data": {"lanes": 1},
            "model": sizes | {"pooling": "mean"},
            "objective": objective,
            "train": train,
        },
        "benchmark",
    )
    torch.manual_seed(0)
    encoder = build_encoder(architecture(), tokenizer, "mean")
    engine = build_engine(SentenceModel(encoder, build_objective(config, encoder), options.precision), config)
    engine.train()
    return WholeBatch(engine, 0, config.train.micro_batch), Update(engine, config.train.clip)


def timed(step: Callable[[], int], steps: int) -> tuple[int, float]:
    step()
    start = time.process_time()
    items = sum(step() for _ in range(steps))
    return items, time.process_time() - start


def library_turn(train: Callable[[dict, list], None], batch: int, precision: str, steps: int) -> float:
    """CPU seconds of `steps` steps of a trainer of transformers, from the end of its first step.

    train: trains with the given arguments and callbacks.
    """
    import tempfile

    import transformers

    times: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, arguments, state, control, **_):
            times.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "output_dir": folder,
            "per_device_train_batch_size": batch,
            "max_steps": steps + 1,
            "use_cpu": True,
            "bf16": precision == "bf16",
            "learning_rate": 6e-4,
            "report_to": [],
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "seed": 0,
        }
        train(arguments, [Clock()])
    return times[-1] - times[0]


def contest(mine: Turn, theirs: Turn, options: argparse.Namespace) -> tuple[float, float, list[float]]:
    """Take turns; return the median rates of both sides, items a second, and the ratio of every round."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):  # else the peer takes itself for a distributed run
        os.environ.pop(name, None)
    rates = [
        tuple(items / seconds for items, seconds in (turn(options.steps) for turn in (mine, theirs)))
        for _ in range(options.rounds)
    ]
    first, second = map(statistics.median, zip(*rates))
    return first, second, [a / b for a, b in rates]
