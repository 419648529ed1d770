"""Whether the views of a run can teach it anything: checks before the first step."""

from collections.abc import Callable

from augment.spec.grammar import parse
from pretrain.common.errors import UserError
from pretrain.config.objectives import ObjectiveConfig
from pretrain.config.run import Config
from pretrain.data.batch import BatchSpec
from pretrain.objectives import SYSTEMS, WholeObjective
from pretrain.start.data import Data

DROWNED = 0.05  # least `signal_to_noise` at which a sentence loss learns; from 0.11 it did, by short excerpts


def require_signal(
    config: Config, objective: WholeObjective, signal: float, warn: Callable[[str], None]
) -> None:
    """Warn before the first step that the sentence loss will not learn, or refuse to go on.

    Args:
        signal: `view_signal` of the start (`pretrain.step.heldout`).

    Raises:
        UserError: it will not, and `train.faults.dead_loss` is stop.
    """
    if signal >= DROWNED or not objective.needs_views(config.train.steps - 1):
        return
    model, remedy = config.model, "views that differ less (--augment.excerpt, --aug)"
    if config.objective.view_dropout and (model.dropout or model.attention_dropout):
        remedy = "--objective.view_dropout false (masked language modelling keeps dropout), or " + remedy
    if model.pooling == "cls":
        remedy = "--model.pooling mean, or " + remedy
    message = (
        f"this setting will not learn the sentence loss: two views of a sequence differ more than two "
        f"sequences do (signal to noise {signal:.3f}, pooling {model.pooling}). Give {remedy}"
    )
    if config.train.faults.dead_loss == "stop":
        raise UserError(message)
    warn(message)


def require_different_views(config: Config, data: Data, objective: WholeObjective, spec: BatchSpec) -> None:
    """Refuse views of the same tokens that are embedded without dropout.

    Their vectors are equal, and a contrastive loss can only push sentences apart. Objectives of the user's
    own may draw a difference themselves.
    """
    if config.objective.view_dropout and (config.model.dropout or config.model.attention_dropout):
        return
    views = {view.role: view for view in data.views}

    def text_of(role: str) -> tuple[str, bytes]:
        column, prompt = views[role].column, spec.prompts.get(role)
        return column if column in data.train.columns else "text", b"" if prompt is None else prompt.tobytes()

    for name in filter(SYSTEMS.__contains__, objective.terms):
        section, roles = ObjectiveConfig.section(name), objective.terms[name].compared
        augmented = not all(parse(views[role].augmentation).is_identity for role in roles)
        if augmented or len(set(map(text_of, roles))) > 1 or not getattr(config.objective, section).weight:
            continue
        specs = ", ".join(dict.fromkeys(f"{role} {config.augment.of_role(role)}" for role in roles))
        raise UserError(
            f"the objective {name} compares views of a sentence that are the same tokens (augment: {specs}), "
            "and no dropout tells them apart. Set an augmentation (--aug del-span,reorder) or dropout "
            "(--model.dropout 0.1, objective.view_dropout), or train on data with a column `positive`"
        )
