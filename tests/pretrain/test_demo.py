"""The demo with a small corpus and few steps: by its own commands, to the page that it ends with."""

import re
from pathlib import Path

import pytest
import yaml
from forked_python import run_python
from run_helpers import ROOT, environment, write_corpus

from pretrain.demo import RECIPE

SHORT = {
    "train": {"steps": 6, "global_batch": 16, "warmup_steps": 2},
    "evaluate": {"every": 3, "heldout_sequences": 20, "partners": 20},
    "checkpoint": {"every": 3},
}
CODE = """
import sys
from pathlib import Path
from pretrain import demo
source, recipe, run, data = sys.argv[1:]
demo.RECIPE = Path(recipe)
demo.main(source=source, run=run, data=data)
"""


@pytest.mark.slow
def test_it_ends_with_a_page_of_its_run(tmp_path):
    settings = yaml.safe_load(RECIPE.read_text())
    for section, values in SHORT.items():
        settings[section] |= values
    settings["data"]["prepare"]["heldout"] = 0.1
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings))
    corpus = write_corpus(tmp_path / "corpus.txt", documents=100)
    words = ["-c", CODE, *map(str, (corpus, tmp_path / "recipe.yaml", tmp_path / "run", tmp_path / "data"))]
    done = run_python(words, environment(), ROOT, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = re.search(r"^  page +(\S+)$", done.stdout, re.MULTILINE)
    page = Path(found[1])
    assert page == (tmp_path / "run" / "report" / "page.html").resolve()
    html = page.read_text("utf-8")
    assert "before training" in html and "after training" in html and html.count("<svg") >= 3
    assert html.count('class="query"') == 5
