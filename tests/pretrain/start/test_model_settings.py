"""What a model is built with is read from the model, and must be what the configuration says."""

from typing import Any

import pytest
from export_helpers import make_run, make_tokenizer

from pretrain.config.objectives import ObjectiveConfig
from pretrain.config.recipe import validate_config
from pretrain.config.validation import leaves
from pretrain.data.batch import ViewSpec
from pretrain.export.folder import export
from pretrain.model.layer import layers_of
from pretrain.objectives import build_objective, view_specs
from pretrain.start.encoder import starting_encoder

SIZES = {"layers": 3, "hidden_size": 16, "heads": 2, "intermediate_size": 24, "max_positions": 20}


def verify_model_matches_config(config, encoder, objective, views) -> dict[str, Any]:
    """Return the values that the model was built with; raise ValueError where the configuration differs."""
    layers = layers_of(encoder.lm)
    built: dict[str, Any] = {
        "model.layers": len(layers),
        "model.hidden_size": encoder.hidden_size,
        "model.pooling": encoder.pooling,
    }
    # a checkpoint may drop at several rates, and the configuration holds the largest
    built["model.dropout"] = max(encoder.lm.base_model.embeddings.rate, *(layer.rate for layer in layers))
    built["model.attention_dropout"] = max(
        getattr(layer, "probability_rate", layer.attention_rate) for layer in layers
    )
    for name in objective.terms:
        temperature = getattr(getattr(objective.terms[name], "settings", None), "temperature", None)
        if temperature is not None:
            built[f"objective.{ObjectiveConfig.section(name)}.temperature"] = temperature
    recorded = dict(leaves(config.model_dump(mode="json")))
    wrong = [
        f"{key} is {value} in the model, and {recorded[key]} in the configuration"
        for key, value in built.items()
        if recorded.get(key, value) != value
    ]
    roles = [view.role for view in views]
    if roles != list(objective.roles):
        wrong.append(f"the views {', '.join(roles)} are made, and {', '.join(objective.roles)} are read")
    if wrong:
        raise ValueError(
            f"what was built is not what {config.run_folder / 'config.yaml'} would say: {'; '.join(wrong)}"
        )
    return built


def config_of(name="simcse", model=None, **objective):
    tree = {
        "folder": "run",
        "model": {**SIZES, "dropout": 0.2, "attention_dropout": 0.05, **(model or {})},
        "objective": {"name": name, **objective},
        "augment": {"augmented": "del-word|reorder"},
        "train": {"global_batch": 32, "micro_batch_tokens": 4096},
    }
    return validate_config(tree, "test")


def built(config):
    tokenizer = make_tokenizer()
    encoder = starting_encoder(config, tokenizer)
    return encoder, build_objective(config, encoder, tokenizer, 3)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "modernbert"])
def test_the_encoder_is_read_from_its_layers(kind):
    config = config_of(model={"type": kind, "pooling": "last-two", "attention": "exact"})
    encoder, objective = built(config)
    assert encoder.exact_attention
    found = verify_model_matches_config(config, encoder, objective, view_specs(config))
    assert (found["model.layers"], found["model.pooling"]) == (3, "last-two")
    assert (found["model.dropout"], found["model.attention_dropout"]) == (0.2, 0.05)


@pytest.mark.parametrize("name", ["clear", "vascl", "augcse", "simcse+vascl", "mlm"])
def test_every_objective_is_as_recorded(name):
    config = config_of(name, vascl={"neighbourhood_weight": 0.25, "temperature": 0.07})
    encoder, objective = built(config)
    found = verify_model_matches_config(config, encoder, objective, view_specs(config))
    if "vascl" in name:
        assert found["objective.vascl.temperature"] == 0.07


def test_a_checkpoints_own_dropout_is_what_is_recorded_and_a_given_one_what_is_in_force(tmp_path):
    make_run(tmp_path / "run")  # trained with 0.1
    start = str(export(tmp_path / "run", tmp_path / "export"))
    for given, expected in (({}, 0.1), ({"dropout": 0.3}, 0.3)):
        config = validate_config(
            {"folder": "run", "model": {"init": start, **given}, "objective": {"name": "simcse"}}, "test"
        )
        config.train.micro_batch_tokens = 4096
        encoder, objective = built(config)
        assert (
            verify_model_matches_config(config, encoder, objective, view_specs(config))["model.dropout"]
            == expected
        )
        assert config.model.dropout == expected and config.model.layers == 3


def test_what_is_not_as_recorded_is_one_error():
    config = config_of("vascl", vascl={"temperature": 0.07})
    encoder, objective = built(config)
    for layer in layers_of(encoder.lm):
        layer.rate = 0.4
    encoder.pooling = "mean"
    objective.terms["vascl"].settings = config.objective.vascl.model_copy(update={"temperature": 0.5})
    with pytest.raises(ValueError, match="what was built") as caught:
        verify_model_matches_config(
            config, encoder, objective, [ViewSpec("anchor", "none"), ViewSpec("negative", "none")]
        )
    for words in (
        "model.dropout is 0.4 in the model, and 0.2 in the configuration",
        "model.pooling is mean in the model, and cls",
        "objective.vascl.temperature is 0.5 in the model, and 0.07",
        "the views anchor, negative are made, and anchor, positive are read",
        "config.yaml",
    ):
        assert words in str(caught.value)
