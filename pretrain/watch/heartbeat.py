"""Where each rank stands, in files of the run folder: what is left to read when the network hangs.

Every rank writes a file of its own; nobody locks, waits or talks to another rank. The clocks of machines are
not compared: a rank is alive if it has beaten between two looks.
"""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from pretrain.common.processes import start_of, stat_fields

WIDTH = 512
"""Bytes of a file: it is written over in place, with one call."""
ENDS = "end"
"""Phase of a rank that has met an error, and waits for nobody."""
STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "waiting for a disk or a driver"}
"""States of /proc/PID/stat in which a process does nothing."""


@dataclass(frozen=True)
class Heartbeat:
    """What a rank last said of itself.

    pid, started, machine: identify the process: `started` is field 22 of /proc/PID/stat, `machine` the start
        of the kernel and the namespace of pids. beat: counts the heartbeats.
    step: steps done. phase: of the step that runs, or what runs instead. seconds: since it last went on.
    """

    rank: int
    host: str
    pid: int
    started: int
    machine: str
    beat: int
    step: int
    phase: str
    seconds: float

    def write(self, folder: Path) -> None:
        """Write it over the one before. Raises OSError."""
        line = json.dumps(asdict(self))[: WIDTH - 1].ljust(WIDTH - 1) + "\n"
        file = os.open(folder / f"rank-{self.rank}", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)  # a network file system shows others what was written when the file is closed

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self.host}, process {self.pid})"

    @property
    def is_here(self) -> bool:
        """Whether the process is one of this machine, and lives."""
        return self.machine == machine() and start_of(self.pid) == self.started

    @property
    def has_ended(self) -> bool:
        """Whether the process was one of this machine, and has ended."""
        return self.machine == machine() and not (self.is_here and state_of(self.pid) not in "ZX")

    def kill(self) -> None:
        """End the process, if it is one of this machine: SIGKILL, which ends a stopped one too."""
        if self.is_here:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)


def heartbeat(rank: int, beat: int, step: int, phase: str, seconds: float) -> Heartbeat:
    """Return a heartbeat of this process."""
    pid, host = os.getpid(), socket.gethostname()
    return Heartbeat(rank, host, pid, start_of(pid) or 0, machine(), beat, step, phase, round(seconds, 1))


def read_all(folder: Path) -> dict[int, Heartbeat]:
    """Return rank -> its last heartbeat, of the ranks that have one to be read."""
    beats = {}
    for path in folder.glob("rank-*"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            beat = Heartbeat(**json.loads(path.read_text()))
            beats[beat.rank] = beat
    return beats


def who_is_behind(first_look: Mapping[int, Heartbeat], now: Mapping[int, Heartbeat], ranks: int) -> str:
    """Say which rank keeps the others waiting, and in what it is.

    Ranks that did not beat between the two looks, further apart than two beats, come first, then those of the
    lowest step, then those that wait for data while others do not.
    """
    silent = silent_ranks(first_look, now, ranks)
    if silent:
        return _listed([_silence(rank, now.get(rank)) for rank in silent], silent, now)
    first = min(beat.step for beat in now.values())
    late = [beat for beat in now.values() if beat.step == first]
    if len(late) == len(now):
        late = [beat for beat in now.values() if beat.phase == "data"]
    if late and len(late) < len(now):
        named = [f"{beat.name} is at step {beat.step + 1}, in {beat.phase}{_workers(beat)}" for beat in late]
        return _listed(named, [beat.rank for beat in late], now)
    where = f"step {first + 1}, in {' and '.join(sorted({beat.phase for beat in now.values()}))}"
    if ranks == 1:
        return f"{now[0].name} does not go on with {where}{_workers(now[0])}"
    return f"all {ranks} ranks are at {where}: the network between them, or a device, hangs"


def silent_ranks(first_look: Mapping[int, Heartbeat], now: Mapping[int, Heartbeat], ranks: int) -> list[int]:
    """Return the ranks that did not beat between two looks, or never did."""
    beats, earlier = ({rank: one.beat for rank, one in look.items()} for look in (now, first_look))
    return [rank for rank in range(ranks) if rank not in beats or beats[rank] == earlier.get(rank)]


def _silence(rank: int, last: Heartbeat | None) -> str:
    if last is None:
        return f"rank {rank} has never given a sign of life"
    where = f"after step {last.step}, in {last.phase}"
    if last.has_ended:
        return f"{last.name} has ended without a word {where}: it was killed, perhaps for want of memory"
    if last.is_here and (state := STATES.get(state_of(last.pid))):
        return f"{last.name} is {state} {where}"
    return f"{last.name} gives no sign of life {where}: it was stopped or killed, or its machine is gone"


def _listed(texts: list[str], named: list[int], now: Mapping[int, Heartbeat]) -> str:
    """Return what is said of the named ranks, and in what the other ranks wait."""
    more = f"; and {len(texts) - 4} more" if len(texts) > 4 else ""
    phases = sorted({beat.phase for rank, beat in now.items() if rank not in named} - {ENDS})
    others = f"; the other ranks wait in {' and '.join(phases)}" if phases else ""
    return "; ".join(texts[:4]) + more + others


def _workers(beat: Heartbeat) -> str:
    """Return what is wrong with the children of a rank of this machine: its loader workers."""
    if beat.phase != "data" or not beat.is_here:
        return ""
    states = {child: STATES.get(state_of(child)) for child in children_of(beat.pid)}
    idle = [f"{child} is {state}" for child, state in states.items() if state]
    return f" (loader worker {', '.join(idle)})" if idle else " (its loader workers make none)"


# -- this machine's processes --------------------------------------------------


@cache
def machine() -> str:
    """Return what tells this start of this machine, and this namespace of pids, from all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux
        return ""


def state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process; X: there is none."""
    return (stat_fields(pid) or ["X"])[0]


def children_of(pid: int) -> list[int]:
    """Return the pids of the children of a process."""
    children: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, path.read_text().split())
    return children
