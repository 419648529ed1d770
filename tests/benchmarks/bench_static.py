"""A static table beside the encoder that it is made of: sentences/s in the same process.

    clearly export MODEL --out STATIC --static encoded --text FILES
    python tests/benchmarks/bench_static.py MODEL STATIC [--sentences 20000] [--rounds 5] [--threads 1]

Texts in, vectors out: tokenizing is in the time. The encoder runs packed and reads a twentieth of the
sentences; the table is read by sentence-transformers with batches of 32 (the library's default) and of 1,024,
and by `load(STATIC)`, to which all words are new, or none. They take turns; CPU time of the process, all its
threads together, and beside it the wall clock's; medians over rounds.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (the allocator's settings, for all sides)

# isort: split
import torch
import transformers
from bench_helpers import load_sentences, processor
from rich.console import Console
from rich.table import Table
from sentence_transformers import SentenceTransformer

from finetune.encoders.models import open_model
from finetune.encoders.static import StaticModel


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a run, an export, or a model of sentence-transformers")
    parser.add_argument("static", help="the folder of the table")
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    texts, origin = load_sentences(options.sentences)
    static = SentenceTransformer(options.static, device="cpu")
    encoder, ours = open_model(options.model, quiet=True), open_model(options.static, quiet=True)
    assert isinstance(ours.runs, StaticModel)  # else it is the library that is measured
    few = texts[::20]
    sides = {
        "encoder, packed": lambda: len(encoder.encode(few)),
        "static, batches of 32": lambda: len(static.encode(texts, batch_size=32)),
        "static, batches of 1,024": lambda: len(static.encode(texts, batch_size=1024)),
        "static, load, new words": lambda: ours.runs.forget() or len(ours.encode(texts)),
        "static, load": lambda: len(ours.encode(texts)),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    by_clock: dict[str, list[float]] = {name: [] for name in sides}
    for round_number in range(options.rounds + 1):  # the first is not timed
        for name, encode in sides.items():
            start, begun = time.process_time(), time.perf_counter()
            count = encode()
            if round_number:
                rates[name].append(count / (time.process_time() - start))
                by_clock[name].append(count / (time.perf_counter() - begun))
    table = Table(title=f"{len(texts)} {origin}, {options.threads} thread(s), CPU time")
    for column in ("", "sentences/s", "by the clock", "over the encoder", "rounds"):
        table.add_column(column, justify="right")
    for name, found in rates.items():
        ratios = [a / b for a, b in zip(found, rates["encoder, packed"])]
        table.add_row(
            name,
            f"{statistics.median(found):,.0f}",
            f"{statistics.median(by_clock[name]):,.0f}",
            f"{statistics.median(ratios):.1f}x",
            f"{min(ratios):.1f} to {max(ratios):.1f}",
        )
    console = Console(width=120)
    console.print(table)
    console.print(f"{processor()}; torch {torch.__version__}")


if __name__ == "__main__":
    main()
