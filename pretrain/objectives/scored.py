"""Pairs of texts with a score of how alike they are: CoSENT (Su 2022), or regression of the cosine."""

from torch import Tensor, nn

from pretrain.config.run import Config
from pretrain.losses.exclusions import Exclusions
from pretrain.losses.pairs import cosent, cosine_regression
from pretrain.model.encoder import SentenceEncoder
from pretrain.objectives.base import BatchContext, Objective, Views


class Scored(Objective):
    """Order, or value, of the cosines of scored pairs: no text is a negative of another."""

    scored = True

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = config.objective.scored
        self.full_weights = {"scored": self.settings.weight}

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        settings = self.settings

        def loss(z: Tensor, same: Exclusions, whole: bool) -> Tensor:
            if settings.loss == "cosine":
                return cosine_regression(z[0], z[1], context.scores / settings.highest)
            return cosent(z[0], z[1], context.scores, settings.temperature)

        return self.contrast("scored", nn.Identity(), views, context, loss)
