"""Objectives: what is learned from a global batch, one file a system, and how they are put together."""

from typing import Any

from augment.core.errors import AugmentationError
from augment.core.own_code import load
from pretrain.common.errors import UserError, naming
from pretrain.config.run import Config
from pretrain.data.batch import ViewSpec
from pretrain.model.encoder import SentenceEncoder
from pretrain.objectives.augcse import Augcse
from pretrain.objectives.base import BatchContext, Objective, Views
from pretrain.objectives.clear import Clear
from pretrain.objectives.diffcse import Diffcse
from pretrain.objectives.distill import Distill, Retain
from pretrain.objectives.scored import Scored
from pretrain.objectives.simcse import Declutr, Esimcse, Sda, Simcse
from pretrain.objectives.vadvcse import Vadvcse
from pretrain.objectives.vascl import Vascl
from pretrain.objectives.whole import WholeObjective

__all__ = ["BatchContext", "Objective", "Views", "WholeObjective", "build_objective", "view_specs"]

SYSTEMS: dict[str, type[Objective]] = {
    system.__name__.lower(): system
    for system in (
        *(Clear, Simcse, Vascl, Augcse, Vadvcse, Sda, Diffcse, Esimcse, Declutr),
        *(Retain, Distill, Scored),
    )
}


def build_objective(
    config: Config,
    encoder: SentenceEncoder,
    tokenizer: Any = None,
    number_of_labels: int = 0,
    guide: SentenceEncoder | None = None,
) -> WholeObjective:
    """Build what `objective.name` asks for, heads freshly initialised, before an engine wraps the encoder.

    tokenizer: for objectives that edit sentences (diffcse). number_of_labels: values that the labels of a
    labelled view may have (augcse). guide: the frozen encoder beside the trained one, if there is one.
    """
    wide = [width for width in config.objective.widths if width > encoder.hidden_size]
    if wide:
        raise UserError(f"objective.matryoshka: {wide[0]} is wider than the vectors, {encoder.hidden_size}")
    terms = {}
    for part in config.objective.parts:
        if part == "mlm":
            continue
        more = {"augcse": {"number_of_labels": number_of_labels}, "diffcse": {"tokenizer": tokenizer}}
        system, name = _system(part)
        terms[name] = term = system(config, encoder, **more.get(part, {}))
        if guide is not None and isinstance(term, Distill):
            term.require_teacher(guide.hidden_size, encoder.hidden_size)
    return WholeObjective(config, terms, guide)


def view_specs(config: Config) -> list[ViewSpec]:
    """Return the views that training with this configuration makes, in the order of the objective's roles."""
    systems = [_system(part)[0] for part in config.objective.parts if part != "mlm"]
    labelled = {system.labelled_role_of(config) for system in systems}
    roles = dict.fromkeys(role for system in systems for role in system.roles_of(config))
    return [ViewSpec(role, config.augment.of_role(role), role in labelled) for role in roles]


def _system(part: str) -> tuple[type[Objective], str]:
    """Return the class of a summand of the objective's name, and the name of its losses' section."""
    return (SYSTEMS[part], part) if part in SYSTEMS else _plug_in(part)


def _plug_in(name: str) -> tuple[type[Objective], str]:
    """Return the class FILE.py:CLASS, and a name for its losses' section."""
    file, _, own = name.rpartition(":")
    with naming(f"objective {name}", AugmentationError):
        system = load(name)
    if not (isinstance(system, type) and issubclass(system, Objective)):
        raise UserError(f"objective {name}: {file} has no class {own} derived from Objective")
    return system, own
