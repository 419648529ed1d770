"""metrics.jsonl: one JSON object a line, appended as training goes, cut back to the checkpoint on resume.

Lines are chained. Each ends with its link, 128 bits of BLAKE2b over the link before and the line without its
own, so that a line that was changed, doubled, moved or lost shows:

    {"step": 7, "loss": {"total": 4.1}, "link": "9f0c..."}

A checkpoint records its place among them: {"lines": how many there were, "link": the last one}.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretrain.common.files import replace_durably

Place = dict[str, Any]
NO_LINES: Place = {"lines": 0, "link": hashlib.blake2b(b"metrics.jsonl, 1", digest_size=16).hexdigest()}
"""The place before the first line."""
_LINK = re.compile(rb', "link": "([0-9a-f]{32})"\}\n\Z')


def link_of(previous_link: str, line: bytes) -> str:
    """Return the link of a line, given without it."""
    return hashlib.blake2b(bytes.fromhex(previous_link) + line, digest_size=16).hexdigest()


def chained(record: dict[str, Any], place: Place) -> tuple[bytes, Place]:
    """Return a record as the line after a place, and the place after it."""
    line = to_line(record).encode()
    link = link_of(place["link"], line)
    return line[:-2] + f', "link": "{link}"}}\n'.encode(), {"lines": place["lines"] + 1, "link": link}


def split_link(line: bytes) -> tuple[bytes, str]:
    """Return a line without its link, and the link; "" if it has none, as in older versions."""
    found = _LINK.search(line)
    return (line, "") if found is None else (line[: found.start()] + b"}\n", found[1].decode())


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
                    record.pop("link", None)
                    yield record


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a metrics file, without a last one that a kill has cut."""
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def copy_metrics(source: Path, path: Path, step: int, place: Place | None = None) -> tuple[Place, bool]:
    """Write the lines of a metrics file until a checkpoint to another, or to the same, at once.

    The resumed run writes what was recorded later again. Step 0 means a new run, of which nothing stays. If
    the checkpoint records no place, lines up to its step stay, but for the settings of an earlier start from
    there.

    Returns the place to go on from, and whether the checkpoint's is in the file. If it is not, lines were
    changed or lost; the chain goes on from the checkpoint's, so that it stays broken there.
    """
    kept = whole_lines(source) if step > 0 else []
    links = [split_link(line)[1] for line in kept]
    recorded = place or {}
    if recorded.get("link") in links:
        kept = kept[: links.index(recorded["link"]) + 1]
    else:
        kept = [line for line in kept if _is_before(line, step)]
    replace_durably(path, b"".join(kept))
    if recorded and step > 0:
        return recorded, len(kept) == recorded["lines"] and recorded["link"] in links
    last = split_link(kept[-1])[1] if kept else ""
    return {"lines": len(kept), "link": last or NO_LINES["link"]}, True


def _is_before(line: bytes, step: int) -> bool:
    try:
        record = json.loads(line)
        return record.get("step", 0) <= step - bool(record.keys() & {"changed", "config_sha256"})
    except (ValueError, AttributeError, TypeError):
        return False
