"""Recipes and sweep files of the papers: valid, with the published values, written here once more; and the
documented objective."""

import re
import statistics
from pathlib import Path

import numpy as np
import pytest
import yaml
from run_helpers import command, finish, records, start

from augment.spec.grammar import needs_text, parse
from pretrain.commands.record.tracks import TRACKS, outside_help
from pretrain.commands.sweep.file import expand, read_sweep
from pretrain.config.data import DataConfig
from pretrain.config.recipe import load_config, to_yaml, validate_config
from pretrain.config.validation import read_yaml
from pretrain.objectives import view_specs
from pretrain.prepare.cache.views import trains_on

CONFIGS = Path(__file__).parents[3] / "configs"
FILES = sorted((CONFIGS / "sweeps").glob("*.yaml"))
SWEEPS = [path for path in FILES if "_table" in path.stem or "_figure" in path.stem]  # the papers' own
PUBLISHED = sorted(
    [*CONFIGS.glob("*_bert.yaml"), *CONFIGS.glob("*_roberta.yaml"), CONFIGS / "sda_chinese.yaml"]
)

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
AUGCSE = {"alpha": -1.0, "labels": "augmentation", "positive": "original"}


def of_both(name: str, **settings: object) -> dict[str, dict]:
    """The same settings for BERT and RoBERTa."""
    return {f"{name}_bert": settings, f"{name}_roberta": settings}


# What each objective is given beside its temperature of 0.05.
OBJECTIVES = {
    **of_both("simcse", form="one-direction", head="mlp", hard_negatives=False, keep_head=False),
    **of_both(
        "simcse_supervised",
        form="one-direction",
        hard_negatives=True,
        hard_negative_logit=0.0,
        keep_head=True,
    ),
    **of_both("vascl", neighbours=16, radius=15.0, projection_size=128, neighbourhood_weight=1.0),
    "augcse_bert": AUGCSE | {"discriminator_weight": 5e-3},
    "augcse_roberta": AUGCSE | {"discriminator_weight": 1e-4},
    **of_both("vadvcse", reading="smart-package", divergence="js", steps=1),
    **of_both("sda", margin=0.5, negatives=True),
    "sda_chinese": {"margin": 0.5, "negatives": True},
    "diffcse_bert": {
        "replaced_token_weight": 0.005,
        "mask_rate": 0.3,
        "generator": "distilbert-base-uncased",
    },
    "diffcse_roberta": {"replaced_token_weight": 0.005, "mask_rate": 0.2, "generator": "distilroberta-base"},
    **of_both("esimcse", queue=2.5, momentum=0.995),
    **of_both("declutr", positives=2),
}
ROLES = {
    "simcse_supervised": ("anchor", "positive", "negative"),
    "sda": ("anchor", "positive", "negative"),
    "augcse": ("anchor", "positive", "augmented"),
    "declutr": ("anchor", "positive", "positive2"),
}


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


@pytest.mark.parametrize("recipe", [*PUBLISHED, CONFIGS / "clear_base.yaml"], ids=lambda path: path.stem)
def test_on_a_gpu_a_recipe_is_in_half_precision_with_micro_batches_that_fit(recipe):
    train = load_config(recipe, {}).train
    noise_is_lost = recipe.stem.startswith("vadvcse_")  # of 1e-5, in bfloat16's rounding
    assert train.precision in (("fp32",) if noise_is_lost else ("auto", "bf16"))
    assert train.micro_batch_tokens == "auto"


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_the_published_ones(name):
    config = load_config(CONFIGS / f"{name}.yaml", {})
    start, pooling, batch, rate, epochs, sentences = SETTINGS[name]
    train = config.train
    assert (config.model.init, config.model.pooling, train.global_batch, train.lr) == (
        start,
        pooling,
        batch,
        rate,
    )
    assert train.steps == epochs * sentences // batch
    assert train.betas == (0.9, 0.999) and train.optimizer == "adamw"
    if system(name) == "declutr":
        assert (train.weight_decay, train.eps, train.clip, train.schedule) == (0.1, 1e-6, 1.0, "linear")
        assert train.warmup_steps == train.steps // 10
    elif system(name) == "vascl":
        assert (train.schedule, train.head_lr_scale, train.clip, train.weight_decay) == (
            "constant",
            100,
            0.0,
            0.0,
        )
        assert train.head_lr_scale * train.lr == pytest.approx(5e-4)
    else:
        assert (train.schedule, train.warmup_steps, train.weight_decay, train.eps, train.clip) == (
            "linear",
            0,
            0.0,
            1e-8,
            1.0,
        )
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
    assert [view.role for view in views if view.labelled] == (
        ["augmented"] if system(recipe.stem) == "augcse" else []
    )
    prepare = config.data.prepare
    assert prepare.unit == ("document" if system(recipe.stem) == "declutr" else "record")
    assert prepare.max_length == (512 if system(recipe.stem) == "declutr" else 32)
    assert "sources" in prepare.model_fields_set and config.data.folder is not None
    if system(recipe.stem) == "esimcse":
        assert views[1].augmentation == (
            "repeat:rate=0.32" if recipe.stem.endswith("_bert") else "repeat:rate=0.3"
        )


def test_recipes_that_share_data_prepare_it_alike():
    prepared = {}
    for recipe in PUBLISHED:
        config = load_config(recipe, {})
        same = prepared.setdefault(config.data.folder, config.data.prepare)
        assert config.data.prepare == same, recipe


def test_the_recipe_without_bookcorpus_is_else_the_papers():
    paper, other = (
        DataConfig(**read_yaml(CONFIGS / f"data_wikipedia_{name}.yaml"))
        for name in ("bookcorpus", "fineweb_edu")
    )
    assert paper.model_dump(exclude={"sources"}) == other.model_dump(exclude={"sources"})
    assert paper.sources[0] == other.sources[0] and len(paper.sources) == len(other.sources) == 2
    second = other.sources[1]
    assert (second.source, second.subset, second.weight) == (
        "hub:HuggingFaceFW/fineweb-edu",
        "sample-10BT",
        0.1,
    )
    assert load_config(CONFIGS / "clear_base.yaml", {}).data.prepare.sources == paper.sources


@pytest.mark.parametrize("path", [*CONFIGS.glob("*.yaml")], ids=lambda path: path.stem)
def test_a_recipe_that_names_bookcorpus_speaks_of_its_rights(path):
    text = path.read_text()
    assert "hub:SamuelYang/bookcorpus" not in text or re.search(r"[Rr]ights.* unclear", text)


# ---- sweep files
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_row_is_valid(path):
    for entry in expand(read_sweep(path), path.parent, {}):  # resolves and validates every row
        assert entry.recipe.is_file() == (entry.row.kind != "quoted"), entry.name


@pytest.mark.full
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_have_the_text_and_name_the_models_that_their_augmentations_need(path):
    """Augmentations of text need annotated data; a model or vectors come from the environment, and a note
    says which."""
    sweep = read_sweep(path)
    for entry in expand(sweep, path.parent, {}):
        notes = " ".join([entry.row.note, *sweep.notes])
        if entry.row.kind == "quoted":
            continue
        config = entry.config(42)
        views = view_specs(config)
        augmentations = {view.augmentation for view in views}
        if config.data.cache and entry.runs:
            cached = trains_on(config, views).data.folder.name
            assert cached.startswith(f"{config.data.folder.name}.cache-"), entry.name
        if any(map(needs_text, augmentations)):
            assert config.data.prepare.annotate and "parsed" in str(config.data.folder), entry.name
        variables = [
            parameter.variable
            for name in augmentations
            for step in parse(name).augmentations
            for parameter in step.entry.parameters
            if parameter.variable
        ]
        assert all(variable in notes for variable in variables), entry.name


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_published_figures_fit_their_columns(path):
    tree = read_yaml(path)
    assert tree["source"] and all(len(line) <= 130 for line in path.read_text().splitlines())
    for name, row in tree["rows"].items():
        paper = row.get("paper", {}) if row else {}
        assert all(0 < figure < 100 for figure in paper.values()), name
        others = [figure for column, figure in paper.items() if column != "Avg"]
        if "Avg" in paper and len(others) > 2:  # printed averages were cut or rounded, one is off by 0.3
            assert paper["Avg"] == pytest.approx(statistics.mean(others), abs=0.35), name


def test_every_table_and_figure_has_its_sweep():
    there = {path.stem for path in SWEEPS}
    tables = {
        "clear": (1, 2, 3),
        "vascl": (1, 2, 3),
        "augcse": (1, 2, 4, 5, 6, 7, 8, 9, 14),
        "vadvcse": (1, 2, 3, 4, 5, 6),
        "sda": (4, 5, 6, 7, 8, 9),
    }
    wanted = {f"{paper}_table{number}" for paper, numbers in tables.items() for number in numbers}
    figures = {"vascl_figure2", "vascl_figure3", "augcse_figure6", "sda_figure5"}
    assert there == wanted | figures


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_augcses_main_tables_are_of_its_eight_augmentations(number):
    """Section 5.6: "we use 8 augmentations in our main results"."""
    rows = expand(read_sweep(CONFIGS / "sweeps" / f"augcse_table{number}.yaml"), CONFIGS / "sweeps", {})
    ours = [entry.config(1) for entry in rows if entry.row.kind == "trained"]
    labelled = [config for config in ours if config.objective.name == "augcse"]
    assert labelled and all(config.augment.of_role("augmented") == "augcse-8" for config in labelled)


@pytest.mark.full
def test_rows_of_the_tables_are_what_they_are_called():
    rows = {
        entry.name: entry
        for entry in expand(read_sweep(CONFIGS / "sweeps" / "clear_table3.yaml"), CONFIGS / "sweeps", {})
    }
    double = rows["Double-batch RoBERTa-base"].config(42)
    assert (double.train.global_batch, double.objective.name) == (16384, "mlm")
    assert rows["Double MLM RoBERTa-base"].config(42).objective.mlm.copies == 2
    three = rows["MLM + subs + del-word + reorder"].config(42)
    assert three.augment.of_role("anchor") == "subs,del-word,reorder"
    rows = {
        entry.name: entry
        for entry in expand(read_sweep(CONFIGS / "sweeps" / "augcse_table7.yaml"), CONFIGS / "sweeps", {})
    }
    assert [entry.config(42).objective.augcse.alpha for entry in rows.values()] == [
        100,
        10,
        1,
        -1,
        -10,
        -100,
    ]
    rows = {
        entry.name: entry
        for entry in expand(read_sweep(CONFIGS / "sweeps" / "vascl_table1.yaml"), CONFIGS / "sweeps", {})
    }
    simcse, large = (
        rows["SimCSE-RoBERTa-base"].config(42),
        rows["VaSCL-RoBERTa-large"].config(42),
    )
    assert (simcse.objective.vascl.neighbourhood_weight, simcse.train.lr, simcse.train.head_lr_scale) == (
        0,
        3e-5,
        1,
    )
    assert (large.model.init, large.objective.vascl.radius) == ("roberta-large", 30)
    for number, size in ((8, 4), (9, 3)):
        path = CONFIGS / "sweeps" / f"augcse_table{number}.yaml"
        sets = [
            parse(entry.config(42).augment.augmented).augmentations
            for entry in expand(read_sweep(path), path.parent, {})
        ]
        assert [len(steps) for steps in sets] == ([4, 8, 12, 16] if number == 8 else [6, 10, 14]) and len(
            sets
        ) == size


# ---- an objective of one's own, from the documentation
# ------------------------------------------------------------------


def example() -> str:
    """The Python file that docs/objectives.md shows."""
    text = (CONFIGS.parent / "docs" / "objectives.md").read_text()
    return text.split("```python\n")[1].split("```")[0]


@pytest.mark.full
def test_the_documented_objective_of_ones_own_trains(tiny_data, tmp_path):
    assert len(example().strip().splitlines()) <= 30
    (tmp_path / "barlow.py").write_text(example())
    words = command(
        tiny_data,
        tmp_path / "run",
        objective=f"{tmp_path / 'barlow.py'}:BarlowTwins",
        aug="none",
        train__steps=2,
        train__warmup_steps=0,
        objective__options="{off_diagonal: 0.01}",
        evaluate__every=0,
        checkpoint__every=0,
    )
    finish(start(words))
    losses = [record["loss"] for record in records(tmp_path / "run") if "loss" in record]
    assert len(losses) == 2 and all(np.isfinite(loss["barlow_twins"]) and "mlm" in loss for loss in losses)


@pytest.mark.parametrize("recipe", ["clear_base.yaml", "clear_micro.yaml"])
def test_the_papers_augmentations_keep_the_excerpt_which_is_a_flag_of_its_own(recipe):
    ours = load_config(CONFIGS / recipe, {})
    excerpt = ours.augment.excerpt
    assert re.match(r"(crop:rate=1:min_rate|span:min_length)=", excerpt)
    same = load_config(CONFIGS / recipe, {"aug": "del-span,reorder"})
    assert same == ours and same.augment.of_role("positive") == f"{excerpt},del-span,reorder"
    paper = load_config(CONFIGS / recipe, {"augment.excerpt": "none"})
    assert [paper.augment.of_role(role) for role in ("anchor", "positive")] == ["del-span,reorder"] * 2
    assert paper.model_copy(update={"augment": ours.augment}) == ours


@pytest.mark.parametrize("path", sorted((CONFIGS / "board").glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_for_the_board_keep_its_rules(path):
    config = load_config(path, {"folder": "runs/x", "data.folder": "data/x"})
    manifest = {"config": config.data.prepare.model_dump(mode="json"), "run": {}}
    assert not list(outside_help(config, manifest))
    assert config.train.steps % config.evaluate.every == config.train.steps % config.checkpoint.every == 0
    assert str(path.relative_to(CONFIGS.parent)) in path.read_text()
    assert path.stem.replace("_", "-") in TRACKS
