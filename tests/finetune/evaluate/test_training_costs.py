"""The estimated time of GLUE follows from the data that is there and from the model's own speed."""

import math
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from anli_files import write_anli
from finetuning_helpers import save_model
from glue_files import write_glue

from finetune import anli
from finetune.evaluate import training_costs
from finetune.evaluate.__main__ import _choose
from finetune.evaluate.costs import Costs
from finetune.evaluate.suites import SUITES
from finetune.evaluate.training_costs import TrainingSpeed
from finetune.glue import side_by_side
from finetune.glue.runs import MAX_LENGTH, Options
from finetune.glue.store import RunStore
from finetune.tuning.finetuning import FineTuning
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


@pytest.fixture
def counts(monkeypatch):
    """Steps, tokens and evaluated tokens of all fine-tuning from here on."""
    found, update, logits = Counter(), FineTuning.update, FineTuning.logits

    def counted_update(self, rows):
        found.update(steps=1, tokens=int(self.train_set.tokens.lengths[rows].sum()))
        return update(self, rows)

    def counted_logits(self, data):
        found.update(evaluated=int(data.tokens.lengths.sum()))
        return logits(self, data)

    monkeypatch.setattr(FineTuning, "update", counted_update)
    monkeypatch.setattr(FineTuning, "logits", counted_logits)
    return found


def test_steps_tokens_and_runs_of_glue_are_those_of_a_run(source, tmp_path, counts, monkeypatch):
    data, options = write_glue(tmp_path), Options()
    store = RunStore(source, {"RTE": load("RTE", str(data))}, options, tmp_path / "glue", lambda: 0)
    runs = options.runs(["RTE"])
    store.compute(runs[0], "")
    size = training_costs._glue(source, "RTE", data)
    assert counts == {"steps": size.steps, "tokens": size.tokens, "evaluated": size.evaluated}
    monkeypatch.setattr(training_costs, "measure_training", lambda *_: TrainingSpeed(60.0, 0.0, 0.0))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for jobs, cores in ((1, 1), (1, 2), (2, 4)):  # where units run side by side, seeds do not
        monkeypatch.setattr(side_by_side, "usable_cores", lambda cores=cores: cores)
        found = training_costs.training_costs([UNITS["RTE"]], source.model.source, data, jobs)
        after_each_other = math.ceil(len(runs) / (cores if jobs == 1 else 1))
        assert found.seconds[UNITS["RTE"]] == pytest.approx(after_each_other * counts["steps"] * 60, abs=30)


def test_steps_and_tokens_of_anli_are_those_of_a_run(source, tmp_path, counts, monkeypatch):
    monkeypatch.setattr(anli, "EVALUATE_EVERY", 3)
    data = Path(write_anli(tmp_path))
    anli.evaluate(source, anli.load_sets(str(data)), folder=tmp_path / "anli")
    size = training_costs._anli(source, data)
    assert counts == {"steps": size.steps, "tokens": size.tokens, "evaluated": size.evaluated}


def test_an_estimate_is_the_time_of_a_run(source, tmp_path, monkeypatch):
    """In processor time, of which others on this machine take nothing."""
    monkeypatch.setattr(training_costs, "time", SimpleNamespace(perf_counter=time.process_time))
    data, options = write_glue(tmp_path, train=320), Options(seeds=1)
    before = torch.get_num_threads()
    speed = training_costs.measure_training(source, 1)
    assert torch.get_num_threads() == before
    size = training_costs._glue(source, "RTE", data)
    store = RunStore(source, {"RTE": load("RTE", str(data))}, options, tmp_path / "glue", lambda: 0)
    torch.set_num_threads(1)
    started = time.process_time()
    store.compute(*options.runs(["RTE"]), "")
    taken = time.process_time() - started
    torch.set_num_threads(before)
    assert speed.seconds(size.steps, size.tokens, size.evaluated) == pytest.approx(taken, rel=0.4)


def test_data_that_cannot_fit_in_the_budget_is_not_read(source, tmp_path, capsys, monkeypatch):
    data = Path(write_anli(write_glue(tmp_path / "few", train=300), training=("anli",)))
    units, model = [UNITS["RTE"], UNITS["MNLI"], SUITES["anli"][0]], source.model.source
    full = training_costs.training_costs(units, model, data, 1)
    assert not full.at_least and not full.refused
    bounds = training_costs.training_costs(units, model, data, 1, 0.0)
    assert bounds.at_least == set(units)
    assert all(0 < bounds.seconds[unit] < full.seconds[unit] for unit in units)
    with open(data / "GLUE" / "MNLI" / "train.tsv", "a") as file:
        file.truncate(10**12)  # of which nothing is written
    choice = _choose(units, Costs(None, "", data), 3000.0, 1, model, "mean", "fp32", {})
    assert choice.left_out == dict.fromkeys(units[1:], "longer than the budget")  # ANLI has MNLI's file, too
    said = capsys.readouterr().out
    assert "- glue MNLI: at least " in said and "+ glue RTE: about " in said
