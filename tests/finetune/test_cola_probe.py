"""The CoLA probe against the two-class softmax that AugCSE's scikit-learn fitted, minimised plainly."""

import json
import sys

import numpy as np
import pytest
from commands import call
from frozen_files import write_cola
from real_data import DATA, needs_data
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from finetune import cola_probe
from finetune.cola_probe import probe, read
from pretrain.benchmarks import own_sets
from pretrain.common.errors import UserError


def problem(count=300, width=5, seed=0):
    random = np.random.RandomState(seed)
    vectors = random.randn(count, width)
    labels = (vectors @ random.randn(width) + random.randn(count) > -0.5).astype(np.int64)
    return vectors[:200], labels[:200], vectors[200:], labels[200:]


def test_equal_to_the_multinomial_regression_of_the_papers_code():
    """multi_class="multinomial" on two classes: softmax over W x + b, penalty |W|^2 / 2 over both rows, C =
    1."""
    train, labels, dev, dev_labels = problem()
    width = train.shape[1]

    def loss(flat):
        weight, bias = flat[: 2 * width].reshape(2, width), flat[2 * width :]
        logits = train @ weight.T + bias
        shifted = logits - logits.max(1, keepdims=True)
        log_softmax = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        return -log_softmax[np.arange(len(labels)), labels].sum() + 0.5 * (weight**2).sum()

    found = minimize(loss, np.zeros(2 * width + 2), method="BFGS", options={"gtol": 1e-6}).x
    weight, bias = found[: 2 * width].reshape(2, width), found[2 * width :]
    binary = LogisticRegression(C=2, tol=1e-10, max_iter=10000).fit(train, labels)
    np.testing.assert_allclose(binary.coef_[0], weight[1] - weight[0], atol=2e-4)
    np.testing.assert_allclose(binary.intercept_[0], bias[1] - bias[0], atol=2e-4)
    scores, predicted, converged = probe(train, labels, dev, dev_labels)
    assert converged and predicted.tolist() == (dev @ weight.T + bias).argmax(1).tolist()
    assert scores["accuracy"] == pytest.approx(100 * (predicted == dev_labels).mean())
    of_training = (train @ weight.T + bias).argmax(1) == labels
    assert scores["train_accuracy"] == pytest.approx(100 * of_training.mean()) != scores["accuracy"]


def test_a_fit_that_does_not_converge_says_so(monkeypatch):
    monkeypatch.setattr(own_sets, "ITERATIONS", 2)
    train, labels, dev, dev_labels = problem()
    assert not probe(train * np.array([1, 100, 1e4, 1, 1]), labels, dev, dev_labels)[2]


def test_command(tmp_path, monkeypatch):
    write_cola(tmp_path)
    monkeypatch.setitem(sys.modules, "words", type(sys)("words"))
    sys.modules["words"].embed = lambda sentences: np.array(
        [[len(s), s.count("w")] for s in sentences], np.float32
    )
    assert call(cola_probe.main, "words:embed", eval_data=str(tmp_path), out=str(tmp_path / "out")) == 0
    content = json.loads((tmp_path / "out" / "cola_probe-function.json").read_text())
    assert content["tasks"]["CoLA"]["metric"] == "accuracy" and content["tasks"]["CoLA"]["value"] == 100
    assert content["complete"] is False and "60 sentences here, 8,551 as published" in content["notes"][0]
    assert content["tasks"]["CoLA"]["details"]["majority"] == pytest.approx(200 / 3)


@pytest.mark.parametrize(
    "content,message",
    [
        ("a\tb\n", "line 1: 2 tab-separated columns, need 4"),
        ("x\t2\t\ty\n", "line 1: unknown label '2'"),
        ("x\t1\t\ty\nx\t1\t\tz\n", "its 2 sentences have one label"),
    ],
)
def test_damaged_files_are_one_message(tmp_path, content, message):
    path = tmp_path / "GLUE" / "CoLA" / "train.tsv"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(UserError) as error:
        read("train", tmp_path)
    assert message in str(error.value)


@needs_data("GLUE/CoLA")
def test_real_files():
    for part, size in cola_probe.SIZES.items():
        rows = read(part, DATA)
        assert len(rows) == size
    assert 100 * rows.targets.mean() == pytest.approx(69.13, abs=0.005)
