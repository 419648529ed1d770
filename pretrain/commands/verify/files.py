"""Compare the files of a run with what it has recorded of them: rows, settings, tokenizer and weights."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pretrain.checkpoint.folder import candidates, problem_with, read_state
from pretrain.commands.verify.records import EXPORTS
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.config.recipe import load_config
from pretrain.config.run import Config
from pretrain.config.validation import leaves
from pretrain.data.tokenizer import tokenizer_hash
from pretrain.export.folder import read_policy
from pretrain.export.sums import changed_files
from pretrain.start.continuity import COMPARED
from pretrain.telemetry.metrics_file import NO_LINES, Place, link_of, read_metrics, split_link, whole_lines

_SHOWN = 20


def verify_files(run: Path) -> bool:
    """Print whether the files of a run are as it wrote them, and which are not; return whether all are.

    Every byte of its checkpoints and exports is read.
    """
    faults: list[str] = []
    progress: dict[str, dict[str, Any]] = {}  # by name of a checkpoint, the newest first, or export
    newest: dict[str, Any] = {}
    for path in candidates(run / "checkpoints"):
        problem = problem_with(path)
        if problem is None:
            state = read_state(path)
            newest = newest or state
            progress[path.name] = state.get("progress", {})
        elif path.is_dir():  # a run that is training removes old ones
            faults.append(f"{path.name} {problem}")
    for name in EXPORTS:
        changed = changed_files(run / name)
        faults += [f"{name}/{file} is changed or gone" for file in changed or ()]
        if not changed and (policy := read_policy(run / name)) is not None:
            progress[name] = policy.get("progress", {})
    # behind the checkpoints: a run that is training writes rows first
    lines, rows = whole_lines(run / "metrics.jsonl"), list(read_metrics(run / "metrics.jsonl"))
    places = {name: one["rows"] for name, one in progress.items() if one.get("rows")}
    links = {split_link(line)[1] for line in lines}
    last = newest.get("progress", {}).get("rows", {}).get("link")
    # resumed from an earlier step, a run has another end than its export
    if abandoned := last in links and places.get("export", {"link": last})["link"] not in links:
        del places["export"]
    config = load_config(run / "config.yaml", {})
    faults += check_chain(lines, places)
    faults += check_steps(rows, config, newest.get("progress", {}))
    faults += _check_settings(run, config, rows, newest)
    if newest and not _is_tokenizer(run / "tokenizer", newest["tokenizer_hash"]):
        faults.append("tokenizer/tokenizer.json is not the run's")
    if faults:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        print("\n  ".join(["files that are not as the run wrote them:", *faults[:_SHOWN], *more]))
    else:
        names = f"{len(lines)} lines of metrics.jsonl, config.yaml, tokenizer, {', '.join(progress)}"
        print(f"{names}: every file as the run wrote it")
    if abandoned:
        print("  export is of an abandoned end: the run was resumed from an earlier step")
    return not faults


def check_chain(lines: Sequence[bytes], places: Mapping[str, Place]) -> Iterator[str]:
    """Yield what is wrong with whole lines: each that is changed, doubled, moved, or follows a gap.

    Lines at the beginning that have no link are of an older version.

    Args:
        places: name of a checkpoint or export -> the place that it records.
    """
    split = [split_link(line) for line in lines]
    links = [link for _, link in split]
    before, broken, chained = NO_LINES["link"], False, False
    for number, (line, link) in enumerate(split, 1):
        if link and link_of(before, line) != link:
            broken = True
            yield f"{_name(number, line)} is changed, or lines before it are gone"
        elif chained and not link:
            yield f"{_name(number, line)} has no link, or none that can be read"
        before, chained = link or before, chained or bool(link)
    for name, place in places.items():
        recorded = f"{name} records {place['lines']} lines of metrics.jsonl, and the last of them"
        if place["link"] not in links:
            yield f"{recorded} is not there"
        elif place["lines"] != (now := 1 + links.index(place["link"])) and not broken:
            yield f"{recorded} is line {now}"


def check_steps(
    rows: Sequence[Mapping[str, Any]], config: Config, progress: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what is wrong with the steps of rows of training: one is missing, doubled, or not in order.

    Args:
        rows: all records. config: as config.yaml has it now. progress: of the newest checkpoint.
    """
    rows = [row for row in rows if isinstance(row.get("step"), int)]
    steps = [row["step"] for row in rows if "loss" in row]
    for before, step in itertools.pairwise(steps):
        if step <= before:
            yield f"the row of step {step} stands behind that of step {before}"
    undone = [(back["from"], back["to"]) for back in progress.get("rollbacks", [])]
    spans = [*progress.get("jumped", []), *undone]
    untrained = {step for first, stop in spans for step in range(first + 1, stop + 1)}
    left_out = {row["step"] for row in rows if "left_out" in row} | untrained
    # a branch without its trunk's rows begins later
    begin = rows[0]["step"] if rows and "config_sha256" in rows[0] else 0
    written, missing, waiting = set(steps), [], False  # waiting: a sound step since the last row
    parts = list(_intervals(config, progress, max([progress.get("step", 0), *steps[-1:]])))
    for first, last, every in reversed(parts):
        for step in range(max(first, begin + 1), last + 1):
            waiting = step not in written and (waiting or step not in left_out)
            if waiting and step not in untrained and (step == 1 or step % every == 0):
                missing.append(step)
                waiting = False
    if missing:
        some = ", ".join(map(str, missing[:10])) + (" ..." if len(missing) > 10 else "")
        yield f"metrics.jsonl has no row of step {some}, {len(missing)} in all (train.log_every)"


def _intervals(config: Config, progress: Mapping[str, Any], last: int) -> Iterator[tuple[int, int, int]]:
    """Yield first step, last step, and log_every of the parts of a run, the last part first."""
    every = config.train.log_every
    for change in reversed(progress.get("changes", [])):
        if change["key"] == "train.log_every":
            yield change["step"] + 1, last, every
            last, every = change["step"], change["from"]
    yield 1, last, every


def _name(number: int, line: bytes) -> str:
    try:
        return f"line {number} of metrics.jsonl (step {json.loads(line)['step']})"
    except (ValueError, KeyError, TypeError):
        return f"line {number} of metrics.jsonl"


def _check_settings(
    run: Path, config: Config, rows: Sequence[Mapping[str, Any]], newest: Mapping[str, Any]
) -> list[str]:
    """Return what is wrong with config.yaml: its bytes, or in an older run the settings that define it."""
    digests = [row["config_sha256"] for row in rows if "config_sha256" in row]
    if digests and digests[-1] == sha256_of(run / "config.yaml"):
        return []
    before = dict(leaves(newest.get("config", {})))
    differing = [
        f"{key} is {value}, and was {before[key]}"
        for key, value in leaves(config.model_dump(mode="json"))
        if key in before and value != before[key] and (digests or key.startswith(COMPARED))
    ]
    if not (digests or differing):
        return []
    return [f"config.yaml is not as the run wrote it: {'; '.join(differing[:_SHOWN]) or 'its text differs'}"]


def _is_tokenizer(folder: Path, digest: str) -> bool:
    try:
        return tokenizer_hash(folder) == digest
    except (OSError, ValueError, UserError):
        return False
