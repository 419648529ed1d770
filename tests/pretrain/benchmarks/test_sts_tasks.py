"""The files of the STS tasks: found in either layout, read whole, damage named."""

import pytest
from real_data import DATA, needs_data
from sts_layout import bag_of_words

from pretrain.benchmarks.sts_tasks import OFFICIAL_PAIRS, SICK_OF_MTEB, TASKS, YEAR_SUBSETS, StsEvaluator
from pretrain.common.errors import UserError


def test_every_task_is_found_in_either_layout(layout, monkeypatch):
    monkeypatch.delenv("CLEAR_DATA", raising=False)
    assert StsEvaluator(layout).available() == list(TASKS)
    assert StsEvaluator(layout / "SentEval").available() == list(TASKS)
    assert StsEvaluator(layout / "SentEval" / "SICK").available() == []
    assert StsEvaluator().available() == []
    monkeypatch.setenv("CLEAR_DATA", str(layout))
    assert StsEvaluator().available() == list(TASKS)


def test_pairs_without_a_gold_are_dropped_and_text_is_normalised(layout):
    subset = StsEvaluator(layout).load("STS16")[0]
    assert len(subset) == 12 - 2  # rows 3 and 8 have no score
    assert all(sentence.endswith(" x") and "  " not in sentence for sentence in subset.second)
    assert not any("source" in sentence for sentence in subset.second)


def test_quotes_of_the_benchmark_are_text(layout):
    pairs = StsEvaluator(layout).load("STS-B")[0]
    assert len(pairs) == 30
    assert all(sentence.startswith('"') for sentence in pairs.first)


def test_mtebs_sick_is_all_of_it(layout):
    evaluator = StsEvaluator(layout)
    (pairs,), (test,), (dev,) = map(evaluator.load, (SICK_OF_MTEB, "SICK-R", "SICK-R-dev"))
    assert len(pairs) == 75 and pairs.first[25:] == dev.first + test.first
    assert pairs.second[25:] == dev.second + test.second
    assert pairs.gold[25:].tolist() == [*dev.gold, *test.gold]


def test_without_a_folder_there_is_no_task(monkeypatch):
    monkeypatch.delenv("CLEAR_DATA", raising=False)
    with pytest.raises(UserError, match="STS12 needs --eval-data or CLEAR_DATA: a folder with SentEval/STS"):
        StsEvaluator().load("STS12")
    with pytest.raises(UserError, match="no STS task without --eval-data or CLEAR_DATA"):
        StsEvaluator().choose(None)


def test_damaged_data_is_named(layout, tmp_path):
    with pytest.raises(UserError, match="did you mean 'STS-B-dev'"):
        StsEvaluator(layout).evaluate(bag_of_words, ["STSB-dev"])
    with pytest.raises(UserError, match=r"sts-dev\.csv is not there"):
        StsEvaluator(tmp_path).evaluate(bag_of_words, ["STS-B-dev"])
    with pytest.raises(UserError, match="no STS task"):
        StsEvaluator(tmp_path).evaluate(bag_of_words)
    folder = tmp_path / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    file = folder / "sts-dev.csv"
    file.write_text("g\tf\ty\t0\t3.0\tone\n")
    with pytest.raises(UserError, match="line 1: 6 tab-separated columns"):
        StsEvaluator(tmp_path).evaluate(bag_of_words, ["STS-B-dev"])
    for score in ("three", "nan", "inf"):
        file.write_text(f"g\tf\ty\t0\t{score}\tone\ttwo\n")
        with pytest.raises(UserError, match=f"'{score}' is not a number"):
            StsEvaluator(tmp_path).evaluate(bag_of_words, ["STS-B-dev"])
    file.write_text("g\tf\ty\t0\t \tone\ttwo\n")
    with pytest.raises(UserError, match=r"sts-dev\.csv: no pair has a score"):
        StsEvaluator(tmp_path).evaluate(bag_of_words, ["STS-B-dev"])
    (tmp_path / "SICK").mkdir()
    (tmp_path / "SICK" / "SICK_trial.txt").write_text("pair_ID\tsentence_A\tsentence_B\n1\tone\ttwo\n")
    with pytest.raises(UserError, match=r"SICK_trial\.txt, line 2: 3 tab-separated columns"):
        StsEvaluator(tmp_path).evaluate(bag_of_words, ["SICK-R-dev"])
    folder = tmp_path / "STS" / "STS13-en-test"
    folder.mkdir()
    for name in YEAR_SUBSETS["STS13"]:
        (folder / f"STS.input.{name}.txt").write_text("a\tb\nc\td\n")
        (folder / f"STS.gs.{name}.txt").write_text("1.0\n")
    with pytest.raises(UserError, match=r"2 pairs, 1 gold scores"):
        StsEvaluator(tmp_path).evaluate(bag_of_words, ["STS13"])


@needs_data("SentEval/STS", "SentEval/SICK")
def test_official_pair_counts():
    evaluator = StsEvaluator(DATA)
    assert evaluator.available() == list(TASKS)
    tasks = (*TASKS, SICK_OF_MTEB)
    assert {task: sum(len(pairs) for pairs in evaluator.load(task)) for task in tasks} == OFFICIAL_PAIRS
    # mteb's own statistics of its SICK-R
    assert evaluator.load(SICK_OF_MTEB)[0].gold.mean() == pytest.approx(3.5291492898)
