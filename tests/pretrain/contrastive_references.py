"""Contrastive losses, and the options of all of them, for the references: float64, full matrices."""

import torch
import torch.nn.functional as F

NEGATIVES = []
"""Of each loss computed: how many an anchor has in the mean, before a guide leaves some out."""


def nce(
    anchors, candidates, temperature, target, excluded=None, bias=None, own=None, guide=None, reduction="mean"
):
    """Mean of -log softmax at `target`; excluded: bool[A, C]; bias: added to the logits; own: one more logit
    a row; guide: (vectors of the anchors, of the first candidates, settings)."""
    left = (
        len(candidates) - 1 if excluded is None else ~(excluded | F.one_hot(target, len(candidates)).bool())
    )
    left = torch.as_tensor(left).double() if excluded is None else left.sum(1).double()
    NEGATIVES.append(float((left + (0 if own is None else own > -torch.inf)).mean()))
    if guide is not None:
        false = false_negatives(*guide, target)
        more = torch.zeros(len(false), len(candidates) - false.shape[1], dtype=torch.bool)
        false = torch.cat([false, more], 1)
        excluded = false if excluded is None else excluded | false
    logits = F.normalize(anchors, dim=1) @ F.normalize(candidates, dim=1).T / temperature
    if bias is not None:
        logits = logits + bias
    if excluded is not None:
        keep = F.one_hot(target, logits.shape[1]).bool()
        logits = logits.masked_fill(excluded & ~keep, -torch.inf)
    if own is not None:
        logits = torch.cat([logits, own[:, None]], 1)
    return F.cross_entropy(logits, target, reduction=reduction)


def false_negatives(anchors, candidates, settings, target):
    """bool[A, C]: what a guide holds for a false negative, by GISTEmbed's rule."""
    similarity = F.normalize(anchors, dim=1) @ F.normalize(candidates, dim=1).T
    positive = similarity.gather(1, target[:, None])
    margin = settings.margin * (positive.abs() if settings.strategy == "relative" else 1)
    return similarity > positive - margin


def guiding(v, config, positive="positive", negatives=()):
    """What `nce` takes as a guide, forth and back, and NT-Xent's of all vectors; None without one."""
    settings = config.objective.false_negatives
    if settings.guide == "none":
        return None, None, None
    a, p = v["anchor"].detach(), v[positive].detach()
    c = torch.cat([p, *(v[negative].detach() for negative in negatives)])
    both = torch.cat([a, p])
    return (a, c, settings), (p, a, settings), (both, both, settings)


def at_widths(v, config, loss):
    """Matryoshka: the sum of `loss` over vectors with 0 beyond each width."""
    widest = next(iter(v.values())).shape[1]
    widths = config.objective.matryoshka or [widest]

    def cut(x, width):
        return x * (torch.arange(widest) < width)

    return sum(loss({r: cut(x, width) for r, x in v.items()}) for width in widths)


def same(anchor, positive, candidates):
    """bool[A, C]: a candidate whose text means what the anchor does: the anchor or the positive of a row
    that shares a text with the anchor's row, or with one that does, and so on."""
    rows, linked = torch.stack([anchor, positive], 1), same_records([anchor, positive])
    has = (rows[:, :, None] == candidates).any(1)
    return (linked.double() @ has.double()) > 0


def same_records(texts):
    """bool[N, N]: records that share one of their texts, or are linked by others that do."""
    rows = torch.stack(texts, 1)
    linked = (rows[:, None, :, None] == rows[None, :, None]).flatten(2).any(2)
    for _ in rows:
        linked = (linked.double() @ linked.double()) > 0
    return linked


def elsewhere(config, ctx):
    """bool[N, N]: sequences of other ranks, where objective.scope is local; else none."""
    return (ctx["groups"][:, None] != ctx["groups"][None]) & (config.objective.scope == "local")


def nt_xent(first, second, temperature, identities, group=None, guide=None):
    count = len(first)
    z, target = torch.cat([first, second]), (torch.arange(2 * count) + count) % (2 * count)
    ids = torch.cat(list(identities))
    excluded = same(ids, ids[target], ids) | torch.eye(2 * count, dtype=torch.bool)
    if group is not None:
        excluded = excluded | (group.repeat(2)[:, None] != group.repeat(2)[None])
    return nce(z, z, temperature, target, excluded, guide=guide)
