"""What the functions of Python ask of the commands, and what they return of what these leave."""

import json
import os
from pathlib import Path

import pytest
import yaml

from augment.core.own_code import ALLOWED
from pretrain import api
from pretrain.common.errors import UserError


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Record the commands that a session in a folder of its own starts: (module, words, recipe)."""
    calls = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ALLOWED, "")

    def note(module, words, again):
        recipe = next((word.partition("=")[2] for word in words if word.startswith("--config=")), None)
        calls.append((module, words, recipe and yaml.safe_load(Path(recipe).read_text("utf-8"))))
        note.does(words)

    note.does = lambda words: None
    monkeypatch.setattr(api, "run_to_end", note)
    calls.append(note)
    return calls


@pytest.fixture
def run(tmp_path, monkeypatch):
    folder = tmp_path / "runs" / "mine"
    (folder / "report").mkdir(parents=True)
    (folder / "config.yaml").write_text("name: mine\n")
    monkeypatch.setattr(api, "export_of", lambda place: place)
    return api.Run(folder)


def test_a_run_is_its_folder_with_its_summary_and_rows(run, monkeypatch):
    monkeypatch.setenv("HOME", str(run.folder.parents[1]))
    assert api.Run("~/runs/mine") == run and os.fspath(run) == str(run.folder)
    with pytest.raises(UserError, match="is not finished"):
        _ = run.summary
    (run.folder / "report" / "summary.json").write_text('{"steps": 7}')
    assert run.summary["steps"] == 7
    (run.folder / "metrics.jsonl").write_text('{"step": 1, "link": "x"}\n{"step": 2}\n{"st')
    assert run.metrics() == [{"step": 1}, {"step": 2}]


def results(pooling, **tasks):
    return {"model": "mine", "pooling": pooling, "tasks": tasks}


def task(value, **details):
    return {"metric": "m", "value": value, "scores": {"spearman_all": value}, "details": details}


def test_sts_returns_all_poolings_that_it_has_written(run, asked):
    (note,) = asked
    folder = run.folder / "report"
    (folder / "sts-old.json").write_text(json.dumps(results("old", A=task(1.0, subsets={}))))

    def write(words):
        of_cls = results("cls", A=task(2.0, subsets={"x": 1}), average=task(9.0))
        for number, (name, what) in enumerate(
            {"sts-mean": results("mean", A=task(3.0, subsets={})), "sts-cls": of_cls}.items()
        ):
            (folder / f"{name}.json").write_text(json.dumps(what))
            os.utime(folder / f"{name}.json", ns=(0, 10**9 * (number + 1)))
        (folder / "other.json").write_text("{}")

    note.does = write
    found = run.evaluate("sts", eval_data="bench", pooling="mean", tasks=["A", "B"], progress=True)
    assert found == {
        "model": "mine",
        "results": {
            "mean": {"A": {"spearman_all": 3.0, "subsets": {}}},
            "cls": {"A": {"spearman_all": 2.0, "subsets": {"x": 1}}},
        },
    }
    assert list(found["results"]) == ["mean", "cls"], "in the order in which they were written"
    module, words, _ = asked[-1]
    assert module == "finetune.sts" and words[0] == str(run.folder)
    flags = ["--pooling=mean", "--tasks=A,B", "--progress=true", f"--out={folder}", "--eval_data=bench"]
    assert sorted(words[1:]) == sorted(flags)
    note.does = lambda words: None
    with pytest.raises(UserError, match=r"sts of .* wrote no figures"):
        run.evaluate("sts")
    assert not any("eval_data" in word for word in asked[-1][1])


def test_other_evaluations_return_the_last_written_and_suites_what_is_there(run, asked, tmp_path):
    (note,) = asked
    other = tmp_path / "figures"
    other.mkdir()

    def write(words):
        for number, name in enumerate(("anli-b", "anli-a")):
            (other / f"{name}.json").write_text(json.dumps({"from": name}))
            os.utime(other / f"{name}.json", ns=(0, 10**9 * (number + 1)))

    note.does = write
    assert run.evaluate("anli", out=other) == {"from": "anli-a"}
    assert asked[-1][0] == "finetune.anli" and f"--out={other}" in asked[-1][1]
    (run.folder / "report" / "eval.json").write_text('{"units": {}}')
    note.does = lambda words: None
    for suite in ("quick", "mteb-eng", "all"):
        assert run.evaluate(suite) == {"units": {}}, "it had been done before"
        module, words, _ = asked[-1]
        assert module == "finetune.evaluate" and f"--suite={suite}" in words
    with pytest.raises(UserError, match="there is no evaluation 'nonsense'"):
        run.evaluate("nonsense")


def test_evaluations_need_weights(run, asked, monkeypatch):
    def none(place):
        raise UserError("no export yet")

    monkeypatch.setattr(api, "export_of", none)
    with pytest.raises(UserError, match="no export yet"):
        run.evaluate("sts")
    assert len(asked) == 1


@pytest.mark.parametrize(
    "sources, expected",
    [
        ("a.txt", ["a.txt"]),
        (Path("a.txt"), ["a.txt"]),
        ({"source": "a.jsonl", "text_key": "body"}, [{"source": "a.jsonl", "text_key": "body"}]),
        (["a.txt", Path("b.txt@0.5")], ["a.txt", "b.txt@0.5"]),
    ],
)
def test_sources_are_one_or_several(asked, sources, expected):
    assert api.prepare(sources, Path("data/mine"), vocabulary=300, tokenizer=Path("tok")) == Path("data/mine")
    module, words, recipe = asked[-1]
    assert module == "pretrain.prepare" and words[1:] == ["--out=data/mine", "--overwrite=false"]
    assert recipe["vocabulary"] == 300 and recipe["tokenizer"] == "tok" and "unit" not in recipe
    for found, wanted in zip(recipe["sources"], expected, strict=True):
        name, _, weight = (wanted if isinstance(wanted, str) else wanted["source"]).partition("@")
        assert found["source"] == name and found.get("weight", 1.0) == float(weight or 1)
        assert found.get("text_key", "text") == ("body" if isinstance(wanted, dict) else "text")
    api.prepare(sources, "data/mine", workers=3, overwrite=True)
    assert asked[-1][1][1:] == ["--out=data/mine", "--overwrite=true", "--workers=3"]


def trains(folder, steps):
    """Return an action that leaves the folder of a run of this many steps."""

    def does(words):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text("name: mine\n")
        (folder / "report").mkdir(exist_ok=True)
        (folder / "report" / "summary.json").write_text(json.dumps({"steps": steps}))

    return does


def test_training_is_asked_for_with_what_is_given_and_no_more(asked, monkeypatch, tmp_path):
    (note,) = asked
    monkeypatch.setattr(api, "read_manifest", lambda folder: None)
    monkeypatch.setattr(api, "is_complete", lambda folder, steps: note.complete(folder, steps))
    seen = []
    note.complete, note.does = (
        lambda folder, steps: seen.append((folder, steps)) or True,
        trains(Path("runs/a"), 9),
    )
    given = {"train": {"steps": 9}, "model.layers": 2, "aug": "none"}
    assert api.train(
        "clear_micro", data=Path("data/mine"), run=Path("runs/a"), resume="auto", **given
    ) == api.Run("runs/a")
    module, words, recipe = asked[-1]
    assert module == "pretrain.main" and len(words) == 1 and seen == [(Path("runs/a"), 9)]
    assert (
        recipe["train"]["steps"] == 9
        and recipe["model"]["layers"] == 2
        and recipe["augment"]["spec"] == "none"
    )
    assert recipe["data"]["folder"] == "data/mine" and recipe["folder"] == "runs/a"
    assert recipe["checkpoint"]["resume"] == "auto" and "patience" not in recipe["train"]
    assert not Path(words[0].partition("=")[2]).exists(), "the recipe was for this call"
    api.train(run="runs/a")
    assert asked[-1][2]["checkpoint"]["resume"] == "never" and "folder" not in asked[-1][2]["data"]
    note.complete = lambda folder, steps: False
    with pytest.raises(UserError, match="stopped before its last step"):
        api.train(run="runs/a")

    def interrupt(words):
        raise KeyboardInterrupt

    note.does = interrupt
    with pytest.raises(KeyboardInterrupt, match=r"runs/a is stopped: train\(\.\.\., resume='auto'\)"):
        api.train(run="runs/a")


def test_a_start_gives_its_pooling_to_the_run(asked, monkeypatch):
    (note,) = asked
    monkeypatch.setattr(api, "is_complete", lambda folder, steps: True)
    note.does = trains(Path("runs/a"), 1)

    def adopt(config):
        config.model.pooling = "first-last"
        config.model.model_fields_set.add("pooling")

    monkeypatch.setattr("pretrain.start.encoder.adopt_interface", adopt)
    api.train("clear_base", run="runs/a", init="some/model")
    assert asked[-1][2]["model"]["pooling"] == "first-last" and asked[-1][2]["model"]["init"] == "some/model"
    api.train("clear_base", run="runs/a")
    assert asked[-1][2]["model"].get("pooling") != "first-last"


def test_code_that_a_call_names_may_run(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(api, "is_complete", lambda folder, steps: True)
    asked[0].does = trains(Path("runs/a"), 1)
    (tmp_path / "own.py").write_text("")
    api.train(run="runs/a", **{"objective.name": "own.py:Mine"})
    assert str(tmp_path / "own.py") in os.environ[ALLOWED].split("\n")
