"""Compare the files of a run with what it has recorded of them: rows, settings, tokenizer and weights.

And what it has recorded of its batches with batches that are made again.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file

from pretrain.checkpoint.store import candidates, problem_with, read_state
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.config.recipe import as_yaml, load_config
from pretrain.config.validation import leaves
from pretrain.data.ledger import Ledger, begin_ledger, extend_ledger
from pretrain.data.tokenizer import tokenizer_hash
from pretrain.export.folder import read_policy
from pretrain.export.sums import changed_files
from pretrain.model.modules import unsound
from pretrain.telemetry.metrics_file import NO_LINES, Place, link_of, read_metrics, split_link, whole_lines

EXPORTS = ("best", "export")


class Saved(NamedTuple):
    """A checkpoint or an export, and what it says of the run. state: of a checkpoint alone, else empty."""

    name: str
    step: int
    progress: dict[str, Any]
    config: dict[str, Any]
    state: dict[str, Any]


def check_files(run: Path) -> tuple[list[str], list[Saved]]:
    """Return which files are not as the run wrote them, and its checkpoints, newest first, and exports.

    Every byte of its checkpoints and exports is read.
    """
    faults: list[str] = []
    saved: list[Saved] = []
    for path in candidates(run / "checkpoints"):
        problem = problem_with(path)
        if problem is None:
            state = read_state(path)
            progress = state.get("progress", {})
            saved.append(Saved(path.name, int(state["step"]), progress, state["config"], state))
            faults += _unsound(path, "parameters-*")
        elif path.is_dir():  # a run that is training removes old ones
            faults.append(f"{path.name} {problem}")
    newest = saved[0].state if saved else {}
    for name in EXPORTS:
        changed = changed_files(run / name)
        faults += [f"{name}/{file} is changed or gone" for file in changed or ()] or _unsound(run / name, "*")
        if not changed and (policy := read_policy(run / name)) is not None:
            progress = policy.get("progress", {})
            saved.append(Saved(name, int(policy["step"]), progress, policy["recipe"], {}))
    # behind the checkpoints: a run that is training writes rows first
    lines = whole_lines(run / "metrics.jsonl")
    places = {one.name: one.progress["rows"] for one in saved if one.progress.get("rows")}
    links = {split_link(line)[1] for line in lines}
    last = newest.get("progress", {}).get("rows", {}).get("link")
    # resumed from an earlier step, a run has another end than its export
    if last in links and places.get("export", {"link": last})["link"] not in links:
        del places["export"]
        print("export is of an abandoned end: the run was resumed from an earlier step")
    faults += check_chain(lines, places)
    faults += _check_settings(run, lines, newest.get("config", {}), saved)
    own = ""
    with suppress(OSError, ValueError, UserError):
        own = tokenizer_hash(run / "tokenizer")
    if newest and own != newest["tokenizer_hash"]:
        faults.append("tokenizer/tokenizer.json is not the run's")
    return faults, saved


def _unsound(folder: Path, files: str) -> Iterator[str]:
    """Yield of each file of weights the first tensor that no figure follows from."""
    for path in sorted(folder.rglob(f"{files}.safetensors")):
        place = path.relative_to(folder.parent)
        try:
            if tensor := unsound(load_file(path).items()):
                yield f"{place}: {tensor} has NaN, infinity or numbers whose squares are too large"
        except SafetensorError as error:
            yield f"{place} cannot be read: {error}"


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


def _check_settings(
    run: Path, lines: Sequence[bytes], newest: dict[str, Any], saved: Sequence[Saved]
) -> Iterator[str]:
    """Yield which settings are not those whose digest the start before has recorded, also in checkpoints."""
    config, digest, digests = load_config(run / "config.yaml", {}), "", {}
    for line in lines:
        found = re.search(rb'"config_sha256": "([0-9a-f]{64})"', line)
        digests[split_link(line)[1]] = digest = found[1].decode() if found else digest
    if digest and digest != sha256_of(run / "config.yaml"):
        before = dict(leaves(newest))
        differing = [
            f"{key} is {value}, and was {before[key]}"
            for key, value in leaves(config.model_dump(mode="json"))
            if key in before and value != before[key]
        ]
        yield f"config.yaml is not as the run wrote it: {'; '.join(differing) or 'its text differs'}"
    for one in saved:
        wanted = digests.get(one.progress.get("rows", {}).get("link"))
        if wanted and wanted != hashlib.sha256(as_yaml(one.config).encode()).hexdigest():
            yield f"{one.name} has other settings than those whose digest metrics.jsonl has before it"


# -- batches -----------------------------------------------------------


class LedgerRecord(NamedTuple):
    """What one place says of the batches of steps since + 1, ..., step.

    where: "row", or the name of a checkpoint or export. ledger: as `pretrain.data.ledger` describes it.
    """

    step: int
    where: str
    ledger: Ledger


class Difference(NamedTuple):
    """Steps first to last, counted from 1, of which one or more differ from the records at the last.

    kinds: what of them. where: the records.
    """

    first: int
    last: int
    kinds: tuple[str, ...]
    where: tuple[str, ...]


def read_records(run: Path, saved: Sequence[Saved]) -> tuple[list[LedgerRecord], int]:
    """Return the records of a run by step, rows before what is saved at the same step, and its last step.

    Raises:
        UserError: the run has no step yet, or records no batches.
    """
    rows = [
        (row["step"], "row", row.get("ledger"))
        for row in read_metrics(run / "metrics.jsonl")
        if "loss" in row and isinstance(row.get("step"), int)
    ]
    places = rows + [(one.step, one.name, one.progress.get("ledger")) for one in saved]
    if not places:
        raise UserError(f"{run} has no step yet: neither rows in metrics.jsonl nor checkpoints")
    records = [LedgerRecord(step, where, ledger) for step, where, ledger in places if ledger and step > 0]
    if not records:
        raise UserError(f"{run} records no hashes of its batches: an older version trained it")
    records.sort(key=lambda record: (record.step, record.where != "row"))
    return records, max(step for step, *_ in places)


def compare(
    records: list[LedgerRecord],
    start: LedgerRecord | None,
    sums: Iterable[tuple[int, tuple[int, ...]]],
    kinds: tuple[str, ...],
) -> Difference | None:
    """Chain the sums of steps, and return where the links are first not those of the records; None: nowhere.

    Args:
        records: in order of steps, all after `start`.
        start: the record to begin at, which is believed; None: the first step of the ledger.
        sums: each step, numbered from 0, and its sums.
        kinds: "sequences", "views" or both.
    """
    links = begin_ledger(records[0].ledger["since"]) if start is None else dict(start.ledger)
    before = links["since"] if start is None else start.step
    by_step = {step: list(group) for step, group in groupby(records, key=lambda record: record.step)}
    for step, of_step in sums:
        links = extend_ledger(links, of_step)
        at_step = by_step.get(step + 1, [])
        wrong = [record for record in at_step if any(record.ledger[kind] != links[kind] for kind in kinds)]
        if wrong:
            differing = tuple(kind for kind in kinds if any(one.ledger[kind] != links[kind] for one in wrong))
            return Difference(before + 1, step + 1, differing, tuple(record.where for record in wrong))
        if at_step:
            before = step + 1
    return None
