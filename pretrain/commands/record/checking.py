"""Do again what a record says, as far as what is given allows, and compare."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretrain.api import prepare
from pretrain.commands.record.board import FEWEST_SEEDS, RECORD, by_leg, follows
from pretrain.commands.record.scores import LEGS, evaluate, make_retrieval, summary_of
from pretrain.commands.record.tracks import TRACKS, code_here, corpus_of, digest_of
from pretrain.commands.record.training import RECIPE, make_derived, model_of, read_json, weights_digest
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.config.data import data_config
from pretrain.config.recipe import load_config
from pretrain.data.manifest import read_manifest
from pretrain.export.folder import read_policy
from pretrain.export.sums import WEIGHTS

ROUNDING = 0.05
"""Points by which scores of the same weights may differ: kernels round."""
RERUN = 1.0
"""Points by which scores of a run on another processor may differ, whose weights are others."""


def check(place: Path, run: Path | None, replay: int, text: str, eval_data: str, data: str) -> bool:
    """Compare a record with itself, its text, and a run; print what differs, and return whether none does."""
    if not (record := read_json(place / RECORD)):
        raise UserError(f"{place} is no record: it has no {RECORD}")
    found = {str(place): _of_itself(record, place)}
    if text:
        found[text] = _of_text(record, place, text)
    if run is not None:
        found[str(run)] = _of_run(record, place, run, eval_data, data)
    good = True
    for what, faults in found.items():
        differing = list(faults)
        good = good and not differing
        print("\n  ".join([f"{what}: {'not as recorded' if differing else 'as recorded'}", *differing]))
    if code_here()[0] != record["code"]:
        print(f"note: this is other code; `git checkout {record['commit']}` brings the record's")
    if run is not None:
        from pretrain.commands.verify.__main__ import verify

        moved: dict[str, Any] = {"data.folder": data} if data else {}
        good = not verify(run, replay=replay, **moved) and good
    return good


def _of_itself(record: dict[str, Any], place: Path) -> Iterator[str]:
    if sha256_of(place / RECIPE) != record["recipe"]:
        yield f"{RECIPE} has another sha256"
    if len(record["seeds"]) < FEWEST_SEEDS:
        yield f"it has {len(record['seeds'])} seeds, and a record {FEWEST_SEEDS} or more"
    seconds = max(one["seconds"] for one in record["seeds"].values())
    if seconds != record["seconds"]["from_shards"]:
        yield "its seconds are not those of its longest seed"
    if seconds > TRACKS[record["track"]].seconds:
        yield f"{seconds:.0f} s are more than the track gives"
    if (target := TRACKS[record["track"]].target) and min(by_leg(record)[LEGS[0]]) < target:
        yield f"a seed is below {target:g} over {LEGS[0]}"
    for leg, values in by_leg(record).items():
        if summary_of(values) != record["scores"][leg]:
            yield f"{leg}: its mean and interval are not those of the seeds"


def _of_text(record: dict[str, Any], place: Path, text: str) -> Iterator[str]:
    """Prepare the text again, and compare the shards."""
    settings = load_config(place / RECIPE, {}).data.prepare.model_dump(exclude_unset=True)
    settings["sources"] = text.split(",")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "data"
        texts = corpus_of(data_config(settings).sources, out)
        prepare(out=out, **settings)
        if [*texts.items()] != [*record["text"].items()] or digest_of(read_manifest(out)) != record["data"]:
            yield "it gives other shards"


def _of_run(record: dict[str, Any], place: Path, run: Path, eval_data: str, data: str) -> Iterator[str]:
    config = load_config(run / "config.yaml", {"data.folder": data} if data else {})
    seed, derive = str(config.train.seed), record.get("derive", "")
    if seed not in record["seeds"]:
        raise UserError(f"{run} has seed {seed}, and the record {', '.join(record['seeds'])}")
    recorded, model, policy = record["seeds"][seed], model_of(derive, run), read_policy(run / "best")
    if policy is None or not (model / WEIGHTS).is_file():
        raise UserError(f"{run} has no weights to compare: {model} is not there")
    if not follows(config, place / RECIPE):
        yield f"its settings are not {RECIPE}'s"
    if digest_of(read_manifest(config.data_folder)) != record["data"]:
        yield "its data are other shards"
    if policy["step"] == recorded["step"] and policy["progress"]["ledger"] != recorded["ledger"]:
        yield "its ledger ends otherwise: it has read other batches"
    same = weights_digest(model) == recorded["weights"]
    tolerance, whose = (ROUNDING, "the") if same else (RERUN, "not the")
    print(f"seed {seed}: {whose} weights of the record; scores may differ by {tolerance} points")
    if not eval_data:
        return
    with tempfile.TemporaryDirectory() as folder:
        report, retrieval = Path(folder) / "report", Path(folder) / "retrieval"
        make_retrieval(Path(eval_data), retrieval)
        if derive:  # made again: what lies in the run may be of another text
            model = Path(folder) / "derived"
            make_derived(derive, run / "best", Path(config.data_folder), model)
        for leg, score in evaluate(model, report, Path(eval_data), retrieval).items():
            if abs(score - recorded["scores"][leg]) > tolerance:
                yield f"{leg} is {score:.2f}, and {recorded['scores'][leg]:.2f} in the record"
