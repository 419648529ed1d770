"""The Slurm path without a Slurm: stand-ins for its commands run what datatrove submits, one array task after
another."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.common.errors import UserError
from pretrain.config.data import DataConfig
from pretrain.prepare.executors import ExecutorOptions
from pretrain.prepare.run import prepare

SBATCH = """#!{python}
import os, re, subprocess, sys
script = sys.argv[-1]
text = open(script).read()
count = os.path.join({folder!r}, "jobs")
with open(count, "a") as stream:
    stream.write(" ".join(sys.argv[1:-1]) + " | " + " ".join(re.findall("#SBATCH (.*)", text)) + "\\n")
number = len(open(count).readlines())
array = re.search(r"--array=0-(\\d+)", text)
for task in range(int(array[1]) + 1 if array else 1):
    extra = {{"SLURM_ARRAY_TASK_ID": str(task)}} if array else {{}}
    environment = {{**os.environ, "SLURM_NODELIST": "n1", "RUN_OFFSET": "0", **extra}}
    result = subprocess.run(["bash", script], env=environment, capture_output=True, text=True)
    open(os.path.join({folder!r}, f"out-{{number}}-{{task}}"), "w").write(result.stdout + result.stderr)
print("Submitted batch job", number)
"""
SRUN = '#!/bin/bash\nwhile [[ $1 == -* ]]; do [[ $1 == -n ]] && shift; shift; done\nexec "$@"\n'
ANSWERS = {"scontrol": "echo n1"}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder on PATH with the commands; returns the file that records what was submitted."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    scripts = {"sbatch": SBATCH.format(python=sys.executable, folder=str(folder)), "srun": SRUN}
    scripts.update({name: f"#!/bin/bash\n{answer}\n" for name, answer in ANSWERS.items()})
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv("PATH", path)
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    return folder / "jobs"


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"This is the sentence with the number {n} in a list.\n" for n in range(300)))
    return DataConfig(sources=str(path), vocabulary=320)


@pytest.mark.full
def test_the_stages_are_submitted_in_order_and_give_the_same_shards(tmp_path, slurm, corpus):
    options = {"progress": False, "account": "lab", "memory_gb": 3, "partition": "low"}
    assert prepare(corpus, tmp_path / "slurm-out", executor="slurm", workers=4, **options) == {}
    manifest = prepare(corpus, tmp_path / "slurm-out", workers=1)  # the stand-in has run it all by now
    local = prepare(corpus, tmp_path / "local-out", workers=1, progress=False)
    assert manifest["splits"] == local["splits"] and manifest["tokenizer_hash"] == local["tokenizer_hash"]
    submitted = [
        line
        for line in slurm.read_text().splitlines()
        if "array" in line and "afterok" not in line.split("|")[1]
    ]
    assert [
        name
        for line in submitted
        for name in ("read", "tokenizer", "build", "merge")
        if f"prepare-{name}" in line
    ] == [
        "read",
        "tokenizer",
        "build",
        "merge",
    ]
    for line in submitted:
        assert "--partition=low" in line and "--account=lab" in line and "--mem-per-cpu=3G" in line
    assert all("--dependency=afterok" in line for line in submitted[1:])
    assert all("--kill-on-invalid-dep=yes" in line for line in submitted)


def test_clusters_that_are_not_there(tmp_path, monkeypatch, corpus):
    monkeypatch.setenv("PATH", "/usr/bin-none")
    with pytest.raises(UserError, match="there is no sbatch here"):
        prepare(corpus, tmp_path / "a", executor="slurm", partition="low", progress=False)
    with pytest.raises(UserError, match="executor"):
        prepare(corpus, tmp_path / "c", executor="cloud", progress=False)


def test_workers_default_to_the_cores_of_this_machine():
    assert ExecutorOptions().parallel == len(os.sched_getaffinity(0))
    assert ExecutorOptions(executor="slurm").parallel == 64


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_batch_script_says_how_to_submit_it():
    script = Path(__file__).resolve().parents[3] / "slurm" / "prepare_data.sh"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "sbatch" in done.stderr
