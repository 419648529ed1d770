"""The table of a sweep: statistics, correlations, metrics."""

import json

import numpy as np
import pytest
from sweep_helpers import ROOT

from pretrain.commands.sweep.file import Sweep, expand, sweep_of
from pretrain.commands.sweep.runs import SweepPlan
from pretrain.commands.sweep.table import collect, columns_of, statistics_of, tabulate


def test_statistics_are_those_of_a_sample():
    runs = [{"dev": 80.0, "a": 1.0, "b": 5.0}, {"dev": 82.0, "a": 4.0}, {"dev": 81.0, "a": 2.5}]
    found = statistics_of(runs, "dev")
    assert found["mean"]["a"] == 2.5 and found["max"]["a"] == 4.0
    assert found["std"]["a"] == pytest.approx(np.std([1.0, 4.0, 2.5], ddof=1))
    assert "b" not in found["mean"]  # not every seed has it
    assert found["by_dev"] == runs[1]
    assert statistics_of([{"a": 1.0}], "dev") == {
        "mean": {"a": 1.0},
        "std": {},
        "max": {"a": 1.0},
        "by_dev": {},
    }


def test_metrics_come_from_the_evaluations_files(tmp_path):
    columns = {
        "MNLI-m": "glue.MNLI.matched",
        "RTE": "glue.RTE",
        "Avg": "average",
        "pair": ["glue.RTE", "run.best_step"],
        "loss": "run.heldout_mlm_loss",
        "CoLA": "glue.CoLA",
    }
    recipe = ROOT / "configs" / "simcse_micro.yaml"
    tree = Sweep.model_validate(
        {"title": "T", "recipe": str(recipe), "rows": {"one": {}}, "columns": columns}
    )
    entries = expand(tree, tmp_path, {})
    plan = SweepPlan(entries, [42], tmp_path)
    run = plan.runs_of(entries[0])[0]
    (run.folder / "report").mkdir(parents=True)
    (run.folder / "report" / "summary.json").write_text(
        json.dumps({"steps": 4, "seconds": 2.0, "best_step": 3, "best": {"heldout_mlm_loss": 6.0}})
    )
    (run.folder / "sweep").mkdir()
    (run.folder / "sweep" / "glue-cls.json").write_text(
        json.dumps(
            {
                "tasks": {
                    "MNLI": {"value": 80.0, "scores": {"matched": 79.0}},
                    "RTE": {"value": 61.0, "scores": {}},
                }
            }
        )
    )
    figures = collect(tree, plan, tmp_path)["rows"][0]["runs"][0]["figures"]
    # no average while CoLA is missing
    assert figures == {"MNLI-m": 79.0, "RTE": 61.0, "pair": 32.0, "loss": 6.0, "s/step": 0.5}
    assert list(columns_of(tree)) == [
        *tree.columns,
        "STS-B dev",
        "STS-B",
        "7 STS",
        "alignment",
        "uniformity",
        "s/step",
    ]


def test_a_start_that_stayed_the_best_is_named(tmp_path):
    tree = sweep_of(ROOT / "configs" / "simcse_micro.yaml")
    plan = SweepPlan(expand(tree, tmp_path, {}), [5, 6, 7], tmp_path)
    for run, best in zip(plan.runs_of(plan.entries[0]), (0, 20, 0)):
        (run.folder / "report").mkdir(parents=True)
        summary = {"steps": 40, "seconds": 2.0, "best_step": best, "best": {"stsb-dev": 50.0 + best}}
        (run.folder / "report" / "summary.json").write_text(json.dumps(summary))
    content = collect(tree, plan, tmp_path)
    assert [run["figures"]["STS-B dev"] for run in content["rows"][0]["runs"]] == [50.0, 70.0, 50.0]
    assert "simcse_micro, of seed 5, 7: no step was better than the start" in tabulate(content)


def test_a_row_without_runs_is_shown_empty(tmp_path):
    tree = sweep_of(ROOT / "configs" / "simcse_micro.yaml")
    table = tabulate(collect(tree, SweepPlan(expand(tree, tmp_path, {}), [1], tmp_path), tmp_path))
    assert "| simcse_micro | ours, 0 of 1 seeds |  |" in table
