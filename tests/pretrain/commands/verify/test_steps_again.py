"""What is made again of a stretch: its steps, and the export at its end."""

import json
import shutil
from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from stretch_helpers import CONFIG, saved

from pretrain.commands.verify import execute, stretches
from pretrain.commands.verify.execute import StepsAgain
from pretrain.commands.verify.stretches import Stretch
from pretrain.common.shutdown import STOP
from pretrain.config.recipe import as_yaml, load_config
from pretrain.run import TrainingRun
from pretrain.step.progress import Progress

POLICY = {
    "step": 8,
    "pooling": "mean",
    "versions": {},
    "progress": {"rows": {"lines": 3}, "step": 8},
    "recipe": {"a": 1},
}


@pytest.fixture
def exported_again(monkeypatch, tmp_path):
    """Compare export/ of step 8 with what is made again, of which files are others."""

    def compare(step=8, policy=POLICY, again=POLICY, changes=(), error="", why="", **config):
        run, recipe = tmp_path / "run", tmp_path / "again" / "recipe.yaml"
        for folder in (run, recipe.parent):
            shutil.rmtree(folder, ignore_errors=True)
        recipe.parent.mkdir()
        versions = {name: version(name) for name in ("transformers", "tokenizers")}
        policy = policy | {"versions": versions | policy["versions"]}
        again = again | {"versions": versions}

        def write(place, content, policy):
            for name, text in content.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                if isinstance(text, str):
                    (place / name).write_text(text)
                else:
                    save_file(text, place / name)
            (place / "clear.json").write_text(json.dumps(policy))

        weights = {"w": torch.tensor([3.0, 4.0])}
        content = {"config.json": "{}", "1_Pooling/config.json": "mean", "model.safetensors": weights}
        made = saved(step, "export")
        write(
            run / "export",
            content | {"README.md": "card", "training_config.yaml": as_yaml(made.config)},
            policy,
        )
        new = {name: text for name, text in (content | dict(changes)).items() if text is not None}
        calls = []

        def export(source, place):
            calls.append(source.relative_to(run).as_posix())
            write(place, new, again)

        def do_again(run, stretch, recipe, place, overrides):
            calls.append(stretch)
            write(place / "best", new, again)
            return error

        monkeypatch.setattr(stretches, "export", export)
        monkeypatch.setattr(stretches, "do_again", do_again)
        monkeypatch.setattr(stretches, "_why_not_same_bits", lambda run, after: why)
        ends = [saved(4), saved(8)]
        return *stretches._different_export(run, made, ends, recipe, {}), calls

    return compare


def test_an_export_is_its_checkpoint_made_again(exported_again):
    assert exported_again() == (True, [], ["checkpoints/step-00000008"])
    assert exported_again(step=6)[:2] == (False, ["not compared: the checkpoint of its step is not kept"])
    assert exported_again(policy=POLICY | {"average": {"alpha": 0.5}})[0] is False
    for changes, name in [
        ({"config.json": "{1}"}, "config.json"),
        ({"1_Pooling/config.json": "cls"}, "1_Pooling/config.json"),
        ({"1_Pooling/config.json": None}, "1_Pooling/config.json"),
        ({"more.json": "x"}, "more.json"),
        ({"model.safetensors": {"w": torch.tensor([3.0, 4.0001])}}, "model.safetensors"),
    ]:
        made, found, _ = exported_again(changes=changes)
        assert made and found == [f"{name} is not what step-00000008 exports to"]
    _, found, _ = exported_again(again=POLICY | {"pooling": "cls"})
    assert found == ["clear.json pooling is mean, and the steps give cls"]
    _, found, _ = exported_again(again=POLICY | {"progress": {"rows": {"lines": 3}, "step": 7}})
    assert found == ["clear.json progress.step is 8, and the steps give 7"]
    resumed = POLICY | {"progress": {"step": 8}}  # a resume has made it again, and records none
    assert exported_again(policy=resumed, again=POLICY | {"progress": {"step": 7}})[1] == []
    other = POLICY | {"versions": {"transformers": "0"}}  # each version writes keys of its own
    assert exported_again(policy=other, changes={"config.json": "{1}"})[1] == []
    assert exported_again(policy=other, changes={"more.json": "{1}"})[1] != []


def test_the_start_is_made_as_the_run_makes_it(exported_again):
    start, moved = POLICY | {"step": 0}, {"model.safetensors": {"w": torch.tensor([3.0, 4.02])}}
    made, found, (stretch,) = exported_again(step=0, policy=start, again=start)
    assert made and not found
    assert (stretch.begin, stretch.before, stretch.after.step, stretch.after.name) == (
        0,
        None,
        0,
        "step-00000004",
    )
    assert exported_again(step=0, error="no memory")[:2] == (True, ["no memory"])
    assert exported_again(step=0, changes=moved)[1] == ["model.safetensors is not what the start exports to"]
    assert exported_again(step=0, changes=moved, why="another one")[1] == []  # 0.4% of their length
    moved = {"model.safetensors": {"w": torch.tensor([3.0, 4.1])}}
    assert "2.00% of their way" in exported_again(step=0, changes=moved, why="another one")[1][0]


def test_a_stretch_is_done_by_a_process_with_the_settings_of_its_end(monkeypatch, tmp_path):
    recipe, run, started = tmp_path / "recipe.yaml", tmp_path / "run", []
    monkeypatch.setenv("CLEAR_DATA", "/data")
    evaluated: list[dict] = []

    def do(before, said="", status=0, **machine):
        recipe.write_text(as_yaml(CONFIG))

        def start(words, log, environment):
            started[:] = [words, environment, load_config(stretches.Path(words[3]), {})]
            log.write_text(said)

        monkeypatch.setattr(stretches, "read_metrics", lambda path: evaluated)
        monkeypatch.setattr(stretches, "start_logged", start)
        monkeypatch.setattr(stretches, "wait_for_end", lambda process, look: look() or status)
        stretch = Stretch(before.step if before else 0, before, saved(9, ranks=2, **machine))
        return stretches.do_again(run, stretch, recipe, tmp_path / "again", {"train.lr": 0.5})

    assert do(saved(4), threads=3) == ""
    (*_, module, _, end, ranks), environment, config = started
    assert (module, end, ranks) == ("pretrain.commands.verify.execute", "--end=9", "--ranks=2")
    assert (config.train.lr, config.train.threads, str(config.folder)) == (0.5, 3, str(tmp_path / "again"))
    kept = config.checkpoint
    assert (kept.every, kept.keep, kept.keep_every, kept.resume) == (
        0,
        1,
        0,
        f"{run}/checkpoints/step-00000004",
    )
    assert "CLEAR_DATA" not in environment and config.track == ()
    evaluated.append({"evaluation": {"stsb-dev": 0.7}})
    assert do(None) == "" and started[2].checkpoint.resume == "never"
    assert started[1]["CLEAR_DATA"] == "/data"
    assert do(None, "step 1\nerror: no memory;\nfree some\n  safe: x", 2) == "status 2: no memory;\nfree some"
    assert do(None, "x" * 900, 2) == f"status 2: {'x' * 500}"


def test_steps_again_end_where_they_are_told_and_choose_by_their_own_evaluations(monkeypatch):
    class Run(StepsAgain):
        def __init__(self, step, checkpoint=None):
            self.checkpoint, self.progress = checkpoint, Progress(step=step, best_score=1.0, unimproved=3)

    monkeypatch.setattr(TrainingRun, "build", lambda self: None)
    monkeypatch.setattr(TrainingRun, "train", lambda self, batches: f"trained on {batches}")
    monkeypatch.setattr(TrainingRun, "_step", lambda self, batches: SimpleNamespace(request=0))
    monkeypatch.setattr(execute, "read_state", lambda path: {"progress": path})
    monkeypatch.setattr(StepsAgain, "end", 5)
    assert [Run(step)._step(None).request for step in (4, 5, 6)] == [0, STOP, STOP]
    assert Run(0).train("batches") == "trained on batches"
    for recorded, kept in (
        ({"best_score": 7.0, "unimproved": 2}, (7.0, 2)),
        ({"best_score": None}, (None, 0)),
    ):
        run = Run(0, recorded)
        run.build()
        assert (run.progress.best_score, run.progress.unimproved) == kept
    run = Run(0)
    run.build()
    assert (run.progress.best_score, run.progress.unimproved) == (1.0, 3)
    monkeypatch.setattr(StepsAgain, "end", 0)
    assert Run(0).train("batches") == 0
    reported = []
    monkeypatch.setattr(execute, "report_damage", lambda *given: reported.append(given))
    run.data, run.evaluation, run.telemetry = "data", SimpleNamespace(heldout="held"), "telemetry"
    run._record_what_runs()  # of what runs, which best/ would say, no row is written
    assert reported == [("data", "held", run.progress, "telemetry")]


@pytest.mark.parametrize("started", [False, True])
def test_ranks_are_started_once(started, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(execute, "load_config", lambda recipe, overrides: ("config", recipe, overrides))
    monkeypatch.setattr(execute, "choose_accelerator", lambda: calls.append("chosen"))
    monkeypatch.setattr(execute, "start_local_ranks", calls.append)
    monkeypatch.setattr(execute, "start", lambda *given: calls.append(given) or 3)
    monkeypatch.setattr(StepsAgain, "end", 0)
    monkeypatch.setenv(execute.LOCAL_RANKS, "x") if started else monkeypatch.delenv(
        execute.LOCAL_RANKS, False
    )
    assert execute.execute("recipe", end=7, ranks=2) == 3 and StepsAgain.end == 7
    assert calls == ["chosen", *([] if started else [2]), (("config", "recipe", {}), None, False, StepsAgain)]
