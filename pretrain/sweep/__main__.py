"""Several runs of one or more recipes, and a table of them beside the paper's figures.

    python -m pretrain.sweep configs/sweeps/augcse_table7.yaml --init MODEL --data DIR --sts DIR
    python -m pretrain.sweep configs/sweeps/clear_table3.yaml --recipes micro --data DIR --dry-run
    python -m pretrain.sweep --config configs/simcse_bert.yaml --seeds 1,11,42,68,421
    slurm/sweep.sh --gpus=1 --time=08:00:00 -- configs/sweeps/augcse_table7.yaml --init MODEL --data DIR

Runs are trained one after another, each by pretrain/main.py; those that are done are skipped, half-done ones
go on, and the same command goes on after an interruption. The table is OUT/NAME/table.md, all figures are in
results.json beside it, runs under OUT/runs, where every sweep finds those that another has trained with the
same settings.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pretrain.common.cli import as_bool, require_writable
from pretrain.common.cli import run as run_command
from pretrain.common.errors import UserError
from pretrain.sweep.file import Sweep, expand, read_sweep, replaced, sweep_of
from pretrain.sweep.runs import ROOT, Left, Plan, Run, Trainer, remaining_seconds, slug, unequal_inputs
from pretrain.sweep.table import LIGHT, Judged, collect, evaluate, judged, metric, pending, write
from pretrain.telemetry.formats import format_seconds

Judge = Callable[[list[Judged], dict[str, str]], None]


def main(
    file: str = "",
    config: str = "",
    seeds: str = "",
    out: str = "runs/sweeps",
    recipes: str = "",
    rows: str = "",
    dry_run: bool | str = False,
    executor: str = "local",
    launch: str = "",
    evaluations: str = "",
    clean: bool | str = False,
    plan: bool | str = False,
    run_numbers: str = "",
    words_of: str = "",
    gather: bool | str = False,
    **overrides: str,
) -> int:
    """Train the runs of a sweep file, or of one recipe with several seeds, and tabulate them.

    Args:
        file: a sweep file, as those under configs/sweeps.
        config: a recipe in place of a sweep file.
        seeds: by commas, in place of the file's.
        out: folder for runs and tables.
        recipes: the recipes of this size in place of the file's: micro for configs/*_micro.yaml.
        rows: only the rows whose names hold one of these words, by commas.
        dry_run: two steps of every row, and a report of which rows start.
        executor: local, or slurm: the same as slurm/sweep.sh, sbatch's own flags from the environment
            (SBATCH_ACCOUNT ...).
        launch: what starts pretrain/main.py, as "deepspeed --num_gpus 8" or "torchrun --standalone
            --nproc-per-node 8"; one process when not given.
        evaluations: of those that the file's columns want beside sts and geometry, which to run, by commas,
            or all; the others are listed as commands, and their figures are in the table as soon as they are
            there.
        clean: remove the checkpoints of finished runs (best/ and export/ stay).
        plan: list the runs, a line each: number, row, seed, done or begun or to do, first or second (after a
            search), folder.
        run_numbers: only the runs of these numbers, by commas, and no table.
        words_of: print the flags of pretrain/main.py for the run of this number, a line each; nothing if it
            is done.
        gather: no training: evaluate what is done and tabulate.
        overrides: any key of the configuration, for all runs (--data, --init, --sts, --train.steps ...).
    """
    if bool(file) == bool(config):
        raise UserError(
            "name a sweep file, as configs/sweeps/clear_table1.yaml, or one recipe with --config; not both"
        )
    if executor not in ("local", "slurm"):
        raise UserError(f"--executor {executor!r}: choose local or slurm")
    if executor == "slurm":
        return _submit()
    require_writable(out)
    path = Path(file or config)
    sweep = read_sweep(path) if file else sweep_of(path)
    if seeds:
        sweep = _with_seeds(sweep, seeds)
    if as_bool(dry_run, "dry_run"):
        sweep = sweep.model_copy(update={"seeds": sweep.seeds[:1]})
    data = overrides.get("sts") or overrides.get("evaluate.sts") or os.environ.get("CLEAR_DATA", "")
    environment = _environment(data)
    folder, table = Path(out).resolve(), slug(path.stem)
    entries = expand(sweep, path.parent if file else Path("."), overrides, recipes)
    if rows:
        wanted = [word.strip().lower() for word in rows.split(",") if word.strip()]
        entries = [entry for entry in entries if any(word in entry.name.lower() for word in wanted)]
        if not entries:
            raise UserError(f"--rows {rows!r}: no row is called so; there are {', '.join(sweep.rows)}")
    trainer = Trainer(shlex.split(launch), environment, _say)
    judge = None
    if data and not (as_bool(plan, "plan") or words_of):  # lists must be quick
        judge = partial(evaluate, environment=environment, say=_say, leave_if_asked=trainer.leave_if_asked)
    everything = Plan(entries, sweep.seeds, folder, partial(_score, sweep, judge))
    if as_bool(plan, "plan"):
        print("\n".join(everything.lines()))
        return 0
    if words_of:
        return _print_words(everything, words_of)
    for key in replaced(sweep, overrides):
        print(f"note: --{key} is set for all runs, in place of what the file says", file=sys.stderr)
    for entry in (entry for entry in entries if entry.row.kind == "start" and not judged(entry, [], folder)):
        print(
            f"not judged: {entry.name}: {entry.points[0].recipe.name} starts from random weights; --init "
            "names a model"
        )
    cleans = as_bool(clean, "clean")
    work = _Work(sweep, everything, trainer, judge, folder, table)
    try:
        if as_bool(dry_run, "dry_run"):
            return work.try_out()
        if run_numbers:
            return work.train(_numbers(run_numbers, everything))
        if not as_bool(gather, "gather"):
            work.train(range(len(everything.tasks)))
        return work.finish(evaluations, cleans)
    except Left as left:
        print("stopped; what is done is kept, and the same command goes on from there", file=sys.stderr)
        return left.code


class _Work:
    """A sweep under way. judge: evaluates models (`table.evaluate`); None: there is no data to judge by."""

    def __init__(self, sweep: Sweep, plan: Plan, trainer: Trainer, judge: Judge | None, out: Path, name: str):
        self.sweep, self.plan, self.trainer, self.judge, self.out, self.name = (
            sweep,
            plan,
            trainer,
            judge,
            out,
            name,
        )

    def train(self, numbers: Sequence[int]) -> int:
        """Train the tasks of these numbers; returns 1 if one failed. One failure does not stop the others."""
        tasks = [self.plan.tasks[number] for number in numbers]
        known = [run for task in tasks if (run := self.plan.resolve(task)) is not None]
        states = [run.state for run in known]
        done, begun = states.count("done"), states.count("begun")
        _say(
            f"{len(tasks)} runs: {done} done, {begun} begun, {len(tasks) - done - begun} to do{_left(known)}"
        )
        for number, task in enumerate(tasks, 1):
            run = self.plan.resolve(task)
            if run is None:
                _say(
                    f"[{number}/{len(tasks)}] {task.entry.name}, seed {task.seed}: left out, the search has "
                    "no winner"
                )
            elif run.state != "done" and self.trainer.train(run, f"[{number}/{len(tasks)}] "):
                dev = f", STS-B dev {run.dev:.2f}" if run.dev is not None else ""
                _say(f"  done in {format_seconds(run.summary['seconds'])}{dev}{_left(known)}")
        for name, words in self.trainer.failures.items():
            _say(f"failed: {name}: {words}")
        return 1 if self.trainer.failures else 0

    def finish(self, evaluations: str, clean: bool) -> int:
        """Evaluate, tabulate, say what is still to be evaluated; returns 1 if a run failed."""
        models = [
            model
            for entry in self.plan.entries
            if entry.row.kind == "start" or entry.runs
            for model in judged(entry, self.plan.chosen(entry), self.out)
        ]
        chosen = LIGHT | _choose(evaluations, self.sweep)
        for entry in (entry for entry in self.plan.entries if entry.runs):
            if names := unequal_inputs(runs := self.plan.chosen(entry)):
                _say(
                    f"WARNING: the runs of {entry.name} were not trained on the same {', '.join(names)} "
                    "(inputs in their report/summary.json): of "
                    f"{', '.join(str(run.folder) for run in runs)} remove those with the wrong one, and the "
                    "same command trains them again"
                )
        if self.judge is None:
            _say("no evaluation: name a folder with SentEval's data with --sts, or by CLEAR_DATA")
        else:
            self.judge(models, chosen)
        print(write(self.sweep, collect(self.sweep, self.plan, self.out), self.out / self.name))
        if clean:
            for model in (model for model in models if model.run is not None):
                shutil.rmtree(model.run.folder / "checkpoints", ignore_errors=True)
        if commands := pending(self.sweep, models):
            print("To fill the other columns (--evaluations all runs these):", *commands, sep="\n  ")
        print(f"table and figures: {self.out / self.name}")
        return 1 if self.trainer.failures else 0

    def try_out(self) -> int:
        """Start every row for two steps; returns 1 if one does not start."""
        failed = 0
        for entry in self.plan.entries:
            if not entry.runs:
                _say(f"{'judged' if entry.row.kind == 'start' else 'quoted'}  {entry.name}")
                continue
            folder = self.out / self.name / "dry-run" / slug(entry.name)
            probe = Run(entry.name, entry.points[0], self.plan.seeds[0], folder)
            problem = self.trainer.try_out(probe, folder)
            shutil.rmtree(folder.with_name(f"{folder.name}.dry-run"), ignore_errors=True)
            failed += bool(problem)
            _say(f"{'FAILS' if problem else 'starts'}  {entry.name}" + (f": {problem}" if problem else ""))
        _say(f"{failed} rows do not start" if failed else "every row that can run starts")
        return 1 if failed else 0


def _score(sweep: Sweep, judge: Judge | None, run: Run) -> float | None:
    """The figure that decides a search, of a run; None: it is not there, and `judge` is not there to find it.

    Raises:
        UserError: the run is finished and was not evaluated on STS-B dev, which decides.
    """
    if run.summary is None:
        return None
    if sweep.select == "dev":
        if run.dev is None:
            raise UserError(
                f"{run.folder} has no STS-B dev score, by which its search is decided: name the STS data "
                "with --sts or CLEAR_DATA, remove that folder, and run the sweep again"
            )
        return run.dev
    model = Judged(str(run.folder / "best"), run.config.model.pooling, run.folder / "sweep", run)
    evaluation = sweep.select.split(".")[0]
    if judge is not None:
        judge([model], {evaluation: (LIGHT | sweep.evaluations).get(evaluation, "")})
    return metric(model, sweep.select)


def _environment(data: str) -> dict[str, str]:
    """Of training and evaluating processes: this project importable from anywhere, the data where evaluations
    look for it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path} | ({"CLEAR_DATA": str(Path(data).resolve())} if data else {})


def _choose(words: str, sweep: Sweep) -> dict[str, str]:
    names = (
        list(sweep.evaluations)
        if words == "all"
        else [word.strip() for word in words.split(",") if word.strip()]
    )
    if unknown := [name for name in names if name not in sweep.evaluations]:
        raise UserError(
            f"--evaluations {unknown[0]!r}: this sweep has {', '.join(sweep.evaluations) or 'none'}"
        )
    return {name: sweep.evaluations[name] for name in names}


def _with_seeds(sweep: Sweep, text: str) -> Sweep:
    numbers = [word.strip() for word in text.split(",")]
    if not all(number.isdecimal() for number in numbers) or len(set(numbers)) < len(numbers):
        raise UserError(f"--seeds {text!r}: give different whole numbers by commas, as 1,11,42")
    return sweep.model_copy(update={"seeds": list(map(int, numbers))})


def _numbers(text: str, plan: Plan) -> list[int]:
    for number in text.split(","):
        if not (number.isdecimal() and int(number) < len(plan.tasks)):
            raise UserError(
                f"--run_numbers {number!r}: there are {len(plan.tasks)} runs, from 0; --plan lists them"
            )
    return list(map(int, text.split(",")))


def _print_words(plan: Plan, number: str) -> int:
    run = plan.resolve(plan.tasks[_numbers(number, plan)[0]])
    if run is None:
        raise UserError(
            f"run {number} is of the winner of a search that is not finished; --plan lists its runs"
        )
    if run.state != "done":
        print("\n".join(run.words(run.folder)))
    return 0


def _submit() -> int:
    words = [word for word in sys.argv[1:] if word != "slurm" and not word.startswith("--executor")]
    os.execvp("bash", ["bash", str(ROOT / "slurm" / "sweep.sh"), "--", *words])


def _left(runs: list[Run]) -> str:
    seconds = remaining_seconds(runs, runs)
    return f"; about {format_seconds(seconds)} of training left" if seconds else ""


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    run_command(main, positional=1)
