"""Layers of few-shot intents: the batched optimisation against separate torch.optim.Adam fits; splits."""

import numpy as np
import pytest
import torch

from finetune.intents import layers
from finetune.intents.layers import BATCH, fit, mini_batches, samples
from finetune.senteval.classifier import Rows, initial_weights


def first_weights(width, classes, split):
    """Weight [C, d] and bias [C] of a new layer."""
    both = initial_weights(width, classes, layers.SEED + split)
    return both[:, :-1], both[:, -1]


def separate_fit(vectors, labels, test, test_labels, sample, classes, split, iterations, every):
    """The protocol for one split, written plainly: (test accuracy, validation accuracy, iteration,
    weights)."""
    layer = torch.nn.Linear(vectors.shape[1], classes)
    with torch.no_grad():
        weight, bias = first_weights(vectors.shape[1], classes, split)
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    optimizer = torch.optim.Adam(layer.parameters(), lr=layers.LEARNING_RATE)
    best = (0.0, -1.0, 0)
    for step, batch in enumerate(mini_batches(len(sample.train), split, iterations), start=1):
        rows = torch.from_numpy(sample.train[batch])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(vectors[rows]), labels[rows]).backward()
        optimizer.step()
        if step % every == 0:
            part = torch.from_numpy(sample.dev)
            with torch.no_grad():
                score = 100 * (layer(vectors[part]).argmax(1) == labels[part]).double().mean().item()
                if score > best[1]:
                    best = (100 * (layer(test).argmax(1) == test_labels).double().mean().item(), score, step)
    return best


def examples(classes=6, each=45, width=20, seed=0):
    random = np.random.RandomState(seed)
    centres = random.randn(classes, width)
    labels = np.repeat(np.arange(classes), each)
    vectors = (centres[labels] + 1.5 * random.randn(len(labels), width)).astype(np.float32)
    test_labels = random.randint(classes, size=200)
    test = (centres[test_labels] + 1.5 * random.randn(200, width)).astype(np.float32)
    return (
        torch.from_numpy(vectors),
        torch.from_numpy(labels),
        torch.from_numpy(test),
        torch.from_numpy(test_labels),
    )


def test_all_fits_in_one_optimisation_equal_separate_ones(monkeypatch):
    monkeypatch.setattr(layers, "LEARNING_RATE", 1e-2)  # so that 100 steps go somewhere
    vectors, labels, test, test_labels = examples()
    chosen = [sample for shots in (5, 10, 20) for sample in samples(labels.numpy(), shots)]
    assert len({len(sample.train) % BATCH for sample in chosen}) > 1  # passes end at different steps
    together = fit(vectors, labels, test, test_labels, chosen, 6, iterations=100, validate_every=20)
    for number in (0, 3, 6, 9, 12):
        alone = separate_fit(vectors, labels, test, test_labels, chosen[number], 6, number % 5, 100, 20)
        assert (
            together[number].test,
            together[number].validation,
            together[number].iteration,
        ) == pytest.approx(alone)
    assert len({one.test for one in together}) > 3 and min(one.test for one in together) > 30


def test_weights_equal_after_many_steps(monkeypatch):
    """Not only the accuracies: the weights themselves, one validation at the very end."""
    vectors, labels, test, test_labels = examples()
    chosen = samples(labels.numpy(), 7, splits=3)
    kept = []
    classes = layers._classes
    monkeypatch.setattr(
        layers, "_classes", lambda layer, rows: kept.append(layer.clone()) or classes(layer, rows)
    )
    fit(vectors, labels, test, test_labels, chosen, 6, iterations=200, validate_every=200)
    for number, sample in enumerate(chosen):
        layer = torch.nn.Linear(20, 6)
        weight, bias = first_weights(20, 6, number)
        layer.load_state_dict({"weight": weight, "bias": bias})
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-4)
        for batch in mini_batches(len(sample.train), number, 200):
            rows = torch.from_numpy(sample.train[batch])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(vectors[rows]), labels[rows]).backward()
            optimizer.step()
        expected = torch.cat([layer.weight, layer.bias[:, None]], 1).detach()
        torch.testing.assert_close(kept[2 * number], expected, atol=2e-6, rtol=1e-5)
        assert (expected - torch.cat([weight, bias[:, None]], 1)).abs().max() > 5e-3


def test_splits_are_fixed_nested_and_disjoint():
    labels = np.array([0] * 50 + [1] * 45 + [2] * 7 + [3])
    by_shots = {shots: samples(labels, shots) for shots in (5, 10, 20)}
    for shots, found in by_shots.items():
        assert len(found) == 5
        for sample in found:
            assert not set(sample.train) & set(sample.dev)
            assert np.bincount(labels[sample.train]).tolist() == [shots, shots, 4, 1]
            assert np.bincount(labels[sample.dev], minlength=4).tolist() == [shots, shots, 3, 0]
    for small, large in ((5, 10), (10, 20)):
        for one, other in zip(by_shots[small], by_shots[large], strict=True):
            assert set(one.train) <= set(other.train)
    assert len({tuple(sample.train) for sample in by_shots[5]}) == 5
    # These very rows: a change of the sampling would make every earlier result incomparable.
    assert by_shots[5][0].train[:5].tolist() == PINNED_ROWS


PINNED_ROWS = [32, 29, 13, 49, 14]


def test_mini_batches_pass_over_all_rows():
    batches = mini_batches(70, 0, 7)
    assert [len(batch) for batch in batches] == [32, 32, 6, 32, 32, 6, 32]
    assert sorted(np.concatenate(batches[:3])) == sorted(np.concatenate(batches[3:6])) == list(range(70))


def test_short_batches_are_padded_without_weight():
    rows, scale = layers._padded_batches([Rows(np.arange(10, 50), np.arange(3))], 4)
    assert rows.shape == (4, 1, BATCH) and torch.allclose(scale.sum(2), torch.ones(4, 1))
    assert (scale[1, 0, :8] == 1 / 8).all() and (scale[1, 0, 8:] == 0).all()
