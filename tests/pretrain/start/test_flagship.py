"""The sentence loss learns at the flagship's depth with its recipe; the paper's letter stays at chance."""

import gzip
import json
import math
import subprocess
import sys

import pytest
from real_data import DATA, needs_data
from run_helpers import ROOT, environment

CHANCE = math.log(2 * 32 - 1)
LETTER = (
    "--model.pooling cls --objective.view_dropout true --augment.excerpt none "
    "--objective.contrastive.weight 1 --objective.contrastive.temperature 0.1 "
    "--objective.contrastive.projection_layers 2"
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flagship")
    with gzip.open(DATA / "text/enwiki.txt.gz", "rt", encoding="utf-8") as source:
        (folder / "text.txt").write_text(source.read(8_000_000), encoding="utf-8")
    words = ["-m", "pretrain.prepare", "--config", "clear_proxy", "--source", str(folder / "text.txt")]
    words += ["--out", str(folder / "data")]
    subprocess.run([sys.executable, *words], cwd=ROOT, env=environment(), check=True)
    return folder / "data"


def losses(data, run, steps: int, flags: str) -> list[float]:
    """Train the proxy; return the contrastive loss of each logged step."""
    words = ["--config", "clear_proxy", "--data", str(data), "--run", str(run), "--train.steps", str(steps)]
    words += ["--evaluate.every", "0", "--checkpoint.every", "0", *flags.split()]
    subprocess.run([sys.executable, "pretrain/main.py", *words], cwd=ROOT, env=environment(), check=True)
    rows = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    return [row["loss"]["contrastive"] for row in rows if "loss" in row]


@pytest.mark.slow
@needs_data("text/enwiki.txt.gz")
def test_the_recipe_leaves_chance_at_twelve_layers_and_the_letter_does_not(packed, tmp_path):
    recipe = losses(packed, tmp_path / "recipe", 160, "")
    assert sum(recipe[-3:]) / 3 < CHANCE - 0.15
    letter = losses(packed, tmp_path / "letter", 40, LETTER)
    assert letter[-1] == pytest.approx(CHANCE, abs=0.03)
