"""The runs of a sweep: their identity, sharing, errors."""

import json
import signal
import sys
from types import SimpleNamespace

import pytest
from sweep_helpers import entries_of, write_sweep

from pretrain.commands.sweep import __main__ as command
from pretrain.commands.sweep import runs
from pretrain.commands.sweep.file import read_sweep
from pretrain.commands.sweep.runs import StopRequested, SweepPlan, Trainer, identity
from pretrain.common.errors import UserError
from pretrain.common.folder_lock import folder_lock
from pretrain.common.processes import failure_line
from pretrain.common.shutdown import (
    EXIT_CODES,
    HANGUP,
    INTERRUPT,
    REASONS,
    REQUEUE,
    SIGNALS,
    STOP,
    STOP_FILE,
    TERMINATE,
)


def point(tmp_path, **given):
    return entries_of(tmp_path, {key.replace("__", "."): str(value) for key, value in given.items()})[0]


def test_a_run_is_known_by_what_makes_it_what_it_is(tmp_path, monkeypatch):
    def digest(seed=1, **given):
        return identity(point(tmp_path, **given).config(seed))

    monkeypatch.chdir(tmp_path)
    plain, prompts = digest(data__folder="d"), "{anchor: 'query: '}"
    assert digest(2, data__folder="d") != plain
    for other in (
        {"train__lr": 1e-5},
        {"objective__simcse__temperature": 0.1},
        {"model__pooling": "cls"},
        {"train__steps": 9},
        {"aug": "crop"},
        {"evaluate__every": 7},
        {"data__lanes": 8},
        {"data__cache": 1},
        {"data__prompts": prompts},
    ):
        assert digest(**{"data__folder": "d", **other}) != plain, other
    prompted = {"data__folder": "d", "data__prompts": prompts}
    assert digest(**prompted, data__prompts_pooled="false") != digest(**prompted)
    assert digest(data__folder="e") != plain
    for same in (
        {"name": "x"},
        {"train__threads": 2},
        {"train__micro_batch_tokens": 999},
        {"evaluate__sts": "s"},
        {"checkpoint__every": 3},
        {"data__folder": str(tmp_path / "d")},
        {"data__workers": 2},
        {"train__zero": 0},
        {"train__rendezvous_seconds": 9},
    ):
        assert digest(**{"data__folder": "d", **same}) == plain, same
    (tmp_path / "model").mkdir()
    for key, objective in (
        ("model__init", "simcse"),
        ("objective__false_negatives__guide", "simcse"),
        ("objective__diffcse__generator", "diffcse"),
    ):
        given = {"data__folder": "d", "objective__name": objective}
        named, whole, other = (
            digest(**given, **{key: path}) for path in ("model", tmp_path / "model", "hub")
        )
        assert named == whole != other, key


@pytest.fixture
def trainer(monkeypatch):
    """A trainer that leaves this process's signals as they are, and keeps what it prints."""
    stand_in = SimpleNamespace(requested=lambda: 0)
    monkeypatch.setattr("pretrain.common.shutdown.Shutdown", lambda *_, **__: stand_in)
    printed = []
    made = Trainer([], {}, printed.append)
    made.printed = printed
    return made


@pytest.mark.parametrize("explained", [False, True])
@pytest.mark.parametrize("code", [0, 1, 2, 75, 129, 130, 143])
def test_only_a_run_that_was_asked_to_stop_stops_the_sweep(code, explained, trainer, tmp_path, monkeypatch):
    """A status that a fault gave, which the run's folder explains, is the failure of that run alone."""
    (run,) = SweepPlan([point(tmp_path, data__folder="d")], [42], tmp_path / "out").runs
    words = []

    def process(given, folder):
        words.extend(given)
        (folder / "log.txt").write_text("error: no luck\n")
        return code

    monkeypatch.setattr(trainer, "_process", process)
    monkeypatch.setattr("pretrain.watch.ending.read_verdict", lambda folder: explained or None)
    requests = {0: STOP, 75: REQUEUE, 129: HANGUP, 130: INTERRUPT, 143: TERMINATE}
    if code in requests and not explained:
        with pytest.raises(StopRequested) as stopped:
            trainer.train(run, "")
        assert stopped.value.request == requests[code] and trainer.failures == {}
        # who asked, or whether anybody did, is in its log
        assert (f"with status 75, and {run.folder}" in stopped.value.said) == (code == 75)
    else:
        assert trainer.train(run, "[1/1] ") is False
        assert trainer.failures == {run.name: "error: no luck"}
        begun, failed = trainer.printed
        assert begun.startswith(f"[1/1] {run.name}, ") and f"FAILED ({code}): error: no luck" in failed
    assert words[0] == sys.executable and "--checkpoint.resume" in " ".join(words)


def test_a_finished_run_is_not_trained_again(trainer, tmp_path, monkeypatch):
    (run,) = SweepPlan([point(tmp_path, data__folder="d")], [42], tmp_path / "out").runs
    monkeypatch.setattr(trainer, "_process", lambda *_: pytest.fail("trained"))
    monkeypatch.setattr(type(run), "state", "done")
    assert trainer.train(run, "") is True
    monkeypatch.setattr(trainer.shutdown, "requested", lambda: TERMINATE)
    with pytest.raises(StopRequested):
        trainer.train(run, "")


def test_rows_with_the_same_settings_share_a_run(tmp_path):
    rows = {"mean": {"pooling": "mean"}, "[CLS]": {"pooling": "cls"}, "other": {"set": {"train.lr": 1}}}
    entries = entries_of(tmp_path, rows=rows)
    plan = SweepPlan(entries, [1, 2], tmp_path)
    assert [(run.entry.name, run.seed) for run in plan.runs] == [
        ("mean", 1),
        ("mean", 2),
        ("other", 1),
        ("other", 2),
    ]
    folder = plan.runs_of(entries[0])[0].folder
    folder.mkdir(parents=True)
    assert plan.runs_of(entries[1])[0].folder == folder
    assert folder.name.startswith("mean-seed1-")


def test_the_failure_line_of_a_run_is_its_error(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("step 1\n\nerror: the loss is not finite\nsomething of a library\n")
    assert failure_line(log) == "error: the loss is not finite"
    log.write_text(
        "\nerror: source a.txt: no such file.\n\nerror: Preparing d failed (exit 2); the reason is above.\n"
    )
    assert failure_line(log) == "error: source a.txt: no such file."
    log.write_text("")
    assert failure_line(log) == "it printed nothing"


@pytest.mark.parametrize("launch", [[], ["torchrun"]])
@pytest.mark.parametrize("request_", [None, *SIGNALS.values()])
def test_a_request_to_stop_is_passed_on_once(launch, request_, tmp_path, monkeypatch):
    """To a run of one process as the signal that it was, to a launcher's as a stop file, which goes again."""
    asked, printed, sent, there = [0], [], [], []
    stand_in = SimpleNamespace(requested=lambda: asked[0])
    monkeypatch.setattr("pretrain.common.shutdown.Shutdown", lambda *_, **__: stand_in)
    trainer = Trainer(launch, {"KEY": "it"}, printed.append)

    def start(words, log, environment, **more):
        assert (words, log, environment) == (["a", "b"], tmp_path / "log.txt", {"KEY": "it"})
        assert more == {"append": True, "at_parents_end": signal.SIGTERM}
        return SimpleNamespace(send_signal=sent.append)

    def wait(child, look):
        look()
        assert not sent and not list(tmp_path.iterdir())
        asked[0] = request_ or 0
        look()
        look()
        there.extend(path.name for path in tmp_path.iterdir())
        return 9

    monkeypatch.setattr(runs, "start_logged", start)
    monkeypatch.setattr(runs, "wait_for_end", wait)
    assert trainer._process(["a", "b"], tmp_path) == 9
    number = next((number for number, what in SIGNALS.items() if what == request_), None)
    assert sent == ([] if launch or request_ is None else [number]) and not list(tmp_path.iterdir())
    assert there == ([STOP_FILE] if launch and request_ is not None else [])
    assert printed == ([] if request_ is None else [f"{REASONS[request_]}: waiting for the run to save"])


def test_a_launcher_that_cannot_be_started_is_named(trainer, tmp_path):
    with pytest.raises(UserError, match=r"--launch: \S+/no-launcher cannot be started \(No such file"):
        trainer._process([str(tmp_path / "no-launcher")], tmp_path)


@pytest.fixture
def work(tmp_path, trainer, monkeypatch):
    """A sweep of three rows whose runs a stand-in trains; what is asked of it and of the evaluation."""
    asked, tables = [], []
    rows = {
        "good": {},
        "bad": {"set": {"train.lr": 13}},
        "of others": {"kind": "quoted", "paper": {"A": 50.0}},
    }
    more = {"columns": {"A": "sts.STS-B"}, "evaluations": {"glue": "--tasks RTE"}}
    path = write_sweep(tmp_path, rows=rows, seeds=[1, 3], **more)

    def train(run, heading):
        asked.append((heading, run.name))
        if run.entry.name == "bad":
            trainer.failures[run.name] = "error: no luck"
            return False
        (run.folder / "report").mkdir(parents=True)
        summary = {"steps": 8, "seconds": 75.0, "best_step": 4, "best": {"stsb-dev": 70.0 + run.seed}}
        (run.folder / "report" / "summary.json").write_text(json.dumps(summary))
        return True

    monkeypatch.setattr(trainer, "train", train)
    monkeypatch.setattr(command, "Trainer", lambda *_: trainer)
    monkeypatch.setattr(command, "evaluate", lambda *given: tables.append(given))

    def made(**flags):
        asked.clear()
        tables.clear()
        trainer.failures.clear()
        keys = {key: flags.pop(key) for key in list(flags) if key == "eval_data"}
        return command.SweepWork(str(path), command.SweepFlags(out=tmp_path / "out", **flags), keys)

    return SimpleNamespace(made=made, asked=asked, tables=tables, out=tmp_path / "out" / "sweep")


def test_a_sweep_trains_what_is_not_done_and_failures_do_not_stop_others(work, capsys, monkeypatch):
    monkeypatch.delenv("CLEAR_DATA", raising=False)
    assert work.made().run() == 1
    names = ["good, seed 1", "good, seed 3", "bad, seed 1", "bad, seed 3"]
    assert work.asked == [(f"[{n}/4] ", name) for n, name in enumerate(names, 1)] and work.tables == []
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [
        "4 runs: 0 done, 0 begun, 4 to do",
        "  done in 01:15, STS-B dev 71.00",
        "  done in 01:15, STS-B dev 73.00",
        "failed: bad, seed 1: error: no luck",
    ]
    assert "no evaluation: --eval-data, or CLEAR_DATA, names the folder of the benchmarks" in said
    assert "other columns need glue: --evaluations all runs them" in said
    assert said[-1] == f"table and figures: {work.out}"
    rows = json.loads((work.out / "results.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["good", "bad", "of others"]
    assert (work.out / "table.md").read_text() in "\n".join([*said, ""])
    # again: what failed alone, unless it is left out; then nothing has failed
    assert work.made(seed_list=["3", "5"]).run() == 1
    assert work.asked == [("[2/4] ", "good, seed 5"), ("[3/4] ", "bad, seed 3"), ("[4/4] ", "bad, seed 5")]
    assert "4 runs: 1 done, 0 begun, 3 to do" in capsys.readouterr().out
    assert work.made(rows="good").run() == 0 and work.asked == []


def test_a_sweep_evaluates_runs_that_are_done_by_what_was_chosen(work, tmp_path, capsys, monkeypatch):
    for chosen, more in (((), {}), (("glue",), {"glue": "--tasks RTE"}), (("all",), {"glue": "--tasks RTE"})):
        sweep = work.made(evaluations=chosen, eval_data=str(tmp_path), jobs=1)
        assert sweep.run() == 1
        (models, of_runs, trainer, jobs), (starts, of_start, *_) = work.tables
        assert [model.run.name for model in models] == ["good, seed 1", "good, seed 3"]
        assert of_runs == {"sts": "", "geometry": "--measure sts"} | more
        assert (starts, of_start) == ([], {}) and (trainer, jobs) == (sweep.trainer, 1)
        assert ("other columns need" in capsys.readouterr().out) is (chosen == ())
    only_good = work.made(rows="good", eval_data=str(tmp_path))
    monkeypatch.setattr(command, "evaluate", lambda *given: given[2].failures.update(sts="was killed"))
    assert only_good.run() == 1  # a table without figures that were asked for is not done
    with pytest.raises(UserError, match="--evaluations 'mteb': this sweep has glue"):
        work.made(evaluations=("mteb",))


@pytest.mark.parametrize("words", [["1", "1"], ["1", "x"], ["-1"], ["1.5"]])
def test_seeds_are_different_whole_numbers(words, work):
    with pytest.raises(UserError, match=f"--seed-list {','.join(words)}: give different whole numbers"):
        work.made(seed_list=words)


def test_a_row_with_seeds_of_its_own_has_those_of_the_command(tmp_path):
    path = write_sweep(tmp_path, rows={"one": {"seeds": [7, 8]}, "two": {}})
    assert command._with_seeds(read_sweep(path), []).rows["one"].seeds == [7, 8]
    found = command._with_seeds(read_sweep(path), ["4", "5"])
    assert found.seeds == [4, 5] and found.rows["one"].seeds is found.rows["two"].seeds is None


@pytest.mark.parametrize("said", ["", "one has ended"])
@pytest.mark.parametrize("request_", SIGNALS.values())
def test_a_stopped_sweep_says_how_it_goes_on(request_, said, monkeypatch, capsys):
    monkeypatch.setattr(command.sys, "argv", ["sweep", "a b.yaml", "--jobs", "2"])

    def work():
        raise StopRequested(request_, said)

    assert command._until_stopped(work) == EXIT_CODES[request_] and command._until_stopped(lambda: 7) == 7
    printed = capsys.readouterr().err
    assert printed.startswith(f"{said or REASONS[request_]}: stopped\n") and printed.endswith(
        " 'a b.yaml' --jobs 2\n"
    )


def test_processes_of_a_sweep_have_its_data_and_their_part_of_the_cores(tmp_path, monkeypatch):
    monkeypatch.setenv("KEY", "it")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setattr(command, "usable_cores", lambda: 7)
    monkeypatch.chdir(tmp_path)
    alone, data = command._environment("", 1), command._environment("data", 2)
    assert (alone["KEY"], alone["OMP_NUM_THREADS"]) == ("it", "64") and alone["PYTHONPATH"]
    assert (data["CLEAR_DATA"], data["OMP_NUM_THREADS"]) == (str(tmp_path / "data"), "3")
    assert command._environment("", 9)["OMP_NUM_THREADS"] == "1"


def test_steps_that_are_done_are_those_of_the_newest_checkpoint(tmp_path):
    (run,) = SweepPlan([point(tmp_path, data__folder="d")], [42], tmp_path / "out").runs
    assert (run.steps_done, run.state) == (0, "to do")
    for name in ("step-20", "step-3", "step-x", "step-0", "other-99"):
        (run.folder / "checkpoints" / name).mkdir(parents=True)
    assert (run.steps_done, run.state) == (20, "begun") and run.dev is None and run.scores == {}


def test_a_run_of_several_sets_is_known_by_them_and_their_weights(tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()

    def digest(*sets, **more):
        given = {"data__sets": ",".join(f"{tmp_path / name}@{weight}" for name, weight in sets)}
        return identity(point(tmp_path, **given, **more).config(1))

    plain = digest(("a", 1), ("b", 2))
    assert plain == digest(("a", 1), ("b", 2))
    others = {digest(("a", 1), ("c", 2)), digest(("a", 1), ("b", 3)), digest(("a", 1))}
    assert len(others | {plain}) == 4


def test_a_run_that_another_process_finished_meanwhile_is_done(trainer, tmp_path, monkeypatch):
    (run,) = SweepPlan([point(tmp_path, data__folder="d")], [42], tmp_path / "out").runs

    def process(words, folder):
        (folder / "report").mkdir()
        (folder / "report" / "summary.json").write_text(json.dumps({"steps": 1, "seconds": 1.0}))
        return 0

    monkeypatch.setattr(trainer, "_process", process)
    assert trainer.train(run, "") is True and trainer.failures == {} and len(trainer.printed) == 1
    with folder_lock(run.folder, part="sweep"):
        assert trainer.train(run, "[1/1] ") is False
    assert trainer.printed[-1].startswith(f"[1/1] {run.name}: another process trains it.")


def test_what_a_sweep_cannot_begin_with_is_one_message(tmp_path, monkeypatch, trainer):
    monkeypatch.setattr(command, "Trainer", lambda *_: trainer)
    monkeypatch.delenv("CLEAR_DATA", raising=False)
    path = str(write_sweep(tmp_path))
    for file, flags, given, said in (
        ("", {}, {}, "name a sweep file, as clear_table1, or a recipe with --config"),
        (path, {"config": path}, {}, "name a sweep file"),
        (path, {"jobs": 2, "launch": "torchrun"}, {}, "--jobs is for runs of one process each"),
        (path, {}, {"eval_data": str(tmp_path / "none")}, "there is no folder of benchmarks"),
        (path, {"rows": "two"}, {}, "no row's name holds 'two'"),
    ):
        with pytest.raises(UserError, match=said):
            command.SweepWork(file, command.SweepFlags(out=tmp_path, **flags), given)
    made = command.SweepWork(path, command.SweepFlags(out=tmp_path, launch="a 'b c'"), {})
    assert made.evaluates is False and made.plan.seeds == [42]
    assert command.SweepWork(path, command.SweepFlags(out=tmp_path), {"eval_data": str(tmp_path)}).evaluates


def test_plans_list_runs_or_the_words_of_one(tmp_path, monkeypatch, capsys, trainer):
    monkeypatch.setattr(command, "Trainer", lambda *_: trainer)
    monkeypatch.delenv("CLEAR_DATA", raising=False)
    path, flags = str(write_sweep(tmp_path, seeds=[3, 5])), command.SweepFlags(out=tmp_path)
    assert command.plan(path, flags=flags) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[:4] for line in lines] == [["0", "one", "3", "to do"], ["1", "one", "5", "to do"]]
    monkeypatch.setattr(command, "allowed", lambda: ["*"])
    assert command.plan(path, flags=flags, words_of=1) == 0
    words = capsys.readouterr().out.splitlines()
    assert words[-1] == "--trust=true" and any("train.seed" in word and word.endswith("5") for word in words)
    monkeypatch.setattr(command, "allowed", lambda: ["a.py"])
    command.plan(path, flags=flags, words_of=0)
    assert "--trust=true" not in capsys.readouterr().out
    monkeypatch.setattr(runs.SweepRun, "state", "done")
    assert command.plan(path, flags=flags, words_of=0) == 0 and capsys.readouterr().out == ""
    for number in (2, 9):
        with pytest.raises(UserError, match=f"there are 2 runs, from 0, and no run {number}"):
            command.plan(path, flags=flags, words_of=number)


def test_figures_are_drawn_where_the_file_has_some(work, tmp_path, monkeypatch, capsys):
    asked, code = [], [0]
    monkeypatch.delenv("CLEAR_DATA", raising=False)
    sweep = work.made(rows="good")
    sweep.train()
    monkeypatch.setattr(
        command.subprocess,
        "run",
        lambda words, env: asked.append((words[2:], env)) or SimpleNamespace(returncode=code[0]),
    )
    assert sweep.finish() == 0 and asked == []
    sweep.sweep = sweep.sweep.model_copy(update={"figures": {"one": None}})
    assert sweep.finish() == 0
    assert asked == [(["finetune.figures", str(work.out)], sweep.trainer.environment)]
    assert "were not drawn" not in capsys.readouterr().out
    code[0] = 1
    sweep.finish()
    assert "the figures were not drawn: " in capsys.readouterr().out
