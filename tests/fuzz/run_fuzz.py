"""Run many cases of a fuzz target in several processes: `make fuzz TARGET=specification CASES=1000000`.

    python tests/fuzz/run_fuzz.py TARGET [--cases N] [--seed S] [--processes P] [--first N]
    python tests/fuzz/run_fuzz.py TARGET --case FILE      one case, with the traceback

Case n of a seed is always the same, whatever the processes. A case that breaks the contract is shortened and
kept in tests/fuzz/seeds/TARGET, where the default tests replay it; so is one that crashes or hangs a process,
which is replaced by another. Cases have a gigabyte of memory beyond what the process takes at its start.
"""

import argparse
import gc
import hashlib
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz_target import SECONDS, SEEDS, Target, fault_of, place_of, shortened

ROOT = Path(__file__).parents[2]
MEMORY = 1 << 30  # bytes that a process may take beyond those of its start
_BLOCK = 64  # cases that a process takes at a time
_SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")


def case_of(target: Target, seed: int, number: int) -> bytes:
    """Return case `number` of a seed."""
    return target.generate(random.Random(f"{target.name} {seed} {number}"))


def keep(target: Target, case: bytes) -> Path:
    """Write a case to the folder of those that are replayed."""
    folder = SEEDS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(case).hexdigest()[:12]
    path.write_bytes(case)
    return path


def _work(name: str, seed: int, last: int, counter: Any, now: Any, own: int, results: Any) -> None:
    """Take blocks of cases until there are none; now[own]: the case at work, and since when."""
    from fuzz_targets import TARGETS

    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        target = TARGETS[name](Path(folder))
        target.check(case_of(target, seed, 0)) if fault_of(target, case_of(target, seed, 0)) is None else None
        if not _SANITIZED:  # whose shadow memory takes 16 TB of addresses
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        gc.freeze()
        kinds: Counter[str] = Counter()
        found: set[str] = set()
        while True:
            with counter.get_lock():
                first = counter.value
                counter.value = first + _BLOCK
            if first >= last:
                break
            for number in range(first, min(first + _BLOCK, last)):
                now[2 * own], now[2 * own + 1] = number, time.monotonic()
                case = case_of(target, seed, number)
                error = fault_of(target, case)
                if error is None:
                    continue
                kinds["faults"] += 1
                place = place_of(error)
                if place not in found:
                    found.add(place)
                    now[2 * own + 1] = time.monotonic() + 600
                    text = "".join(traceback.format_exception(error)[-6:])
                    results.put((number, place, text, shortened(target, case)))
        now[2 * own + 1] = 0
        results.put(kinds)


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run(name: str, cases: int, seed: int, processes: int, first: int = 0) -> int:
    """Run cases first to first + cases - 1; return how many of them broke the contract."""
    import fuzz_targets  # once, before the forks

    context = multiprocessing.get_context("fork")
    counter, results = context.Value("q", first), context.SimpleQueue()
    last, begun, said = first + cases, time.monotonic(), 0.0
    now = context.Array("d", 2 * processes, lock=False)
    target = fuzz_targets.TARGETS[name](Path(tempfile.mkdtemp(dir=_fast_folder())))
    faults, places = 0, set()

    def start(own: int) -> Any:
        now[2 * own + 1] = time.monotonic() + 60
        worker = context.Process(
            target=_work, args=(name, seed, last, counter, now, own, results), daemon=True
        )
        worker.start()
        return worker

    workers = [start(own) for own in range(processes)]
    running = set(range(processes))
    while running or not results.empty():
        while not results.empty():
            result = results.get()
            if isinstance(result, Counter):
                faults += result["faults"]
                continue
            number, place, text, case = result
            if place not in places:
                places.add(place)
                print(
                    f"\ncase {number} of seed {seed}: {place}\n{text}kept: {keep(target, case)}\n", flush=True
                )
        for own in list(running):
            worker = workers[own]
            late = now[2 * own + 1] and time.monotonic() - now[2 * own + 1] > 20 * SECONDS
            if worker.is_alive() and not late:
                continue
            if worker.exitcode == 0:
                running.discard(own)
                continue
            if worker.is_alive():
                worker.kill()
            worker.join()
            number, faults = int(now[2 * own]), faults + 1
            how = "hung" if late else f"ended its process with status {worker.exitcode}"
            path = keep(target, case_of(target, seed, number))
            print(f"\ncase {number} of seed {seed} {how}; kept: {path}\n", flush=True)
            workers[own] = start(own)
        done, took = min(counter.value, last) - first, time.monotonic() - begun
        if took - said > 20:
            said = took
            rate = done / took
            left = (cases - done) / rate / 60 if rate else 0.0
            print(f"{name}: {done:,} of {cases:,} cases, {rate:,.0f}/s, {left:.0f} min left", flush=True)
        time.sleep(0.05)
    took = time.monotonic() - begun
    print(f"{name}: {cases:,} cases of seed {seed} in {took:.0f} s, {cases / took:,.0f}/s; {faults:,} faults")
    return faults


def main() -> int:
    """Read the command line; return 1 where a case broke the contract."""
    os.environ["OMP_NUM_THREADS"] = "1"  # forks of a process with threads of its own may wait for ever
    sys.path[:0] = [str(ROOT / name) for name in ("", "tests", "tests/augment")]
    from fuzz_targets import TARGETS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--case", type=Path)
    given = parser.parse_args()
    if given.case:
        with tempfile.TemporaryDirectory() as folder:
            print(TARGETS[given.target](Path(folder)).check(given.case.read_bytes()))
        return 0
    return bool(run(given.target, given.cases, given.seed, given.processes, given.first))


if __name__ == "__main__":
    sys.exit(main())
