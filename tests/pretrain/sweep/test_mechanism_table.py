"""Below a sweep's table: what its runs' losses and mechanisms do, in their last row of metrics."""

import json

import pytest
from sweep_helpers import ROOT

from pretrain.sweep.file import Sweep, expand
from pretrain.sweep.mechanisms import describe_mechanisms
from pretrain.sweep.runs import Plan
from pretrain.sweep.table import collect, write

ROW = {"loss": {"vadvcse": 0.5}, "vadvcse_gradient_share": 1.0}


def finished(plan: Plan, number: int, rows: list[list[dict]]) -> None:
    """Write what is read of the finished runs of a row: for each seed its rows of metrics."""
    for run, written in zip(plan.chosen(plan.entries[number]), rows, strict=True):
        (run.folder / "report").mkdir(parents=True)
        summary = {"steps": 4, "seconds": 2.0, "best_step": 3}
        (run.folder / "report" / "summary.json").write_text(json.dumps(summary))
        lines = [json.dumps({"step": step, **ROW, **row}) for step, row in enumerate(written, 1)]
        lines.append(json.dumps({"step": len(written), "evaluation": {}}))
        (run.folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def swept(tmp_path):
    recipe = str(ROOT / "configs" / "vadvcse_micro.yaml")
    steps = {"dead": {}, "alive": {"set": {"objective.vadvcse.step_size": "1e4"}}}
    tree = Sweep.model_validate({"title": "T", "recipe": recipe, "rows": steps, "columns": {}})
    plan = Plan(expand(tree, tmp_path, {}), [1, 2], tmp_path, lambda run: None)

    def last(ratio, cosine, share):
        return {
            "vadvcse_adversarial_over_random": ratio,
            "vadvcse_cosine_with_start": cosine,
            "vadvcse_adversarial_gradient_share": share,
        }

    finished(plan, 0, [[last(9.0, 0.0, 9.0), last(1.0, 1.0, 2e-3)], [last(1.004, 0.99, 1e-3)]])
    finished(plan, 1, [[last(1.0, 1.0, 1e-9), last(2.0, 0.5, 0.1)], [last(4.0, 0.7, 0.3)]])
    return tree, plan


def test_figures_are_means_over_seeds_of_their_last_rows_and_inert_ones_are_marked(swept, tmp_path):
    tree, plan = swept
    table = write(collect(tree, plan, tmp_path), tmp_path / "out")
    dead, alive = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert dead["mechanisms"] == {
        "mean": {
            "vadvcse_gradient_share": 1.0,
            "vadvcse_adversarial_over_random": pytest.approx(1.002),
            "vadvcse_cosine_with_start": pytest.approx(0.995),
            "vadvcse_adversarial_gradient_share": pytest.approx(1.5e-3),
        },
        "inert": ["vadvcse_adversarial_over_random", "vadvcse_cosine_with_start"],
    }
    assert alive["mechanisms"]["inert"] == []
    figures = [f"vadvcse_{end}" for end in ("adversarial_over_random", "cosine_with_start")]
    head = " | ".join(["row", *figures, "vadvcse_adversarial_gradient_share"])
    assert f"| {head} |\n" in table  # without the share that is always 1
    assert "| dead | **inert: 1.002** | **inert: 0.995** | 0.0015 |\n" in table
    assert "| alive | 3 | 0.6 | 0.2 |\n" in table
    assert table == (tmp_path / "out" / "table.md").read_text()


def test_without_figures_there_is_no_table():
    assert describe_mechanisms({"rows": [{"name": "one"}]}) == ""
    simcse = {"name": "one", "mechanisms": {"mean": {"simcse_gradient_share": 1.0}, "inert": []}}
    assert describe_mechanisms({"rows": [simcse]}) == ""
