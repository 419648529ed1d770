"""The figures of a sweep's table: what is drawn, from which rows, and what is left out."""

import json

import pytest
from commands import call

from finetune.figures import __main__ as figures
from finetune.figures.drawing import GREY
from pretrain.commands.sweep.file import FigureSpec
from pretrain.common.errors import UserError


def figure(**keys):
    return FigureSpec(**keys).model_dump()


def row(name, at, told=True, **mean):
    difference = {"columns": {title: {"told": told} for title in mean}}
    runs = [{"figures": mean, "model": name, "pooling": "mean", "evaluations": "nowhere"}]
    return {"name": name, "at": at, "mean": mean, "std": {}, "runs": runs, "difference": difference}


def content(*rows, **columns):
    columns = columns or {"A": "dev", "B": "sts.average"}
    return {
        "rows": [*rows, {"name": "quoted", "at": {}, "runs": []}],
        "columns": columns,
        "own_columns": list(columns),
    }


LINES = [
    row("one", {"line": "first", "share": 20}, A=3.0, B=1.0),
    row("two", {"line": "first", "share": 5}, A=1.0, B=2.0),
    row("three", {"line": "second", "share": 10}, A=5.0),
    row("level", {"line": "level"}, A=2.5, B=0.5),
    row("other", {"line": "first", "margin": 1}, A=9.0),
]


def test_lines_go_through_their_rows_from_left_to_right():
    drawn = figures.lines(content(*LINES), figure(kind="lines", x="share"))
    first, second = drawn.axes
    assert (first.get_title(), second.get_title(), first.get_xlabel()) == ("A", "B", "share")
    points = {line.get_label(): line.get_xydata().tolist() for line in first.get_lines()}
    data = [line.get_xydata().tolist() for line in first.get_lines() if line.get_marker() == "."]
    assert data == [[[5, 1.0], [20, 3.0]], [[10, 5.0]]] and points["level"] == [[0, 2.5], [1, 2.5]]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["level", "first", "second"]
    with pytest.raises(figures.NotThere, match="share"):
        figures.lines(content(LINES[3]), figure(kind="lines", x="share"))


def test_a_line_may_be_at_numbers_and_another_at_texts():
    rows = [row(name, {"line": "texts", "share": name}, A=value) for name, value in (("b", 2.0), ("a", 1.0))]
    drawn = figures.lines(content(*LINES[:2], *rows, A="dev"), figure(kind="lines", x="share"))
    found = [list(line.get_ydata()) for line in drawn.axes[0].get_lines() if line.get_marker() == "."]
    assert found == [[1.0, 3.0], [1.0, 2.0]]


def test_differences_stand_around_none_and_are_grey_where_their_interval_holds_it():
    found = {"A": {"mean": 1.0, "low": 0.5, "high": 1.5, "told": True}}
    unsure = {"A": {"mean": -0.2, "low": -1.0, "high": 0.6, "told": False}}
    rows = [row("better", {}, A=3.0), row("same", {}, A=2.0)]
    for one, columns in zip(rows, (found, unsure)):
        one["difference"] = {"columns": columns}
    drawn = figures.differences(content(*rows) | {"baseline": "base"}, figure(kind="differences"))
    (axis,) = drawn.axes
    bars = [line for line in axis.get_lines() if len(line.get_xdata()) == 2 and line.get_marker() == "None"]
    assert [list(line.get_xdata()) for line in bars[:2]] == [[0.5, 1.5], [-1.0, 0.6]]
    assert bars[0].get_color() != bars[1].get_color() == GREY
    assert [text.get_text() for text in axis.get_yticklabels()] == ["better", "same"]
    assert axis.get_xlabel() == "less base"
    with pytest.raises(figures.NotThere):
        figures.differences(content(), figure(kind="differences", columns=["A"]))


def test_columns_may_go_to_the_right_with_a_line_a_row():
    rows = [row("a", {"line": "a"}, c5=0.9, c10=0.8), row("b", {"line": "b"}, c10=0.7)]
    asked = figure(kind="lines", x="words", panels={"del": {"10": "c10", "5": "c5"}, "none": {"5": "c6"}})
    drawn = figures.lines(content(*rows), asked)
    assert [line.get_xydata().tolist() for line in drawn.axes[0].get_lines()] == [
        [[5, 0.9], [10, 0.8]],
        [[10, 0.7]],
    ]


def test_the_command_draws_what_is_there_and_names_what_is_not(tmp_path, capsys):
    there = content(*LINES)
    there["figures"] = {
        "old": figure(kind="lines") | {"kind": "dots"},
        "curves": figure(kind="lines", x="share", title="T"),
        "later": figure(kind="lines", x="nothing"),
    }
    (tmp_path / "results.json").write_text(json.dumps(there))
    call(figures.draw, str(tmp_path))
    said = capsys.readouterr().out
    assert "later is not drawn: no row with `at: {nothing}`" in said
    assert "old is not drawn: there is no kind 'dots' any more" in said
    assert (tmp_path / "figures" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert not (tmp_path / "figures" / "later.png").exists()
    with pytest.raises(UserError, match="is the table of a sweep"):
        call(figures.draw, str(tmp_path / "nowhere"))
