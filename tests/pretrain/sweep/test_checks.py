"""What makes a table wrong: equal weights in two rows, runs that trained otherwise than their row says."""

import json

from sweep_helpers import ROOT, entries_of

from pretrain.config.recipe import to_yaml
from pretrain.sweep.checks import errors_of, unlike_recorded
from pretrain.sweep.file import sweep_of
from pretrain.sweep.runs import Plan
from pretrain.sweep.table import collect, tabulate


def finish(run, weights, **summary):
    (run.folder / "report").mkdir(parents=True)
    summary = {"steps": 4, "seconds": 2.0, "best_step": 4, "weights": str(weights)} | summary
    (run.folder / "report" / "summary.json").write_text(json.dumps(summary))
    (run.folder / "config.yaml").write_text(to_yaml(run.config) + "# inputs\n")


def plan_of(tmp_path, seeds=(1, 2), **rows):
    rows = {name: {"set": settings} for name, settings in rows.items()}
    entries = entries_of(tmp_path, recipe=str(ROOT / "configs" / "vadvcse_micro.yaml"), rows=rows)
    return Plan(entries, list(seeds), tmp_path / "out", lambda run: None)


def errors(plan):
    return errors_of([(entry, plan.chosen(entry)) for entry in plan.entries])


def test_two_rows_of_equal_weights_are_an_error_that_names_the_idle_settings(tmp_path):
    idle = {"objective.vadvcse.step_size": 0.5, "objective.vadvcse.steps": 2}
    plan = plan_of(tmp_path, base={}, idle=idle, other={"train.lr": 1e-3})
    for entry in plan.entries:
        for run in plan.chosen(entry):
            finish(run, run.seed + 10 * (entry.name == "other"))
    (error,) = errors(plan)  # once for two rows, whatever the number of seeds
    assert error.startswith("base and idle have trained equal weights (seed 1: ")
    assert "differ in objective.vadvcse.steps, objective.vadvcse.step_size, which then did nothing" in error
    assert "other" not in error


def test_rows_that_share_a_run_or_differ_in_evaluation_alone_may_be_equal(tmp_path):
    plan = plan_of(tmp_path, [1], base={}, same={}, watched={"evaluate.every": 7})
    for run in {run.folder: run for entry in plan.entries for run in plan.chosen(entry)}.values():
        finish(run, 1.0)
    assert errors(plan) == []


def test_a_run_that_trained_otherwise_than_its_row_says_is_an_error(tmp_path):
    plan = plan_of(tmp_path, [1], base={"model.dropout": 0.3, "train.lr": 2e-3})
    (run,) = plan.chosen(plan.entries[0])
    finish(run, 1.0, in_force={"model.dropout": 0.3, "model.layers": 4})
    assert unlike_recorded(run) == []
    summary = run.summary | {"in_force": {"model.dropout": 0.1}}
    (run.folder / "report" / "summary.json").write_text(json.dumps(summary))
    path = run.folder / "config.yaml"
    path.write_text(path.read_text().replace("lr: 0.002", "lr: 0.5"))
    (error,) = errors(plan)
    assert "the row sets model.dropout 0.3, the run trained with 0.1" in error
    assert "the row sets train.lr 0.002, the run records 0.5" in error and str(run.folder) in error


def test_the_table_shows_what_is_wrong_with_it_and_what_was_in_force(tmp_path):
    plan = plan_of(tmp_path, [1], base={}, idle={"objective.vadvcse.sigma": 0.5})
    for entry in plan.entries:
        for run in plan.chosen(entry):
            finish(run, 1.0, in_force={"model.layers": 4})
    content = collect(sweep_of(ROOT / "configs" / "vadvcse_micro.yaml"), plan, tmp_path / "out")
    assert content["rows"][0]["runs"][0]["in_force"] == {"model.layers": 4}
    assert "**ERROR: base and idle have trained equal weights" in tabulate(content)
