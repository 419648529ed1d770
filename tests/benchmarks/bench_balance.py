"""Tokens of the most loaded rank over their mean, before and after sequences change ranks, and at what cost.

    python tests/benchmarks/bench_balance.py [--data FOLDER] [--ranks 8 64 256 1024] [--each 8 32 128]

Simulated: the lengths of the sequences that every rank draws at a step, in the order of the lanes, from a
prepared corpus (`clearly prepare`), or, without one, log-normal with the mean of Wikipedia's
sentences, 27 tokens. A step is one masking. Printed for every number of ranks and of sequences a rank, over
`--steps` steps: mean and largest max/mean, before and after; the share of sequences that move; bytes that a
rank sends, on average, and to how many ranks at most; milliseconds to decide it (CPU time of one thread, the
best of all steps).
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from pretrain.data.lanes import Lanes
from pretrain.data.shards import ShardReader
from pretrain.step.placement import balance, imbalance
from pretrain.step.plan import initial_owners

WORD = 4  # bytes of a token on its way to another rank; a masking has two words a token, and two of a key


def drawn_lengths(folder: Path | None, batch: int, lanes: int, steps: int) -> Iterator[np.ndarray]:
    """Yield the lengths of each step's sequences, int64[batch], lane by lane."""
    if folder is None:
        rng = np.random.default_rng(0)
        for _ in range(steps):
            draws = np.exp(rng.normal(np.log(27) - 0.6**2 / 2, 0.6, batch))
            yield np.clip(draws.astype(np.int64), 4, 512)
        return
    reader = ShardReader(folder)
    lengths = [reader.read(chunk).sequences.lengths for chunk in range(reader.num_chunks)]
    starts = np.cumsum([0] + [len(of) for of in lengths])
    order = Lanes(reader.chunk_sizes, 42, batch, lanes)
    for step in range(steps):
        chunk, index = order.draw_steps(step, step + 1, 0, lanes)
        yield np.concatenate(lengths)[starts[chunk] + index]


def measure(folder: Path | None, ranks: int, each: int, steps: int) -> str:
    """Return a row of the table."""
    drawn, rows = initial_owners([each] * ranks), []
    for lengths in drawn_lengths(folder, ranks * each, ranks, steps):
        began = time.thread_time()
        owners = balance(lengths, drawn, ranks)
        seconds = time.thread_time() - began
        moved = owners != drawn
        pairs = np.unique(drawn[moved] * ranks + owners[moved]) // ranks
        rows.append(
            (
                imbalance(lengths, drawn, ranks),
                imbalance(lengths, owners, ranks),
                100 * moved.mean(),
                WORD * (2 * lengths[moved] + 2).sum() / ranks,
                np.bincount(pairs, minlength=1).max(),
                1000 * seconds,
            )
        )
    before, after, share, sent, partners, milliseconds = np.array(rows).T
    loads = f"{before.mean():.2f} ({before.max():.2f})   {after.mean():.3f} ({after.max():.3f})"
    return (
        f"{ranks:5d} {each:9d}   {loads}   {share.mean():5.1f}%"
        f"   {sent.mean():6.0f}   {partners.max():3.0f}   {milliseconds.min():6.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 256, 1024])
    parser.add_argument("--each", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    print("ranks sequences   before (worst)  after (worst)   moved   bytes   to   milliseconds")
    for ranks in options.ranks:
        for each in options.each:
            print(measure(options.data, ranks, each, options.steps))


if __name__ == "__main__":
    main()
