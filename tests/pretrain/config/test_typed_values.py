"""What is typed behind a flag, or stands in a sweep's row, is read by the type of its field: in every
command."""

import typing
from pathlib import Path

import pytest
import yaml
from commands import call
from pydantic import BaseModel, TypeAdapter, ValidationError

from pretrain.commands.sweep.file import expand, read_sweep, text_of
from pretrain.common.errors import UserError
from pretrain.common.typed_values import NONE_IS_A_VALUE, faults, nearest, parse_value
from pretrain.config.data import DataConfig, Source
from pretrain.config.recipe import describe, load_config
from pretrain.config.run import Config
from pretrain.config.validation import read_yaml, type_at
from pretrain.prepare import __main__ as prepare_cli
from pretrain.prepare.cache import __main__ as cache_command

ROOT = Path(__file__).parents[3]


def fields(model, prefix=""):
    """Every (dotted key, type) of a tree of models, sections themselves left out."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field.annotation


EVERY_FIELD = [
    (model, key, kind)
    for model in (Config, DataConfig, cache_command.CacheFlags, prepare_cli.PrepareFlags)
    for key, kind in fields(model)
]


@pytest.mark.parametrize(
    "model,key,kind", EVERY_FIELD, ids=lambda part: part if isinstance(part, str) else ""
)
def test_every_choice_and_every_null_can_be_typed(model, key, kind):
    assert type_at(model, key) == kind
    members = typing.get_args(kind) if type(None) in typing.get_args(kind) else (kind,)
    choices = [
        value
        for member in members
        if typing.get_origin(member) is typing.Literal
        for value in typing.get_args(member)
    ]
    for choice in choices:
        assert parse_value(str(choice), kind, key) == choice
    if type(None) in members:
        own_none = "none" in choices or any(
            NONE_IS_A_VALUE in getattr(member, "__metadata__", ()) for member in members
        )
        assert parse_value("null", kind, key) is None
        assert parse_value("none", kind, key) == ("none" if own_none else None)
    elif (
        kind is not str and "none" not in choices and kind is not Path and typing.get_origin(kind) is not dict
    ):
        with pytest.raises(ValueError):  # a field that has no null says so, and what was typed
            assert TypeAdapter(kind).validate_python(parse_value("none", kind, key)) != "none"


@pytest.mark.parametrize(
    "given,found",
    [
        ({"objective": "simcse", "objective.simcse.head": "none"}, "none"),
        ({"data.prepare.dedup": "none"}, "none"),
        ({"augment.anchor": "none"}, "none"),
        ({"augment.anchor": "null"}, None),
        ({"name": "none"}, "none"),
        ({"name": "[draft]"}, "[draft]"),
        ({"model.init": "none"}, None),
        ({"train.betas": "(0.9, 0.95)"}, (0.9, 0.95)),
        ({"train.betas": "[0.9, 0.95]"}, (0.9, 0.95)),
        ({"objective.contrastive": "{temperature: 0.2}"}, None),
        ({"deepspeed.zero_optimization.reduce_bucket_size": "5e8"}, 500_000_000),
        ({"objective": "mine.py:Mine", "objective.options.margin": "none"}, None),
        ({"deepspeed.zero_optimization.offload_optimizer.device": "none"}, "none"),
        ({"deepspeed.communication_data_type": "null"}, None),
    ],
)
def test_a_flag_of_the_training_command(given, found):
    config = load_config(None, given)
    value: typing.Any = config
    for part in list(given)[-1].split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    if isinstance(value, BaseModel):
        value, found = value.temperature, 0.2
    assert value == found


def test_a_row_of_a_sweep_means_what_its_yaml_says(tmp_path):
    keys = {
        "objective.simcse.head": "none",
        "augment.anchor": None,
        "model.intermediate_size": None,
        "train.betas": [0.9, 0.95],
        "objective.mask_duplicates": False,
        "augment.spec": "none",
        "train.lr": 1e-4,
    }
    sweep = {
        "title": "T",
        "recipe": str(ROOT / "configs" / "simcse_micro.yaml"),
        "rows": {"one": {"set": keys}},
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    row = expand(read_sweep(tmp_path / "sweep.yaml"), tmp_path, {})[0]
    config = row.config(1)
    assert (config.objective.simcse.head, config.augment.anchor, config.model.intermediate_size) == (
        "none",
        None,
        None,
    )
    assert (config.train.betas, config.objective.mask_duplicates, config.augment.spec) == (
        (0.9, 0.95),
        False,
        "none",
    )
    assert (
        load_config(row.recipe, {key: text_of(value) for key, value in keys.items()} | {"train.seed": "1"})
        == config
    )


@pytest.mark.full
def test_flags_of_preparation_and_of_a_cache(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(
        "\n\n".join(f"A sentence of number {n} stands here." for n in range(40))
    )
    data = tmp_path / "data"
    code = call(
        prepare_cli.main,
        keys=prepare_cli.data_flags(),
        source=str(tmp_path / "text.txt"),
        out=str(data),
        dedup="none",
        workers="none",
        progress="false",
        vocabulary="300",
        tokenizer="none",
        heldout="0.2",
    )
    assert not code and read_yaml(data / "manifest.json")["config"]["dedup"] == "none"
    made = call(
        cache_command.main,
        data=str(data),
        out=str(tmp_path / "cache"),
        aug="del-word|reorder",
        synonyms="none",
        positive="none",
        workers="none",
        progress="false",
    )
    assert not made and read_yaml(tmp_path / "cache" / "manifest.json")["columns"] == ["text", "augmented"]
    for flags, words in (
        ({"resample": "0"}, ["resample", "greater than or equal"]),
        ({"workers": "few"}, ["workers", "few"]),
        ({"progress": "perhaps"}, ["progress", "perhaps"]),
        ({"seed": "none"}, ["seed", "none"]),
    ):
        given = {"data": str(data), "out": str(tmp_path / "other"), "aug": "del-word|reorder"} | flags
        with pytest.raises(UserError) as caught:
            call(cache_command.main, **given)
        assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    "content,words",
    [
        (b"\xff\xfe\x00binary\x80", ["read as text"]),
        (b"a: " + b"[" * 30_000 + b"]" * 30_000, ["nested too deeply"]),
        (b"a: [1\n", ["not YAML"]),
        (b"a: 2026-13-45\n", ["not YAML", "month"]),
        (b"\x00\x01", ["not YAML"]),
    ],
)
def test_a_file_that_is_no_recipe_is_one_message(tmp_path, content, words):
    (tmp_path / "recipe.yaml").write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_config(tmp_path / "recipe.yaml", {})
    assert all(word in str(caught.value) for word in [*words, "recipe.yaml"]) and "\n" not in str(
        caught.value
    )


@pytest.mark.parametrize(
    "given", [{"deepspeed.comms_logger": "[1"}, {"deepspeed.x": "[" * 30_000}, {"objective.options": "{a"}]
)
def test_a_flag_that_is_no_yaml_is_one_message(given):
    with pytest.raises(UserError) as caught:
        load_config(None, given)
    assert "\n" not in str(caught.value)


def test_a_list_of_mappings_that_is_no_yaml_is_no_path():
    with pytest.raises(UserError, match=r"--source is not YAML: .*expected ',' or '}'"):
        parse_value('[{source: "a.jsonl" text_key: body}]', list[Source], "--source")
    assert parse_value("[ab]*.txt", list[Source], "--source") == "[ab]*.txt"
    assert parse_value("[ab", list[Source], "--source") == "[ab"


class NoKeys(BaseModel, extra="forbid"):
    """A model that refuses every key."""


@pytest.mark.parametrize(
    "length, said, more", [(9, 40, ""), (98, 30, "; and 10 more"), (9000, 1, "; and 39 more")]
)
def test_faults_beyond_3000_characters_are_counted_but_the_first_is_always_said(length, said, more):
    keys = [f"{number:0{length}}" for number in range(40)]
    with pytest.raises(ValidationError) as refused:
        NoKeys.model_validate(dict.fromkeys(keys))
    assert faults(refused.value, unknown_key=str) == "; ".join(keys[:said]) + more


@pytest.mark.parametrize(
    "typed,meant",
    [
        ("train.learning_rat", "train.lr"),
        ("model.hiden_size", "model.hidden_size"),
        ("weigth_decay", "train.weight_decay"),
        ("dropuot", "model.dropout"),
        ("presicion", "train.precision"),
        ("lane", "data.lanes"),
        ("augment.spek", "augment.spec"),
        ("global-batchs", "train.global_batch"),
        ("plan", None),
        ("plans", None),
        ("pool", None),
        ("verbose", None),
    ],
)
def test_a_name_is_proposed_for_a_typo_alone(typed, meant):
    said = nearest(typed, [name for name, *_ in describe()], "--")
    assert said == (f"; did you mean --{meant}?" if meant else "")
