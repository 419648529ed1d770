"""`python -m pretrain.sweep --rows` takes rows by name; names may hold commas."""

from itertools import permutations

import pytest
from commands import call
from sweep_helpers import write_sweep

from pretrain.common.errors import UserError
from pretrain.sweep.__main__ import plan, rows_named

NAMES = ["MLM", "MLM + del-span, reorder", "del-span, reorder", "lr 3e-5, steps 10", "lr 3e-5, steps 20"]


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        ("mlm + del-span, reorder", ["MLM + del-span, reorder"]),
        ("MLM + del-span,reorder", ["MLM + del-span, reorder"]),
        ("del-span, reorder", ["del-span, reorder"]),  # all of a name, and a part of another
        ("steps 20,MLM", ["MLM", "MLM + del-span, reorder", "lr 3e-5, steps 20"]),
        ("lr 3e-5", ["lr 3e-5, steps 10", "lr 3e-5, steps 20"]),
        ("lr 3e-5,steps 10,del-span,reorder", ["del-span, reorder", "lr 3e-5, steps 10"]),
    ],
)
def test_names_with_commas_are_taken(typed, taken):
    assert rows_named(typed.split(","), NAMES) == taken


def test_names_typed_one_after_the_other_are_taken_all():
    for count in (1, 2, 3):
        for chosen in permutations(NAMES, count):
            assert set(chosen) <= set(rows_named(",".join(chosen).split(","), NAMES)), chosen


def test_the_command_lists_the_rows_where_it_does_not_know_one(tmp_path, capsys):
    rows = {name: {"set": {"train.lr": 1e-5 * (1 + number)}} for number, name in enumerate(NAMES)}
    path = write_sweep(tmp_path, rows=rows)
    words = {"out": tmp_path / "runs"}
    assert call(plan, path, rows="steps 10, MLM + del-span, reorder", **words) == 0
    said = capsys.readouterr().out
    assert "lr 3e-5, steps 10" in said and "MLM + del-span, reorder" in said and "steps 20" not in said
    with pytest.raises(UserError) as error:
        call(plan, path, rows="MLM, no such row", **words)
    first, *known = str(error.value).splitlines()
    assert first == "--rows: no row's name holds 'no such row'; there are:"
    assert [row.strip() for row in known] == NAMES
