"""What several objectives share."""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn

from pretrain.config.terms import Term
from pretrain.objectives.base import BatchContext


def joint(head: nn.Module, views: Sequence[Tensor]) -> Tensor:
    """Apply `head` to all views at once, so that a batch norm sees them all: V x [N, d] -> [V, N, e]."""
    return head(torch.cat(list(views))).unflatten(0, (len(views), -1))


def local_groups(settings: Term, context: BatchContext) -> Tensor | None:
    """int64[N] for negatives of the same rank only, None for those of the whole batch."""
    return context.groups if settings.scope == "local" else None


class Pair(TypedDict):
    """Keyword arguments of `info_nce`; see there."""

    groups: Tensor | None
    anchor_identities: Tensor | None
    positive_identities: Tensor | None


def pair(settings: Term, context: BatchContext, positive: str = "positive") -> Pair:
    """Return what a loss of anchors and positives needs to know of the batch (for `info_nce`)."""
    return {
        "groups": local_groups(settings, context),
        "anchor_identities": context.identity("anchor"),
        "positive_identities": context.identity(positive),
    }


def share_of_loss(loss: Tensor, without: Tensor) -> Tensor:
    """Return the part of a loss, 0 to 1, that it lacks without some of its negatives: a scalar.

    Where positives have nearly all of the softmax, it is those negatives' part of the gradient.
    """
    return torch.where(loss.detach() > 0, 1 - without / loss.detach(), 0.0)


def stacked_identities(context: BatchContext, roles: Sequence[str]) -> Tensor | None:
    """Return int64[len(roles), N], or None where duplicates count as negatives."""
    return None if context.identities is None else torch.stack([context.identities[role] for role in roles])
