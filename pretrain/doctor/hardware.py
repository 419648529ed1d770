"""Examine the machine: processors, GPUs, precision, and whether its ranks can meet."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from pretrain.common.cores import threads_of_user, usable_cores
from pretrain.common.processes import free_port, python_path
from pretrain.doctor.findings import Finding

_MEETING_SECONDS = 90.0
_MEET = """
import os, sys, time
import torch, torch.distributed as dist
backend, ranks = sys.argv[1], int(sys.argv[2])
os.environ["WORLD_SIZE"] = str(ranks)
for rank in reversed(range(ranks)):  # forks: the import takes seconds
    os.environ["RANK"] = str(rank)
    if rank and not os.fork():
        break
device = torch.device("cuda", int(os.environ["RANK"])) if backend == "nccl" else torch.device("cpu")
if backend == "nccl":
    torch.cuda.set_device(device)
dist.init_process_group(backend)
numbers = torch.ones(4 << 20, device=device)
dist.all_reduce(numbers)
seconds = []
for _ in range(3):
    if backend == "nccl":
        torch.cuda.synchronize()
    started = time.perf_counter()
    dist.all_reduce(numbers)
    if backend == "nccl":
        torch.cuda.synchronize()
    seconds.append(time.perf_counter() - started)
assert float(numbers[-1]) == dist.get_world_size() ** 4, "the sum is wrong"
if dist.get_rank() == 0:
    print(min(seconds))
dist.destroy_process_group()
"""
"""Ranks: four sums of 16 MiB over all of them, whose value is known; rank 0 prints the least seconds."""


def processor(share: int | None = None) -> list[Finding]:
    """Say which processor, cores and memory there are, and what limits them.

    Args:
        share: CPUs that a job of a cluster gives to this process; None: all are its own.
    """
    model, flags = "unknown processor", set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() == "flags":
            flags = set(value.split())
    special = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    cores = usable_cores()
    findings = [
        Finding("good", f"{model}, {cores} cores ({', '.join(special) or 'no AVX2'}), {memory:.0f} GiB")
    ]
    threads = threads_of_user()
    own = cores if share is None else min(cores, share)
    if threads is not None and threads < own:
        what = f"OMP_NUM_THREADS is {threads}, of {own} cores"
        findings.append(Finding("note", what, "unset it, unless other work needs the remaining cores"))
    load = os.getloadavg()[0]
    if load > cores / 2:
        todo = "training and every measurement will be slower; `top` shows what runs"
        findings.append(
            Finding("note", f"other work is running: a load of {load:.1f} on {cores} cores", todo)
        )
    return findings


def devices() -> list[Finding]:
    """Say which GPUs torch can use."""
    import torch

    if not torch.cuda.is_available():
        if torch.version.cuda is None:
            todo = "for a GPU, install torch's CUDA build" if _has_nvidia() else ""
            return [Finding("note" if todo else "good", "no GPU: torch's CPU build", todo)]
        todo = "nvidia-smi must list one, and its driver be new enough for this CUDA" if _has_nvidia() else ""
        return [
            Finding("wrong" if todo else "note", f"torch for CUDA {torch.version.cuda} finds no GPU", todo)
        ]
    findings = []
    for number in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(number)
        what = (
            f"GPU {number}: {found.name}, {found.total_memory / 2**30:.0f} GiB, compute capability "
            f"{found.major}.{found.minor}"
        )
        free = torch.cuda.mem_get_info(number)[0] / found.total_memory
        todo = "nvidia-smi shows which process holds the rest" if free < 0.9 else ""
        findings.append(Finding("note" if todo else "good", f"{what}, {100 * free:.0f}% free", todo))
    return findings


def precision() -> list[Finding]:
    """Say what `train.precision: auto` will choose: on a CPU, the faster one as measured."""
    import torch

    from pretrain.telemetry.throughput import choose_precision

    device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen, ratio = choose_precision(device)
    why = f"bf16 trains at {ratio:.1f} times the speed of fp32: " if ratio else ""
    return [Finding("good", f"{why}train.precision auto chooses {chosen}")]


def meeting() -> list[Finding]:
    """Have two ranks of this machine (or a rank a GPU) meet, sum, and check the sum."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    backend, ranks = ("nccl", gpus) if gpus > 1 else ("gloo", 2)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    process = subprocess.Popen(
        [sys.executable, "-c", _MEET, backend, str(ranks)],
        env=os.environ | place | {"PYTHONPATH": python_path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=_MEETING_SECONDS)
    except subprocess.TimeoutExpired:
        todo = (
            "a firewall between ports of this machine, or a name that does not lead to it "
            "(GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME name the network interface; NCCL_DEBUG=INFO says "
            "what NCCL waits for)"
        )
        return [
            Finding("wrong", f"{ranks} ranks did not meet by {backend} within {_MEETING_SECONDS:g} s", todo)
        ]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        last = (errors.strip().splitlines() or ["no message"])[-1]
        return [
            Finding("wrong", f"{ranks} ranks fail to meet by {backend}: {last}", "run with NCCL_DEBUG=INFO")
        ]
    seconds = float(output.split()[-1])
    rate = 2 * (ranks - 1) / ranks * 16 / 1024 / seconds
    return [
        Finding(
            "good", f"{ranks} ranks meet by {backend}; a sum of 16 MiB travels at {rate:.1f} GiB/s a rank"
        )
    ]


def _has_nvidia() -> bool:
    return Path("/proc/driver/nvidia/version").exists()
