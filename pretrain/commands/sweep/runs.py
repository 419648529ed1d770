"""The runs of a sweep: which there are, their state, and training those that are not done.

A run's folder ends in a digest of everything that defines it (recipe and overrides, resolved; seed; data;
start). So every row and sweep that asks for a run finds it again, and never one with other settings.
"""

import hashlib
import json
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pretrain.commands.sweep.file import TableEntry
from pretrain.common import shutdown
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, remove_file, replace
from pretrain.common.folder_lock import FolderTakenError, folder_lock
from pretrain.common.processes import failure_line, start_logged, wait_for_end
from pretrain.common.run_folder import read_summary
from pretrain.config.run import DROPOUTS, Config

ROOT = Path(__file__).resolve().parents[3]
MAIN = ROOT / "pretrain" / "main.py"
# Keys that may differ between two starts of the same run.
FREE = {
    "data": {"remote", "prepare", "workers", "damaged"},
    "train": {"micro_batch_tokens", "zero", "threads", "log_every", "rendezvous_seconds"},
    "evaluate": {"sts"},
}


@dataclass(frozen=True)
class SweepRun:
    """One training run: a row with a seed, in a folder of its own."""

    name: str
    entry: TableEntry
    seed: int
    folder: Path

    @property
    def config(self) -> Config:
        return self.entry.config(self.seed)

    @property
    def summary(self) -> dict | None:
        """The summary of a finished run; None: it is not finished."""
        return read_summary(self.folder)

    @property
    def steps_done(self) -> int:
        """Steps up to the newest checkpoint."""
        steps = (path.name[5:] for path in (self.folder / "checkpoints").glob("step-*"))
        return max((int(step) for step in steps if step.isdecimal()), default=0)

    @property
    def state(self) -> Literal["done", "begun", "to do"]:
        return "done" if self.summary is not None else "begun" if self.steps_done else "to do"

    @property
    def scores(self) -> dict[str, float]:
        """What training's evaluation of best/ gave, by name; empty: the run is unfinished."""
        return (self.summary or {}).get("best", {})

    @property
    def dev(self) -> float | None:
        """STS-B dev (Spearman x 100) of best/ during training; None: unfinished, or no STS data."""
        return self.scores.get("stsb-dev")

    def words(self, **more: str) -> list[str]:
        """Return the flags of pretrain/main.py for this run, and more of them.

        Keys are written in full: a launcher may take a short one for its own, as torchrun takes `--run` for
        `--run-path`.
        """
        flags = {"config": str(self.entry.recipe), **self.entry.overrides, "train.seed": str(self.seed)}
        return [f"--{key}={value}" for key, value in (flags | {"folder": str(self.folder)} | more).items()]


def identity(config: Config) -> str:
    """Return the digest of what defines a run, without keys at their default: new keys change no digest."""
    tree = config.model_dump(mode="json", exclude_defaults=True)
    for section, keys in FREE.items():
        for key in keys:
            tree.get(section, {}).pop(key, None)
    folder = str(config.data_folder.resolve())
    tree["data"] = tree.get("data", {}) | {"folder": folder, "lanes": config.data.lanes}
    if config.data.sets:
        tree["data"]["sets"] = [(str(one.folder.resolve()), one.weight) for one in config.data.sets]
        tree["data"]["temperature"] = config.data.temperature
    guides = tree.get("objective", {}).get("false_negatives", {})
    generators = tree.get("objective", {}).get("diffcse", {})
    for section, key in ((tree.get("model", {}), "init"), (guides, "guide"), (generators, "generator")):
        if section.get(key) is not None and Path(section[key]).exists():  # else a hub's name, or a word
            section[key] = str(Path(section[key]).resolve())
    # a dropout that is given replaces the checkpoint's, even if it is the default
    if config.model.init is not None:
        given = [key for key in DROPOUTS if key in config.model.model_fields_set]
        tree["model"] |= {key: getattr(config.model, key) for key in given}
    for key in ("name", "folder", "track", "checkpoint"):
        tree.pop(key, None)
    tree = {key: value for key, value in tree.items() if value != {}}
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:10]


def run_of(entry: TableEntry, seed: int, out: Path) -> SweepRun:
    """Return the run of a row and a seed, in its folder if that exists, else in one named by the row."""
    digest = identity(entry.config(seed))
    existing = sorted((out / "runs").glob(f"*-{digest}"))
    folder = existing[0] if existing else out / "runs" / f"{slug(entry.name)}-seed{seed}-{digest}"
    return SweepRun(f"{entry.name}, seed {seed}", entry, seed, folder)


def slug(name: str) -> str:
    """Return a name for a folder: lower case, at most 60 characters; hyphens replace other characters."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.").lower()[:60] or "run"


class SweepPlan:
    """The runs of a sweep. `runs` has each once, in a fixed order, also if several rows share it."""

    def __init__(self, entries: list[TableEntry], seeds: list[int], out: Path):
        self.entries, self.seeds, self.out = entries, seeds, out
        runs: dict[str, SweepRun] = {}
        for run in (run for entry in entries for run in self.runs_of(entry)):
            runs.setdefault(identity(run.config), run)
        self.runs = list(runs.values())

    def seeds_of(self, entry: TableEntry) -> list[int]:
        """Return the seeds of a row: its own, else the sweep's."""
        return entry.row.seeds or self.seeds

    def runs_of(self, entry: TableEntry) -> list[SweepRun]:
        """Return the runs of a row, one for each seed."""
        return [run_of(entry, seed, self.out) for seed in self.seeds_of(entry)] if entry.runs else []


@dataclass(eq=False)
class StopRequested(Exception):
    """Raised to stop a sweep; finished work is kept.

    request: as `pretrain.common.shutdown` counts them. said: why, where the request does not tell.
    """

    request: int
    said: str = ""


class Trainer:
    """Train runs, each in a process of its own. A signal to this process makes them save.

    A run in a single Python process receives the same signal. A launcher (`launch`: words before
    pretrain/main.py) would end its ranks, or die while they run on, so its run is stopped by the stop file.
    """

    def __init__(self, launch: list[str], environment: dict[str, str], print_line: Callable[[str], None]):
        self.launch, self.environment, self.print_line = launch or [sys.executable], environment, print_line
        self.by_file = bool(launch)
        self.shutdown = shutdown.Shutdown(Path("."), watch_file=False)
        self.failures: dict[str, str] = {}

    def train(self, run: SweepRun, heading: str) -> bool:
        """Train a run to its end, from its newest checkpoint; return whether it is done."""
        self.check_for_stop()
        make_folder(run.folder)
        try:
            with folder_lock(run.folder, part="sweep"):
                with folder_lock(run.folder):
                    pass  # nothing else trains in it: a run of a killed sweep, or one started by hand
                if run.state == "done":
                    return True
                begun = f", from step {run.steps_done:,}" if run.steps_done else ""
                steps = f"{run.config.train.steps:,} steps{begun}"
                self.print_line(f"{heading}{run.name}, {steps}; {run.folder}/log.txt")
                words = [*self.launch, str(MAIN), *run.words(**{"checkpoint.resume": "auto"})]
                code = self._process(words, run.folder)
        except FolderTakenError as taken:
            self.print_line(f"{heading}{run.name}: another process trains it. {taken}")
            return False
        if run.state == "done":
            return True
        self.check_for_stop()
        from pretrain.watch.ending import read_verdict  # imports torch

        # the run itself was asked to stop; or it ended by a fault that may pass, and says so in its folder
        explained = read_verdict(run.folder) is not None
        for request in (shutdown.STOP, *shutdown.SIGNALS.values()):
            if code == shutdown.EXIT_CODES[request] and not explained:
                # 75: it was asked to save, or its storage failed
                said = f"{run.name} ended with status {code}, and {run.folder / 'log.txt'} says why"
                raise StopRequested(request, said if request == shutdown.REQUEUE else "")
        self.failures[run.name] = failure_line(run.folder / "log.txt", code)
        self.print_line(f"  FAILED ({code}): {self.failures[run.name]}  Full log: {run.folder / 'log.txt'}")
        return False

    def _process(self, words: list[str], folder: Path) -> int:
        """Run a process to its end; return its exit status. It saves and ends if this process is killed."""
        log = folder / "log.txt"
        try:
            child = start_logged(words, log, self.environment, append=True, at_parents_end=signal.SIGTERM)
        except OSError as error:
            raise UserError(f"--launch: {words[0]} cannot be started ({error.strerror})") from None
        stopping = False

        def pass_on_request() -> None:
            nonlocal stopping
            request = self.shutdown.requested()
            if request and not stopping:
                stopping = True
                self.print_line(f"{shutdown.REASONS[request]}: waiting for the run to save")
                if self.by_file:
                    replace(folder / shutdown.STOP_FILE, b"")
                else:
                    signals = {what: number for number, what in shutdown.SIGNALS.items()}
                    child.send_signal(signals[request])

        code = wait_for_end(child, pass_on_request)
        if stopping and self.by_file:
            # it may have ended before it saw the file, which must not stop the next start
            remove_file(folder / shutdown.STOP_FILE)
        return code

    def check_for_stop(self) -> None:
        """Raise StopRequested if a signal has requested a stop."""
        if request := self.shutdown.requested():
            raise StopRequested(request)
