"""The commands from Python: the page's example, runs that equal the command's, Ctrl-C, mistakes."""

import io
import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from forked_python import forked_children
from run_helpers import ROOT, TINY, command, finish, start, write_corpus
from sts_layout import write_layout

from pretrain import api
from pretrain.benchmarks.sts_tasks import StsEvaluator
from pretrain.common import processes
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config

SENTENCES = ["A storm at sea.", "The ship waits in the harbour.", "", "A storm at sea."]


@pytest.fixture(scope="module")
def forked():
    """Start the commands as forks of a process that has imported what they import."""
    with pytest.MonkeyPatch.context() as patch, forked_children():
        patch.delenv("CLEAR_DATA", raising=False)
        yield


@pytest.fixture(scope="module")
def example(forked, tmp_path_factory):
    """The names that the example of docs/use.md leaves, run where it expects its files."""
    folder = tmp_path_factory.mktemp("session")
    write_corpus(folder / "corpus.txt", documents=100)
    write_layout(folder / "benchmarks")
    code = (ROOT / "docs/use.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    names: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(code, "docs/use.md", "exec"), names)
    return names | {"place": folder}


@pytest.mark.full
def test_the_example_trains_evaluates_and_exports(example, monkeypatch, capsys):
    monkeypatch.chdir(example["place"])
    run = example["run"]
    assert example["data"] == Path("data/mine") and run == api.Run("runs/mine")
    assert run.summary["steps"] == 20 and run.metrics()[-1]["step"] == 20
    written = json.loads(Path("runs/mine/report/sts-mean.json").read_text())
    assert example["figures"]["model"] == written["model"] == "runs/mine"
    assert list(example["figures"]["results"]) == ["mean"]
    assert repr(example["encoder"]) == "<runs/mine: pooling mean, fp32>"
    assert (example["folder"] / "config.json").is_file()
    assert api.prepare("corpus.txt", "data/mine", vocabulary=8192) == example["data"]  # it is left as it is
    assert "data/mine: unit sentence" in capsys.readouterr().out


def test_vectors_are_those_of_the_evaluation(example, monkeypatch):
    monkeypatch.chdir(example["place"])
    run, encoder = example["run"], api.load(example["run"])
    again = StsEvaluator("benchmarks").evaluate(encoder.encode)
    assert dict(again) == example["figures"]["results"]["mean"]
    vectors = encoder.encode(SENTENCES)
    assert vectors.shape == (4, 64) and vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors[0], vectors[3])
    reordered = encoder.encode(SENTENCES[::-1])
    np.testing.assert_allclose(reordered[::-1], vectors, atol=1e-6)
    for model in (run.folder, run.folder / "best"):
        np.testing.assert_array_equal(api.load(model).encode(SENTENCES), vectors)
    assert api.load(example["folder"]).encode(SENTENCES).shape == vectors.shape
    assert api.load(run, pooling="cls", precision="bf16").pooling == "cls"
    assert encoder.encode([]).shape == (0, 64)


@pytest.mark.full
def test_other_evaluations_return_what_they_leave_for_the_report(example, monkeypatch):
    monkeypatch.chdir(example["place"])
    rows = "".join(f"{n:04d}||一个男人{n}。||一个女人{n % 7}。||{n % 6}\n" for n in range(20))
    folder = Path("benchmarks/zh/STS-B")
    folder.mkdir(parents=True)
    (folder / "cnsd-sts-test.txt").write_text(rows, "utf-8")
    found = example["run"].evaluate("zh_sts", "benchmarks", tasks=["STS-B-zh"], pooling="cls")
    assert found["tasks"]["STS-B-zh"]["metric"] == "spearman" and not found["complete"]
    assert found == json.loads(Path("runs/mine/report/zh_sts-cls.json").read_text())
    with pytest.raises(UserError, match=r"unknown flag --poolng; did you mean --pooling\?"):
        example["run"].evaluate("zh_sts", "benchmarks", poolng="cls")


STEPS = {"train.steps": 96, "evaluate.every": 0, "checkpoint.every": 0}


@pytest.fixture(scope="module")
def of_command(tiny_data, tmp_path_factory):
    """The run of the command with the settings of STEPS."""
    run = tmp_path_factory.mktemp("command") / "run"
    finish(start(command(tiny_data, run, **{key.replace(".", "__"): value for key, value in STEPS.items()})))
    return api.Run(run)


def resolved(run: api.Run) -> str:
    """The recipe that a run leaves, without its folder."""
    return (run.folder / "config.yaml").read_text().replace(str(run.folder), "RUN")


@pytest.mark.full
def test_a_run_is_that_of_the_command(forked, of_command, tiny_data, tmp_path):
    run = api.train("clear_micro", data=tiny_data, run=tmp_path / "run", **TINY | STEPS)
    assert run.summary["weights"] == of_command.summary["weights"]
    assert resolved(run) == resolved(of_command)
    with pytest.raises(UserError, match=r"already holds a run .* --resume auto"):
        api.train("clear_micro", data=tiny_data, run=run, **TINY | STEPS)


class TerminalOfSomebodyWhoInterrupts(io.StringIO):
    """Press Ctrl-C when the first line of a step appears."""

    pressed = False

    def write(self, text: str) -> int:
        if not self.pressed and "step 1" in text:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


@pytest.mark.full
def test_ctrl_c_saves_and_the_same_call_continues(forked, of_command, tiny_data, tmp_path, monkeypatch):
    folder, terminal = tmp_path / "run", TerminalOfSomebodyWhoInterrupts()

    def continued() -> api.Run:
        return api.train(data=tiny_data, run=folder, resume="auto", **TINY | STEPS)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="resume='auto'"):
        patch.setattr(sys, "stdout", terminal)
        continued()
    assert "received Ctrl-C" in terminal.getvalue()
    checkpoints = list((folder / "checkpoints").glob("step-*"))
    assert checkpoints and not (folder / "report").exists()
    with pytest.raises(UserError, match="is not finished; train it again"):
        _ = api.Run(folder).summary
    assert continued().summary["weights"] == of_command.summary["weights"]


@pytest.mark.full
def test_a_run_that_something_else_stops_is_an_error(forked, tiny_data, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stop").touch()
    with pytest.raises(
        UserError,
        match=r"stopped before its last step\. Start it again \(in Python: with resume='auto'\); it",
    ):
        api.train("clear_micro", data=tiny_data, run=tmp_path / "run", **TINY)


def test_sections_and_dotted_keys_and_short_flags_are_one_recipe():
    changes = {"objective": {"mlm": {"rate": 0.2}}, "objective.contrastive": {"weight": 0.5}, "aug": "none"}
    flat = {"objective.mlm.rate": 0.2, "objective.contrastive.weight": 0.5, "aug": "none"}
    overrides = api.overrides_of(changes | {"train": {}, "data.folder": Path("d")})
    assert overrides == flat | {"data.folder": "d"}
    assert api.overrides_of({"steps": 3, "train": {"steps": 3}}) == {"steps": 3, "train.steps": 3}
    assert load_config("clear_micro", overrides) == load_config("clear_micro", flat | {"data": "d"})


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: api.train("clear_mirco"), r"no recipe clear_mirco; did you mean clear_micro\?"),
        (lambda: api.train("no/such.yaml"), r"no recipe no/such\.yaml"),
        (lambda: api.train(train={"stepz": 1}), r"train\.stepz; did you mean --train\.steps\?"),
        (lambda: api.train(**{"train.lr": "fast"}), r"train\.lr: Input should be a valid number"),
        (
            lambda: api.train(steps=3, **{"train.steps": 4}),
            r"train\.steps is given two values, steps=3 and train\.steps=4",
        ),
        (
            lambda: api.train(train={"lr": 0.1}, **{"train.lr": 0.2}),
            r"train\.lr is given two values, train\.lr=0\.1 and train\.lr=0\.2",
        ),
        (lambda: api.train(data="nowhere"), "nowhere is not prepared data: it has no manifest"),
        (
            lambda: api.prepare("a.txt", "d", vocabulry=300),
            r"unknown key vocabulry; did you mean vocabulary\?",
        ),
        (lambda: api.prepare([], "d"), "no source given: name at least one"),
        (lambda: api.prepare("none.txt", "d"), r"^source none\.txt: no such file"),
        (lambda: api.Run("runs/none"), "there is no folder runs/none"),
        (lambda: api.load("runs/none"), "there is no folder runs/none"),
    ],
)
def test_a_mistake_is_one_message(forked, tmp_path, monkeypatch, call, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        call()


def test_mistakes_about_an_opened_run(example, monkeypatch):
    monkeypatch.chdir(example["place"])
    with pytest.raises(UserError, match=r"there is no evaluation 'stz'"):
        example["run"].evaluate("stz")
    with pytest.raises(UserError, match="has no checkpoint of step '7'"):
        example["run"].export("other", step=7)
    with pytest.raises(UserError, match=r"one string was given.* write \[sentence\]"):
        example["encoder"].encode("A storm at sea.")
    with pytest.raises(UserError, match="sentence 1 is nan, not a string"):
        example["encoder"].encode(["A storm.", float("nan")])


def test_a_process_that_is_killed_says_so(monkeypatch):
    monkeypatch.setattr(processes, "run_and_stream", lambda module, words: (-signal.SIGKILL, ""))
    with pytest.raises(UserError, match=r"pretrain\.main was killed by SIGKILL\. Start it again \(in Python"):
        api.train()
    monkeypatch.setattr(processes, "run_and_stream", lambda module, words: (143, ""))
    with pytest.raises(UserError, match=r"was stopped by a signal\. Start it again \(in Python"):
        api.train()
