"""Evaluate an encoder by one command: a suite of evaluations, or as much of it as a budget allows.

    clearly eval MODEL --eval-data DIR                        quick: a minute on two cores
    clearly eval MODEL --eval-data DIR --suite senteval --jobs 2
    clearly eval MODEL --eval-data DIR --suite all --budget 1h
    clearly eval MODEL --set my.tsv                           a test set of your own (finetune.own_sets)

Each unit of a suite is one of the commands of `finetune` with some of its tasks, in a process of its own;
its figures are those of the command. Sentence vectors are kept (`finetune.encoders.kept_vectors`), so that
no text is encoded twice. What is done for the same weights, settings and data is kept, too: the same command
continues after an interruption, and a larger suite does only what is new. OUT/eval.json says what is done.
"""

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from pydantic import BaseModel

from augment.core.pretrained import pretrained
from finetune.encoders.kept_vectors import remove_oldest
from finetune.encoders.models import KEPT_VECTORS, open_model, pooling_of
from finetune.encoders.source import OWN_MODULES, ModelSource, kind_of, names_function, not_on_hub, resolve
from finetune.evaluate.suites import (
    MTEB,
    NOT_THERE,
    SUITES,
    EvaluationJob,
    EvaluationRecord,
    own_units,
    reasons_to_skip,
    skipped_lines,
    suite_named,
    with_tasks,
)
from finetune.flags import Model
from finetune.frozen import FrozenFlags
from finetune.results import figure_text, folder_for, table
from pretrain.benchmarks.files import data_root, known_name
from pretrain.common import cli
from pretrain.common.cores import threads_of_user, usable_cores
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, require_writable
from pretrain.common.processes import end_session, failure_line, python_path, seconds_running, start_logged
from pretrain.common.shutdown import EXIT_BUDGET, EXIT_CODES, Shutdown
from pretrain.telemetry.formats import format_seconds

SECONDS_BETWEEN_LINES = 30.0
SECONDS_TO_END = 20.0
"""What a unit has to save what it can after the budget has ended it, before it is killed."""
_LOOK_SECONDS = 0.1
_CONTINUES = "finished work is kept, and the same command continues from there"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class ProcessResult(NamedTuple):
    """How a unit's process has ended: its exit status, the error or last line that it printed."""

    code: int
    seconds: float
    line: str
    at_deadline: bool
    """Whether the budget ended it."""


class Budget(BaseModel, use_attribute_docstrings=True):
    """What is evaluated, in what time, and what is kept."""

    suite: str = ""
    """quick, sts, senteval, clustering, intents, nanobeir, cola_probe, nli_distance, zh_sts, geometry, glue,
    anli, mteb-eng, or all (of them but quick and zh_sts, which is Chinese). Default: quick, and with --set
    none"""
    budget: str = ""
    """time to keep to, as 90s, 10m or 1h30m: units are done in the suite's order; what still runs when it is
    over is ended, and taken up again next time. Without it, all are done"""
    jobs: cli.Count = 1
    """units at a time, each in a process with its share of the cores, or with a GPU of its own"""
    vectors: str = ""
    """folder in which sentence vectors are kept, or none; without it, CLEAR_VECTORS or
    ~/.cache/clearly/vectors. It may be removed at any time"""
    vectors_gb: cli.Count = 20
    """most gigabytes of kept vectors; what was used least recently is removed first"""
    again: bool = False
    """do all units again, whatever is there"""


def main(model: Model, *, plan: Budget, set: cli.Names = (), flags: FrozenFlags) -> int:
    """Evaluate an encoder by a suite of evaluations; what is done already is kept, and not done again.

    Args:
        set: a test set of your own, FILE or NAME=FILE; several times, or between commas. Two texts and a
            score, a text and a label, or a query and a document, by the names of its columns.
    """
    # as a command from its very start: what it imports takes seconds of the budget
    started = time.monotonic() - (seconds_running() if __name__ == "__main__" else 0.0)
    deadline, precision = started + seconds_of(plan.budget), flags.precision
    # before the data: the name may be wrong
    suite = plan.suite or ("quick" if flags.tasks or not set else "")
    suite = known_name(suite, (*SUITES, MTEB), "suite") if suite else ""
    units = own_units(set)
    root = Path.cwd() if suite in ("", MTEB) else data_root(flags.eval_data)  # MTEB's data are the hub's
    if suite:
        units += with_tasks(suite_named(suite, root), flags.tasks, suite)
    vectors_folder = _vectors_folder(plan.vectors)
    source, pooled = _resolve(model, flags.pooling, precision)
    folder = folder_for(source, flags.out)
    record = EvaluationRecord(folder, source.identity, {"pooling": pooled, "precision": precision})
    repeats = plan.again or names_function(model)  # nothing says when a function has changed
    done_units = [] if repeats else [unit for unit in units if record.figures(unit, root) is not None]
    skip_reasons = reasons_to_skip([unit for unit in units if unit not in done_units], root, source)
    pending = [unit for unit in units if unit not in done_units and unit not in skip_reasons]
    if not pending and not done_units:
        reason = skip_reasons[units[0]]
        hint = "; `clearly benchmarks check DIR` says where to get it" if NOT_THERE in reason else ""
        raise UserError(f"nothing of this suite can be done: {reason}{hint}")
    for line in (*skipped_lines(skip_reasons), *(f"done before: {unit.name}" for unit in done_units)):
        print(line)
    if plan.budget and pending:
        print(f"what still runs after {plan.budget} is ended, within {SECONDS_TO_END:.0f} s")

    def words_of(unit: EvaluationJob) -> list[str]:
        """Return a unit's command behind `python -m`."""
        words = [f"finetune.{unit.evaluation}", model, *unit.words, "--out", str(folder)]
        words += ["--eval-data", str(root)] if unit.command.files else []
        if not unit.command.trains and pooled not in ("function", OWN_MODULES):
            words += ["--pooling", pooled]
        return [*words, "--precision", precision] if unit.command.takes_precision else words

    environment = {name: value for name, value in os.environ.items() if name != KEPT_VECTORS}
    environment |= {KEPT_VECTORS: str(vectors_folder)} if vectors_folder else {}
    shutdown = Shutdown(folder, watch_file=False)
    started_units, failed_units, stopped_units = (list[EvaluationJob]() for _ in range(3))

    def begun(unit: EvaluationJob) -> None:
        started_units.append(unit)
        print(f"[{len(started_units)}/{len(pending)}] {unit.name}", flush=True)

    for unit, outcome in run_units(
        pending, words_of, folder / "eval", environment, plan.jobs, deadline, shutdown, begun
    ):
        if outcome.at_deadline:
            stopped_units.append(unit)
            print(f"  {unit.name}: ended at the budget after {format_seconds(outcome.seconds)}", flush=True)
        elif not (outcome.code and shutdown.requested()) and not _is_kept(unit, outcome, record, root):
            failed_units.append(unit)
    code = EXIT_CODES.get(shutdown.requested(), 0)
    if vectors_folder:
        remove_oldest(vectors_folder, plan.vectors_gb * 10**9)
    reported_units = [unit for unit in units if unit in done_units or unit in started_units]
    tables = {unit.evaluation: table(figures) for unit in reported_units if (figures := record.written(unit))}
    for text in tables.values():
        print(text)
    print(f"{format_seconds(time.monotonic() - started)} in all; figures: {folder}")
    if code:
        print(f"stopped; {_CONTINUES}", file=sys.stderr)
        return code
    if remaining := [*stopped_units, *(unit for unit in pending if unit not in started_units)]:
        names = ", ".join(unit.name for unit in remaining)
        print(f"left at the budget: {names}; {_CONTINUES}", file=sys.stderr)
    return 1 if failed_units else EXIT_BUDGET if remaining else 0


def seconds_of(budget: str) -> float:
    """Return the seconds of "90s", "10m", "1h30m", "2d"; infinity for "".

    >>> seconds_of("10m"), seconds_of("1h30m"), seconds_of("1.5h")
    (600.0, 5400.0, 5400.0)
    """
    if not budget:
        return float("inf")
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", budget)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != budget or not seconds:
        raise UserError(f"--budget {budget}: give a time as 90s, 10m, 1h30m or 2d")
    return seconds


def _is_kept(unit: EvaluationJob, outcome: ProcessResult, record: EvaluationRecord, root: Path) -> bool:
    """Keep the figures of a unit that has ended, and print them; return False, and say why, for a failure."""
    figures = None if outcome.code else record.written(unit)
    if figures is None:
        why = outcome.line if outcome.code else "its weights changed meanwhile, or it wrote no figures"
        print(f"  FAILED: {unit.name}: {why}", flush=True)
        return False
    record.add(unit, root, outcome.seconds, figures)
    headlines = [f"{name} {figure_text(figures.tasks[name].value)}" for name in unit.expected]
    print(f"  {unit.name}: {', '.join(headlines)} ({format_seconds(outcome.seconds)})", flush=True)
    return True


def _resolve(model: str, pooling: str, precision: str) -> tuple[ModelSource, str]:
    """Return what a model's name stands for, and the pooling of its vectors."""
    if names_function(model):
        opened = open_model(model, pooling, precision=precision)
        return ModelSource(opened.name, opened.name), opened.pooling
    source = resolve(model)
    if kind_of(source.location) == "hub":  # refused once, and not for each unit
        from transformers import AutoConfig

        try:
            pretrained(AutoConfig, source.location)
        except (OSError, ValueError) as error:
            raise not_on_hub(source.location, str(error).strip().splitlines()[0]) from None
    return source, pooling_of(source, pooling, quiet=True)


def _vectors_folder(given: str) -> Path | None:
    """Return the folder of kept vectors; None: nothing is to be kept."""
    given = given or os.environ.get(KEPT_VECTORS, "")
    if given == "none":
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    folder = Path(given or cache / "clearly" / "vectors").expanduser()
    require_writable(folder, "--vectors")
    return folder.absolute()


def run_units(
    units: Sequence[EvaluationJob],
    words_of: Callable[[EvaluationJob], list[str]],
    logs: Path,
    environment: dict[str, str],
    jobs: int,
    deadline: float,
    shutdown: Shutdown,
    begun: Callable[[EvaluationJob], None],
) -> Iterator[tuple[EvaluationJob, ProcessResult]]:
    """Run units in order, `jobs` at a time; call `begun` at the start of each, and yield it at its end.

    Each has a GPU of its own, or its share of the cores. After a request to stop nothing is started, and what
    runs gets the signal and is waited for; so it does at the deadline, with SECONDS_TO_END to save.
    """
    make_folder(logs)
    gpus, slots = _gpus(), SimpleQueue[int]()
    for slot in range(jobs):
        slots.put(slot)

    def work(unit: EvaluationJob) -> ProcessResult | None:
        slot = slots.get()
        try:
            if shutdown.requested() or time.monotonic() >= deadline:
                return None
            begun(unit)
            own = environment | _share(jobs, slot, gpus)
            log = logs / f"{unit.name.replace(' ', '-').replace(',', '-')}.txt"
            return _run(unit, words_of(unit), log, own, deadline, shutdown)
        finally:
            slots.put(slot)

    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(work, unit): unit for unit in units}
        try:
            for future in as_completed(futures):
                if future.exception() is None and (outcome := future.result()) is not None:
                    yield futures[future], outcome
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    for future in futures:
        future.result()  # raises what kept a process from being started


def _run(
    unit: EvaluationJob,
    words: Sequence[str],
    log: Path,
    environment: dict[str, str],
    deadline: float,
    shutdown: Shutdown,
) -> ProcessResult:
    """Run a unit until it ends or the deadline comes; print its last line now and then."""
    started = printed = time.monotonic()
    environment = environment | {"PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"}
    process = start_logged([sys.executable, "-m", *words], log, environment)
    said, over = "", False
    while process.poll() is None:
        time.sleep(_LOOK_SECONDS)
        if shutdown.requested():
            end_session(process, math.inf)
        elif time.monotonic() >= deadline:
            over = True
            end_session(process, SECONDS_TO_END)
        elif time.monotonic() - printed > SECONDS_BETWEEN_LINES:
            printed = time.monotonic()
            line = failure_line(log) if log.stat().st_size else said
            if line != said:
                said = line
                print(f"  {unit.name}: {line}", flush=True)
    at_deadline = over and process.returncode != 0 and not shutdown.requested()
    seconds, line = time.monotonic() - started, failure_line(log, process.returncode)
    return ProcessResult(process.returncode, seconds, line, at_deadline)


def _share(jobs: int, slot: int, gpus: Sequence[str]) -> dict[str, str]:
    """Return the variables by which a process takes its share of the machine."""
    if gpus:
        return {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if jobs > 1 else {}
    if jobs == 1 or threads_of_user():
        return {}
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() // jobs))}


def _gpus() -> list[str]:
    """Return the names of the GPUs that processes may be given."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


if __name__ == "__main__":
    cli.run(main, outlives_readers=True)
