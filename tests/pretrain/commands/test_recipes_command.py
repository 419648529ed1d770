"""`clearly recipes` lists what `--config` takes."""

import pytest

from pretrain.commands.recipes import recipes
from pretrain.common.errors import UserError
from pretrain.config.recipe import RECIPES, find_recipe


def test_every_recipe_is_listed_with_what_it_is_for(capsys):
    recipes()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len([*RECIPES.rglob("*.yaml")])
    for line in lines:
        name, about = line.split(None, 1)
        assert find_recipe(RECIPES / f"{name}.yaml").is_file() and about and len(line) <= 80


def test_a_word_chooses(capsys):
    recipes("SimCSE")
    assert all("simcse" in line.lower() or "..." in line for line in capsys.readouterr().out.splitlines())
    with pytest.raises(UserError, match="lists all"):
        recipes("no such word")
