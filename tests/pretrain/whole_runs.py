"""Whole runs in forks of a process that has imported torch and DeepSpeed already, and has no threads."""

from dataclasses import dataclass
from pathlib import Path

from forked_python import run_python
from run_helpers import command, environment, finish, preparation_of, start

WORKER = Path(__file__).with_name("whole_run_worker.py")


@dataclass
class Done:
    """A command that has ended: its folder and its output."""

    folder: Path
    said: str


def prepared(corpus: Path, out: Path) -> None:
    """Prepare a small corpus for TINY."""
    done = run_python(preparation_of(corpus, out)[1:], environment())
    assert done.returncode == 0, done.stderr


def train(
    data: Path, run: Path, dry_run: bool = False, expect: int = 0, told: bool = False, **flags: object
) -> Done:
    """Train TINY with some flags changed, on one rank. told: say who watches the run."""
    words = [str(WORKER), *command(data, run, **flags)[1:], *["--dry-run"] * dry_run]
    return Done(run, finish(start(words, **{"TOLD": "1"} if told else {}), expect))
