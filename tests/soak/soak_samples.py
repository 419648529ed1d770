"""Sample every process of a run, and what the run leaves in folders and shared memory, from outside by /proc.

A process belongs to the run when it, or any of its ancestors, is one of the ranks that were started, or when
it is in the session of one: what daemonizes halfway is seen, too.
"""

import contextlib
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from run_helpers import paths_in

SHARED = Path("/dev/shm")
MEASURES = ("rss", "pss", "uss", "anonymous", "peak", "descriptors", "threads")
"""anonymous: pages of no file, those too that a forked process still shares."""
RUN_MEASURES = (
    "processes",
    "zombies",
    "shared_entries",
    "shared_bytes",
    "temporary_entries",
    "temporary_bytes",
    "run_files",
    "run_bytes",
    "hidden_entries",
    "checkpoints",
    "machine_free",
    "machine_shared_entries",
)


@dataclass(frozen=True)
class Process:
    """A line of /proc/PID/stat."""

    pid: int
    parent: int
    session: int
    state: str


@dataclass
class Sample:
    """What one look found. seconds: since the start of the soak. processes: role -> measure -> value.

    Memory is in MB (2^20 bytes), and so are the bytes of `run`.
    """

    seconds: float
    start: int
    step: int
    processes: dict[str, dict[str, float]] = field(default_factory=dict)
    run: dict[str, float] = field(default_factory=dict)


def all_processes() -> dict[int, Process]:
    """Return all processes of the machine by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                words = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                found[int(name)] = Process(int(name), int(words[1]), int(words[3]), words[0])
    return found


def processes_of(roots: list[int]) -> dict[int, Process]:
    """Return the processes of the run that these ranks are of, zombies included."""
    machine, wanted = all_processes(), set(roots)

    def belongs(process: Process | None) -> bool:
        while process is not None:
            if process.pid in wanted or process.session in wanted:
                return True
            process = machine.get(process.parent)
        return False

    return {pid: process for pid, process in machine.items() if belongs(process)}


def roles_of(processes: dict[int, Process], ranks: list[int]) -> dict[int, str]:
    """Name each process: "rank 0", and "rank 0 child 1" in the order of their pids, whatever they do."""
    names = {pid: f"rank {number}" for number, pid in enumerate(ranks)}
    counts: dict[str, int] = defaultdict(int)
    for pid in sorted(processes.keys() - names.keys()):
        ancestor = processes[pid].parent
        while ancestor not in ranks and ancestor in processes:
            ancestor = processes[ancestor].parent
        family = names.get(ancestor, "orphan")
        counts[family] += 1
        names[pid] = f"{family} child {counts[family]}"
    return {pid: name for pid, name in names.items() if pid in processes}


def measure_process(pid: int) -> dict[str, float]:
    """Return a process's `MEASURES`, memory in MB.

    Raises: OSError, or KeyError: it has ended.
    """
    folder = Path("/proc", str(pid))
    kilobytes = dict(_fields(folder / "smaps_rollup"))
    status = dict(_fields(folder / "status"))
    return {
        "rss": kilobytes["Rss"] / 1024,
        "pss": kilobytes["Pss"] / 1024,
        "uss": (kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]) / 1024,
        "anonymous": kilobytes["Anonymous"] / 1024,
        "peak": status["VmHWM"] / 1024,
        "descriptors": len(os.listdir(folder / "fd")),
        "threads": status["Threads"],
    }


def _fields(path: Path):
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        value = rest.split()[0] if rest.split() else ""
        if value.isdigit():
            yield name, int(value)


def shared_entries_of(pids) -> set[str]:
    """Return the names in /dev/shm that these processes map or have open; those already deleted, too."""
    names = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path("/proc", str(pid), "maps").read_text().splitlines():
                if (at := line.find(f"{SHARED}/")) >= 0:
                    names.add(line[at:])
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(entry.path)
                    if target.startswith(f"{SHARED}/"):
                        names.add(target)
    return names


def size_of(names: set[str]) -> int:
    """Return the bytes of files, without those that are gone."""
    total = 0
    for name in names:
        with contextlib.suppress(OSError):
            total += os.stat(name).st_size
    return total


def count_files(folder: Path) -> tuple[int, int]:
    """Return the number of files below a folder, and their bytes; files may come and go meanwhile."""
    count = total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
                count += 1
    return count, total


def hidden_entries(folder: Path) -> list[str]:
    """Return what is half-written or temporary in a run folder: hidden names, but for the run's lock."""
    return sorted(
        str(path.relative_to(folder))
        for path in paths_in(folder, "**/.*")
        if path.name not in (".lock", ".lock.holder")
    )


class Sampler:
    """Samples of one run over all of its starts, and the names it was ever seen to hold in /dev/shm."""

    def __init__(self, run: Path, temporary: Path) -> None:
        """
        Args:
            temporary: TMPDIR of the run, which nothing else uses.
        """
        self.run, self.temporary = run, temporary
        self.began = time.monotonic()
        self.samples: list[Sample] = []
        self.shared_seen: set[str] = set()

    def take(self, ranks: list[int], start: int, step: int) -> Sample:
        """Look once, and keep what was found."""
        sample = Sample(time.monotonic() - self.began, start, step)
        processes = processes_of(ranks)
        alive = {pid for pid, process in processes.items() if process.state != "Z"}
        for pid, role in roles_of(processes, ranks).items():
            with contextlib.suppress(OSError, KeyError):
                sample.processes[role] = measure_process(pid)
        shared = shared_entries_of(alive)
        self.shared_seen |= {name for name in shared if not name.endswith(" (deleted)")}
        files, size = count_files(self.run)
        temporary, temporary_size = count_files(self.temporary)
        megabyte = 1 << 20
        sample.run = {
            "processes": len(alive),
            "zombies": len(processes) - len(alive),
            "shared_entries": len(shared),
            "shared_bytes": size_of(shared) / megabyte,
            "temporary_entries": temporary,
            "temporary_bytes": temporary_size / megabyte,
            "run_files": files,
            "run_bytes": size / megabyte,
            "hidden_entries": len(hidden_entries(self.run)),
            "checkpoints": len(list((self.run / "checkpoints").glob("step-*"))),
            "machine_free": _available(),
            "machine_shared_entries": len(os.listdir(SHARED)),
        }
        self.samples.append(sample)
        return sample

    def left_behind(self, ranks: list[int]) -> dict[str, list[str]]:
        """Return what is still there after an end: processes, entries in /dev/shm, temporary files."""
        found = {
            "processes": [str(pid) for pid in processes_of(ranks)],
            "shared memory": sorted(name for name in self.shared_seen if os.path.exists(name)),
            "temporary files": sorted(str(path) for path in self.temporary.rglob("*") if path.is_file()),
            "hidden files": hidden_entries(self.run),
            "locks": [name for name in (".lock", ".lock.holder") if (self.run / name).exists()],
        }
        return {what: names for what, names in found.items() if names}


def _available() -> float:
    return dict(_fields(Path("/proc/meminfo")))["MemAvailable"] / 1024


def write_tables(samples: list[Sample], folder: Path) -> None:
    """Write processes.tsv and run.tsv."""
    rows = ["\t".join(("seconds", "start", "step", "process", *MEASURES))]
    for sample in samples:
        head = f"{sample.seconds:.1f}\t{sample.start}\t{sample.step}"
        for role, values in sample.processes.items():
            rows.append("\t".join((head, role, *(f"{values[name]:.10g}" for name in MEASURES))))
    (folder / "processes.tsv").write_text("\n".join(rows) + "\n")
    rows = ["\t".join(("seconds", "start", "step", *RUN_MEASURES))]
    for sample in samples:
        head = f"{sample.seconds:.1f}\t{sample.start}\t{sample.step}"
        rows.append("\t".join((head, *(f"{sample.run[name]:.10g}" for name in RUN_MEASURES))))
    (folder / "run.tsv").write_text("\n".join(rows) + "\n")
