"""Whole runs in forks of a process that has imported torch and DeepSpeed already, and has no threads."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_python import ForkedPython
from run_helpers import TINY, environment

WORKER = Path(__file__).with_name("whole_run_worker.py")


@dataclass
class Done:
    """A command that has ended: its folder, its exit status and its output."""

    folder: Path
    code: int
    said: str


def _done(folder: Path, expect: int, told: bool = False, **task: Any) -> Done:
    with ForkedPython([WORKER, json.dumps(task | {"told": told})], environment()) as process:
        said = process.communicate(timeout=600)[0]
    assert process.returncode == expect, said
    return Done(folder, process.returncode, said)


def prepared(corpus: Path, out: Path) -> Path:
    """Prepare a corpus as `preparation_of` does."""
    sizes = {"vocabulary": 512, "max_length": 48, "heldout": 0.05, "chunk_tokens": 2048}
    return _done(out, 0, prepare={"sources": [str(corpus)], **sizes}, out=str(out)).folder


def train(
    data: Path, run: Path, dry_run: bool = False, expect: int = 0, told: bool = False, **flags: object
) -> Done:
    """Train TINY with some flags changed; a UserError is exit status 2. told: say who watches the run."""
    changed = {key.replace("__", "."): value for key, value in flags.items()}
    settings = {key: str(value) for key, value in (TINY | changed).items() if value is not None}
    settings |= {"data.folder": str(data), "folder": str(run)}
    return _done(run, expect, told, settings=settings, dry_run=dry_run)
