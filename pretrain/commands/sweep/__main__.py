"""Several runs of one or more recipes, and a table of them beside the paper's figures.

    clearly sweep configs/sweeps/augcse_table7.yaml --init MODEL --data DIR --eval-data DIR
    clearly sweep configs/sweeps/clear_table3.yaml --recipes micro --data DIR
    clearly sweep --config configs/simcse_bert.yaml --seed-list 1,11,42,68,421
    clearly sweep plan configs/sweeps/augcse_table7.yaml --data DIR
    slurm/sweep.sh --gpus=1 --time=08:00:00 -- configs/sweeps/augcse_table7.yaml --init MODEL --data DIR

Runs are trained one after another (--jobs N: N at a time), each by pretrain/main.py; those that are done are
skipped, half-done ones continue, and so does the same command after an interruption. The table is
OUT/NAME/table.md, all figures are in results.json beside it. Runs lie under OUT/runs, where a sweep finds
those that another has trained with the same settings.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from augment.core.own_code import allowed, words_allow_nothing
from pretrain.commands.sweep.evaluations import LIGHT, evaluate, models_of
from pretrain.commands.sweep.file import Sweep, expand, read_sweep, sweep_of
from pretrain.commands.sweep.runs import StopRequested, SweepPlan, SweepRun, Trainer, run_of, slug
from pretrain.commands.sweep.table import collect, write
from pretrain.common import cli
from pretrain.common.cores import usable_cores
from pretrain.common.errors import UserError
from pretrain.common.processes import python_path
from pretrain.common.program import program
from pretrain.common.shutdown import EXIT_CODES, REASONS
from pretrain.config.recipe import find_recipe
from pretrain.config.recipe import flags as keys
from pretrain.telemetry.formats import format_seconds

_print_line = partial(print, flush=True)


SweepFile = Annotated[str, Field(description="a sweep file, as those under configs/sweeps")]


class SweepFlags(BaseModel, use_attribute_docstrings=True):
    """Flags of every command here, beside any key of the configuration."""

    config: str = Field("", description="a recipe in place of a sweep file")
    seed_list: cli.Names = Field((), description="seeds by commas, in place of the file's")
    out: Path = Field(Path("runs/sweeps"), description="folder for runs and tables")
    rows: str = ""
    """only rows whose names hold one of these words, by commas; or the whole name of one"""
    recipes: str = Field("", description="this size of the file's recipes: micro for configs/*_micro.yaml")
    evaluations: cli.Names = Field((), description="those to run beside sts and geometry, by commas, or all")
    launch: str = ""
    """what starts pretrain/main.py: 'deepspeed --num_gpus 8', 'torchrun --standalone --nproc-per-node 8';
    default: one process"""
    jobs: int = Field(1, ge=1)
    """runs and evaluations at a time, each with its share of the cores: without a GPU, small runs end sooner
    with one for each core"""


def sweep(file: SweepFile = "", *, flags: SweepFlags, **overrides: str) -> int:
    """Train the runs of a sweep file, or of one recipe with several seeds, and tabulate them."""
    return _until_stopped(SweepWork(file, flags, overrides).run)


def plan(
    file: SweepFile = "", *, flags: SweepFlags, words_of: cli.Natural | None = None, **overrides: str
) -> int:
    """List the runs: number, row, seed, state (done, begun, to do), folder.

    Args:
        words_of: print instead the flags of pretrain/main.py for the run of this number, one per line;
            nothing if it is done.
    """
    runs = SweepWork(file, flags, overrides).plan.runs
    if words_of is None:
        for number, run in enumerate(runs):
            print(number, run.entry.name, run.seed, run.state, run.folder, sep="\t")
        return 0
    if words_of >= len(runs):
        raise UserError(f"there are {len(runs)} runs, from 0, and no run {words_of}; `plan` lists them")
    run, trust = runs[words_of], ["--trust=true"] if "*" in allowed() else []
    for word in [*run.words(), *trust] if run.state != "done" else []:
        print(word)
    return 0


def gather(file: SweepFile = "", *, flags: SweepFlags, **overrides: str) -> int:
    """Evaluate the runs that are done and write the table; train nothing."""
    return _until_stopped(SweepWork(file, flags, overrides).finish)


def rows_named(typed: str, names: Sequence[str]) -> list[str]:
    """Return the names that hold a typed word, in any case; words are typed by commas, or one whole name.

    >>> rows_named("b,C", ["a", "a + b, 5%", "c"]), rows_named("a", ["a", "a + b, 5%"])
    (['a + b, 5%', 'c'], ['a'])
    """
    if typed in names:
        return [typed]
    words = [word.strip().lower() for word in typed.split(",")]
    for word in words:
        if not any(word in name.lower() for name in names):
            raise UserError(f"--rows: no row's name holds {word!r}; there are:\n  " + "\n  ".join(names))
    return [name for name in names if any(word in name.lower() for word in words)]


def _until_stopped(work: Callable[[], int]) -> int:
    try:
        return work()
    except StopRequested as stop:
        again = shlex.join([*program().split(), *sys.argv[1:]])
        why = stop.said or REASONS[stop.request]
        print(f"{why}: stopped\n  safe: what is finished, and checkpoints", file=sys.stderr)
        print(f"  next: {again}", file=sys.stderr)
        return EXIT_CODES[stop.request]


class SweepWork:
    """A sweep in progress: what it reads, and what is done of it."""

    def __init__(self, file: str, flags: SweepFlags, overrides: dict[str, str]) -> None:
        if bool(file) == bool(flags.config):
            raise UserError("name a sweep file, as clear_table1, or a recipe with --config")
        path = find_recipe(Path(file or flags.config))
        self.sweep = _with_seeds(read_sweep(path) if file else sweep_of(path), flags.seed_list)
        data = overrides.get("eval_data") or overrides.get("evaluate.sts") or os.environ.get("CLEAR_DATA", "")
        if data and not Path(data).is_dir():
            raise UserError(f"there is no folder of benchmarks {data}: --eval-data, or CLEAR_DATA, names it")
        if flags.jobs > 1 and flags.launch:
            raise UserError("--jobs is for runs of one process each: give it, or --launch")
        self.evaluates, self.flags, self.name = bool(data), flags, slug(path.stem)
        self.out = flags.out.resolve()
        # an evaluation that is not there is an error before any training
        self.chosen_evaluations = self._choose(flags.evaluations)
        entries = expand(self.sweep, path.parent if file else Path("."), overrides, flags.recipes)
        if flags.rows:
            wanted = set(rows_named(flags.rows, list(dict.fromkeys(entry.name for entry in entries))))
            entries = [entry for entry in entries if entry.name in wanted]
        self.trainer = Trainer(shlex.split(flags.launch), _environment(data, flags.jobs), _print_line)
        self.plan = SweepPlan(entries, self.sweep.seeds, self.out)
        for entry in entries:
            if entry.row.kind == "start" and not models_of(entry, [], self.out):
                why = "it starts from random weights; --init names a model"
                if entry.config(0).model.init is not None:
                    why = "words pooling is of runs that were trained so; give the row another"
                print(f"not evaluated: {entry.name}: {why}", file=sys.stderr)

    def _choose(self, words: Sequence[str]) -> dict[str, str]:
        known = self.sweep.evaluations | self.sweep.of_start
        names = list(known) if words == ("all",) else words
        if unknown := [name for name in names if name not in known]:
            raise UserError(f"--evaluations {unknown[0]!r}: this sweep has {', '.join(known) or 'none'}")
        return LIGHT | {name: known[name] for name in names}

    def run(self) -> int:
        """Train, evaluate and tabulate; returns 1 if a run or an evaluation failed."""
        self.train()
        return self.finish()

    def train(self) -> None:
        """Train all runs that are not done; one failure does not stop the others."""
        runs = self.plan.runs
        states = [run.state for run in runs]
        done, begun = states.count("done"), states.count("begun")
        _print_line(f"{len(runs)} runs: {done} done, {begun} begun, {len(runs) - done - begun} to do")

        def train_one(number: int, run: SweepRun) -> None:
            run = run_of(run.entry, run.seed, self.out)  # another sweep may have begun it meanwhile
            if run.state != "done" and self.trainer.train(run, f"[{number}/{len(runs)}] "):
                summary = run.summary
                assert summary is not None  # `train` says that the run is done
                dev = f", STS-B dev {run.dev:.2f}" if run.dev is not None else ""
                name = f"{run.name} " if self.flags.jobs > 1 else ""
                _print_line(f"  {name}done in {format_seconds(summary['seconds'])}{dev}")

        with ThreadPoolExecutor(self.flags.jobs) as pool:
            # a request to stop begins no further one
            list(pool.map(train_one, range(1, len(runs) + 1), runs))
        for name, words in self.trainer.failures.items():
            _print_line(f"failed: {name}: {words}")

    def finish(self) -> int:
        """Evaluate, tabulate, print which evaluations are missing; return 1 if any work failed."""
        sweep, chosen = self.sweep, self.chosen_evaluations
        runs_of, entries = self.plan.runs_of, self.plan.entries
        models = [one for entry in entries for one in models_of(entry, runs_of(entry), self.out)]
        if self.evaluates:
            starts = [start for model in models if (start := model.start) is not None]
            of_start = {name: flags for name, flags in chosen.items() if name in sweep.of_start}
            of_runs = {name: flags for name, flags in chosen.items() if name not in sweep.of_start}
            for which, evaluations in ((models, of_runs), (starts, of_start)):
                evaluate(which, evaluations, self.trainer, self.flags.jobs)
        else:
            _print_line("no evaluation: --eval-data, or CLEAR_DATA, names the folder of the benchmarks")
        print(write(collect(sweep, self.plan, self.out), self.out / self.name))
        if others := (sweep.evaluations | sweep.of_start).keys() - chosen.keys():
            print(f"other columns need {', '.join(sorted(others))}: --evaluations all runs them")
        if sweep.figures:  # in a process: matplotlib, and models for some
            words = [sys.executable, "-m", "finetune.figures", str(self.out / self.name)]
            if subprocess.run(words, env=self.trainer.environment).returncode:
                _print_line(f"the figures were not drawn: {shlex.join(words)}")
        print(f"table and figures: {self.out / self.name}")
        return 1 if self.trainer.failures else 0


def _environment(data: str, jobs: int) -> dict[str, str]:
    """Of training and evaluating processes: this project importable from anywhere, the data where evaluations
    look for it, and of several side by side the threads of each."""
    own = {"PYTHONPATH": python_path()}
    if data:
        own["CLEAR_DATA"] = str(Path(data).resolve())
    if jobs > 1:
        own["OMP_NUM_THREADS"] = str(max(1, usable_cores() // jobs))
    return os.environ | own | words_allow_nothing()


def _with_seeds(sweep: Sweep, words: Sequence[str]) -> Sweep:
    """Return a sweep with the seeds of --seed-list, if any."""
    if not words:
        return sweep
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        raise UserError(f"--seed-list {','.join(words)}: give different whole numbers by commas, as 1,11,42")
    rows = {name: row.model_copy(update={"seeds": None}) for name, row in sweep.rows.items()}
    return sweep.model_copy(update={"seeds": list(map(int, words)), "rows": rows})


if __name__ == "__main__":
    first = "words_of data init eval_data out rows recipes seed_list config launch"
    cli.run(sweep, keys=keys, first=first.split(), outlives_readers=True, plan=plan, gather=gather)
