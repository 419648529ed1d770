"""Compare the files of a run with what it has recorded of them: rows, settings, tokenizer and weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pretrain.checkpoint.folder import candidates, problem_with, read_state
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.config.recipe import load_config
from pretrain.config.run import Config
from pretrain.config.validation import leaves
from pretrain.data.tokenizer import tokenizer_hash
from pretrain.export.folder import read_policy
from pretrain.export.sums import changed_files
from pretrain.start.continuity import COMPARED
from pretrain.telemetry.metrics_file import read_metrics, split_link, whole_lines
from pretrain.verify.records import EXPORTS
from pretrain.verify.rows import check_chain, check_steps

_SHOWN = 20


def verify_files(run: Path) -> bool:
    """Print whether the files of a run are as it wrote them, and which are not; return whether all are.

    Every byte of its checkpoints and exports is read.
    """
    faults: list[str] = []
    unrecorded: list[str] = []
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
            unrecorded += [f"the files of {name}"] if changed is None else []
    # behind the checkpoints: a run that is training writes rows first
    lines, rows = whole_lines(run / "metrics.jsonl"), list(read_metrics(run / "metrics.jsonl"))
    places = {name: one["rows"] for name, one in progress.items() if one.get("rows")}
    # a best/ of step 0 that a resume made again records none
    unrecorded += [
        f"rows before {name}" for name in progress if name not in places and progress[name].get("step")
    ]
    links = {split_link(line)[1] for line in lines}
    last = newest.get("progress", {}).get("rows", {}).get("link")
    if abandoned := last in links and places.get("export", {"link": last})["link"] not in links:
        del places["export"]
    faults += check_chain(lines, places)
    config = load_config(run / "config.yaml", {})
    faults += check_steps(rows, config, newest.get("progress", {}))
    faults += _check_settings(run, config, rows, newest)
    if newest and not _is_tokenizer(run / "tokenizer", newest["tokenizer_hash"]):
        faults.append("tokenizer/tokenizer.json is not the run's")
    if faults:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        print("\n  ".join(["files that are not as the run wrote them:", *faults[:_SHOWN], *more]))
    else:
        print(
            f"{len(lines)} lines of metrics.jsonl, config.yaml, tokenizer, {', '.join(progress)}: every file "
            "as the run wrote it"
        )
    if abandoned:
        print("  export is of an abandoned end: the run was resumed from an earlier step")
    if unrecorded:
        print(f"  not recorded, by an older version: {', '.join(unrecorded)}")
    return not faults


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
