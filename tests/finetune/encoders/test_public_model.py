"""all-MiniLM-L6-v2, whose folder CLEAR_PUBLIC_MODEL names, has the scores that MTEB publishes for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_data import needs_data

MODEL = os.environ.get("CLEAR_PUBLIC_MODEL", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not MODEL, reason="CLEAR_PUBLIC_MODEL is not set; it names a folder with all-MiniLM-L6-v2"
    ),
    needs_data("SentEval/STS", "SentEval/SICK"),
]
# Muennighoff et al. 2022, "MTEB", table of all results: Spearman of cosines x 100.
MTEB = {"STS12": 72.37, "STS13": 80.60, "STS14": 75.59, "STS15": 85.39, "STS16": 78.99, "STS-B": 82.03}
MTEB |= {"SICK-R-MTEB": 77.58}


def test_similarity_tasks(tmp_path):
    command = [sys.executable, "-m", "finetune.sts", MODEL, "--tasks", ",".join(MTEB), "--out", tmp_path]
    subprocess.run([str(word) for word in command], check=True, cwd=Path(__file__).parents[3])
    (file,) = tmp_path.glob("sts-*.json")
    tasks = json.loads(file.read_text())["tasks"]
    assert {task: round(tasks[task]["value"], 2) for task in MTEB} == MTEB
