"""Compare what steps give that are done again with what the run has recorded of them.

On the same kind of processor every bit must agree. On another one sums round in another way, and steps
multiply that: there `TOLERANCE` holds, and only what does not round must be the same.
"""

import filecmp
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from augment.core.errors import shortened
from pretrain.checkpoint.saver import running_versions
from pretrain.checkpoint.store import read_json, read_tensors
from pretrain.commands.verify.files import Saved
from pretrain.export.folder import MARK, export, read_policy
from pretrain.export.sums import CARD, SUMS
from pretrain.start.devices import device_name
from pretrain.telemetry.metrics_file import OF_THE_MACHINE, read_metrics

TOLERANCE = 0.01
"""Where bits may differ: largest distance of tensors, as a share of the way that the steps have moved them
(from the start: of their length), and of other numbers, relative or absolute."""
_DECIDED = "loss", "evaluation", "left_out", "jumped"
"""A row of metrics has one of these if steps decide what is in it."""
_NOT_COMPARED = (
    *("versions", "hugging_face.config.transformers_version", "state.machine.", "state.config."),
    *("state.progress.seconds", "state.progress.rows.", "progress.seconds", "progress.rows.", "data."),
)
"""In state.json and clear.json: times, places, and the settings, with which the steps are done again."""
_SHOWN = 4


def comparison(checkpoint: Path) -> tuple[float, str]:
    """Return the tolerance here for steps up to a checkpoint, 0 for none, and what to say of it."""
    content, here = read_json(checkpoint), (device_name(), f"torch {running_versions()['torch']}")
    state, torch_version = content["state"], f"torch {content['versions']['torch']}"
    made = state.get("machine", {}).get("device", here[0]), torch_version
    other = [f"{old} did them, this is {new}" for old, new in zip(made, here) if old != new]
    if torch.cuda.is_available() and not state["config"]["train"]["deterministic"]:
        other.append("train.deterministic is off")
    return (TOLERANCE, f"within {TOLERANCE:.0%}: {'; '.join(other)}") if other else (0.0, "bit for bit")


def differences(
    run: Path, again: Path, before: Saved | None, after: Saved, tolerance: float
) -> Iterator[str]:
    """Yield what differs, a sentence each: tensors and state of the checkpoint `after`, and rows up to it.

    again: folder of the run that has done them again, from the checkpoint `before`; None: from the start.
    """
    recorded, made = (folder / "checkpoints" / after.name for folder in (run, again))
    start = None if before is None else recorded.with_name(before.name)
    content = read_json(recorded)
    yield from _different_values(f"{after.name}: ", content, read_json(made), tolerance)
    for series in content["series"]:
        yield from _different_tensors(series, recorded, made, start, tolerance)
    old, new = (_rows(folder, -1 if before is None else before.step, after.step) for folder in (run, again))
    for step, kind in dict.fromkeys([*old, *new]):
        where = f"metrics.jsonl, {kind} of step {step}: "
        rows, others = old.get((step, kind), []), new.get((step, kind), [])
        if len(rows) != len(others):
            yield f"{where}there are {len(rows)} such rows, and the steps give {len(others)}"
        for row, other in zip(rows, others, strict=False):
            yield from _different_values(where, row, other, tolerance)


def _rows(run: Path, begin: int, end: int) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """Return (step, what decides it) -> the rows of metrics after `begin` and up to `end`."""
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in read_metrics(run / "metrics.jsonl"):
        kind, step = next((kind for kind in _DECIDED if kind in row), None), row.get("step")
        if kind and isinstance(step, int) and begin < step <= end:
            kept = {key: value for key, value in row.items() if key not in OF_THE_MACHINE}
            found.setdefault((step, kind), []).append(kept)
    return found


def _different_values(where: str, recorded: Any, made: Any, tolerance: float) -> Iterator[str]:
    """Yield where two trees of JSON differ."""
    old, new = dict(_leaves(recorded)), dict(_leaves(made))
    found = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key, "nothing"), new.get(key, "nothing")
        near = isinstance(a, float) and isinstance(b, float) and _near(a, b, tolerance)
        if not (key.startswith(_NOT_COMPARED) or key.endswith(".where") or repr(a) == repr(b) or near):
            a, b = (shortened(str(value), 60) for value in (a, b))
            hint = " (--eval-data names the benchmarks)" if "stsb-dev" in key and b == "nothing" else ""
            found.append(f"{where}{key} is {a}, and the steps give {b}{hint}")
    yield from found[:_SHOWN]
    if len(found) > _SHOWN:
        yield f"{where}{len(found) - _SHOWN} more values differ"


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of all values in mappings and lists."""
    if not isinstance(value, dict | list) or not value:
        yield name, value
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(part, f"{name}.{key}" if name else str(key))


def _near(first: float, second: float, tolerance: float) -> bool:
    return tolerance > 0 and math.isclose(first, second, rel_tol=tolerance, abs_tol=tolerance)


def _different_tensors(
    series: str, recorded: Path, made: Path, start: Path | None, tolerance: float
) -> Iterator[str]:
    """Yield, in a sentence, how the tensors of a series differ."""
    others, found = dict(read_tensors(made, series)), []
    origins = dict(read_tensors(start, series)) if start is not None and tolerance else {}
    distance = way = 0.0
    tensors = dict(read_tensors(recorded, series))
    for name, tensor in tensors.items():
        other = others.pop(name, None)
        if other is None or (other.shape, other.dtype) != (tensor.shape, tensor.dtype):
            found.append(f"{name} is none of the steps' tensors, or of another shape")
        elif tolerance:
            distance += float((other.double() - tensor.double()).square().sum())
            origin = origins.get(name)
            way += float((tensor.double() - (0 if origin is None else origin.double())).square().sum())
        elif places := _different_places(tensor, other):
            first, old, new = places[0], tensor.flatten(), other.flatten()
            what = f"{len(places):,} of {len(old):,} numbers differ, as number {first}"
            found.append(f"{name}: {what}: {old[first]:.9g}, and the steps give {new[first]:.9g}")
    found += [f"{name} is missing" for name in others]
    if found:
        more = f" ({len(found)} of {len(tensors)} tensors differ)" if len(found) > 1 else ""
        yield f"{recorded.name}: {series} {found[0]}{more}"
    elif not math.sqrt(distance) <= tolerance * math.sqrt(way):
        share = math.sqrt(distance / way) if way else math.inf
        yield f"{recorded.name}: {series} are {share:.2%} of their way from where the steps lead"


def _different_places(first: Tensor, second: Tensor) -> list[int]:
    """Return which numbers of two tensors differ in their bits."""
    bits = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (first, second)]
    return (bits[0] != bits[1]).view(-1, first.itemsize).any(1).nonzero().flatten().tolist()


def different_exports(run: Path, saved: Sequence[Saved], folder: Path) -> Iterator[str]:
    """Yield what in best/ and export/ is not as their checkpoints export it, where those are kept.

    folder: where they are exported again.
    """
    for one in saved:
        source = next((other for other in saved if other.state and other.step == one.step), None)
        if one.state or source is None:
            continue
        checkpoint = run / "checkpoints" / source.name
        old, new = run / one.name, export(checkpoint, folder / one.name)
        where = f"{one.name}/, as {source.name} exports: "
        yield from _different_values(f"{where}{MARK} ", read_policy(old), read_policy(new), 0.0)
        same_versions = read_json(checkpoint)["versions"] == running_versions()
        for name in sorted(path.relative_to(new).as_posix() for path in new.rglob("*.*")):
            compared = name.endswith(".safetensors") or (same_versions and name not in (MARK, SUMS, CARD))
            if compared and not (
                (old / name).is_file() and filecmp.cmp(old / name, new / name, shallow=False)
            ):
                yield f"{where}{name} is another"
