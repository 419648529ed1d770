"""The objectives once more: float64, one device, padded batches, full matrices, from the papers' formulae.

Nothing here is shared with the system but weights, token ids, and the numbers that both draw at random (the
start of an adversarial direction, what a generator is asked to fill in). Each function takes a
`reference_model.Reference` and gives its objective's losses as autograd sees them.
"""

import math

import torch
import torch.nn.functional as F
from adversarial_references import vadvcse
from contrastive_references import at_widths, elsewhere, guiding, nce, nt_xent, same, same_records

SPECIAL = 5  # token ids below are special


def clear(ref, v, ctx, config):
    guide = guiding(ctx.get("guided") or v, config)[2]
    return {"contrastive": at_widths(v, config, lambda v: clear_at(ref, v, ctx, config, guide))}


def clear_at(ref, v, ctx, config, guide):
    settings = config.objective.contrastive
    z = torch.cat([v["anchor"], v["positive"]])
    if settings.projection_layers:
        z, second = ref.linear(z, "terms.clear.projection.layers.0"), "terms.clear.projection.layers.2"
        if settings.projection_batch_norm:  # over the whole global batch, both views together
            z, second = (
                ref.batch_norm(z, "terms.clear.projection.layers.1"),
                "terms.clear.projection.layers.3",
            )
        z = ref.linear(F.relu(z), second)
    first, second = z.chunk(2)
    group = ctx["groups"] if config.objective.scope == "local" else None
    ids = ctx["ids"]["anchor"], ctx["ids"]["positive"]
    return nt_xent(first, second, settings.temperature, ids, group, guide)


def simcse(ref, v, ctx, config):
    settings = config.objective.simcse

    def head(v):
        name, vectors = "terms.simcse.head", torch.cat(list(v.values()))
        if settings.head == "mlp":
            vectors = torch.tanh(ref.linear(vectors, f"{name}.layers.0"))
        elif settings.head == "batch-norm":
            vectors = ref.batch_norm_head(vectors, name)
        return dict(zip(v, vectors.chunk(len(v))))

    if settings.keep_head:  # what is used is its output, and that is what is cut
        v, head = head(v), lambda v: v
    guides = guiding(ctx.get("guided") or v, config, negatives=list(v)[2:])
    if settings.positives > 1 or not settings.in_batch:
        return {"simcse": at_widths(v, config, lambda v: several_at(head(v), ctx, config, guides[0]))}
    return {"simcse": at_widths(v, config, lambda v: simcse_at(head(v), ctx, config, guides))}


def simcse_at(z, ctx, config, guides):
    settings, ids, index = config.objective.simcse, ctx["ids"], torch.arange(len(z["anchor"]))
    pair = (ids["anchor"], ids["positive"])
    if settings.form == "2n-2":
        return nt_xent(z["anchor"], z["positive"], settings.temperature, pair, guide=guides[2])
    forward = same(*pair, ids["positive"])
    if settings.hard_negatives:
        own, roles = torch.eye(len(index)) * settings.hard_negative_logit, list(z)[2:]
        bias = torch.cat([torch.zeros(len(index), len(index)), *[own] * len(roles)], 1)
        of_roles = [same(*pair, ids[role]) | ~ctx["present"][role] for role in roles]
        excluded = torch.cat(
            [forward | elsewhere(config, ctx), *(no | elsewhere(config, ctx) for no in of_roles)], 1
        )
        candidates = torch.cat([z[role] for role in ("positive", *roles)])
        return nce(z["anchor"], candidates, settings.temperature, index, excluded, bias, guide=guides[0])
    loss = nce(z["anchor"], z["positive"], settings.temperature, index, forward, guide=guides[0])
    if settings.form == "symmetric":
        back = nce(
            z["positive"],
            z["anchor"],
            settings.temperature,
            index,
            same(pair[1], pair[0], ids["anchor"]),
            guide=guides[1],
        )
        loss = (loss + back) / 2
    return loss


def several_at(z, ctx, config, guide):
    """The mean over an anchor's positives of -log softmax, in whose denominator its other ones are not."""
    settings, ids, count = config.objective.simcse, ctx["ids"], len(z["anchor"])
    positives = ["positive", *(f"positive{n}" for n in range(2, settings.positives + 1))]
    negatives = [role for role in z if role.startswith("negative")]
    linked = same_records([ids["anchor"], *(ids[role] for role in positives)])
    own = torch.eye(count, dtype=torch.bool)
    excluded, bias = [], []
    for role in (*positives, *negatives):
        # texts of the records that mean what the anchor's does
        has = sum(ids[text][:, None] == ids[role] for text in ("anchor", *positives)).bool()
        there = torch.ones(count, dtype=torch.bool) if role == "positive" else ctx["present"][role]
        others = (linked.double() @ has.double()) > 0
        apart = ~own if not settings.in_batch else torch.zeros_like(own)
        excluded.append(others | ~there | elsewhere(config, ctx) | apart)
        bias.append(own * settings.hard_negative_logit * (role in negatives))
    candidates = torch.cat([z[role] for role in (*positives, *negatives)])
    total, counts = 0.0, torch.zeros(count)
    for number, role in enumerate(positives):
        there = torch.ones(count, dtype=torch.bool) if role == "positive" else ctx["present"][role]
        losses = nce(
            z["anchor"], candidates, settings.temperature, torch.arange(count) + number * count,
            torch.cat(excluded, 1), torch.cat(bias, 1), guide=guide, reduction="none",
        )  # fmt: skip
        total, counts = total + losses.where(there, 0.0), counts + there
    return (total / counts).mean()


def sda(ref, v, ctx, config):
    guide = guiding(ctx.get("guided") or v, config)[0]
    return {"sda": at_widths(v, config, lambda v: sda_at(ref, v, ctx, config, guide))}


def sda_at(ref, v, ctx, config, guide):
    settings, ids = config.objective.sda, ctx["ids"]
    roles = list(v)
    z = dict(
        zip(roles, ref.batch_norm_head(torch.cat([v[r] for r in roles]), "terms.sda.head").chunk(len(roles)))
    )
    excluded, index = same(ids["anchor"], ids["positive"], ids["positive"]), torch.arange(len(z["anchor"]))
    own = None
    if settings.negatives:
        own = (F.cosine_similarity(z["anchor"], z["negative"]) - settings.margin) / settings.temperature
        own = own.masked_fill(~ctx["present"]["negative"], -torch.inf)
    return nce(z["anchor"], z["positive"], settings.temperature, index, excluded, own=own, guide=guide)


def declutr(ref, v, ctx, config):
    def averaged(v):
        positive = torch.stack([v[role] for role in v if role != "anchor"]).mean(0)
        return {"anchor": v["anchor"], "positive": positive}

    both, ids, temperature = averaged(v), ctx["ids"], config.objective.declutr.temperature
    guide = guiding(averaged(ctx.get("guided") or v), config)[2]
    pair = (ids["anchor"], ids["positive"])
    return {
        "declutr": at_widths(
            both, config, lambda v: nt_xent(v["anchor"], v["positive"], temperature, pair, guide=guide)
        )
    }


def esimcse(ref, v, ctx, config):
    guide, whole = guiding(ctx.get("guided") or v, config)[0], v["anchor"]

    def loss(v):
        queued = ctx["queue"] if torch.equal(v["anchor"], whole) else ()
        return esimcse_at(ref, v, {**ctx, "queue": queued}, config, guide)

    return {"esimcse": at_widths(v, config, loss)}


def esimcse_at(ref, v, ctx, config, guide):
    settings, z = (
        config.objective.esimcse,
        {r: torch.tanh(ref.linear(x, "terms.esimcse.head.layers.0")) for r, x in v.items()},
    )
    candidates, index = z["positive"], torch.arange(len(z["anchor"]))
    excluded = same(ctx["ids"]["anchor"], ctx["ids"]["positive"], ctx["ids"]["positive"]) | elsewhere(
        config, ctx
    )
    if len(ctx["queue"]):
        candidates = torch.cat([candidates, ctx["queue"].double()])
        excluded = torch.cat(
            [excluded, same(ctx["ids"]["anchor"], ctx["ids"]["positive"], ctx["queue_ids"])], 1
        )
    return nce(z["anchor"], candidates, settings.temperature, index, excluded, guide=guide)


def vascl(ref, v, ctx, config):
    settings, count = config.objective.vascl, len(v["anchor"])

    def head(x):
        return ref.linear(F.relu(ref.linear(x, "terms.vascl.head.layers.0")), "terms.vascl.head.layers.2")

    pair = (ctx["ids"]["anchor"], ctx["ids"]["positive"])
    group = ctx["groups"] if config.objective.scope == "local" else None
    guide = guiding(ctx.get("guided") or v, config)[2]

    def instances(v):
        z = head(v["anchor"]), head(v["positive"])
        return nt_xent(*z, settings.temperature, pair, group, guide)

    losses = {"vascl": at_widths(v, config, instances)}
    e, paper = v["anchor"].detach(), settings.reading == "paper"
    unit = F.normalize(e, dim=1)
    likeness = (unit @ unit.T if paper else e @ e.T).masked_fill(
        same(*pair, pair[0]) | elsewhere(config, ctx), -torch.inf
    )
    best = likeness.topk(settings.neighbours, 1)
    neighbours, none = best.indices, best.values == -torch.inf  # a rank's own lanes may have fewer
    drawn = (torch.randn if paper else torch.rand)(
        e.shape, generator=ctx["generator"](0), dtype=torch.float32
    ).double()
    start = F.normalize(drawn if paper else drawn - 0.5, dim=1)
    start.requires_grad_()
    clean, moved = F.normalize(head(e).detach(), dim=1), F.normalize(head(e + settings.radius * start), dim=1)
    own = (moved * clean).sum(1) / settings.temperature
    others = (moved[:, None] * clean[neighbours]).sum(2).masked_fill(none, -torch.inf) / settings.temperature
    ascent = (torch.logsumexp(torch.cat([own[:, None], others], 1), 1) - own).sum()
    delta = settings.radius * F.normalize(torch.autograd.grad(ascent, start)[0], dim=1, eps=1e-300)
    reached = v["anchor"] if paper else e
    zc, za = F.normalize(head(reached), dim=1), F.normalize(head(reached + delta), dim=1)
    zc = zc if paper else zc.detach()
    total = 0.0
    for anchor, positive in ((zc, za), (za, zc)):
        own = (anchor * positive).sum(1, keepdim=True)
        negatives = torch.cat([(anchor[:, None] * side[neighbours]).sum(2) for side in (zc, za)], 1)
        negatives = negatives.masked_fill(none.repeat(1, 2), -torch.inf)
        logits = torch.cat([own, negatives], 1) / settings.temperature
        total = total + F.cross_entropy(logits, torch.zeros(count, dtype=torch.long), reduction="sum")
    losses["vascl_neighbourhood"] = total / (2 * count)
    return losses


def augcse(ref, v, ctx, config):
    settings, roles = config.objective.augcse, list(v)

    def head(v):
        z = ref.batch_norm_head(torch.cat([v[r] for r in roles]), "terms.augcse.head")
        return dict(zip(roles, z.chunk(len(roles))))

    z = head(v)
    positive = "augmented" if settings.positive == "augmented" else "positive"
    ids, index, far = ctx["ids"], torch.arange(len(z["anchor"])), elsewhere(config, ctx)
    guides = guiding(ctx.get("guided") or v, config, positive)

    def loss(v):
        z = head(v)
        excluded = same(ids["anchor"], ids[positive], ids[positive]) | far
        a, p, t = z["anchor"], z[positive], settings.temperature
        forward = nce(a, p, t, index, excluded, guide=guides[0])
        if settings.reading == "paper" and positive == "positive":
            return forward
        excluded = same(ids[positive], ids["anchor"], ids["anchor"]) | far
        return (forward + nce(p, a, t, index, excluded, guide=guides[1])) / 2

    losses = {"augcse": at_widths(v, config, loss)}
    if settings.discriminator_weight:
        labels, first, second = ctx["labels"], z["anchor"], z["augmented"]
        if settings.labels == "bool":
            labels = (labels != ctx["number_of_labels"] - 1).long()
        if settings.labels == "order":
            labels = torch.randint(0, 2, (len(index),), generator=ctx["generator"](1))
            swap = labels.bool()[:, None]
            first, second = torch.where(swap, second, first), torch.where(swap, first, second)
        x = torch.cat([first, second], 1)
        alpha = settings.alpha
        if settings.alpha_schedule == "annealed":
            alpha *= 2 / (1 + math.exp(-10 * ctx["progress"])) - 1
        x = alpha * x + (1 - alpha) * x.detach()  # the value of x, alpha times its gradient
        name = "terms.augcse.discriminator.layers"
        logits = torch.tanh(ref.linear(torch.tanh(ref.linear(x, f"{name}.1")), f"{name}.4"))
        if settings.reading == "paper":
            logits = ref.linear(logits, f"{name}.6")
        target = F.one_hot(labels, logits.shape[1]).double()
        losses["augcse_discriminator"] = F.binary_cross_entropy_with_logits(logits, target)
    return losses


def diffcse(ref, v, ctx, config):
    settings, index = config.objective.diffcse, torch.arange(len(v["anchor"]))
    both = ref.batch_norm_head(torch.cat([v["anchor"], v["positive"]]), "terms.diffcse.head")
    z = dict(zip(("anchor", "positive"), both.chunk(2)))
    guide, ids = guiding(ctx.get("guided") or v, config)[0], ctx["ids"]

    def contrast(v):
        z = ref.batch_norm_head(torch.cat([v["anchor"], v["positive"]]), "terms.diffcse.head").chunk(2)
        excluded = same(ids["anchor"], ids["positive"], ids["positive"])
        return nce(z[0], z[1], settings.temperature, index, excluded, guide=guide)

    losses = {"diffcse": at_widths(v, config, contrast)}
    discriminator = ctx["discriminator"]
    total, tokens = 0.0, 0
    for role in ("anchor", "positive"):
        edited, rows = ctx["edited"][role], ctx["rows"][role]
        hidden, attention = ref.hidden(
            edited, discriminator, lambda words, role=role: torch.cat([z[role][:, None], words[:, 1:]], 1)
        )
        logits = ref.linear(hidden, "terms.diffcse.replaced")
        replaced = ref.padded(edited)[0] != ref.padded(rows)[0]
        real = attention.bool()
        total = total + F.cross_entropy(logits[real], replaced[real].long(), reduction="sum")
        tokens += int(real.sum())
    losses["diffcse_replaced_token"] = total / tokens
    return losses


def retain(ref, v, ctx, config):
    distances = [1 - F.cosine_similarity(v[role], ctx["guided"][role]) for role in ("anchor", "positive")]
    return {"retain": torch.cat(distances).mean()}


def scored(ref, v, ctx, config):
    settings, scores = config.objective.scored, ctx["labels"].int().view(torch.float32).double()

    def loss(v):
        cosines = F.cosine_similarity(v["anchor"], v["positive"])
        if settings.loss == "cosine":
            return (cosines - scores / settings.highest).square().mean()
        terms = ((cosines[:, None] - cosines) / settings.temperature)[scores[:, None] < scores]
        return torch.log1p(terms.exp().sum())

    return {"scored": at_widths(v, config, loss)}


def distill(ref, v, ctx, config):
    settings, t = config.objective.distill, ctx["guided"]

    def margin(v):
        cosines = [F.cosine_similarity(v["anchor"], v[role]) for role in ("positive", "negative")]
        return (cosines[0] - cosines[1])[ctx["present"]["negative"]]

    def distribution(v):
        cosines = F.normalize(v["anchor"], dim=1) @ F.normalize(v["positive"], dim=1).T
        return (cosines / settings.temperature).softmax(1)

    if settings.loss == "margin":
        return {"distill": (margin(v) - margin(t)).square().mean()}
    if settings.loss == "kl":
        p, q = distribution(t), distribution(v)
        return {"distill": (p * (p / q).log()).sum(1).mean()}
    both = [torch.cat([of["anchor"], of["positive"]]) for of in (v, t)]
    if settings.loss == "mse":
        return {"distill": (both[0] - both[1]).square().mean()}
    return {"distill": 1 - F.cosine_similarity(*both).mean()}


SYSTEMS = {
    "distill": distill,
    "scored": scored,
    "clear": clear,
    "simcse": simcse,
    "sda": sda,
    "declutr": declutr,
    "esimcse": esimcse,
    "vascl": vascl,
    "augcse": augcse,
    "vadvcse": vadvcse,
    "diffcse": diffcse,
    "retain": retain,
}


def reference_shares(losses: dict, weights: dict, vectors: list, entering: list) -> dict[str, float]:
    """Every loss's share of the gradient on the vectors, and its cosine with the first contrastive loss's.

    entering: the vectors that enter a loss with passes of its own.
    """

    def gradient(name, of):
        parts = torch.autograd.grad(
            weights[name] * losses[name], of, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.cat([part.flatten() for part in parts])

    names = [name for name in losses if name != "mlm"]
    first = gradient(names[0], vectors)
    shares = {}
    for name in names:
        apart = name == "vadvcse_adversarial"
        own = gradient(name, entering if apart else vectors)
        shares[f"{name}_gradient_share"] = float(own.norm() / first.norm())
        if name != names[0] and not apart:
            shares[f"{name}_gradient_cosine"] = float(F.cosine_similarity(own, first, 0, 1e-300))
    return shares
