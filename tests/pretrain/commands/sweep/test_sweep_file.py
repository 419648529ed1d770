"""What a sweep file asks for: mistakes in it, overrides, grids."""

from pathlib import Path

import pytest
from sweep_helpers import ROOT, entries_of, write_sweep

from pretrain.commands.sweep.file import expand, read_sweep, text_of
from pretrain.common.errors import UserError


@pytest.mark.parametrize(
    "tree,words",
    [
        ({"rows": {}}, ["rows", "none"]),
        ({"rows": {"one": {"sett": {}}}}, ["rows.one.sett"]),
        ({"seeds": [1, 1]}, ["seeds"]),
        ({"seeds": []}, ["seeds"]),
        ({"rows": {"one": {"seeds": [2, 2]}}}, ["seeds [2, 2]: give different"]),
        (
            {"rows": {"one": {"pooling": "words"}}},
            ["row 'one'", "pooling words is of what was trained with it"],
        ),
        ({"evaluations": {"sts": "--trust"}}, ["--trust is for the command line alone"]),
        ({"of_start": {"sts": "--trust=true"}}, ["--trust is for the command line alone"]),
        (
            {"baseline": "two", "rows": {"one": {}, "two": {"kind": "quoted"}}},
            ["baseline 'two': no such row of ours; there are one"],
        ),
        ({"rows": {"one": {"spread": {"A": 1.0}}}}, ["paper has 'A', which is no column"]),
        ({"seeds": [3, -1]}, ["seeds [3, -1]: give different whole numbers from 0 on"]),
        ({"recipe": None}, ["one", "recipe"]),
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
    recipes = [entry.recipe.name for entry in expand(sweep, tmp_path, {})]
    assert sweep.title == "mine" and recipes == ["simcse_micro.yaml", "clear_micro.yaml"]
    with pytest.raises(UserError, match="no recipe clear_mirco; did you mean clear_micro"):
        expand(sweep.model_copy(update={"recipe": Path("clear_mirco")}), tmp_path, {})


def test_the_command_line_wins_and_relative_values_multiply_what_it_says(tmp_path):
    rows = {"double": {"set": {"train.global_batch": {"times": 2}}}, "own rate": {"set": {"train.lr": 7e-6}}}
    path = write_sweep(tmp_path, set={"train.lr": "3e-5"}, rows=rows)
    plain = [entry.config(1).train for entry in expand(read_sweep(path), tmp_path, {})]
    assert [(train.global_batch, train.lr) for train in plain] == [(256, 3e-5), (128, 7e-6)]
    given = {"train.lr": "1e-3", "train.global_batch": "64", "steps": "5"}
    trains = [entry.config(1).train for entry in expand(read_sweep(path), tmp_path, given)]
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
    trains = [entry.config(1).train for entry in entries_of(tmp_path, **tree)]
    assert [(train.steps, train.warmup_steps) for train in trains] == [(100, 7), (150, 14)]


def test_a_grid_makes_rows(tmp_path):
    entries = entries_of(
        tmp_path, grid={"train.lr": [1e-5, 2e-5], "train.steps": [10, 20]}, rows={"a": {}, "b": {}}
    )
    assert [entry.name for entry in entries][:3] == [
        "a, lr 1e-05, steps 10",
        "a, lr 1e-05, steps 20",
        "a, lr 2e-05, steps 10",
    ]
    assert len(entries) == 8 and entries[2].config(1).train.lr == 2e-5


def test_recipes_of_another_size_stand_in(tmp_path):
    recipe = {"recipe": str(ROOT / "configs" / "vascl_roberta.yaml")}
    assert entries_of(tmp_path, size="micro", **recipe)[0].recipe.name == "vascl_micro.yaml"
    with pytest.raises(UserError, match=r"vascl_huge\.yaml.*vascl_micro\.yaml"):
        entries_of(tmp_path, size="huge", **recipe)


def test_what_a_file_leaves_out_is_as_the_papers_have_it(tmp_path):
    sweep = read_sweep(write_sweep(tmp_path, seeds=None))
    assert sweep.seeds == [1, 11, 42, 68, 421]  # AugCSE's
    (row,) = sweep.rows.values()
    assert (row.kind, row.weights, row.pooling, row.seeds) == ("trained", "best", None, None)
    assert read_sweep(write_sweep(tmp_path, seeds=[0])).seeds == [0]


def test_a_grid_is_of_trained_rows_alone_and_values_are_as_typed(tmp_path):
    rows = {"a": {}, "start": {"kind": "start"}, "paper": {"kind": "quoted"}}
    entries = entries_of(tmp_path, grid={"train.deterministic": [True, False]}, rows=rows)
    assert [entry.name for entry in entries] == [
        "a, deterministic true", "a, deterministic false", "start", "paper"
    ]  # fmt: skip
    assert [entry.runs for entry in entries] == [True, True, False, False]
    assert [text_of(one) for one in (None, [1, "b"], {"c": 2}, 3e-5, "x", True)] == [
        "null", '[1, "b"]', '{"c": 2}', "3e-05", "x", "true"
    ]  # fmt: skip
