"""What is in force: read from the model that was built, and compared with the configuration that is recorded.

A checkpoint brings dropouts of its own, and a setting may be lost on the way. What a run writes down must be
what it trains with.
"""

from collections.abc import Sequence
from typing import Any

from pretrain.common.errors import UserError
from pretrain.config.objectives import ObjectiveConfig
from pretrain.config.run import Config
from pretrain.config.validation import leaves
from pretrain.data.batch import ViewSpec
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.layer import layers_of
from pretrain.objectives import WholeObjective

InForce = dict[str, Any]
"""Dotted key of the configuration -> the value that the model has."""


def verify_model_matches_config(
    config: Config, encoder: SentenceEncoder, objective: WholeObjective, views: Sequence[ViewSpec]
) -> InForce:
    """Return what is in force, before an engine partitions the model.

    Args:
        views: those that the loader makes.

    Raises:
        UserError: something differs from `config`, which the run records.
    """
    layers = layers_of(encoder.lm)
    built: InForce = {
        "model.layers": len(layers),
        "model.hidden_size": encoder.hidden_size,
        "model.pooling": encoder.pooling,
        "model.layer_code": encoder.layer_code,
    }
    if encoder.layer_code == "own":
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
        raise UserError(
            f"what was built is not what {config.run_folder / 'config.yaml'} would say: {'; '.join(wrong)}"
        )
    return built
