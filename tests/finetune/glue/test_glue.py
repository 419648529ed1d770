"""GLUE: files as they are published, runs that resume, medians and sweeps, the leaderboard's files."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from finetuning_helpers import PAIRS, sentence
from real_data import needs_data
from sklearn.metrics import matthews_corrcoef

from finetune.glue import __main__ as glue
from finetune.glue.runs import FAIRSEQ, Options, RunStore, choose
from finetune.tuning import tasks
from finetune.tuning.finetuning import Interrupted, build_classifier, logits_of, read_tensors
from finetune.tuning.labelled import encode_examples
from pretrain.common.errors import UserError
from pretrain.common.shutdown import SIGNALS

ROOT = Path(__file__).resolve().parents[3]


# -- files -------------------------------------------------------------


def write_glue(root, train=40, dev=24, test=7):
    """All tasks in the official layout, a few rows each."""
    draw = random.Random(2)

    def write(task, split, header, row, rows, mark=""):
        folder = root / "GLUE" / task
        folder.mkdir(parents=True, exist_ok=True)
        lines = ([header] if header else []) + [row(n) for n in range(rows)]
        (folder / f"{split}.tsv").write_text(mark + "\n".join(lines) + "\n", encoding="utf-8")

    s = lambda: sentence(draw)  # noqa: E731
    counts = {"train": train, "dev": dev}
    words = {"QNLI": tasks.ENTAILMENT, "RTE": tasks.ENTAILMENT, "WNLI": ("0", "1")}
    for split, rows in counts.items():
        write("CoLA", split, "", lambda n: f"gj04\t{n % 2}\t{'*' * (n % 2)}\t{s()}", rows)
        write(
            "SST-2", split, "sentence\tlabel", lambda n: f"{s()} {'good' if n % 2 else 'bad'} \t{n % 2}", rows
        )
        columns = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        write("MRPC", split, columns, lambda n: f'{n % 2}\t1\t2\t" {s()}\t{s()}', rows, "\ufeff")
        columns = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
        write("QQP", split, columns, lambda n: f"{n}\t1\t2\t{s()}\t{s()}\t{n % 2}", rows)
        columns = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
        write(
            "STS-B",
            split,
            columns + "\tscore",
            lambda n: f"{n}\tg\tf\ty\t0\tn\tn\t{s()}\t{s()}\t{n % 6 * 0.9:.3f}",
            rows,
        )
        for task, labels in words.items():
            names = "question\tsentence" if task == "QNLI" else "sentence1\tsentence2"
            write(
                task,
                split,
                f"index\t{names}\tlabel",
                lambda n, labels=labels: f"{n}\t{s()}\t{s()}\t{labels[n % 2]}",
                rows,
            )
    many = "\t".join(["index", *"abcdefg", "sentence1", "sentence2"])
    for split, rows in (("train", train), ("dev_matched", dev), ("dev_mismatched", dev)):
        header = many + "\tlabel1\tgold_label"
        write(
            "MNLI",
            split,
            header,
            lambda n: f"{n}\t" + "x\t" * 7 + f"{s()}\t{s()}\tx\t{tasks.NLI[n % 3]}",
            rows,
        )
    for split in ("test_matched", "test_mismatched"):
        write("MNLI", split, many, lambda n: f"{n}\t" + "x\t" * 7 + f"{s()}\t{s()}", test)
    for task in ("CoLA", "SST-2"):
        write(task, "test", "index\tsentence", lambda n: f"{n}\t{s()}", test)
    write(
        "MRPC",
        "test",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
        lambda n: f"{n}\t1\t2\t{s()}\t{s()}",
        test,
        "\ufeff",
    )
    write("QQP", "test", "id\tquestion1\tquestion2", lambda n: f"{n}\t{s()}\t{s()}", test)
    write("STS-B", "test", columns, lambda n: f"{n}\tg\tf\ty\t0\tn\tn\t{s()}\t{s()}", test)
    write("QNLI", "test", "index\tquestion\tsentence", lambda n: f"{n}\t{s()}\t{s()}", test)
    for task in ("RTE", "WNLI"):
        write(task, "test", "index\tsentence1\tsentence2", lambda n: f"{n}\t{s()}\t{s()}", test)
    write("diagnostic", "diagnostic", "index\tsentence1\tsentence2", lambda n: f"{n}\t{s()}\t{s()}", test)
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp("data"))


def test_every_task_is_read(data):
    for name, task in tasks.TASKS.items():
        loaded = tasks.load(name, str(data))
        for split, rows in loaded.splits.items():
            assert len(rows) == (7 if "test" in split else 24 if "dev" in split else 40)
            assert (rows.targets is None) == ("test" in split)
            assert (rows.second is None) == (task.columns[1] is None)
        assert loaded.missing == (["dev"] if name == "AX" else [])
        assert len(loaded.notes) == {"MNLI": 3, "AX": 0}.get(name, 2)
    assert tasks.load("MRPC", str(data)).splits["train"].first[0].startswith('" ')  # no quoting
    assert tasks.load("STS-B", str(data)).splits["dev"].targets.max() == pytest.approx(4.5)
    assert "40 rows here, 2,490 as published" in tasks.load("RTE", str(data)).notes[0]


def test_torn_rows_of_qqp_are_left_out_and_those_of_others_are_errors(data, tmp_path):
    write_glue(tmp_path)
    for task in ("QQP", "RTE"):
        file = tmp_path / "GLUE" / task / "train.tsv"
        rows = file.read_text().splitlines()
        rows.insert(3, "9\t1\t2")
        file.write_text("\n".join(rows))
    assert len(tasks.load("QQP", str(tmp_path)).splits["train"]) == 40
    with pytest.raises(UserError, match=r"RTE/train\.tsv, line 4: 3 tab-separated columns, need 4"):
        tasks.load("RTE", str(tmp_path))


def test_bad_data_is_one_message(tmp_path):
    write_glue(tmp_path)
    (tmp_path / "GLUE/RTE/dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n")
    with pytest.raises(
        UserError, match=r"dev\.tsv, line 2: unknown label 'maybe'; RTE has entailment, not_entailment"
    ):
        tasks.load("RTE", str(tmp_path))
    (tmp_path / "GLUE/SST-2/dev.tsv").write_text("text\tlabel\na\t1\n")
    with pytest.raises(UserError, match="no column 'sentence'"):
        tasks.load("SST-2", str(tmp_path))
    (tmp_path / "GLUE/STS-B/dev.tsv").write_text("sentence1\tsentence2\tscore\na\tb\tnan\n")
    with pytest.raises(UserError, match="'nan' is not a score from 0 to 5"):
        tasks.load("STS-B", str(tmp_path))
    with pytest.raises(UserError, match="did you mean 'STS-B'"):
        tasks.load("STSB", str(tmp_path))


def test_the_hubs_copy(monkeypatch):
    asked = []

    def load_dataset(name, config, split):
        import datasets

        asked.append((name, config, split))
        columns = {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": [2, 0], "idx": [0, 1]}
        return datasets.Dataset.from_dict(columns)

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    loaded = tasks.load("MNLI", "hub")
    assert asked[1] == ("nyu-mll/glue", "mnli", "validation_matched")
    assert loaded.splits["dev_matched"].targets.tolist() == [2, 0]
    assert loaded.splits["test_matched"].targets is None


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"does not answer.*official tsv files"):
        tasks.load("MNLI", "hub")


def test_prediction_lines_are_the_leaderboards():
    logits = np.array([[0.1, 2.0, 0.0], [3.0, 0.0, 1.0]])
    assert tasks.prediction_lines(tasks.TASKS["MNLI"], logits) == [
        "index\tprediction",
        "0\tneutral",
        "1\tentailment",
    ]
    assert tasks.prediction_lines(tasks.TASKS["CoLA"], logits[:, :2]) == ["index\tprediction", "0\t1", "1\t0"]
    scores = np.array([[0.5], [1.7], [-0.2]])
    assert tasks.prediction_lines(tasks.TASKS["STS-B"], scores)[1:] == ["0\t2.500", "1\t5.000", "2\t0.000"]


# -- the command -------------------------------------------------------


@pytest.fixture(autouse=True)
def same_signal_handlers():
    """The command takes over signals, as a process of its own may."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_all_tasks_with_predictions(folders, data, tmp_path, capsys):
    code = glue.main(
        str(folders["bert"]),
        data=str(data),
        seeds="2",
        epochs="1",
        lr="1e-3",
        predict=True,
        out=str(tmp_path),
        precision="fp32",
    )
    assert code == 0
    names = {path.name for path in (tmp_path / "predictions").iterdir()}
    assert names == {
        "CoLA.tsv",
        "SST-2.tsv",
        "MRPC.tsv",
        "STS-B.tsv",
        "QQP.tsv",
        "MNLI-m.tsv",
        "MNLI-mm.tsv",
        "QNLI.tsv",
        "RTE.tsv",
        "WNLI.tsv",
        "AX.tsv",
    }
    for name in names:
        lines = (tmp_path / "predictions" / name).read_text().splitlines()
        assert lines[0] == "index\tprediction"
        assert [line.split("\t")[0] for line in lines[1:]] == [str(n) for n in range(7)]
        words = {line.split("\t")[1] for line in lines[1:]}
        task = next(task for task in tasks.TASKS.values() if name in map(task.submission, task.test_splits()))
        assert words <= set(task.labels) if task.labels else all(0 <= float(word) <= 5 for word in words)
    content = json.loads((tmp_path / "glue-cls.json").read_text())
    assert content["evaluation"] == "glue"
    assert not content["complete"]
    assert set(content["tasks"]) == {*FAIRSEQ, "average of 8"}
    mnli = content["tasks"]["MNLI"]
    assert mnli["value"] == pytest.approx(
        np.median([entry["value"] for entry in mnli["details"]["seeds"].values()])
    )
    for entry in mnli["details"]["seeds"].values():
        assert entry["value"] == pytest.approx(
            (entry["scores"]["matched"] + entry["scores"]["mismatched"]) / 2
        )
    notes = "\n".join(content["notes"])
    for words in (
        "median of 2 seeds",
        "1 epochs in place of 10",
        "lr 0.001 in place of",
        "RTE: dev has 24 rows here, 277",
        "WNLI:",
        "AX: its labels",
        "QQP.tsv: 7 test rows here, 390,965",
    ):
        assert words in notes
    # Everything is on file: the same command computes nothing.
    capsys.readouterr()
    again = glue.main(
        str(folders["bert"]),
        data=str(data),
        seeds="2",
        epochs="1",
        lr="1e-3",
        predict=True,
        out=str(tmp_path),
    )
    assert again == 0
    assert "[1/" not in capsys.readouterr().err


def write_labelled_diagnostics(root):
    rows = [f"x\ty\tz\tk\td\t{a}\t{b}\t{tasks.NLI[n % 3]}" for n, (a, b) in enumerate(PAIRS)]
    columns = ["Lexical Semantics", "Predicate-Argument Structure", "Logic", "Knowledge", "Domain"]
    columns += ["Premise", "Hypothesis", "Label"]
    (root / "GLUE/diagnostic/diagnostic-full.tsv").write_text("\n".join(["\t".join(columns), *rows]) + "\n")


def test_labelled_diagnostics_are_scored(tmp_path, source):
    write_labelled_diagnostics(write_glue(tmp_path))
    found = {name: tasks.load(name, str(tmp_path)) for name in ("MNLI", "AX")}
    store = RunStore(source, found, Options(seeds=1, epochs=1), tmp_path / "runs")
    runs = store.options.runs(["MNLI", "AX"])
    store.compute(runs[0], "")
    result, _ = glue.summarise(store, runs, ["MNLI", "AX"], [])
    assert result.tasks["AX"].value == store.diagnostic(runs[0])["matthews"]
    assert result.tasks["AX"].metric == "matthews"


def counting(limit):
    """A wish to leave at the `limit`th question."""
    asked = types.SimpleNamespace(times=0)

    def wish():
        asked.times += 1
        return 75 if asked.times == limit else 0

    return wish


@pytest.mark.parametrize("task", ["RTE", "STS-B"])
def test_a_stopped_run_goes_on_and_ends_as_one_that_never_was(source, data, tmp_path, task):
    found = {task: tasks.load(task, str(data))}
    options = Options(seeds=1, epochs=3, predict=True)
    run = options.runs([task])[0]
    straight = RunStore(source, found, options, tmp_path / "straight")
    straight.compute(run, "")
    broken = tmp_path / "broken"
    for limit in (2, 3):  # in the first epoch, at its end, then through
        with pytest.raises(Interrupted):
            RunStore(source, found, options, broken, counting(limit)).compute(run, "")
        assert not list(broken.glob("*.json"))
        assert len(list(broken.glob("*.checkpoint"))) == 1

    def dies():
        dies.asked += 1
        if dies.asked == 3:
            raise KeyboardInterrupt
        return 0

    dies.asked = 0
    # not in good order: it goes on from the last checkpoint, one step back
    with pytest.raises(KeyboardInterrupt):
        RunStore(source, found, options, broken, dies, checkpoint_seconds=0).compute(run, "")
    resumed = RunStore(source, found, options, broken)
    resumed.compute(run, "")
    assert not list(broken.glob("*.checkpoint"))
    for key in ("best", "curve", "settings"):
        assert resumed.result(run)[key] == straight.result(run)[key]  # bitwise
    for name, logits in straight.predictions(run).items():
        np.testing.assert_array_equal(resumed.predictions(run)[name], logits)


def test_seeds_differ_and_results_of_other_circumstances_are_not_taken(source, data, tmp_path):
    found = {"RTE": tasks.load("RTE", str(data))}
    options = Options(seeds=2, epochs=1, lr=1e-3)
    store = RunStore(source, found, options, tmp_path)
    first, second = options.runs(["RTE"])
    store.compute(first, "")
    store.compute(second, "")
    assert store.result(first)["best"]["loss"] != store.result(second)["best"]["loss"]
    others = (
        Options(epochs=2, lr=1e-3),
        Options(epochs=1, lr=1e-3, max_train=20),
        Options(epochs=1, lr=1e-3, precision="bf16"),
    )
    for other in others:
        assert RunStore(source, found, other, tmp_path).result(other.runs(["RTE"])[0]) is None
    assert RunStore(source, found, Options(seeds=5, epochs=1, lr=1e-3), tmp_path).result(first) is not None


def test_sweep_takes_the_setting_with_the_best_median(source, data, tmp_path, monkeypatch):
    found = {"CoLA": tasks.load("CoLA", str(data))}
    options = Options(seeds=3, sweep=True)
    store = RunStore(source, found, options, tmp_path)
    runs = options.runs(["CoLA"])
    assert len(runs) == 18
    assert {(run.lr, run.batch_size) for run in runs} == {
        (lr, batch) for lr in (1e-5, 2e-5, 3e-5) for batch in (16, 32)
    }

    def result(run):
        value = (
            {1: 90.0, 2: 10.0, 3: 20.0}[run.seed]
            if run.lr == 1e-5
            else 30.0 + run.batch_size / 16 + 1e5 * run.lr
        )
        best = {"value": value, "epoch": 1.0, "scores": {"matthews": value}}
        return {"best": best, "seconds": 1.0, "tokens_per_second": 1.0}

    monkeypatch.setattr(store, "result", result)
    evaluation, chosen = glue.summarise(store, runs, ["CoLA"], [])
    assert evaluation.tasks["CoLA"].value == pytest.approx(35.0)  # 1e-5 has the best seed, and a median of 20
    assert (chosen["CoLA"].lr, chosen["CoLA"].batch_size) == (3e-5, 32)


def test_mnli_initialisation_starts_from_the_same_seeds_model(source, data, tmp_path):
    found = {name: tasks.load(name, str(data)) for name in ("RTE", "MNLI", "CoLA")}
    options = Options(seeds=1, epochs=1, lr=1e-3, mnli_init=True)
    store = RunStore(source, found, options, tmp_path)
    runs = options.runs(list(found))
    assert [run.task for run in runs] == ["MNLI", "RTE", "CoLA"]
    plain = RunStore(source, found, Options(seeds=1, epochs=1, lr=1e-3), tmp_path)
    for entry in runs[1:]:
        store.compute(entry, "")  # MNLI's run comes with it
    assert len(list(tmp_path.glob("MNLI-*.weights"))) == 1
    assert plain.result(runs[1]) is None  # another start, another result
    assert plain.result(runs[2]) is not None
    plain.compute(runs[1], "")
    assert plain.result(runs[1])["best"]["loss"] != store.result(runs[1])["best"]["loss"]


def trained(capsys):
    """(task, learning rate, seed) of the runs that were fine-tuned since the last call, as the command says
    them."""
    said = re.findall(r"(\S+) seed (\d+), lr (\S+), batch \d+: [\d,]+ examples", capsys.readouterr().err)
    return [(task, float(lr), int(seed)) for task, seed, lr in said]


def test_a_sweep_starts_others_from_a_run_of_its_own_grid(source, data, tmp_path, capsys):
    found = {name: tasks.load(name, str(data)) for name in ("RTE", "MNLI")}
    options = Options(seeds=1, epochs=1, sweep=True, mnli_init=True)
    runs = options.runs(list(found))
    starts = {options.start(run) for run in runs if run.task == "RTE"}
    assert starts == {options.mnli_run(1)} and starts < set(runs)
    assert all(options.start(run) is None for run in runs if run.task == "MNLI")
    store = RunStore(source, found, options, tmp_path)
    store.compute(options.mnli_run(1), "")
    store.compute(next(run for run in runs if run.task == "RTE"), "")
    assert [task for task, _, _ in trained(capsys)] == ["MNLI", "RTE"]


def test_a_run_is_done_only_if_what_is_asked_for_is_there(source, data, tmp_path, capsys):
    """Figures first; then predictions, another task's start and AX, each asked for later, repeat as little as
    can be."""
    write_labelled_diagnostics(write_glue(tmp_path / "data"))
    found = {name: tasks.load(name, str(tmp_path / "data")) for name in ("RTE", "MNLI", "AX")}
    without_ax = {name: found[name] for name in ("RTE", "MNLI")}
    common = {"seeds": 2, "epochs": 1, "lr": 1e-3}

    def store(of=without_ax, **asked):
        return RunStore(source, of, Options(**common, **asked), tmp_path / "out")

    def file_of(run, ending):
        (path,) = (tmp_path / "out").glob(f"{run.task}-*seed{run.seed}-*{ending}")
        return path

    runs = Options(**common).runs(["RTE", "MNLI"])
    glue.compute_all(store(), runs)
    assert not store().unfinished(runs) and len(trained(capsys)) == 4
    _, _, best = choose({run: store().result(run) for run in runs if run.task == "RTE"})
    _, _, best_mnli = choose({run: store().result(run) for run in runs if run.task == "MNLI"})
    asked = store(predict=True)
    assert set(asked.unfinished(runs)) == {best, best_mnli}  # of each task the best seed predicts
    glue.compute_all(asked, runs)
    assert trained(capsys) == [("RTE", 1e-3, best.seed)]  # MNLI's model is kept, and answers
    assert set(asked.predictions(best_mnli)) == {"MNLI/test_matched", "MNLI/test_mismatched"}
    with_ax = store(found)  # with AX MNLI's figures stay its figures, and its models are asked
    assert with_ax.unfinished(runs) == [run for run in runs if run.task == "MNLI"]
    glue.compute_all(with_ax, runs)
    assert not trained(capsys) and not with_ax.unfinished(runs)
    model = build_classifier(source, 3, 0.1, best_mnli.seed)
    model.load_state_dict(read_tensors(file_of(best_mnli, ".weights")))
    ax = found["AX"].splits["dev"]
    rows = encode_examples(source, ax.first, ax.second, ax.targets, 512)
    expected = matthews_corrcoef(rows.targets, logits_of(model, rows, 4096, "fp32").argmax(1))
    assert with_ax.diagnostic(best_mnli)["matthews"] == pytest.approx(100 * expected)
    lost = file_of(best, ".json")
    figures = lost.read_bytes()
    lost.unlink()  # while the best of a task is not known, each of its runs must have predictions
    assert asked.unfinished(runs) == [run for run in runs if run.task == "RTE"]
    lost.write_bytes(figures)
    both = store(found, predict=True)
    assert both.unfinished(runs) == [best_mnli]  # AX's test rows are to be predicted too
    starting = store(mnli_init=True)
    ordered = starting.options.runs(["RTE", "MNLI"])
    assert starting.unfinished(ordered) == [run for run in ordered if run.task == "RTE"]
    for path in (tmp_path / "out").glob("*.weights"):
        path.unlink()
    assert starting.unfinished(ordered) == ordered  # first the models to start from
    assert not store().unfinished(runs)  # which nobody asks for here
    glue.compute_all(starting, ordered)
    assert [task for task, _, _ in trained(capsys)].count("MNLI") == 2 and not starting.unfinished(ordered)


def test_predictions_of_other_test_rows_are_not_taken(source, tmp_path):
    found = {"RTE": tasks.load("RTE", str(write_glue(tmp_path / "data")))}
    options = Options(seeds=1, epochs=1, predict=True)
    store, (run,) = RunStore(source, found, options, tmp_path), options.runs(["RTE"])
    store.compute(run, "")
    assert not store.unfinished([run])
    file = tmp_path / "data/GLUE/RTE/test.tsv"
    file.write_text(file.read_text().replace("the", "a"))  # as many rows
    store = RunStore(source, {"RTE": tasks.load("RTE", str(tmp_path / "data"))}, options, tmp_path)
    assert store.result(run) is not None and store.unfinished([run]) == [run]


def test_a_checkpoint_without_the_best_model_does_not_serve_predictions(source, data, tmp_path):
    """Saved by a command that did not ask for predictions, it does not know the model of an epoch that was
    the best."""
    found = {"RTE": tasks.load("RTE", str(data))}
    without, with_them = (Options(seeds=1, epochs=3, lr=1e-3, predict=predict) for predict in (False, True))
    (run,) = without.runs(["RTE"])
    straight = RunStore(source, found, with_them, tmp_path / "straight")
    straight.compute(run, "")
    with pytest.raises(Interrupted):
        RunStore(source, found, without, tmp_path / "broken", counting(7)).compute(run, "")
    resumed = RunStore(source, found, with_them, tmp_path / "broken")
    resumed.compute(run, "")
    np.testing.assert_array_equal(resumed.predictions(run)["RTE/test"], straight.predictions(run)["RTE/test"])
    assert resumed.result(run)["curve"] == straight.result(run)["curve"]


@pytest.mark.slow
def test_the_slurm_script_submits_the_starts_first(folders, data, tmp_path):
    """With a stand-in for sbatch; flags may be written with dashes. On a cluster: tests/slurm."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/submitted\nwc -l < {tmp_path}/submitted\n')
    sbatch.chmod(0o755)
    path = os.pathsep.join([str(sbatch.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    flags = [
        "--data",
        data,
        "--tasks",
        "CoLA,RTE,MNLI",
        "--seeds",
        "2",
        "--epochs",
        "1",
        "--out",
        tmp_path,
        "--mnli-init",
    ]
    command = [
        str(word) for word in (ROOT / "slurm/finetune_glue.sh", "--time=10", "--", folders["bert"], *flags)
    ]
    done = subprocess.run(
        command, env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    submitted = (tmp_path / "submitted").read_text().splitlines()
    assert ["--array=0,1" in submitted[0], "--array=2,3,4,5" in submitted[1], "--gather" in submitted[2]] == [
        True
    ] * 3
    assert "--dependency=afterok:1 " in submitted[1] and "--dependency=afterany:1:2 " in submitted[2]


def test_runs_by_number_are_gathered(folders, data, tmp_path, capsys):
    words = {"data": str(data), "tasks": "rte,CoLA", "seeds": "2", "epochs": "1", "out": str(tmp_path)}
    assert glue.main(str(folders["bert"]), **words, plan=True) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows[2] == ["2", "CoLA", "1", "1e-05", "16", "to do", "-"]
    assert glue.main(str(folders["bert"]), **words, run_numbers="2,0") == 0
    assert glue.main(str(folders["bert"]), **words, gather=True) == 0
    printed = capsys.readouterr().out
    assert "RTE: 1 of 2 runs are done" in printed
    assert "CoLA: 1 of 2 runs are done" in printed
    assert "INCOMPLETE" in printed


@pytest.mark.slow
def test_a_killed_command_goes_on_by_the_shell_script(folders, data, tmp_path):
    """Killed outright in the middle of a run, then started again, it gives the figures of an unbroken one."""
    words = [
        folders["bert"],
        "--data",
        data,
        "--tasks",
        "RTE",
        "--seeds",
        "2",
        "--epochs",
        "20",
        "--precision",
        "fp32",
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def start(out, *program):
        command = [str(word) for word in (*program, *words, "--out", tmp_path / out)]
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    killed = start("broken", sys.executable, "-m", "finetune.glue")
    for line in killed.stdout:
        if b"[2/2]" in line:
            killed.kill()
            break
    killed.communicate()
    assert len(list((tmp_path / "broken" / "glue").glob("*.json"))) == 1
    figures = []
    for out, program in (
        ("broken", [ROOT / "finetune/run_glue.sh"]),
        ("straight", [sys.executable, "-m", "finetune.glue"]),
    ):
        started = start(out, *program)
        output = started.communicate()[0].decode()
        assert started.returncode == 0, output
        figures.append(
            json.loads((tmp_path / out / "glue-cls.json").read_text())["tasks"]["RTE"]["details"]["seeds"]
        )
    assert figures[0] == figures[1]


def test_bad_input_is_one_message(folders, data, tmp_path):
    model = str(folders["bert"])
    for words, message in (
        ({"seeds": "none"}, "--seeds 'none'"),
        ({"lr": "fast"}, "--lr 'fast'"),
        ({"precision": "fp8"}, "--precision 'fp8'"),
        ({"tasks": "RTE,MRCP"}, "did you mean 'MRPC'"),
        ({"tasks": "AX"}, "add MNLI"),
        ({"tasks": "RTE", "mnli_init": True}, "add MNLI to --tasks"),
        ({"sweep": True, "lr": "1e-5"}, "--sweep tries its own"),
        ({"run_numbers": "99"}, "there are 45 runs"),
        ({"token_budget": "100"}, "512 or more"),
    ):
        with pytest.raises(UserError, match=message):
            glue.main(model, **{"data": str(data), "out": str(tmp_path), **words})
    for function in ("my_encoder.py:embed", "package.module:embed"):
        with pytest.raises(UserError, match=r"a function cannot be fine-tuned.*run folder"):
            glue.main(function, tasks="RTE", data=str(data), out=str(tmp_path))
    with pytest.raises(UserError, match=r"no such|is not there|cannot load"):
        glue.main(str(tmp_path / "nothing"), tasks="RTE", data=str(data), out=str(tmp_path))
    (tmp_path / "GLUE" / "RTE").mkdir(parents=True)
    with pytest.raises(UserError, match="RTE: no train and no dev set in the data folder's GLUE/"):
        glue.main(model, tasks="RTE", data=str(tmp_path), out=str(tmp_path))


# -- real data ---------------------------------------------------------


@needs_data(*(f"GLUE/{name}" for name in tasks.TASKS if name != "AX"))
def test_real_files_have_the_published_rows_or_it_is_said():
    for name, task in tasks.TASKS.items():
        loaded = tasks.load(name)
        for split, rows in loaded.splits.items():
            said = any(f"{name}: {split} has" in note for note in loaded.notes)
            assert said == (len(rows) != task.sizes[split])
    assert not tasks.load("CoLA").notes
    mnli = tasks.load("MNLI")
    assert any("no dev_mismatched" in note for note in mnli.notes) == ("dev_mismatched" in mnli.missing)


@needs_data("GLUE/SST-2")
def test_a_few_updates_on_real_rte_and_a_learnable_task(source, tmp_path):
    """SST-2's words decide its label: even a random encoder learns some of it in a few hundred updates."""
    found = {"SST-2": tasks.load("SST-2")}
    options = Options(seeds=1, epochs=2, lr=2e-3, max_train=1500)
    store = RunStore(source, found, options, tmp_path)
    run = options.runs(["SST-2"])[0]
    store.compute(run, "")
    curve = store.result(run)["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"]
