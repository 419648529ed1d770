"""Evaluate an encoder by one command: a suite of evaluations, or as much of it as a budget allows.

    python -m finetune.evaluate MODEL --eval-data DIR                        quick: a minute on two cores
    python -m finetune.evaluate MODEL --eval-data DIR --suite senteval --jobs 2
    python -m finetune.evaluate MODEL --eval-data DIR --suite all --budget 1h

Each unit of a suite is one of the commands of `finetune` with some of its tasks, in a process of its own;
its figures are those of the command. Sentence vectors are kept (`finetune.encoders.kept_vectors`), so that
no text is encoded twice. What is done for the same weights, settings and data is kept, too: the same command
continues after an interruption, and a larger suite does only what is new. OUT/eval.json says what is done.
"""

import gc
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from augment.core.pretrained import pretrained
from finetune.encoders.kept_vectors import remove_oldest
from finetune.encoders.models import KEPT_VECTORS, open_model
from finetune.encoders.source import ModelSource, kind_of, names_function, not_on_hub, resolve
from finetune.evaluate.costs import Costs, seconds_of, shape_of
from finetune.evaluate.obstacles import lines_of_left_out, none_left, obstacle
from finetune.evaluate.plan import Choice, Plan, choose
from finetune.evaluate.results import Record
from finetune.evaluate.running import SECONDS_TO_END, Running, run_units
from finetune.evaluate.suites import FINE_TUNED, Unit, suite_named, with_own_sets, with_tasks
from finetune.files import data_root
from finetune.flags import EvalData, Model, Out, Pooling, VectorPrecision
from finetune.results import figure_text, folder_for, table
from pretrain.common import cli
from pretrain.common.cores import threads_of_user, usable_cores
from pretrain.common.errors import UserError
from pretrain.common.files import require_writable
from pretrain.common.processes import seconds_running
from pretrain.common.shutdown import EXIT_BUDGET, EXIT_CODES, Shutdown
from pretrain.telemetry.formats import format_seconds


def main(
    model: Model,
    *,
    suite: str = "quick",
    tasks: cli.Names = (),
    budget: str = "",
    jobs: cli.Count = 1,
    eval_data: EvalData = "",
    pooling: Pooling = "",
    precision: VectorPrecision = "fp32",
    out: Out = "",
    vectors: str = "",
    vectors_gb: cli.Count = 20,
    again: bool = False,
) -> int:
    """Evaluate an encoder by a suite of evaluations; what is done already is kept, and not done again.

    Args:
        suite: quick, sts, senteval, clustering, intents, nanobeir, cola_probe, nli_distance, zh_sts,
            geometry, glue, anli, mteb-eng, or all (of them but quick).
        tasks: names of the suite's tasks, by commas, as RTE or a set of your own in DIR/NanoBEIR: only the
            units that do them. Without it, all.
        budget: time to keep to, as 90s, 10m or 1h30m: units that do not fit are left out, and named; what
            still runs when it is over is ended, and taken up again next time. Without it, all are done.
        jobs: units at a time, each in a process with its share of the cores, or with a GPU of its own.
        vectors: folder in which sentence vectors are kept, or none; without it, CLEAR_VECTORS or
            ~/.cache/clearly/vectors. It may be removed at any time.
        vectors_gb: most gigabytes of kept vectors; what was used least recently is removed first.
        again: do all units again, whatever is there.
    """
    # as a command from its very start: what it imports takes seconds of the budget
    started = time.monotonic() - (seconds_running() if __name__ == "__main__" else 0.0)
    units, seconds = suite_named(suite), seconds_of(budget)
    root = data_root(eval_data) if any(unit.reads_folder for unit in units) else Path.cwd()
    units = with_tasks(with_own_sets(units, root), tasks, suite)
    vectors_folder = _vectors_folder(vectors)
    source, pooled = _resolve(model, pooling, precision)
    folder = folder_for(source, out)
    record = Record(folder, source.identity, {"pooling": pooled, "precision": precision})
    repeated = again or names_function(model)  # nothing says when a function has changed
    done = [] if repeated else [unit for unit in units if record.figures(unit, root) is not None]
    reasons = {unit: obstacle(unit, root, source, suite.lower()) for unit in units if unit not in done}
    left = [unit for unit, reason in reasons.items() if not reason]
    if not left and not done:
        raise none_left(units, reasons)
    for line in lines_of_left_out({unit: reason for unit, reason in reasons.items() if reason}):
        print(line)
    for unit in done:
        print(f"done before: {unit.name}")
    shutdown = Shutdown(folder, watch_file=False)
    threads = f", {own} threads each" if (own := threads_of_user()) else ""
    costs = Costs(
        vectors_folder / "costs.json" if vectors_folder else None,
        f"{shape_of(source)}, {precision}, {usable_cores()} cores, {jobs} jobs{threads}",
        root,
    )
    choice = Choice(left, {})
    if budget and left:
        left.sort(key=lambda unit: unit.name in record.ended)  # lest they take all the time each time
        opened = model if names_function(model) else source
        spare = seconds - (time.monotonic() - started)
        try:
            choice = _choose(left, costs, spare, jobs, opened, pooled, precision, record.ended)
        except UserError:
            _print_figures(record, done)  # of earlier calls
            raise
        if not choice.chosen and not done:
            raise none_left(list(choice.refused), choice.refused)
        grace = f"within {SECONDS_TO_END:.0f} s"
        print(f"what still runs after {budget} is ended, {grace}, and is taken up again next time")
    work = _Work(model, source, pooled, precision, root, folder, vectors_folder, costs, record, jobs)
    plan = Plan(
        choice.chosen, list(choice.left_out), costs, started + seconds, jobs, partial(print, flush=True)
    )
    code = work.run(plan, shutdown)
    if vectors_folder is not None:
        remove_oldest(vectors_folder, vectors_gb * 10**9)
    _print_figures(record, [unit for unit in units if unit in done or unit in plan.started])
    print(f"{format_seconds(time.monotonic() - started)} in all; figures: {folder}")
    if code:
        print("stopped; finished work is kept, and the same command continues from there", file=sys.stderr)
        return code
    if work.ended:
        print(
            f"ended at the budget: {', '.join(unit.name for unit in work.ended)}; finished work is kept, and "
            "the same command, with a budget or without, continues from there",
            file=sys.stderr,
        )
    return 1 if work.failed else EXIT_BUDGET if work.ended else 0


@dataclass
class _Work:
    """What running units needs to know."""

    model: str
    source: ModelSource
    pooling: str
    precision: str
    root: Path
    folder: Path
    vectors: Path | None
    costs: Costs
    record: Record
    jobs: int
    failed: list[Unit] = field(default_factory=list)
    ended: list[Unit] = field(default_factory=list)
    """By the deadline."""

    def run(self, plan: Plan, shutdown: Shutdown) -> int:
        """Run the units of a plan until its deadline; return the exit status of a request to stop, or 0."""
        environment = {name: value for name, value in os.environ.items() if name != KEPT_VECTORS}
        if self.vectors is not None:
            environment[KEPT_VECTORS] = str(self.vectors)

        def take(running: Sequence[Running]) -> Unit | None:
            if (unit := plan.take(running)) is not None:
                known = self.costs.known(unit)
                about = f": about {format_seconds(known)}" if known is not None else ""
                print(f"[{len(plan.started)}/{plan.count}] {unit.name}{about}", flush=True)
            return unit

        def finished(unit: Unit, code: int, seconds: float, said: str) -> None:
            plan.one_has_ended()
            figures = self.record.written(unit) if code == 0 else None
            if shutdown.requested() and code:
                return
            if figures is None:
                self.failed.append(unit)
                why = said if code else "its weights changed meanwhile, or it wrote no figures"
                print(f"  FAILED: {unit.name}: {why}", flush=True)
                return
            self.costs.add(unit, max(seconds, self.record.ended.get(unit.name, 0.0)))  # it may have continued
            self.record.add(unit, self.root, seconds, figures)
            headlines = ", ".join(
                f"{name} {figure_text(figures.tasks[name].value)}" for name in unit.expected
            )
            print(f"  {unit.name}: {headlines} ({format_seconds(seconds)})", flush=True)

        def ended(unit: Unit, seconds: float) -> None:
            plan.one_has_ended()
            self.ended.append(unit)
            self.record.add_ended(unit, seconds)
            after = f"after {format_seconds(seconds)}"
            print(f"  {unit.name}: ended at the budget {after}, and is taken up again next time", flush=True)

        request = run_units(
            take,
            self.words,
            self.folder / "eval",
            environment,
            self.jobs,
            finished=finished,
            ended=ended,
            deadline=plan.deadline,
            shutdown=shutdown,
            print_line=partial(print, flush=True),
        )
        return EXIT_CODES.get(request, 0)

    def words(self, unit: Unit) -> list[str]:
        """Return a unit's command behind `python -m`."""
        words = [f"finetune.{unit.evaluation}", self.model, *unit.words]
        words += ["--out", str(self.folder)]
        words += ["--eval-data", str(self.root)] if unit.reads_folder else []
        if unit.evaluation in FINE_TUNED:
            return words
        words += [] if self.pooling in ("function", "own modules") else ["--pooling", self.pooling]
        return [*words, "--precision", self.precision] if unit.takes_precision else words


def _resolve(model: str, pooling: str, precision: str) -> tuple[ModelSource, str]:
    """Return what a model's name stands for, and the pooling of its vectors.

    Raises:
        UserError: nothing there to load; a pooling or precision that the model cannot have.
    """
    if names_function(model):
        opened = open_model(model, pooling, precision=precision)
        return ModelSource(opened.name, opened.name), opened.pooling
    source = resolve(model)
    kind = kind_of(source.location)
    if kind == "sentence-transformers":
        if pooling:
            open_model(source, pooling)  # which refuses it, and says why
        return source, "own modules"
    if kind == "hub":
        _require_on_hub(source.location)
    from finetune.encoders.embed import POOLER
    from pretrain.model.pooling import check_pooling

    chosen = pooling or source.trained_pooling or "mean"
    return source, chosen if chosen == POOLER else check_pooling(chosen)


def _require_on_hub(name: str) -> None:
    """Refuse a name that is neither here nor on the hub, once and not for each unit."""
    from transformers import AutoConfig

    try:
        pretrained(AutoConfig, name)
    except (OSError, ValueError) as error:
        raise not_on_hub(name, str(error).strip().splitlines()[0]) from None


def _vectors_folder(given: str) -> Path | None:
    """Return the folder of kept vectors; None: nothing is to be kept."""
    if given == "none":
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    folder = Path(given or os.environ.get(KEPT_VECTORS) or cache / "clearly" / "vectors").expanduser()
    require_writable(folder, "--vectors")
    return folder.absolute()


def _choose(
    units: Sequence[Unit],
    costs: Costs,
    seconds: float,
    jobs: int,
    model: str | ModelSource,
    pooling: str,
    precision: str,
    ended: Mapping[str, float],
) -> Choice:
    """Choose the units that fit the budget, and say what is chosen, what not, and why.

    ended: unit -> seconds after which a budget has ended it before.

    Raises:
        UserError: none does, of those that can be done.
    """
    clock = time.monotonic()
    refused, at_least = dict[Unit, str](), set[Unit]()
    unknown = [unit for unit in units if costs.known(unit) is None]
    if unknown:
        print(
            f"measuring the model's speed, to estimate {len(unknown)} units that have not run here",
            flush=True,
        )
    if training := [unit for unit in unknown if unit.evaluation in FINE_TUNED]:
        from finetune.evaluate.training_costs import training_costs  # imports torch

        assert isinstance(model, ModelSource), "a function cannot be trained"
        found = training_costs(training, model, costs.root, jobs, seconds)
        costs.of_training, refused, at_least = found.seconds, found.refused, found.at_least
        for reason in dict.fromkeys(refused.values()):
            for line in lines_of_left_out({unit: why for unit, why in refused.items() if why == reason}):
                print(line)
        units = [unit for unit in units if unit not in refused]
    if len(training) < len(unknown):
        os.environ.pop(KEPT_VECTORS, None)  # what is there already would look fast
        own = pooling in ("function", "own modules")
        costs.measure(open_model(model, "" if own else pooling, precision=precision), jobs)
    if unknown:
        _free_gpu()
        print(f"measured in {format_seconds(time.monotonic() - clock)}", flush=True)
    choice = choose(units, costs, seconds - (time.monotonic() - clock), [0.0] * jobs)
    for unit in units:
        how = "estimated" if costs.known(unit) is None else "as before"
        if unit.name in ended:
            how += f"; a budget ended it after {format_seconds(ended[unit.name])}, so it comes last"
        about = "at least" if unit in at_least else "about"
        about = f"{unit.name}: {about} {format_seconds(costs.estimate(unit))}, {how}"
        why = f"; left out: {choice.left_out[unit]}" if unit in choice.left_out else ""
        print(f"{'-' if why else '+'} {about}{why}")
    choice.refused.update(refused)
    if units and not choice.chosen:
        least = min(units, key=costs.estimate)
        about = "at least" if least in at_least else "about"
        raise UserError(
            f"Budget too short: the shortest benchmark needs {about} "
            f"{format_seconds(costs.estimate(least))}, and measuring the model took "
            f"{format_seconds(time.monotonic() - clock)}"
        )
    return choice


def _free_gpu() -> None:
    """Give back the GPU's memory that measuring took: units run in processes of their own."""
    import torch

    if torch.cuda.is_available():
        gc.collect()  # a model that a cycle still holds
        torch.cuda.empty_cache()


def _print_figures(record: Record, units: Sequence[Unit]) -> None:
    """Print the figures of the units, a table for each evaluation."""
    tables = {}
    for unit in units:
        if (figures := record.written(unit)) is not None:
            tables[unit.evaluation] = table(figures)
    for text in tables.values():
        print(text)


if __name__ == "__main__":
    cli.run(main)
