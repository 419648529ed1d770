"""Named semaphores of killed preparations are removed by the next one, those of living ones never."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

from forked_python import ForkedPython
from run_helpers import ROOT, environment

from pretrain.prepare.semaphores import name_semaphores

HOLDS_TWO = (
    "import multiprocess, time; from pretrain.prepare.semaphores import name_semaphores\n"
    "name_semaphores(multiprocess.process.current_process())\n"
    "locks = [multiprocess.get_context('forkserver').Lock() for _ in range(2)]\n"
    "print('made', flush=True); time.sleep(600)"
)


def names_of(process: ForkedPython) -> list[Path]:
    return list(Path("/dev/shm").glob(f"sem.clear-*-{process.pid}-*"))


def test_names_of_the_dead_are_removed():
    processes = [ForkedPython(["-c", HOLDS_TWO], environment(), ROOT) for _ in range(2)]
    try:
        assert [process.stdout.readline() for process in processes] == ["made\n"] * 2
        killed, living = processes
        os.killpg(killed.pid, signal.SIGKILL)  # and what would remove the names
        killed.wait()
        assert len(names_of(killed)) == len(names_of(living)) == 2
        name_semaphores(SimpleNamespace(_config={}))
        assert not names_of(killed) and len(names_of(living)) == 2
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        name_semaphores(SimpleNamespace(_config={}))
    assert not names_of(living)
