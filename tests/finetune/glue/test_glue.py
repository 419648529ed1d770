"""GLUE: the command, and the scripts around it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from answer_checks import require_answers
from commands import call

from finetune.glue import __main__ as glue
from finetune.results import read
from finetune.tuning import tasks
from pretrain.common.errors import UserError

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.full
def test_all_tasks_with_predictions(folders, data, tmp_path, capsys):
    flags = {"eval_data": data, "seeds": 2, "epochs": 1, "lr": "1e-3", "predict": True, "out": tmp_path}
    assert call(glue.glue, folders["bert"], **flags, precision="fp32") == 0
    names = {path.name for path in (tmp_path / "predictions").iterdir()}
    answered = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX"
    assert names == {f"{task}.tsv" for task in answered.split()}
    for name in names:
        lines = (tmp_path / "predictions" / name).read_text().splitlines()
        assert lines[0] == "index\tprediction"
        assert [line.split("\t")[0] for line in lines[1:]] == [str(n) for n in range(7)]
        words = {line.split("\t")[1] for line in lines[1:]}
        splits = ((task, split) for task in tasks.TASKS.values() for split in task.sizes)
        task = next(task for task, split in splits if name == task.submission(split))
        assert words <= set(task.labels) if task.labels else all(0 <= float(word) <= 5 for word in words)
    content = json.loads((tmp_path / "glue-cls.json").read_text())
    assert content["evaluation"] == "glue"
    assert not content["complete"]
    assert set(content["tasks"]) == {*tasks.TASKS, "average of 8"} - {"AX"}
    mnli = content["tasks"]["MNLI"]
    assert mnli["value"] == pytest.approx(
        np.median([entry["value"] for entry in mnli["details"]["seeds"].values()])
    )
    for entry in mnli["details"]["seeds"].values():
        assert entry["value"] == pytest.approx(
            (entry["scores"]["matched"] + entry["scores"]["mismatched"]) / 2
        )
    require_answers(read(tmp_path / "glue-cls.json"), [task for task in tasks.TASKS if task != "AX"])
    notes = "\n".join(content["notes"])
    for words in (
        "median of 2 seeds",
        "1 epochs in place of 10",
        "lr 0.001 in place of",
        "RTE: dev has 24 rows here, 277",
        "WNLI:",
        "QQP.tsv has 7 test rows here, 390,965",
    ):
        assert words in notes
    # Everything is on file: the same command computes nothing.
    capsys.readouterr()
    assert call(glue.glue, folders["bert"], **flags) == 0
    assert "[1/" not in capsys.readouterr().err


def test_a_default_place_that_cannot_be_written_is_refused_before_training(
    folders, data, tmp_path, monkeypatch
):
    (tmp_path / "results").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(glue, "compute_all", lambda *_: pytest.fail("trained"))
    for command in (glue.glue, glue.plan, glue.train):
        with pytest.raises(
            UserError, match=r"without --out, results go to results/.*/results is not a folder"
        ):
            call(command, folders["bert"], eval_data=data, tasks="RTE")


@pytest.mark.slow
def test_the_slurm_script_submits_the_runs_and_a_last_job(folders, data, tmp_path):
    """With a stand-in for sbatch; flags may be written with dashes. On a cluster: tests/slurm."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/submitted\nwc -l < {tmp_path}/submitted\n')
    sbatch.chmod(0o755)
    path = os.pathsep.join([str(sbatch.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    flags = f"--eval-data {data} --tasks CoLA,RTE,MNLI --seeds 2 --epochs 1 --out {tmp_path}"
    command = f"{ROOT}/slurm/finetune_glue.sh --time=10 -- {folders['bert']} {flags}".split()
    done = subprocess.run(
        command, env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    submitted = (tmp_path / "submitted").read_text().splitlines()
    runs, last = submitted
    assert "--array=0,1,2,3,4,5" in runs and "--dependency=afterany:1 " in last and " gather " in last


def test_runs_by_number_are_gathered(folders, data, tmp_path, capsys):
    words = {"eval_data": str(data), "tasks": "rte,CoLA", "seeds": "2", "epochs": "1", "out": str(tmp_path)}
    assert call(glue.plan, str(folders["bert"]), **words) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows[2] == ["2", "CoLA", "1", "1e-05", "16", "to do"]
    assert call(glue.train, str(folders["bert"]), **words, run_numbers="2,0") == 0
    assert call(glue.gather, str(folders["bert"]), **words) == 0
    printed = capsys.readouterr().out
    assert "RTE: 1 of 2 runs are done" in printed
    assert "CoLA: 1 of 2 runs are done" in printed
    assert "INCOMPLETE" in printed


@pytest.mark.slow
def test_a_killed_command_goes_on_by_the_shell_script(folders, data, tmp_path):
    """Killed outright in the middle of a run, then started again, it gives the figures of an unbroken one."""
    words = f"{folders['bert']} --eval-data {data} --tasks RTE --seeds 2 --epochs 20 --precision fp32".split()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": path}

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
    module = [sys.executable, "-m", "finetune.glue"]
    for out, program in (("broken", [ROOT / "finetune/run_glue.sh"]), ("straight", module)):
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
        ({"seeds": "none"}, "--seeds: Input should be a valid integer"),
        ({"lr": "fast"}, "--lr: Input should be a valid number"),
        ({"precision": "fp8"}, "--precision: Input should be 'auto'"),
        ({"tasks": "RTE,MRCP"}, "did you mean 'MRPC'"),
        ({"tasks": "AX"}, "add MNLI"),
        ({"sweep": True, "lr": "1e-5"}, "--sweep tries its own"),
        ({"token_budget": "100"}, "greater than or equal to 512"),
    ):
        with pytest.raises(UserError, match=message):
            call(glue.glue, model, **{"eval_data": str(data), "out": str(tmp_path), **words})
    with pytest.raises(UserError, match="runs 0 to 44"):
        call(glue.train, model, eval_data=str(data), out=str(tmp_path), run_numbers="99")
    for function in ("my_encoder.py:embed", "package.module:embed"):
        with pytest.raises(UserError, match=r"a function cannot be fine-tuned.*folder"):
            call(glue.glue, function, tasks="RTE", eval_data=str(data), out=str(tmp_path))
    with pytest.raises(UserError, match="there is no folder"):
        call(glue.glue, str(tmp_path / "nothing"), tasks="RTE", eval_data=str(data), out=str(tmp_path))
    (tmp_path / "GLUE" / "RTE").mkdir(parents=True)
    with pytest.raises(UserError, match="RTE: no train and no dev set"):
        call(glue.glue, model, tasks="RTE", eval_data=str(tmp_path), out=str(tmp_path))
