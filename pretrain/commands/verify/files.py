"""Compare the files of a run with what it has recorded of them: rows, settings, tokenizer and weights."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pretrain.checkpoint.store import candidates, problem_with, read_state
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
    lines = whole_lines(run / "metrics.jsonl")
    places = {name: one["rows"] for name, one in progress.items() if one.get("rows")}
    links = {split_link(line)[1] for line in lines}
    last = newest.get("progress", {}).get("rows", {}).get("link")
    # resumed from an earlier step, a run has another end than its export
    if abandoned := last in links and places.get("export", {"link": last})["link"] not in links:
        del places["export"]
    config = load_config(run / "config.yaml", {})
    faults += check_chain(lines, places)
    faults += _check_settings(run, config, newest)
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


def _name(number: int, line: bytes) -> str:
    try:
        return f"line {number} of metrics.jsonl (step {json.loads(line)['step']})"
    except (ValueError, KeyError, TypeError):
        return f"line {number} of metrics.jsonl"


def _check_settings(run: Path, config: Config, newest: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with config.yaml: its bytes, or in an older run the settings that define it."""
    rows = read_metrics(run / "metrics.jsonl")
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
