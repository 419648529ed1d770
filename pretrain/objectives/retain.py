"""Hold an encoder near its start: what it knew of other text is then not forgotten for the sake of one."""

from torch import Tensor
from torch.nn.functional import cosine_similarity

from pretrain.config.run import Config
from pretrain.model.encoder import SentenceEncoder
from pretrain.objectives.base import BatchContext, Objective, Views


class Retain(Objective):
    """Distance of the sentence vectors from those of the frozen start, beside another objective's losses.

    Mean over views and sequences of 1 - cos(e, e0), e0 the vector of the same tokens by the start: feature
    distillation from the encoder's own past (learning without forgetting, Li and Hoiem 2016, by the cosine).
    """

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = config.objective.retain
        self.full_weights = {"retain": self.settings.weight}

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        assert context.guided is not None  # the start's vectors come with the step's
        cosines = [
            cosine_similarity(views[role], context.guided[role].to(views[role])) for role in self.roles
        ]
        return {"retain": 1 - sum(cosine.mean() for cosine in cosines) / len(cosines)}
