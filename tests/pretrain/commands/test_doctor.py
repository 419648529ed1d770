"""`clearly doctor`: what it finds on this machine, and on ones where something is wrong."""

import importlib.metadata

import pytest
from forked_python import run_python
from rich.console import Console
from run_helpers import environment

from pretrain.commands import doctor
from pretrain.commands.doctor import Diagnosis, show


def levels(findings):
    return [finding.level for finding in findings]


@pytest.mark.full
def test_a_whole_examination_says_what_there_is_and_what_to_do():
    words = ["-m", "pretrain.commands.doctor"]
    run = run_python(words, environment())
    assert run.returncode == 0 and "nothing here will fail" in run.stdout, run.stdout + run.stderr
    for what in (
        "software",
        "CPython",
        "torch ",
        "machine",
        "cores",
    ):
        assert what in run.stdout, what
    run = run_python(words, environment() | {"CLEAR_PARSER": "/no/such/pipeline"})
    assert run.returncode == 1 and "WRONG" in run.stdout and "1 thing will fail" in run.stdout


def test_what_is_installed_is_compared_with_what_is_required(monkeypatch):
    here = importlib.metadata.version

    def version(name):
        if name == "deepspeed":
            raise importlib.metadata.PackageNotFoundError(name)
        return here(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["torch>=1", "numpy<1", "deepspeed>=0.1"])
    numpy, missing, own = doctor.packages()
    assert levels([own, numpy, missing]) == ["ok", "WRONG", "WRONG"]
    assert "1 packages as required; torch " in own.what
    assert "<1 is needed" in numpy.what and missing.todo == "pip install 'deepspeed>=0.1'"


def test_threads_that_are_given_away_are_noted(monkeypatch):
    monkeypatch.setattr(doctor, "usable_cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert any("OMP_NUM_THREADS is 2, of 8 cores" in finding.what for finding in doctor.processor())


def test_a_parser_that_is_not_there_is_wrong(monkeypatch):
    monkeypatch.setenv("CLEAR_PARSER", "/no/such/pipeline")
    (finding,) = doctor.parser()
    assert finding.level == "WRONG" and "/no/such/pipeline" in finding.what
    monkeypatch.delenv("CLEAR_PARSER")
    assert levels(doctor.parser()) == ["note"]


def test_what_to_do_stands_below_a_finding():
    console = Console(record=True, width=60, highlight=False)
    show(console, Diagnosis("note", "the disk is slow", "take another"))
    show(console, Diagnosis("ok", "all else"))
    assert console.export_text() == "  note   the disk is slow\n         -> take another\n  ok     all else\n"
