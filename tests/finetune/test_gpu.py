"""What has code for a device gives on a GPU what it gives on the CPU: SentEval's fits, fine-tuning,
embedding."""

import random

import numpy as np
import pytest
import torch
from finetuning_helpers import PAIRS, sentence

from finetune.encoders.embed import POOLINGS, embed_poolings, load_model
from finetune.encoders.source import resolve
from finetune.senteval.classifier import ClassifierSettings, PairFeatures, Rows, fit_all
from finetune.senteval.protocol import L2_GRID, Setting, cross_validated, nested, relatedness, split
from finetune.tuning.finetuning import Execution, FineTuning, build_classifier
from finetune.tuning.labelled import encode_examples, open_source
from finetune.tuning.recipe import Interrupted, Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = "cuda"
TEXTS = [sentence(random.Random(n), most=30) for n in range(60)]


@pytest.fixture
def on_cpu(monkeypatch):
    """Call a function as on a machine without GPU."""

    def call(function):
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: False)
            return function()

    return call


# -- SentEval
# ------------------------------------------------------------------------------------------------------------


def examples(rows=400, width=16, classes=3):
    rng = np.random.RandomState(0)
    features = rng.randn(rows, width).astype(np.float32)
    labels = (features @ rng.randn(width, classes) + 2 * rng.randn(rows, classes)).argmax(1)
    return torch.from_numpy(features), labels


@pytest.mark.parametrize(
    "settings",
    [
        ClassifierSettings(tenacity=2, epoch_size=2, max_epoch=20),
        ClassifierSettings("rmsprop", 32, 1, 2, 20),
    ],
    ids=lambda s: s.optimizer,
)
def test_batched_fits(settings):
    """The same draws and steps; rounding may move a row across the border between two classes, or an early
    stop by it."""
    features, labels = examples()
    order = np.random.RandomState(3).permutation(len(labels))
    rows = [Rows(order[:size], order[size : size + 60]) for size in (250, 250, 251, 249)]
    there, here = (
        fit_all(features.to(device), labels, 3, rows, np.array(L2_GRID), settings)
        for device in (DEVICE, "cpu")
    )
    np.testing.assert_allclose(there.accuracy, here.accuracy, atol=2 / 60)
    same = [
        there.predict(fit, l2, features.to(DEVICE)) == here.predict(fit, l2, features)
        for fit in range(4)
        for l2 in range(4)
    ]
    assert np.mean(same) > 0.98


def test_protocols():
    features, labels = examples()
    setting = Setting(4, ClassifierSettings(tenacity=2, epoch_size=2, max_epoch=12))
    vectors, rng = features[:, :6].contiguous(), np.random.RandomState(1)
    sides = [torch.from_numpy(rng.randint(len(vectors), size=400)) for _ in range(2)]

    def evaluated(device):
        x = features.to(device)
        pairs = PairFeatures(*(part.to(device) for part in (vectors, *sides)))
        found = [
            nested(x, labels, 3, setting),
            cross_validated(x, labels, 300, 3, setting),
            split(x, labels, (250, 80, 70), 3, setting),
            split(pairs, labels, (250, 80, 70), 3, setting),
        ]
        return np.array([[one.dev, one.test] for one in found])

    np.testing.assert_allclose(evaluated(DEVICE), evaluated("cpu"), atol=3)


def test_relatedness(monkeypatch):
    monkeypatch.setattr("finetune.senteval.protocol.EPOCHS_BETWEEN", 5)
    features, _ = examples()
    scores = np.clip(3 + features.numpy() @ np.random.RandomState(2).randn(16) / 3, 1, 5)
    there, here = (relatedness(features.to(device), scores, (250, 80, 70))[0] for device in (DEVICE, "cpu"))
    names = ("pearson", "spearman", "dev_pearson")
    assert [there[name] for name in names] == pytest.approx([here[name] for name in names], abs=0.2)


# -- fine-tuning
# ----------------------------------------------------------------------------------------------------------


def training(source, recipe, **options):
    first, second = zip(*PAIRS)
    data = encode_examples(source, first, second, np.arange(len(PAIRS)) % 3, 40)
    model = build_classifier(source, 3, recipe.dropout, 1)
    return FineTuning(
        model,
        data,
        recipe,
        1,
        lambda logits: (float(logits(data).sum()), {}, np.empty(0)),
        Execution(**options),
    )


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_fine_tuning_steps(folders, on_cpu, kind):
    """Adam's eps of 1 keeps the update a smooth function of the gradient, where its usual one magnifies
    rounding."""
    recipe = Recipe(lr=0.1, batch_size=3, epochs=2, eps=1.0, clip=1.0, dropout=0.0)
    there = training(open_source(folders[kind]), recipe, keep_weights=True)
    assert there.device.type == DEVICE
    here = on_cpu(lambda: training(open_source(folders[kind]), recipe, keep_weights=True))
    assert here.device.type == "cpu"
    curves = there.run().curve, here.run().curve
    for ours, expected in zip(*curves, strict=True):
        assert ours["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    expected = here.model.state_dict()
    for name, tensor in there.model.state_dict().items():
        torch.testing.assert_close(tensor.cpu(), expected[name], rtol=1e-3, atol=1e-4)


def test_fine_tuning_goes_on_where_it_was(folders, tmp_path):
    recipe, asked = Recipe(lr=1e-3, batch_size=3, epochs=3), iter([0] * 4 + [75])
    straight = training(open_source(folders["bert"]), recipe).run()
    with pytest.raises(Interrupted):
        training(
            open_source(folders["bert"]), recipe, checkpoint=tmp_path / "x", stop_code=lambda: next(asked)
        ).run()
    resumed = training(open_source(folders["bert"]), recipe, checkpoint=tmp_path / "x").run()
    assert len(resumed.curve) == 3
    for ours, expected in zip(resumed.curve, straight.curve, strict=True):
        assert ours["loss"] == pytest.approx(expected["loss"], rel=1e-3)


def test_fine_tuning_in_half_precision(folders):
    source = open_source(folders["bert"])
    outcome = training(source, Recipe(lr=1e-3, batch_size=3, epochs=4), precision="bf16").run()
    assert outcome.curve[-1]["loss"] < outcome.curve[0]["loss"] + 0.5 and np.isfinite(outcome.best["value"])


# -- vectors
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_embedding(folders, on_cpu, kind):
    encoder, tokenizer = load_model(resolve(folders[kind]))
    assert next(encoder.parameters()).device.type == DEVICE
    there = embed_poolings(encoder, tokenizer, TEXTS, POOLINGS, 256)
    encoder, tokenizer = on_cpu(lambda: load_model(resolve(folders[kind])))
    here = embed_poolings(encoder, tokenizer, TEXTS, POOLINGS, 256)
    for pooling in POOLINGS:
        np.testing.assert_allclose(there[pooling], here[pooling], rtol=1e-3, atol=1e-4)
