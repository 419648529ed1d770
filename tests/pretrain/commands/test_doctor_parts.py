"""`clearly doctor`: each thing that it can find, on machines that are made up."""

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from augment.core.errors import AugmentationError
from pretrain.commands import doctor
from pretrain.commands.doctor import Diagnosis


def found(diagnoses):
    return [(one.level, bool(one.todo)) for one in diagnoses]


@pytest.mark.parametrize(
    ("wrong", "verdict"), [(0, "nothing here will fail"), (1, "1 thing will fail"), (2, "2 things will fail")]
)
def test_the_status_is_of_what_will_fail(wrong, verdict, monkeypatch, capsys):
    def examine():
        yield Diagnosis("note", "slow")
        yield from [Diagnosis("WRONG", "broken", "mend it")] * wrong

    for name in ("packages", "compiled", "parser", "processor"):
        monkeypatch.setattr(doctor, name, lambda name=name: iter([Diagnosis("ok", name)]))
    monkeypatch.setattr(doctor, "devices", examine)
    chosen = []
    monkeypatch.setattr(doctor, "choose_accelerator", lambda: chosen.append(1))  # or DeepSpeed would warn
    assert doctor.doctor() == (1 if wrong else 0)
    lines = capsys.readouterr().out.splitlines()
    assert chosen == [1]
    words = [line.split() for line in lines if line.strip() and "->" not in line]
    assert words[:6] == [
        ["software"],
        ["ok", "packages"],
        ["ok", "compiled"],
        ["ok", "parser"],
        ["machine"],
        ["ok", "processor"],
    ]
    assert lines[-1] == verdict and sum("mend it" in line for line in lines) == wrong


def test_a_checkout_that_is_not_installed_is_noted(monkeypatch):
    def requires(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", requires)
    (finding,) = doctor.packages()
    assert (
        finding.level == "note"
        and "runs from its folder" in finding.what
        and "pip install -e" in finding.todo
    )
    monkeypatch.setattr("importlib.metadata.requires", lambda name: None)
    (finding,) = doctor.packages()
    assert finding.level == "ok" and "0 packages as required" in finding.what


def test_requirements_of_extras_and_other_systems_do_not_count(monkeypatch):
    lines = [
        "torch>=1",
        "numpy>=1; extra == 'track'",
        "absent>=1; sys_platform == 'win32'",
        "numpy>=1; python_version > '3'",
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lines)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.0rc1")  # a pre-release will do
    (finding,) = doctor.packages()
    assert finding.level == "ok" and "2 packages as required; torch 9.0rc1" in finding.what


@pytest.mark.parametrize(("instructions", "level"), [(None, "note"), ("avx2", "ok")])
def test_compiled_layers_are_there_or_not(instructions, level, monkeypatch):
    monkeypatch.setattr("pretrain.model.kernels.native.available", lambda: instructions)
    (finding,) = doctor.compiled()
    assert finding.level == level and (
        "they use avx2 here" in finding.what or "C++17 compiler" in finding.todo
    )


@pytest.mark.parametrize("error", [None, AugmentationError("odd"), OSError("odd"), ValueError("odd")])
def test_a_parser_is_tried_on_a_sentence(error, monkeypatch):
    def parse(texts, parser):
        assert (texts, parser) == (["The dog barks."], "found")
        if error:
            raise error
        yield SimpleNamespace(words=["The", "dog", "barks", "."])

    monkeypatch.setenv("CLEAR_PARSER", "own")
    monkeypatch.setattr("augment.text.parsing.find_parser", lambda: "found")
    monkeypatch.setattr("augment.text.parsing.parse_texts", parse)
    (finding,) = doctor.parser()
    assert finding.level == ("WRONG" if error else "ok")
    assert ("own does not work: odd" if error else "parser own: 4 words of a sentence") in finding.what


@pytest.mark.parametrize(
    ("cores", "threads", "load", "levels"),
    [
        (8, None, 4.0, ["ok"]),
        (8, 8, 4.1, ["ok", "note"]),
        (8, 7, 0.0, ["ok", "note"]),
        (2, 1, 1.5, ["ok", "note", "note"]),
    ],
)
def test_given_away_threads_and_other_work_are_noted(cores, threads, load, levels, monkeypatch):
    info = "model name\t: Abacus 9\nflags\t\t: fpu avx2 avx512_bf16 sse\n"
    monkeypatch.setattr(doctor, "Path", lambda name: SimpleNamespace(read_text=lambda: info))
    monkeypatch.setattr(doctor, "usable_cores", lambda: cores)
    monkeypatch.setattr(doctor, "threads_of_user", lambda: threads)
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (load, 9.0, 9.0))
    monkeypatch.setattr(doctor.os, "sysconf", {"SC_PHYS_PAGES": 3 * 2**19, "SC_PAGE_SIZE": 4096}.__getitem__)
    first, *notes = doctor.processor()
    assert first.what == f"Abacus 9, {cores} cores (avx2, avx512_bf16), 6 GiB"
    assert [one.level for one in (first, *notes)] == levels
    assert all(
        f"a load of {load:.1f} on" in one.what or f"is {threads}, of {cores}" in one.what for one in notes
    )


def test_a_processor_without_avx2_says_so(monkeypatch):
    monkeypatch.setattr(doctor, "Path", lambda name: SimpleNamespace(read_text=lambda: "flags: sse\n"))
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    first, *_ = doctor.processor()
    assert first.what.startswith("unknown processor, ") and "(no AVX2)" in first.what


@pytest.mark.parametrize(
    ("cuda", "driver", "free", "levels"),
    [
        (None, False, [], [("ok", False)]),
        (None, True, [], [("note", True)]),
        ("12.8", False, [], [("note", False)]),
        ("12.8", True, [], [("WRONG", True)]),
        ("12.8", True, [0.9, 0.89], [("ok", False), ("note", True)]),
    ],
)
def test_gpus_are_found_or_the_reason(cuda, driver, free, levels, monkeypatch):
    total = 80 * 2**30
    monkeypatch.setattr(Path, "exists", lambda path: driver)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(free))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda n: SimpleNamespace(name="H", total_memory=total)
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda n: (free[n] * total, total))
    diagnoses = list(doctor.devices())
    assert found(diagnoses) == levels
    if free:
        assert [one.what for one in diagnoses] == ["GPU 0: H, 80 GiB, 90% free", "GPU 1: H, 80 GiB, 89% free"]
