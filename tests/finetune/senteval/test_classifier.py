"""SentEval's protocols: batched fits against plain loops of torch."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.model_selection import StratifiedKFold
from torch import nn

from finetune.senteval import protocol
from finetune.senteval.classifier import ClassifierSettings, PairFeatures, Rows, fit_all
from finetune.senteval.protocol import (
    L2_GRID,
    Setting,
    cross_validated,
    nested,
    relatedness,
    split,
    two_point_targets,
)
from pretrain.benchmarks.sts_tasks import correlations
from pretrain.common.errors import UserError

FAST = ClassifierSettings(tenacity=2, epoch_size=2, max_epoch=20)


def examples(rows=180, width=12, classes=2, seed=0):
    """Noisy linear classes: features float32[rows, width], labels int64[rows]."""
    rng = np.random.RandomState(seed)
    features = rng.randn(rows, width).astype(np.float32)
    scores = features @ rng.randn(width, classes) + 2.5 * rng.randn(rows, classes)
    return features, scores.argmax(1)


class PlainFit:
    """One fit as the protocol's text says, with torch's own layers, optimizers and loss."""

    def __init__(self, width, classes, l2, settings):
        np.random.seed(settings.seed)
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.network = nn.Sequential(nn.Linear(width, classes))
        sgd = partial(torch.optim.SGD, lr=3)
        make = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop, "sgd": sgd}[settings.optimizer]
        self.optimizer = make(self.network.parameters(), weight_decay=l2)

    def fit(self, features, labels, dev=None):
        if dev is None:
            order = np.random.permutation(len(features))
            held = int(0.05 * len(features))
            dev = features[order[:held]], labels[order[:held]]
            features, labels = features[order[held:]], labels[order[held:]]
        best, failures, epoch = -1, 0, 0
        while epoch <= self.settings.max_epoch:
            for _ in range(self.settings.epoch_size):
                order = np.random.permutation(len(features))
                for start in range(0, len(order), self.settings.batch_size):
                    rows = order[start : start + self.settings.batch_size]
                    logits = self.network(torch.from_numpy(features[rows]))
                    loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels[rows]))
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
            epoch += self.settings.epoch_size
            accuracy = self.accuracy(*dev)
            if accuracy > best:
                best, kept, self.best_epoch = accuracy, deepcopy(self.network), epoch
            elif failures >= self.settings.tenacity:
                break
            else:
                failures += 1
        self.network = kept
        return best

    def accuracy(self, features, labels):
        with torch.no_grad():
            return (self.network(torch.from_numpy(features)).argmax(1).numpy() == labels).mean()


@pytest.mark.parametrize(
    "settings",
    [
        FAST,
        ClassifierSettings("rmsprop", 32, 1, 2, 20),
        ClassifierSettings("adam", 64, 2, 1, 12, seed=7),
    ],
    ids=lambda s: f"{s.optimizer}-{s.seed}",
)
def test_batched_fits_are_the_plain_ones(settings):
    features, labels = examples(classes=3)
    rng = np.random.RandomState(3)
    rows = []
    for size in (100, 100, 101, 99):  # three cohorts, one of two sets of rows
        order = rng.permutation(len(labels))
        rows.append(Rows(order[:size], order[size : size + 40]))
    l2 = np.array([1e-5, 1e-2, 1e-1])
    fitted = fit_all(torch.from_numpy(features), labels, 3, rows, l2, settings)
    for number, part in enumerate(rows):
        for place, value in enumerate(l2):
            plain = PlainFit(features.shape[1], 3, value, settings)
            best = plain.fit(features[part.train], labels[part.train], (features[part.dev], labels[part.dev]))
            assert fitted.accuracy[number, place] == pytest.approx(best)
            with torch.no_grad():
                expected = plain.network(torch.from_numpy(features)).argmax(1).numpy()
            np.testing.assert_array_equal(fitted.predict(number, place, torch.from_numpy(features)), expected)


def weights_of(plain):
    """[C, d + 1] of a plain logistic regression, bias last."""
    return torch.cat([plain.network[0].weight, plain.network[0].bias[:, None]], 1).detach()


def test_a_fit_that_holds_out_its_own_rows_goes_on_with_the_same_random_numbers():
    features, labels = examples(120)
    plain = PlainFit(features.shape[1], 2, 1e-3, FAST)
    best = plain.fit(features, labels)  # draws a permutation to hold rows out, before those of its passes
    order = np.random.RandomState(FAST.seed).permutation(120)
    rows = [Rows(order[6:], order[:6])]
    fitted = fit_all(torch.from_numpy(features), labels, 2, rows, np.array([1e-3]), FAST, discarded=120)
    assert fitted.accuracy[0, 0] == pytest.approx(best)
    torch.testing.assert_close(fitted.weights[0], weights_of(plain), rtol=1e-4, atol=1e-5)


def test_the_last_evaluation_is_at_max_epoch_and_one_more():
    """SentEval asks `nepoch <= max_epoch` before it trains: with 4 and passes of 2, after 2, 4 and 6
    epochs."""
    settings = ClassifierSettings(tenacity=99, epoch_size=2, max_epoch=4)
    last = 0
    for seed in range(12):
        features, labels = examples(200, seed=seed)
        rows = Rows(np.arange(140), np.arange(140, 200))
        plain = PlainFit(features.shape[1], 2, 1e-3, settings)
        plain.fit(features[rows.train], labels[rows.train], (features[rows.dev], labels[rows.dev]))
        last += plain.best_epoch == 6
        fitted = fit_all(torch.from_numpy(features), labels, 2, [rows], np.array([1e-3]), settings)
        torch.testing.assert_close(fitted.weights[0], weights_of(plain), rtol=1e-4, atol=1e-5)
    assert last  # some are at their best there


def test_the_number_of_fits_in_a_batch_does_not_matter(monkeypatch):
    features, labels = examples()
    folds = StratifiedKFold(5, shuffle=True, random_state=1).split(features, labels)
    rows = [Rows(a, b) for a, b in folds]
    together = fit_all(torch.from_numpy(features), labels, 2, rows, np.array(L2_GRID), FAST)
    monkeypatch.setattr("finetune.senteval.classifier._GATHER_BYTES", 1)
    alone = fit_all(torch.from_numpy(features), labels, 2, rows, np.array(L2_GRID), FAST)
    np.testing.assert_array_equal(together.accuracy, alone.accuracy)


def plain_choice(scores):
    scores = [round(100 * float(np.mean(s)), 2) for s in scores]
    return L2_GRID[int(np.argmax(scores))], max(scores)


def plain_inner(features, labels, folds, seed, settings, classes):
    scores = []
    for l2 in L2_GRID:
        parts = StratifiedKFold(folds, shuffle=True, random_state=seed).split(features, labels)
        scores.append(
            [
                PlainFit(features.shape[1], classes, l2, settings).fit(
                    features[a], labels[a], (features[b], labels[b])
                )
                for a, b in parts
            ]
        )
    return plain_choice(scores)


@pytest.mark.parametrize(
    "settings", [FAST, ClassifierSettings("sgd", 8, 1, 1, 3)], ids=["fast", "order matters"]
)
def test_nested_cross_validation_is_the_plain_one(settings, monkeypatch):
    if settings.optimizer == "sgd":
        monkeypatch.setattr(
            ClassifierSettings, "make_optimizer", lambda _, weights: torch.optim.SGD([weights], lr=3)
        )
    features, labels = examples(150)
    dev, test, chosen = [], [], []
    for train, held in StratifiedKFold(3, shuffle=True, random_state=1111).split(features, labels):
        l2, score = plain_inner(features[train], labels[train], 3, 1111, settings, 2)
        fit = PlainFit(features.shape[1], 2, l2, settings)
        fit.fit(features[train], labels[train])
        dev.append(score)
        chosen.append(l2)
        test.append(round(100 * fit.accuracy(features[held], labels[held]), 2))
    found = nested(torch.from_numpy(features), labels, 2, Setting(3, settings))
    assert (found.dev, found.test, found.l2) == (round(np.mean(dev), 2), round(np.mean(test), 2), chosen)


def test_cross_validation_with_a_test_set_is_the_plain_one():
    features, labels = examples(200, classes=4)
    l2, score = plain_inner(
        features[:150], labels[:150], 4, 5, ClassifierSettings(**{**vars(FAST), "seed": 5}), 4
    )
    fit = PlainFit(features.shape[1], 4, l2, ClassifierSettings(**{**vars(FAST), "seed": 5}))
    fit.fit(features[:150], labels[:150])
    found = cross_validated(
        torch.from_numpy(features),
        labels,
        150,
        4,
        Setting(4, FAST).with_classifier(seed=5),
    )
    assert (found.dev, found.test) == (score, round(100 * fit.accuracy(features[150:], labels[150:]), 2))


def test_given_splits_are_evaluated_as_the_plain_fits():
    features, labels = examples(240)
    cut = (features[:150], labels[:150]), (features[150:200], labels[150:200]), (features[200:], labels[200:])
    fits, accuracies = [], []
    for l2 in L2_GRID:
        # seeds the generators, so each fits before the next is made
        fits.append(PlainFit(features.shape[1], 2, l2, FAST))
        accuracies.append(fits[-1].fit(*cut[0], cut[1]))
    l2, score = plain_choice(accuracies)
    found = split(torch.from_numpy(features), labels, (150, 50, 40), 2, Setting(3, FAST))
    assert (found.dev, found.test) == (score, round(100 * fits[L2_GRID.index(l2)].accuracy(*cut[2]), 2))


def test_pairs_formed_by_the_batch_give_what_their_features_give(monkeypatch):
    """Bitwise: the same numbers reach the same products. No more rows are formed at once than a mini-batch or
    a test set has."""
    rng = np.random.RandomState(4)
    vectors, first, second = (
        rng.randn(70, 5).astype(np.float32),
        rng.randint(70, size=400),
        rng.randint(70, size=400),
    )
    u, v = vectors[first], vectors[second]
    plain = torch.from_numpy(np.concatenate([u, v, u * v, np.abs(u - v)], 1))
    labels = (plain.numpy() @ rng.randn(20, 3) + rng.randn(400, 3)).argmax(1)
    pairs = PairFeatures(*map(torch.from_numpy, (vectors, first, second)))
    torch.testing.assert_close(pairs[torch.arange(400)], plain, rtol=0, atol=0)
    formed, take = [], PairFeatures.__getitem__
    monkeypatch.setattr(
        PairFeatures, "__getitem__", lambda self, rows: formed.append(len(rows)) or take(self, rows)
    )
    setting = Setting(3, FAST).with_classifier(max_epoch=15, epoch_size=1)
    for grid in ((1e-9,), L2_GRID):
        ours, expected = (split(of, labels, (280, 70, 50), 3, setting, grid) for of in (pairs, plain))
        assert (ours.dev, ours.test, ours.l2) == (expected.dev, expected.test, expected.l2)
        np.testing.assert_array_equal(ours.predictions, expected.predictions)
    assert max(formed) == 70


@pytest.mark.parametrize("rows", [119, 120, 200])
def test_the_last_fit_stops_by_a_twentieth_of_its_rows(rows, monkeypatch):
    """As SentEval has it: the first int(0.05 N) rows of numpy's permutation by the fit's seed."""
    calls, fit = [], protocol.fit_all
    monkeypatch.setattr(protocol, "fit_all", lambda *given: calls.append(given) or fit(*given))
    features, labels = examples(rows)
    given = torch.from_numpy(features), labels
    nested(*given, 2, Setting(3, FAST))
    outer = [train for train, _ in StratifiedKFold(3, shuffle=True, random_state=1111).split(*given)]
    used = [one for call in calls[1:] for one in call[3]]
    calls.clear()
    cross_validated(*given, rows - 19, 2, Setting(3, FAST).with_classifier(seed=7))
    pairs = list(zip(sorted(outer, key=len), sorted(used, key=lambda one: len(one.train))))
    for seed, train, held in (
        *((FAST.seed, *pair) for pair in pairs),
        (7, np.arange(rows - 19), calls[1][3][0]),
    ):
        order, count = np.random.RandomState(seed).permutation(len(train)), int(0.05 * len(train))
        assert sorted(held.dev) == sorted(train[order[:count]])
        assert sorted(held.train) == sorted(train[order[count:]])


def test_folds_need_enough_examples_of_every_class():
    features, labels = examples(40)
    labels[:] = 0
    labels[:2] = 1
    with pytest.raises(UserError, match="rarest has 2"):
        nested(torch.from_numpy(features), labels, 2, Setting(5, FAST))


def test_two_point_targets_have_the_score_as_their_mean():
    scores = np.array([1, 1.25, 3.5, 4.999, 5.0])
    targets = two_point_targets(scores)
    np.testing.assert_allclose(targets @ np.arange(1, 6), scores, rtol=1e-6)
    np.testing.assert_allclose(targets.sum(1), 1, rtol=1e-6)
    assert ((targets > 0).sum(1) <= 2).all()
    # below 1: less than a whole
    np.testing.assert_allclose(two_point_targets(np.array([0.4])), [[0.4, 0, 0, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    "early_stop,most,noise",
    [
        pytest.param("pearson", 1000, 0.5, marks=pytest.mark.full),
        pytest.param("spearman", 1000, 0.5, marks=pytest.mark.full),
        ("pearson", 6, 0.5),
        ("spearman", 6, 0.5),
        ("spearman", 300, 5.0),
    ],
)
def test_relatedness_is_the_plain_fit(early_stop, most, noise, monkeypatch):
    """Also where the last evaluation is the best, and where noise stops it."""
    monkeypatch.setattr("finetune.senteval.protocol.EPOCHS_BETWEEN", 2)
    monkeypatch.setattr("finetune.senteval.protocol.MAX_EPOCH", most)
    asked = []
    monkeypatch.setattr(
        "finetune.senteval.protocol.correlations", lambda *sides: asked.append(1) or correlations(*sides)
    )
    rng = np.random.RandomState(0)
    features = rng.randn(200, 6).astype(np.float32)
    scores = np.clip(3 + features @ rng.randn(6) / 2 + noise * rng.randn(200), 1, 5)
    targets = two_point_targets(scores)
    np.random.seed(11)
    torch.manual_seed(11)
    network = nn.Sequential(nn.Linear(6, 5), nn.Softmax(dim=-1))
    optimizer = torch.optim.Adam(network.parameters())
    correlation = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[early_stop]

    def predict(rows):
        with torch.no_grad():
            return network(torch.from_numpy(features[rows])).numpy() @ np.arange(1, 6)

    best, failures, epoch, evaluations = -1, 0, 0, 0
    while epoch <= most:
        for _ in range(2):
            order = np.random.permutation(120)
            for start in range(0, 120, 64):
                rows = order[start : start + 64]
                loss = nn.functional.mse_loss(
                    network(torch.from_numpy(features[rows])), torch.from_numpy(targets[rows])
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epoch, evaluations = epoch + 2, evaluations + 1
        found = correlation(predict(slice(120, 160)), scores[120:160])[0]
        if found > best:
            best, kept = found, deepcopy(network.state_dict())
        elif failures >= 3:
            break
        else:
            failures += 1
    network.load_state_dict(kept)
    ours, answers = relatedness(torch.from_numpy(features), scores, (120, 40, 40), 11, early_stop)
    predicted = predict(slice(160, 200))
    assert len(asked) == evaluations + 1 and (noise == 0.5 or failures == 3)
    np.testing.assert_allclose(answers, predicted, atol=1e-4)
    assert ours["spearman"] == pytest.approx(100 * stats.spearmanr(predicted, scores[160:])[0], abs=0.2)
    assert ours[f"dev_{early_stop}"] == pytest.approx(100 * best, abs=1e-3)
    assert ours["pearson"] == pytest.approx(100 * stats.pearsonr(predicted, scores[160:])[0], abs=1e-3)
    assert ours["mse"] == pytest.approx(np.mean((predicted - scores[160:]) ** 2), abs=1e-5)


def test_relatedness_without_a_correlation_on_dev_has_0_there_and_seeds_count(monkeypatch):
    monkeypatch.setattr("finetune.senteval.protocol.EPOCHS_BETWEEN", 5)
    features = torch.from_numpy(np.random.RandomState(0).randn(60, 4).astype(np.float32))
    scores = np.tile([1.0, 3.0, 5.0], 20)
    scores[40:50] = 2.0  # dev's are all equal
    one, other = (relatedness(features, scores, (40, 10, 10), seed)[0] for seed in (1111, 5))
    assert one["dev_pearson"] == 0 and np.isfinite(one["pearson"]) and one != other
    assert one == relatedness(features, scores, (40, 10, 10))[0]


def test_folds_with_just_enough_examples_and_fits_with_too_few():
    features, labels = examples(60)
    labels[:] = 2  # of class 0 there is none
    labels[:6] = 1
    given = torch.from_numpy(features), labels
    assert nested(*given, 3, Setting(2, FAST)).predictions.shape == (60,)
    with pytest.raises(UserError, match="7 folds need as many examples per class; the rarest has 6"):
        cross_validated(*given, 50, 3, Setting(7, FAST))
    assert cross_validated(*given, 50, 3, Setting(6, FAST)).predictions.shape == (10,)
    for train, dev, says in ((0, 9, "0 rows to train on and 9"), (9, 0, "9 rows to train on and 0")):
        rows = [Rows(np.arange(9), np.arange(9)), Rows(np.arange(train), np.arange(dev))]
        with pytest.raises(UserError, match=f"fit 2 would have {says} to stop by"):
            fit_all(*given, 3, rows, np.array([1e-3]), FAST)
