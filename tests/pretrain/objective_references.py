"""The objectives once more: float64, one device, padded batches, full matrices, from the papers' formulae.

Nothing here is shared with the system but weights, token ids, and the numbers that both draw at random (the
start of an adversarial direction, what a generator is asked to fill in). Each function takes a
`reference_model.Reference` and gives its objective's losses as autograd sees them.
"""

import math

import torch
import torch.nn.functional as F

SPECIAL = 5  # token ids below are special


def nce(anchors, candidates, temperature, target, excluded=None, bias=None, own=None):
    """Mean of -log softmax at `target`; excluded: bool[A, C]; bias: added to the logits; own: one more logit
    a row."""
    logits = F.normalize(anchors, dim=1) @ F.normalize(candidates, dim=1).T / temperature
    if bias is not None:
        logits = logits + bias
    if excluded is not None:
        keep = F.one_hot(target, logits.shape[1]).bool()
        logits = logits.masked_fill(excluded & ~keep, -torch.inf)
    if own is not None:
        logits = torch.cat([logits, own[:, None]], 1)
    return F.cross_entropy(logits, target)


def same(anchor, positive, candidates):
    """bool[A, C]: a candidate whose text is the anchor's or its positive's."""
    return (candidates[None] == anchor[:, None]) | (candidates[None] == positive[:, None])


def elsewhere(settings, ctx):
    """bool[N, N]: sequences of other ranks, where the objective's scope is local; else none."""
    return (ctx["groups"][:, None] != ctx["groups"][None]) & (settings.scope == "local")


def nt_xent(first, second, temperature, identities, group=None):
    count = len(first)
    z, target = torch.cat([first, second]), (torch.arange(2 * count) + count) % (2 * count)
    ids = torch.cat(list(identities))
    excluded = same(ids, ids[target], ids) | torch.eye(2 * count, dtype=torch.bool)
    if group is not None:
        excluded = excluded | (group.repeat(2)[:, None] != group.repeat(2)[None])
    return nce(z, z, temperature, target, excluded)


def clear(ref, v, ctx, config):
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
    group = ctx["groups"] if settings.scope == "local" else None
    return {
        "contrastive": nt_xent(
            first, second, settings.temperature, (ctx["ids"]["anchor"], ctx["ids"]["positive"]), group
        )
    }


def simcse(ref, v, ctx, config):
    settings, ids, index = config.objective.simcse, ctx["ids"], torch.arange(len(v["anchor"]))
    name, vectors = "terms.simcse.head", torch.cat(list(v.values()))
    if settings.head == "mlp":
        vectors = torch.tanh(ref.linear(vectors, f"{name}.layers.0"))
    elif settings.head == "batch-norm":
        vectors = ref.batch_norm_head(vectors, name)
    z = dict(zip(v, vectors.chunk(len(v))))
    pair = (ids["anchor"], ids["positive"])
    if settings.form == "2n-2":
        return {"simcse": nt_xent(z["anchor"], z["positive"], settings.temperature, pair)}
    forward = same(*pair, ids["positive"])
    if settings.hard_negatives:
        bias = torch.cat(
            [torch.zeros(len(index), len(index)), torch.eye(len(index)) * settings.hard_negative_logit], 1
        )
        excluded = torch.cat([forward, same(*pair, ids["negative"])], 1)
        candidates = torch.cat([z["positive"], z["negative"]])
        return {"simcse": nce(z["anchor"], candidates, settings.temperature, index, excluded, bias)}
    loss = nce(z["anchor"], z["positive"], settings.temperature, index, forward)
    if settings.form == "symmetric":
        back = nce(
            z["positive"], z["anchor"], settings.temperature, index, same(pair[1], pair[0], ids["anchor"])
        )
        loss = (loss + back) / 2
    return {"simcse": loss}


def sda(ref, v, ctx, config):
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
    return {"sda": nce(z["anchor"], z["positive"], settings.temperature, index, excluded, own=own)}


def declutr(ref, v, ctx, config):
    positive = torch.stack([v[role] for role in v if role != "anchor"]).mean(0)
    return {
        "declutr": nt_xent(
            v["anchor"],
            positive,
            config.objective.declutr.temperature,
            (ctx["ids"]["anchor"], ctx["ids"]["positive"]),
        )
    }


def esimcse(ref, v, ctx, config):
    settings, z = (
        config.objective.esimcse,
        {r: torch.tanh(ref.linear(x, "terms.esimcse.head.layers.0")) for r, x in v.items()},
    )
    candidates, index = z["positive"], torch.arange(len(z["anchor"]))
    excluded = same(ctx["ids"]["anchor"], ctx["ids"]["positive"], ctx["ids"]["positive"]) | elsewhere(
        settings, ctx
    )
    if len(ctx["queue"]):
        candidates = torch.cat([candidates, ctx["queue"].double()])
        excluded = torch.cat(
            [excluded, same(ctx["ids"]["anchor"], ctx["ids"]["positive"], ctx["queue_ids"])], 1
        )
    return {"esimcse": nce(z["anchor"], candidates, settings.temperature, index, excluded)}


def vascl(ref, v, ctx, config):
    settings, count = config.objective.vascl, len(v["anchor"])

    def head(x):
        return ref.linear(F.relu(ref.linear(x, "terms.vascl.head.layers.0")), "terms.vascl.head.layers.2")

    pair = (ctx["ids"]["anchor"], ctx["ids"]["positive"])
    group = ctx["groups"] if settings.scope == "local" else None
    losses = {"vascl": nt_xent(head(v["anchor"]), head(v["positive"]), settings.temperature, pair, group)}
    e, paper = v["anchor"].detach(), settings.reading == "paper"
    unit = F.normalize(e, dim=1)
    likeness = (unit @ unit.T if paper else e @ e.T).masked_fill(
        (pair[0][:, None] == pair[0][None]) | elsewhere(settings, ctx), -torch.inf
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
    z = dict(
        zip(
            roles,
            ref.batch_norm_head(torch.cat([v[r] for r in roles]), "terms.augcse.head").chunk(len(roles)),
        )
    )
    positive = "augmented" if settings.positive == "augmented" else "positive"
    ids, index, far = ctx["ids"], torch.arange(len(z["anchor"])), elsewhere(settings, ctx)
    forward = nce(
        z["anchor"],
        z[positive],
        settings.temperature,
        index,
        same(ids["anchor"], ids[positive], ids[positive]) | far,
    )
    back = nce(
        z[positive],
        z["anchor"],
        settings.temperature,
        index,
        same(ids[positive], ids["anchor"], ids["anchor"]) | far,
    )
    one_way = settings.reading == "paper" and positive == "positive"
    losses = {"augcse": forward if one_way else (forward + back) / 2}
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


def divergence(p, q, kind, form):
    """Sum over rows of F between softmax(p), perturbed, and softmax(q), clean, from probabilities."""
    p, q = p.softmax(1), q.softmax(1)
    kl = lambda a, b: (a * (a / b).log()).nansum()  # noqa: E731  (0 log 0 is 0)
    if kind == "kl":
        return kl(q, p)
    if kind == "symmetric-kl":
        return kl(q.detach(), p) + kl(p.detach(), q) if form == "packaged" else (kl(q, p) + kl(p, q)) / 2
    mean = (p + q) / 2
    if form == "packaged":
        return kl(mean.detach(), p) + kl(mean.detach(), q)
    return (kl(p, mean) + kl(q, mean)) / 2


def climbed(noise, gradient, reading, words, counts):
    """The noise after a step, from that of all tokens [T, H]; words: their embeddings."""
    parts = []
    for r, g, x in zip(*(values.split(counts) for values in (noise, gradient, words))):
        if reading.projection == "smart":  # a token at a time
            step = r + reading.step_size * g
            norm = step.norm(dim=1) if reading.norm == "l2" else step.abs().amax(1)
            parts.append(step / (norm[:, None] + 1e-6))
            continue
        l2 = reading.norm == "l2"
        epsilon = reading.radius * (x.norm() if l2 else x.square().mean().sqrt())
        best = epsilon * (g / g.norm() if l2 else g.sign())
        if reading.projection == "ball":
            best = r + reading.step_size * best
            best = best * min(1.0, float(epsilon / best.norm())) if l2 else best.clamp(-epsilon, epsilon)
        parts.append(best)
    return torch.cat(parts)


def vadvcse(ref, v, ctx, config):
    settings, index = config.objective.vadvcse, torch.arange(len(v["anchor"]))
    reading, ids = settings.resolved, ctx["ids"]
    both = torch.cat([v["anchor"], v["positive"]])
    z = ref.batch_norm_head(both, "terms.vadvcse.head").chunk(2)
    excluded = same(ids["anchor"], ids["positive"], ids["positive"])
    losses = {"vadvcse": nce(z[0], z[1], settings.temperature, index, excluded)}
    rows = ctx["rows"]["anchor"]
    real = ref.padded(rows)[1].bool()
    words = []
    # p(y | x) is over the distinct texts of the batch
    texts = [i for i in index.tolist() if ids["positive"][i] not in ids["positive"][:i]]
    candidates = v["positive"] if settings.distribution == "vector" else z[1]
    candidates = F.normalize(candidates.detach()[texts], dim=1)

    def output(noise):
        def edit(embedded):
            words.append(embedded.detach()[real])
            placed = torch.zeros_like(embedded)
            placed[real] = noise
            return embedded + placed

        vectors = ref.vectors(rows, edit)
        ctx.setdefault("entering", []).append(vectors)
        if settings.distribution == "projection":
            vectors = ref.batch_norm_head(vectors, "terms.vadvcse.head", both.detach())
        if reading.over == "batch":
            return F.normalize(vectors, dim=1) @ candidates.T / settings.temperature
        return vectors

    noise = ctx["noise"].double() * reading.sigma
    clean = output(torch.zeros_like(noise))
    clean = clean if reading.clean_gradient else clean.detach()
    for _ in range(settings.steps):
        noise = noise.detach().requires_grad_()
        ascent = divergence(output(noise), clean.detach(), settings.divergence, reading.form)
        (gradient,) = torch.autograd.grad(ascent, noise)
        noise = climbed(noise.detach(), gradient, reading, words[0], real.sum(1).tolist())
    loss = divergence(output(noise), clean, settings.divergence, reading.form)
    losses["vadvcse_adversarial"] = loss if reading.reduction == "sum" else loss / len(rows)
    return losses


def diffcse(ref, v, ctx, config):
    settings, index = config.objective.diffcse, torch.arange(len(v["anchor"]))
    both = ref.batch_norm_head(torch.cat([v["anchor"], v["positive"]]), "terms.diffcse.head")
    z = dict(zip(("anchor", "positive"), both.chunk(2)))
    losses = {
        "diffcse": nce(
            z["anchor"],
            z["positive"],
            settings.temperature,
            index,
            same(ctx["ids"]["anchor"], ctx["ids"]["positive"], ctx["ids"]["positive"]),
        )
    }
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


SYSTEMS = {
    "clear": clear,
    "simcse": simcse,
    "sda": sda,
    "declutr": declutr,
    "esimcse": esimcse,
    "vascl": vascl,
    "augcse": augcse,
    "vadvcse": vadvcse,
    "diffcse": diffcse,
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
