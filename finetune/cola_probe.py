"""Evaluate AugCSE's probe of linguistic acceptability (Tang et al. 2022, table 1).

A logistic regression on frozen sentence vectors, trained on CoLA's training set; accuracy on its validation
set. The paper says no more; its code fits scikit-learn's LogisticRegression(multi_class="multinomial",
max_iter=1000) to raw vectors (`pretrain.benchmarks.own_sets`). Always answering "acceptable" scores 69.13,
and Matthews' correlation, CoLA's own metric, is given beside the accuracy for that reason.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from finetune.answers import Answers, examples_digest
from finetune.encoders.models import EmbeddingModel
from finetune.frozen import Frozen, command
from finetune.results import Evaluation
from finetune.tuning.tasks import TASKS, LabelledExamples, read_split
from pretrain.benchmarks.files import find
from pretrain.benchmarks.own_sets import ITERATIONS, fit_regression
from pretrain.common import cli
from pretrain.common.errors import UserError

SIZES = {"train": 8551, "dev": 1043}


def read(part: str, data: str | Path | None = None) -> LabelledExamples:
    """Read the sentences of "train" or "dev", as GLUE's own reader."""
    path = find(data, "GLUE", "CoLA", f"{part}.tsv")
    rows = read_split(TASKS["CoLA"], part, data or "")
    assert rows is not None and rows.targets is not None
    if len(set(rows.targets)) < 2:
        raise UserError(f"{path}: its {len(rows)} sentences have one label; the file is damaged")
    return rows


def probe(
    train: np.ndarray, train_labels: np.ndarray, dev: np.ndarray, dev_labels: np.ndarray
) -> tuple[dict[str, float], np.ndarray, bool]:
    """Fit on float32[N, d]; return figures x 100, answers to dev int64[M], whether it converged."""
    from sklearn.metrics import matthews_corrcoef

    regression, converged = fit_regression(train, train_labels)
    predicted = regression.predict(dev)
    scores = {
        "accuracy": 100 * float((predicted == dev_labels).mean()),
        "matthews": 100 * float(matthews_corrcoef(dev_labels, predicted)),
        "train_accuracy": 100 * float(regression.score(train, train_labels)),
    }
    return scores, predicted, converged


def score(
    model: EmbeddingModel, name: str, parts: Mapping[str, LabelledExamples], evaluation: Evaluation
) -> str:
    """Fit and score the probe of one model; `parts`: train and dev, as `read` read them."""
    for part, rows in parts.items():
        evaluation.expect_size(f"CoLA {part}", "sentences", len(rows), SIZES[part])
    train, dev = (model.encode(rows.first) for rows in parts.values())
    train_labels, labels = (np.asarray(rows.targets) for rows in parts.values())
    scores, predicted, converged = probe(train, train_labels, dev, labels)
    if not converged:
        evaluation.notes.append(
            f"the regression had not converged after {ITERATIONS} iterations, where the paper's stops too"
        )
    majority = 100 * float(max(np.bincount(labels))) / len(dev)
    evaluation.notes.append(f"always answering the more frequent class gives {majority:.2f}")
    details = {"train": len(train), "dev": len(dev), "majority": majority, "converged": converged}
    data = examples_digest(parts["dev"].first, None, labels)
    answers = Answers.of(predicted, labels, "accuracy", data)
    evaluation.add(name, "accuracy", scores, answers=answers, **details)
    return f"accuracy {scores['accuracy']:.2f}"


EVALUATION = Frozen(
    "cola_probe",
    "logistic regression on frozen raw vectors, as AugCSE's code: CoLA train, accuracy on dev",
    ("CoLA",),
    lambda task, data: {part: read(part, data) for part in SIZES},
    score,
    about="Run AugCSE's CoLA probe: a logistic regression on frozen vectors, accuracy on the validation set.",
)
main = command(EVALUATION)

if __name__ == "__main__":
    cli.run(main)
