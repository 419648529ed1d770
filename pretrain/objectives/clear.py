"""CLEAR (Wu et al. 2020)."""

from torch import Tensor, nn

from pretrain.config.run import Config
from pretrain.losses.contrastive import nt_xent
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.heads import simclr_head
from pretrain.objectives.base import BatchContext, Objective, Views


class Clear(Objective):
    """CLEAR: L = L_MLM + L_CL, L_CL = NT-Xent of g(f(view 1)), g(f(view 2)) (equations 1 to 3).

    Equation 2 sums over the 2N views; here it is their mean times `contrastive.weight`, so that the weight
    means the same at every batch size.
    """

    rivals = 2

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = settings = config.objective.contrastive
        self.full_weights = {"contrastive": self.settings.weight}
        self.projection: nn.Module = nn.Identity()
        if settings.projection_layers:
            size, hidden = encoder.hidden_size, settings.projection_hidden or encoder.hidden_size
            widths = [size, *[hidden] * (settings.projection_layers - 1), settings.projection_size]
            self.projection = simclr_head(widths, settings.projection_batch_norm)

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        return self.contrast("contrastive", self.projection, views, context, self.of_views(nt_xent))
