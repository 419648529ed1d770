"""Distillation from a frozen encoder, against sentence-transformers on the same vectors."""

import pytest
import torch
from encoder_helpers import make_encoder
from sentence_transformers import util
from sentence_transformers.sentence_transformer import losses

from pretrain.common.errors import UserError
from pretrain.config.recipe import validate_config
from pretrain.objectives import BatchContext, build_objective
from pretrain.start.encoder import check_sources

N = 23
ROLES = ("anchor", "positive", "negative")


class Given(torch.nn.Module):
    """A model of sentence-transformers' whose vectors are given."""

    def forward(self, features: dict) -> dict:
        return {"sentence_embedding": features["vectors"]}


def config_of(name: str = "distill", **settings: object):
    objective = {"name": name, "mlm": {"weight": 0.0}, "distill": settings}
    return validate_config(
        {"objective": objective, "train": {"global_batch": N}, "data": {"lanes": 1}}, "test"
    )


def distance(width: int, **settings: object) -> tuple[torch.Tensor, dict, dict, torch.Tensor]:
    """The loss, the vectors of both encoders, and which negatives are there."""
    student = make_encoder("bert")
    teacher = make_encoder("bert", hidden_size=width)
    objective = build_objective(config_of(model="another", **settings), student, guide=teacher)
    torch.manual_seed(0)
    sizes = {"student": student.hidden_size, "teacher": width}
    ours, theirs = (
        {role: torch.randn(N, size, dtype=torch.float64) for role in ROLES} for size in sizes.values()
    )
    for vectors in ours.values():
        vectors.requires_grad_()
    present = torch.rand(N) < 0.6
    everything = torch.ones(N, dtype=torch.bool)
    there = {"anchor": everything, "positive": everything, "negative": present}
    context = BatchContext(0, 0.0, torch.zeros(N), None, there, None, 0, guided=theirs)
    term = objective.terms["distill"]
    (loss,) = term.relate({role: ours[role] for role in term.roles}, context).values()
    return loss, ours, theirs, present


def features(vectors: dict, roles: tuple[str, ...], rows=slice(None)) -> list[dict]:
    return [{"vectors": vectors[role][rows]} for role in roles]


def equal(ours, theirs, vectors: dict, roles: tuple[str, ...]):
    inputs = [vectors[role] for role in roles]
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    for mine, expected in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs)):
        torch.testing.assert_close(mine, expected, rtol=1e-8, atol=1e-12)


def test_the_mean_squared_error_is_that_of_sentence_transformers():
    width = make_encoder("bert").hidden_size
    ours, student, teacher, _ = distance(width, loss="mse")
    labels = torch.cat([teacher[role] for role in ROLES[:2]])
    vectors = torch.cat([student[role] for role in ROLES[:2]])
    theirs = losses.MSELoss(Given())([{"vectors": vectors}], labels)
    equal(ours, theirs, student, ROLES[:2])


def test_margins_are_those_of_sentence_transformers_where_a_negative_is_there():
    ours, student, teacher, present = distance(16, loss="margin")
    cosine = [util.pairwise_cos_sim(teacher["anchor"], teacher[role]) for role in ROLES[1:]]
    margins = (cosine[0] - cosine[1])[present]
    theirs = losses.MarginMSELoss(Given(), similarity_fct=util.pairwise_cos_sim)
    equal(ours, theirs(features(student, ROLES, present), margins), student, ROLES)


def test_the_divergence_is_over_all_positives_of_the_batch():
    ours, student, teacher, _ = distance(16, loss="kl", temperature=0.2)
    logits = [util.cos_sim(v["anchor"], v["positive"]) / 0.2 for v in (student, teacher)]
    log_q, log_p = (part.log_softmax(1) for part in logits)
    equal(ours, (log_p.exp() * (log_p - log_q)).sum(1).mean(), student, ROLES[:2])


def test_what_cannot_be_distilled_is_refused():
    with pytest.raises(UserError, match=r"vectors of 16 numbers, .*objective\.distill\.loss to kl or margin"):
        distance(16, loss="cosine")
    with pytest.raises(UserError, match=r"distill needs a teacher: set objective\.distill\.model"):
        check_sources(config_of())
    with pytest.raises(UserError, match="over texts of all ranks"):
        validate_config(
            {"objective": {"name": "distill", "distill": {"loss": "kl"}, "scope": "local"}}, "test"
        )
    with pytest.raises(UserError, match=r"distill\.model=one is not .*guide=two, and one frozen encoder"):
        validate_config(
            {
                "objective": {
                    "name": "simcse+distill",
                    "distill": {"model": "one"},
                    "false_negatives": {"guide": "two"},
                }
            },
            "test",
        )
