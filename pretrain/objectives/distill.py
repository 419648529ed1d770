"""Learn from a frozen encoder: its vectors, or how alike it finds the batch's texts."""

from torch import Tensor
from torch.nn.functional import mse_loss

from pretrain.common.errors import UserError
from pretrain.config.run import Config
from pretrain.data.batch import NEGATIVE
from pretrain.losses.pairs import cosines, similarity_divergence
from pretrain.model.encoder import SentenceEncoder
from pretrain.objectives.base import BatchContext, Objective, Views


class Distill(Objective):
    """Distance to a teacher, with e the vectors, t the teacher's of the same tokens, c cosines of either.

    mse, cosine: mean over views and sequences of |e - t|^2 / d (Reimers and Gurevych 2020, equation 1), or of
    1 - cos(e, t).
    margin: mean over records with a negative of ((c(a, p) - c(a, n)) - (c_t(a, p) - c_t(a, n)))^2 (MarginMSE,
    Hofstaetter et al. 2020, equation 3).
    kl: mean over anchors of KL(softmax(c_t / tau) || softmax(c / tau)) over all positives of the batch
    (Hinton et al. 2015, of similarities).
    """

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.name = type(self).__name__.lower()
        self.settings = getattr(config.objective, self.name)
        self.full_weights = {self.name: self.settings.weight}
        self.roles = self.roles_of(config)

    @classmethod
    def roles_of(cls, config: Config) -> tuple[str, ...]:
        margin = getattr(config.objective, cls.__name__.lower()).loss == "margin"
        return (*cls.roles, NEGATIVE) if margin else cls.roles

    def require_teacher(self, width: int, own: int) -> None:
        """Refuse a teacher whose vectors, of `width` numbers, cannot be compared with those of `own`."""
        if width != own and self.settings.loss in ("mse", "cosine"):
            instead = ", with objective distill" if self.name == "retain" else ""
            raise UserError(
                f"objective.{self.name}.model has vectors of {width} numbers, the encoder of {own}: name one "
                f"of that width, or set objective.distill.loss to kl or margin{instead}"
            )

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        assert context.guided is not None  # the teacher's vectors come with the step's
        ours = [views[role] for role in self.roles]
        theirs = [context.guided[role].to(own) for role, own in zip(self.roles, ours)]
        kind = self.settings.loss
        if kind == "kl":
            return {self.name: similarity_divergence(ours, theirs, self.settings.temperature)}
        if kind == "margin":
            there = context.present[NEGATIVE]
            wrong = [cosines(v[0], v[1]) - cosines(v[0], v[2]) for v in (ours, theirs)]
            squares = (wrong[0] - wrong[1]).square() * there
            return {self.name: (squares.sum() / there.sum().clamp_min(1)).to(ours[0].dtype)}
        distances = [
            mse_loss(own, of) if kind == "mse" else 1 - cosines(own, of).mean().to(own.dtype)
            for own, of in zip(ours, theirs)
        ]
        return {self.name: sum(distances) / len(distances)}


class Retain(Distill):
    """Nearness to the frozen start: what an encoder knew of other text is not forgotten for the sake of one.

    Feature distillation from its own past (learning without forgetting, Li and Hoiem 2016), beside another
    objective's losses.
    """
