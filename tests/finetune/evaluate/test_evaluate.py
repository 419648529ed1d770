"""One command for a suite: figures are those of the single commands, and nothing is done twice."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import call
from forked_python import ForkedPython, forked_children
from intent_files import layout
from model_folders import save_bert, save_run
from sts_layout import write_layout
from suite_command import evaluate

from finetune.evaluate import suites
from finetune.evaluate.__main__ import ProcessResult, seconds_of
from finetune.evaluate.suites import SUITES, EvaluationJob, EvaluationRecord
from finetune.intents.__main__ import main as intents
from finetune.results import Evaluation, read, write
from finetune.sts import main as sts
from pretrain.api import Run
from pretrain.common.errors import UserError
from pretrain.common.shutdown import EXIT_BUDGET


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """STS and the intent sets with a few examples each; no other data."""
    folder = layout(write_layout(tmp_path_factory.mktemp("data")))
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return save_run(save_bert(folder / "bert"), folder / "mine", "mean")


@pytest.fixture(scope="module")
def evaluated(run_folder, data, tmp_path_factory):
    """A copy of the run, evaluated by the suite `quick`: (run, vectors, what was printed)."""
    folder = tmp_path_factory.mktemp("evaluated")
    run = shutil.copytree(run_folder, folder / "mine")
    said = evaluate(run, "--eval-data", data, "--vectors", folder / "vectors", "--budget", "10m")
    return run, folder / "vectors", said


def figures(folder: Path, name: str) -> dict:
    return {task: one.value for task, one in read(folder / name).tasks.items()}


@pytest.mark.full
def test_figures_are_those_of_the_single_commands(evaluated, data, tmp_path, monkeypatch):
    run, _, said = evaluated
    assert "left out: senteval TREC: " in said and "train_5500.label is not there" in said
    monkeypatch.delenv("CLEAR_VECTORS", raising=False)
    call(sts, run, tasks="STS-B-dev,SICK-R-dev,STS-B,SICK-R", pooling="mean", eval_data=data, out=tmp_path)
    call(intents, run, tasks="SNIPS", eval_data=data, out=tmp_path)
    for name in ("sts-mean.json", "intents-mean.json"):
        assert figures(run / "report", name) == pytest.approx(figures(tmp_path, name), abs=1e-6)
    kept = json.loads((run / "report" / "eval.json").read_text())["units"]["intents SNIPS"]["tasks"]
    assert {name: one["value"] for name, one in kept.items()} == figures(run / "report", "intents-mean.json")


@pytest.mark.full
def test_what_is_done_is_kept_and_so_are_vectors(evaluated, data):
    run, vectors, _ = evaluated
    before = (run / "report" / "sts-mean.json").stat().st_mtime_ns
    said = evaluate(run, "--eval-data", data, "--vectors", vectors)
    assert said.count("done before: ") == 2 and "[1/" not in said and "SNIPS-5 " in said
    assert (run / "report" / "sts-mean.json").stat().st_mtime_ns == before
    said = evaluate(run, "--eval-data", data, "--vectors", vectors, "--again", "--budget", "10m")
    assert "done before" not in said and "[2/2] intents SNIPS" in said
    assert " 0 encoded in" in (run / "report" / "eval" / "intents-SNIPS.txt").read_text()


@pytest.mark.full
def test_from_python_a_suite_returns_all_that_is_done(evaluated, data):
    run, vectors, _ = evaluated
    with forked_children():
        units = Run(run).evaluate("quick", eval_data=data, vectors=vectors)["units"]
    assert set(units) == {"sts STS-B, SICK-R", "intents SNIPS"}
    assert units["intents SNIPS"]["tasks"]["SNIPS-5"]["metric"] == "accuracy"


def test_other_weights_settings_or_data_are_not_done(tmp_path):
    data, unit = layout(tmp_path / "data"), EvaluationJob("intents", ("SNIPS",))
    out, settings = tmp_path / "out", {"pooling": "mean", "precision": "fp32"}
    result = Evaluation("intents", "m", "mean", None, "p", source="these weights")
    for name in unit.expected:
        result.add(name, "accuracy", {"accuracy": 50.0})
    write(result, out)
    record = EvaluationRecord(out, "these weights", settings)
    assert record.figures(unit, data) is None  # nothing says with which data
    record.add(unit, data, 1.0, result)
    assert EvaluationRecord(out, "these weights", settings).figures(unit, data) == result
    for other in (
        EvaluationRecord(out, "other weights", settings),
        EvaluationRecord(out, "these weights", settings | {"pooling": "cls"}),
        EvaluationRecord(out, "these weights", settings | {"precision": "bf16"}),
    ):
        assert other.figures(unit, data) is None
    beside = EvaluationRecord(out, "these weights", settings)  # another process, which began earlier
    record.add(replace(unit, label="again"), data, 1.0, result)
    beside.add(unit, data, 1.0, result)
    assert set(beside.units) == {"intents SNIPS", "intents again"}
    assert record.figures(replace(unit, tasks=("HWU64",)), data) is None
    written = (out / "intents-mean.json").read_bytes()
    (out / "intents-mean.json").write_bytes(written[:-9])
    assert record.figures(unit, data) is None
    (out / "intents-mean.json").write_bytes(written)
    assert record.figures(unit, data) == result
    os.utime(data / "intents" / "SNIPS" / "test" / "label", (1, 1))
    assert record.figures(unit, data) is None
    (out / "eval.json").write_text("{")
    assert EvaluationRecord(out, "these weights", settings).units == {}


@pytest.mark.full
def test_a_stopped_suite_continues(run_folder, data, tmp_path):
    words = [str(run_folder), "--eval-data", str(data), "--out", str(tmp_path / "out")]
    words += ["--vectors", str(tmp_path / "vectors")]
    process = ForkedPython(["-m", "finetune.evaluate", *words], dict(os.environ))
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[2/2]"):
            process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    said = evaluate(*words)
    assert "done before: sts STS-B, SICK-R" in said and "[1/1] intents SNIPS" in said


@pytest.mark.full
def test_what_is_kept_is_printed_where_nothing_fits(run_folder, data, tmp_path):
    only_intents = shutil.copytree(data / "intents", tmp_path / "data" / "intents").parent
    words = (run_folder, "--eval-data", only_intents, "--out", tmp_path / "out", "--vectors=none")
    kept = [line for line in evaluate(*words).splitlines() if line.startswith("  SNIPS-")]
    shutil.copytree(data, only_intents, dirs_exist_ok=True, copy_function=shutil.copy2)
    said = io.StringIO()
    evaluate(*words, "--budget", "0.01s", into=said, code=EXIT_BUDGET)
    assert "left at the budget: sts STS-B, SICK-R; " in said.getvalue()
    assert len(kept) == 3 and set(kept) <= set(said.getvalue().splitlines())


@pytest.mark.full
def test_time_counts_from_the_start_of_the_process(evaluated, data, tmp_path):
    run, vectors, _ = evaluated
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(3)\n")
    done = subprocess.run(
        [sys.executable, "-m", "finetune.evaluate", run, "--eval-data", data, "--vectors", vectors],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=True,
    )
    (total,) = (line for line in done.stdout.splitlines() if " in all; figures: " in line)
    minutes, seconds = total.split()[0].split(":")
    assert 3 <= 60 * int(minutes) + int(seconds) < 300 and "[1/" not in done.stdout


@pytest.mark.full
def test_a_unit_that_fails_does_not_keep_others_from_being_done(run_folder, data, tmp_path):
    other = tmp_path / "data"
    shutil.copytree(data, other)
    (other / "intents" / "SNIPS" / "test" / "label").write_text("one\n")
    words = (run_folder, "--eval-data", other, "--out", tmp_path / "out", "--jobs", 2)
    said = evaluate(*words, "--vectors=none", code=1)
    assert "FAILED: intents SNIPS: error: " in said and "sts STS-B, SICK-R: STS-B-dev" in said
    assert not (tmp_path / "vectors").exists()


@pytest.mark.full
def test_a_function_is_evaluated_each_time(data, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from sts_layout import bag_of_words\n")
    words = [f"{tmp_path}/mine.py:bag_of_words", "--eval-data", data, "--out", tmp_path / "out"]
    words += ["--suite", "sts", "--vectors", tmp_path / "vectors"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    assert "STS12" in evaluate(*words)
    assert "left at the budget: sts " in evaluate(*words, "--budget", "0.01s", code=EXIT_BUDGET)
    assert not list((tmp_path / "vectors").glob("*/*.vectors"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite", "stss"], "unknown suite 'stss'; did you mean 'sts'?"),
        (["--budget", "ten"], "--budget ten: give a time as 90s, 10m, 1h30m or 2d"),
        (["--suite", "clustering"], "nothing of this suite can be done: "),
        (["--pooling", "middle"], "middle"),
        (["--vectors", "/dev/null/kept"], "--vectors /dev/null/kept: /dev/null is not a folder"),
        (["--jobs", "0"], "--jobs"),
    ],
)
def test_mistakes_are_one_message(run_folder, data, tmp_path, words, message):
    with pytest.raises(UserError) as raised:
        evaluate(run_folder, "--eval-data", data, "--out", tmp_path, *words)
    assert message in str(raised.value)


@pytest.mark.full
def test_a_name_that_is_no_model_is_refused_once(data, tmp_path):
    words = [sys.executable, "-m", "finetune.evaluate", "nope", "--eval-data", str(data)]
    offline = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }  # else it tries for a while
    done = subprocess.run(words, cwd=tmp_path, env=offline, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1
    assert "there is no run or folder nope here, and as a model of the hub" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.full
def test_without_a_network_the_hub_is_asked_once(data, tmp_path):
    """Nothing listens at the hub's address; its own library would try for half a minute a file."""
    words = [sys.executable, "-m", "finetune.evaluate", "nobody/nothing", "--eval-data", str(data)]
    own = {"HF_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": str(Path(__file__).parents[3])}
    own |= {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "", "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(words, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("error:") == 1 and "Retry" not in done.stderr
    assert "there is no run or folder nobody/nothing here, and as a model of the hub it" in done.stderr
    assert "cannot be loaded: http://127.0.0.1:9 does not answer (" in done.stderr


@pytest.mark.parametrize(
    ("became", "code", "said"),
    [
        ({}, 0, ""),
        ({"STS": "fails"}, 1, "FAILED: sts STS-B, SICK-R: no luck"),
        ({"STS": "writes nothing"}, 1, "FAILED: sts STS-B, SICK-R: its weights changed meanwhile, or it"),
        ({"STS": "is ended"}, EXIT_BUDGET, "left at the budget: sts STS-B, SICK-R; "),
        ({"STS": "never begins"}, EXIT_BUDGET, "left at the budget: sts STS-B, SICK-R; "),
        ({"STS": "fails", "SNIPS": "is ended"}, 1, "left at the budget: intents SNIPS; "),
    ],
)
def test_what_becomes_of_the_units_decides_the_exit_code(data, tmp_path, monkeypatch, became, code, said):
    def run_units(units, words_of, logs, environment, jobs, deadline, shutdown, begun):
        assert deadline - time.monotonic() == pytest.approx(600, abs=60)
        assert len({tuple(words_of(unit)) for unit in units}) == len(units) == 2
        for unit in units:
            end = next((end for name, end in became.items() if name in unit.name), "")
            if end == "never begins":
                continue
            begun(unit)
            if not end:
                done = Evaluation(
                    unit.evaluation, "m", "function", None, "p", source="sts_layout:bag_of_words"
                )
                for name in unit.expected:
                    done.add(name, "accuracy", {"accuracy": 50.0})
                write(done, logs.parent)
            yield unit, ProcessResult(int(end in ("fails", "is ended")), 1.0, "no luck", end == "is ended")

    monkeypatch.setattr("finetune.evaluate.__main__.run_units", run_units)
    stand_in = SimpleNamespace(requested=lambda: 0)  # which leaves this process's signals as they are
    monkeypatch.setattr("finetune.evaluate.__main__.Shutdown", lambda *_, **__: stand_in)
    words = ["sts_layout:bag_of_words", "--eval-data", data, "--out", tmp_path, "--vectors", "none"]
    printed = evaluate(*words, "--suite", "quick", "--budget", "10m", code=code)
    assert said in printed and printed.count("FAILED") == list(became.values()).count("fails") + (
        "writes nothing" in became.values()
    )
    done = {name for name in ("STS", "SNIPS") if name not in became}
    units = json.loads((tmp_path / "eval.json").read_text())["units"] if done else {}
    assert {name for name in ("STS", "SNIPS") if any(name in unit for unit in units)} == done


# -- the parts ---------------------------------------------------------


def test_durations():
    assert [seconds_of(text) for text in ("90s", "10m", "1h30m", "2d", "")] == [
        90,
        600,
        5400,
        172800,
        float("inf"),
    ]
    for text in ("10", "m", "10m5", "-5m", "0s", "1h 5m"):
        with pytest.raises(UserError, match="give a time as"):
            seconds_of(text)


def test_every_unit_of_every_suite_is_a_command_with_known_files():
    for units in SUITES.values():
        assert len({unit.name for unit in units}) == len(units)
        for unit in units:
            assert unit.files(Path("data")), unit.name
    names = [unit.name for unit in SUITES["all"]]
    others = set(SUITES) - {"quick", "zh_sts"}
    assert {unit.name for name in others for unit in SUITES[name]} == set(names)


def test_named_tasks_are_done_without_the_others_of_their_unit():
    (unit,) = suites.with_tasks(SUITES["sts"], ["STS-B", "STS13"], "sts")
    assert unit.name == "sts STS13,STS-B" and unit.words == ["--tasks", "STS13,STS-B"]
    assert suites.with_tasks(SUITES["anli"], ["R2"], "anli") == SUITES["anli"]  # takes no tasks
    assert suites.with_tasks(SUITES["sts"], [*SUITES["sts"][0].tasks], "sts") == SUITES["sts"]


def test_fine_tuning_does_with_what_its_own_commands_do_with(tmp_path):
    glue = {unit.tasks[0]: unit for unit in SUITES["glue"]}
    for name in ("train", "dev_matched"):
        (tmp_path / "GLUE" / "MNLI").mkdir(parents=True, exist_ok=True)
        (tmp_path / "GLUE" / "MNLI" / f"{name}.tsv").touch()
    for place in (tmp_path, tmp_path / "GLUE"):  # finetune.glue takes either
        assert glue["MNLI"].lacking(place) == ""
    assert "RTE/train.tsv is not there" in glue["RTE"].lacking(tmp_path)
    (tmp_path / "GLUE" / "MNLI" / "dev_matched.tsv").unlink()
    assert "dev_matched.tsv is not there" in glue["MNLI"].lacking(tmp_path)
    (anli,) = SUITES["anli"]
    for number in "123":
        (tmp_path / "ANLI" / f"R{number}").mkdir(parents=True)
        for split in ("dev", "test"):
            (tmp_path / "ANLI" / f"R{number}" / f"{split}.jsonl").touch()
    assert anli.lacking(tmp_path) == ""


@pytest.mark.full
def test_mteb_is_a_suite_whose_units_are_its_tasks(run_folder, tmp_path, monkeypatch):
    pytest.importorskip("mteb", reason="mteb is not installed; the extra `mteb` brings it")
    units = suites.suite_named("mteb-eng", tmp_path)
    assert len(units) == 41
    assert set(units) < set(suites.suite_named("all", tmp_path))
    monkeypatch.delenv("CLEAR_DATA", raising=False)  # none of its data lies there
    monkeypatch.setattr(suites, "_hub_fault", lambda: "the hub does not answer")
    with pytest.raises(UserError, match="MTEB's data cannot be loaded: the hub does not answer"):
        evaluate(run_folder, "--suite", "mteb-eng", "--out", tmp_path)


def test_suites_reject_what_they_do_not_know():
    with pytest.raises(UserError, match="did you mean 'quick'"):
        suites.suite_named("quikc", Path())


@pytest.mark.full
def test_files_written_side_by_side_hold_all_tasks(tmp_path):
    """Four processes write a task each into one file; none is lost."""
    code = """
import sys
from finetune.intents.__main__ import main as intents
from finetune.results import Evaluation, write
one = Evaluation("intents", "m", "mean", None, "p", source="w")
one.add(sys.argv[2], "accuracy", {"accuracy": 1.0})
write(one, __import__("pathlib").Path(sys.argv[1]))
"""
    started = time.monotonic()
    writers = [ForkedPython(["-c", code, tmp_path, str(n)], dict(os.environ)) for n in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4 and time.monotonic() - started < 300
    assert set(read(tmp_path / "intents-mean.json").tasks) == set("0123")


def test_averages_are_added_once_all_tasks_are_there(tmp_path):
    def average(result):
        if {"a", "b"} <= result.tasks.keys():
            result.add("average", "mean", {"mean": (result.tasks["a"].value + result.tasks["b"].value) / 2})

    for name, value in (("a", 1.0), ("b", 2.0)):
        one = Evaluation("intents", "m", "mean", None, "p", source="w")
        one.add(name, "accuracy", {"accuracy": value})
        path = write(one, tmp_path, average)
    assert read(path).tasks["average"].value == 1.5
