"""InfoNCE beside sentence-transformers' CachedMultipleNegativesRankingLoss: time and memory of loss and
gradient.

    python tests/benchmarks/bench_contrastive.py [--sizes 8192 32768] [--width 256] [--rounds 3]
        [--mini_batches 512 32]

Both take the same N anchors and N positives, float32, temperature 0.05, and give the loss and its gradient by
the vectors. Theirs reads them through an encoder that hands its input on, so that only the loss is measured;
its mini-batch is a parameter, 32 unless told otherwise, and is tried at every size of `--mini_batches`. Ours
runs with its defaults. NT-Xent over the same 2N vectors (four times the similarities) is measured beside
them, without a peer.

Each measurement is a fresh process, one after another. Time is the best of `--rounds` calls after a first
one, in CPU time, so that a busy machine changes the ratio little; no further call begins after a minute.
Memory is the peak of the process (VmHWM) during the first call, above what it held before, which includes the
vectors themselves. Losses and gradient norms of both sides are compared.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn

from pretrain.losses.contrastive import info_nce, nt_xent

TEMPERATURE = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mini_batches", type=int, nargs="+", default=[512, 128, 32])
    parser.add_argument(
        "--measure",
        nargs=2,
        metavar=("SIDE", "N"),
        help="one measurement, as JSON (what a fresh process runs)",
    )
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], int(options.measure[1]), options.width, options.rounds)))
        return
    versions = ""
    for size in options.sizes:
        print(f"N = {size:,}, {options.width} wide", flush=True)
        ours = in_fresh_process("info_nce", size, options)
        print(line("info_nce", ours), flush=True)
        print(line("nt_xent", in_fresh_process("nt_xent", size, options)), flush=True)
        for rows in options.mini_batches:
            theirs = in_fresh_process(f"cached-{rows}", size, options)
            versions = theirs["versions"]
            ratio = {name: ours[name] / theirs[name] for name in ("seconds", "peak", "loss", "gradient")}
            print(
                f"{line(f'cached-{rows}', theirs)}   ours: {ratio['peak']:.2f} of the memory, "
                f"{1 / ratio['seconds']:.2f}x "
                f"the speed; loss off by {abs(ratio['loss'] - 1):.0e}, gradient norm by "
                f"{abs(ratio['gradient'] - 1):.0e}",
                flush=True,
            )
    print(f"{platform.machine()}, {os.environ['OMP_NUM_THREADS']} threads; {versions}")


def line(side: str, result: dict) -> str:
    return f"  {side:12} {result['seconds']:8.2f} s  {result['peak'] / 2**20:8.0f} MiB"


def in_fresh_process(side: str, size: int, options: argparse.Namespace) -> dict:
    words = [
        sys.executable,
        __file__,
        "--measure",
        side,
        str(size),
        "--width",
        str(options.width),
        "--rounds",
        str(options.rounds),
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr or f"{side} at {size} ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(side: str, size: int, width: int, rounds: int) -> dict:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    turn, versions = cached(int(side.split("-")[1])) if side.startswith("cached") else (plain(side), "")
    draw = torch.Generator().manual_seed(1)
    anchors = torch.randn(size, width, generator=draw)
    positives = anchors + 2 * torch.randn(size, width, generator=draw)
    # libraries load what they need
    turn(anchors[:64].clone().requires_grad_(), positives[:64].clone().requires_grad_())
    anchors.requires_grad_()
    positives.requires_grad_()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    held = peak_memory()
    loss = turn(anchors, positives)
    peak = peak_memory() - held
    norm = torch.cat([anchors.grad, positives.grad]).norm().item()
    seconds = []
    for _ in range(rounds):
        anchors.grad = positives.grad = None
        start = time.process_time()
        turn(anchors, positives)
        seconds.append(time.process_time() - start)
        if sum(seconds) > 60:
            break
    return {"seconds": min(seconds), "peak": peak, "loss": loss, "gradient": norm, "versions": versions}


def plain(side: str) -> Callable[[Tensor, Tensor], float]:
    def turn(anchors: Tensor, positives: Tensor) -> float:
        if side == "nt_xent":
            loss = nt_xent(torch.stack([anchors, positives]), TEMPERATURE)
        else:
            loss = info_nce(anchors, positives, TEMPERATURE)
        loss.backward()
        return loss.item()

    return turn


def cached(mini_batch: int) -> tuple[Callable[[Tensor, Tensor], float], str]:
    import sentence_transformers
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    class Identity(nn.Module):
        """Hands "input_ids", which here are the vectors, on as "sentence_embedding"."""

        def __getitem__(self, index: int) -> nn.Module:
            return self

        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"sentence_embedding": features["input_ids"]}

    criterion = CachedMultipleNegativesRankingLoss(
        Identity(), scale=1 / TEMPERATURE, mini_batch_size=mini_batch
    )

    def turn(anchors: Tensor, positives: Tensor) -> float:
        loss = criterion([{"input_ids": anchors}, {"input_ids": positives}], torch.empty(0))
        loss.backward()
        return loss.item()

    return turn, f"torch {torch.__version__}, sentence-transformers {sentence_transformers.__version__}"


def peak_memory() -> int:
    """Largest resident memory of this process since the peak was reset, in bytes."""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
