"""Help and a wrong flag are answered before anything slow is imported, by every command."""

import os
import subprocess
import sys

import pytest
from run_helpers import ROOT

SLOW = (
    "torch",
    "transformers",
    "datasets",
    "spacy",
    "scipy",
    "sklearn",
    "matplotlib",
    "deepspeed",
    "sentence_transformers",
)
COMMANDS = (
    "pretrain.main",
    "pretrain.prepare",
    "pretrain.prepare.cache",
    "pretrain.commands.inspect",
    "pretrain.commands.plan",
    "pretrain.commands.export",
    "pretrain.commands.sweep",
    "pretrain.commands.sweep plan",
    "pretrain.commands.adapt",
    "pretrain.commands.show",
    "augment",
    "pretrain.commands.convert",
    "finetune.sts",
    "finetune.zh_sts",
    "finetune.clustering",
    "finetune.intents",
    "finetune.anli",
    "finetune.nli_distance",
    "finetune.cola_probe",
    "finetune.senteval",
    "finetune.glue",
    "finetune.glue plan",
    "finetune.data check",
    "finetune.data fetch",
    "finetune.geometry",
    "finetune.figures",
    "finetune.report",
)
RUN = f"""
import atexit, runpy, sys

def report():
    print("imported:", *(name for name in {SLOW} if name in sys.modules))

atexit.register(report)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def answer(command: str, *words: str) -> subprocess.CompletedProcess:
    """Run a command with words; the last line says which slow libraries it has imported."""
    return subprocess.run(
        [sys.executable, "-c", RUN, *command.split(), *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.full
@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_nothing_slow_and_fits_80_columns(command):
    done = answer(command, "--help")
    assert done.returncode == 0, done.stderr
    *page, imported = done.stdout.splitlines()
    assert imported.split() == ["imported:"] and not done.stderr
    assert page[0].startswith("usage: ") and max(map(len, page)) <= 80


FEW = ("pretrain.main", "augment", "pretrain.commands.sweep plan", "finetune.glue")


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    [*FEW, *(pytest.param(one, marks=pytest.mark.slow) for one in COMMANDS if one not in FEW)],
)
def test_a_wrong_flag_imports_nothing_slow(command):
    done = answer(command, "--no-such-flag=1")
    assert done.returncode == 2 and "no-such-flag" in done.stderr, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["imported:"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("pretrain.commands.export", ()),
        ("finetune.search", ("a dog", "--text=README.md")),
        ("finetune.search finetune --beside", ("a dog", "--text=README.md")),
        ("finetune.sts", ()),
        ("finetune.glue", ()),
        ("finetune.geometry", ()),
        ("pretrain.commands.mine", ("--pairs=README.md", "--out=no")),
        ("pretrain.commands.adapt --init", ("--text=README.md", "--out=no")),
    ],
)
def test_a_missing_run_or_model_is_said_before_anything_slow_is_imported(command, words):
    done = answer(command, "no/such/run", *words)
    assert done.returncode == 2 and "there is no folder no/such/run; give " in done.stderr
    assert done.stdout.splitlines()[-1].split() == ["imported:"]


@pytest.mark.full
def test_a_command_says_first_that_it_loads_libraries(tmp_path):
    done = answer("pretrain.commands.export", str(tmp_path))
    first, *_, last = done.stderr.strip().splitlines()
    assert done.returncode == 2 and first.startswith("clearly export: loading torch ")
    assert last.startswith("error: ") and str(tmp_path) in last
