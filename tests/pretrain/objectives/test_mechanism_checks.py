"""Checks of the objectives' mechanisms against formulas by hand, where one is alive and where it is dead."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from exactness_worker import VOCABULARY, WIDTH, FakeTokenizer
from inert_row import inert_in
from objective_helpers import SIZES, term_and_encoder

from pretrain.data.microbatches import MicroBatch
from pretrain.model.encoder import build_encoder
from pretrain.objectives import BatchContext
from pretrain.objectives.base import Probe
from pretrain.objectives.vadvcse import sequence_noise

LENGTHS = torch.tensor([5, 9, 3, 7])
KEYS = np.arange(7, 11, dtype=np.uint64)


def vadvcse_by_hand(encoder, ids, sigma: float, step_size: float) -> tuple[float, float]:
    """(adversarial loss over random's, cosine with the start) of one smart step by the largest coordinate."""
    edges = [0, *LENGTHS.cumsum(0).tolist()]
    start = sequence_noise(KEYS, LENGTHS, WIDTH).double()
    losses, cosines = torch.zeros(2, dtype=torch.float64), []
    for first, last in pairwise(edges):  # one sentence at a time

        def output(noise, part=slice(first, last)):
            length = torch.tensor([part.stop - part.start])
            return encoder.embed(ids[part], length, edit=lambda words: words + noise)

        def js(p, q):
            p, q = p.softmax(1), q.softmax(1)
            m = ((p + q) / 2).detach()
            return (m * (2 * m.log() - p.log() - q.log())).sum()

        own = start[first:last]
        clean = output(torch.zeros_like(own)).detach()
        noise = (own * sigma).requires_grad_()
        (gradient,) = torch.autograd.grad(js(output(noise), clean), noise)
        noise = noise.detach() + step_size * gradient
        noise = noise / (noise.abs().amax(1, keepdim=True) + 1e-6)
        random = own / own.norm(dim=1, keepdim=True) * noise.norm(dim=1, keepdim=True)
        with torch.no_grad():
            losses += torch.stack([js(output(noise), clean), js(output(random), clean)])
        cosines += torch.nn.functional.cosine_similarity(noise, own).tolist()
    return float(losses[0] / losses[1]), float(np.mean(cosines))


@pytest.mark.parametrize("step_size, alive", [(1e-3, False), (1e3, True)])
def test_vadvcse_moves_its_noise_only_by_a_large_step(step_size, alive):
    term, encoder = term_and_encoder("vadvcse", step_size=step_size, distribution="vector")
    ids = torch.randint(5, VOCABULARY, (int(LENGTHS.sum()),), generator=torch.Generator().manual_seed(1))
    term.probe = Probe()
    row = MicroBatch(ids, LENGTHS, torch.arange(len(LENGTHS)), keys=KEYS, seed=0)
    loss = term.sequence_loss(encoder, "anchor", row, None)
    loss.backward()
    sums = term.probe.sums
    assert float(sums.pop("squared_gradient")) > 0
    checks = {name: float(value) for name, value in term.sequence_checks(sums).items()}
    ratio, cosine = vadvcse_by_hand(encoder, ids, term.reading.sigma, step_size)
    assert checks == {
        "vadvcse_adversarial_over_random": pytest.approx(ratio, rel=1e-3),
        "vadvcse_cosine_with_start": pytest.approx(cosine, abs=1e-4),
    }
    assert ("vadvcse" not in inert_in(checks)) == alive
    assert (checks["vadvcse_cosine_with_start"] < 0.9) == alive
    term.probe = None
    assert torch.equal(term.sequence_loss(encoder, "anchor", row, None), loss)


def context_of(count: int, **more) -> BatchContext:
    """The context of a batch of different texts, at a step that ends a row."""
    same = dict.fromkeys(("anchor", "positive", "negative", "augmented"), torch.arange(count))
    given = {"step": 3, "progress": 0.3, "groups": torch.zeros(count, dtype=torch.long), "seed": 5}
    given |= {"identities": same, "present": {}, "labels": None, "collects_diagnostics": True}
    return BatchContext(**given | more)


def measures_of(term, views: dict, context: BatchContext) -> dict[str, float]:
    """What the term leaves for the metrics at a step that ends a row, and nothing at others."""
    losses = term.relate(views, context)
    silent = context_of(
        len(views["anchor"]), labels=context.labels, present=context.present, collects_diagnostics=False
    )
    for name, loss in term.relate(views, silent).items():
        assert torch.equal(loss, losses[name])
    measures = {name: float(value) for name, value in context.measures.items()}
    assert set(silent.measures) <= set(measures)
    return measures


def cosines(first, second):
    return torch.nn.functional.normalize(first, dim=1) @ torch.nn.functional.normalize(second, dim=1).T


def noisy_views(count: int, roles: tuple[str, ...], noise: float = 0.5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    base = torch.randn(count, WIDTH, generator=generator).double()
    return {role: base + noise * torch.randn(count, WIDTH, generator=generator) for role in roles}


def neighbourhood_by_hand(head, clean, moved, chosen, temperature: float) -> float:
    """The mean over both directions of -log softmax: K neighbours, clean and moved, are the negatives."""
    both, count, total = torch.cat([clean, moved]), len(clean), 0.0
    logits = cosines(both, both) / temperature
    for anchor in range(2 * count):
        near = chosen[anchor % count]
        listed = [(anchor + count) % (2 * count), *near, *(near + count)]
        total += float(logits[anchor, listed].logsumexp(0) - logits[anchor, listed[0]])
    return total / (2 * count)


@pytest.mark.parametrize("radius, alive", [(0.5, True), (1e-4, False)])
def test_vascl_is_alive_while_its_delta_raises_the_loss(radius, alive):
    term, _ = term_and_encoder("vascl", neighbours=3, radius=radius, temperature=0.2)
    views = noisy_views(12, ("anchor", "positive"))
    context = context_of(12)
    found = measures_of(term, views, context)
    e, head = views["anchor"], term.head
    products = (e @ e.T).fill_diagonal_(-torch.inf)
    chosen = products.topk(3, dim=1).indices
    drawn = torch.rand((12, WIDTH), generator=context.generator()).double() - 0.5
    start = (drawn / drawn.norm(dim=1, keepdim=True)).requires_grad_()
    loss = 0.0
    for i, near in enumerate(chosen.tolist()):
        logits = cosines(head(e[i : i + 1] + radius * start[i]), head(e[[i, *near]]).detach()) / 0.2
        loss = loss + logits.logsumexp(1).sum() - logits[0, 0]
    (gradient,) = torch.autograd.grad(loss, start)
    with torch.no_grad():
        deltas = [torch.zeros_like(e), gradient / gradient.norm(dim=1, keepdim=True) * radius]
        deltas.append(start * radius)
        rest, worst, random = (
            neighbourhood_by_hand(head, head(e), head(e + delta), chosen, 0.2) for delta in deltas
        )
    assert found["vascl_neighbourhood_rise"] == pytest.approx(worst - rest, rel=1e-4)
    assert found["vascl_neighbourhood_rise_of_random"] == pytest.approx(random - rest, rel=1e-4)
    assert ("vascl" not in inert_in(found | {"loss": {"vascl_neighbourhood": worst}})) == alive


class Answers(torch.nn.Module):
    """A discriminator that gives these answers whatever it is shown."""

    def __init__(self, answers: list[int]):
        super().__init__()
        self.answers = answers

    def forward(self, shown):
        return torch.eye(4).double()[self.answers] + 0 * shown.sum()


@pytest.mark.parametrize("answers, alive", [([1, 3, 1, 1, 0, 2, 0, 0], True), ([1] * 8, False)])
def test_augcse_is_alive_when_its_discriminator_beats_the_most_frequent_label(answers, alive):
    labels = [1, 3, 1, 1, 0, 2, 1, 0]
    term, _ = term_and_encoder("augcse", discriminator_weight=0.5)
    term.discriminator = Answers(answers)
    views = noisy_views(8, ("anchor", "positive", "augmented"))
    found = measures_of(term, views, context_of(8, labels=torch.tensor(labels)))
    right = sum(a == b for a, b in zip(answers, labels)) / 8
    assert found == {"discriminator_accuracy": right, "discriminator_majority_share": 0.5}
    assert ("augcse" not in inert_in(found)) == alive


def test_a_discriminator_of_two_labels_is_asked_whether_anything_was_changed():
    labels = torch.tensor([1, 3, 1, 1, 0, 2, 3, 0])  # 3: nothing
    term, _ = term_and_encoder("augcse", discriminator_weight=0.5, labels="bool")
    term.discriminator = Answers((labels < 3).long().tolist())
    found = measures_of(
        term, noisy_views(8, ("anchor", "positive", "augmented")), context_of(8, labels=labels)
    )
    assert found == {"discriminator_accuracy": 1.0, "discriminator_majority_share": 0.75}


@pytest.mark.parametrize("margin, alive", [(0.0, True), (2.0, False)])
def test_sda_is_alive_while_negations_are_part_of_the_loss(margin, alive):
    term, _ = term_and_encoder("sda", margin=margin, temperature=0.1)
    term.head = torch.nn.Identity()
    views = noisy_views(10, ("anchor", "positive", "negative"))
    views["negative"][:5] = views["anchor"][:5] + 1e-3  # nearer than any positive
    present = torch.arange(10) != 2
    found = measures_of(term, views, context_of(10, present={"negative": present}))
    near = [float(cosines(views["anchor"], views[role])[i, i]) for i in range(10) for role in views]
    nearer = [near[3 * i + 2] > near[3 * i + 1] for i in range(10) if i != 2]
    assert found["sda_negation_nearer_than_positive"] == pytest.approx(np.mean(nearer)) and any(nearer)
    logits = cosines(views["anchor"], views["positive"]) / 0.1
    own = torch.tensor(near[2::3]).double().sub(margin).div(0.1).masked_fill(~present, -torch.inf)
    without = (logits.logsumexp(1) - logits.diagonal()).mean()
    loss = (torch.cat([logits, own[:, None]], 1).logsumexp(1) - logits.diagonal()).mean()
    assert found["sda_negation_share_of_loss"] == pytest.approx(float(1 - without / loss), abs=1e-6)
    assert ("sda" not in inert_in(found)) == alive


@pytest.mark.parametrize("far, alive", [(False, True), (True, False)])
def test_esimcse_is_alive_while_its_queue_is_part_of_the_loss(far, alive):
    term, _ = term_and_encoder("esimcse", temperature=0.1)
    term.head = torch.nn.Identity()
    views = noisy_views(6, ("anchor", "positive"))
    assert "esimcse_queue_share_of_loss" not in measures_of(term, views, context_of(6))  # still empty
    queue = torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(4)).double()
    if far:  # opposite to all sentences
        views = {role: vectors + 9.0 for role, vectors in views.items()}
        queue = -queue.abs() - 9.0
    term.queue[:20], term.queue_identities[:20] = queue, torch.arange(100, 120)
    term.filled.fill_(20)
    found = measures_of(term, views, context_of(6))
    logits = cosines(views["anchor"], torch.cat([views["positive"], queue])) / 0.1
    without, loss = ((part.logsumexp(1) - logits.diagonal()).mean() for part in (logits[:, :6], logits))
    assert found["esimcse_queue_share_of_loss"] == pytest.approx(float(1 - without / loss), abs=1e-6)
    assert ("esimcse" not in inert_in(found)) == alive


class Told(torch.nn.Module):
    """A classifier of tokens that says of each whether it was replaced, as it was told before."""

    def __init__(self, replaced: torch.Tensor):
        super().__init__()
        self.weight, self.replaced = torch.nn.Parameter(torch.zeros(1).double()), replaced

    def forward(self, hidden):
        return torch.eye(2).double()[self.replaced.long()]


@pytest.mark.parametrize("right, alive", [(True, True), (False, False)])
def test_diffcse_is_alive_when_it_finds_replaced_tokens(tmp_path, right, alive):
    build_encoder(SIZES, FakeTokenizer()).lm.save_pretrained(tmp_path)
    term, encoder = term_and_encoder("diffcse", generator=str(tmp_path), reading="paper")
    term.discriminator.double()
    ids = torch.randint(5, VOCABULARY, (int(LENGTHS.sum()),), generator=torch.Generator().manual_seed(1))
    replaced = term.edit(ids, LENGTHS, KEYS) != ids
    share = float(replaced.double().mean())
    assert 0 < share < 0.5
    term.replaced = Told(replaced if right else torch.zeros_like(replaced))
    term.probe = Probe()
    for role in ("anchor", "positive"):
        row = MicroBatch(ids, LENGTHS, torch.arange(4), keys=KEYS)
        term.sequence_loss(encoder, role, row, torch.zeros(4, WIDTH).double())
    found = {name: float(value) for name, value in term.sequence_checks(term.probe.sums).items()}
    assert found == {
        "diffcse_replaced_token_accuracy": pytest.approx(1 if right else 1 - share),
        "diffcse_always_original_accuracy": pytest.approx(1 - share),
    }
    assert ("diffcse" not in inert_in(found)) == alive
