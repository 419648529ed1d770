"""The suite on any machine: what is missing is skipped and said at the end, and no variable of a user's
decides a test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GIVEN = {
    "CLEAR_MASKED_LM": "bert",
    "SLURM_JOB_ID": "7",
    "RANK": "3",
    "CLEAR_DATA": "there",
    "SLURM_CONF": "slurm.conf",
}
KEPT = GIVEN | dict.fromkeys(("CLEAR_MASKED_LM", "SLURM_JOB_ID", "RANK"))


@pytest.mark.full
def test_the_last_lines_say_what_was_skipped_and_what_is_missing(tmp_path):
    for name in ("conftest.py", "browser.py", "small_wordnet.py"):
        (tmp_path / name).write_text((ROOT / "tests" / name).read_text())
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('number', range(3))\n"
        "def test_data(number): pytest.skip('CLEAR_DATA is not set')\n"
        "@pytest.mark.skipif(True, reason='no parser')\n"
        "def test_parser(): pass\n"
        "def test_whole(whole_wordnet): assert False\n"
        "def test_small(small_wordnet): assert (small_wordnet / 'index.noun').is_file()\n"
        "def test_environment():\n"
        "    import os\n"
        "    assert {name: os.environ.get(name) for name in "
        + repr(list(GIVEN))
        + "} == "
        + repr(KEPT)
        + "\n"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment |= GIVEN | {"CLEAR_WORDNET": str(tmp_path / "nowhere")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert run.returncode == 0, run.stdout
    lines = [
        line.strip()
        for line in run.stdout.split("skipped, because something is missing")[1].splitlines()[1:4]
    ]
    assert lines[0] == "3  CLEAR_DATA is not set"
    assert set(lines[1:]) == {"1  no parser", "1  CLEAR_WORDNET names no WordNet"}
