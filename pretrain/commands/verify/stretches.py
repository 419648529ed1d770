"""Do stretches of a run again, from one kept checkpoint to the next, and compare what they give.

A stretch is done by the loop of training itself (`execute`), with the settings that the checkpoint at its end
records, in a temporary folder. On the same kind of processor every bit must agree. On another one sums round
in another way, and steps multiply that: there TOLERANCE holds, and what does not round must be the same.
"""

import filecmp
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file

from augment.core.errors import shortened
from pretrain.api import recipe_file
from pretrain.checkpoint.store import read_json, read_tensors
from pretrain.commands.verify.files import Saved
from pretrain.common import files
from pretrain.common.errors import UserError
from pretrain.common.memory import processes_that_fit
from pretrain.common.processes import no_rank, start_logged, wait_for_end
from pretrain.config.recipe import as_yaml, load_config
from pretrain.config.validation import leaves
from pretrain.export.folder import export, read_policy
from pretrain.export.sums import CARD, SUMS
from pretrain.start.devices import device_name
from pretrain.telemetry.formats import format_seconds
from pretrain.telemetry.metrics_file import read_metrics
from pretrain.watch.ending import FOLDER
from pretrain.watch.heartbeat import read_all

TOLERANCE = 0.01
"""Where bits may differ: largest distance of tensors, as a share of the way that the steps have moved them
(from the start: of their length), and of other numbers, relative or absolute."""
_UNREPEATABLE = {"rollbacks": "the run rolled back there", "substitutions": "damaged data was replaced there"}
_DECIDED = "loss", "evaluation", "left_out", "jumped"  # rows of metrics with one of these come from steps
_NOT_COMPARED = (
    # of such rows
    *("wall_time", "seconds", "time", "memory", "tokens_per_second", "sequences_per_second", "mfu", "hfu"),
    *("eta_seconds", "slowest_rank"),
    # of state.json and clear.json; the settings are those with which the steps are done again
    *("versions", "hugging_face.config.transformers_version", "state.machine", "state.config", "recipe"),
    "data",
    *("state.progress.seconds", "state.progress.rows", "progress.seconds", "progress.rows"),
)
_OF_VERSIONS = "config.json", "tokenizer_config.json", "config_sentence_transformers.json"
_COMPARED_OTHERWISE = "clear.json", CARD, SUMS
_BYTES_OF_A_RANK = 1 << 30  # libraries, and the activations of a micro-batch
_SHOWN = 4


class Stretch(NamedTuple):
    """The steps after `begin` up to a checkpoint. before: where they begin; None: at the start."""

    begin: int
    before: Saved | None
    after: Saved


def replay(run: Path, saved: Sequence[Saved], count: int, seed: int, overrides: Mapping[str, Any]) -> bool:
    """Do some stretches again, drawn at random, and print whether they give what is recorded; return that.

    Args:
        saved: the good checkpoints and exports of the run.
        overrides: keys of the configuration that are another here, as where the data lies.

    Raises:
        UserError: no stretch can be done again.
    """
    ends = sorted((one for one in saved if one.state), key=lambda one: one.step)
    stretches = [Stretch(a.step if a else 0, a, b) for a, b in zip([None, *ends], ends, strict=False)]
    starts = [row["step"] for row in read_metrics(run / "metrics.jsonl") if "config_sha256" in row]
    able = []
    for fault, group in groupby(stretches, lambda one: _fault(run, one, starts)):
        part = list(group)
        able += [] if fault else part
        if fault:
            print(f"steps {part[0].begin + 1} to {part[-1].after.step} cannot be done again: {fault}")
    if len(able) < len(stretches):
        print("  --checkpoint.keep 1000, or --checkpoint.keep_every N, keeps the checkpoints of a run")
    if not able:
        raise UserError(f"no steps of {run} between two checkpoints can be done again")
    drawn, good = random.Random(seed).sample(able, min(count, len(able))), True
    chosen = sorted(drawn, key=lambda one: one.begin)
    seconds = sum(
        b.progress.get("seconds", 0) - (a.progress.get("seconds", 0) if a else 0) for _, a, b in chosen
    )
    which = f"{len(chosen)} of {len(able)} stretches again, chosen by --replay-seed {seed}"
    steps = sum(one.after.step - one.begin for one in chosen)
    print(f"doing {which}: {steps:,} steps, for which the run took {format_seconds(seconds)}", flush=True)
    for one in chosen:
        why = _why_not_same_bits(run, one.after)
        with recipe_file(one.after.config) as recipe:
            again = recipe.with_name("run")
            differ = do_again(run, one, recipe, again, overrides).splitlines()
            differ = differ or list(_differences(run, again, one, TOLERANCE if why else 0.0))
        good, how = good and not differ, f"within {TOLERANCE:.0%}: {why}" if why else "bit for bit"
        said = f"not as recorded, compared {how}" if differ else f"as recorded, {how}"
        print("\n  ".join([f"steps {one.begin + 1} to {one.after.step}: {said}", *differ]), flush=True)
    for made in (other for other in saved if not other.state):
        with recipe_file(made.config) as recipe:
            made_again, differ = _different_export(run, made, ends, recipe, overrides)
        good = good and not (made_again and differ)
        for what in differ or ["as its checkpoint" if made.step else "as the run starts"]:
            print(f"{made.name}/ of step {made.step}: {what}", flush=True)
    return good


def _fault(run: Path, stretch: Stretch, starts: Sequence[int]) -> str:
    """Return why a stretch cannot be done again, or "". starts: steps at which the run was started."""
    begin, before, after = stretch
    kept, ranks, gpus = after.config["checkpoint"], after.state["world_size"], torch.cuda.device_count()
    if kept["every"] and after.step - begin > max(kept["every"], kept.get("keep_every", 0)):
        return f"no checkpoint between them is kept (checkpoint.keep {kept['keep']})"
    if resumed := [step for step in starts if begin < step < after.step]:
        return f"the run was resumed at step {resumed[0]}, whose checkpoint is not kept"
    earlier = before.progress if before else {}
    if what := [
        what for key, what in _UNREPEATABLE.items() if after.progress.get(key, []) != earlier.get(key, [])
    ]:
        return what[0]
    weights = (run / "checkpoints" / after.name).glob("parameters-*")
    fitting = processes_that_fit(sum(file.stat().st_size for file in weights) / 4, _BYTES_OF_A_RANK)
    if ranks > (most := gpus or max(1, fitting)):
        return f"{ranks} ranks did them, and this machine has {'GPUs' if gpus else 'memory'} for {most}"
    return ""


def _why_not_same_bits(run: Path, after: Saved) -> str:
    """Return why the steps up to a checkpoint need not give the same bits on this machine; "": they must."""
    of_torch = read_json(run / "checkpoints" / after.name)["versions"]["torch"]
    made = after.state.get("machine", {}).get("device", device_name()), f"torch {of_torch}"
    here = device_name(), f"torch {version('torch')}"
    why = [f"{old} did them, this is {new}" for old, new in zip(made, here, strict=True) if old != new]
    if torch.cuda.is_available() and not after.config["train"]["deterministic"]:
        why.append("train.deterministic is off")
    return "; ".join(why)


def do_again(run: Path, stretch: Stretch, recipe: Path, folder: Path, overrides: Mapping[str, Any]) -> str:
    """Do a stretch again in a folder, by the settings of a recipe; return the error of that, or ""."""
    begin, before, after = stretch
    settings = {
        **overrides,
        "folder": str(folder),
        "track": (),
        "train.threads": after.state.get("machine", {}).get("threads"),
        "checkpoint.every": 0,
        "checkpoint.keep": 1,
        "checkpoint.keep_every": 0,
        "checkpoint.resume": str(run / "checkpoints" / before.name) if before else "never",
    }
    environment, log = no_rank(), recipe.with_name("log.txt")
    if not any("stsb-dev" in row.get("evaluation", {}) for row in read_metrics(run / "metrics.jsonl")):
        environment.pop("CLEAR_DATA", None)  # or best/ would be chosen by it
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("steps, left"), TimeRemainingColumn()
    resolved = recipe_file(load_config(recipe, settings).model_dump(mode="json"))
    with resolved as file, Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=after.step - begin)

        def advance() -> None:
            for beat in read_all(folder / FOLDER).values():
                bar.update(task, completed=beat.step - begin)

        words = [sys.executable, "-m", "pretrain.commands.verify.execute", str(file)]
        words += [f"--end={after.step}", f"--ranks={after.state['world_size']}"]
        status = wait_for_end(start_logged(words, log, environment), advance)
    said = log.read_text("utf-8", "replace")
    error = said.partition("error: ")[2].partition("\n  safe: ")[0] or said[-500:]
    return f"status {status}: {error.strip()}" if status else ""


# -- what a stretch gives ----------------------------------------------------------


def _differences(run: Path, again: Path, stretch: Stretch, tolerance: float) -> Iterator[str]:
    """Yield how a run differs from one that has done a stretch of it again, in `again`; a sentence each."""
    begin, before, after = stretch
    recorded, made = (folder / "checkpoints" / after.name for folder in (run, again))
    content = read_json(recorded)
    yield from _different_values(f"{after.name}: ", content, read_json(made), tolerance)
    for series in content["series"]:
        origin = dict(read_tensors(recorded.with_name(before.name), series)) if before and tolerance else {}
        old_tensors, new_tensors = (dict(read_tensors(path, series)) for path in (recorded, made))
        for what in _different_tensors(old_tensors, new_tensors, origin, tolerance):
            yield f"{after.name}: {series} {what}"
    old, new = (_rows(folder, begin if before else -1, after.step) for folder in (run, again))
    if old.keys() == new.keys() and [*old] != [*new]:
        yield f"metrics.jsonl: rows of steps {begin + 1} to {after.step} are in another order"
    for step, kind in dict.fromkeys([*old, *new]):
        where = f"metrics.jsonl, {kind} of step {step}: "
        rows, others = old.get((step, kind), []), new.get((step, kind), [])
        if len(rows) != len(others):
            yield f"{where}there are {len(rows)} such rows, and the steps give {len(others)}"
        for row, other in zip(rows, others, strict=False):
            yield from _different_values(where, row, other, tolerance)


def _rows(run: Path, begin: int, end: int) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """Return (step, what makes it one) -> the rows of metrics that steps after `begin` up to `end` decide."""
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in read_metrics(run / "metrics.jsonl"):
        kind = next((kind for kind in _DECIDED if kind in row), None)
        if kind and isinstance(row.get("step"), int) and begin < row["step"] <= end:
            found.setdefault((row["step"], kind), []).append(row)
    return found


def _different_values(where: str, recorded: dict, made: dict, tolerance: float) -> Iterator[str]:
    """Yield where two trees differ, a few of these places."""
    old, new, found = dict(leaves(recorded)), dict(leaves(made)), []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key, "nothing"), new.get(key, "nothing")
        apart = any(f"{key}.".startswith(f"{name}.") for name in _NOT_COMPARED) or key.endswith(".where")
        if not apart and not _agree(a, b, tolerance):
            a, b = (shortened(str(value), 60) for value in (a, b))
            found.append(f"{where}{key} is {a}, and the steps give {b}")
    more = f"{where}{len(found) - _SHOWN} more values differ"
    yield from [*found[:_SHOWN], more] if len(found) > _SHOWN else found


def _agree(old: Any, new: Any, tolerance: float) -> bool:
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return all(_agree(a, b, tolerance) for a, b in zip(old, new, strict=True))
    if tolerance and isinstance(old, float) and isinstance(new, float) and not math.isnan(old):
        return math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance)
    return repr(old) == repr(new)


Tensors = dict[str, torch.Tensor]


def _different_tensors(recorded: Tensors, made: Tensors, origin: Tensors, tolerance: float) -> Iterator[str]:
    """Yield, in a sentence, how the tensors of a series differ. origin: those from which the steps began."""
    found, distance, way = [f"{name} is missing" for name in made.keys() - recorded.keys()], 0.0, 0.0
    for name, old in recorded.items():
        new = made.get(name)
        if new is None or (new.shape, new.dtype) != (old.shape, old.dtype):
            found.append(f"{name} is none of the steps', or of another shape")
        elif tolerance:
            distance += float((new.double() - old.double()).square().sum())
            way += float((old.double() - origin.get(name, torch.zeros(()))).square().sum())
        else:
            bits = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (old, new)]
            places = (bits[0] != bits[1]).view(-1, old.itemsize).any(1).nonzero().flatten().tolist()
            if places:
                first = places[0]
                values = f"{old.flatten()[first]:.9g}, and the steps give {new.flatten()[first]:.9g}"
                what = f"{len(places):,} of {old.numel():,} numbers differ, as number {first}"
                found.append(f"{name}: {what}: {values}")
    if found:
        yield found[0] + (f" ({len(found)} of {len(recorded)} tensors differ)" if len(found) > 1 else "")
    elif not math.sqrt(distance) <= tolerance * math.sqrt(way):
        share = math.sqrt(distance / way) if way else math.inf
        yield f"are {share:.2%} of their way from where the steps lead"


def _different_export(
    run: Path, made: Saved, ends: Sequence[Saved], recipe: Path, overrides: Mapping[str, Any]
) -> tuple[bool, list[str]]:
    """Make best/ or export/ again beside its recipe; return whether that can be, and what differs.

    That of the start is made as the run made it: its weights follow from the seed or from `model.init`.
    """
    old, new, tolerance = run / made.name, recipe.with_name("again"), 0.0
    recorded = read_policy(old) or {}
    if "average" in recorded:
        return False, ["not compared: it is an average with the start"]
    source = next((one.name for one in ends if one.step == made.step), "")
    if source:
        export(run / "checkpoints" / source, new)
    elif made.step:
        return False, ["not compared: the checkpoint of its step is not kept"]
    else:
        first = ends[0]._replace(step=0, config=made.config)
        tolerance = TOLERANCE if _why_not_same_bits(run, first) else 0.0
        if error := do_again(run, Stretch(0, None, first), recipe, new, overrides):
            return True, [error]
        new /= "best"
    policies = [recorded, read_policy(new) or {}]
    if not recorded.get("progress", {}).get("rows"):  # a resume has made it again, and records none
        policies = [policy | {"progress": {}} for policy in policies]
    found = list(_different_values("clear.json ", policies[0], policies[1], tolerance))
    files.replace(new / "training_config.yaml", as_yaml(made.config).encode())
    packages = ("transformers", "tokenizers")  # each version writes keys of its own
    same_versions = all(recorded.get("versions", {}).get(name) == version(name) for name in packages)
    left_out = _COMPARED_OTHERWISE if same_versions else (*_COMPARED_OTHERWISE, *_OF_VERSIONS)
    names = {one.relative_to(place) for place in (old, new) for one in place.rglob("*") if one.is_file()}
    for file in sorted(name for name in names if str(name) not in left_out):
        there = (old / file).is_file() and (new / file).is_file()
        if there and tolerance and file.suffix == ".safetensors":
            tensors = load_file(old / file), load_file(new / file)
            found += [f"{file} {what}" for what in _different_tensors(*tensors, {}, tolerance)]
        elif not there or not filecmp.cmp(old / file, new / file, shallow=False):
            found.append(f"{file} is not what {source or 'the start'} exports to")
    return True, found
