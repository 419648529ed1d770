"""Return to an earlier checkpoint in the middle of a run, or end the run with a report.

The parameters become those of the checkpoint; the step does not go back. So the steps in between are counted
and have trained nothing, their data is not used, and the learning rate, a function of the step, goes on where
it stood. A new run with the same settings and `train.faults.jump` naming these steps is the same run, bit by
bit.
"""

from pathlib import Path
from typing import NoReturn

from pretrain.checkpoint import store
from pretrain.checkpoint.folder import candidates, set_aside, step_of
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.common.ranks import on_rank_zero
from pretrain.config.run import Config
from pretrain.start.checkpoints import Checkpoints
from pretrain.step.faults import OverBudget, steadier_settings
from pretrain.step.progress import Progress
from pretrain.telemetry.run import Telemetry


class NotFinite(UserError):
    """A run has ended over faults: the message says what happened, what is safe, and what to type."""

    says_what_next = True


def roll_back(
    fault: OverBudget,
    config: Config,
    engine,
    progress: Progress,
    stop_step: int,
    checkpoints: Checkpoints,
    telemetry: Telemetry,
) -> None:
    """Put the last good checkpoint into the engine; write one of the step where the run goes on. Collective.

    Raises:
        NotFinite: `train.faults.rollbacks` are done, no checkpoint is good, or the run was at its end. The
            report is in the run folder, under faults/.
    """
    checkpoints.wait()
    folder = config.run_folder / "checkpoints"
    good = on_rank_zero(lambda: last_good(folder, fault.since))
    report = on_rank_zero(lambda: _write_report(config.run_folder, fault))
    allowed, done = config.train.faults.rollbacks, len(progress.rollbacks)
    if good is None or done >= allowed or fault.step >= stop_step:
        on_rank_zero(lambda: _end(_why_it_ends(fault, config, progress, good, report)))
    assert good is not None  # else the run has ended
    state = store.load(good, engine, verify=False)  # verified when it was chosen
    progress.step = fault.step
    progress.roll_back(state["progress"] | {"step": state["step"]}, fault.what)
    on_rank_zero(lambda: _set_later_aside(folder, good))
    telemetry.log(fault.step, {"rolled_back": progress.rollbacks[-1] | {"report": str(report)}})
    telemetry.warn(
        f"{fault.what}. The parameters are those of {good.name} again, and steps {state['step'] + 1} to "
        f"{fault.step} are left out (roll-back {done + 1} of {allowed}). Report: {report}"
    )
    progress.rows = on_rank_zero(telemetry.sync)
    checkpoints.save(progress, wait=True)  # last: a run that is killed before it does all this again


def _end(why: str) -> NoReturn:
    raise NotFinite(why)


def last_good(checkpoints: Path, since: int) -> Path | None:
    """Return the newest checkpoint that verifies and that is of a step before `since`; else the oldest.

    One from between the first fault of a series and the last may hold what led to them.
    """
    found = candidates(checkpoints)
    before = [path for path in found if step_of(path) < since]
    later = [path for path in reversed(found) if step_of(path) >= since]
    return next((path for path in [*before, *later] if store.problem_with(path) is None), None)


def _set_later_aside(checkpoints: Path, good: Path) -> None:
    for path in candidates(checkpoints):
        if step_of(path) > step_of(good):
            set_aside(path, "abandoned")


def _write_report(folder: Path, fault: OverBudget) -> Path:
    """Write what is known of the last fault; return the file."""
    path = folder / "faults" / f"step-{fault.step:08d}.txt"
    make_folder(path.parent)
    lines = [
        fault.what,
        *fault.finding.lines(),
        f"all sequences of the batch, by their number in the split, lane by lane: "
        f"{', '.join(map(str, fault.finding.sequences))}",
    ]
    replace_durably(path, ("\n".join(lines) + "\n").encode())
    return path


def _why_it_ends(
    fault: OverBudget, config: Config, progress: Progress, good: Path | None, report: Path
) -> str:
    settings = config.train.faults
    done = f"{len(progress.rollbacks)} of {settings.rollbacks} roll-backs are done"
    lines = [fault.what, *(f"  {line}" for line in fault.finding.lines()), f"  all of it: {report}"]
    lines.append(f"What happened: {fault.what}; {done}.")
    ways = [steadier_settings(config)]
    if good is None:
        lines.append("What is safe: nothing yet, there is no good checkpoint; the run starts again.")
    else:
        lines.append(
            f"What is safe: the last good checkpoint is {good}. It holds no update of a step whose numbers "
            "were not finite."
        )
    if good is not None and fault.step < config.train.steps:
        jump = ",".join([*settings.jump, f"{step_of(good) + 1}-{fault.step}"])
        ways.insert(0, f"--train.faults.jump {jump} (leave these steps' data out)")
    lines.append(f"What to type: the same command with --resume auto, and {'; or '.join(ways)}.")
    return "\n".join(lines)
