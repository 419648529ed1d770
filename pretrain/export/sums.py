"""What identifies an export: its weights among evaluations, and the checksums of its files."""

import json
from pathlib import Path
from typing import Any

from pretrain.common.files import sha256_of, write_durably

WEIGHTS = "model.safetensors"
SUMS, CARD = "SHA256SUMS", "README.md"


def weights_identity(folder: Path) -> str:
    """Return what tells the weights in a folder from others: its path, and each file's size and time."""
    weights = sorted(
        path for path in folder.rglob("*") if path.suffix in (".safetensors", ".bin") and path.is_file()
    )
    stamps = ",".join(f"{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in weights)
    return f"{folder.resolve()} {stamps}"


def evaluations_of(export: Path, report: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the evaluations in `report` (finetune/results.py says what is in a file).

    Returns:
        The evaluations of the weights in `export`, and the names of the files that are of other weights, or
        of a model that is not there any more.
    """
    found, others = [], []
    expected = sha256_of(export / WEIGHTS)
    for path in sorted(report.glob("*.json")):
        try:
            content = json.loads(path.read_text("utf-8"))
            source, tasks = content["source"], content["tasks"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a summary, or no file of ours
        folder = Path(source.rpartition(" ")[0])
        same = (folder / WEIGHTS).is_file() and weights_identity(folder) == source
        if tasks and same and sha256_of(folder / WEIGHTS) == expected:
            found.append(content)
        else:
            others.append(path.name)
    return found, others


def write_sums(folder: Path) -> None:
    """Write the checksums of the files of a folder that has not got its name yet.

    README.md has none: a card is people's own.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (SUMS, CARD))
    lines = [f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    write_durably(folder / SUMS, "".join(lines).encode())


def changed_files(folder: Path) -> list[str] | None:
    """Return the files of an export that are not as they were written, or are gone; None: it has no sums.

    Lines that cannot be read count as changes of the sums themselves.
    """
    if not (folder / SUMS).is_file():
        return None
    changed = []
    for line in (folder / SUMS).read_bytes().decode("utf-8", "replace").splitlines():
        digest, _, name = line.partition("  ")
        try:
            if name != CARD and sha256_of(folder / (name or SUMS)) != digest:
                changed.append(name or SUMS)
        except (OSError, ValueError):
            changed.append(name)
    return changed
