"""Readings of the papers: what each fixes, and that the adversaries that are to be alive find something."""

import math

import numpy as np
import pytest
import torch
from exactness_worker import VOCABULARY, WIDTH
from inert_row import inert_in
from objective_helpers import term_and_encoder

from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.config.terms import ADVERSARIAL_READINGS
from pretrain.data.microbatches import MicroBatch
from pretrain.objectives import BatchContext
from pretrain.objectives.base import Probe

N = 24
IDENTITIES = torch.arange(N) % (N - 2)  # two texts are there twice


def checks_of(reading: str, **settings) -> dict[str, float]:
    """The checks of V-advCSE's mechanism in a batch of N sentences, in float32."""
    term, encoder = term_and_encoder("vadvcse", reading=reading, **settings)
    term, encoder = term.float(), encoder.float()
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(4, 12, (N,), generator=draw)
    ids = torch.randint(5, VOCABULARY, (int(lengths.sum()),), generator=draw)
    with torch.no_grad():
        vectors = encoder.embed(ids, lengths)
    views = {"anchor": vectors, "positive": vectors + 0.1 * torch.randn(vectors.shape, generator=draw)}
    same = dict.fromkeys(views, IDENTITIES)
    term.conditions(views, BatchContext(0, 0.0, torch.zeros(N), same, {}, None, 0))
    term.probe = Probe()
    row = MicroBatch(ids, lengths, torch.arange(N), keys=np.arange(N, dtype=np.uint64), seed=0)
    term.sequence_loss(encoder, "anchor", row, None).backward()
    term.probe.sums.pop("squared_gradient")
    return {name: float(value) for name, value in term.sequence_checks(term.probe.sums).items()}


@pytest.mark.parametrize("divergence", ["js", "kl", "symmetric-kl"])
@pytest.mark.parametrize("reading", ["algorithm-1", "appendix-A"])
def test_the_adversary_of_a_reading_is_alive(reading, divergence):
    checks = checks_of(reading, divergence=divergence)
    assert checks["vadvcse_adversarial_over_random"] > 3
    assert checks["vadvcse_cosine_with_start"] < 0.6


def test_the_packages_numbers_are_inert_and_a_longer_step_wakes_them():
    checks = checks_of("smart-package")
    assert checks["vadvcse_adversarial_over_random"] == pytest.approx(1, abs=0.01) and inert_in(checks)
    assert checks["vadvcse_cosine_with_start"] > 0.9999
    awake = checks_of("smart-package", step_size=1e3)
    assert awake["vadvcse_adversarial_over_random"] > 2 and awake["vadvcse_cosine_with_start"] < 0.9


def test_the_annealed_factor_of_augcse_is_that_of_domain_adversarial_training():
    """2 / (1 + exp(-10 p)) - 1 of progress p (Ganin et al. 2016, section 5.2.2)."""
    term, _ = term_and_encoder("augcse", alpha_schedule="annealed", positive="augmented")
    expected = [term.settings.alpha * math.tanh(5 * progress) for progress in (0.0, 0.1, 0.9)]
    assert [term.alpha(progress) for progress in (0.0, 0.1, 0.9)] == pytest.approx(expected)


@pytest.mark.parametrize("reading", ADVERSARIAL_READINGS)
def test_a_reading_is_the_table_and_a_number_that_is_set_is_taken_in_its_place(reading):
    def resolved(**more):
        words = {"objective": "vadvcse", "objective.vadvcse.reading": reading}
        return load_config(None, words | more).objective.vadvcse.resolved

    table = ADVERSARIAL_READINGS[reading]
    assert resolved() == table
    # A rank's own negatives leave the norm's scope alone: the same word, of two things.
    assert resolved(**{"objective.scope": "local"}) == table
    changed = resolved(**{"objective.vadvcse.sigma": "0.5", "objective.vadvcse.adversarial_weight": "0.25"})
    assert (changed.sigma, changed.adversarial_weight, changed.norm) == (0.5, 0.25, table.norm)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"reading": "smart-package", "radius": "0.1"}, "radius=0.1.*smart-package has none.*reading"),
        ({"reading": "appendix-A", "step_size": "2"}, "step_size=2.*appendix-A has none.*reading"),
        ({"reading": "printed"}, "smart-package.*algorithm-1.*appendix-A"),
    ],
)
def test_what_a_reading_has_not_is_refused(settings, said):
    words = {"objective": "vadvcse", **{f"objective.vadvcse.{key}": value for key, value in settings.items()}}
    with pytest.raises(UserError, match=said):
        load_config(None, words)


@pytest.mark.parametrize(
    "name, switch",
    [
        ("vadvcse", "projection"),
        ("vadvcse", "clean_gradient"),
        ("vascl", "grad_to_encoder"),
        ("augcse", "discriminator"),
        ("diffcse", "replacement"),
    ],
)
def test_there_is_no_switch_beside_the_reading(name, switch):
    with pytest.raises(UserError, match=f"unknown flag --objective.{name}.{switch}"):
        load_config(None, {"objective": name, f"objective.{name}.{switch}": "x"})


@pytest.mark.parametrize("name", ["vascl", "augcse"])
def test_the_readings_of_the_code_and_of_the_paper_are_different_losses(name):
    losses = {}
    for reading in ("code", "paper"):
        settings = {"neighbours": 4} if name == "vascl" else {}
        term, _ = term_and_encoder(name, reading=reading, **settings)
        draw = torch.Generator().manual_seed(2)
        views = {
            role: torch.randn(N, WIDTH, generator=draw, dtype=torch.float64).requires_grad_()
            for role in term.roles
        }
        same, labels = dict.fromkeys(views, IDENTITIES), torch.arange(N) % 4
        found = term.relate(views, BatchContext(0, 0.0, torch.zeros(N), same, {}, labels, 0))
        reached = torch.autograd.grad(list(found.values())[-1], views["anchor"], allow_unused=True)[0]
        losses[reading] = ([float(loss.detach()) for loss in found.values()], reached is not None)
    (code, code_reaches), (paper, paper_reaches) = losses["code"], losses["paper"]
    assert code[1] != paper[1] and paper_reaches
    # VaSCL's first loss is the same, and its second trains the encoder as printed alone
    assert (code[0] == paper[0]) == (name == "vascl") and code_reaches == (name == "augcse")
