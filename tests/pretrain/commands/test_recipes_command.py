"""`clearly recipes` lists what `--config` takes."""

import re

import pytest

from pretrain.commands.recipes import recipes
from pretrain.common.errors import UserError
from pretrain.config.recipe import RECIPES, find_recipe


def test_every_recipe_is_listed_with_what_it_is_for(capsys):
    recipes()
    *lines, blank, more = capsys.readouterr().out.splitlines()
    assert not blank and more.startswith("clearly recipes WORD: ")
    assert len(lines) == len([*RECIPES.rglob("*.yaml")])
    for line in lines:
        name, about = line.split(None, 1)
        assert find_recipe(RECIPES / f"{name}.yaml").is_file() and about and len(line) <= 80


def test_a_word_chooses(capsys):
    recipes("SimCSE")
    entries = re.split(r"\n(?=\S)", capsys.readouterr().out)
    assert all("simcse" in entry.lower() and "..." not in entry for entry in entries)
    assert all(len(line) <= 80 for entry in entries for line in entry.splitlines())
    texts = {name: " ".join(text.split()) for name, text in (entry.split(None, 1) for entry in entries)}
    assert texts["diffcse_bert"].startswith(
        "DiffCSE (Chuang et al. 2022): SimCSE, and replaced-token detection conditioned on the sentence"
    )
    assert texts["sweeps/augcse_table14"].startswith(
        "SimCSE supervised by ANLI. ANLI beside SNLI and MNLI as"
    )
    with pytest.raises(UserError, match="lists all"):
        recipes("no such word")
