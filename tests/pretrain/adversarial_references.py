"""V-advCSE once more, for the references: float64, padded batches, from the paper's formulae."""

import torch
from contrastive_references import at_widths, guiding, nce, same


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
    excluded, guide = (
        same(ids["anchor"], ids["positive"], ids["positive"]),
        guiding(ctx.get("guided") or v, config)[0],
    )

    def contrast(v):
        z = ref.batch_norm_head(torch.cat([v["anchor"], v["positive"]]), "terms.vadvcse.head").chunk(2)
        return nce(z[0], z[1], settings.temperature, index, excluded, guide=guide)

    losses = {"vadvcse": at_widths(v, config, contrast)}
    rows = ctx["rows"]["anchor"]
    real = ref.padded(rows)[1].bool()
    words = []

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
