"""The data folder: found, and what it lacks."""

import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from commands import call
from real_data import DATA, needs_data

from finetune import data as data_command
from finetune.data import CATALOGUE, HUB, choose, report, state_of
from pretrain.benchmarks.files import BenchmarkSet, csv_columns, data_root, find, lines, senteval_folder
from pretrain.common.errors import UserError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.delenv("CLEAR_DATA", raising=False)
    datasets.disable_progress_bars()


def test_data_root_and_find(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="give --eval-data DIR, or set CLEAR_DATA"):
        data_root()
    with pytest.raises(UserError, match="is not there; --eval-data or CLEAR_DATA"):
        data_root(tmp_path / "none")
    monkeypatch.setenv("CLEAR_DATA", str(tmp_path))
    assert data_root() == tmp_path
    with pytest.raises(UserError, match=f"clearly benchmarks check {tmp_path}"):
        find(None, "GLUE", "RTE")


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("one\u2028still\fone\r\ntwo".encode())
    assert list(lines(path)) == ["one\u2028still\fone", "two"]
    for encoding in ("utf-8", "latin-1"):
        path.write_bytes(b"\xef\xbb\xbf" + "caf\xe9\n".encode(encoding))
        assert list(lines(path, encoding)) == ["caf\xe9"]
    path.write_bytes(b"good\n\xff\n")
    with pytest.raises(UserError, match="not utf-8 text"):
        list(lines(path))


def test_csv_as_spreadsheets_save_it(tmp_path):
    path, text = tmp_path / "a.csv", "word " * 40000
    path.write_bytes(f"\ufefftext,label\r\n{text},a\r\n".encode())
    assert csv_columns(path, "label", "text") == [("a", text)]
    path.write_text("text,label,text\na,b,c\n")
    with pytest.raises(UserError, match="names text twice; rename the other column"):
        csv_columns(path, "text", "label")
    assert csv_columns(path, "label", "label") == [("b", "b")]


# -- check
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "files,state,detail",
    [
        (("a", "b"), "complete", ""),
        (("a",), "incomplete", "b missing"),
        ((), "missing", "a and 1 more missing"),
    ],
)
def test_states(tmp_path, files, state, detail):
    for file in files:
        (tmp_path / file).write_text("")
    printed = report(BenchmarkSet("GROUP/set", {}, ("a", "b"), "somewhere"), tmp_path, 12)
    assert detail in printed and ("get it: somewhere" in printed) == (state != "complete")
    assert printed.startswith(f"GROUP/set     {state}")


def test_sets_are_chosen_by_group_and_name():
    assert [one.name for one in choose("glue/rte, SNIPS")] == ["GLUE/RTE", "intents/SNIPS"]
    assert len(choose("clustering")) == 6 and choose("") == list(CATALOGUE)
    with pytest.raises(UserError, match=r"unknown set 'MRPC'.*SentEval/MRPC,.*GLUE/MRPC"):
        choose("MRPC")
    with pytest.raises(UserError, match="did you mean 'intents/SNIPS'"):
        choose("snips7")


def test_catalogue_covers_every_group_and_only_known_sets_are_fetchable():
    groups = "SentEval probing GLUE clustering intents ANLI NLI zh"
    assert {one.group for one in CATALOGUE} == set(groups.split())
    names = [one.name for one in CATALOGUE]
    assert len(set(names)) == len(names) and set(HUB) <= set(names)
    for one in CATALOGUE:  # what fetch writes is what check looks for
        if one.name in HUB:
            assert {file.path for file in HUB[one.name].splits.values()} == set(one.files)


@pytest.mark.parametrize(
    "place", ["SentEval/SNLI", "SentEval/downstream/CR", "downstream/MPQA", "MRPC", "SentEval/probing"]
)
def test_senteval_is_found_by_any_of_its_sets(tmp_path, place):
    (tmp_path / place).mkdir(parents=True)
    assert senteval_folder(tmp_path) == (tmp_path / place).parent


def test_senteval_in_its_own_layout(tmp_path):
    probing = tmp_path / "SentEval" / "probing"
    probing.mkdir(parents=True)
    (tmp_path / "SentEval" / "downstream" / "MR").mkdir(parents=True)
    (probing / "past_present.txt").touch()
    assert state_of(choose("Tense")[0], tmp_path) == ("complete", [])


def test_check_command(tmp_path, capsys):
    assert call(data_command.check, str(tmp_path), sets="zh") == 1
    printed = capsys.readouterr().out
    assert "zh/STS-B  missing" in printed and f"fetch zh/STS-B {tmp_path}" in printed
    for command, words in ((data_command.fetch, ["x"]), (data_command.check, ["a", "b"])):
        with pytest.raises(UserError):
            call(command, *words)


def test_help_and_mistakes_on_the_command_line(tmp_path):
    def called(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "finetune.data", *arguments],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[3],
        )

    shown = called("--help")
    assert shown.returncode == 0 and "fetch  Get a set" in shown.stdout
    wrong = called("check", str(tmp_path), "--set", "zh")
    assert wrong.returncode == 2 and "did you mean --sets" in wrong.stderr and "Traceback" not in wrong.stderr


@needs_data("SentEval", "GLUE", "clustering", "intents", "zh")
def test_real_sets_are_found():
    names = "SentEval/STS13,SentEval/TREC,GLUE/CoLA,GLUE/RTE,GLUE/AX,googlenews_TS,intents/SNIPS,CLINC150,zh"
    statuses = {one.name: state_of(one, DATA) for one in choose(names)}
    assert {state for state, _ in statuses.values()} == {"complete"}, statuses
