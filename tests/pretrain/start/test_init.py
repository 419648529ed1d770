"""Starting from a checkpoint: dropout as given or its own, sizes its own, and a record of what was built."""

import typing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from exactness_worker import FakeTokenizer
from run_helpers import TINY, command, finish, start
from torch import nn

from augment.core.ragged import Ragged
from pretrain.checkpoint import store
from pretrain.checkpoint.store import read_json
from pretrain.commands.sweep.runs import identity
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config, validate_config
from pretrain.config.run import ModelConfig
from pretrain.export.folder import read_policy
from pretrain.model.architectures import FAMILIES, architecture_of, config_from
from pretrain.model.encoder import build_encoder, load_encoder
from pretrain.objectives import build_objective
from pretrain.start.continuity import record_changes
from pretrain.start.encoder import check_sources, start_at_frequencies, starting_encoder
from pretrain.start.folder import dry_run_config

SIZES = {"layers": 2, "hidden_size": 32, "heads": 2, "intermediate_size": 48, "max_positions": 40}


def saved(folder: Path, kind: str = "bert", dropout: float = 0.1) -> Path:
    torch.manual_seed(0)
    encoder = build_encoder(
        SIZES | {"type": kind, "dropout": dropout, "attention_dropout": dropout}, FakeTokenizer()
    )
    encoder.lm.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", list(FAMILIES))
def test_dropout_that_is_given_is_that_of_the_loaded_model(tmp_path, kind):
    source = saved(tmp_path, kind)
    ids, lengths = torch.arange(5, 35), torch.tensor([10, 20])
    own = load_encoder(source, FakeTokenizer())
    for given, draws in (
        ({}, True),
        ({"dropout": 0.0}, True),
        ({"attention_dropout": 0.0}, True),
        ({"dropout": 0.0, "attention_dropout": 0.0}, False),
    ):
        encoder = load_encoder(source, FakeTokenizer(), **given).train()
        assert torch.equal(encoder.embed(ids, lengths), encoder.embed(ids, lengths)) != draws, given
        assert architecture_of(encoder.lm.config) == architecture_of(own.lm.config) | given
        for name, value in encoder.lm.state_dict().items():
            assert torch.equal(value, own.lm.state_dict()[name]), name


@pytest.mark.parametrize("kind", list(FAMILIES))
def test_a_config_says_what_was_built(kind):
    asked = SIZES | {"type": kind, "dropout": 0.2, "attention_dropout": 0.3, "initializer_range": 0.07}
    assert architecture_of(config_from(asked, FakeTokenizer())) == asked


def test_every_family_can_be_recorded():
    assert set(typing.get_args(ModelConfig.model_fields["type"].annotation)) == set(FAMILIES)


def settings(source: Path | None, **model):
    return validate_config({"model": {"init": str(source), **model}}, "test")


def test_what_is_recorded_is_true_of_the_model(tmp_path):
    config = settings(saved(tmp_path), dropout=0.3)
    encoder = starting_encoder(config, FakeTokenizer())
    expected = SIZES | {"type": "bert", "dropout": 0.3, "attention_dropout": 0.1}
    assert {key: getattr(config.model, key) for key in expected} == expected
    assert (
        encoder.lm.config.hidden_dropout_prob == 0.3 and encoder.lm.config.attention_probs_dropout_prob == 0.1
    )
    # what a run's config.yaml says
    assert starting_encoder(settings(tmp_path, **expected), FakeTokenizer()).hidden_size == 32


@pytest.mark.parametrize(
    "key, objective",
    [
        ("model.init", "simcse"),
        ("objective.distill.model", "simcse+distill"),
        ("objective.false_negatives.guide", "simcse"),
        ("objective.diffcse.generator", "diffcse"),
    ],
)
def test_models_that_take_less_than_the_data_has_are_refused_at_once(tmp_path, tiny_data, key, objective):
    flags = {key: str(saved(tmp_path)), "objective": objective}
    prepared = f"{tiny_data} has", "prepare it with max_length 40"
    to_be_made = "data.prepare.max_length makes", "--data.prepare.max_length 40"
    for data, (what, remedy) in (
        ({"data": str(tiny_data)}, prepared),
        ({"data.prepare.sources": "embedded", "data.prepare.max_length": "48"}, to_be_made),
    ):
        config = load_config("simcse_micro", flags | data)
        takes = f"{key}={tmp_path} takes 40 positions: name one with 48, or {remedy}"
        expected = f"{what} sequences of up to 48 tokens, and {takes}"
        with pytest.raises(UserError, match=expected):
            check_sources(config)  # at the start, and once data is fetched


@pytest.mark.parametrize(
    "key, value, has",
    [
        ("layers", 6, 2),
        ("hidden_size", 64, 32),
        ("heads", 4, 2),
        ("max_positions", 20, 40),
        ("intermediate_size", 64, 48),
        ("type", "roberta", "bert"),
        ("initializer_range", 0.5, 0.02),
    ],
)
def test_a_size_that_a_checkpoint_does_not_have_is_refused(tmp_path, key, value, has):
    with pytest.raises(UserError, match=rf"{tmp_path} has model\.{key} {has}, not {value}\."):
        starting_encoder(settings(saved(tmp_path), **{key: value}), FakeTokenizer())


def test_the_second_encoder_of_an_objective_has_the_dropout_of_the_first(tmp_path):
    generator = saved(tmp_path / "generator")
    config = validate_config(
        {
            "model": {"init": str(saved(tmp_path / "model")), "dropout": 0.3, "attention_dropout": 0.2},
            "objective": {"name": "diffcse+esimcse", "diffcse": {"generator": str(generator)}},
        },
        "test",
    )
    encoder = starting_encoder(config, FakeTokenizer())
    objective = build_objective(config, encoder, FakeTokenizer()).train()
    rates = [
        [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
        for model in (encoder, objective.terms["diffcse"].discriminator)
    ]
    assert rates[0] == rates[1] and set(rates[0]) == {0.3, 0.2}
    # it runs without dropout
    assert not any(m.training for m in objective.terms["esimcse"].momentum.modules())
    own = [m.p for m in objective.terms["diffcse"]._generator[0].modules() if isinstance(m, nn.Dropout)]
    assert set(own) == {0.1}  # a model of its own


def test_sizes_of_a_recipe_are_those_of_its_random_model(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {layers: 4, hidden_size: 256, dropout: 0.2, pooling: mean}\n")
    config = load_config(recipe, {"init": str(saved(tmp_path / "model")), "model.heads": "2"})
    assert config.model.model_fields_set == {"init", "dropout", "heads"} and config.model.pooling == "mean"
    starting_encoder(config, FakeTokenizer())
    assert (config.model.layers, config.model.hidden_size, config.model.dropout) == (2, 32, 0.2)
    recipe.write_text(f"model: {{layers: 4, init: {tmp_path / 'model'}}}\n")  # one that contradicts itself
    assert load_config(recipe, {}).model.layers == 4


def test_a_dry_run_knows_what_was_given(tmp_path):
    flags = {"init": str(saved(tmp_path)), "objective.start_step": "9", "train.steps": "500"}
    flags["objective.mlm.weight"] = "0.1"
    config = load_config("adapt_micro", flags)
    check_sources(config)  # which says nothing of its pooling: the recipe's holds
    tried = dry_run_config(config)
    assert tried.model.pooling == "mean" and tried.objective.start_step == 0
    assert tried.model.model_fields_set == {"init", "pooling"}
    assert (tried.train.log_every, tried.evaluate.every, tried.checkpoint.every) == (
        1,
        2,
        2,
    ) and tried.train.steps == 500


def test_sweeps_tell_a_given_dropout_from_a_checkpoints_own(tmp_path):
    source = saved(tmp_path, dropout=0.0)
    assert (
        identity(settings(source))
        != identity(settings(source, dropout=0.1))
        != identity(settings(source, dropout=0.2))
    )


@pytest.mark.full
def test_by_the_command(tiny_data, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    flags = {"train__steps": 2, "train__warmup_steps": 1, "checkpoint__every": 1, "evaluate__every": 0}
    finish(start(command(tiny_data, first, **flags)))
    sizes = {f"model__{key}": None for key in ("layers", "hidden_size", "heads", "max_positions")}
    flags |= sizes | {"init": str(first / "export"), "model__attention_dropout": 0.25}
    output = finish(start(command(tiny_data, second, **flags)))
    assert "dropout 0.1 (0.25 on attention)" in output
    true = {key: TINY[f"model.{key}"] for key in ("layers", "hidden_size", "max_positions")}
    true |= {"dropout": 0.1, "attention_dropout": 0.25}
    newest = store.latest(second / "checkpoints")
    records = [
        yaml.safe_load((second / "config.yaml").read_text()),
        store.read_state(newest)["config"],
        read_policy(second / "export")["recipe"],
    ]
    for record in records:
        assert {key: record["model"][key] for key in true} == true
    assert read_json(newest)["hugging_face"]["config"]["attention_probs_dropout_prob"] == 0.25
    output = finish(
        start(command(tiny_data, second, **flags | {"checkpoint__resume": "auto", "train__steps": 3}))
    )
    assert f"resumed from {newest} at step 2" in output


def test_a_resumed_run_takes_the_starting_models_dropout_unless_it_is_given(tmp_path):
    source = str(saved(tmp_path))
    config = load_config(None, {"init": source, "model.dropout": "0.3"})
    starting_encoder(config, FakeTokenizer())
    state = {"config": config.model_dump(mode="json"), "step": 5, "progress": {}}
    for given in ({}, {"model.dropout": "0.3"}, {"model.attention_dropout": "0.1"}, {"model.layers": "2"}):
        record_changes(load_config(None, {"init": source, **given}), state, tmp_path)
        assert state["progress"]["changes"] == []
    for given in ({"model.dropout": "0.1"}, {"model.attention_dropout": "0.3"}, {"model.layers": "3"}):
        with pytest.raises(UserError, match=next(iter(given))):
            record_changes(load_config(None, {"init": source, **given}), state, tmp_path)


def test_a_random_head_starts_at_the_frequencies_of_the_data():
    texts = [[2, 7, 7, 9, 3], [2, 7, 11, 3]]
    chunks = [
        SimpleNamespace(stored=Ragged.from_sequences(texts)),
        SimpleNamespace(stored=Ragged.from_sequences(texts[:1])),
    ]
    data = SimpleNamespace(num_chunks=2, read=chunks.__getitem__)
    torch.manual_seed(0)
    encoder = build_encoder(SIZES | {"type": "bert"}, FakeTokenizer())
    start_at_frequencies(encoder, data, SimpleNamespace(all_special_ids=[0, 1, 2, 3, 4]))
    shares = encoder.lm.get_output_embeddings().bias.double().exp()
    seen = {7: 5, 9: 2, 11: 1}
    expected = [(seen.get(token, 0) + 1) / (8 + len(shares)) for token in range(len(shares))]
    assert shares.tolist() == pytest.approx(expected, rel=1e-6)
