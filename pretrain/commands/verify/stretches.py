"""Do stretches of a run again, from one kept checkpoint to the next.

A stretch is done by the loop of training itself (`execute`), with the settings that the checkpoint at its end
records, in a temporary folder. `outcome` compares what comes of it.
"""

import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pretrain.api import recipe_file
from pretrain.commands.verify.files import Saved
from pretrain.commands.verify.outcome import comparison, differences, different_exports
from pretrain.common.errors import UserError
from pretrain.common.memory import processes_that_fit
from pretrain.common.processes import first_error, start_logged, wait_for_end, without_rank
from pretrain.config.recipe import load_config
from pretrain.telemetry.formats import format_seconds
from pretrain.telemetry.metrics_file import read_metrics
from pretrain.watch.ending import FOLDER
from pretrain.watch.heartbeat import read_all

_UNREPEATABLE = {"rollbacks": "the run rolled back there", "substitutions": "damaged data was replaced there"}
_BYTES_OF_A_RANK = 1 << 30  # libraries, and the activations of a micro-batch


class Stretch(NamedTuple):
    """Steps of a run, up to the checkpoint `after`.

    before: the checkpoint before them; None: they are the first. fault: why they cannot be done again, or "".
    """

    before: Saved | None
    after: Saved
    fault: str = ""

    @property
    def begin(self) -> int:
        return 0 if self.before is None else self.before.step

    @property
    def steps(self) -> int:
        return self.after.step - self.begin

    @property
    def seconds(self) -> float:
        """How long the run took for them."""
        before = self.before.progress if self.before else {}
        return self.after.progress.get("seconds", 0.0) - before.get("seconds", 0.0)


def find_stretches(run: Path, saved: Sequence[Saved]) -> list[Stretch]:
    """Return the stretches between the good checkpoints of a run, in the order of their steps."""
    rows = read_metrics(run / "metrics.jsonl")
    starts = [row["step"] for row in rows if "config_sha256" in row]
    ends = sorted((one for one in saved if one.state), key=lambda one: one.step)
    pairs = [Stretch(before, after) for before, after in zip([None, *ends], ends, strict=False)]
    return [pair._replace(fault=_fault(run / "checkpoints", pair, starts)) for pair in pairs]


def _fault(folder: Path, stretch: Stretch, starts: Iterable[int]) -> str:
    """Return why a stretch cannot be done again, or "".

    folder: of the checkpoints. starts: steps at which the run was started.
    """
    after, state = stretch.after, stretch.after.state
    kept, ranks, gpus = state["config"]["checkpoint"], state["world_size"], torch.cuda.device_count()
    if kept["every"] and stretch.steps > max(kept["every"], kept["keep_every"]):
        return f"no checkpoint between them is kept (checkpoint.keep {kept['keep']})"
    if resumed := [step for step in starts if stretch.begin < step < after.step]:
        return f"the run was resumed at step {resumed[0]}, whose checkpoint is not kept"
    before = stretch.before.progress if stretch.before else {}
    for key, what in _UNREPEATABLE.items():
        if (after.progress.get(key) or []) != (before.get(key) or []):
            return what
    parameters = sum(file.stat().st_size for file in (folder / after.name).glob("parameters-*")) / 4
    most = gpus or max(1, processes_that_fit(parameters, _BYTES_OF_A_RANK))
    if ranks > most:
        return f"{ranks} ranks did them, and this machine has {'GPUs' if gpus else 'memory'} for {most}"
    return ""


def replay(run: Path, saved: Sequence[Saved], count: int, seed: int, overrides: Mapping[str, Any]) -> bool:
    """Do some stretches again, drawn at random, and print whether they give what is recorded; return that.

    Args:
        saved: the good checkpoints and exports of the run.
        count: how many stretches.
        seed: of the choice.
        overrides: keys of the configuration that are another here, as where the data lies.

    Raises:
        UserError: no stretch can be done again.
    """
    stretches = find_stretches(run, saved)
    for fault, ones in groupby(stretches, key=lambda stretch: stretch.fault):
        part = list(ones)
        if fault:
            print(f"steps {part[0].begin + 1} to {part[-1].after.step} cannot be done again: {fault}")
    able = [stretch for stretch in stretches if not stretch.fault]
    keep = "--checkpoint.keep 1000, or --checkpoint.keep_every N, keeps the checkpoints of a run"
    if not able:
        raise UserError(f"no steps of {run} between two checkpoints can be done again. {keep}")
    if len(able) < len(stretches):
        print(f"  {keep}")
    chosen = sorted(random.Random(seed).sample(able, min(count, len(able))), key=lambda one: one.begin)
    steps = sum(one.steps for one in chosen)
    took = format_seconds(sum(one.seconds for one in chosen))
    which = f"{len(chosen)} of {len(able)} stretches again, chosen by --replay-seed {seed}"
    print(f"doing {which}: {steps:,} steps, for which the run took {took}", flush=True)
    done, good = 0, True
    for one in chosen:
        tolerance, how = comparison(run / "checkpoints" / one.after.name)
        with recipe_file(one.after.state["config"]) as recipe:
            again = recipe.parent / "run"
            differ = do_again(run, one, recipe, again, overrides, (done, steps)).splitlines()
            differ = differ or list(differences(run, again, one.before, one.after, tolerance))
        done, good = done + one.steps, good and not differ
        how = f"{'not ' if differ else ''}as recorded, {how}"
        print("\n  ".join([f"steps {one.begin + 1} to {one.after.step}: {how}", *differ]), flush=True)
    with recipe_file({}) as recipe:
        differ = list(different_exports(run, saved, recipe.parent))
    print(*differ, sep="\n", end="\n" if differ else "")
    kept = {one.step for one in saved if one.state}
    for other in (other for other in saved if other.step not in kept):
        print(f"{other.name}/ is of step {other.step}, whose checkpoint is not kept: it is not compared")
    if len(chosen) < len(able):
        share = 1 - 0.05 ** (1 / len(chosen))
        print(f"were {share:.0%} of all stretches forged, 95 of 100 such choices would find one")
    return good and not differ


def do_again(
    run: Path,
    stretch: Stretch,
    recipe: Path,
    folder: Path,
    overrides: Mapping[str, Any],
    progress: tuple[int, int],
) -> str:
    """Do a stretch again; return the error of that, or "".

    Args:
        recipe: what the checkpoint at its end has of its settings.
        folder: of the run that does it.
        progress: steps of other stretches that are done, and of all.
    """
    before, state = stretch.before, stretch.after.state
    settings = dict(overrides) | {
        "folder": str(folder),
        "track": (),
        "train.threads": state.get("machine", {}).get("threads"),
        "checkpoint.resume": str(run / "checkpoints" / before.name) if before else "never",
        **{"checkpoint.every": 0, "checkpoint.keep": 1, "checkpoint.keep_every": 0},
    }
    config, environment = load_config(recipe, settings), without_rank()
    rows = read_metrics(run / "metrics.jsonl")
    if not any("stsb-dev" in row.get("evaluation", {}) for row in rows):
        environment.pop("CLEAR_DATA", None)  # or best/ would be chosen by it
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("steps, left"), TimeRemainingColumn()
    with (
        recipe_file(config.model_dump(mode="json")) as resolved,
        Progress(*columns, console=Console(stderr=True), transient=True) as bar,
    ):
        task = bar.add_task("", total=progress[1], completed=progress[0])

        def advance() -> None:
            for beat in read_all(folder / FOLDER).values():
                bar.update(task, completed=progress[0] + max(0, beat.step - stretch.begin))

        log, end = recipe.with_name("log.txt"), str(stretch.after.step)
        words = [sys.executable, "-m", "pretrain.commands.verify.execute", str(resolved), f"--end={end}"]
        process = start_logged([*words, f"--ranks={state['world_size']}"], log, environment)
        code = wait_for_end(process, advance)
    said = log.read_text("utf-8", "replace").splitlines(keepends=True)
    error = first_error(said).partition("\n  safe: ")[0] or "".join(said[-3:])
    return f"{error or 'no message'} (status {code})" if code else ""
