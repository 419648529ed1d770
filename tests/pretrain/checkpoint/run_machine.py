"""A run folder that is started, killed, damaged, resumed and moved in any order, and what must hold then.

The rows, evaluations and checkpoints of a step are bitwise those of every other run whose steps were done by
the same worlds (ranks, ZeRO stage, micro-batches); the first of each world is a run that nothing interrupts.
Between worlds, batches are the same and losses equal to rounding.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from checkpoint_helpers import flip
from run_helpers import BUSY, command, kill, outputs_of, records, start
from unbroken_runs import FLAGS, MOST_STEPS, Seen, World, content_of, require_rows, weights_of
from write_faults import is_lock

from pretrain.checkpoint.store import candidates, problem_with, read_state, step_of
from pretrain.commands.inspect import inspect
from pretrain.common.shutdown import EXIT_REQUEUE
from pretrain.export.folder import read_policy

STEPS = 6  # of a run at first
CALLS_OF_A_START = {"writes": 400, "collectives": 80}  # about
FIRST_CALL = 10  # when ranks have met; before, the others wait for as long as train.rendezvous_seconds
EVENTS = {
    "change_world": 3, "make_longer": 1, "go_on": 1, "kill_at_operation": 4, "kill_at_time": 3, "stop": 3,
    "fill_the_disk": 3, "damage": 3, "damage_latest": 1, "damage_best": 1, "cut_metrics": 1,
}  # fmt: skip
"""Method -> how often it is called, beside the others."""
MACHINE = Path(__file__).with_name("faulty_run.py")


def processes_of(sessions: set[int]) -> list[int]:
    """Return the processes of these sessions that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) in sessions and state != "Z":
            found.append(int(stat.parent.name))
    return found


def content_of_tree(folder: Path) -> dict[str, bytes]:
    """Return every file under a folder but a stop file, which is ours, and a lock, which a kill leaves."""
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name != "stop" and not is_lock(path.name)
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class RunMachine:
    """One run folder, to which things happen that are drawn from a seed.

    Args:
        choices: the worlds that it may be in.
    """

    def __init__(self, seen: Seen, choices: tuple[World, ...], draw: Random) -> None:
        self.seen, self.choices, self.draw = seen, choices, draw
        number = sum(1 for _ in self.seen.folder.glob("run-*"))
        self.run = self.seen.folder / f"run-{number}"
        self.checkpoints = self.run / "checkpoints"
        self.world, self.workers, self.steps = draw.choice(choices), 0, STEPS
        self.worlds: dict[int, World] = {}  # of each step of metrics.jsonl
        self.lost: set[int] = set()  # steps whose rows have been cut away
        self.damaged: dict[str, tuple[Path, bytes]] = {}  # checkpoint -> the file, as it was
        self.best_damaged = False
        self.inspected = b""
        self.told: list[str] = []
        self.stopped = False  # the last start, before its last step, because it was asked to

    def live(self, events: int) -> None:
        """Let so many things happen, and the run go on to its end; all that must hold does after each."""
        done = self.draw.choices([*EVENTS], [*EVENTS.values()], k=events)
        draws = [Random(self.draw.getrandbits(32)) for _ in done]  # however many one of them takes
        try:
            for name, self.draw in zip(done, draws, strict=True):
                getattr(self, name)()
                self.require_all()
            while not self._start():
                pass
            self.require_all()
        except BaseException as error:
            error.add_note("\n".join([f"{self.run}: {', '.join(done)}", *self.told[-3:]]))
            raise
        shutil.rmtree(self.run, ignore_errors=True)
        self.run.mkdir()  # its number is taken

    # -- what happens to it ------------------------------------------------------------------------

    def change_world(self):
        self.world = self.draw.choice(self.choices)

    def go_on(self):
        self._start()

    def make_longer(self):
        if self.worlds:
            self.steps = min(MOST_STEPS, self.steps + self.draw.randint(1, 3))

    def kill_at_operation(self):
        """A rank, which the others survive until they notice; or all, as soon as one has ended."""
        calls = self.draw.choice([*CALLS_OF_A_START])
        number = FIRST_CALL + self.draw.randrange(CALLS_OF_A_START[calls])
        fault = {"rank": self._rank(), "calls": calls, "number": number, "what": "kill"}
        meanwhile = self.draw.choice([self._nothing, self._kill_when_one_has_ended])
        self._start(fault=fault, meanwhile=meanwhile)

    def kill_at_time(self):
        whom = self.draw.choice([None, self._rank()])  # None: all of them
        steps, wait = self.draw.randint(0, 5), self.draw.uniform(0, 0.5)

        def strike(ranks):
            self._wait_for_step(ranks, steps)
            time.sleep(wait)
            for process in ranks if whom is None else [ranks[whom]]:
                if process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)

        self._start(meanwhile=strike)

    def stop(self):
        how = self.draw.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, "stop"])
        steps, rank = self.draw.randint(1, 2), self._rank()
        self.steps = min(MOST_STEPS, self.steps + 3)  # or it ends before it is asked

        def ask(ranks):
            self._wait_for_step(ranks, steps)
            if how == "stop":
                (self.run / "stop").touch()
            elif ranks[rank].poll() is None:
                os.kill(ranks[rank].pid, how)

        self._start(meanwhile=ask)
        if self.stopped:
            self.seen.happened[f"stopped by {how if how == 'stop' else how.name}"] += 1
        (self.run / "stop").unlink(missing_ok=True)  # where the run ended before it looked

    def fill_the_disk(self):
        number = self.draw.randrange(CALLS_OF_A_START["writes"])
        self._start(fault={"rank": self._rank(), "calls": "writes", "number": number, "what": "full"})

    def damage(self):
        """One checkpoint, or all."""
        named = self._named()
        for checkpoint in named if self.draw.random() < 0.3 else self.draw.sample(named, min(1, len(named))):
            files = sorted(path for path in checkpoint.iterdir() if path.is_file())
            if checkpoint.name in self.damaged or not files:
                continue
            path, how = self.draw.choice(files), self._way()
            if path.name == "manifest.json" and how == "flip":
                how = "cut"  # not every bit of it says something
            self.damaged[checkpoint.name] = path, path.read_bytes()
            self._harm(path, how)
            self.seen.happened["a checkpoint damaged"] += 1

    def damage_latest(self):
        if (self.checkpoints / "latest").exists():
            self._harm(self.checkpoints / "latest", self._way())
            self.seen.happened["latest damaged"] += 1

    def damage_best(self):
        files = sorted(path for path in (self.run / "best").rglob("*") if path.is_file())
        if files:
            self.best_damaged = True
            self._harm(self.draw.choice(files), self.draw.choice(["cut", "delete"]))
            self.seen.happened["best damaged"] += 1

    def cut_metrics(self):
        path = self.run / "metrics.jsonl"
        if not path.exists():
            return
        before = {row["step"] for row in records(self.run) if "loss" in row}
        os.truncate(path, max(0, path.stat().st_size - self.draw.randint(1, 3000)))
        with open(path, "a") as file:
            file.write('{"step": 3, "loss"')  # as a kill cuts a line
        self.lost |= before - {row["step"] for row in records(self.run) if "loss" in row}
        self.seen.happened["metrics cut"] += 1

    def _rank(self) -> int:
        return self.draw.randrange(self.world.ranks)

    def _way(self) -> str:
        return self.draw.choice(["flip", "cut", "delete"])

    @staticmethod
    def _harm(path: Path, how: str) -> None:
        if how == "flip":
            flip(path)
        elif how == "cut":
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.unlink()

    # -- starts ------------------------------------------------------------------------------------

    def _start(self, fault: dict | None = None, meanwhile: Callable | None = None) -> bool:
        """Start the run, let something happen to it, and see how it ends; return whether it found a start."""
        self.workers = self.draw.randint(0, 1)
        before, begun = self._newest_whole(), time.time()
        if before is not None and step_of(before) == self.steps:  # else there is nothing to do
            self.steps = min(MOST_STEPS, self.steps + 3)
        refused = before is None and bool(self._aside() or self.damaged)
        tree = content_of_tree(self.run) if refused and fault is None else None
        if not self.run.exists() or not self.worlds:
            self.seen.require_reference(self.world)
        flags = FLAGS | self.world.flags | {"train__steps": self.steps, "data__workers": self.workers}
        words = command(self.seen.data, self.run, checkpoint__resume="auto", checkpoint__keep=3, **flags)
        if fault is not None:
            words = [str(MACHINE), json.dumps(fault), *words]
        ranks = start(words, self.world.ranks)
        sessions = {process.pid for process in ranks}
        try:
            (meanwhile or self._nothing)(ranks)
            outputs = outputs_of(ranks, 120)
        except BaseException:
            for process in ranks:
                if process.poll() is None:
                    kill([process])
            raise
        codes = [process.returncode for process in ranks]
        self._require_no_processes(sessions)
        said = "\n".join(outputs)
        self.told.append(f"{codes} {fault}\n{said[-4000:]}")
        struck = -signal.SIGKILL in codes
        self.stopped = not struck and "stopping" in said
        self._count(before, codes, said)
        if not struck:
            assert len(set(codes)) == 1, said
            assert "Traceback" not in said, said
        for code in codes:
            assert code in (0, 2, 75, 130, 143, 1 if struck else 0, -signal.SIGKILL), said
        if refused and not struck and fault is None:
            assert codes[0] == 2 and "none can be used" in said, said
            assert content_of_tree(self.run) == tree
            self._restore()
            return False
        for line in outputs[0].splitlines():
            if line.startswith("run  "):
                where = f"resumed from {before} at step {step_of(before)}" if before else "new"
                assert where in line or (before is None and "resumed" not in line), (line, before)
                self.damaged = {
                    name: of
                    for name, of in self.damaged.items()
                    if before is not None and name <= before.name and (self.checkpoints / name).exists()
                }
        for row in records(self.run):
            if row["wall_time"] >= begun and "loss" in row:
                self.worlds[row["step"]] = self.world
                self.lost.discard(row["step"])
        if not struck and codes[0] in (0, 130, 143, EXIT_REQUEUE):
            self._require_clean(codes[0], said)
        return True

    def _count(self, before: Path | None, codes: list[int], said: str) -> None:
        """Count what came about in a start. before: the checkpoint that it goes on from."""
        happened = self.seen.happened
        happened[f"started with {self.world.ranks} ranks"] += 1
        happened[f"started with ZeRO {self.world.zero}"] += 1
        if before is not None:
            did = self.worlds[step_of(before)]
            for what in World._fields:
                happened[f"resumed with other {what}"] += getattr(did, what) != getattr(self.world, what)
            happened["resumed behind a damaged checkpoint"] += any(
                name > before.name for name in self.damaged
            )
            happened["resumed a longer run"] += self.steps > STEPS
        killed = codes.count(-signal.SIGKILL)
        happened["all ranks killed"] += killed == len(codes)
        happened["one rank of several killed"] += 0 < killed < len(codes)
        happened["the disk full"] += not killed and "No space left" in said
        happened["no checkpoint could be used"] += "none can be used" in said
        happened["the last step done"] += codes == [0] * len(codes) and not self.stopped

    @staticmethod
    def _nothing(ranks: list[subprocess.Popen]) -> None:
        pass

    @staticmethod
    def _kill_when_one_has_ended(ranks: list[subprocess.Popen]) -> None:
        end = time.monotonic() + BUSY * 120
        while all(process.poll() is None for process in ranks):
            assert time.monotonic() < end
            time.sleep(0.002)
        if any(process.returncode for process in ranks if process.returncode is not None):
            for process in ranks:
                if process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)

    def _wait_for_step(self, ranks: list[subprocess.Popen], steps: int) -> None:
        """Wait until this start has done so many steps, or has ended."""
        begun, end = time.time(), time.monotonic() + BUSY * 120
        while all(process.poll() is None for process in ranks) and time.monotonic() < end:
            if sum(row["wall_time"] >= begun and "loss" in row for row in records(self.run)) >= steps:
                break
            time.sleep(0.005)

    def _restore(self) -> None:
        """Bring a damaged checkpoint back from a copy, as the refusal says."""
        name = max(self.damaged, default=None)
        if name is None:  # all were renamed by an earlier start
            aside = self._aside()[-1]
            shutil.rmtree(self.run)
            self.worlds, self.lost = {}, set()
            self.told.append(f"moved away: {aside}")
            return
        path, content = self.damaged.pop(name)
        path.write_bytes(content)

    # -- what must hold ----------------------------------------------------------------------------

    def require_all(self) -> None:
        self.require_checkpoints_whole_or_damaged_by_us()
        self.require_rows_of_the_unbroken_run()
        self.require_inspection()

    def _named(self) -> list[Path]:
        return candidates(self.checkpoints)

    def _aside(self) -> list[Path]:
        return sorted(self.checkpoints.glob("step-*.damaged*"))

    def _newest_whole(self) -> Path | None:
        return next((path for path in self._named() if path.name not in self.damaged), None)

    @staticmethod
    def _require_no_processes(sessions: set[int]) -> None:
        end = time.monotonic() + BUSY * 15
        while left := processes_of(sessions):
            assert time.monotonic() < end, f"still there: {left}"
            time.sleep(0.01)

    def _require_clean(self, code: int, said: str) -> None:
        """Hold a start that has ended by itself, at its last step or because it was asked to."""
        rows = [row["step"] for row in records(self.run) if "loss" in row]
        newest = self._newest_whole()
        assert newest is not None and (not rows or step_of(newest) >= rows[-1]), said
        half = [path.name for path in self.run.rglob("*") if path.name == "watch" or path.name[0] == "."]
        assert not half, half
        history = tuple(self.worlds[step] for step in range(1, step_of(newest) + 1))
        state = read_state(newest)["progress"]
        if state["best_score"] is not None:
            policy = read_policy(self.run / "best")
            assert policy is not None and policy["step"] == state["best_step"], said
            self.best_damaged = False
        if step_of(newest) == self.steps and code == 0 and "stopping" not in said:
            self.seen.require_same("export", history, weights_of(self.run / "export"))

    def require_checkpoints_whole_or_damaged_by_us(self):
        for checkpoint in self._named():
            problem = problem_with(checkpoint)
            if checkpoint.name in self.damaged:
                assert problem is not None and problem.kind == "damaged", checkpoint
            else:
                assert problem is None, f"{checkpoint} {problem}"
                assert read_state(checkpoint)["step"] == step_of(checkpoint)
                history = tuple(self.worlds[step] for step in range(1, step_of(checkpoint) + 1))
                self.seen.require_same("checkpoint", history, content_of(checkpoint))

    def require_rows_of_the_unbroken_run(self):
        steps = require_rows(self.run, self.seen, self.worlds)
        last = max([0, *steps])
        assert steps == [step for step in range(1, last + 1) if step not in self.lost], (steps, self.lost)

    def require_inspection(self):
        recipe = self.run / "config.yaml"
        if recipe.exists() and recipe.read_bytes() != self.inspected:
            self.inspected = recipe.read_bytes()
            inspect(config=str(self.run / "config.yaml"), show=0)
