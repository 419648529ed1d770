"""The layers by each of the kernels: forward and backward of an encoder over one packed row, in turn.

    python tests/benchmarks/bench_layer.py [--sentences 128] [--rounds 9] [--precision bf16]

4 layers, 256 wide, 4 heads, 1,024 intermediate, random weights and ids, lengths like Wikipedia's sentences.
CPU time of the process, one thread; medians over rounds, and the median of the rounds' ratios to the
plain kernels with a residual stream in float32. Native kernels take part where they can be imported.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (the allocator's settings of a training process)

# isort: split
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForMaskedLM, BertConfig

from pretrain.model import encoder as encoders
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.kernels import plain
from pretrain.step.precision import DTYPES

VOCABULARY = 16_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rng = np.random.default_rng(0)
    lengths = torch.from_numpy(rng.lognormal(3.4, 0.5, options.sentences).astype(np.int64).clip(4, 128))
    lengths = lengths.sort().values
    ids = torch.from_numpy(rng.integers(5, VOCABULARY, int(lengths.sum())))
    table = Table("dropout", "layers", "ms", "of plain", title=f"{len(ids):,} tokens")
    for dropout in (0.1, 0.0):
        sides = make_sides(dropout)
        times: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(options.rounds + 1):
            for name, (kernels, encoder) in sides.items():
                spent = seconds(encoder, kernels, ids, lengths, turn, options.precision)
                if turn:  # the first compiles
                    times[name].append(spent)
        for name, spent in times.items():
            ratio = statistics.median(mine / other for mine, other in zip(spent, times["plain"]))
            table.add_row(f"{dropout:g}", name, f"{1000 * statistics.median(spent):.0f}", f"{ratio:.2f}")
    Console().print(table)


def make_sides(dropout: float) -> dict:
    """Name -> (kernels or None, encoder), all with the same weights."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )

    def build() -> SentenceEncoder:
        torch.manual_seed(0)
        lm = AutoModelForMaskedLM.from_config(config)
        return SentenceEncoder(lm, "mean").train()

    sides = {}
    kinds = {"plain": plain}
    if importlib.util.find_spec("pretrain.model.kernels.native") is not None:
        kinds["native"] = importlib.import_module("pretrain.model.kernels.native")
    for name, kernels in kinds.items():
        sides[name] = (kernels, build())
    return sides


def seconds(
    encoder: SentenceEncoder, kernels, ids: torch.Tensor, lengths: torch.Tensor, turn: int, precision: str
) -> float:
    """CPU seconds of a forward and backward pass."""
    encoders.kernels_for = lambda device, dtype: kernels
    keys = np.arange(len(lengths), dtype=np.uint64) + np.uint64(1000 * turn)
    encoder.zero_grad(set_to_none=False)
    start = time.process_time()
    with torch.autocast("cpu", DTYPES[precision], enabled=precision != "fp32"):
        vectors = encoder.embed(ids, lengths, keys=keys)
    vectors.square().sum().backward()
    return time.process_time() - start


if __name__ == "__main__":
    main()
