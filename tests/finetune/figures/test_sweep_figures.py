"""The figures of a sweep's table: what is drawn, from which rows, and what is left out."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from commands import call
from scipy import stats

from finetune.figures import __main__ as figures
from finetune.figures import tables
from finetune.figures.drawing import COLOURS, GREY, NotThere, histogram
from finetune.results import Evaluation, TaskResult
from pretrain.commands.sweep.file import Figure
from pretrain.common.errors import UserError


def figure(**keys):
    return Figure(**keys).model_dump()


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
    drawn = tables.lines(content(*LINES), figure(kind="lines", x="share"))
    first, second = drawn.axes
    assert (first.get_title(), second.get_title(), first.get_xlabel()) == ("A", "B", "share")
    points = {line.get_label(): line.get_xydata().tolist() for line in first.get_lines()}
    data = [line.get_xydata().tolist() for line in first.get_lines() if line.get_marker() == "."]
    assert data == [[[5, 1.0], [20, 3.0]], [[10, 5.0]]] and points["level"] == [[0, 2.5], [1, 2.5]]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["level", "first", "second"]
    with pytest.raises(NotThere, match="share"):
        tables.lines(content(LINES[3]), figure(kind="lines", x="share"))


def test_differences_stand_around_none_and_are_grey_where_their_interval_holds_it():
    found = {"A": {"mean": 1.0, "low": 0.5, "high": 1.5, "told": True}}
    unsure = {"A": {"mean": -0.2, "low": -1.0, "high": 0.6, "told": False}}
    rows = [row("better", {}, A=3.0), row("same", {}, A=2.0)]
    for one, columns in zip(rows, (found, unsure)):
        one["difference"] = {"columns": columns}
    drawn = tables.differences(content(*rows) | {"baseline": "base"}, figure(kind="differences"))
    (axis,) = drawn.axes
    bars = [line for line in axis.get_lines() if len(line.get_xdata()) == 2 and line.get_marker() == "None"]
    assert [list(line.get_xdata()) for line in bars[:2]] == [[0.5, 1.5], [-1.0, 0.6]]
    assert bars[0].get_color() != bars[1].get_color() == GREY
    assert [text.get_text() for text in axis.get_yticklabels()] == ["better", "same"]
    assert axis.get_xlabel() == "less base"
    with pytest.raises(NotThere):
        tables.differences(content(), figure(kind="differences", columns=["A"]))


def test_columns_may_go_to_the_right_with_a_line_a_row():
    rows = [row("a", {"line": "a"}, c5=0.9, c10=0.8), row("b", {"line": "b"}, c10=0.7)]
    asked = figure(kind="lines", x="words", panels={"del": {"10": "c10", "5": "c5"}, "none": {"5": "c6"}})
    drawn = tables.lines(content(*rows), asked)
    assert [line.get_xydata().tolist() for line in drawn.axes[0].get_lines()] == [
        [[5, 0.9], [10, 0.8]],
        [[10, 0.7]],
    ]


def test_dots_stand_at_their_names_and_are_open_where_nothing_can_be_told():
    rows = [
        row("x+", {"name": "x", "as": "positive"}, A=1.0),
        row("x-", {"name": "x", "as": "negative"}, told=False, A=2.0),
        row("y+", {"name": "y", "as": "positive"}, A=3.0),
    ]
    drawn = tables.dots(content(*rows, A="dev"), figure(kind="dots", by="name", split="as"))
    found = [
        (*line.get_xydata()[0].tolist(), line.get_markerfacecolor())
        for line in drawn.axes[0].get_lines()
        if line.get_marker() == "o" and len(line.get_xydata())
    ]
    assert found == [(1, 0, COLOURS[0]), (2, 0, "white"), (3, 1, COLOURS[0])]
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == ["x", "y"]


def test_correlations_are_over_what_rows_compare_and_apart_for_each_kind():
    values = np.random.default_rng(0).normal(size=(6, 3))
    rows = []
    for number, (positive, negative, similarity) in enumerate(values.tolist()):
        both = {"S": similarity}
        rows.append(row(f"p{number}", {"name": f"r{number}", "as": "positive"}, A=positive, **both))
        rows.append(row("n", {"name": f"r{number}", "as": "negative"}, A=negative, **both))
    asked = figure(kind="correlations", by="name", split="as")
    (axis,) = tables.correlations(content(*rows, A="dev", S="start.geometry.x"), asked).axes
    assert [one.get_text() for one in axis.get_xticklabels()] == ["positive: A", "S", "negative: A"]
    result = stats.pearsonr(values[:, 0], values[:, 2])
    drawn = axis.texts[1]  # of the first row, by the second column
    assert drawn.get_text() == f"{result.statistic:.2f}"
    assert (drawn.get_color() == GREY) == (result.pvalue >= 0.05)
    alone = content(*rows[::2], A="dev", S="sts.average")
    (axis,) = tables.correlations(alone, figure(kind="correlations")).axes
    assert [one.get_text() for one in axis.texts] == ["1.00", drawn.get_text(), drawn.get_text(), "1.00"]
    with pytest.raises(NotThere, match="three rows"):
        tables.correlations(content(*rows[:4], A="dev", S="start.geometry.x"), asked)


def test_the_command_draws_what_is_there_and_names_what_is_not(tmp_path, capsys):
    details = {key: histogram(np.random.default_rng(1).random(50)) for key in ("entailment", "ratio")}
    details["contradiction"] = details["entailment"]
    evaluation = Evaluation("geometry-nli", "m", "mean", None, "p")
    evaluation.tasks["nli"] = TaskResult("x", 1.0, {"x": 1.0}, details=details)
    (tmp_path / "geometry-nli-mean.json").write_text(json.dumps(asdict(evaluation)))
    there = content(*LINES)
    there["rows"][0]["runs"][0]["evaluations"] = str(tmp_path)
    there["figures"] = {
        "distances": figure(kind="nli"),
        "curves": figure(kind="lines", x="share", title="T"),
        "later": figure(kind="lines", x="nothing"),
    }
    (tmp_path / "results.json").write_text(json.dumps(there))
    call(figures.draw, str(tmp_path))
    said = capsys.readouterr().out
    assert "later is not drawn: no row with `at: {nothing}`" in said
    for name in ("distances", "curves"):
        assert (tmp_path / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert not (tmp_path / "figures" / "later.png").exists()
    with pytest.raises(UserError, match="is the table of a sweep"):
        call(figures.draw, str(tmp_path / "nowhere"))
