"""What each unit of a suite is told, how its process ends, and what is kept of it."""

import json
import math
import os
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import call
from intent_files import layout
from model_folders import make_tokenizer, save_bert, save_guest, save_run
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sts_layout import write_layout

from finetune import mteb_english
from finetune.encoders.source import ModelSource, resolve
from finetune.evaluate import __main__ as running
from finetune.evaluate import suites
from finetune.evaluate.__main__ import ProcessResult, main
from finetune.evaluate.suites import SUITES, EvaluationJob, EvaluationRecord
from finetune.nanobeir import THIRTEEN
from finetune.results import Evaluation, write
from finetune.tuning.labelled import open_source
from pretrain.common.errors import UserError
from pretrain.common.shutdown import EXIT_CODES, INTERRUPT, NONE


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return layout(write_layout(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    bert = save_bert(root / "bert")
    return {
        "bert": bert,
        "run": save_run(bert, root / "run", "mean"),
        "st": save_guest(bert, root / "st", "max"),
    }


class Stand:
    """In place of the processes: what they were told, and files of figures as they write them."""

    def __init__(self, monkeypatch):
        self.words, self.environment, self.removed, self.request, self.at_deadline = [], {}, [], NONE, ()
        monkeypatch.setattr(running, "run_units", self.run_units)
        monkeypatch.setattr(
            running, "Shutdown", lambda *_, **__: SimpleNamespace(requested=lambda: self.request)
        )
        monkeypatch.setattr(running, "remove_oldest", lambda *given: self.removed.append(given))
        self.source = ""

    def run_units(self, units, words_of, logs, environment, jobs, deadline, shutdown, begun):
        self.environment, self.jobs, self.deadline, self.logs = environment, jobs, deadline, logs
        for unit in units:
            begun(unit)
            words = words_of(unit)
            self.words.append(words)
            if self.request:
                yield unit, ProcessResult(1, 1.0, "", False)
                continue
            pooling = words[words.index("--pooling") + 1] if "--pooling" in words else "own modules"
            done = Evaluation(unit.evaluation, "m", pooling, None, "p", source=self.source)
            if "bf16" in words:
                done.notes.append("vectors computed in bf16")
            for name in unit.expected:
                done.add(name, "accuracy", {"accuracy": 50.0}, 1.5)
            write(done, logs.parent)
            yield unit, ProcessResult(0, 1.26, "", False)


@pytest.fixture
def stand(monkeypatch):
    monkeypatch.delenv("CLEAR_VECTORS", raising=False)
    return Stand(monkeypatch)


def test_every_kind_of_unit_gets_the_flags_that_its_command_has(models, data, tmp_path, stand, monkeypatch):
    chosen = {unit.evaluation: unit for name in SUITES for unit in SUITES[name]}
    chosen |= {"mteb_english": EvaluationJob("mteb_english", ("STS12",))}
    monkeypatch.setattr(running, "suite_named", lambda *_: tuple(chosen.values()))
    monkeypatch.setattr(running, "reasons_to_skip", lambda *_: {})
    for name, flags, pooled in (
        ("run", {"precision": "bf16"}, "mean"),
        ("run", {"pooling": "cls"}, "cls"),
        ("st", {}, None),
    ):
        stand.request = INTERRUPT  # nothing is written
        stand.words.clear()
        out = tmp_path / f"{name}{pooled}"
        call(main, models[name], suite="all", eval_data=data, out=out, vectors="none", **flags)
        assert len(stand.words) == len(chosen)
        for unit, words in zip(chosen.values(), stand.words):
            trains, own = unit.evaluation in ("glue", "anli"), unit.evaluation == "mteb_english"
            plain = trains or unit.evaluation == "geometry"
            expected = [f"finetune.{unit.evaluation}", str(models[name])]
            if unit.evaluation not in ("cola_probe", "anli"):
                flag = "--measure" if unit.evaluation == "geometry" else "--tasks"
                expected += [flag, ",".join(unit.tasks)]
            expected += ["--out", str(out)] + ([] if own else ["--eval-data", str(data)])
            expected += [] if trains or pooled is None else ["--pooling", pooled]
            expected += [] if plain else ["--precision", flags.get("precision", "fp32")]
            assert words == expected


def test_what_is_done_is_not_done_again_unless_it_is_asked_for(models, data, tmp_path, stand, capsys):
    flags = {"eval_data": data, "out": tmp_path / "out", "vectors": tmp_path / "kept", "vectors_gb": 3}
    stand.source = resolve(models["run"]).identity
    assert call(main, models["run"], **flags) == 0
    assert stand.deadline == math.inf and stand.jobs == 1 and stand.logs == tmp_path / "out" / "eval"
    assert stand.environment["CLEAR_VECTORS"] == str(tmp_path / "kept")
    assert stand.removed == [(tmp_path / "kept", 3 * 10**9)]
    said = capsys.readouterr().out
    assert "[1/2] sts STS-B, SICK-R" in said and "[2/2] intents SNIPS" in said
    assert (
        "  intents SNIPS: SNIPS-5 50.00, SNIPS-10 50.00" in said and "train_5500.label is not there" in said
    )
    assert "what still runs" not in said and "± 1.50" in said
    content = json.loads((tmp_path / "out" / "eval.json").read_text())
    assert (content["pooling"], content["precision"], content["identity"]) == ("mean", "fp32", stand.source)
    entry = content["units"]["intents SNIPS"]
    assert entry["seconds"] == 1.3 and entry["tasks"]["SNIPS-5"] == {
        "metric": "accuracy",
        "value": 50.0,
        "std": 1.5,
    }
    stand.words.clear()
    assert call(main, models["run"], budget="90s", **flags) == 0 and not stand.words
    said = capsys.readouterr().out
    assert said.count("done before: ") == 2 and "[1/" not in said and "what still runs" not in said
    assert "SNIPS-5" in said  # the figures are shown again
    started = time.monotonic()
    assert call(main, models["run"], again=True, budget="90s", jobs=2, **flags) == 0
    assert len(stand.words) == 2 and 80 < stand.deadline - started < 150 and stand.jobs == 2
    assert "what still runs after 90s is ended, within 20 s" in capsys.readouterr().out


def test_a_request_to_stop_is_no_failure(models, data, tmp_path, stand, capsys):
    stand.request = INTERRUPT
    flags = {"eval_data": data, "out": tmp_path, "vectors": "none"}
    assert call(main, models["run"], **flags) == EXIT_CODES[INTERRUPT] == 130
    said = capsys.readouterr()
    assert "FAILED" not in said.out and "stopped; finished work is kept" in said.err
    assert "CLEAR_VECTORS" not in stand.environment and not stand.removed
    assert not (tmp_path / "eval.json").exists()


def test_vectors_are_kept_where_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("CLEAR_VECTORS", raising=False)
    assert running._vectors_folder("") == tmp_path / ".cache" / "clearly" / "vectors"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert running._vectors_folder("") == tmp_path / "cache" / "clearly" / "vectors"
    monkeypatch.setenv("CLEAR_VECTORS", "~/kept")
    assert running._vectors_folder("") == tmp_path / "kept"
    assert running._vectors_folder(str(tmp_path / "own")) == tmp_path / "own"
    assert running._vectors_folder("none") is None
    monkeypatch.setenv("CLEAR_VECTORS", "none")
    assert running._vectors_folder("") is None
    monkeypatch.chdir(tmp_path)
    assert running._vectors_folder("here") == tmp_path / "here"


def test_gpus_are_those_that_are_named_or_there(monkeypatch):
    for named, found in (("0,2", ["0", "2"]), ("", []), ("3,", ["3"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert running._gpus() == found
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert running._gpus() == ["0", "1"]


@pytest.mark.parametrize(
    ("code", "left", "request_", "returned", "over", "line"),
    [
        ("print('so')", 60, NONE, 0, False, "loop"),
        ("raise SystemExit(3)", 60, NONE, 1, False, "SystemExit: 3"),
        ("import time; time.sleep(60)", 0.2, NONE, None, True, ""),
        ("import time; time.sleep(60)", 60, INTERRUPT, None, False, ""),
    ],
)
def test_how_a_process_ends(tmp_path, monkeypatch, code, left, request_, returned, over, line):
    monkeypatch.setattr(running, "_LOOK_SECONDS", 0.02)
    begun = time.monotonic()
    stop = SimpleNamespace(requested=lambda: request_ if time.monotonic() > begun + 0.2 else NONE)
    unit, log = EvaluationJob("test", ("a",)), tmp_path / "log.txt"
    words = ["timeit", "-n1", "-r1", code]
    ended = running._run(unit, words, log, dict(os.environ), begun + left, stop)
    assert ended.code == returned or (returned is None and ended.code)
    assert ended.at_deadline is over and 0 < ended.seconds < 30 and line in ended.line
    if request_:
        assert ended.code in (-signal.SIGINT, 1, 130)


def test_the_last_line_of_what_runs_is_printed_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(running, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(running, "SECONDS_BETWEEN_LINES", 0.0)
    code = f"import os, time; print('halfway')\nwhile not os.path.exists('{tmp_path}/end'): time.sleep(0.02)"
    printed = []

    def requested():
        """Let the process end once its line was printed, and looked at ten times more."""
        printed.append(capsys.readouterr().out)
        if "halfway" in "".join(printed[:-10]):
            (tmp_path / "end").touch()
        return NONE

    running._run(
        EvaluationJob("test", ("a",)), ["timeit", "-n1", "-r1", code], tmp_path / "log", dict(os.environ),
        time.monotonic() + 60, SimpleNamespace(requested=requested),
    )  # fmt: skip
    assert "".join([*printed, capsys.readouterr().out]).count("  test a: halfway\n") == 1


def test_a_name_is_resolved_once(models, tmp_path, monkeypatch):
    source, pooled = running._resolve("sts_layout:bag_of_words", "", "fp32")
    assert (source.name, source.location, pooled) == (*["sts_layout:bag_of_words"] * 2, "function")
    assert running._resolve(str(models["run"]), "", "fp32")[1] == "mean"
    assert running._resolve(str(models["st"]), "", "fp32")[1] == "own modules"
    monkeypatch.setattr(running, "kind_of", lambda _: "hub")

    def refuse(*_):
        raise OSError("\n no such model\nmore lines")

    monkeypatch.setattr(running, "pretrained", refuse)
    with pytest.raises(UserError, match=r"folder owner/name here, .* cannot be loaded: no such model$"):
        running._resolve("owner/name", "", "fp32")
    monkeypatch.setattr(running, "pretrained", lambda *_: None)
    monkeypatch.setattr(running, "pooling_of", lambda source, pooling, quiet: (pooling or "mean", quiet))
    assert running._resolve("owner/name", "cls", "fp32") == (
        ModelSource("owner/name", "owner/name"),
        ("cls", True),
    )


# -- suites and what is kept ---------------------------------------------


def test_suites_have_the_tasks_of_the_papers_in_the_order_of_a_budget():
    seven = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
    expected = {
        "quick": {"sts": [("STS-B-dev", "SICK-R-dev", "STS-B", "SICK-R")], "senteval": ["TREC"]}
        | {"intents": ["SNIPS"]},
        "sts": {"sts": [seven]},
        "senteval": {"sts": [seven], "senteval": ["TREC", "MRPC", "CR", "MPQA", "MR", "SUBJ", "SST2"]},
        "nanobeir": {"nanobeir": list(THIRTEEN)},
        "cola_probe": {"cola_probe": ["CoLA"]},
        "nli_distance": {"nli_distance": ["SNLI", "MNLI", "ANLI", "triplets"]},
        "zh_sts": {"zh_sts": [("STS-B-zh", "STS-B-zh-dev")]},
        "geometry": {"geometry": ["sts", "neighbourhood", "nli", "augmentation"]},
        "glue": {"glue": ["CoLA", "STS-B", "RTE", "MRPC", "SST-2", "QNLI", "QQP", "MNLI"]},
        "anli": {"anli": [("R1", "R2", "R3")]},
    }  # fmt: skip
    for name, wanted in expected.items():
        found = [(unit.evaluation, unit.tasks) for unit in SUITES[name]]
        one = [(of, tasks if isinstance(tasks, tuple) else (tasks,)) for of in wanted for tasks in wanted[of]]
        assert found == one, name
    assert len(SUITES["clustering"]) == 6 and len(SUITES["nanobeir"]) == 13
    figures = {unit.tasks[0]: unit.expected for unit in SUITES["geometry"]}
    assert figures["sts"] == ["alignment", "uniformity", "isotropy"]
    assert figures["neighbourhood"] == ["neighbourhood/stackoverflow"]
    assert (figures["nli"], figures["augmentation"]) == (["nli"], ["augmentation/reorder"])
    assert SUITES["intents"][0].expected[:1] == [f"{SUITES['intents'][0].tasks[0]}-5"]
    assert "quick" not in {unit.label for unit in SUITES["all"]}
    names = [unit.name for unit in SUITES["all"]]
    assert len(set(names)) == len(names) and "sts STS-B, SICK-R" not in names and names[0].startswith("sts")


def test_sets_beside_nanobeirs_come_behind_them_and_mteb_is_in_all_where_it_is_installed(
    tmp_path, monkeypatch
):
    for name in ("Mine", "Also", "NanoNQ"):
        (tmp_path / "NanoBEIR" / name).mkdir(parents=True)
    monkeypatch.setattr(suites, "find_spec", lambda _: None)
    found = [unit.tasks[0] for unit in suites.suite_named("NanoBEIR", tmp_path)]
    assert found == [*THIRTEEN, "Also", "Mine"]
    everything = suites.suite_named("all", tmp_path)
    assert [unit for unit in everything if unit.tasks not in {("Also",), ("Mine",)}] == list(SUITES["all"])
    place = everything.index(EvaluationJob("nanobeir", ("Mine",)))
    assert everything[place - 2].tasks == (THIRTEEN[-1],) and everything[place + 1].evaluation != "nanobeir"
    assert suites.suite_named("sts", tmp_path) == SUITES["sts"]
    assert len(suites.suite_named("nanobeir", tmp_path / "none")) == 13
    tasks = [SimpleNamespace(metadata=SimpleNamespace(name=name)) for name in ("One", "Two")]
    monkeypatch.setattr(mteb_english, "choose", lambda names: tasks if not names else [])
    mteb = tuple(EvaluationJob("mteb_english", (name,)) for name in ("One", "Two"))
    assert suites.suite_named("mteb-eng", tmp_path) == mteb
    monkeypatch.setattr(suites, "find_spec", lambda name: name == "mteb")
    assert suites.suite_named("all", tmp_path)[-2:] == mteb
    assert suites.suite_named("quick", tmp_path) == SUITES["quick"]
    fault = ["the hub does not answer"]
    monkeypatch.setattr(suites, "_hub_fault", lambda: fault[0])
    assert mteb[0].lacking(tmp_path) == "MTEB's data cannot be loaded: the hub does not answer"
    fault[0] = None
    assert mteb[0].lacking(tmp_path) == "" and mteb[0].files(tmp_path) == []


def test_what_cannot_be_done_has_its_reason_and_lines_are_one_for_each_kind(models, data, tmp_path):
    sts, intents, glue = SUITES["quick"][0], SUITES["quick"][2], EvaluationJob("anli", ("R1",))
    (missing := EvaluationJob("glue", ("RTE",)), more := EvaluationJob("glue", ("CoLA",)))
    units = [sts, intents, glue, missing, more]
    source = resolve(models["bert"])
    reasons = suites.reasons_to_skip(units, data, source)
    assert set(reasons) == {glue, missing, more} and all("not there" in one for one in reasons.values())
    (root := data / "ANLI" / "R1").mkdir(parents=True)
    for part in ("dev", "test"):
        (root / f"{part}.jsonl").touch()
    for encoder in ("bert", "run", "st"):
        assert glue not in suites.reasons_to_skip(units, data, resolve(models[encoder]))
        open_source(models[encoder])
    static = tmp_path / "static"
    SentenceTransformer(modules=[StaticEmbedding(make_tokenizer(), embedding_dim=8)]).save(str(static))
    for other in (resolve(static), ModelSource("a:b", "a:b")):
        reasons = suites.reasons_to_skip(units, data, other)
        assert sts not in reasons
        with pytest.raises(UserError, match=re.escape(reasons[glue])):
            open_source(other.name)
    first, second = suites.skipped_lines(reasons)
    assert first == f"left out: anli R1: {reasons[glue]}" and "a:b: a function cannot be" in first
    assert second.startswith("left out: glue RTE and 1 more: ") and second.endswith("is not there")


def test_figures_are_the_newest_of_these_weights_settings_and_tasks(tmp_path):
    unit, trained = EvaluationJob("sts", ("STS-B", "SICK-R")), EvaluationJob("glue", ("RTE",))

    def put(file, value, age, tasks=("STS-B", "SICK-R"), of="sts", **settings):
        result = Evaluation(of, "m", "mean", None, "p", source="w")
        for task in tasks:
            result.add(task, "x", {"x": value})
        for key, setting in settings.items():
            setattr(result, key, setting)
        path = write(result, tmp_path / "made" / file)
        path = path.rename(tmp_path / file)
        os.utime(path, (1000 - age, 1000 - age))

    record = EvaluationRecord(tmp_path, "w", {"pooling": "mean", "precision": "fp32"})
    put("sts-1.json", 1.0, 30)
    put("sts-2.json", 2.0, 20)
    put("sts-3.json", 3.0, 10, tasks=("STS-B",))
    put("sts-4.json", 4.0, 9, source="other")
    put("sts-5.json", 5.0, 8, pooling="cls")
    put("sts-6.json", 6.0, 5, notes=["vectors computed in bf16"])
    put("sts-7.json", 7.0, 6, of="senteval")
    (tmp_path / "sts-8.json").write_text("{")
    assert record.written(unit).tasks["STS-B"].value == 2.0
    rounded = EvaluationRecord(tmp_path, "w", {"pooling": "mean", "precision": "bf16"})
    assert rounded.written(unit).tasks["STS-B"].value == 6.0
    put("glue-1.json", 8.0, 5, tasks=("RTE",), of="glue", pooling="cls")
    assert rounded.written(trained).tasks["RTE"].value == 8.0
    assert record.written(EvaluationJob("sts", ("STS12",))) is None
    (tmp_path / "eval.json").write_text(json.dumps({"units": []}))
    assert record.units == {} and record.figures(unit, tmp_path) is None


def test_the_name_of_a_unit_is_its_label_or_its_tasks():
    assert (
        EvaluationJob("sts", ("a", "b")).name == "sts a,b"
        and EvaluationJob("sts", ("a",), "c").name == "sts c"
    )
    assert EvaluationJob("cola_probe", ("CoLA",)).words == []
    own = EvaluationJob("own_sets", ("mine=a/b.tsv",), "mine")
    assert own.words == ["--set", "mine=a/b.tsv"] and own.expected == ["mine"]
    assert [path.name for path in own.files(Path())] == []
