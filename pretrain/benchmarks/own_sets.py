"""Read test sets of the user's own, whose columns' names say their kind, and score vectors on them.

similarity: Spearman's and Pearson's correlation of the cosine and the score.
labels: accuracy of a logistic regression: of each class every other text, by its hash, is in one half, and
    each half is answered by the regression that the other one trained. And, as NAME/clusters, V-measure of
    k-means with a cluster a class and 10 restarts (Rosenberg and Hirschberg 2007).
retrieval: nDCG@10, MRR@10 and recall@10 among all documents of the set (`pretrain.benchmarks.retrieval`).
"""

import hashlib
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from pretrain.benchmarks.distinct import EmbedFunction, require_directions
from pretrain.benchmarks.retrieval import HEADLINE, rank, score
from pretrain.benchmarks.sts_tasks import Pairs, cosines, require_scores, score_task
from pretrain.common.errors import UserError
from pretrain.config.data import Source
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.readers import ReadTask, where
from pretrain.prepare.sources.rows import BrokenRow, is_unicode, json_rows, table_rows

COLUMNS = {  # kind -> what each of its columns holds, and the names that it may have
    "similarity": (
        ("text", ("sentence1", "sentence_a", "text1", "question1")),
        ("text", ("sentence2", "sentence_b", "text2", "question2")),
        ("number", ("score", "similarity_score", "similarity", "relatedness_score", "label")),
    ),
    "labels": (("text", ("text", "sentence")), ("label", ("label", "category", "class", "intent"))),
    "retrieval": (
        ("text", ("query", "question", "anchor")),
        ("text or list of texts", ("document", "documents", "passage", "positive", "answer")),
    ),
}
RELEVANCE = "number", ("relevance", "score", "label")
"""A column that a set of retrieval may have besides."""
MOST_CLASSES = 1000
ITERATIONS = 1000  # most of a regression


class OwnSetFigure(NamedTuple):
    """A figure of a set (scores x 100), and what it follows from: N answers, and the gold ones."""

    task: str
    metric: str
    scores: dict[str, float]
    answers: np.ndarray
    gold: np.ndarray


@dataclass(frozen=True)
class OwnSet:
    """A set: first and second texts of N pairs; N texts; or Q queries and D documents.

    gold: scores float64[N], or classes int64[N]. relevant: of each query, document -> gain. about: what it
    holds, in words.
    """

    name: str
    kind: str
    first: list[str]
    second: list[str] = field(default_factory=list)
    gold: np.ndarray = field(default_factory=lambda: np.zeros(0))
    relevant: list[dict[int, float]] = field(default_factory=list)
    about: str = ""

    @property
    def tasks(self) -> dict[str, str]:
        """The names of its figures, and the metric of each."""
        if self.kind == "labels":
            return {self.name: "accuracy", f"{self.name}/clusters": "v_measure"}
        return {self.name: "spearman" if self.kind == "similarity" else HEADLINE}

    def embed(
        self, encode: EmbedFunction, encode_query: EmbedFunction, encode_document: EmbedFunction
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of the first and of the second texts, float32[N, d] (of labels none).

        Raises CollapsedEncoder if all have one direction.
        """
        if self.kind == "retrieval":
            first, second = encode_query(self.first), encode_document(self.second)
        else:
            vectors = encode([*self.first, *self.second])
            first, second = vectors[: len(self.first)], vectors[len(self.first) :]
        require_directions("the encoder", first, second)
        return first, second

    def score(self, first: np.ndarray, second: np.ndarray) -> list[OwnSetFigure]:
        """Score the vectors that `embed` gave: a figure for each of `tasks`, in their order."""
        if self.kind == "labels":
            each = self._classify(first), self._cluster(first)
            return [
                OwnSetFigure(task, metric, {metric: 100 * figure}, answers, self.gold)
                for (task, metric), (figure, answers) in zip(self.tasks.items(), each)
            ]
        if self.kind == "retrieval":
            queries = [score(*one) for one in zip(rank(first, second).tolist(), self.relevant)]
            scores = {key: 100 * float(np.mean([one[key] for one in queries])) for key in queries[0]}
            answers = np.array([one[HEADLINE] for one in queries], np.float32)
            return [OwnSetFigure(self.name, HEADLINE, scores, answers, np.zeros_like(answers))]
        rows = np.arange(len(first))
        answers = cosines(np.concatenate([first, second]), rows, rows + len(rows))
        both = score_task([Pairs(self.name, self.first, self.second, self.gold)], [answers])
        scores = {how: both[f"{how}_all"] for how in ("spearman", "pearson")}
        return [OwnSetFigure(self.name, "spearman", scores, answers, self.gold)]

    def _classify(self, vectors: np.ndarray) -> tuple[float, np.ndarray]:
        half, answers = halves(self.first, self.gold), np.zeros_like(self.gold)
        for train in (half, ~half):
            answers[~train] = fit_regression(vectors[train], self.gold[train])[0].predict(vectors[~train])
        return float((answers == self.gold).mean()), answers

    def _cluster(self, vectors: np.ndarray) -> tuple[float, np.ndarray]:
        from sklearn import cluster, metrics
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1):  # the figure does not depend on the number of cores
            means = cluster.KMeans(int(self.gold.max()) + 1, n_init=10, random_state=0).fit(vectors)
        return float(metrics.v_measure_score(self.gold, means.labels_)), means.labels_


def fit_regression(vectors: np.ndarray, labels: np.ndarray) -> tuple[Any, bool]:
    """Fit scikit-learn's regression to float32[N, d] and int64[N]; return it, and whether it converged.

    A softmax with the penalty |W|^2 / 2 over the weights of all classes, C = 1. Of two classes scikit-learn
    fits one weight vector, the difference of two opposite ones: that is the same at twice the C.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    regression = LogisticRegression(C=2.0 if len(np.unique(labels)) == 2 else 1.0, max_iter=ITERATIONS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        regression.fit(vectors, labels)
    return regression, not any(issubclass(one.category, ConvergenceWarning) for one in caught)


def halves(texts: Sequence[str], labels: np.ndarray) -> np.ndarray:
    """Return which of N different texts are in the first half, bool[N]: every other of a class, by hash."""
    order = np.array(sorted(range(len(texts)), key=lambda row: hashlib.sha256(texts[row].encode()).digest()))
    first = np.zeros(len(texts), bool)
    for label in range(labels.max() + 1):
        first[order[labels[order] == label][::2]] = True
    return first


def read_own_set(name: str, place: str) -> OwnSet:
    """Read a set: a file, or another place that `clearly prepare` reads."""
    rows = list(_rows(place))
    kind, columns = _kind(place, list(dict.fromkeys(column for *_, row in rows for column in row)))
    parsed, fault = list[Any](), ""
    for task, position, row in rows:
        cells = [_cell(what, row.get(column)) for what, column in columns]
        if None not in cells:
            parsed.append(cells)
        elif not fault:
            what, column = columns[cells.index(None)]
            fault = f"{where(task, position)}: {row.get(column)!a:.60} in the column {column} is no {what}"
    if fault:
        count = f"the first of {len(rows) - len(parsed):,} rows with such a fault"
        raise UserError(f"{fault}, {count}; mend them, or leave them out")
    build = {"similarity": _similarity, "labels": _labels, "retrieval": _retrieval}[kind]
    found = build(name, place, parsed)
    return replace(found, about=f"{found.about} ({', '.join(column for _, column in columns)})")


def _rows(place: str) -> Iterator[tuple[ReadTask, int, Mapping[str, Any]]]:
    """Yield the rows of a place, each with where it stands."""
    source = Source(source=place)
    for task in (task for task in plan_tasks([source], records=True) if task.stripe == 0):
        if task.kind in ("text", "embedded"):
            raise UserError(f"{place} has no columns: give a tsv, csv, jsonl or parquet file")
        whole = replace(task, stripes=1)
        rows = json_rows(whole) if task.kind == "jsonl" else table_rows(whole, source, lambda names: names)
        for position, row in rows:
            if isinstance(row, BrokenRow):
                raise UserError(f"{where(whole, position)}: {row.why}; mend this row, or leave it out")
            yield whole, position, row


def _kind(place: str, columns: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the kind of a set, and (what it holds, its name) of the columns that it is read from."""
    plain = {column.strip().lower().replace("-", "_"): column for column in reversed(columns)}
    found = {}
    for kind, wanted in COLUMNS.items():
        more = (RELEVANCE,) if kind == "retrieval" and not plain.keys().isdisjoint(RELEVANCE[1]) else ()
        chosen = [(what, [plain[name] for name in names if name in plain]) for what, names in wanted + more]
        if all(there for _, there in chosen):
            found[kind] = [(what, there[0]) for what, there in chosen]
    if len(found) == 1:
        return found.popitem()
    kinds = {kind: ", ".join("|".join(names) for _, names in wanted) for kind, wanted in COLUMNS.items()}
    accepted = "; ".join(f"{kind}: {names}" for kind, names in kinds.items())
    raise UserError(
        f"{place} has the columns {', '.join(columns) or '(none: no row)'}, of "
        f"{' and '.join(found) or 'no kind'}. Rename them, so that they are those of one kind. {accepted}, "
        f"and perhaps {'|'.join(RELEVANCE[1])}"
    )


def _cell(what: str, value: Any) -> Any:
    """Return a cell as what its column holds; None: it is none."""
    if what == "text or list of texts":
        texts = [_cell("text", one) for one in (value if isinstance(value, list) else [value])]
        return None if None in texts or not texts else texts
    if what == "number":
        try:
            return number if math.isfinite(number := float(value)) else None
        except (TypeError, ValueError, OverflowError):  # of an integer with hundreds of digits
            return None
    if what == "label" and not (value is None or value != value or isinstance(value, list | dict)):
        value = str(value)
    return value if isinstance(value, str) and value.strip() and is_unicode(value) else None


def _similarity(name: str, place: str, rows: list) -> OwnSet:
    scores = np.array([score for *_, score in rows])
    require_scores(scores, place)
    first, second = [row[0] for row in rows], [row[1] for row in rows]
    return OwnSet(name, "similarity", first, second, scores, about=f"{len(rows):,} pairs")


def _labels(name: str, place: str, rows: list) -> OwnSet:
    labels_of = defaultdict[str, set[str]](set)
    for text, label in rows:
        labels_of[text].add(label.strip())
    plain = {text: next(iter(labels)) for text, labels in labels_of.items() if len(labels) == 1}
    sizes = Counter(plain.values())
    kept = {text: label for text, label in plain.items() if sizes[label] > 1}
    classes = {label: number for number, label in enumerate(sorted(set(kept.values())))}
    about = f"{len(kept):,} different texts of {len(classes):,} labels"
    if left_out := len(rows) - len(kept):
        about += f", {left_out:,} rows left out: they repeat or contradict others, or alone have a label"
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise UserError(f"{place}: {about}; there must be 2 to {MOST_CLASSES:,} labels with two texts each")
    gold = np.array([classes[label] for label in kept.values()])
    return OwnSet(name, "labels", [*kept], gold=gold, about=about)


def _retrieval(name: str, place: str, rows: list) -> OwnSet:
    documents, gains = dict[str, int](), defaultdict[str, dict[int, float]](dict)
    for query, texts, *relevance in rows:
        for text in texts:
            number = documents.setdefault(text, len(documents))
            gains[query][number] = max([gains[query].get(number, 0.0), *(relevance or [1.0])])
    relevant = {query: {row: gain for row, gain in of.items() if gain} for query, of in gains.items()}
    answered = {query: of for query, of in relevant.items() if of}
    about = f"{len(answered):,} queries, {len(documents):,} documents"
    if left_out := len(gains) - len(answered):
        about += f", {left_out:,} queries left out that have no relevant document"
    if len(answered) < 2 or len(documents) < 2:
        raise UserError(f"{place}: {about}; there must be two of each")
    return OwnSet(name, "retrieval", [*answered], [*documents], relevant=[*answered.values()], about=about)
