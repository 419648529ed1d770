"""Find the evaluations of exactly the weights that an export holds, among the files of a run's report/."""

import json
from pathlib import Path
from typing import Any

from pretrain.common.files import sha256_of

WEIGHTS = "model.safetensors"


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
