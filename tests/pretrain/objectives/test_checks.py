"""Checks of the objectives' mechanisms against formulas by hand, where one is alive and where it is dead."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from exactness_worker import VOCABULARY, WIDTH, FakeTokenizer

from pretrain.config.recipe import validate_config
from pretrain.losses.virtual_adversarial import sequence_noise
from pretrain.model.encoder import build_encoder
from pretrain.objectives import build_objective
from pretrain.objectives.probe import Probe
from pretrain.telemetry.mechanisms import inert_in

LENGTHS = torch.tensor([5, 9, 3, 7])
KEYS = np.arange(7, 11, dtype=np.uint64)


def term_and_encoder(name: str, **settings):
    """An objective with these settings, and a small encoder with weights of ordinary size."""
    torch.manual_seed(0)
    sizes = {"type": "bert", "layers": 2, "hidden_size": WIDTH, "heads": 4, "max_positions": 32}
    encoder = build_encoder(sizes | {"dropout": 0.0, "attention_dropout": 0.0}, FakeTokenizer(), "mean")
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    tree = {"objective": {"name": name, name: settings}, "train": {"global_batch": 32}, "data": {"lanes": 1}}
    config = validate_config(tree, "test")
    return build_objective(config, encoder, FakeTokenizer(), 4).terms[name].double(), encoder.double()


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
    loss = term.sequence_loss(encoder, "anchor", ids, LENGTHS, None, KEYS, 0)
    loss.backward()
    sums = term.probe.sums
    assert float(sums.pop("squared_gradient")) > 0
    checks = {name: float(value) for name, value in term.sequence_checks(sums).items()}
    ratio, cosine = vadvcse_by_hand(encoder, ids, term.settings.sigma, step_size)
    assert checks == {
        "vadvcse_adversarial_over_random": pytest.approx(ratio, rel=1e-3),
        "vadvcse_cosine_with_start": pytest.approx(cosine, abs=1e-4),
    }
    assert ("vadvcse" not in inert_in(checks)) == alive
    assert (checks["vadvcse_cosine_with_start"] < 0.9) == alive
    term.probe = None
    assert torch.equal(term.sequence_loss(encoder, "anchor", ids, LENGTHS, None, KEYS, 0), loss)
