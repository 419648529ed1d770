"""Enter what was trained into the board: a folder a record, and a table of all."""

import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretrain.commands.record.scores import DEV, LEGS, read_scores, summary_of, verdicts
from pretrain.commands.record.tracks import TRACKS, code_here, settings_of
from pretrain.commands.record.training import ABOUT, RECIPE, SCORES, model_of, read_json, weights_digest
from pretrain.commands.sweep.runs import identity
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably, sha256_of, to_json
from pretrain.common.run_folder import is_run
from pretrain.config.recipe import load_config
from pretrain.config.run import Config
from pretrain.export.folder import read_policy
from pretrain.export.sums import WEIGHTS
from pretrain.telemetry.formats import table
from pretrain.telemetry.metrics_file import read_metrics

RECORD, CURVE = "record.json", "curve.csv"
FEWEST_SEEDS = 3
MARKS = "<!-- records -->", "<!-- end of records -->"
"""Around the table in the page beside the board's folder."""


def enter(folder: Path, board: Path) -> Path:
    """Write the record of what `start` left in a folder, and the table; return the record's folder."""
    if not (folder / ABOUT).is_file():
        what = "nothing that `clearly record start` has made, so no clock was running"
        raise UserError(f"{folder} holds {what}")
    about, (code, commit) = read_json(folder / ABOUT), code_here()
    about["commit"] = about["commit"] or (commit if code == about["code"] else "")
    found = [path for path in folder.glob("seed-*/") if re.fullmatch(r"seed-\d+", path.name)]
    runs = sorted(found, key=lambda run: int(run.name[5:]))
    if broken := list(_broken_rules(folder, about, runs)):
        raise UserError(f"{folder} is no record: {'; '.join(broken)}")
    record, entered = _record_of(about, runs), records(board)
    track = record["track"]
    before = {one["number"]: one for one in entered if one["track"] == track}
    if standing := max(before, default=0):
        against = verdicts(_compared(record), _compared(before[standing]))
        if "worse" in against.values() or "better" not in against.values():
            said = ", ".join(f"{leg} {verdict}" for leg, verdict in against.items())
            raise UserError(f"{folder} does not beat {track}-{standing}: {said}")
        record["against"] = {"number": standing, **against}
    record["number"] = standing + 1
    derive = record.get("derive", "")
    name, texts = f"{track}-{record['number']}", ",".join(f"DIR/text/{file}" for file in record["text"])
    record["command"] = (
        f"clearly record start {track} --recipe docs/records/{name}/{RECIPE} --text {texts} "
        f"--data data/{name} --eval-data DIR --seeds {','.join(record['seeds'])} --out runs/{name}"
        + (f" --derive {derive}" if derive else "")
    )
    place = board / name
    make_folder(place)
    replace_durably(place / RECIPE, (folder / RECIPE).read_bytes())
    replace_durably(place / CURVE, "\n".join(_curve(runs)).encode())
    replace_durably(place / RECORD, to_json(record))
    write_table([*entered, record], board)
    return place


def records(board: Path) -> list[dict[str, Any]]:
    """Return the records of a board."""
    return [read_json(path) for path in sorted(board.glob(f"*/{RECORD}"))]


def by_leg(record: dict[str, Any]) -> dict[str, list[float]]:
    """Return leg -> its scores, one a seed."""
    return {leg: [one["scores"][leg] for one in record["seeds"].values()] for leg in (*LEGS, DEV)}


def _compared(record: dict[str, Any]) -> dict[str, list[float]]:
    """Return what the records of a track are compared by -> its values, one a seed, the higher the better."""
    if TRACKS[record["track"]].target:
        return {"speed": [-one["seconds"] for one in record["seeds"].values()]}
    return {leg: values for leg, values in by_leg(record).items() if leg in LEGS}


def follows(config: Config, recipe: Path) -> bool:
    """Return whether a run's settings are those of a recipe on the board."""
    assert config.data.folder is not None and config.folder is not None  # a run has written them
    wanted = settings_of(recipe, config.train.seed, config.data.folder, config.folder)
    wanted.train.precision = config.train.precision  # auto, until a machine has chosen
    return identity(wanted) == identity(config)


def _broken_rules(folder: Path, about: dict[str, Any], runs: list[Path]) -> Iterator[str]:
    """Yield what keeps trained seeds from being a record."""
    track = TRACKS[about["track"]]
    if len(runs) < FEWEST_SEEDS:
        yield f"it has {len(runs)} seeds, and a record {FEWEST_SEEDS} or more"
    if sha256_of(folder / RECIPE) != about["recipe"]:
        yield f"{RECIPE} is not the one that was trained"
    if not about["commit"]:
        yield "no commit holds the code that trained it: commit that, and submit from it"
    for run in runs:
        found, model = read_json(run.with_suffix(".json")), model_of(about.get("derive", ""), run)
        scores = folder / SCORES / run.name
        policy = read_policy(run / "best")
        complete = policy is not None and is_run(str(run)) and (model / WEIGHTS).is_file()
        if policy is None or not complete or "scores" not in found:
            yield f"{run.name} was not trained and scored by `clearly record start`, so nothing timed it"
            continue
        rows = list(read_metrics(run / "metrics.jsonl"))
        last = max(
            (row["wall_time"] for row in rows if "evaluation" in row and row["step"] == policy.get("step")),
            default=math.inf,
        )
        first, size = min((row["wall_time"] for row in rows), default=0.0), (model / WEIGHTS).stat().st_size
        if (seconds := max(found["seconds"], last - first)) > track.seconds:
            yield f"{run.name} took {seconds:.0f} s of {track.seconds:.0f}"
        if weights_digest(model) != found["weights"] or read_scores(scores, model) != found["scores"]:
            yield f"{run.name} has other weights or scores than `clearly record start` has read"
        if not follows(load_config(run / "config.yaml", {}), folder / RECIPE):
            yield f"{run.name} was trained by other settings than {RECIPE}'s"
        if policy.get("progress", {}).get("best_by") != "stsb-dev":
            yield f"{run.name}: STS-B dev has not chosen its step"
        if track.target and found["scores"][LEGS[0]] < track.target:
            yield f"{run.name} is below {track.target:g} over {LEGS[0]}"
        if track.target and policy["step"] != policy["recipe"]["train"]["steps"]:
            yield f"{run.name}: step {policy['step']} is its best, which train.steps must name"
        if track.table_bytes and size > 1.01 * track.table_bytes:  # with the file's header
            yield f"{run.name}: its table has {size:,} bytes of {track.table_bytes:,}"


def _record_of(about: dict[str, Any], runs: list[Path]) -> dict[str, Any]:
    seeds = {}
    for run in runs:
        policy = read_policy(run / "best")
        assert policy is not None  # a rule has asked for it
        of_step = {"step": policy["step"], "ledger": policy["progress"]["ledger"]}
        seeds[run.name[5:]] = read_json(run.with_suffix(".json")) | of_step
    longest = max(one["seconds"] for one in seeds.values())
    return {
        **about,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": {"from_shards": longest, "from_text": round(longest + about["preparation"], 1)},
        "seeds": seeds,
        "scores": {leg: summary_of(values) for leg, values in by_leg({"seeds": seeds}).items()},
    }


def _curve(runs: list[Path]) -> Iterator[str]:
    """Yield the lines of a CSV file: STS-B dev by step and second of every seed."""
    yield "seed,step,seconds,stsb_dev"
    for run in runs:
        rows = list(read_metrics(run / "metrics.jsonl"))
        for row in rows:
            if (score := row.get("evaluation", {}).get("stsb-dev")) is not None:
                seconds = row["wall_time"] - rows[0]["wall_time"]
                yield f"{run.name[5:]},{row['step']},{seconds:.1f},{score:.2f}"


def write_table(entered: list[dict[str, Any]], board: Path) -> None:
    """Write the table of all records into the page beside the board's folder; the last of a track stands."""
    order = list(TRACKS)
    head = ("record", *LEGS, DEV, "seeds", "from shards", "from text", "machine", "date")
    rows: list[tuple[str, ...]] = []
    for one in sorted(entered, key=lambda one: (order.index(one["track"]), -one["number"])):
        name = f"{one['track']}-{one['number']}"
        cells = [f"[{name}]({board.name}/{name}/{RECORD})"]
        for leg in (*LEGS, DEV):
            score = one["scores"][leg]
            cells.append(f"{score['mean']:.1f} ± {(score['high'] - score['low']) / 2:.1f}")
        cells += [str(len(one["seeds"])), *(f"{seconds:.0f} s" for seconds in one["seconds"].values())]
        cells += [f"{one['machine']['device']}, {one['machine']['cores']} cores", one["date"]]
        rows.append(tuple(cells))
    page = board.with_suffix(".md")
    before, _, rest = (page.read_text("utf-8") if page.is_file() else "\n".join(MARKS)).partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    replace_durably(page, f"{before}{MARKS[0]}\n\n{table(head, rows)}\n\n{MARKS[1]}{after}".encode())
