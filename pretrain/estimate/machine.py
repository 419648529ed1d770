"""This machine as a device: what its cores reach, and what memory is free, measured; and a finished run."""

import statistics
from pathlib import Path

import torch

from pretrain.common.cores import usable_cores
from pretrain.common.errors import UserError
from pretrain.common.memory import free_memory
from pretrain.estimate.devices import Device
from pretrain.model.precision import DTYPES
from pretrain.start.local_ranks import threads_of_rank
from pretrain.telemetry.metrics_file import read_metrics
from pretrain.telemetry.throughput import measure_peak_flops

LINK = 0.5e9
"""Bytes/s between two processes of one machine by gloo, assumed; --network says otherwise."""
MEMORY_BANDWIDTH = 10e9
"""Bytes/s of a rank's share of the memory, assumed: it counts for the optimizer's step alone."""


def this_machine(ranks: int, threads: int | None, precision: str) -> Device:
    """Measure a rank's share of this machine; torch uses the rank's threads from then on.

    threads: of a rank; None: as a run would have (OMP_NUM_THREADS, else cores / ranks).
    """
    threads = threads_of_rank(threads, ranks)
    torch.set_num_threads(threads)
    peak = measure_peak_flops("cpu", DTYPES[precision])
    peak *= min(1.0, usable_cores() / (ranks * threads))  # beyond the cores, ranks take turns
    return Device(peak, free_memory() / ranks, MEMORY_BANDWIDTH, LINK, LINK, ranks)


def utilisation_of(run: Path) -> float:
    """Return the share of the peak that a run's steps reached, with repeated work: the median of its rows.

    Raises:
        UserError: the folder has no metrics, or they have no `hfu`.
    """
    found = [row["hfu"] for row in read_metrics(run / "metrics.jsonl") if row.get("hfu")]
    if not found:
        raise UserError(
            f"--measured {run}: {run / 'metrics.jsonl'} has no row with hfu; name the folder of a run that "
            "has trained, or give --mfu"
        )
    return statistics.median(found[1:] or found)  # the first row compiles kernels
