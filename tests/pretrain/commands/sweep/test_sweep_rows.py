"""`clearly sweep --rows` takes rows by name; names may hold commas."""

import pytest
from commands import call
from sweep_helpers import write_sweep

from pretrain.commands.sweep.__main__ import plan, rows_named
from pretrain.common.errors import UserError

NAMES = ["MLM", "MLM + del-span, reorder", "del-span, reorder", "lr 3e-5, steps 10", "lr 3e-5, steps 20"]


def test_rows_are_named_by_words_or_by_a_whole_name():
    assert rows_named("del-span, reorder", NAMES) == ["del-span, reorder"]
    assert rows_named("steps 20,mlm", NAMES) == ["MLM", "MLM + del-span, reorder", "lr 3e-5, steps 20"]
    assert rows_named("lr 3e-5", NAMES) == ["lr 3e-5, steps 10", "lr 3e-5, steps 20"]


def test_the_command_lists_the_rows_where_it_does_not_know_one(tmp_path, capsys):
    rows = {name: {"set": {"train.lr": 1e-5 * (1 + number)}} for number, name in enumerate(NAMES)}
    path = write_sweep(tmp_path, rows=rows)
    words = {"out": tmp_path / "runs"}
    assert call(plan, path, rows="steps 10, MLM + del-span", **words) == 0
    said = capsys.readouterr().out
    assert "lr 3e-5, steps 10" in said and "MLM + del-span, reorder" in said and "steps 20" not in said
    with pytest.raises(UserError) as error:
        call(plan, path, rows="MLM, no such row", **words)
    first, *known = str(error.value).splitlines()
    assert first == "--rows: no row's name holds 'no such row'; there are:"
    assert [row.strip() for row in known] == NAMES
