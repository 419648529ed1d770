"""The data folder: found, and checked against published sizes."""

import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from commands import call
from real_data import DATA, needs_data

from finetune.data import __main__ as data_command
from finetune.data.catalogue import CATALOGUE, check, choose, report
from finetune.data.fetch import HUB
from pretrain.benchmarks.files import csv_columns, data_root, find, lines, senteval_folder
from pretrain.benchmarks.sets import DataSet, Part
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


def counted(rows):
    def count(root):
        if rows is None:
            raise UserError("file, line 3: no number")
        return rows

    return count


@pytest.mark.parametrize(
    "files,rows,state,detail",
    [
        (("a", "b"), 7, "complete", ""),
        (("a",), 7, "incomplete", "test: b missing"),
        ((), 7, "missing", "train: a missing"),
        (("a", "b"), 5, "incomplete", "train: 5 rows, 7 as published"),
        (("a", "b"), None, "damaged", "line 3: no number"),
    ],
)
def test_states(tmp_path, files, rows, state, detail):
    for file in files:
        (tmp_path / file).write_text("")
    parts = {"train": Part(("a",), 7, counted(rows)), "test": Part(("b",), 7, counted(7))}
    found = check(DataSet("GROUP/set", parts, "somewhere"), tmp_path)
    assert found.state == state and detail in " ".join(found.details)
    printed = report(found, tmp_path, 12)
    assert ("get it: somewhere" in printed) == (state != "complete")
    assert printed.startswith(f"GROUP/set     {state}")


def test_sets_are_chosen_by_group_and_name():
    assert [one.name for one in choose("glue/rte, ATIS")] == ["GLUE/RTE", "intents/ATIS"]
    assert len(choose("clustering")) == 8 and choose("") == list(CATALOGUE)
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
            written = {file.path for files in HUB[one.name].splits.values() for file in files}
            assert written == {file for part in one.parts.values() for file in part.files}


@pytest.mark.parametrize(
    "name,file,rows,details",
    [
        (
            "GLUE/QQP",
            "dev.tsv",
            [
                "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
                '1\t1\t2\tIs it "so',
                "",
                "really?\tyes\t0",
                "2\t3\t4\ta\tb\t1",
                "3\t3\t4\ta\tb\t",
            ],
            "dev: 1 rows, 40,430 as published",
        ),
        (
            "GLUE/RTE",
            "dev.tsv",
            ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tperhaps"],
            "line 2: unknown label 'perhaps'",
        ),
        (
            "GLUE/AX",
            "diagnostic.tsv",
            ["index\tsentence1\tsentence2", "0\ta\tb"],
            "diagnostic: 1 rows, 1,104 as published",
        ),
        (
            "ANLI/R1",
            "dev.jsonl",
            ['{"context": "a", "hypothesis": "b", "label": "e"}', "{"],
            "dev.jsonl, line 2: no JSON",
        ),
        (
            "SentEval/SNLI",
            "s1.dev",
            ["one line, and no other files have it"],
            "labels.dev have 1, 2, 2 lines",
        ),
        ("intents/SNIPS", "valid/seq.in", ["play a song", ""], "2 lines in seq.in but 1 in label"),
        ("zh/STS-B", "cnsd-sts-dev.txt", ["1||一||二||3", "2||一||二"], "line 2: expected number"),
    ],
)
def test_rows_are_counted_by_the_reader(tmp_path, name, file, rows, details):
    """What it skips is not counted, what it refuses is damage."""
    folder = tmp_path / name.replace("GLUE/AX", "GLUE/diagnostic")
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text("\n".join(rows) + "\n", encoding="utf-8")
    for other, content in (
        ("SNLI/s2.dev", "a\nb\n"),
        ("SNLI/labels.dev", "neutral\nneutral\n"),
        ("SNIPS/valid/label", "Play\n"),
    ):
        if other.startswith(folder.name):
            (folder.parent / other).write_text(content)
    assert details in " ".join(check(choose(name)[0], tmp_path).details)


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
    (probing / "past_present.txt").write_text("tr\tPAST\ta b\nva\tPRES\tc d\nte\tPAST\te f\ntr\tPRES\tg\n")
    found = check(choose("Tense")[0], tmp_path)
    assert found.details == ("all: 4 rows, 120,000 as published",)


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
def test_real_sets_are_counted_as_published():
    names = "SentEval/STS13,SentEval/TREC,GLUE/CoLA,GLUE/RTE,GLUE/AX,googlenews_T,intents/ATIS,CLINC150,zh"
    statuses = {one.name: check(one, DATA) for one in choose(names)}
    assert {status.state for status in statuses.values()} == {"complete"}, statuses
