"""The estimated time of GLUE follows from the data that is there and from the model's own speed."""

import math
import time

import pytest
import torch
from finetuning_helpers import save_model
from glue_files import write_glue

from finetune.evaluate import training_costs
from finetune.evaluate.__main__ import _choose
from finetune.evaluate.costs import Costs
from finetune.evaluate.suites import SUITES
from finetune.glue.runs import MAX_LENGTH, Options
from finetune.glue.store import RunStore
from finetune.tuning.labelled import encode_examples, open_source
from finetune.tuning.tasks import load

UNITS = {unit.tasks[0]: unit for unit in SUITES["glue"]}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, "bert")
    return open_source(folder)


def test_steps_and_tokens_are_those_of_the_files(source, tmp_path):
    few, many = (write_glue(tmp_path / str(rows), train=rows) for rows in (40, 600))
    splits = load("RTE", str(few)).splits
    tokens = {
        name: int(encode_examples(source, rows.first, rows.second, None, MAX_LENGTH).tokens.lengths.sum())
        for name, rows in splits.items()
    }
    size = training_costs._glue(source, "RTE", few)
    assert size.steps == 10 * math.ceil(40 / 16)
    assert (size.tokens, size.evaluated) == (10 * tokens["train"], 10 * tokens["dev"])
    large = training_costs._glue(source, "RTE", many)  # of which a sample is tokenised
    assert large.steps == 10 * math.ceil(600 / 16)
    assert large.tokens == pytest.approx(15 * size.tokens, rel=0.2)
    assert large.evaluated == pytest.approx(size.evaluated, rel=0.2)
    matched = training_costs._glue(source, "MNLI", few)
    assert matched.evaluated == pytest.approx(2 * size.evaluated, rel=0.3)  # two dev sets


def test_a_damaged_set_is_left_out_and_others_are_chosen(source, tmp_path, capsys):
    data = write_glue(tmp_path)
    (data / "GLUE" / "RTE" / "train.tsv").write_text("index\tsentence1\n")
    units = [UNITS["RTE"], UNITS["MRPC"], SUITES["anli"][0]]  # ANLI has no files at all
    costs = Costs(None, "", data)
    choice = _choose(units, costs, 1e6, 1, source.model.source, "mean", "fp32", {})
    assert choice.chosen == [UNITS["MRPC"]] and not choice.left_out
    assert "no column 'sentence2'" in choice.refused[UNITS["RTE"]]
    said = capsys.readouterr().out
    assert "left out: glue RTE: " in said and "left out: anli R1,R2,R3: " in said
    assert "+ glue MRPC: about " in said


@pytest.mark.parametrize(("own", "threads"), [("3", {3}), ("", {1, 5})])
def test_a_model_is_timed_with_the_threads_of_its_units(source, tmp_path, monkeypatch, own, threads):
    """Seeds side by side have one each; ANLI has all cores; what the user sets holds for both."""
    monkeypatch.setenv("OMP_NUM_THREADS", own)
    monkeypatch.setattr(training_costs, "usable_cores", lambda: 5)
    monkeypatch.setattr(training_costs, "choose_processes", lambda *_: 1 if own else 5)
    monkeypatch.setattr(training_costs, "_SECONDS", 0.0)
    used, step = set(), training_costs._step
    monkeypatch.setattr(
        training_costs, "_step", lambda *words: used.add(torch.get_num_threads()) or step(*words)
    )
    units = [UNITS["RTE"], SUITES["anli"][0]]
    training_costs.training_costs(units, source.model.source, write_glue(tmp_path), 1)
    assert used == threads


def test_an_estimate_is_within_a_factor_of_two(source, tmp_path):
    """Other work on this machine may slow down either side: one of a few attempts counts."""
    data = write_glue(tmp_path, train=320)
    options, ratios = Options(seeds=1), []
    for attempt in range(5):
        before = torch.get_num_threads()
        speed = training_costs.measure_training(source, 1)
        size = training_costs._glue(source, "RTE", data)
        store = RunStore(source, {"RTE": load("RTE", str(data))}, options, tmp_path / str(attempt), lambda: 0)
        assert torch.get_num_threads() == before
        torch.set_num_threads(1)
        started = time.perf_counter()
        store.compute(*options.runs(["RTE"]), "")
        ratios.append(
            speed.seconds(size.steps, size.tokens, size.evaluated) / (time.perf_counter() - started)
        )
        torch.set_num_threads(before)
        if 0.5 < ratios[-1] < 2:
            return
    raise AssertionError(ratios)
