"""The fused worker in source tokens per second of one core, where its time goes, and reading beside a peer.

    python tests/benchmarks/bench_loader.py

A worker reads chunks (sha256 checked), draws the step's sequences, masks, makes two views of del-span,reorder
and splits by step: 256 lanes, 8,192 sequences per step, whole epochs, so every chunk is read again and again
as in training. Tokens are those of the originals; CPU time of one process, median epoch. Then the same by
worker processes, with what it costs the training process; and reading alone beside a webdataset of one
sentence a member, the way such datasets are usually written. Tokens are made up, sentence lengths are
log-normal with Wikipedia's mean; files are in the page cache.
"""

import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pretrain"))

import pretrain.common.environment  # noqa: F401  (the allocator's settings of a training process and its workers, for both sides)

# isort: split
import numpy as np
import torch
import webdataset
from bench_helpers import processor
from loader_helpers import write_folder
from rich.console import Console
from rich.table import Table

from augment.core.ragged import Ragged, offsets_of
from augment.core.vocabulary import Vocabulary
from augment.spec.pipeline import Pipeline
from pretrain.data import worker
from pretrain.data.batch import BatchSpec, RankBatch, ViewSpec
from pretrain.data.chunk_cache import ChunkCache
from pretrain.data.lanes import Lanes
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.masking import Masking
from pretrain.data.shards import ShardReader

SIZE = 30000
LANES, GLOBAL_BATCH, EPOCHS = 256, 8192, 2
SETTINGS = {"sentences": (27, 2_000_000, 2e6), "512 tokens": (512, 131_072, 5e6)}  # mean, sequences, goal
PEER_SENTENCES = 50_000
_special = np.arange(SIZE) < 5
VOCABULARY = Vocabulary(
    SIZE, 0, 1, 2, 3, 4, _special, np.ones(SIZE, bool), np.where(_special, 0, 1).astype(np.uint8)
)


def main() -> None:
    console = Console(width=120, highlight=False)
    console.print(
        f"{processor()}; Python "
        f"{platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}, webdataset "
        f"{webdataset.__version__}"
    )
    speed = Table(title="fused worker, one core: M source tokens/s, and ns a token by stage")
    for column in ("", "M tokens/s", "goal", "ratio", *STAGES, "rest", "chunks read"):
        speed.add_column(column, justify="right" if column else "left")
    home = Table(
        title="through worker processes: M source tokens/s by the clock, and what the training process pays"
    )
    for column in ("", "workers", "M tokens/s", "ns a token in the training process", "bytes per token"):
        home.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory() as temporary:
        folders = {}
        for name, (mean, count, goal) in SETTINGS.items():
            folders[name] = Path(temporary) / name.replace(" ", "-")
            write_folder(folders[name], {"train": corpus(count, mean)}, SIZE, 512)
            speed.add_row(name, *fused(folders[name], goal))
            for workers in (1, 2):
                home.add_row(name, str(workers), *through_processes(folders[name], workers))
        console.print(speed)
        console.print(home)
        console.print(reading(folders["sentences"], Path(temporary)))


def corpus(count: int, mean: int) -> Ragged:
    random = np.random.default_rng(0)
    if mean == 512:
        lengths = np.full(count, 512)
    else:
        lengths = np.clip(random.lognormal(np.log(mean) - 0.125, 0.5, count).astype(np.int64), 4, 512)
    offsets = offsets_of(lengths)
    ids = random.integers(5, SIZE, offsets[-1]).astype(np.int32)
    ids[offsets[:-1]], ids[offsets[1:] - 1] = 1, 2
    return Ragged(ids, offsets)


def make_loader(folder: Path, workers: int, epochs: int) -> Loader:
    reader = ShardReader(folder)
    steps = reader.num_sequences // GLOBAL_BATCH
    views = [ViewSpec("anchor", "del-span,reorder"), ViewSpec("positive", "del-span,reorder")]
    return Loader(
        reader,
        BatchSpec(views, Masking(), VOCABULARY),
        LoaderSettings(0, GLOBAL_BATCH, LANES, workers),
        Position(0, epochs * steps),
    )


class Stages:
    """CPU seconds inside functions, by wrapping them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def timed(self, name: str, function: Callable) -> Callable:
        def wrapper(*args, **kwargs):
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start
                self.calls[name] = self.calls.get(name, 0) + 1

        return wrapper


STAGES = ("read", "order", "gather", "mask", "views", "split")


def fused(folder: Path, goal: float) -> list[str]:
    loader = make_loader(folder, 0, EPOCHS)
    stages = Stages()
    originals = (
        ShardReader.read,
        Lanes.draw_steps,
        ChunkCache.gather,
        worker.mask_tokens,
        RankBatch.slice,
        Pipeline.__call__,
    )
    ShardReader.read = stages.timed("read", ShardReader.read)
    Lanes.draw_steps = stages.timed("order", Lanes.draw_steps)
    ChunkCache.gather = stages.timed("gather", ChunkCache.gather)
    worker.mask_tokens = stages.timed("mask", worker.mask_tokens)
    RankBatch.slice = stages.timed("split", RankBatch.slice)
    Pipeline.__call__ = stages.timed("views", Pipeline.__call__)
    try:
        rates, tokens, total, start = [], 0, 0, time.process_time()
        for batch in loader:
            tokens += batch.original.num_tokens
            if (batch.step + 1) % loader.lanes.steps_per_epoch == 0:
                now = time.process_time()
                rates.append(tokens / (now - start))
                total, tokens, start = total + tokens, 0, time.process_time()
    finally:
        (
            ShardReader.read,
            Lanes.draw_steps,
            ChunkCache.gather,
            worker.mask_tokens,
            RankBatch.slice,
            Pipeline.__call__,
        ) = originals
    rate = statistics.median(rates)
    cost = {name: stages.seconds[name] / total * 1e9 for name in STAGES}
    rest = 1e9 / statistics.mean(rates) - sum(cost.values())
    read = f"{stages.calls['read'] / loader.maker.reader.num_chunks / EPOCHS:.2f} x"
    figures = [f"{cost[name]:.1f}" for name in STAGES]
    return [
        f"{rate / 1e6:.1f}",
        f"{goal / 1e6:.0f}",
        f"{rate / goal:.1f} x",
        *figures,
        f"{max(rest, 0):.1f}",
        read,
    ]


def through_processes(folder: Path, workers: int) -> list[str]:
    loader = make_loader(folder, workers, EPOCHS)
    tokens = moved = 0
    for batch in loader:
        if batch.step == loader.lanes.steps_per_epoch - 1:
            clock, processor_time = time.perf_counter(), time.process_time()
        if batch.step >= loader.lanes.steps_per_epoch:
            tokens += batch.original.num_tokens
            parts = [batch.original, *(m.batch for m in batch.masked)]
            parts += [view.tokens for view in batch.views.values()]
            moved += sum(part.ids.nbytes + part.offsets.nbytes for part in parts)
            moved += sum(m.positions.nbytes + m.labels.nbytes for m in batch.masked)
    clock, processor_time = time.perf_counter() - clock, time.process_time() - processor_time
    return [f"{tokens / clock / 1e6:.1f}", f"{processor_time / tokens * 1e9:.1f}", f"{moved / tokens:.1f}"]


def reading(folder: Path, temporary: Path) -> Table:
    """Reading alone: ours at random, ours as a webdataset stream, one sentence a member."""
    reader = ShardReader(folder)
    single = temporary / "single.tar"
    sentences = Ragged.concatenate([reader.read(chunk).sequences for chunk in range(30)]).slice(
        0, PEER_SENTENCES
    )
    tokens = sentences.num_tokens
    with webdataset.TarWriter(str(single), encoder=False) as tar:
        for number in range(len(sentences)):
            tar.write({"__key__": f"{number:07d}", "tokens": sentences[number].astype("<u2").tobytes()})

    def members() -> None:
        for sample in webdataset.WebDataset(str(single), shardshuffle=False):
            np.frombuffer(sample["tokens"], "<u2").astype(np.int32)

    def stream() -> None:
        files = sorted(str(path) for path in (folder / "train").glob("*.tar"))
        for sample in webdataset.WebDataset(files, shardshuffle=False):
            np.frombuffer(sample["tokens.u16"], "<u2").astype(np.int32)

    def at_random() -> None:
        for chunk in np.random.default_rng(0).permutation(reader.num_chunks):
            reader.read(int(chunk))

    peer = measure(members, tokens)
    size = sum(path.stat().st_size for path in (folder / "train").glob("*.tar")) / reader.num_tokens
    table = Table(title="reading alone, one core")
    for column in ("", "M tokens/s", "ratio", "bytes of tar a token"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row(
        "webdataset, one sentence a member",
        f"{peer / 1e6:.2f}",
        "1 x",
        f"{single.stat().st_size / tokens:.1f}",
    )
    for name, run in (
        ("ours, streamed by webdataset", stream),
        ("ours, chunks at random, sha256 checked", at_random),
    ):
        rate = measure(run, reader.num_tokens)
        table.add_row(name, f"{rate / 1e6:.1f}", f"{rate / peer:.0f} x", f"{size:.2f}")
    return table


def measure(run: Callable[[], None], tokens: int, times: int = 3) -> float:
    """Tokens per second of CPU time, median."""
    rates = []
    for _ in range(times):
        start = time.process_time()
        run()
        rates.append(tokens / (time.process_time() - start))
    return statistics.median(rates)


if __name__ == "__main__":
    main()
