"""Recipes of the papers' systems: every file is valid, and holds the published values, told here once more."""

from pathlib import Path

import pytest
import yaml

from pretrain.config import load_config, to_yaml, validate_config
from pretrain.objectives import view_specs

CONFIGS = Path(__file__).parents[2] / "configs"
PUBLISHED = sorted([*CONFIGS.glob("*_bert.yaml"), *CONFIGS.glob("*_roberta.yaml"), CONFIGS / "sda_chinese.yaml"])

WIKI, NLI, SIMCLUE, OPENWEBTEXT = 1_000_000, 275_601, 2_200_000, 497_868
# name: (start, pooling, batch, rate, epochs, sentences)
SETTINGS = {
    "simcse_bert": ("bert-base-uncased", "cls", 64, 3e-5, 1, WIKI),
    "simcse_roberta": ("roberta-base", "cls", 512, 1e-5, 1, WIKI),
    "simcse_supervised_bert": ("bert-base-uncased", "cls", 512, 5e-5, 3, NLI),
    "simcse_supervised_roberta": ("roberta-base", "cls", 512, 5e-5, 3, NLI),
    "vascl_bert": ("bert-base-uncased", "mean", 1024, 5e-6, 5, WIKI),
    "vascl_roberta": ("roberta-base", "mean", 1024, 5e-6, 5, WIKI),
    "augcse_bert": ("bert-base-uncased", "cls", 128, 2e-5, 4, WIKI),
    "augcse_roberta": ("roberta-base", "cls", 128, 2e-5, 4, WIKI),
    "vadvcse_bert": ("bert-base-uncased", "cls", 64, 3e-5, 1, WIKI),
    "vadvcse_roberta": ("roberta-base", "cls", 512, 1e-5, 1, WIKI),
    "sda_bert": ("bert-base-uncased", "cls", 128, 2e-5, 1, WIKI),
    "sda_roberta": ("roberta-base", "cls", 64, 1e-5, 1, WIKI),
    "sda_chinese": ("hfl/chinese-roberta-wwm-ext", "cls", 128, 5e-5, 1, SIMCLUE),
    "diffcse_bert": ("bert-base-uncased", "cls", 64, 7e-6, 2, WIKI),
    "diffcse_roberta": ("roberta-base", "cls", 64, 1e-5, 2, WIKI),
    "esimcse_bert": ("bert-base-uncased", "cls", 64, 3e-5, 1, WIKI),
    "esimcse_roberta": ("roberta-base", "cls", 64, 1e-5, 1, WIKI),
    "declutr_bert": ("bert-base-uncased", "mean", 16, 5e-5, 1, OPENWEBTEXT),
    "declutr_roberta": ("roberta-base", "mean", 16, 5e-5, 1, OPENWEBTEXT),
}
# What each objective is given beside its temperature of 0.05.
OBJECTIVES = {
    "simcse_bert": {"form": "one-direction", "head": "mlp", "hard_negatives": False},
    "simcse_roberta": {"form": "one-direction", "head": "mlp", "hard_negatives": False},
    "simcse_supervised_bert": {"form": "one-direction", "hard_negatives": True, "hard_negative_logit": 0.0},
    "simcse_supervised_roberta": {"form": "one-direction", "hard_negatives": True, "hard_negative_logit": 0.0},
    "vascl_bert": {"neighbours": 16, "radius": 15.0, "projection_size": 128, "neighbourhood_weight": 1.0},
    "vascl_roberta": {"neighbours": 16, "radius": 15.0, "projection_size": 128, "neighbourhood_weight": 1.0},
    "augcse_bert": {"discriminator_weight": 5e-3, "alpha": -1.0, "labels": "augmentation", "positive": "original"},
    "augcse_roberta": {"discriminator_weight": 1e-4, "alpha": -1.0, "labels": "augmentation", "positive": "original"},
    "vadvcse_bert": {"adversarial_weight": 1e-6, "divergence": "js", "steps": 1, "sigma": 1e-5, "step_size": 1e-3},
    "vadvcse_roberta": {"adversarial_weight": 1e-6, "divergence": "js", "steps": 1, "sigma": 1e-5, "step_size": 1e-3},
    "sda_bert": {"margin": 0.5, "negatives": True},
    "sda_roberta": {"margin": 0.5, "negatives": True},
    "sda_chinese": {"margin": 0.5, "negatives": True},
    "diffcse_bert": {"replaced_token_weight": 0.005, "mask_rate": 0.3, "generator": "distilbert-base-uncased"},
    "diffcse_roberta": {"replaced_token_weight": 0.005, "mask_rate": 0.2, "generator": "distilroberta-base"},
    "esimcse_bert": {"queue": 2.5, "momentum": 0.995},
    "esimcse_roberta": {"queue": 2.5, "momentum": 0.995},
    "declutr_bert": {"positives": 2},
    "declutr_roberta": {"positives": 2},
}
ROLES = {"simcse_supervised": ("anchor", "positive", "negative"), "sda": ("anchor", "positive", "negative"),
         "augcse": ("anchor", "positive", "augmented"), "declutr": ("anchor", "positive", "positive2")}


def system(name: str) -> str:
    return name.rsplit("_", 1)[0]


def test_every_published_recipe_is_in_the_tables_here():
    assert {path.stem for path in PUBLISHED} == set(SETTINGS) == set(OBJECTIVES)


@pytest.mark.parametrize("recipe", PUBLISHED, ids=lambda path: path.stem)
def test_a_recipe_is_valid_and_survives_a_round_trip(recipe):
    config = load_config(recipe, {})
    assert config.name == recipe.stem
    assert validate_config(yaml.safe_load(to_yaml(config)), "again") == config
    assert all(len(line) <= 130 for line in recipe.read_text().splitlines())


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_the_published_ones(name):
    config = load_config(CONFIGS / f"{name}.yaml", {})
    start, pooling, batch, rate, epochs, sentences = SETTINGS[name]
    train = config.train
    assert (config.model.init, config.model.pooling, train.global_batch, train.lr) == (start, pooling, batch, rate)
    assert train.steps == epochs * sentences // batch
    assert train.betas == (0.9, 0.999) and train.optimizer == "adamw"
    if system(name) == "declutr":
        assert (train.weight_decay, train.eps, train.clip, train.schedule) == (0.1, 1e-6, 1.0, "linear")
        assert train.warmup_steps == train.steps // 10
    elif system(name) == "vascl":
        assert (train.schedule, train.head_lr_scale, train.clip, train.weight_decay) == ("constant", 100, 0.0, 0.0)
        assert train.head_lr_scale * train.lr == pytest.approx(5e-4)
    else:
        assert (train.schedule, train.warmup_steps, train.weight_decay, train.eps, train.clip) == ("linear", 0, 0.0, 1e-8, 1.0)
        assert train.head_lr_scale == 1.0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_are_the_published_ones(name):
    config = load_config(CONFIGS / f"{name}.yaml", {})
    section = config.objective.name
    assert section == system(name).split("_")[0] if system(name) != "simcse_supervised" else "simcse"
    settings = getattr(config.objective, section)
    assert settings.temperature == 0.05
    assert {key: getattr(settings, key) for key in OBJECTIVES[name]} == OBJECTIVES[name]
    assert config.objective.mlm.weight == (1.0 if section == "declutr" else 0.0)


@pytest.mark.parametrize("recipe", PUBLISHED, ids=lambda path: path.stem)
def test_views_and_data_fit_the_objective(recipe):
    config = load_config(recipe, {})
    views = view_specs(config)
    assert tuple(view.role for view in views) == ROLES.get(system(recipe.stem), ("anchor", "positive"))
    assert [view.role for view in views if view.labelled] == (["augmented"] if system(recipe.stem) == "augcse" else [])
    prepare = config.data.prepare
    assert prepare.unit == ("document" if system(recipe.stem) == "declutr" else "record")
    assert prepare.max_length == (512 if system(recipe.stem) == "declutr" else 32)
    assert "sources" in prepare.model_fields_set and config.data.folder is not None
    if system(recipe.stem) == "esimcse":
        assert views[1].augmentation == ("repeat:rate=0.32" if recipe.stem.endswith("_bert") else "repeat:rate=0.3")


def test_recipes_that_share_data_prepare_it_alike():
    prepared = {}
    for recipe in PUBLISHED:
        config = load_config(recipe, {})
        same = prepared.setdefault(config.data.folder, config.data.prepare)
        assert config.data.prepare == same, recipe
