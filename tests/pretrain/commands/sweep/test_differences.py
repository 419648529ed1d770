"""Differences of rows to a baseline, and how the table says them."""

import json

import numpy as np
import pytest
from scipy import stats
from sweep_helpers import entries_of, write_sts, write_sweep

from finetune.answers import Answers
from pretrain.commands.sweep.file import expand, read_sweep
from pretrain.commands.sweep.runs import SweepPlan
from pretrain.commands.sweep.table import baseline_of, collect, tabulate, tasks_of
from pretrain.common.errors import UserError

SEEDS = [1, 2, 3, 4, 5]


def finish(run, figure, gold=None, similarities=None, **inputs):
    """Write what a finished, evaluated run leaves: a STS-B figure and, if given, the pairs' scores."""
    for name in ("report", "sweep"):
        (run.folder / name).mkdir(parents=True)
    summary = {"steps": 4, "seconds": 2.0, "best_step": 4, "inputs": {"shards": "s"} | inputs}
    summary["best"] = {"stsb-dev": figure + 10}
    (run.folder / "report" / "summary.json").write_text(json.dumps(summary))
    kept = {} if gold is None else {"STS-B": Answers.of(similarities, gold, "spearman", "STS-B")}
    write_sts(run.folder / "sweep", {"STS-B": figure}, kept)


def plan_of(tmp_path, **tree):
    tree = {"columns": {"STS-B": "sts.STS-B"}, "seeds": SEEDS, "set": {"model.pooling": "mean"}} | tree
    path = write_sweep(tmp_path, **tree)
    sweep = read_sweep(path)
    return sweep, SweepPlan(expand(sweep, tmp_path, {}), sweep.seeds, tmp_path / "out")


ROWS = {"base": {}, "better": {"set": {"train.lr": 1e-3}}, "same": {"set": {"train.lr": 2e-3}}}


def test_differences_are_paired_by_seed_and_those_that_cannot_be_told_are_marked(tmp_path):
    sweep, plan = plan_of(tmp_path, rows=ROWS)
    of_seed = np.array([50.0, 53.0, 47.0, 55.0, 45.0])  # far more than what rows change
    figures = {
        "base": of_seed,
        "better": of_seed + np.array([1, 1.2, 0.9, 1.1, 0.8]),
        "same": of_seed + np.array([1, -1, 0.5, -0.5, 0]),
    }
    for entry in plan.entries:
        for run, figure in zip(plan.runs_of(entry), figures[entry.name]):
            finish(run, figure)
    content = collect(sweep, plan, tmp_path / "out")
    base, better, same = content["rows"]
    assert "difference" not in base and content["baseline"] == "base"
    found = better["difference"]["columns"]["STS-B"]
    expected = stats.ttest_rel(figures["better"], figures["base"]).confidence_interval(0.95)
    assert found["mean"] == pytest.approx(1.0) and found["told"] and not found["over_pairs"]
    assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))
    assert better["difference"]["seeds"] == SEEDS
    assert not same["difference"]["columns"]["STS-B dev"]["told"]
    assert "s/step" not in better["difference"]["columns"]
    table = tabulate(content)
    assert "| better | ours" in table and "| same | ours" in table
    assert f"|  | less base | +1.00 [{expected.low:+.2f}, {expected.high:+.2f}] |" in table
    assert "|  | less base | ~ +0.00 [" in table and "so the row cannot be told from base" in table


def test_kept_similarities_bring_in_the_pairs(tmp_path):
    sweep, plan = plan_of(tmp_path, rows=ROWS)
    random = np.random.default_rng(0)
    gold = random.normal(size=200)
    own = {name: random.normal(size=200) for name in ROWS}
    for entry in plan.entries:
        for run in plan.runs_of(entry):
            values = gold + 0.8 * own[entry.name] + 0.01 * random.normal(size=200)
            finish(run, 100 * stats.spearmanr(values, gold).statistic, gold, values)
    content = collect(sweep, plan, tmp_path / "out")
    found = content["rows"][1]["difference"]["columns"]
    width = {title: found[title]["high"] - found[title]["low"] for title in ("STS-B", "STS-B dev")}
    # seeds agree with each other, but on 200 pairs only: other pairs might order the rows otherwise
    assert found["STS-B"]["over_pairs"] and not found["STS-B dev"]["over_pairs"]
    assert width["STS-B"] > 5 * width["STS-B dev"]
    assert collect(sweep, plan, tmp_path / "out")["rows"][1]["difference"]["columns"] == found


def test_a_row_scored_on_other_pairs_loses_its_own_part_of_the_interval_alone(tmp_path):
    sweep, plan = plan_of(tmp_path, rows=ROWS)
    random = np.random.default_rng(0)
    golds = {name: random.normal(size=100) for name in ("base", "other")}
    for entry in plan.entries:
        gold = golds["other" if entry.name == "same" else "base"]
        for run in plan.runs_of(entry):
            finish(run, 50.0 + run.seed * (entry.name != "base"), gold, gold + random.normal(size=100))
    content = collect(sweep, plan, tmp_path / "out")
    over_pairs = [row["difference"]["columns"]["STS-B"]["over_pairs"] for row in content["rows"][1:]]
    assert over_pairs == [True, False]
    table = tabulate(content)
    assert "same: intervals of STS-B, STS-B dev are over seeds alone" in table
    assert "better: intervals of STS-B dev are over seeds alone" in table


def test_rows_without_a_seed_in_common_are_compared_as_independent_ones(tmp_path):
    sweep, plan = plan_of(
        tmp_path, rows=ROWS | {"other": {"seeds": [3, 4], "set": {"train.lr": 3e-3}}}, seeds=[1, 2]
    )
    for entry in plan.entries:
        for run in plan.runs_of(entry):
            finish(run, 50.0 + run.seed + (entry.name == "other") * run.seed)
    found = collect(sweep, plan, tmp_path / "out")["rows"][-1]["difference"]
    assert found["seeds"] == []
    expected = stats.ttest_ind([56.0, 58.0], [51.0, 52.0], equal_var=False).confidence_interval(0.95)
    assert (found["columns"]["STS-B"]["low"], found["columns"]["STS-B"]["high"]) == pytest.approx(
        (expected.low, expected.high)
    )


def test_a_single_run_is_not_known_better_than_the_runs_it_is_compared_with(tmp_path):
    rows = {"base": {}, "large": {"set": {"train.global_batch": 256}}}
    sweep, plan = plan_of(tmp_path, rows=rows)
    base, large = (plan.runs_of(entry) for entry in plan.entries)
    for number, run in enumerate([*base, large[2]]):
        finish(run, 50.0 + number)
    difference = collect(sweep, plan, tmp_path / "out")["rows"][1]["difference"]
    assert difference["one_seed"] and difference["columns"] == {}


def test_one_seed_against_several_others_has_no_interval_over_seeds(tmp_path):
    rows = {"base": {}, "other": {"seeds": [9], "set": {"train.global_batch": 256}}}
    sweep, plan = plan_of(tmp_path, rows=rows, seeds=[1, 2, 3])
    for entry in plan.entries:
        for run in plan.runs_of(entry):
            finish(run, 50.0 + run.seed)
    difference = collect(sweep, plan, tmp_path / "out")["rows"][1]["difference"]
    assert difference["seeds"] == [] and difference["one_seed"] and difference["columns"] == {}


def test_one_seed_has_an_interval_over_pairs_alone(tmp_path):
    sweep, plan = plan_of(tmp_path, rows=ROWS, seeds=[7])
    gold = np.arange(50.0)
    for number, entry in enumerate(plan.entries):
        (run,) = plan.runs_of(entry)
        finish(run, 50.0, gold, gold + number * np.random.default_rng(number).normal(size=50))
    content = collect(sweep, plan, tmp_path / "out")
    assert list(content["rows"][1]["difference"]["columns"]) == ["STS-B"]
    assert "better: one seed, so its interval says nothing of other seeds" in tabulate(content)


def test_the_baseline_is_the_files_or_the_first_trained_row(tmp_path):
    def baseline(**tree):
        entries = entries_of(tmp_path, **tree)
        return baseline_of(read_sweep(tmp_path / "sweep.yaml"), entries)

    quoted = {"of others": {"kind": "quoted"}, "as it is": {"kind": "start"}}
    assert baseline(rows=quoted | ROWS) == "base"
    assert baseline(rows=quoted | ROWS, baseline="as it is") == "as it is"
    assert baseline(rows=ROWS, baseline="better", grid={"train.steps": [10, 20]}) == "better, steps 10"
    named_alike = {"base, longer": {"set": {"train.steps": 30}}, **ROWS}
    assert baseline(rows=named_alike, baseline="base") == "base"
    assert baseline(rows=quoted) is None
    with pytest.raises(UserError, match=r"baseline 'of others'.*as it is, base"):
        baseline(rows=quoted | ROWS, baseline="of others")


def test_metrics_of_sts_have_pairs():
    assert tasks_of(["sts.STS12", "dev"]) == ["STS12", "STS-B-dev"]
    assert tasks_of(["sts.STS12", "glue.RTE"]) == [] and len(tasks_of("sts.average")) == 7
