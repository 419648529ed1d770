"""The encoder layer's kernels, forward and backward, beside the torch operations that they replace.

    python tests/benchmarks/bench_kernels.py [--threads 1 2] [--dtype bf16] [--rate 0.1] [--rounds 15]

The two take turns; times are medians, of one thread its CPU time, so that a busy machine does not change
them, of several the wall's. GB/s counts every tensor that must be read or written once, GFLOP/s the
products of attention. The first lines say what the machine gives: a copy's bandwidth, and products of
matrices that fit a core's cache.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (the allocator's settings of a training process)

# isort: split
import torch
from bench_helpers import processor
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from pretrain.model.attention import PackedLayout
from pretrain.model.kernels import native
from pretrain.model.kernels.dropout import Dropout
from pretrain.model.kernels.plain import How, Norm

SHAPES = ((4358, 256, 1024, 4), (8192, 768, 3072, 12))
"""(tokens, hidden size, size within the MLP, heads)."""
MEAN_LENGTH = 34
Step = Callable[[], None]


@dataclass
class Case:
    name: str
    torch: Step
    native: Step
    bytes: float
    flops: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--rate", type=float, default=0.1, help="of dropout")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    instructions = native.available()
    if instructions is None:
        raise SystemExit("the kernels are not compiled here, or CLEAR_KERNELS turns them off")
    console = Console(width=110)
    console.print(f"{processor()}, {instructions}, torch {torch.__version__}")
    for threads in options.threads:
        torch.set_num_threads(threads)
        console.print(
            f"{threads} threads: copy {copy_bandwidth():.1f} GB/s, products fp32 {peak(torch.float32):.0f}, "
            f"bf16 {peak(torch.bfloat16):.0f} GFLOP/s"
        )
        for shape in SHAPES:
            table = Table("kernel", "torch ms", "native ms", "ratio", "GB/s", "GFLOP/s")
            for case in cases(*shape, dtype, options.rate):
                before, after = medians(case, options.rounds)
                table.add_row(
                    case.name,
                    f"{before * 1e3:.2f}",
                    f"{after * 1e3:.2f}",
                    f"{before / after:.1f}",
                    f"{case.bytes / after / 1e9:.1f}",
                    f"{case.flops / after / 1e9:.0f}" if case.flops else "",
                )
            console.print("T={}, H={}, I={}, {} heads, {}, {} threads".format(*shape, options.dtype, threads))
            console.print(table)


def clock() -> float:
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def copy_bandwidth() -> float:
    """GB/s read and written, of 256 MiB."""
    source = torch.ones(1 << 26)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best(lambda: target.copy_(source), 7) / 1e9


def peak(dtype: torch.dtype) -> float:
    """GFLOP/s of torch's product of [1024, 1024] matrices."""
    a, b = torch.randn(1024, 1024).to(dtype), torch.randn(1024, 1024).to(dtype)
    return 2 * 1024**3 / best(lambda: a @ b, 20) / 1e9


def best(step: Callable[[], object], rounds: int) -> float:
    step()
    times = []
    for _ in range(rounds):
        start = clock()
        step()
        times.append(clock() - start)
    return min(times)


def medians(case: Case, rounds: int) -> tuple[float, float]:
    times: dict[str, list[float]] = {"torch": [], "native": []}
    for turn in range(rounds + 2):
        for side, step in (("torch", case.torch), ("native", case.native)):
            start = clock()
            step()
            if turn >= 2:
                times[side].append(clock() - start)
    return statistics.median(times["torch"]), statistics.median(times["native"])


def cases(tokens: int, hidden: int, inner: int, heads: int, dtype: torch.dtype, rate: float) -> list[Case]:
    torch.manual_seed(0)
    dropout = Dropout(rate, torch.randint(-(2**62), 2**62, (tokens,)), site=9) if rate else None
    wide = torch.float32

    def leaf(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape).to(dtype).requires_grad_()

    def step(function: Callable[..., Tensor], *tensors: Tensor) -> Step:
        gradient = torch.randn_like(function(*tensors))
        leaves = [x for x in tensors if x.requires_grad]

        def run() -> None:
            torch.autograd.grad(function(*tensors), leaves, gradient)

        return run

    def drop(x: Tensor) -> Tensor:
        return functional.dropout(x, rate) if rate else x

    x, residual, bias = leaf(tokens, hidden), leaf(tokens, hidden), leaf(hidden, dtype=wide)
    weight, norm_bias = leaf(hidden, dtype=wide), leaf(hidden, dtype=wide)
    up, up_bias, gated = leaf(tokens, inner), leaf(inner, dtype=wide), leaf(tokens, 2 * inner)
    lengths = torch.randint(4, 2 * MEAN_LENGTH - 4, (tokens // MEAN_LENGTH,)).sort().values
    while lengths.sum() > tokens:
        lengths = lengths[1:]
    layout = PackedLayout.build(lengths, torch.device("cpu"), tokens - int(lengths.sum()))
    size = hidden // heads
    qkv = leaf(tokens, 3, heads, size)

    def torch_attention(x: Tensor) -> Tensor:
        sizes = [count * length for count, length in layout.groups]
        outputs = []
        for (count, length), part in zip(layout.groups, x[: sum(sizes)].split(sizes)):
            q, k, v = part.view(count, length, 3, heads, size).permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate)
            outputs.append(attended.transpose(1, 2).reshape(count * length, heads, size))
        return torch.cat([*outputs, x[sum(sizes) :].sum(1) * 0.0])

    def torch_add_norm(x: Tensor, b: Tensor, r: Tensor, w: Tensor, nb: Tensor) -> Tensor:
        return functional.layer_norm(r + drop(x + b.to(dtype)), (hidden,), w.to(dtype), nb.to(dtype))

    def torch_norm_dropout(x: Tensor, w: Tensor, nb: Tensor) -> Tensor:
        return drop(functional.layer_norm(x, (hidden,), w.to(dtype), nb.to(dtype)))

    def torch_gate(x: Tensor) -> Tensor:
        inner, gate = x.chunk(2, dim=1)
        return functional.gelu(inner) * gate

    one = x.nbytes
    return [
        Case(
            "add_norm",
            step(torch_add_norm, x, bias, residual, weight, norm_bias),
            step(
                lambda x, b, r, w, nb: native.residual_norm(
                    x, b, r, Norm(w, nb, 1e-5), How(dropout, dtype, False)
                )[1],
                x,
                bias,
                residual,
                weight,
                norm_bias,
            ),
            8 * one,
        ),
        Case(
            "norm_dropout",
            step(torch_norm_dropout, x, weight, norm_bias),
            step(
                lambda x, w, nb: native.norm_dropout(x, Norm(w, nb, 1e-5), dropout),
                x,
                weight,
                norm_bias,
            ),
            5 * one,
        ),
        Case(
            "bias_gelu",
            step(lambda x, b: functional.gelu(x + b.to(dtype)), up, up_bias),
            step(native.bias_gelu, up, up_bias),
            5 * up.nbytes,
        ),
        Case("gelu_gate", step(torch_gate, gated), step(native.gelu_gate, gated), 8 * up.nbytes),
        Case(
            "attention",
            step(torch_attention, qkv),
            step(lambda x: native.attention(x, layout, size**-0.5, None, dropout), qkv),
            11 * one,
            # Products of L x L x D: 2 in the forward, 5 in the backward.
            7 * 2 * hidden * float((lengths**2).sum()),
        ),
    ]


if __name__ == "__main__":
    main()
