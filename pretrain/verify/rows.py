"""Check the lines of metrics.jsonl: by their chain, by what checkpoints record of it, and by their steps."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretrain.config.run import Config
from pretrain.telemetry.metrics_file import NO_LINES, Place, link_of, split_link

_CLASSIFIED = 20  # faults of which it is looked up whether the line stands elsewhere


def check_chain(lines: Sequence[bytes], places: Mapping[str, Place]) -> Iterator[str]:
    """Yield what is wrong with whole lines: each that is changed, doubled, moved, or follows a gap.

    Lines at the beginning that have no link are of an older version.

    Args:
        places: name of a checkpoint or export -> the place that it records.
    """
    split = [split_link(line) for line in lines]
    links = [link for _, link in split]
    before, faults, chained = NO_LINES["link"], 0, False
    for number, (line, link) in enumerate(split, 1):
        if link and link_of(before, line) != link:
            faults += 1
            known = {NO_LINES["link"], *links} - {""} if faults <= _CLASSIFIED else ()
            moved = any(link_of(other, line) == link for other in known)
            yield f"{_name(number, line)} " + (
                "is not where it was written" if moved else "is changed, or lines before it are gone"
            )
        elif chained and not link:
            yield f"{_name(number, line)} has no link, or none that can be read"
        before, chained = link or before, chained or bool(link)
    for name, place in places.items():
        recorded = f"{name} records {place['lines']} lines of metrics.jsonl, and the last of them"
        if place["link"] not in links:
            yield f"{recorded} is not there"
        elif place["lines"] != (now := 1 + links.index(place["link"])) and not faults:
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
