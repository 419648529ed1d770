"""How long a step waits for a checkpoint that is written in the background, beside one that it waits for.

    python tests/benchmarks/bench_checkpoint.py [--ranks 1 2] [--zero 1] [--rounds 3] [--folder DIR]

Ranks of one thread on this machine, over gloo; parameters of the shapes of BERT-base (109 million, 1.3 GB
with two moments), without its forward pass. In each round the engine takes a checkpoint synchronously and one
in the background. Printed, of the slowest rank: the seconds of the first, those for which the second keeps
training from going on, their ratio, those until the second is whole when nothing else runs, and those of a
load by all ranks. The first copy, which also maps its pages, is left out of the medians and printed. The same
ratio of seconds of CPU, of all ranks together, is changed less by other work on the machine.
"""

import argparse
import functools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["DS_ACCELERATOR"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (the allocator's settings of a training process)

# isort: split
import deepspeed
import torch
import torch.distributed as dist
from bench_helpers import processor
from torch import nn

from pretrain.checkpoint import store
from pretrain.checkpoint.folder_writer import Retention
from pretrain.checkpoint.saver import Saver

WIDTH, LAYERS, VOCABULARY, POSITIONS = 768, 12, 30_522, 512


class Shapes(nn.Module):
    """Parameters of BERT-base; the loss has a gradient for all of them, and costs next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(rows, WIDTH) for rows in (VOCABULARY, POSITIONS, 2))
        sizes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
        self.layers = nn.ModuleList(nn.Linear(*size) for _ in range(LAYERS) for size in sizes)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS + 1))

    def forward(self) -> torch.Tensor:
        first = torch.zeros(1, dtype=torch.long)
        outputs = [embedding(first) for embedding in self.embeddings]
        outputs += [layer(torch.ones(1, layer.in_features)) for layer in self.layers]
        outputs += [norm(torch.ones(1, WIDTH)) for norm in self.norms]
        return torch.stack([output.sum() for output in outputs]).sum()


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Run as one rank; rank 0 prints."""
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", verbose=False)
    module = Shapes()
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": int(os.environ["BENCH_ZERO"])},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine = deepspeed.initialize(model=module, optimizer=optimizer, config=settings)[0]
    engine.backward(engine())
    engine.step()
    saver = Saver(engine)
    rounds = []
    for number in range(options.rounds + 1):
        save = functools.partial(saver.save, folder, retention=Retention(1))
        synchronous = seconds(lambda: save(state={"step": 2 * number}, background=False))  # noqa: B023
        waits = seconds(lambda: save(state={"step": 2 * number + 1}))  # noqa: B023  (called at once)
        rounds.append((synchronous, waits, seconds(saver.wait)))
    load = seconds(lambda: store.load(store.latest(folder), engine))
    saver.close()
    if dist.get_rank() == 0:
        (_, (first, _), _), *rest = rounds
        ratios = sorted(waits[0] / whole[0] for whole, waits, _ in rest)
        cpu = statistics.median(waits[1] / whole[1] for whole, waits, _ in rest)
        synchronous, waits, after = (statistics.median(times[0] for times in side) for side in zip(*rest))
        print(
            f"{dist.get_world_size()} ranks, ZeRO {os.environ['BENCH_ZERO']}: synchronous {synchronous:.2f} "
            f"s, training waits {waits:.3f} s (at first {first:.3f}), whole {after:.2f} s later; "
            f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}), of CPU {cpu:.3f}; "
            f"load {load[0]:.2f} s ({load[1]:.2f} of CPU)",
            flush=True,
        )
    dist.barrier()
    dist.destroy_process_group()


def seconds(action) -> tuple[float, float]:
    """Return the seconds of the slowest rank, and those of CPU of all ranks together."""
    dist.barrier()
    began, before = time.perf_counter(), time.process_time()
    action()
    longest = torch.tensor([time.perf_counter() - began])
    work = torch.tensor([time.process_time() - before])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    dist.all_reduce(work)
    return longest.item(), work.item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--zero", type=int, nargs="+", default=[1], choices=[0, 1, 2, 3])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's temporary folder")
    options = parser.parse_args()
    if "RANK" in os.environ:
        measure(options, options.folder)
        return
    print(f"{processor()}; torch {torch.__version__}, gloo")
    for ranks in options.ranks:
        for zero in options.zero:
            folder = tempfile.mkdtemp(dir=options.folder)
            try:
                launch(ranks, zero, [*sys.argv[1:], "--folder", folder])
            finally:
                shutil.rmtree(folder)


def launch(ranks: int, zero: int, words: list[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = os.environ | {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "BENCH_ZERO": str(zero),
    }
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *words],
            env=variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    if any(process.wait() for process in processes):
        sys.exit(1)


if __name__ == "__main__":
    main()
