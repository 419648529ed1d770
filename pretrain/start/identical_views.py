"""Refuse a run in which all views of a sentence are the same: its contrastive loss has nothing to learn."""

import numpy as np

from augment.core.identity import equal_sequences
from pretrain.common.errors import UserError
from pretrain.common.ranks import on_rank_zero
from pretrain.config.objectives import ObjectiveConfig
from pretrain.config.run import Config
from pretrain.data.batch import BatchSpec, RankBatch
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.shards import ShardReader
from pretrain.objectives import SYSTEMS, WholeObjective
from pretrain.start.data import Data

SAMPLE = 512
"""Sequences of each set that are looked at."""


def require_different_views(config: Config, data: Data, objective: WholeObjective, spec: BatchSpec) -> None:
    """Refuse views of the same tokens under an encoder without dropout. Collective.

    Their vectors are equal, whatever the encoder does: every positive has a cosine of 1 from the start, and a
    contrastive loss can only push sentences apart. Objectives of the user's own are not judged: they may draw
    a difference themselves.

    Args:
        config: the run's, with the dropouts of the model that was built.
        spec: of the run's batches.

    Raises:
        UserError: in no sequence of a sample of the data do the views that a loss compares differ.
    """
    if config.model.dropout or config.model.attention_dropout:
        return
    compared = {
        name: objective.terms[name].compared
        for name in objective.terms
        if name in SYSTEMS and getattr(config.objective, ObjectiveConfig.section(name)).weight
    }
    if compared:
        on_rank_zero(lambda: _require_different(config, data, compared, spec))


def _require_different(
    config: Config, data: Data, compared: dict[str, tuple[str, ...]], spec: BatchSpec
) -> None:
    left, seen = dict(compared), 0
    for part in data.train.parts:
        batch = _sample(part, spec, config.train.seed, data.config.data.damaged)
        seen += len(batch)
        left = {name: roles for name, roles in left.items() if _all_equal(batch, roles)}
        if not left:
            return
    name, roles = next(iter(left.items()))
    specs = ", ".join(dict.fromkeys(f"{role} {config.augment.of_role(role)}" for role in roles))
    raise UserError(
        f"the objective {name} compares views of a sentence that are the same tokens (augment: {specs}; all "
        f"of {seen:,} sequences of {data.train.folder}), and the model has no dropout (model.dropout 0, "
        "model.attention_dropout 0): their vectors are equal, so that the loss could only push sentences "
        "apart. Set an augmentation (--aug del-span,reorder), or dropout (--model.dropout 0.1), or train on "
        f"data with a column `positive`; or leave the loss out (objective.{ObjectiveConfig.section(name)}"
        ".weight 0)"
    )


def _sample(reader: ShardReader, spec: BatchSpec, seed: int, damaged: str) -> RankBatch:
    size = min(SAMPLE, reader.num_sequences)
    return next(iter(Loader(reader, spec, LoaderSettings(seed, size, 1, damaged=damaged), Position(0, 1))))


def _all_equal(batch: RankBatch, roles: tuple[str, ...]) -> bool:
    first, *others = (batch.views[role].tokens for role in roles)
    return all(np.all(equal_sequences(first, other)) for other in others)
