"""A step's time by how its gradients are reduced: by DeepSpeed, in buckets after it, in buckets during it.

    python tests/benchmarks/bench_reduction.py [--ranks 2 4] [--rounds 9] [--width 256]

Ranks of one thread on this machine, over gloo; a CLEAR step (masking and two views of random ids, 4 layers,
vocabulary 16,000) of `--sentences` sentences a rank, in micro-batches of `--tokens`. The three sides take
turns, a step each, on one engine, at ZeRO 0. Printed: the median wall time of a step, of the slowest rank,
the median over rounds of its ratio to DeepSpeed's, and the same of the CPU time of all ranks together (which
other work on the machine changes less, but which does not see what is waited for).
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["DS_ACCELERATOR"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (the allocator's settings of a training process)

# isort: split
import numpy as np
import torch
import torch.distributed as dist

from augment.core.ragged import Ragged
from pretrain.config.recipe import validate_config
from pretrain.config.run import Config
from pretrain.data.batch import RankBatch, View
from pretrain.data.masking import Masked
from pretrain.model.encoder import build_encoder
from pretrain.objectives import build_objective
from pretrain.start.estimate import PlannedTokenizer
from pretrain.step.engine import build_engine, start_processes
from pretrain.step.model import SentenceModel
from pretrain.step.reduction import Buckets, Coalesced
from pretrain.step.whole_batch import WholeBatch

VOCABULARY = 16_000


class OfDeepSpeed(Coalesced):
    """DeepSpeed's reduction at ZeRO 0, after the last backward pass."""

    def of_step(self):
        return nullcontext()

    def backward(self, loss: torch.Tensor, final: bool) -> None:
        self.engine.set_gradient_accumulation_boundary(final)
        self.engine.backward(loss, scale_wrt_gas=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--sentences", type=int, default=64, help="of a rank")
    parser.add_argument("--tokens", type=int, default=16_384, help="of a micro-batch")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--communication_dtype", choices=["fp32", "bf16"], default="fp32")
    options = parser.parse_args()
    if "RANK" in os.environ:
        measure(options)
        return
    for ranks in options.ranks:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        processes = [
            subprocess.Popen(
                [sys.executable, *sys.argv],
                env=os.environ
                | meeting
                | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)},
            )
            for rank in range(ranks)
        ]
        if max([process.wait() for process in processes]):
            sys.exit(1)


def config_of(options: argparse.Namespace, ranks: int) -> Config:
    return validate_config(
        {
            "name": "bench",
            "data": {"lanes": ranks},
            "model": {"layers": 4, "hidden_size": options.width, "heads": options.width // 64},
            "train": {
                "global_batch": options.sentences * ranks,
                "zero": 0,
                "precision": options.precision,
                "communication_dtype": options.communication_dtype,
                "micro_batch_tokens": options.tokens,
            },
        },
        "benchmark",
    )


def draw(step: int, rank: int, sentences: int) -> RankBatch:
    """A rank's sentences of random ids, of lengths like Wikipedia's."""
    rng = np.random.default_rng([step, rank])
    lengths = rng.lognormal(3.2, 0.5, sentences).astype(int).clip(4, 128)
    original = Ragged.from_sequences([rng.integers(5, VOCABULARY, length).tolist() for length in lengths])
    positions = np.flatnonzero(rng.random(original.num_tokens) < 0.15)
    masked = Masked(original, positions, original.ids[positions].astype(np.int32))
    numbers = np.arange(sentences) + rank * sentences
    view = View(original, numbers, np.ones(sentences, bool))
    return RankBatch(
        step=step, epoch=0, sequence_ids=numbers.astype(np.uint64), original=original, masked=[masked],
        views={"anchor": view, "positive": view}, labels=None, substitutions=[],
    )  # fmt: skip


def measure(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    start_processes()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    config = config_of(options, ranks)
    torch.manual_seed(0)
    tokenizer = PlannedTokenizer(VOCABULARY)
    encoder = build_encoder(config.model.architecture(), tokenizer, "mean")
    model = SentenceModel(encoder, build_objective(config, encoder), options.precision)
    engine = build_engine(model, config)
    engine.train()
    sides: dict[str, Buckets | Coalesced] = {
        "DeepSpeed": OfDeepSpeed(engine),
        "buckets after": Buckets(engine, overlap=False),
        "buckets during": Buckets(engine, overlap=True),
    }
    whole = WholeBatch(engine, 0, options.tokens)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for turn in range(options.rounds + 1):
        batch = draw(turn, rank, options.sentences)
        for name, whole.reduction in sides.items():
            dist.barrier()
            began, busy = time.perf_counter(), time.process_time()
            whole.compute(batch)
            engine.step()
            slowest, together = (
                torch.tensor(time.perf_counter() - began),
                torch.tensor(time.process_time() - busy),
            )
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            dist.all_reduce(together)
            if turn:
                times[name].append((float(slowest), float(together)))
    if rank == 0:
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        print(f"{ranks} ranks, {trained / 1e6:.1f}M parameters, {options.precision}")
        for name, of in times.items():
            columns = []
            for mine, theirs in zip(zip(*of), zip(*times["DeepSpeed"])):
                ratio = statistics.median(a / b for a, b in zip(mine, theirs))
                columns.append(f"{1000 * statistics.median(mine):7.0f} ms  {ratio:.3f}")
            print(f"  {name:15} {columns[0]}   CPU {columns[1]}", flush=True)
    engine.destroy()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
