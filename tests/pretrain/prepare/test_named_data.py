"""Corpora by name: what a name stands for, read from the hub's cache as a download leaves it, and without."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import call
from huggingface_hub import constants
from run_helpers import ROOT, environment, write_corpus

from pretrain.common.errors import UserError
from pretrain.config.data import NAMED_DATA, DataConfig, Source
from pretrain.prepare.__main__ import data_flags, main
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.records import records

SNAPSHOT = "a" * 40


def in_cache(home: Path, file: str) -> Path:
    """Where the hub's cache in HF_HOME has a file of SimCSE's data set."""
    dataset = home / "hub" / "datasets--princeton-nlp--datasets-for-simcse"
    (dataset / "refs").mkdir(parents=True, exist_ok=True)
    (dataset / "refs" / "main").write_text(SNAPSHOT)
    (dataset / "snapshots" / SNAPSHOT).mkdir(parents=True, exist_ok=True)
    return dataset / "snapshots" / SNAPSHOT / file


@pytest.fixture
def offline(tmp_path, monkeypatch) -> Path:
    """The HF_HOME of an empty cache, without a network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "home"


def test_a_name_stands_for_its_source_and_settings(tmp_path, monkeypatch):
    for name, keys in NAMED_DATA.items():
        half, plain = DataConfig(sources=f"{name}@0.5, embedded").sources
        assert (half.weight, plain.source) == (0.5, "embedded")
        assert all(getattr(half, key) == value for key, value in keys.items())
    german = Source.model_validate({"source": "wikipedia", "subset": "20231101.de"})
    assert german.subset == "20231101.de"
    monkeypatch.chdir(tmp_path)
    Path("bookcorpus").mkdir()  # a place of that name is meant
    assert Source.model_validate("bookcorpus").source == "bookcorpus"


def test_triples_are_read_from_the_hubs_cache(offline):
    rows = [
        ("A man plays.", "Someone plays.", "Nobody plays."),
        ("It rains.", "There is rain.", "It is dry."),
    ]
    lines = ["sent0,sent1,hard_neg", *(",".join(row) for row in rows)]
    in_cache(offline, "nli_for_simcse.csv").write_text("\n".join(lines) + "\n")
    source = Source.model_validate("nli-for-simcse")
    found = [record.texts[:3] for task in plan_tasks([source], True) for record in records(task, source)]
    assert found == rows


@pytest.mark.full
def test_the_command_prepares_a_named_corpus_from_the_hubs_cache(tmp_path):
    write_corpus(in_cache(tmp_path / "home", "wiki1m_for_simcse.txt"), documents=200)
    words = [
        "--source",
        "simcse-wiki1m",
        "--unit",
        "record",
        "--vocabulary",
        "400",
        "--out",
        tmp_path / "out",
    ]
    variables = environment(HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1")
    command = [sys.executable, "-m", "pretrain.prepare", *words, "--progress", "false"]
    subprocess.run(command, env=os.environ | variables, cwd=ROOT, check=True, capture_output=True)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    (source,) = manifest["config"]["sources"]
    assert source["source"] == NAMED_DATA["simcse-wiki1m"]["source"] and source["layout"] == "lines"
    assert sum(part["sequences"] for part in manifest["splits"].values()) == 200


@pytest.mark.parametrize("name", ["simcse-wiki1m", "nli-for-simcse"])
def test_without_a_network_the_error_says_what_to_do(name, offline):
    page = "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse"
    with pytest.raises(UserError, match=rf"cannot be fetched.*download .*{page}\) and give its path"):
        plan_tasks([Source.model_validate(name)])


def test_a_misspelt_name_is_refused_with_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for typed, near in (("simcse-wiki", "simcse-wiki1m"), ("wikpedia", "wikipedia"), ("embeded", "embedded")):
        with pytest.raises(
            UserError, match=rf"source {typed}: no such file.*; did you mean {near}\? A Hugging"
        ):
            plan_tasks([Source.model_validate(typed)])
    (tmp_path / "data").mkdir()
    for typed in ("texts/mine.txt", "data/wikipedia", "wikipedia.txt", "bookcorpus.txt"):
        with pytest.raises(UserError, match=rf"source {typed}: no such file.* below .*\)\. A Hugging"):
            plan_tasks([Source.model_validate(typed)])


@pytest.mark.parametrize(("given", "said"), [({}, True), ({"source": "embedded"}, False)])
def test_who_names_no_source_is_told_what_is_prepared(tmp_path, monkeypatch, capsys, given, said):
    monkeypatch.setattr("pretrain.prepare.run.prepare", lambda *_, **__: {})
    monkeypatch.setattr("pretrain.prepare.__main__.summary", lambda *_: "")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    call(main, keys=data_flags(), out=tmp_path / "data", **given)
    assert ("no --source: this prepares 'embedded'" in capsys.readouterr().out) == said
