"""What is in force: read from the model that was built, and compared with the configuration that is recorded.

A checkpoint brings dropouts of its own, an objective builds heads and views that its settings only imply, and
a setting may be lost on the way. What a run writes down must be what it trains with.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import nn

from augment.core.own_code import OWN
from pretrain.common.errors import UserError
from pretrain.config.objectives import ObjectiveConfig
from pretrain.config.run import Config
from pretrain.config.validation import leaves
from pretrain.data.batch import ViewSpec
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.layer import layers_of
from pretrain.objectives import Objective, WholeObjective, view_specs
from pretrain.objectives.vadvcse import Vadvcse

InForce = dict[str, Any]
"""Dotted key of the configuration, or a name of what it has no key for -> the value that was found."""


def verify_model_matches_config(
    config: Config, encoder: SentenceEncoder, objective: WholeObjective, views: Sequence[ViewSpec]
) -> InForce:
    """Return what is in force, before an engine partitions the model.

    Args:
        views: those that the loader makes.

    Raises:
        UserError: something differs from `config`, which the run records.
    """
    found = _of_encoder(encoder)
    for name in objective.terms:
        found |= _of_term(name, objective.terms[name])
    found["weights of losses"] = objective.weights(config.train.steps - 1)
    made = view_specs(config) if config.data.cache else views  # of views made once, what they were made by
    for term in objective.terms.values():
        found["objective.matryoshka"] = list(term.widths)
        found |= {f"objective.false_negatives.{key}": value for key, value in term.false_negatives}
    found["views"] = {view.role: view.augmentation for view in made}
    found["objective.mlm.copies"] = objective.masked_copies
    recorded = dict(leaves(config.model_dump(mode="json")))
    wrong = [
        f"{key} is {_text(value)} in the model, and {_text(expected)} in the configuration"
        for key, value in found.items()
        if (expected := _recorded(key, recorded, config, value)) != value
    ]
    roles = [view.role for view in views]
    if roles != list(objective.roles):
        wrong.append(f"the views {', '.join(roles)} are made, and {', '.join(objective.roles)} are read")
    if wrong:
        raise UserError(
            f"what was built is not what {config.run_folder / 'config.yaml'} would say: {'; '.join(wrong)}. "
            "Name the value in the model by its flag, or build the model otherwise"
        )
    return found


def _of_encoder(encoder: SentenceEncoder) -> InForce:
    layers = layers_of(encoder.lm)
    found: InForce = {
        "model.layers": len(layers),
        "model.hidden_size": encoder.hidden_size,
        "model.pooling": encoder.pooling,
    }
    hidden = {encoder.lm.base_model.embeddings.rate}
    attention = set()
    for layer in layers:
        hidden.add(layer.rate)
        attention.add(getattr(layer, "probability_rate", layer.attention_rate))
    # a checkpoint may drop at several rates, and the configuration holds the largest
    found |= {"model.dropout": max(hidden), "model.attention_dropout": max(attention)}
    if len(hidden) > 1:
        found["rates of dropout"] = sorted(hidden)
    return found


def _of_term(name: str, term: Objective) -> InForce:
    found: InForce = {}
    settings = getattr(term, "settings", None)
    if (temperature := getattr(settings, "temperature", None)) is not None:
        found[f"objective.{ObjectiveConfig.section(name)}.temperature"] = temperature
    if isinstance(term, Vadvcse):  # numbers that the configuration leaves to the reading
        found[f"reading of {name}"] = asdict(term.reading)
    heads = {
        part: [list(layer.weight.shape) for layer in head.modules() if isinstance(layer, nn.Linear)]
        for part, head in term.named_children()
        if not any(isinstance(inner, SentenceEncoder) for inner in head.modules())
    }
    found[f"heads of {name}"] = {part: shapes for part, shapes in heads.items() if shapes}
    return found


def _recorded(key: str, recorded: dict[str, Any], config: Config, found: Any) -> Any:
    """Return the value that the configuration holds for a key; what it has no key for is as found."""
    if key == "objective.mlm.copies":
        return config.objective.masked_copies
    if key == "weights of losses":
        return _weights(config, found)
    if key == "objective.matryoshka":
        return list(config.objective.widths)
    if key == "views":
        return {role: config.augment.of_role(role) for role in found}
    return recorded.get(key, found)


def _weights(config: Config, found: dict[str, float]) -> dict[str, float]:
    """Return the weights that the settings give to the losses at the last step, under the names found.

    Those of an objective of the user's own are as found.
    """
    if any(map(OWN.match, config.objective.parts)):
        return found
    last = config.train.steps - 1
    wanted = [config.objective.mlm.weight] if config.objective.masked_copies else []
    for section in config.objective.sections:
        settings = getattr(config.objective, section)
        rise = settings.rise(last)
        wanted += [value * rise for value in settings.loss_weights]
    same = sorted(wanted) == sorted(found.values())
    return found if same else {f"loss {number}": weight for number, weight in enumerate(wanted)}


def _text(value: Any) -> str:
    return str(value).replace("'", "")
