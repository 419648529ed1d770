"""NT-Xent of a whole batch over ranks: each rank computes the whole loss, or its share of it.

    python tests/benchmarks/bench_shared_loss.py [--sizes 2048 8192] [--width 256] [--ranks 1 2 4]

Every rank holds the same vectors [2, N, width], float32, and takes loss and gradient by them, on one thread.
Printed: the largest CPU time of a rank, best of `--rounds` calls after a first one, so that ranks that share
a core change the figures little; what each rank sends is 2 (W - 1) / W times 2 N x width x 4 bytes. The loss
and the gradient's norm are the same in every row.
"""

import argparse
import os
import socket
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from pretrain.losses.contrastive import nt_xent, shared_over


def measure(rank: int, ranks: int, port: int, sizes: list[int], width: int, rounds: int, results) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    for size in sizes:
        views = torch.randn(2, size, width, generator=torch.Generator().manual_seed(1)).requires_grad_()
        for shared in (False, True) if ranks > 1 else (False,):
            times = []
            for _ in range(1 + rounds):
                views.grad = None
                began = time.process_time()
                with shared_over(ranks if shared else 1):
                    loss = nt_xent(views, 0.1)
                loss.backward()
                times.append(time.process_time() - began)
            slowest = torch.tensor(min(times[1:]))
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if rank == 0:
                results.put((size, shared, float(slowest), float(loss.detach()), float(views.grad.norm())))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, gloo, width {options.width}, CPU seconds per rank")
    for ranks in options.ranks:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        results = mp.get_context("spawn").SimpleQueue()
        mp.spawn(measure, (ranks, port, options.sizes, options.width, options.rounds, results), nprocs=ranks)
        while not results.empty():
            size, shared, seconds, loss, norm = results.get()
            how = "its share" if shared else "the whole"
            print(
                f"N {size:6d}  ranks {ranks}  {how}: {seconds:7.3f} s   loss {loss:.6f}  gradient {norm:.6e}"
            )


if __name__ == "__main__":
    main()
