"""The configuration tree: recipes, flags, and what is said about mistakes."""

import typing
from pathlib import Path

import pytest
import yaml

from finetune import flags, sts
from pretrain import api
from pretrain.commands.sweep.file import Row
from pretrain.common.errors import UserError
from pretrain.common.typed_values import OTHER_NAMES
from pretrain.config.recipe import describe, find_recipe, load_config, to_yaml, validate_config
from pretrain.config.run import Config, Pooling
from pretrain.config.validation import read_yaml
from pretrain.export.model_card import POOLING
from pretrain.model.pooling import SECOND_STATE, WORDS

RECIPES = sorted((Path(__file__).parents[3] / "configs").glob("clear_*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_survives_a_round_trip(recipe):
    config = load_config(recipe, {})
    assert validate_config(yaml.safe_load(to_yaml(config)), "again") == config


def test_the_base_recipe_is_the_papers():
    config = load_config(Path(__file__).parents[3] / "configs" / "clear_base.yaml", {})
    assert (
        config.model.layers,
        config.model.heads,
        config.model.hidden_size,
        config.model.max_positions,
    ) == (12, 12, 768, 512)
    train = config.train
    assert (train.global_batch, train.steps, train.warmup_steps, train.lr) == (8192, 500_000, 24_000, 6e-4)
    assert (train.betas, train.eps, train.weight_decay, train.schedule) == ((0.9, 0.98), 1e-6, 0.01, "linear")
    assert config.data.prepare.unit == "sequence" and config.data.prepare.max_length == 512
    assert (config.model.dropout, config.model.attention_dropout) == (0.1, 0.1)


def test_the_papers_letter_is_the_base_recipe_but_for_what_lets_the_sentence_loss_learn():
    base, paper = (load_config(name, {}) for name in ("clear_base", "clear_paper"))
    assert (base.model.pooling, base.objective.view_dropout) == ("mean", False)
    letter = {"model.pooling": "cls", "objective.view_dropout": "true", "augment.excerpt": "none"}
    contrastive = {"weight": "1", "temperature": "0.1", "projection_layers": "2"}
    letter |= {f"objective.contrastive.{key}": value for key, value in contrastive.items()}
    letter |= {"objective.mlm.initial_bias": "zero"}
    assert load_config("clear_base", letter | {"name": "clear_paper"}) == paper


def test_every_list_of_poolings_has_them_all():
    names = {*SECOND_STATE, WORDS}
    assert set(typing.get_args(Pooling)) == set(POOLING) == names
    assert {Row(pooling=name).pooling for name in ("pooler", *names)} == {"pooler", *names}
    for text in (api.load.__doc__, sts.main.__doc__, str(flags.Pooling)):
        assert not [name for name in names if name not in text]


def test_a_sweep_is_no_recipe_and_the_message_says_what_it_is_for():
    sweep = RECIPES[0].parent / "sweeps" / "clear_table3.yaml"
    with pytest.raises(UserError, match="is a sweep: clearly sweep"):
        load_config(sweep, {})


def test_flags_are_raw_strings_and_win_over_the_recipe():
    config = load_config(
        None,
        {
            "aug": "subs,del-word:rate=0.5",
            "train.lr": "1e-4",
            "train.betas": "0.9,0.999",
            "name": "2026_11",
            "model.init": "none",
            "deepspeed.zero_optimization.reduce_bucket_size": "500000",
        },
    )
    assert [config.augment.of_role(role) for role in ("anchor", "positive")] == ["subs,del-word:rate=0.5"] * 2
    assert (config.train.lr, config.train.betas, config.name, config.model.init) == (
        1e-4,
        (0.9, 0.999),
        "2026_11",
        None,
    )
    assert config.deepspeed == {"zero_optimization": {"reduce_bucket_size": 500000}}


@pytest.mark.parametrize(
    "text,words",
    [
        ("objective: {options: &a {x: [*a]}}", "unconstructable recursive node"),
        ("objective: {options: &a [1, 2], name: &b [*a, *b]}", "unconstructable recursive node"),
        (f"train: {{seed: {10**22}}}", "too large"),
        (f"train: {{steps: {10**22}}}", "too large"),
    ],
)
def test_what_no_run_can_hold_is_one_error(tmp_path, text, words):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        load_config(tmp_path / "recipe.yaml", {})


def test_only_anchors_and_positives_take_an_excerpt_however_many_there_are():
    given = {"excerpt": "span", "spec": "pi,del-span", "negative": "subs", "augmented": "mv|subs"}
    augment = load_config(None, {f"augment.{key}": value for key, value in given.items()}).augment
    for number in ("", "2", "13"):
        for role in ("anchor", "positive"):
            assert augment.of_role(role + number) == "pi,span,del-span"
        assert [augment.of_role(role + number) for role in ("negative", "augmented")] == ["subs", "mv|subs"]


def test_names_of_other_programs_lead_to_keys_that_there_are():
    keys = {name for name, *_ in describe()}
    for ours, _ in OTHER_NAMES.values():
        assert all(name in keys for name in ours.split() if "." in name), ours


def test_none_is_an_augmentation():
    assert load_config(None, {"aug": "none"}).augment.of_role("positive") == "none"


@pytest.mark.parametrize(
    "overrides,words",
    [
        ({"train.learning_rate": "1"}, ["train.learning_rate"]),
        ({"train.lrr": "1"}, ["did you mean --train.lr?"]),
        ({"seeds": "1,11"}, ["--train.seed", "clearly sweep", "--seed-list"]),
        ({"train.seed": "9" * 23}, ["--train.seed", "too large"]),
        ({"text": "a.txt"}, ["unknown flag --text; its name here is --data"]),
        ({"lr": "1"}, ["did you mean --train.lr?"]),
        ({"max_steps": "9"}, ["its name here is --train.steps"]),
        ({"train.fp16": "true"}, ["its name here is --train.precision"]),
        ({"output_dir": "out"}, ["its name here is --run"]),
        ({"optimiser": "adamw"}, ["did you mean --train.optimizer?"]),
        ({"train.lr": "fast"}, ["train.lr", "number", "fast"]),
        (
            {
                "train.lr.peak": "1",
            },
            ["train.lr"],
        ),
        ({"aug": "del-spam"}, ["del-span"]),
        ({"model.pooling": "max"}, ["model.pooling", "first-last"]),
        ({"train.global_batch": "100", "data.lanes": "16"}, ["100", "16", "multiple"]),
        ({"train.optimizer": "lamb", "train.zero": "1"}, ["lamb", "train.zero=0"]),
        ({"train.optimizer": "muon", "train.zero": "1"}, ["muon", "train.zero=0"]),
        ({"model.heads": "3"}, ["model.heads=3"]),
        ({"train.steps": "10", "train.warmup_steps": "10"}, ["warmup_steps=10"]),
        ({"train.batch_start": "16"}, ["batch_start=16", "train.batch_warmup_steps"]),
        ({"train.batch_start": "24", "train.batch_warmup_steps": "9"}, ["24", "data.lanes=16"]),
        ({"train.batch_start": "208", "train.batch_warmup_steps": "9"}, ["208", "at most", "192"]),
        ({"train.decay_steps": "10"}, ["train.decay_steps=10", "train.schedule wsd"]),
        ({"train.schedule": "wsd", "train.decay_steps": "950"}, ["warmup_steps=100", "950", "steps=1000"]),
        ({"objective.mlm.weight": "0", "objective.contrastive.weight": "0"}, ["switched off"]),
        (
            {"objective.false_negatives.margin": "5", "objective.false_negatives.guide": "self"},
            ["objective.false_negatives.margin", "less than 2", "got '5'"],
        ),
        (
            {"objective.false_negatives.margin": "-2", "objective.false_negatives.guide": "self"},
            ["objective.false_negatives.margin", "greater than -2"],
        ),
        ({"objective.simcse.temperature": "inf"}, ["objective.simcse.temperature", "finite"]),
        ({"objective.augcse.alpha": "nan"}, ["objective.augcse.alpha", "finite"]),
        ({"train.lr": "inf"}, ["train.lr", "finite"]),
        ({"objective.vadvcse.radius": "0.3"}, ["radius=0.3", "smart-package", "objective.vadvcse.reading"]),
        (
            {"objective.vascl.neighbours": "7"},
            ["objective.vascl.neighbours", "in force is clear", "name vascl with --objective"],
        ),
        (
            {"objective": "simcse", "objective.contrastive": "{weight: 2}"},
            ["objective.contrastive", "is simcse", "name clear"],
        ),
        (
            {"objective.options": "{margin: 1}", "objective.sda.margin": "1"},
            ["in force is clear", "FILE.py:CLASS and sda"],
        ),
        (
            {
                "objective": "simcse",
                "objective.simcse.hard_negatives": "true",
                "objective.simcse.form": "2n-2",
            },
            ["objective.simcse.hard_negatives", "one-direction"],
        ),
        (
            {"objective": "esimcse", "objective.scope": "local"},
            ["scope=local", "all ranks", "queue to 0"],
        ),
    ],
)
def test_a_mistake_is_one_message_that_says_what_and_where(overrides, words):
    with pytest.raises(UserError) as caught:
        load_config(None, overrides)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value) and "pydantic" not in str(caught.value)


def test_the_number_one_of_a_command_line_is_no_yes():
    for key in ("positives", "hard_negatives"):
        for text, value in (("1", "1"), ("2", "2"), ("true", "True"), ("false", "False")):
            config = load_config(None, {"objective": "simcse", f"objective.simcse.{key}": text})
            assert repr(getattr(config.objective.simcse, key)) == value


@pytest.mark.parametrize(
    "overrides",
    [
        {
            "objective": "clear+vadvcse",
            "objective.vadvcse.sigma": "1e-4",
            "objective.contrastive.weight": "2",
            "objective.mlm.rate": "0.2",
            "objective.mask_duplicates": "false",
        },
        {
            "objective": "mine.py:Mine",
            "objective.options": "{margin: 1}",
            "objective.simcse.temperature": "0.1",
        },
        {"objective": "esimcse", "objective.scope": "local", "objective.esimcse.queue": "0"},
    ],
)
def test_settings_of_what_is_in_the_sum_are_taken(overrides, tmp_path):
    config = load_config(None, overrides)
    (tmp_path / "config.yaml").write_text(to_yaml(config))  # as a run writes it, with every section
    assert load_config(tmp_path / "config.yaml", {"train.lr": str(config.train.lr)}) == config


def test_recipes_and_sweeps_of_ours_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ours = Path(__file__).parents[3] / "configs"
    for given, found in (
        ("clear_micro", "clear_micro.yaml"),
        ("configs/clear_micro.yaml", "clear_micro.yaml"),
        ("clear_table3", "sweeps/clear_table3.yaml"),
        ("configs/sweeps/clear_table3.yaml", "sweeps/clear_table3.yaml"),
    ):
        assert find_recipe(Path(given)) == ours / found
    with pytest.raises(UserError, match="no recipe clear_tabel3; did you mean clear_table3"):
        find_recipe(Path("clear_tabel3"))
    assert find_recipe(Path("configs")) == Path("configs")  # a folder's name is left to who reads it


def test_a_recipe_may_extend_another_section_by_section(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\ntrain: {lr: 0.5}\n")
    (tmp_path / "b.yaml").write_text("train: {steps: 7, lr: 0.1}\n")
    assert read_yaml(tmp_path / "a.yaml") == {"train": {"steps": 7, "lr": 0.5}}
    for base, said in (("a.yaml", "b.yaml: extends: a.yaml, which extends this"), ("c.yaml", "is no file")):
        (tmp_path / "b.yaml").write_text(f"extends: {base}\n")
        with pytest.raises(UserError, match=said):
            read_yaml(tmp_path / "a.yaml")


def test_a_missing_recipe_names_the_nearest(tmp_path):
    (tmp_path / "clear_micro.yaml").write_text("name: x\n")
    with pytest.raises(UserError, match=r"did you mean .*clear_micro\.yaml"):
        load_config(tmp_path / "clear_mico.yaml", {})
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    with pytest.raises(UserError, match="not YAML"):
        load_config(tmp_path / "bad.yaml", {})
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(UserError, match="mapping"):
        load_config(tmp_path / "list.yaml", {})


def test_every_key_has_a_meaning():
    rows = describe(Config)
    assert len(rows) > 50
    assert all(meaning for key, _, _, meaning in rows), [key for key, _, _, meaning in rows if not meaning]


@pytest.mark.parametrize("key", ["model.init", "objective.diffcse.generator"])
def test_a_run_stands_for_its_export(tmp_path, key):
    run, other = tmp_path / "run", tmp_path / "adapter"
    for folder in (run, other, run / "best"):
        folder.mkdir()
        (folder / "config.yaml").write_text("name: run\n")
    (other / "adapter_config.json").write_text("{}")  # a model, whatever else is there

    def named(source):
        config = load_config(None, {key: str(source), "objective.name": "diffcse"})
        return config.model.init or config.objective.diffcse.generator

    assert [named(source) for source in (other, "bert-base-uncased", "x" * 300)] == [
        str(other),
        "bert-base-uncased",
        "x" * 300,
    ]
    with pytest.raises(
        UserError, match=rf"{key}: .*run is a run without an export yet.*clearly export \S+/run$"
    ):
        named(run)
    (run / "export").mkdir()
    (run / "export" / "config.json").write_text("{}")
    assert named(run) == named(f"{run}/") == str(run / "export")
    (run / "best" / "config.json").write_text("{}")
    assert named(run) == named(f"{run}/") == str(run / "best") and named(run / "export") == str(
        run / "export"
    )


@pytest.mark.parametrize(
    "overrides",
    [
        {"objective.mlm.later_rates": "{2000: 0.2}"},
        {"objective.mlm.later_rates": "{5000: 0.2}", "objective.mlm.rate_change": "linear"},
        {"objective.false_negatives.guide": "self", "objective.false_negatives.margin": "-0.1"},
    ],
)
def test_what_changes_something_is_taken(overrides):
    load_config(None, overrides)


def test_what_changes_nothing_is_refused_of_a_flag_and_taken_of_a_record(tmp_path):
    """A finished run's config.yaml may hold it, and is read again to verify, show or resume it."""
    tree = {
        "objective": {
            "name": "simcse",
            "false_negatives": {"margin": 0.1},
            "mlm": {"weight": 0, "later_rates": {500: 0.2, 5000: 0.1}},
        },
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    config = load_config(tmp_path / "config.yaml", {"train.steps": "100"})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert load_config(tmp_path / "config.yaml", {"train.lr": "1e-4"}).objective == config.objective
    for key, value, needs in (
        ("objective.false_negatives", "{margin: 0.1}", "objective.false_negatives.guide, as self"),
        ("objective.false_negatives.margin", "0.1", "objective.false_negatives.guide, as self"),
        ("objective.mlm.later_rates.50", "0.1", "objective.mlm.weight and objective.mlm.copies"),
    ):
        with pytest.raises(UserError, match=f"changes nothing .*: set {needs}, or leave it out"):
            load_config(tmp_path / "config.yaml", {key: value})


@pytest.mark.parametrize("value", ["15", "x", "1e4", "none", "-64"])
def test_a_wrong_micro_batch_is_one_message(value):
    with pytest.raises(UserError, match=rf"micro_batch_tokens: give auto or an integer.*, not '{value}'$"):
        load_config("clear_micro", {"train.micro_batch_tokens": value})
