"""Several processes that share one evaluation's list of runs, a core each, where there is no GPU.

A step of fine-tuning has some 16 examples: two threads are hardly faster at it than one. Runs do not depend
on each other, so each core does runs of its own. Every process goes through the same list, and leaves out
what is done or claimed by another (`RunStore.claimed`); figures do not depend on who computes them.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pretrain.common.cores import threads_of_user, usable_cores
from pretrain.common.memory import processes_that_fit
from pretrain.common.shutdown import EXIT_CODES

_BYTES_OF_A_PROCESS = 1 << 30  # libraries, the tokenised data, and the activations of a batch


def choose_processes(runs: int, parameters: int) -> int:
    """Return how many processes share the runs: one a core, as half of the free memory allows; 1 on a GPU."""
    if torch.cuda.is_available() or threads_of_user():
        return 1
    return max(1, min(usable_cores(), runs, processes_that_fit(parameters, _BYTES_OF_A_PROCESS)))


@contextmanager
def with_helpers(processes: int, work: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Run `work(*arguments)` in `processes` - 1 others, a thread each, until the block ends or raises."""
    if processes == 1:
        yield
        return
    how = "with a thread each (one per core; OMP_NUM_THREADS decides otherwise)"
    print(f"{processes} processes {how}", file=sys.stderr, flush=True)
    new, threads = multiprocessing.get_context("spawn"), torch.get_num_threads()
    others = [new.Process(target=work, args=arguments, daemon=True) for _ in range(processes - 1)]
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        for other in others:
            other.start()
        torch.set_num_threads(1)
        yield
    except BaseException:
        for other in others:
            other.terminate()  # SIGTERM, upon which it saves
        raise
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
        for other in others:
            other.join()
            if other.exitcode not in EXIT_CODES.values() and other.exitcode != -signal.SIGTERM:
                status = f"(status {other.exitcode}); this one does its runs"
                print(f"a process beside this one failed {status}", file=sys.stderr, flush=True)
        torch.set_num_threads(threads)
