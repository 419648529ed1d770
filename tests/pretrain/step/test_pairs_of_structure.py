"""Objectives over pairs of structure, from files to gradients: on two ranks what it is on one device."""

import exactness_worker
import numpy as np
import pytest
from exactness_cases import SEED, N
from exactness_worker import build, errors, reference_gradients
from loader_helpers import batches
from prepare_helpers import WORDS, config
from threaded_ranks import PlainEngine, ThreadedRanks

from augment.core.vocabulary import Vocabulary
from pretrain.data.batch import RankBatch, ViewSpec
from pretrain.data.tokenizer import load_tokenizer
from pretrain.losses import contrastive
from pretrain.prepare.run import prepare
from pretrain.step.precision import LossScale
from pretrain.step.whole_batch import WholeBatch


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Pairs of pages: some share a heading, some a section."""
    folder, draw = tmp_path_factory.mktemp("pages"), np.random.default_rng(0)
    for number in range(16):
        body = " ".join(draw.choice(WORDS, 5 + number))
        texts = (
            f"## Use\n\nIt is like page {number} of {body}.\n\n## Part {number}\n\nWho knows how it ends.\n"
        )
        (folder / f"{number}.md").write_text(f"{texts}\n## End of {number}\n\n{body} and then it ends.\n")
    made = config(folder, pairs="heading", heldout=0, max_length=48)
    assert prepare(made, folder / "data", workers=1, progress=False)["counts"]["records"] == 48
    return folder / "data"


def rows(tokens) -> list[list[int]]:
    return [tokens[number].tolist() for number in range(len(tokens))]


@pytest.mark.parametrize("case", ["simcse", "simcse_supervised", "sda_no_negatives", "esimcse"])
def test_two_ranks_have_the_gradient_of_one_device(data, monkeypatch, case):
    tokenizer, world = load_tokenizer(data), 2
    monkeypatch.setattr(contrastive, "SMALLEST_SHARED", 0)
    monkeypatch.setattr(exactness_worker, "VOCABULARY", len(tokenizer))
    monkeypatch.setattr(exactness_worker.FakeTokenizer, "vocab_size", len(tokenizer))
    assert tokenizer.pad_token_id == exactness_worker.PAD and tokenizer.mask_token_id == exactness_worker.MASK
    built = [build(case, 0, "fp32", 0.0) for _ in range(world)]
    config_, model = built[0]
    views = [ViewSpec(role, "none") for role in model.objective.roles]

    def first_batch(**ranks) -> RankBatch:
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        return batches(data, vocabulary=vocabulary, views=views, global_batch=N, stop_step=1, **ranks)[0]

    one, shares = first_batch(), [first_batch(rank=rank, world_size=world) for rank in range(world)]
    identities = {role: view.identities for role, view in one.views.items()}
    assert len(set(identities["anchor"])) < N and len(set(identities["positive"])) < N
    assert (one.views["anchor"].tokens.lengths != one.views["positive"].tokens.lengths).any()
    whole = {
        "originals": rows(one.original),
        "masked": [],
        "views": {role: rows(view.tokens) for role, view in one.views.items()},
        "outside": {},
        "identities": {role: ids.astype(np.int64) for role, ids in identities.items()},
        "present": {role: view.present for role, view in one.views.items()},
        "labels": np.zeros(N, np.int64),
    }
    losses, expected, _ = reference_gradients(
        model, whole, config_, world, tuple(model.objective.terms), False
    )

    def compute(rank):
        engine = PlainEngine(built[rank][1])
        step = WholeBatch(engine, SEED, 200, LossScale(engine.module, 1024.0), lanes=N).compute(shares[rank])
        gradients = {n: p.grad.double() for n, p in engine.module.named_parameters() if p.grad is not None}
        return step, errors(gradients, expected)

    for step, found in ThreadedRanks(world, monkeypatch).run(compute):
        assert max(step.micro_batches) > 1 and found["error"] < 1e-5 and found["worst_parameter"] < 2e-4
        for name, value in losses.items():
            assert float(step.losses[name]) == pytest.approx(value, rel=5e-5), name
