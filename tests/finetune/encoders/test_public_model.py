"""all-MiniLM-L6-v2, whose folder CLEAR_PUBLIC_MODEL names, has the scores that MTEB publishes for it."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from real_data import DATA, needs_data
from scipy.stats import spearmanr

from finetune.encoders.models import open_model
from finetune.sts.scores import cosines

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
MTEB_SICK = 77.58  # of all 9,927 pairs; SentEval and the papers here have the 4,927 of its test set


def test_similarity_tasks(tmp_path):
    file = tmp_path / "scores.json"
    command = [sys.executable, "-m", "finetune.sts", MODEL, "--tasks", ",".join(MTEB), "--json_file", file]
    subprocess.run([str(word) for word in command], check=True, cwd=Path(__file__).parents[3])
    (scores,) = json.loads(file.read_text())["results"].values()
    assert {task: round(scores[task]["spearman_all"], 2) for task in MTEB} == MTEB


def test_sick_relatedness():
    rows = []
    for part in ("train", "trial", "test_annotated"):
        with open(Path(DATA, "SentEval", "SICK", f"SICK_{part}.txt"), encoding="utf-8") as file:
            rows += list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    assert len(rows) == 9927
    sentences = sorted({sentence for row in rows for sentence in row[1:3]})
    place = {sentence: number for number, sentence in enumerate(sentences)}
    vectors = open_model(MODEL).encode(sentences)
    first, second = (np.array([place[row[column]] for row in rows]) for column in (1, 2))
    gold = [float(row[3]) for row in rows]
    assert round(100 * spearmanr(cosines(vectors, first, second), gold).statistic, 2) == MTEB_SICK
