"""Masked false negatives and Matryoshka widths, against sentence-transformers on the same vectors."""

import math

import pytest
import torch
from exactness_worker import FakeTokenizer
from objective_helpers import SIZES
from sentence_transformers.sentence_transformer import losses
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from pretrain.common.errors import UserError
from pretrain.config.recipe import validate_config
from pretrain.losses import contrastive
from pretrain.losses.contrastive import Negatives, info_nce, nt_xent, symmetric_info_nce
from pretrain.losses.exclusions import Exclusions, Guide
from pretrain.model.encoder import build_encoder
from pretrain.objectives import BatchContext, build_objective

N, WIDTH = 23, 32
RULES = [("absolute", 0.0), ("absolute", 0.1), ("absolute", -0.2), ("relative", 0.05), ("relative", -0.5)]


class Given(torch.nn.Sequential):
    """A model of sentence-transformers' whose vectors are given."""

    max_seq_length = 8
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")))

    def __init__(self, name: str):
        super().__init__(torch.nn.Identity())
        self.name = name

    def forward(self, features: dict) -> dict:
        return {**features, "sentence_embedding": features[self.name]}

    def get_embedding_dimension(self) -> int:
        return WIDTH


def columns(count: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Vectors of a model, and of a guide, by column: positives are near their anchors."""
    torch.manual_seed(3)
    base = torch.randn(N, WIDTH, dtype=torch.float64)
    ours = [(base + torch.randn_like(base)).requires_grad_() for _ in range(count)]
    guide = [base[:, :12] + 0.9 * torch.randn(N, 12, dtype=torch.float64) for _ in range(count)]
    return ours, guide


def equal(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    gradients = torch.autograd.grad(ours, inputs, retain_graph=True)
    for mine, expected in zip(gradients, torch.autograd.grad(theirs, inputs)):
        torch.testing.assert_close(mine, expected, rtol=1e-8, atol=1e-12)


def test_records_that_share_a_text_are_no_negatives_of_each_other():
    """An anchor has the loss of sentence-transformers in a batch without duplicates, which is how one is
    drawn there: its own record, and those of other meanings."""
    a, p = (torch.randn(6, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(2))
    texts = torch.tensor([[1, 1, 2, 3, 4, 15], [11, 12, 12, 13, 14, 13]])  # 0, 1, 2 by 1 and 12; 3, 5 by 13
    meaning, theirs = [0, 0, 0, 3, 4, 3], 0.0
    for i in range(6):
        others = [p[j : j + 1] for j in range(6) if meaning[j] != meaning[i]]
        columns = [{"model": x} for x in (a[i : i + 1], p[i : i + 1], *others)]
        theirs += losses.MultipleNegativesRankingLoss(Given("model"), scale=1 / 0.07)(columns, None) / 6
    equal(info_nce(a, p, 0.07, Exclusions(identities=texts)), theirs, [a, p])


@pytest.mark.parametrize("absent", [0, 3, 8])
def test_an_absent_hard_negative_is_no_negative(absent):
    """Where all vectors are equal, the loss is the log of the number of candidates."""
    count = 8
    whole = objective(name="simcse", simcse={"hard_negatives": True, "head": "none"})
    term = whole.terms["simcse"]
    views = {role: torch.ones(count, WIDTH, dtype=torch.double) for role in term.roles}
    numbers = torch.arange(count)
    present = {"negative": numbers >= absent}
    for identities in (None, {role: numbers + 100 * i for i, role in enumerate(term.roles)}):
        context = BatchContext(0, 0.0, numbers * 0, identities, present, None, 5)
        loss = term.relate(views, context)["simcse"].item()
        candidates = whole.negatives(count, 1 - absent / count) + 1
        assert loss == pytest.approx(math.log(candidates), rel=1e-6) and candidates == 2 * count - absent


@pytest.mark.parametrize("strategy, margin", RULES)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("tile", [5, None])
def test_masked_false_negatives_equal_gist_embed_loss(strategy, margin, count, tile, monkeypatch):
    if tile:
        monkeypatch.setattr(contrastive, "tile_rows", lambda device, candidates: tile)
    ours, of_guide = columns(count)
    guide = Guide(*of_guide, margin=margin, strategy=strategy, counting=True)
    hard = None if count == 2 else Negatives(ours[2])
    loss = info_nce(ours[0], ours[1], 0.07, Exclusions(guide=guide), hard)
    settings = {"temperature": 0.07, "margin": margin, "margin_strategy": strategy}
    settings |= {"contrast_anchors": False, "contrast_positives": False}
    features = [{"model": x, "guide": g} for x, g in zip(ours, of_guide)]
    theirs = losses.GISTEmbedLoss(Given("model"), Given("guide"), **settings)(features, None)
    equal(loss, theirs, ours)
    cached = losses.CachedGISTEmbedLoss(Given("model"), Given("guide"), mini_batch_size=7, **settings)
    equal(loss, cached.calculate_loss([[x] for x in ours], [[g] for g in of_guide]), ours)
    assert 0 < float(guide.share()) < 1
    assert loss < info_nce(ours[0], ours[1], 0.07, negatives=hard)


def test_nt_xent_and_both_directions_leave_out_by_the_rule(monkeypatch):
    """NT-Xent's candidates are all vectors; the way back has the positives as anchors."""
    (a, p), (g, h) = columns(2)
    every, of_guide = torch.cat([a, p]), torch.cat([g, h])
    partner = (torch.arange(2 * N) + N) % (2 * N)

    def by_hand(anchors, candidates, own, guide_of_anchors, guide_of_candidates, alone):
        cosine = torch.nn.functional.cosine_similarity
        total, masked, there = 0.0, 0, 0
        for i in range(len(anchors)):
            near = cosine(guide_of_anchors[i][None], guide_of_candidates)
            kept = [int(own[i])]
            for j in range(len(candidates)):
                if j == own[i] or (alone and j == i):
                    continue
                there += 1
                if near[j] > near[own[i]] - 0.1:
                    masked += 1
                else:
                    kept.append(j)
            logits = cosine(anchors[i][None], candidates[kept]) / 0.2
            total = total + torch.logsumexp(logits, 0) - logits[0]
        return total / len(anchors), masked, there

    def guide():
        return Guide(g, h, margin=0.1, counting=True)

    expected, masked, there = by_hand(every, every, partner, of_guide, of_guide, True)
    ours = guide()
    monkeypatch.setattr(contrastive, "tile_rows", lambda device, candidates: 9)
    equal(nt_xent(torch.stack([a, p]), 0.2, Exclusions(guide=ours)), expected, [a, p])
    assert float(ours.share()) == pytest.approx(masked / there)
    index = torch.arange(N)
    forth, *first = by_hand(a, p, index, g, h, False)
    back, *second = by_hand(p, a, index, h, g, False)
    ours = guide()
    equal(symmetric_info_nce(a, p, 0.2, Exclusions(guide=ours)), (forth + back) / 2, [a, p])
    assert float(ours.share()) == pytest.approx((first[0] + second[0]) / (first[1] + second[1]))


def test_what_is_no_negative_anyway_is_not_counted():
    (a, p), (g, h) = columns(2)
    texts = torch.arange(N) % 5
    guide = Guide(g, h, margin=9.0, counting=True)
    info_nce(a, p, 0.1, Exclusions(identities=texts.expand(2, -1), guide=guide))
    assert float(guide.share()) == 1.0
    assert float(sum(guide.tally)[1]) == int((texts[:, None] != texts[None]).sum())


def objective(**settings):
    torch.manual_seed(0)
    encoder = build_encoder(SIZES | {"dropout": 0.0, "attention_dropout": 0.0}, FakeTokenizer(), "mean")
    tree = {"objective": settings, "train": {"global_batch": 24}, "data": {"lanes": 1}}
    return build_objective(validate_config(tree, "test"), encoder, FakeTokenizer(), 4)


def context(collects_diagnostics: bool = False) -> BatchContext:
    zeros = torch.zeros(N, dtype=torch.long)
    return BatchContext(0, 0.0, zeros, None, {}, None, 5, collects_diagnostics=collects_diagnostics)


def test_widths_equal_matryoshka_loss_over_multiple_negatives_ranking_loss():
    (a, p), _ = columns(2)
    simcse = {"head": "none", "temperature": 0.05}
    whole = objective(name="simcse", simcse=simcse, matryoshka=[32, 4, 16])
    model = Given("model")
    ranking = losses.MultipleNegativesRankingLoss(model, scale=20.0)
    matryoshka = losses.MatryoshkaLoss(model, ranking, [32, 4, 16])
    theirs = matryoshka([{"model": a}, {"model": p}], None)
    report = context(collects_diagnostics=True)
    ours = whole.relate({"anchor": a, "positive": p}, report)["simcse"]
    equal(ours, theirs, [a, p])
    alone = info_nce(a[:, :4], p[:, :4], 0.05)
    assert float(report.measures["simcse_at_4"]) == pytest.approx(float(alone.detach()), rel=1e-12)


def test_a_head_sees_the_coordinates_within_a_width_alone():
    whole = objective(name="simcse", matryoshka=[8]).double()
    views = {role: torch.randn(N, WIDTH, dtype=torch.float64) for role in ("anchor", "positive")}
    changed = {role: torch.cat([v[:, :8], torch.randn(N, WIDTH - 8)], 1) for role, v in views.items()}
    assert whole.relate(views, context())["simcse"] == whole.relate(changed, context())["simcse"]


def test_a_heads_running_statistics_are_of_whole_vectors_alone():
    views = {role: torch.randn(N, WIDTH) for role in ("anchor", "positive")}
    kept = []
    for widths in ([], [WIDTH, 8]):
        whole = objective(name="simcse", simcse={"head": "batch-norm"}, matryoshka=widths)
        whole.relate(views, context())
        kept.append(dict(whole.named_buffers()))
    assert kept[0] and all(kept[1][name].equal(buffer) for name, buffer in kept[0].items())


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"matryoshka": [8, 8]}, "different widths"),
        ({"matryoshka": [8, 0]}, "different widths"),
        ({"matryoshka": [64, 8]}, "64 is wider than the vectors, 32"),
        ({"false_negatives": {"strategy": "itself"}}, "relative"),
    ],
)
def test_options_that_cannot_be_are_refused(settings, says):
    with pytest.raises(UserError, match=says):
        objective(name="simcse", **settings)


def test_the_queue_of_esimcse_is_of_whole_vectors_alone():
    """Narrower ones have the batch alone, and what the queue gives to the loss is measured at the whole."""
    (a, p), _ = columns(2)
    whole = objective(name="esimcse", esimcse={"temperature": 0.1}, matryoshka=[WIDTH, 8]).double()
    term = whole.terms["esimcse"]
    term.head = torch.nn.Identity()
    queue = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(4)).double()
    term.queue[:5] = queue
    term.filled.fill_(5)
    report = context(collects_diagnostics=True)
    found = whole.relate({"anchor": a, "positive": p}, report)["esimcse"]
    of_queue = info_nce(a, p, 0.1, negatives=Negatives(queue))
    narrow = info_nce(a[:, :8], p[:, :8], 0.1)
    assert found.item() == pytest.approx((of_queue + narrow).item(), rel=1e-12)
    assert report.measures["esimcse_at_8"].item() == pytest.approx(narrow.item(), rel=1e-12)
    without = info_nce(a, p, 0.1)
    share = float(report.measures["esimcse_queue_share_of_loss"])
    assert share == pytest.approx(1 - (without / of_queue).item(), abs=1e-6)
