"""Fine-tune an encoder on GLUE by RoBERTa's recipe, and report medians over seeds of the best epochs.

    clearly glue MODEL --eval-data DIR                             GLUE's tasks, 5 seeds
    clearly glue MODEL --eval-data DIR --tasks RTE,MRPC --sweep    RoBERTa's grid of settings
    clearly glue MODEL --eval-data DIR --predict                   and the leaderboard's files

Liu et al. 2019, section 5.1 and table 10: AdamW (0.9, 0.98), eps 1e-6, weight decay 0.1, dropout 0.1, 6 % of
warm-up, linear decay, 10 epochs, the best epoch by the task's metric, median of five seeds. Rate and batch of
each task: fairseq's README. Figures as CLEAR's Table 1 (Wu et al. 2020): MNLI mean of matched and mismatched,
MRPC and QQP mean of accuracy and F1, STS-B mean of Pearson and Spearman, CoLA Matthews, the rest accuracy.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from finetune.flags import Encoder, EvalData, Out
from finetune.glue.runs import EPOCHS, MAX_LENGTH, SEEDS, GlueOptions, GlueRun, Results, choose
from finetune.results import Evaluation, TaskResult, folder_for, sample_std, table, write
from finetune.tuning.labelled import open_source
from finetune.tuning.recipe import Interrupted, stop_code_of, until_stopped
from finetune.tuning.tasks import TABLE_1, TASKS, GlueData, load, prediction_lines, task_named
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.common.folder_lock import FolderTakenError

if TYPE_CHECKING:
    from finetune.glue.store import RunStore


class GlueFlags(BaseModel, use_attribute_docstrings=True):
    """Flags of every command here that say what is done, and where the results go."""

    eval_data: EvalData = ""
    tasks: cli.Names = ()
    """names by commas: MNLI, QNLI, QQP, RTE, SST-2, MRPC, CoLA, STS-B, WNLI, AX (answered by MNLI's model);
    default: all that the data has"""
    out: Out = Field(
        "", description="folder for results; default: RUN/report or results/MODEL. Runs' files: its glue/"
    )


def glue(model: Encoder, *, flags: GlueFlags, options: GlueOptions) -> int:
    """Fine-tune an encoder on GLUE by RoBERTa's recipe; once stopped, the same command continues."""
    return _report(*_open(model, flags, options), compute=True)


def plan(model: Encoder, *, flags: GlueFlags, options: GlueOptions) -> int:
    """List the runs: number, task, seed, rate, batch, and "done" or "to do"."""
    store, _ = _open(model, flags, options)
    left = set(store.unfinished(store.runs))
    for number, run in enumerate(store.runs):
        state = "to do" if run in left else "done"
        print(f"{number}\t{run.task}\t{run.seed}\t{run.lr:g}\t{run.batch_size}\t{state}")
    return 0


def train(
    model: Encoder, *, run_numbers: tuple[int, ...] = (), flags: GlueFlags, options: GlueOptions
) -> int:
    """Do runs and report nothing.

    Args:
        run_numbers: only the runs of these numbers, as `plan` lists them, by commas (job arrays).
    """
    store, _ = _open(model, flags, options)
    for number in run_numbers:
        if not 0 <= number < len(store.runs):
            raise UserError(f"--run-numbers {number}: `plan` lists runs 0 to {len(store.runs) - 1}")
    chosen = [store.runs[number] for number in run_numbers]
    return until_stopped(partial(_compute, store, chosen or store.runs))


def gather(model: Encoder, *, flags: GlueFlags, options: GlueOptions) -> int:
    """Report on the runs that are done; do none."""
    return _report(*_open(model, flags, options), compute=False)


def _open(model: str, flags: GlueFlags, options: GlueOptions) -> tuple[RunStore, list[str]]:
    """Read the data and the model; return the runs, and notes on the data. Every mistake is found here."""
    from finetune.glue.store import RunStore

    if options.sweep and (options.lr or options.batch_size):
        raise UserError("--sweep tries its own rates and batches: leave --lr and --batch-size out")
    found, notes = _load_tasks(flags.tasks, flags.eval_data)
    source = open_source(model)
    folder = folder_for(source.model, flags.out)
    return RunStore(source, found, options, folder / "glue", stop_code_of(folder)), notes


def _report(store: RunStore, notes: list[str], compute: bool) -> int:
    """Do the runs that are left, if asked, then summarise all."""
    folder = store.folder.parent

    def summarised() -> None:
        if compute:
            compute_all(store)
        result, best = summarise(store, notes)
        if store.options.predict:
            write_predictions(store, best, folder / "predictions", result)
        print(table(result))
        path = write(result, folder, add_average)
        print(f"  {result.seconds:.0f} s of fine-tuning; all figures: {path}")

    return until_stopped(summarised)


def _load_tasks(names: Sequence[str], data: str) -> tuple[dict[str, GlueData], list[str]]:
    """Return the tasks' data, and notes on tasks left out: not named, and not there."""
    named = [task_named(name).name for name in names]
    found: dict[str, GlueData] = {}
    notes: list[str] = []
    for name in dict.fromkeys(named or TASKS):
        task = load(name, data)
        if name == "AX":
            lacking = [] if task.splits else ["diagnostic"]
        else:
            wanted = [["train"], task.task.dev_splits()]  # one of each
            lacking = [splits[0] for splits in wanted if not set(splits) & set(task.splits)]
        if not lacking:
            found[name] = task
        elif named:
            raise UserError(f"{name}: no {' and no '.join(lacking)} set; leave the task out, or fetch it")
        else:
            notes.append(f"{name} left out: no {' and no '.join(lacking)} set here")
    if "AX" in found and "MNLI" not in found:
        if named:
            raise UserError("AX is answered by the model of MNLI: add MNLI to --tasks")
        del found["AX"]
    if not found:
        fetch = "`clearly benchmarks fetch GLUE/CoLA DIR` gets one"
        raise UserError(f"no GLUE task is there; --eval-data names a folder with GLUE/CoLA, ...; {fetch}")
    return found, notes


def _compute(store: RunStore, chosen: Sequence[GlueRun]) -> None:
    """Compute those of `chosen` that are unfinished at their turn, last what another process computes."""
    for last in (False, True):
        for entry in chosen:
            if (code := store.stop_code()) != 0:
                raise Interrupted(code)
            if entry not in store.unfinished(store.runs):
                continue
            try:
                with store.claimed(entry):
                    if entry in store.unfinished(store.runs):  # not finished by another process since
                        store.compute(entry, f"[{store.runs.index(entry) + 1}/{len(store.runs)}] ")
            except FolderTakenError:
                if last:
                    raise


def compute_all(store: RunStore) -> None:
    """Compute all figures, then the predictions of the run with the best figure of each task."""
    _compute(store, [entry for entry in store.runs if store.result(entry) is None])
    while left := store.unfinished(store.runs):
        _compute(store, left[:1])


def summarise(store: RunStore, notes: list[str]) -> tuple[Evaluation, dict[str, GlueRun]]:
    """Return the evaluation from the runs that are there, and each task's best run at the best setting."""
    options, tasks = store.options, store.data
    protocol = "RoBERTa's grid" if options.sweep else "RoBERTa's recipe"
    protocol += f", median of {options.seeds} seeds, best epoch each, {options.precision}"
    result = Evaluation.of("glue", store.source.model, protocol)
    for note in notes:
        result.incomplete(note)
    if options.seeds < SEEDS:
        result.incomplete(f"median of {options.seeds} seeds; published figures are of {SEEDS}")
    if options.epochs != EPOCHS:
        result.incomplete(f"{options.epochs} epochs in place of {EPOCHS}")
    if options.max_train:
        result.incomplete(f"at most {options.max_train:,} training examples a task")
    given = {"lr": options.lr, "batch": options.batch_size}
    if own := [f"{name} {value:g}" for name, value in given.items() if value]:
        result.incomplete(f"{' and '.join(own)} in place of the recipe's")
    best: dict[str, GlueRun] = {}
    for task in [name for name in TASKS if name in tasks and name != "AX"]:
        for note in store.data[task].notes:
            result.incomplete(note)
        results = {entry: store.result(entry) for entry in store.runs if entry.task == task}
        done = {entry: found for entry, found in results.items() if found is not None}
        if len(done) < len(results):
            result.incomplete(f"{task}: {len(done)} of {len(results)} runs are done")
        if done:
            result.tasks[task], best[task] = _task_result(task, done, store)
            result.seconds += sum(found["seconds"] for found in done.values())
            counts_of_runs = [found.get("cut", {}) for found in done.values()]
            if cut := max(counts_of_runs, key=lambda counts: sum(counts.values())):
                longest = min(MAX_LENGTH, store.source.encoder.max_positions)
                counts = ", ".join(f"{count:,} of {split}" for split, count in cut.items())
                result.notes.append(f"{task}: texts cut at {longest} tokens: {counts}")
    if "AX" in tasks and not options.predict:
        result.notes.append("AX: the leaderboard has its labels; --predict writes AX.tsv for it")
    if "WNLI" in result.tasks:
        result.notes.append(
            "WNLI: plain pair classification; RoBERTa's figure is from ranking pronouns with further data"
        )
    add_average(result)
    return result, best


def add_average(result: Evaluation) -> None:
    """Add the mean of CLEAR's Table 1, if all of its tasks are there."""
    if all(task in result.tasks for task in TABLE_1):
        mean = statistics.mean(result.tasks[task].value for task in TABLE_1)
        result.add("average of 8", "mean", {"mean": mean})


def _task_result(task: str, done: Results, store: RunStore) -> tuple[TaskResult, GlueRun]:
    medians, reported, winner = choose(done)
    seeds = {str(run.seed): done[run]["best"] for run in reported}
    scores = {
        name: statistics.median(best["scores"][name] for best in seeds.values())
        for name in done[winner]["best"]["scores"]
    }
    headline = "accuracy" if task == "MNLI" else TASKS[task].headline
    values = [best["value"] for best in seeds.values()]
    settings = {f"lr {lr:g}, batch {batch}": median for (lr, batch), median in medians.items()}
    details = {"lr": winner.lr, "batch_size": winner.batch_size, "seeds": seeds, "settings": settings}
    answers = store.answers(task, [done[run] for run in reported])
    median = medians[winner.lr, winner.batch_size]
    return TaskResult(headline, median, scores, sample_std(values), details, answers), winner


def write_predictions(store: RunStore, best: Mapping[str, GlueRun], folder: Path, result: Evaluation) -> None:
    """Write the leaderboard's files of the best runs; what is missing becomes a note of `result`."""
    make_folder(folder)
    for task, entry in best.items():
        logits = store.predictions(entry)
        if logits is None:
            without = f"no predictions on file for {entry.name}"
            result.incomplete(f"{task}: {without}; the same command without the word gather makes them")
            continue
        for name, values in logits.items():
            of, split = name.split("/")
            path = folder / TASKS[of].submission(split)
            replace_durably(path, ("\n".join(prediction_lines(TASKS[of], values)) + "\n").encode())
            result.expect_size(path.name, "test rows", len(values), TASKS[of].sizes[split])
        for split in TASKS[task].sizes:
            if split.startswith("test") and f"{task}/{split}" not in logits:
                result.incomplete(f"{task}: no {split} set here, so no {TASKS[task].submission(split)}")
    print(f"predictions: {folder}", file=sys.stderr)


if __name__ == "__main__":
    cli.run(glue, plan=plan, train=train, gather=gather, outlives_readers=True)
