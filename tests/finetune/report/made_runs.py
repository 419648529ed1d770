"""Make run folders and result files, and read the report's tables of them."""

import json

import yaml

from finetune.report import tables as report_tables
from finetune.report.sources import collect, group
from finetune.results import Evaluation, TaskResult, write


def make_run(folder, seed=1, objective="clear", finished=True, steps=(1, 10, 20)):
    folder.mkdir(parents=True)
    recipe = {
        "name": "r",
        "folder": str(folder),
        "train": {"seed": seed, "lr": 0.001},
        "objective": {"name": objective},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(recipe))
    records = [{"step": 0, "evaluation": {"stsb-dev": 30.0}}]
    records += [
        {
            "step": n,
            "loss": {"mlm": 9 - n / 10, "total": 1.0},
            "tokens": 100 * n,
            "seconds": n / 10,
            "memory": {"peak_gb": 1 + n / 100},
        }
        for n in steps
    ]
    records.append({"step": steps[-1], "evaluation": {"stsb-dev": 40.0 + seed}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    if finished:
        (folder / "report").mkdir()
        summary = {"steps": steps[-1], "tokens": 2000, "seconds": 4.0, "start": {}, "trained": {}}
        (folder / "report" / "summary.json").write_text(json.dumps(summary))
    return folder


def make_result(folder, name, figures, pooling="mean", note="", metric="accuracy", **scores):
    evaluation = Evaluation(name, "some/model", pooling, pooling, "a protocol", seconds=65.0)
    evaluation.tasks = {
        task: TaskResult(metric, value, {metric: value, **scores}, std=0.5) for task, value in figures.items()
    }
    if note:
        evaluation.incomplete(note)
    write(evaluation, folder)


def tables_of(*sources):
    systems = group(collect([str(source) for source in sources]))
    rows = report_tables.rows_of(systems)
    tables = [*report_tables.paper_tables(rows), *report_tables.other_tables(rows)]
    return {table.key: table for table in tables}, systems
