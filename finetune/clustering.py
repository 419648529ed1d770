"""Evaluate short-text clustering as VaSCL (Zhang et al. 2022) and PairSupCon report it.

k-means over the raw vectors, with as many clusters as classes; ten trials (random_state 0 to 9) of ten
restarts each (n_init was 10 by default in the scikit-learn of the papers and is 1 now); accuracy under the
best one-to-one matching of clusters to classes. Texts are cut to 64 tokens as in their code. The standard
deviation over trials is the sample's (n - 1), as pandas computes it for them. An empty text is a ".", again
as in their code.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from finetune.encoders.models import EmbeddingModel
from finetune.frozen import Frozen, command
from finetune.results import Evaluation, TaskResult, sample_std
from pretrain.benchmarks.files import DATA_SETS, csv_columns, find
from pretrain.common import cli
from pretrain.common.errors import UserError

SIX = ("agnews", "searchsnippets", "stackoverflow", "biomedical", "tweet", "googlenews_TS")
"""The sets of the papers' tables. GoogleNews has 28 words a text there (VaSCL, table 4): titles with
snippets, TS."""
TRIALS = 10
RESTARTS = 10
MAX_LENGTH = 64
EMPTY = "."
"""What stands in for an empty text."""
METRICS = ("accuracy", "nmi", "ami", "ari")


@dataclass(frozen=True)
class LabelledTexts:
    """N texts and their classes int64[N], numbered 0 to C - 1 in the order of the labels' names."""

    texts: list[str]
    labels: np.ndarray
    classes: int

    @property
    def filled(self) -> list[str]:
        """The texts, EMPTY for those of white space alone."""
        return [text if text.strip() else EMPTY for text in self.texts]


def read(path: Path) -> LabelledTexts:
    """Read a csv file with the columns text and label."""
    rows = csv_columns(path, "text", "label")
    for number, (_, label) in enumerate(rows, start=1):
        if not label.strip():
            raise UserError(f"{path}, row {number}: no label; the file is damaged")
    names, labels = np.unique([label for _, label in rows], return_inverse=True)
    if len(names) < 2:
        raise UserError(f"{path}: {len(names)} class(es); clusters need at least 2")
    return LabelledTexts([text for text, _ in rows], labels, len(names))


def hungarian_accuracy(labels: np.ndarray, clusters: np.ndarray) -> float:
    """Return the share of texts in the cluster of their class, by the best one-to-one matching of both."""
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    confusion = contingency_matrix(labels, clusters)
    return float(confusion[linear_sum_assignment(confusion, maximize=True)].sum() / len(labels))


def trial(vectors: np.ndarray, data: LabelledTexts, seed: int) -> dict[str, float]:
    """Return accuracy, NMI, AMI, ARI (x 100) of the best k-means of `RESTARTS` over float32[N, d]."""
    from sklearn import cluster, metrics

    means = cluster.KMeans(data.classes, n_init=RESTARTS, max_iter=300, random_state=seed)
    clusters = means.fit(vectors).labels_
    scores = {
        "accuracy": hungarian_accuracy,
        "nmi": metrics.normalized_mutual_info_score,
        "ami": metrics.adjusted_mutual_info_score,
        "ari": metrics.adjusted_rand_score,
    }
    return {name: 100 * float(score(data.labels, clusters)) for name, score in scores.items()}


def trials(vectors: np.ndarray, data: LabelledTexts) -> list[dict[str, float]]:
    """Run all trials, each in one thread: figures do not depend on the number of cores."""
    import sklearn.cluster  # noqa: F401  (before the limits, which hold for libraries that are loaded)
    import torch

    # OpenMP counts threads for each calling thread apart
    pool = ThreadPoolExecutor(torch.get_num_threads(), "", threadpool_limits, (1, "openmp"))
    with threadpool_limits(1), pool:
        return list(pool.map(lambda seed: trial(vectors, data, seed), range(TRIALS)))


def score(model: EmbeddingModel, name: str, texts: LabelledTexts, evaluation: Evaluation) -> str:
    """Cluster a set; figures are means over the trials."""
    each = trials(model.encode(texts.filled), texts)
    mean = {metric: float(np.mean([one[metric] for one in each])) for metric in METRICS}
    std = {metric: sample_std([one[metric] for one in each]) for metric in METRICS}
    sizes = {"texts": len(texts.texts), "classes": texts.classes}
    details = {**sizes, "trials": each, "std": std}
    evaluation.tasks[name] = TaskResult("accuracy", mean["accuracy"], mean, std["accuracy"], details)
    for what, published in DATA_SETS[f"clustering/{name}"].rows.items():
        evaluation.expect_size(name, what, sizes[what], published)
    if set(SIX) <= set(evaluation.tasks):
        average = float(np.mean([evaluation.tasks[name].value for name in SIX]))
        evaluation.notes.append(f"mean accuracy of the six sets of VaSCL's table 2: {average:.2f}")
    return f"accuracy {mean['accuracy']:.2f} ± {std['accuracy']:.2f}, NMI {mean['nmi']:.2f}"


EVALUATION = Frozen(
    "clustering",
    f"k-means on raw vectors, {RESTARTS} restarts x {TRIALS} seeds, Hungarian accuracy; texts cut to "
    f"{MAX_LENGTH} tokens",
    SIX,
    lambda name, data: read(find(data, "clustering", f"{name}.csv")),
    score,
    pooling=("mean", "VaSCL's"),
    max_length=MAX_LENGTH,
    about="Cluster short texts: k-means, 10 restarts x 10 seeds; Hungarian accuracy, NMI, AMI, ARI.",
)
main = command(EVALUATION)

if __name__ == "__main__":
    cli.run(main)
