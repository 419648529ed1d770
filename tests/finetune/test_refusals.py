"""What evaluations refuse to read, and what reports say of results."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from finetune.compare import _subjects
from finetune.geometry.run import read_inputs
from finetune.intents.sets import read, read_csv, read_lines
from finetune.nli_distance import read_triplets
from finetune.report.figures import geometry_rows
from finetune.report.sources import collect
from finetune.report.tables import Block, Cell, Table, TableRow, add_evaluation_notes
from finetune.results import Evaluation
from finetune.texts import read_split
from pretrain.benchmarks import sts_tasks
from pretrain.benchmarks.files import read_sentences
from pretrain.common.errors import UserError


def evaluation(name="sts", tasks=(("STS-B", 1.0),), **settings):
    made = Evaluation(name, "m", "mean", None, "p", source="w")
    for task, value in tasks:
        made.add(task, "x", {"x": value})
    return replace(made, **settings)


def test_damaged_sets_of_intents_are_refused(tmp_path):
    folder = tmp_path / "intents" / "BANKING77"
    folder.mkdir(parents=True)
    head = "text,category\n"
    for train, test, said in (
        ("a,x\nb,x\n", "a,x\n", "1 classes and 1 test"),
        ("a,x\nb,y\n", "", "2 classes and 0 test"),
        ("a,x\n ,y\n", "a,x\n", "example 2: no text"),
        ("a,x\nb,\n", "a,x\n", "example 2: no label"),
    ):
        (folder / "train.csv").write_text(head + train)
        (folder / "test.csv").write_text(head + test)
        with pytest.raises(UserError, match=said):
            read("BANKING77", tmp_path)
    (folder / "train.csv").write_text(head + "a,y\n b ,x\n")
    (folder / "test.csv").write_text(head + "c,x\nd,other\n")
    found = read("BANKING77", tmp_path)
    assert (found.classes, found.texts, found.test_texts) == (["x", "y"], ["a", "b"], ["c", "d"])
    assert found.labels.tolist() == [1, 0] and found.test_labels.tolist() == [0, -1]
    assert read_csv(folder / "test.csv") == [("c", "x"), ("d", "other")]
    (folder / "seq.in").write_text("a\nb\n")
    with pytest.raises(UserError, match="label is not there"):
        read_lines(folder)
    (folder / "label").write_text("x\n")
    with pytest.raises(UserError, match=r"2 lines in seq\.in but 1 in label"):
        read_lines(folder)


def test_files_without_anything_to_read_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("sent0,sent1,hard_neg\n")
    with pytest.raises(UserError, match="has no rows"):
        read_triplets(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("sent0,sent1,hard_neg\na,b,c\na,,c\n")
    with pytest.raises(UserError, match="row 2 lacks a sentence"):
        read_triplets(tmp_path / "t.csv")
    (tmp_path / "none.txt").write_text("\n \n")
    with pytest.raises(UserError, match=r"--text .*none.txt"):
        read_split(str(tmp_path / "none.txt"))
    lines = [f"sentence {n}" for n in range(10)]
    (tmp_path / "few.txt").write_text("\n".join([*lines[:9], lines[0], ""]))
    with pytest.raises(UserError, match=r"--text .*few.txt: 9 different sentences"):
        read_sentences(tmp_path / "few.txt", "text")
    (tmp_path / "few.txt").write_text("\n".join([*lines, lines[3]]))
    assert read_sentences(tmp_path / "few.txt", "text") == lines
    with pytest.raises(UserError, match="no pair has a score"):
        sts_tasks._pairs("STS", tmp_path / "x", [("a", "b", " "), ("c", "d", "")])
    with pytest.raises(UserError, match="pair 2: the score 'nan' is not a number"):
        sts_tasks._pairs("STS", tmp_path / "x", [("a", "b", "1"), ("c", "d", "nan")])
    found = sts_tasks._pairs("STS", tmp_path / "x", [("a  x", " b", "1.5"), ("c", "d", "")])
    assert (found.first, found.second, found.gold.tolist()) == (["a x"], ["b"], [1.5])


def test_geometry_needs_the_data_of_one_measure(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("CLEAR_DATA", raising=False)
    options = SimpleNamespace(eval_data=str(tmp_path), text="", nli_sample=1)
    with pytest.raises(UserError, match="nothing to measure: without sts: "):
        read_inputs(options, ["sts"], required=False)
    assert "note: without sts" in capsys.readouterr().err
    with pytest.raises(UserError) as raised:
        read_inputs(options, ["sts"], required=True)
    assert "nothing to measure" not in str(raised.value)


def test_of_folders_with_several_runs_one_is_named_and_an_export_is_its_runs(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name / "export").mkdir(parents=True)
        (tmp_path / name / "config.yaml").write_text("{}\n")
        (tmp_path / name / "export" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="holds 2 runs or models; name those"):
        _subjects((str(tmp_path), str(tmp_path / "a")))
    assert [one.path.name for one in collect([str(tmp_path / "b" / "export"), str(tmp_path)])] == ["b", "a"]
    with pytest.raises(UserError, match="no such folder"):
        collect([str(tmp_path / "nothing")])
    (tmp_path / "c").mkdir()
    with pytest.raises(UserError, match=r"c: no run \(config.yaml\) and no results"):
        collect([str(tmp_path / "c")])


def test_notes_of_evaluations_name_their_rows_unless_all_have_them(monkeypatch):
    from finetune.report import tables

    rows = [SimpleNamespace(label=label) for label in ("one", "other")]
    of_rows = {
        "one": [evaluation(notes=["all", "its own"]), evaluation("glue", notes=["not of this table"])],
        "other": [evaluation(notes=["all"]), evaluation(notes=["of nothing"], tasks=())],
    }
    monkeypatch.setattr(tables, "evaluations_of", lambda row: of_rows[row.label])
    ours = [TableRow(row.label, [Cell(1.0, None, 0, 2)]) for row in rows]
    table = Table("key", "title", "protocol", ["STS-B"], [Block("ours", ours)])
    add_evaluation_notes(table, rows, {"sts"})
    assert table.notes == ["all", "one: its own"]


def test_geometry_of_several_files_is_one_the_first_before_the_others(monkeypatch):
    from finetune.report import figures

    first = evaluation("geometry", [("sts", 1.0)])
    other = evaluation("geometry-mine", [("sts", 2.0), ("nli", 3.0)])
    rows = [SimpleNamespace(label="a"), SimpleNamespace(label="b")]
    of_rows = {"a": [evaluation(), first, other], "b": [evaluation()]}
    monkeypatch.setattr(figures, "evaluations_of", lambda row: of_rows[row.label])
    ((label, found),) = geometry_rows(rows)
    assert label == "a" and found.evaluation == "geometry"
    assert {task: result.value for task, result in found.tasks.items()} == {"sts": 1.0, "nli": 3.0}
