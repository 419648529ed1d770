"""What a sweep file asks for: mistakes in it, overrides, grids, searches."""

from pathlib import Path

import pytest
from sweep_helpers import ROOT, entries_of, write_sweep

from pretrain.commands.sweep.file import expand, read_sweep
from pretrain.common.errors import UserError


@pytest.mark.parametrize(
    "tree,words",
    [
        ({"rows": {}}, ["rows", "none"]),
        ({"rows": {"one": {"sett": {}}}}, ["rows.one.sett"]),
        ({"seeds": [1, 1]}, ["seeds"]),
        ({"recipe": None}, ["one", "recipe"]),
        ({"columns": {"gain": ["dev", "dev.gain"]}}, ["dev.gain is gone", "write start.dev"]),
        ({"select": "dev.change"}, ["dev.change is gone", "dev.last"]),
        (
            {"columns": {"STS-B": "sts.STS-B"}, "rows": {"one": {"paper": {"STS-b": 1.0}}}},
            ["one", "STS-b", "did you mean 'STS-B'"],
        ),
        ({"recipe": "simcse_mikro.yaml"}, ["no recipe", "simcse_mikro.yaml"]),
        ({"rows": {"one": {"set": {"train.lrr": 1}}}}, ["row 'one'", "did you mean --train.lr?"]),
        (
            {"rows": {"one": {"set": {"augment.positive": "tomorrow"}}}},
            ["row 'one'", "no augmentation 'tomorrow'"],
        ),
        (
            {"rows": {"one": {"set": {"objective.vascl.neighbours": 7}}}},
            ["row 'one'", "in force is simcse", "vascl"],
        ),
        (
            {
                "set": {"checkpoint.resume": "auto"},
                "rows": {"one": {"set": {"objective.simcse.temperature": -1}}},
            },
            ["temperature"],
        ),
    ],
)
def test_a_mistake_is_one_message_that_says_what_and_where(tmp_path, tree, words):
    with pytest.raises(UserError) as caught:
        entries_of(tmp_path, **tree)
    for word in words:
        assert word in str(caught.value)


def test_a_recipe_in_place_of_a_sweep_is_answered_by_its_flag():
    with pytest.raises(UserError, match=r"clear_micro\.yaml is no sweep.*: --config \S+clear_micro\.yaml$"):
        read_sweep(ROOT / "configs" / "clear_micro.yaml")


def test_a_recipe_may_be_named_as_elsewhere_and_the_title_is_the_files_name(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "recipe: clear_micro\nrows: {a: {recipe: configs/simcse_micro.yaml}, b: {}}"
    )
    sweep = read_sweep(tmp_path / "mine.yaml")
    recipes = [entry.points[0].recipe.name for entry in expand(sweep, tmp_path, {})]
    assert sweep.title == "mine" and recipes == ["simcse_micro.yaml", "clear_micro.yaml"]
    with pytest.raises(UserError, match="no recipe clear_mirco; did you mean clear_micro"):
        expand(sweep.model_copy(update={"recipe": Path("clear_mirco")}), tmp_path, {})


def test_the_command_line_wins_and_relative_values_multiply_what_it_says(tmp_path):
    rows = {"double": {"set": {"train.global_batch": {"times": 2}}}, "own rate": {"set": {"train.lr": 7e-6}}}
    path = write_sweep(tmp_path, set={"train.lr": "3e-5"}, rows=rows)
    plain = [entry.points[0].config(1).train for entry in expand(read_sweep(path), tmp_path, {})]
    assert [(train.global_batch, train.lr) for train in plain] == [(256, 3e-5), (128, 7e-6)]
    given = {"train.lr": "1e-3", "train.global_batch": "64", "steps": "5"}
    trains = [entry.points[0].config(1).train for entry in expand(read_sweep(path), tmp_path, given)]
    assert [(train.global_batch, train.lr, train.steps, train.seed) for train in trains] == [
        (128, 1e-3, 5, 1),
        (64, 1e-3, 5, 1),
    ]
    with pytest.raises(UserError, match="--seed-list"):
        expand(read_sweep(path), tmp_path, {"train.seed": "3"})


def test_a_relative_value_multiplies_what_all_rows_have(tmp_path):
    both = {"steps": {"times": 1.5}, "train.warmup_steps": {"times": 2}}
    tree = {
        "set": {"train.steps": 100, "train.warmup_steps": 7},
        "rows": {"plain": {}, "longer": {"set": both}},
    }
    trains = [entry.points[0].config(1).train for entry in entries_of(tmp_path, **tree)]
    assert [(train.steps, train.warmup_steps) for train in trains] == [(100, 7), (150, 14)]


def test_flags_of_an_objective_are_of_the_rows_that_have_it(tmp_path):
    rows = {
        "SimCSE": {},
        "VaSCL": {"recipe": str(ROOT / "configs" / "vascl_micro.yaml")},
        "both": {"set": {"objective.name": "simcse+vascl"}},
        "quoted": {"kind": "quoted"},
    }
    given = {"objective.vascl.neighbours": "7", "objective.mlm.weight": "0.5"}
    points = [entry.points[0] for entry in entries_of(tmp_path, given, rows=rows) if entry.points]
    assert ["objective.vascl.neighbours" in point.overrides for point in points] == [False, True, True]
    assert [point.config(1).objective.vascl.neighbours for point in points] == [16, 7, 7]
    assert all(point.config(1).objective.mlm.weight == 0.5 for point in points)
    with pytest.raises(
        UserError, match=r"--objective\.sda\.margin would change nothing: no row has the objective sda"
    ):
        entries_of(tmp_path, {"objective.sda.margin": "1"}, rows=rows)


def test_a_grid_makes_rows_and_a_search_makes_points(tmp_path):
    entries = entries_of(
        tmp_path, grid={"train.lr": [1e-5, 2e-5], "train.steps": [10, 20]}, rows={"a": {}, "b": {}}
    )
    assert [entry.name for entry in entries][:3] == [
        "a, lr 1e-05, steps 10",
        "a, lr 1e-05, steps 20",
        "a, lr 2e-05, steps 10",
    ]
    assert len(entries) == 8 and not any(entry.searched for entry in entries)
    rows = {"a": {}, "b": {"search": {}}, "c": {"kind": "start"}, "d": {"kind": "quoted"}}
    entries = entries_of(tmp_path, search={"train.lr": [1e-5, 2e-5], "train.steps": [10, 20]}, rows=rows)
    assert [len(entry.points) for entry in entries] == [4, 1, 1, 0]
    assert [point.label for point in entries[0].points][1] == "lr 1e-05, steps 20"
    assert len(entries_of(tmp_path, {"train.lr": "1"}, search={"train.lr": [1e-5, 2e-5]})[0].points) == 1


def test_points_of_a_search_that_come_to_the_same_are_one(tmp_path):
    given = {"train.lr": "5e-5"}  # the command line wins over what is searched
    (entry,) = entries_of(
        tmp_path, given, search={"train.lr": [1e-5, 2e-5, 3e-5], "train.warmup_steps": [0, 1]}
    )
    assert sorted(point.config(1).train.warmup_steps for point in entry.points) == [0, 1]
    assert {point.config(1).train.lr for point in entry.points} == {5e-5}


def test_recipes_of_another_size_stand_in(tmp_path):
    recipe = {"recipe": str(ROOT / "configs" / "vascl_roberta.yaml")}
    assert entries_of(tmp_path, size="micro", **recipe)[0].points[0].recipe.name == "vascl_micro.yaml"
    with pytest.raises(UserError, match=r"vascl_huge\.yaml.*vascl_micro\.yaml"):
        entries_of(tmp_path, size="huge", **recipe)
