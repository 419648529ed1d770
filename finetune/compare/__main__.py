"""Compare runs or models on one page: what differs in their recipes, their curves, and their scores.

    clearly compare runs/one runs/other
    clearly compare runs/one MODEL --eval-data DIR --pooling mean --out compare

Differences are to the first model, with intervals over the sentence pairs of STS, on which the models are
scored here, and over the test examples of the evaluations that both models have behind them
(finetune.senteval, glue, intents ...: their answers are kept beside the figures). For several seeds of a
recipe, and intervals over them, there is `clearly sweep`.
"""

import os
import sys
from pathlib import Path
from typing import Any

from finetune.compare.differences import (
    AVERAGE,
    Scored,
    difference_table,
    model_pairs,
    sts_differences,
    summary_lines,
)
from finetune.compare.examples import (
    Compared,
    choose_poolings,
    example_differences,
    example_lines,
    example_tables,
)
from finetune.encoders.models import open_model
from finetune.encoders.source import kind_of, names_function, resolve
from finetune.flags import EvalData, Pooling, VectorPrecision
from finetune.geometry import plots
from finetune.report.cells import Table, as_json
from finetune.report.figures import draw_curves
from finetune.report.page import page
from finetune.report.sources import Subject, System, collect
from finetune.report.tables import config_table, cost_table, other_tables, paper_tables, rows_of
from finetune.sts.scores import PairScores, StsEvaluator
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably, require_writable, to_json
from pretrain.telemetry.intervals import Interval


def compare(
    *models: str,
    out: Path = Path("compare"),
    tasks: cli.Names = (),
    pooling: Pooling = "",
    precision: VectorPrecision = "fp32",
    eval_data: EvalData = "",
) -> None:
    """Write one page on what differs between runs or models: recipes, curves, scores with intervals.

    Args:
        models: two or more; differences are to the first.
        out: folder for compare.html and compare.json.
        tasks: of STS; default: all that the data folder holds.
    """
    places = {os.path.realpath(model) if os.path.exists(model) else model for model in models}
    if len(places) < 2 or len(places) < len(models):
        raise UserError("name two or more different runs or models: clearly compare runs/one runs/other")
    require_writable(out)
    subjects = _subjects(models)
    systems = [System(name, [subject]) for name, subject in subjects.items()]
    data = eval_data or os.environ.get("CLEAR_DATA", "")
    found: dict[str, dict[str, Scored]] = {}
    if data:
        found = sts_differences(
            _pairs(models, [system.label for system in systems], data, tasks, pooling, precision)
        )
    else:
        print(
            "STS is not compared: --eval-data, or CLEAR_DATA, names the folder of the benchmarks",
            file=sys.stderr,
        )
    evaluations = choose_poolings(subjects, pooling)
    examples = example_differences(evaluations)
    rows = rows_of(systems)
    papers, used = paper_tables(rows)
    tables: dict[str, list[Table]] = {
        "Scores": [*([difference_table(found)] if found else []), *example_tables(examples, evaluations)],
        "Recipes": [table for table in [config_table(systems)] if table],
        "Curves": [],
        "Other evaluations": [*(table for table in papers if table.ours), *other_tables(rows, used)],
        "Cost": [table for table in [cost_table(systems)] if table],
    }
    html = page("Comparison", _introduction(systems), tables, [], {"Curves": _curves(systems)})
    make_folder(out)
    replace_durably(out / "compare.html", html.encode())
    content = {
        "models": list(models),
        "sts": {
            name: {task: _plain(one) for task, one in of_model.items()} for name, of_model in found.items()
        },
        "examples": {
            name: {
                task: {model: _plain_answer(one) for model, one in of_models.items()}
                for task, of_models in of_tasks.items()
            }
            for name, of_tasks in examples.items()
        },
        "tables": {section: [as_json(table) for table in named] for section, named in tables.items()},
    }
    replace_durably(out / "compare.json", to_json(content))
    if found:
        first = next(iter(found.values()))
        print("\n".join(summary_lines(found, [AVERAGE] if AVERAGE in first else list(first))))
    for line in example_lines(examples):
        print(line)
    print(f"page: {(out / 'compare.html').resolve()}")


def _subjects(models: tuple[str, ...]) -> dict[str, Subject]:
    """Return label -> what is known of each model: of a run its recipe, curves and results.

    Raises:
        UserError: a name stands for several runs, or for no model.
    """
    subjects = []
    for model in models:
        try:
            several = collect([model])
        except UserError:  # a model without results, or none
            if not names_function(model):
                kind_of(resolve(model).location)
            several = [Subject(Path(model), Path(model).name)]
        if len(several) > 1:
            raise UserError(f"{model} holds {len(several)} runs or models; name those to compare")
        subjects += several
    names = [subject.name for subject in subjects]
    return {
        subject.name if names.count(subject.name) == 1 else model: subject
        for model, subject in zip(models, subjects)
    }


def _pairs(
    models: tuple[str, ...],
    labels: list[str],
    data: str,
    tasks: tuple[str, ...],
    pooling: str,
    precision: str,
) -> dict[str, PairScores]:
    """Return every model's similarities of all pairs."""
    evaluator = StsEvaluator(data)
    return {
        label: model_pairs(open_model(model, pooling, precision=precision), evaluator, tasks)
        for model, label in zip(models, labels)
    }


def _curves(systems: list[System]) -> dict[str, str]:
    """Return name -> SVG of every curve that two of the runs, or more, have."""
    runs = [system for system in systems if system.members[0].metrics]
    if len(runs) < 2:
        return {}
    with plots.style():
        return {key: plots.to_svg(figure, f"curve-{key}") for key, figure in draw_curves(runs)}


def _introduction(systems: list[System]) -> list[str]:
    return [
        ", ".join(system.label for system in systems) + ".",
        "Intervals are over the benchmarks' sentence pairs and test examples. Two runs of one recipe differ "
        "by their seeds too: clearly sweep measures that.",
    ]


def _plain(one: Scored) -> dict[str, float]:
    return {"value": one.value, **_plain_interval(one.difference)}


def _plain_answer(one: Compared) -> dict[str, Any]:
    reason = {"reason": one.reason} if one.reason else {}
    return {"metric": one.metric, "value": one.value, **_plain_interval(one.difference), **reason}


def _plain_interval(difference: Interval | None) -> dict[str, float]:
    if difference is None:
        return {}
    return {"difference": difference.mean, "low": difference.low, "high": difference.high}


if __name__ == "__main__":
    cli.run(compare)
