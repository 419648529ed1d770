"""metrics.jsonl: one JSON object a line, appended as training goes, cut back to the checkpoint on resume."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretrain.common.files import replace_durably


def to_line(record: dict[str, Any]) -> str:
    """Return one line of strict JSON: NaN and infinities, which JSON does not have, become null."""
    return json.dumps(without_nan(record), ensure_ascii=False, allow_nan=False) + "\n"


def without_nan(value: Any) -> Any:
    """Return a value as JSON has it: None for NaN and infinity, numbers of numpy and torch as plain ones."""
    if isinstance(value, dict):
        return {str(key): without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    number = float(value)  # numpy and torch numbers as well
    return number if math.isfinite(number) else None


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a metrics file, without a last line that a kill has cut or any other bad one."""
    if not path.is_file():
        return
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.endswith("\n"):
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict):
                    yield record


def truncate_metrics(path: Path, step: int) -> int:
    """Cut a metrics file back to `step`: the resumed run will write the records of later steps again.

    Records up to and including `step` stay, since a checkpoint is written after its own step's records. Step
    0 means a new run, of which nothing stays. Settings that an earlier start from this step `changed` go:
    each start records its own. The file is replaced atomically.

    Returns:
        How many lines went, cut ones included.
    """
    path = Path(path)
    if not path.is_file():
        return 0
    with open(path, "rb") as file:
        lines = file.read().count(b"\n") + (0 if _ends_whole(path) else 1)
    return lines - copy_metrics(path, path, step)


def copy_metrics(source: Path, path: Path, step: int) -> int:
    """Write what `truncate_metrics` would leave of a metrics file to another, at once; return its lines."""
    kept = [
        record
        for record in read_metrics(source)
        if step > 0 and record.get("step", 0) <= step - ("changed" in record)
    ]
    replace_durably(path, "".join(map(to_line, kept)).encode())
    return len(kept)


def _ends_whole(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(0, 2)
        if file.tell() == 0:
            return True
        file.seek(-1, 2)
        return file.read(1) == b"\n"
