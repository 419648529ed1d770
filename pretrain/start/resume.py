"""Go on from a checkpoint: which one a run resumes from, whether its last batch is as recorded, roll-backs.

A roll-back returns to an earlier checkpoint in the middle of a run; the step does not go back. So the steps
in between are counted and have trained nothing, their data is not used, and the learning rate, a function of
the step, goes on where it stood. A new run with the same settings and `train.faults.jump` naming these steps
is the same run, bit by bit.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from augment.spec.grammar import loads_models
from pretrain.checkpoint import store
from pretrain.checkpoint.store import Choice, candidates, quarantine, step_of
from pretrain.common.errors import UserError
from pretrain.common.files import copy_tree, make_folder, replace_durably
from pretrain.common.ranks import on_rank_zero
from pretrain.config.run import Config
from pretrain.data.batch import BatchSpec
from pretrain.data.ledger import KINDS, begin_ledger, sum_words, sums_in_hexadecimal
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.shards import ShardReader
from pretrain.start import continuity
from pretrain.start.checkpoints import Checkpoints
from pretrain.step.faults import OverBudget, steadier_settings
from pretrain.step.progress import Progress
from pretrain.telemetry.metrics_file import copy_metrics
from pretrain.telemetry.run import Telemetry


def check_requested(config: Config) -> None:
    """Refuse a --resume that names no checkpoint folder, before ranks meet and data is prepared."""
    requested = config.checkpoint.resume
    if requested not in ("auto", "never") and not Path(requested).is_dir():
        raise UserError(f"--resume {requested}: there is no such checkpoint; other values: auto, never")


def resume_from(config: Config, current: continuity.Inputs) -> tuple[Path | None, dict[str, Any] | None]:
    """Return the checkpoint to resume from and its state, or (None, None) for a new run. Collective.

    Also makes the run folder, and renames checkpoints that a later start must not take for this run's newest.
    """
    folder, requested = config.run_folder, config.checkpoint.resume
    checkpoints = folder / "checkpoints"
    choice = state = None
    if requested == "never":
        on_rank_zero(lambda: _require_no_run(checkpoints))
    elif requested == "auto":
        choice = on_rank_zero(lambda: store.choose(checkpoints))
    else:
        choice = on_rank_zero(lambda: _named_checkpoint(Path(requested), checkpoints))
    if choice is not None:
        state = on_rank_zero(lambda: _state_of(choice.path, config, current))
    on_rank_zero(lambda: _make_run_folder(folder, config.data_folder / "tokenizer"))
    if choice is None or state is None:  # both or none
        return None, None
    if not _is_own(choice.path, checkpoints):
        # best/ is chosen among this folder's own evaluations
        state["progress"] |= {"best_score": None, "unimproved": 0}
        on_rank_zero(lambda: _begin_branch(choice.path, state, folder))
    on_rank_zero(lambda: _set_others_aside(choice, state["step"], checkpoints))
    return choice.path, state


def _require_no_run(checkpoints: Path) -> None:
    if existing := [*candidates(checkpoints), *store.quarantined_folders(checkpoints)]:
        raise UserError(
            f"{checkpoints.parent} already holds a run ({existing[0].name}): resume it with --resume auto, "
            "or name another folder with --run"
        )


def _state_of(source: Path, config: Config, current: continuity.Inputs) -> dict[str, Any]:
    """Return the state in a checkpoint, with what this start changes written into its progress."""
    state = store.read_state(source)
    accepted = continuity.require_same(source, state["inputs"], current, config.checkpoint.accept)
    continuity.record_changes(config, state, source)
    state["progress"]["changes"] += [{"step": state["step"], **change} for change in accepted]
    return state


def _named_checkpoint(source: Path, checkpoints: Path) -> Choice:
    """Return the checkpoint that --resume names; refuse one that would replace those of the run folder."""
    if problem := store.problem_with(source):
        raise UserError(f"--resume {source}: it {problem}. --resume auto takes the newest good checkpoint")
    own = candidates(checkpoints)
    if own and not _is_own(source, checkpoints):
        raise UserError(
            f"--resume {source} is of another run, and {checkpoints.parent} has checkpoints of its own "
            f"({own[0].name}): name another folder with --run, or continue those with --resume auto"
        )
    return Choice(source)


def _is_own(checkpoint: Path, checkpoints: Path) -> bool:
    """Return whether a checkpoint lies in this run's folder of them."""
    return checkpoint.resolve().parent == checkpoints.resolve()


def _begin_branch(checkpoint: Path, state: dict[str, Any], folder: Path) -> None:
    """Copy another run's metrics up to the checkpoint: without them the last table would have no start."""
    metrics, own = checkpoint.resolve().parents[1] / "metrics.jsonl", folder / "metrics.jsonl"
    if not metrics.is_file():  # a new chain begins here
        state["progress"]["rows"] = copy_metrics(metrics, own, 0)[0]
    elif not own.exists():
        copy_metrics(metrics, own, state["step"], state["progress"].get("rows"))


def _set_others_aside(choice: Choice, step: int, checkpoints: Path) -> None:
    """Rename the checkpoints that this resume passes over."""
    passed: dict[Path, tuple[store.Reason, str]] = {}
    passed |= {path: ("damaged", f"it {problem}") for path, problem in choice.damaged}
    if _is_own(choice.path, checkpoints):
        for path in candidates(checkpoints):
            if step_of(path) > step:
                passed.setdefault(path, ("abandoned", f"--resume {choice.path} takes an earlier one"))
    for path, (kind, why) in passed.items():
        try:
            renamed = quarantine(path, kind)
        except OSError as error:
            raise UserError(f"cannot rename {path}, to be passed over ({why}): {error.strerror}") from None
        said = f"renamed {path} to {renamed.name}: {why}. This run resumes from {choice.path.name}"
        print(f"warning: {said}", file=sys.stderr, flush=True)


def _make_run_folder(folder: Path, tokenizer: Path) -> None:
    """Make checkpoints/, and copy the tokenizer, so that the run can be exported when its data is gone."""
    try:
        make_folder(folder / "checkpoints")
        copy_tree(tokenizer, folder / "tokenizer")
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; name another with --run") from None


# -- the last batch -------------------------------------------------------------

_WHY = {
    "sequences": "the data is not what the run has read. Restore it, and resume again",
    "views": "augmentation or masking makes something else of the same sequences: another version of this "
    "program, another vocabulary, or another library. Use those that the run began with",
}


def verify_resumed_batch(
    config: Config, reader: ShardReader, spec: BatchSpec, progress: Progress, source: Path | None
) -> str | None:
    """Begin the ledger, or make its last batch again and compare; return a line to print. Collective.

    An accepted difference goes into `progress.changes`.
    """
    if not progress.ledger:
        progress.ledger = begin_ledger(progress.step)
    recorded = progress.ledger["last"]
    if not recorded:  # no step since it began
        return None
    # a model's views depend on the machine; and other inputs may have been accepted just now
    free = any(c["step"] == progress.step and c["key"].startswith("input ") for c in progress.changes)
    free = free or any(loads_models(view.augmentation) for view in spec.views)
    kinds = ["sequences"] if free else list(KINDS)
    remade = replace(spec, views=[]) if free else spec
    made = on_rank_zero(lambda: _make_again(config, reader, remade, progress))
    if made is None:
        return "ledger     a chunk of the last batch is damaged since: it cannot be compared with the record"
    differ = next((kind for kind in kinds if made[kind] != recorded[kind]), None)
    if differ is None:
        return f"ledger     the batch of step {progress.step} is as recorded ({', '.join(kinds)})"
    if continuity.BATCHES in continuity.accepted_names(config.checkpoint.accept):
        before, now = (f"{differ} {sums[differ][:12]}" for sums in (recorded, made))
        progress.changes.append({"step": progress.step, "key": continuity.BATCHES, "from": before, "to": now})
        return None
    raise UserError(
        f"{source}: the batch of step {progress.step}, made again, is not the one that the run recorded: its "
        f"{differ} have the hash {made[differ][:12]}, recorded is {recorded[differ][:12]}; {_WHY[differ]}. "
        f"Or continue with the present batches, as another run: --checkpoint.accept {continuity.BATCHES}"
    )


def _make_again(
    config: Config, reader: ShardReader, spec: BatchSpec, progress: Progress
) -> dict[str, str] | None:
    """Make the last global batch; return its sums. None: a chunk is damaged since."""
    recorded = progress.substitutions
    position = Position(progress.step - 1, progress.step, recorded=recorded, replaying=True)
    settings = replace(LoaderSettings.of(config), workers=0)
    if recorded:  # such a run goes on without what it cannot read
        settings = replace(settings, damaged="skip")
    (batch,) = Loader(reader, spec, settings, position)
    return None if batch.substitutions else sums_in_hexadecimal(sum_words(batch.words))


# -- after faults -------------------------------------------------------------


class NotFinite(UserError):
    """A run has ended over faults: the message says what happened, what is safe, and what to type."""

    says_what_next = True


def roll_back(
    fault: OverBudget, progress: Progress, stop_step: int, checkpoints: Checkpoints, telemetry: Telemetry
) -> None:
    """Put the last good checkpoint into the engine; write one of the step where the run goes on. Collective.

    Raises NotFinite if `train.faults.rollbacks` are done, no checkpoint is good, or the run was over.
    """
    checkpoints.wait()
    config = checkpoints.config
    folder = config.run_folder / "checkpoints"
    good = on_rank_zero(lambda: last_good(folder, fault.since))
    report = config.run_folder / "faults" / f"step-{fault.step:08d}.txt"
    sequences = ", ".join(map(str, fault.finding.sequences)) or "not known"
    of_batch = f"all sequences of the batch, lane by lane: {sequences}"
    lines = "\n".join([fault.what, *fault.finding.lines(), of_batch, ""])
    on_rank_zero(lambda: make_folder(report.parent))
    on_rank_zero(lambda: replace_durably(report, lines.encode()))
    allowed, done = config.train.faults.rollbacks, len(progress.rollbacks)
    if good is None or done >= allowed or fault.step >= stop_step:
        on_rank_zero(lambda: _end(fault, config, done, good, report))
    assert good is not None  # else the run has ended
    state = checkpoints.load(good)
    progress.step = fault.step
    progress.roll_back(state["progress"] | {"step": state["step"]}, fault.what)

    def set_later_aside() -> None:
        for path in candidates(folder):
            if step_of(path) > step_of(good):
                quarantine(path, "abandoned")

    on_rank_zero(set_later_aside)
    telemetry.log(fault.step, {"rolled_back": progress.rollbacks[-1] | {"report": str(report)}})
    telemetry.warn(
        f"{fault.what}. The parameters are those of {good.name} again, and steps {state['step'] + 1} to "
        f"{fault.step} are left out (roll-back {done + 1} of {allowed}). Report: {report}"
    )
    progress.rows = on_rank_zero(telemetry.sync)
    checkpoints.save_progress(progress, wait=True)  # last: a run that is killed before it does all this again


def last_good(checkpoints: Path, since: int) -> Path | None:
    """Return the newest good checkpoint before the first fault of the series, `since`; else the oldest."""
    paths = candidates(checkpoints)
    before = [path for path in paths if step_of(path) < since]
    later = [path for path in reversed(paths) if step_of(path) >= since]
    return next((path for path in [*before, *later] if store.problem_with(path) is None), None)


def _end(fault: OverBudget, config: Config, done: int, good: Path | None, report: Path) -> NoReturn:
    """Raise NotFinite, with what happened, what is safe, and what to type."""
    settings, ways = config.train.faults, [steadier_settings(config)]
    safe = "nothing yet, there is no good checkpoint; the run starts again."
    if good is not None:
        safe = f"the last good checkpoint is {good}. It holds no update of a step that was not finite."
        if fault.step < config.train.steps:
            jump = ",".join([*settings.jump, f"{step_of(good) + 1}-{fault.step}"])
            ways.insert(0, f"--train.faults.jump {jump} (leave these steps' data out)")
    lines = [
        fault.what,
        *(f"  {line}" for line in fault.finding.lines()),
        f"  all of it: {report}",
        f"What happened: {fault.what}; {done} of {settings.rollbacks} roll-backs are done.",
        f"What is safe: {safe}",
        f"What to type: the same command with --resume auto, and {'; or '.join(ways)}.",
    ]
    raise NotFinite("\n".join(lines))
