"""Parts of `gpu_accept.py` about single operations: attention, what memory bounds, the loss of a large batch.

`accept` has the device and the sizes. On a CPU the plain operations take the place of a GPU's, to test this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pretrain.losses import contrastive
from pretrain.losses.contrastive import info_nce, nt_xent
from pretrain.model.attention import PackedLayout, attend
from pretrain.model.kernels import dropout as hashing
from pretrain.model.kernels import fused, plain
from pretrain.model.kernels.dropout import Dropout, site_of
from pretrain.model.kernels.plain import How, Norm

if TYPE_CHECKING:
    from gpu_accept import Accept

RATE = 0.1
LENGTHS = {"cuda": (32, 128, 512), "cpu": (4, 8)}
TOKENS = {"cuda": 65_536, "cpu": 64}
Timed = tuple[str, Callable[[], Any], int]
"""Name, operation, and the bytes that it reads and writes."""
PROGRAMS = (512, 1024, 2112)
NEAR = 0.02
"""Most that bfloat16 attention may be off, of its norm."""


def microseconds(accept: Accept, function: Callable[[], Any], times: int = 10) -> float:
    """Return the device's time for one call, after two: it sleeps until the host has queued all."""
    for _ in range(2):
        function()
    if accept.device.type == "cpu":
        started = time.perf_counter()
        function()
        return (time.perf_counter() - started) * 1e6
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(20_000_000)  # cycles: some 10 ms
    began.record()
    for _ in range(times):
        function()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / times * 1e3


def both_ways(accept: Accept, forward: Callable[[], Tensor], leaves: list[Tensor]) -> dict[str, int]:
    """Return the microseconds of an operation and of its backward."""
    output = forward()
    upstream = torch.randn_like(output)
    there = microseconds(accept, forward)
    back = microseconds(accept, lambda: torch.autograd.grad(output, leaves, upstream, retain_graph=True))
    return {"forward": round(there), "backward": round(back)}


# ---- attention


def hash_dropout(tokens: int, device: torch.device, layer: int = 0) -> Dropout:
    keys = hashing.token_keys(torch.arange(1, dtype=torch.int64), torch.tensor([tokens]))
    return Dropout(RATE, keys.to(device), site_of(layer, hashing.PROBABILITIES))


def attention_methods(
    accept: Accept, qkv: Tensor, layout: PackedLayout, dropout: Dropout
) -> dict[str, Callable[[], Tensor]]:
    """Return name -> attention of qkv: the program for short sequences, the one for any length, flash."""
    scale = qkv.shape[-1] ** -0.5
    if accept.device.type == "cpu":
        return {"plain": lambda: plain.attention(qkv, layout, scale, None, dropout)}
    how = fused._Attends(layout, scale, None, dropout)
    methods = {
        "exact": lambda: fused._LongAttention.apply(qkv, how),
        "flash": lambda: attend(qkv, layout, RATE, None),
    }
    if fused.takes_attention(qkv, layout):
        methods["short"] = lambda: fused._Attention.apply(qkv, how)
    return methods


def attention(accept: Accept) -> dict[str, Any]:
    """Time a layer's attention of rows of one length, with dropout; `exact` against flash in `ratio`."""
    size, device, kind = accept.size, accept.device, accept.device.type
    tokens, found = TOKENS[kind], {}
    for length in LENGTHS[kind]:
        shape = (tokens, 3, size.heads, size.width // size.heads)
        qkv = torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
        layout = PackedLayout.build(torch.full((tokens // length,), length), device)
        methods = attention_methods(accept, qkv, layout, hash_dropout(tokens, device))
        outputs = {name: method() for name, method in methods.items() if name != "flash"}
        first = next(iter(outputs.values()))
        for name, output in outputs.items():  # the same draws of dropout, so the same
            error = (output - first).float().norm() / first.float().norm()
            assert error < NEAR, f"attention {name} of {length} tokens is off by {error:.2g} of its norm"
        times = {name: both_ways(accept, method, [qkv]) for name, method in methods.items()}
        row = {name: f"{us['forward']} + {us['backward']} us" for name, us in times.items()}
        if "flash" in times:
            ours, theirs = (sum(times[name].values()) for name in ("exact", "flash"))
            row["ratio"] = f"{ours / theirs:.2f}"
        found[f"{length} tokens"] = row
    return found


# ---- what memory bounds


def by_programs(name: str, function: Callable[[], Any], moved: int) -> Iterator[Timed]:
    """Yield a backward that adds up rows, with at most so many programs."""

    def run(most: int) -> None:
        before, fused.PROGRAMS = fused.PROGRAMS, (min(PROGRAMS), most)
        try:
            function()
        finally:
            fused.PROGRAMS = before

    for most in PROGRAMS:
        yield f"{name}, {most} programs", partial(run, most), moved


def bandwidth(accept: Accept) -> dict[str, Any]:
    """Time connect (bias, dropout, residual, norm) and GELU, and their bytes a second as a share of a copy's.

    Also the product with cuBLASLt's GELU behind it, which is tanh's and keeps nothing for a backward.
    """
    tokens, width = TOKENS[accept.device.type], accept.size.width
    wide = torch.randn(tokens, 4 * width, device=accept.device).bfloat16()
    of_copy = 2 * wide.nbytes / microseconds(accept, wide.clone)
    found = {"copy": f"{of_copy / 1e6:.2f} TB/s"}
    for rows in (tokens, tokens // 4):
        for name, function, moved in [*connects(accept, rows), *gelus(accept, wide[:rows])]:
            us = microseconds(accept, function)
            found[f"{rows} rows: {name}"] = f"{us:.0f} us, {moved / us / of_copy:.0%} of a copy"
    for name, function, moved in casts(accept):
        us = microseconds(accept, function)
        found[name] = f"{us:.0f} us, {moved / us / of_copy:.0%} of a copy"
    return found | gelu_in_product(accept, wide[:, :width].contiguous())


def casts(accept: Accept) -> Iterator[Timed]:
    """Yield casts of the weights of all layers, as steps and their graphs make them, and by lists of one."""
    width = accept.size.width
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)] * accept.size.layers
    masters = [torch.randn(shape, device=accept.device) for shape in shapes]
    copies = [master.bfloat16() for master in masters]
    moved = 6 * sum(master.numel() for master in masters)

    def one_by_one() -> None:
        for copy, master in zip(copies, masters):
            copy.copy_(master)

    def as_lists() -> None:
        for copy, master in zip(copies, masters):
            torch._foreach_copy_([copy], [master])

    yield "casts of weights, all together", lambda: torch._foreach_copy_(copies, masters), moved
    yield "casts of weights, one by one", one_by_one, moved
    yield "casts of weights, lists of one", as_lists, moved


def connects(accept: Accept, rows: int) -> Iterator[Timed]:
    device, width = accept.device, accept.size.width
    kernels = fused if device.type == "cuda" else plain
    x = torch.randn(rows, width, device=device).bfloat16().requires_grad_()
    residual = torch.randn(rows, width, device=device, requires_grad=True)
    bias, weight, shift = (torch.ones(width, device=device, requires_grad=True) for _ in range(3))
    norm, dropout = Norm(weight, shift, 1e-12), hash_dropout(rows, device)

    def connect() -> tuple[Tensor, Tensor]:
        return kernels.residual_norm(x, bias, residual, norm, How(dropout, torch.bfloat16, True))

    yield "connect", connect, 16 * x.numel()
    outputs, leaves = connect(), (x, bias, residual, weight, shift)
    upstream = [torch.ones_like(output) for output in outputs]

    def backward() -> None:
        torch.autograd.grad(outputs, leaves, upstream, retain_graph=True)

    yield from by_programs("connect's backward", backward, 16 * x.numel())


def gelus(accept: Accept, x: Tensor) -> Iterator[Timed]:
    kernels = fused if x.is_cuda else plain
    x, bias = x.detach().requires_grad_(), torch.ones(x.shape[1], device=x.device, requires_grad=True)
    yield "GELU", lambda: kernels.bias_gelu(x, bias), 4 * x.numel()
    output, upstream = kernels.bias_gelu(x, bias), x.detach()

    def backward() -> None:
        torch.autograd.grad(output, (x, bias), upstream, retain_graph=True)

    yield from by_programs("GELU's backward", backward, 6 * x.numel())


def gelu_in_product(accept: Accept, x: Tensor) -> dict[str, str]:
    """Compare product and GELU with cuBLASLt's product that has a GELU behind it."""
    width = x.shape[1]
    weight = torch.randn(4 * width, width, device=x.device).bfloat16() / width**0.5
    bias = torch.ones(4 * width, device=x.device)
    kernels = fused if x.is_cuda else plain

    def apart() -> Tensor:
        return kernels.bias_gelu(x @ weight.T, bias)

    def together() -> Tensor:
        return torch._addmm_activation(bias.bfloat16(), x, weight.T, use_gelu=True)

    with torch.no_grad():
        exact = torch.nn.functional.gelu(x.float() @ weight.float().T + bias)
        off = [((f() - exact).norm() / exact.norm()).item() for f in (apart, together)]
        times = [microseconds(accept, f) for f in (apart, together)]
    names = ("product, then GELU", "GELU in the product")
    return {name: f"{us:.0f} us, off by {error:.1e}" for name, us, error in zip(names, times, off)}


# ---- the loss of a large batch


def loss_times(accept: Accept, batch: int) -> dict[str, Any]:
    """Time loss and gradient of `batch` anchors and positives, and say how far TF32 is from float64."""
    names = {"float32": False, "TF32": True}
    found: dict[str, Any] = {}
    before, tile = torch.backends.cuda.matmul.allow_tf32, contrastive.TILE_LOGITS["cuda"]
    try:
        for loss, kinds in ((of_info_nce, ("TF32", "float32")), (of_nt_xent, ("TF32",))):
            for kind in kinds:
                torch.backends.cuda.matmul.allow_tf32 = names[kind]
                found[f"{loss.__name__[3:]} in {kind}, ms"] = loss_ms(accept, loss, batch)
        torch.backends.cuda.matmul.allow_tf32, contrastive.TILE_LOGITS["cuda"] = True, 2**26
        found["info_nce in TF32, tiles of 256 MiB, ms"] = loss_ms(accept, of_info_nce, batch)
        contrastive.TILE_LOGITS["cuda"] = tile
        found["TF32 is off by"] = tf32_errors(accept, batch // 8)
    finally:
        torch.backends.cuda.matmul.allow_tf32, contrastive.TILE_LOGITS["cuda"] = before, tile
    return found


def of_info_nce(views: Tensor) -> Tensor:
    return info_nce(views[0], views[1], 0.05)


def of_nt_xent(views: Tensor) -> Tensor:
    return nt_xent(views, 0.05)


def views_of(accept: Accept, batch: int) -> Tensor:
    """Return vectors [2, batch, width] whose second are near the first."""
    first, noise = torch.randn(2, batch, accept.size.width, device=accept.device)
    return torch.stack([first, first + noise]).requires_grad_()


def loss_ms(accept: Accept, loss: Callable[[Tensor], Tensor], batch: int) -> float:
    """Return the milliseconds of a loss and its gradient, after one of a smaller batch."""
    views, small = views_of(accept, batch), views_of(accept, max(2, batch // 4))
    torch.autograd.grad(loss(small), small)
    started = accept.seconds()
    torch.autograd.grad(loss(views), views)
    return round((accept.seconds() - started) * 1e3, 1)


def tf32_errors(accept: Accept, batch: int) -> dict[str, float]:
    """Return by which share of themselves the loss and its gradient are off in TF32, against float64."""
    views = views_of(accept, max(2, batch))
    exact = views.detach().double().requires_grad_()
    values = [of_info_nce(part) for part in (views, exact)]
    gradients = [torch.autograd.grad(value, part)[0] for value, part in zip(values, (views, exact))]
    errors = {
        "loss": abs(values[0].double() / values[1] - 1).item(),
        "gradient": ((gradients[0] - gradients[1]).norm() / gradients[1].norm()).item(),
    }
    for name, error in errors.items():
        assert error < NEAR, f"the {name} in TF32 is off by {error:.2g}"
    return {name: float(f"{error:.2g}") for name, error in errors.items()}
