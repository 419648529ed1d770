"""V-advCSE (Ko, "Virtual Adversarial Contrastive Learning for Sentence Embeddings").

Its loss is how far outputs move under the worst small change of words:

    r ~ N(0, sigma^2)     (algorithm 1)
    K times: g = gradient by r of F(f(x; w_), f(x + r; w)),  r <- projection(r + eta g)
    loss = F(f(x; w_), f(x + r; w))

No code was published. F, projection and norm each exist as the paper prints them and as the packages
archinetai/smart-pytorch and vat-pytorch have them, whose F ("KL, Sym-KL, JS") and norms are the paper's;
`pretrain.config.terms` says which go together. Noise is [T, H] over the tokens of a packed row, one row of
H for each token's embedding.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, kl_div

from augment.core.keys import token_bits
from pretrain.common.transfer import send
from pretrain.config.run import Config
from pretrain.config.terms import AdversarialReading
from pretrain.data.microbatches import MicroBatch
from pretrain.losses.contrastive import info_nce
from pretrain.losses.vectors import unit_vectors
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.heads import batch_norm_head
from pretrain.model.kernels.dropout import mix32, signed32
from pretrain.model.kernels.plain import at_least_float32
from pretrain.objectives.base import BatchContext, Objective, Views

GUARD = 1e-6
"""The "epsilon" of the packages: it keeps a denominator from 0, and is no radius."""


class Vadvcse(Objective):
    """V-advCSE: SimCSE's loss, and lambda times how far outputs move under the worst change of words.

    No code was published, and the paper leaves open what decides the loss: `reading` says how it is taken
    (`pretrain.config.terms`).

    Both passes of a sentence share their dropout, or the distance would measure that. Batch norm's statistics
    are the whole batch's, held constant, so that the perturbed sentence alone learns; running ones are not
    touched by the extra passes.
    """

    sequence_term = "vadvcse_adversarial"
    rivals = 1

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = config.objective.vadvcse
        self.reading = self.settings.resolved
        weights = self.settings.weight, self.reading.adversarial_weight
        self.full_weights = dict(zip(("vadvcse", self.sequence_term), weights, strict=True))
        self.head = batch_norm_head(encoder.hidden_size)
        self.sequence_roles = ("anchor",) if self.reading.adversarial_weight else ()
        self._statistics = ()

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        return self.contrast("vadvcse", self.head, views, context, self.of_two_views(info_nce))

    def conditions(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        self._statistics = self.head.statistics(torch.cat([views["anchor"], views["positive"]]))
        return {}

    def sequence_loss(
        self, encoder: SentenceEncoder, role: str, row: MicroBatch, condition: Tensor | None
    ) -> Tensor:
        settings, reading, lengths = self.settings, self.reading, row.lengths
        assert row.keys is not None and row.seed is not None  # a view's rows have both
        embedded: list[Tensor] = []

        def output(noise: Tensor | None, learned: bool = False) -> Tensor:
            def edit(words: Tensor) -> Tensor:
                if noise is not None:
                    return words + noise
                embedded.append(words.detach())
                return words

            torch.manual_seed(row.seed)
            vectors = encoder.embed(row.ids, lengths, edit=edit, keys=row.keys)
            if learned and self.probe is not None:
                self.probe.watch(vectors)
            return self.head(vectors, self._statistics) if settings.distribution == "projection" else vectors

        def moved(noise: Tensor, clean: Tensor, learned: bool = False) -> Tensor:
            return divergence(output(noise, learned), clean, settings.divergence, reading.form)

        with torch.set_grad_enabled(torch.is_grad_enabled() and reading.clean_gradient):
            clean = output(None, learned=True)
        radius = None
        if reading.radius is not None:
            radius = reading.radius * sizes(embedded[0], lengths, reading.norm)
        start = sequence_noise(row.keys, lengths, encoder.hidden_size, row.ids.device).to(clean.dtype)
        noise = adversarial_noise(
            lambda r: moved(r, clean.detach()), start, lengths, reading, steps=settings.steps, radius=radius
        )
        if self.probe is not None:
            with torch.no_grad():
                cosines = cosine_similarity(noise, start)
                # of the noise's length, in the direction of the start: what is more is the ascent's
                lengths_of_rows = torch.linalg.vector_norm(noise, dim=1, keepdim=True)
                random = moved(unit_vectors(start) * lengths_of_rows, clean)
                tokens, sequences = (cosines.new_full((), len(x)) for x in (cosines, lengths))
                self.probe.add(random=random, cosines=cosines.sum(), tokens=tokens, sequences=sequences)
        loss = moved(noise, clean, learned=True)
        if self.probe is not None:
            self.probe.add(adversarial=loss)
        return loss

    def sequence_checks(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        # What float32 cannot tell from 0: a saturated softmax does not move at all under random noise.
        least = torch.finfo(torch.float32).eps * sums["sequences"]
        adversarial, random = (sums[name].clamp_min(least) for name in ("adversarial", "random"))
        return {
            "vadvcse_adversarial_over_random": adversarial / random,
            "vadvcse_cosine_with_start": sums["cosines"] / sums["tokens"],
        }

    def sequence_scale(self, sequences: int, tokens: int) -> float:
        return 1.0 if self.reading.reduction == "sum" else 1.0 / max(1, sequences)


def divergence(p_logits: Tensor, q_logits: Tensor, kind: str = "js", form: str = "packaged") -> Tensor:
    """Compute F between p = softmax(p_logits), perturbed, and q = softmax(q_logits), clean: a sum over rows.

    sg is stop-gradient, KL(a || b) = sum a (log a - log b). Values and gradients of the form "packaged" are
    those of smart-pytorch and vat-pytorch, of "printed" those of the paper's equations 11 to 14:

                          packaged                            printed
        "kl"              KL(q || p)                          KL(q || p)
        "symmetric-kl"    KL(sg(q) || p) + KL(sg(p) || q)     (KL(q || p) + KL(p || q)) / 2
        "js"              KL(m || p) + KL(m || q)             (KL(p || m) + KL(q || m)) / 2
                          m = sg((p + q) / 2)                 m = (p + q) / 2

    Only the printed "js" is the Jensen-Shannon divergence, at most log 2. Near p = q the packaged one is
    about 2 times as large; its gradient by p_logits is (p - q) / 2, and m is held in it.

    p_logits, q_logits: [N, D], any floating dtype, finite. Returns float32 (float64 from float64), also under
    autocast.
    """
    with torch.autocast(p_logits.device.type, enabled=False):
        p, q = at_least_float32(p_logits).log_softmax(-1), at_least_float32(q_logits).log_softmax(-1)
        if kind == "kl":
            terms = _kl(q, p)
        elif kind == "symmetric-kl" and form == "packaged":
            terms = _kl(q.detach(), p) + _kl(p.detach(), q)
        elif kind == "symmetric-kl":
            terms = (_kl(q, p) + _kl(p, q)) / 2
        else:
            # log((p + q) / 2) from logarithms: softmax over many features underflows.
            mean = torch.logaddexp(p, q) - math.log(2)
            if form == "packaged":
                terms = _kl(mean.detach(), p) + _kl(mean.detach(), q)
            else:
                terms = (_kl(p, mean) + _kl(q, mean)) / 2
        return terms.sum()


def project_noise(
    noise: Tensor,
    gradient: Tensor,
    step_size: float | None,
    norm: str = "inf",
    mode: str = "smart",
    radius: float | Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """One step of ascent from r along g, projected; [T, H], detached.

        "smart":        s / (||s|| + 1e-6), s = r + eta g     (SMARTLoss of the packages)
        "ball":         s = r + eta radius d, brought back to the nearest point with ||s|| <= radius
                        (algorithm 1, line 6, with the step of Madry et al. 2018, whose ascent it is)
        "closed-form":  radius d     (appendix A; no r, no eta)

    d is the direction of norm 1 in which the loss rises most, g / ||g||_2 for "l2" and sign(g) for "inf".

    After "smart" every token's noise has a norm of about 1, whatever the gradient was: if g is small
    against r / eta, its direction is the start's. A gradient of 0 has no direction: d is 0.

    noise, gradient: r and g, [T, H]. step_size: eta. norm: "inf" or "l2".
    radius: the epsilon of the paper, above 0, or [T, 1], one for each token; "smart" has none.
    lengths: int64[n], tokens of each sequence, their sum T: if given, a norm is over all tokens of a
    sequence, as the paper writes it; else over each token's H numbers, as in the packages.
    """
    assert (radius is None) == (mode == "smart")
    noise, gradient = noise.detach(), gradient.detach()
    if lengths is not None:
        (lengths,) = send([lengths], noise.device)
    if radius is None:  # "smart"
        step = noise + step_size * gradient
        return step / (_norms(step, norm, lengths) + GUARD)
    farthest = radius * _steepest(gradient, norm, lengths)
    if mode == "closed-form":
        return farthest
    step = noise + step_size * farthest
    if norm == "inf":
        return step.clamp(-radius, radius)
    return step * (radius / _norms(step, "l2", lengths).clamp_min(radius))


def sizes(words: Tensor, lengths: Tensor, norm: str) -> Tensor:
    """Return how large each sequence's embeddings [T, H] are, in what a norm measures: [T, 1], by token.

    "l2": their length, over all tokens and features of the sequence; "inf": the root of their mean square. (A
    noise of that size in every number has that length.) lengths: int64[n], tokens of each sequence.
    """
    (counts,) = send([lengths], words.device)
    length = _norms(at_least_float32(words), "l2", counts)
    if norm == "l2":
        return length
    roots = (counts * words.shape[1]).sqrt()
    return length / roots.repeat_interleave(counts, output_size=len(words))[:, None]


def adversarial_noise(
    objective: Callable[[Tensor], Tensor],
    start: Tensor,
    lengths: Tensor,
    reading: AdversarialReading,
    steps: int,
    radius: float | Tensor | None = None,
) -> Tensor:
    """Return the noise [T, H], detached, after K steps of projected ascent (algorithm 1, lines 3 to 7).

    objective: noise -> scalar to raise; a sum over rows, so that no row's gradient depends on how many there
    are. Parameters get no gradient. start: standard normals [T, H], from `sequence_noise`. lengths: int64[n],
    tokens of each sequence, their sum T. steps: K; with 0 the noise is the start. radius: as `project_noise`.
    """
    noise, within = start * reading.sigma, lengths if reading.scope == "sequence" else None
    for _ in range(steps):
        with torch.enable_grad():
            noise.requires_grad_()
            (gradient,) = torch.autograd.grad(objective(noise), noise)
        noise = project_noise(
            noise, gradient, reading.step_size, reading.norm, reading.projection, radius, lengths=within
        )
    return noise


def sequence_noise(
    keys: np.ndarray, lengths: Tensor, width: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Draw standard normals float32[T, width], each a hash of (key of its sequence, position in it, feature).

    The hash is that of `augment.core.keys`, of 32 bits, made on `device`: the bits are the same everywhere,
    the normals (Box and Muller 1958) to rounding. keys: uint64[n]. lengths: int64[n], their sum T.
    """
    counts = lengths.cpu().numpy()
    drawn = [torch.from_numpy(token_bits(keys, counts, stream).view(np.int32)) for stream in (0, 1)]
    low, high = send(drawn, torch.device(device))
    half = (width + 1) // 2
    bits = low[:, None] + torch.arange(2 * half, dtype=torch.int32, device=device) * signed32(0x9E3779B9)
    bits = mix32(mix32(bits).bitwise_xor_(high[:, None]))
    uniform = ((bits >> 8) & 0xFFFFFF).float().mul_(2.0**-24)
    distance = uniform[:, :half].neg().log1p().mul_(-2.0).sqrt_()
    angle = uniform[:, half:] * (2 * math.pi)
    return torch.cat([distance * angle.cos(), distance * angle.sin()], dim=1)[:, :width]


def _kl(a: Tensor, b: Tensor) -> Tensor:
    """KL(a || b) by row, from logarithms of probabilities."""
    return kl_div(b, a, reduction="none", log_target=True).sum(-1)


def _steepest(gradient: Tensor, norm: str, lengths: Tensor | None) -> Tensor:
    """[T, H]: the direction of norm 1 along which a loss with this gradient rises most; 0 if that is 0."""
    if norm == "inf":
        return gradient.sign()
    # Divided by the largest entry first: squares of small gradients are below float32's smallest number.
    largest = _norms(gradient, "inf", lengths)
    scaled = gradient / largest.where(largest > 0, 1.0)
    return scaled / _norms(scaled, "l2", lengths).clamp_min(0.5)


def _norms(values: Tensor, norm: str, lengths: Tensor | None) -> Tensor:
    """[T, 1]: the norm of each token's row, or of all rows of the token's sequence."""
    rows = torch.linalg.vector_norm(values, ord=torch.inf if norm == "inf" else 2, dim=1)
    if lengths is not None and norm == "inf":
        largest = torch.segment_reduce(rows, "max", lengths=lengths, unsafe=True)
        rows = largest.repeat_interleave(lengths, output_size=len(values))
    elif lengths is not None:
        squares = torch.segment_reduce(rows.square(), "sum", lengths=lengths, unsafe=True)
        rows = squares.sqrt_().repeat_interleave(lengths, output_size=len(values))
    return rows[:, None]
