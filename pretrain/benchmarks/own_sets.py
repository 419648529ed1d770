"""Read test sets of the user's own, whose columns' names say their kind, and score vectors on them.

similarity: Spearman's and Pearson's correlation of the cosine and the score.
labels: accuracy of a logistic regression: of each class every other text, by its hash, is in one half, and
    each half is answered by the regression that the other one trained. And, as NAME/clusters, V-measure of
    k-means with a cluster a class (Rosenberg and Hirschberg 2007).
retrieval: nDCG@10, MRR@10 and recall@10 among all documents of the set (`pretrain.benchmarks.retrieval`).
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from pretrain.benchmarks import regression
from pretrain.benchmarks.distinct import EmbedFunction
from pretrain.benchmarks.retrieval import HEADLINE, rank, score
from pretrain.benchmarks.sts_scores import cosines, score_task
from pretrain.benchmarks.sts_tasks import Pairs
from pretrain.common.errors import UserError
from pretrain.config.data import Source
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.readers import ReadTask, where
from pretrain.prepare.sources.rows import BrokenRow, is_unicode, json_rows, table_rows

SIMILARITY, LABELS, RETRIEVAL = "similarity", "labels", "retrieval"
COLUMNS = {  # kind -> the names that each of its columns may have
    SIMILARITY: (
        ("sentence1", "sentence_a", "text1", "question1"),
        ("sentence2", "sentence_b", "text2", "question2"),
        ("score", "similarity_score", "similarity", "relatedness_score", "label"),
    ),
    LABELS: (("text", "sentence"), ("label", "category", "class", "intent")),
    RETRIEVAL: (
        ("query", "question", "anchor"),
        ("document", "documents", "passage", "positive", "answer"),
    ),
}
RELEVANCE = ("relevance", "score", "label")
"""A column that a set of retrieval may have besides."""
MOST_CLASSES = 1000
_RESTARTS = 10  # of k-means
Fields = Mapping[str, Any]
Rows = Sequence[tuple[ReadTask, int, Fields]]
"""Where a row stands, as `where` takes it, and its fields."""
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Figure:
    """A figure of a set (scores x 100), and what it follows from: N answers, and the gold ones."""

    task: str
    metric: str
    scores: dict[str, float]
    answers: np.ndarray
    gold: np.ndarray


@dataclass(frozen=True)
class OwnSet:
    """A set: first and second texts of N pairs; N texts; or Q queries and D documents.

    gold: scores float64[N], or classes int64[N]. relevant: of each query, document -> gain. about, notes:
    what it holds, and what was left out, in words.
    """

    name: str
    kind: str
    about: str
    first: list[str]
    second: list[str] = field(default_factory=list)
    gold: np.ndarray = field(default_factory=lambda: np.zeros(0))
    relevant: list[dict[int, float]] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @property
    def tasks(self) -> dict[str, str]:
        """The names of its figures, and the metric of each."""
        if self.kind == LABELS:
            return {self.name: "accuracy", f"{self.name}/clusters": "v_measure"}
        return {self.name: "spearman" if self.kind == SIMILARITY else HEADLINE}

    def embed(
        self, encode: EmbedFunction, encode_query: EmbedFunction, encode_document: EmbedFunction
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of the first and of the second texts, float32[N, d] (of labels none)."""
        if self.kind == RETRIEVAL:
            return encode_query(self.first), encode_document(self.second)
        vectors = encode([*self.first, *self.second])
        return vectors[: len(self.first)], vectors[len(self.first) :]

    def score(self, first: np.ndarray, second: np.ndarray) -> list[Figure]:
        """Score the vectors that `embed` gave: a figure for each of `tasks`, in their order."""
        if self.kind == RETRIEVAL:
            each = [score(rows, gains) for rows, gains in zip(rank(first, second).tolist(), self.relevant)]
            means = {key: 100 * float(np.mean([one[key] for one in each])) for key in each[0]}
            answers = np.array([one[HEADLINE] for one in each], np.float32)
            return [Figure(self.name, HEADLINE, means, answers, np.zeros_like(answers))]
        if self.kind == LABELS:
            return self._classified(first)
        rows = np.arange(len(first))
        similarity = cosines(np.concatenate([first, second]), rows, rows + len(rows))
        both = score_task([Pairs(self.name, self.first, self.second, self.gold)], [similarity])
        scores = {"spearman": both["spearman_all"], "pearson": both["pearson_all"]}
        return [Figure(self.name, "spearman", scores, similarity, self.gold)]

    def _classified(self, vectors: np.ndarray) -> list[Figure]:
        from sklearn import cluster, metrics
        from threadpoolctl import threadpool_limits

        half, predicted = halves(self.first, self.gold), np.zeros_like(self.gold)
        for train in (half, ~half):
            predicted[~train] = regression.fit(vectors[train], self.gold[train])[0].predict(vectors[~train])
        accuracy = (predicted == self.gold).mean()
        macro_f1 = metrics.f1_score(self.gold, predicted, average="macro")
        with threadpool_limits(1):  # the figure does not depend on the number of cores
            means = cluster.KMeans(int(self.gold.max()) + 1, n_init=_RESTARTS, random_state=0)
            found = means.fit(vectors).labels_
        parts = metrics.homogeneity_completeness_v_measure(self.gold, found)
        answers = (
            ({"accuracy": accuracy, "macro_f1": macro_f1}, predicted),
            (dict(zip(("homogeneity", "completeness", "v_measure"), parts)), found),
        )
        return [
            Figure(task, metric, {name: 100 * float(one) for name, one in scores.items()}, given, self.gold)
            for (task, metric), (scores, given) in zip(self.tasks.items(), answers)
        ]


def halves(texts: Sequence[str], labels: np.ndarray) -> np.ndarray:
    """Return which of N different texts are in the first half, bool[N]: every other of a class, by hash."""
    order = np.array(sorted(range(len(texts)), key=lambda row: hashlib.sha256(texts[row].encode()).digest()))
    first = np.zeros(len(texts), bool)
    for label in range(labels.max() + 1):
        first[order[labels[order] == label][::2]] = True
    return first


def read_own_sets(places: Mapping[str, str]) -> list[OwnSet]:
    """Read sets (name -> a file, or another place that `clearly prepare` reads), in order.

    Raises:
        UserError: nothing there, other columns, cells that are empty or no numbers, or too few rows.
    """
    return [_read(name, place) for name, place in places.items()]


def _read(name: str, place: str) -> OwnSet:
    rows = list(_rows(place))
    kind, columns = _kind(place, list(dict.fromkeys(column for *_, row in rows for column in row)))
    build: dict[str, Callable[..., OwnSet]]
    build = {SIMILARITY: _similarity, LABELS: _labels, RETRIEVAL: _retrieval}
    found = build[kind](name, place, rows, *columns)
    return replace(found, about=f"{found.about} ({', '.join(filter(None, columns))})")


def _rows(place: str) -> Iterator[tuple[ReadTask, int, Fields]]:
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


def _kind(place: str, columns: Sequence[str]) -> tuple[str, list[str]]:
    """Return the kind of a set, and the columns that it is read from."""
    plain = {column.strip().lower().replace("-", "_"): column for column in reversed(columns)}

    def named(names: Sequence[str]) -> str:
        return next((plain[name] for name in names if name in plain), "")

    found = {kind: [named(names) for names in wanted] for kind, wanted in COLUMNS.items()}
    kinds = [kind for kind, chosen in found.items() if all(chosen)]
    if len(kinds) != 1:
        wanted = {kind: ", ".join("|".join(names) for names in one) for kind, one in COLUMNS.items()}
        accepted = "; ".join(f"{kind}: {names}" for kind, names in wanted.items())
        raise UserError(
            f"{place} has the columns {', '.join(columns) or '(none: no row)'}, of "
            f"{' and '.join(kinds) or 'no kind'}. Rename them, so that they are those of one kind. "
            f"{accepted}, and perhaps {'|'.join(RELEVANCE)}"
        )
    return kinds[0], found[kinds[0]] + ([named(RELEVANCE)] if kinds[0] == RETRIEVAL else [])


def _parsed(rows: Rows, parse: Callable[[Fields], Parsed]) -> list[Parsed]:
    """Parse each row; refuse those that cannot be, the first by its place, the others counted."""
    parsed, fault = list[Parsed](), ""
    for task, position, row in rows:
        try:
            parsed.append(parse(row))
        except ValueError as error:
            fault = fault or f"{where(task, position)}: {error}"
    if fault:
        more = f", and {len(rows) - len(parsed) - 1:,} more rows have such faults"
        raise UserError(f"{fault}{more}; mend these rows, or leave them out")
    return parsed


def _text(value: Any, column: str) -> str:
    if not isinstance(value, str) or not value.strip() or not is_unicode(value):
        raise ValueError(f"{value!a:.60} in the column {column} is no text")
    return value


def _number(value: Any, column: str) -> float:
    try:
        if value is not None and math.isfinite(number := float(value)):
            return number
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{value!a:.60} in the column {column} is no number")


def _label(value: Any, column: str) -> str:
    if value is None or value != value or isinstance(value, list | dict):
        raise ValueError(f"{value!a:.60} in the column {column} is no label")
    return _text(str(value), column).strip()


def _similarity(name: str, place: str, rows: Rows, one: str, other: str, gold: str) -> OwnSet:
    pairs = _parsed(
        rows,
        lambda row: (_text(row.get(one), one), _text(row.get(other), other), _number(row.get(gold), gold)),
    )
    scores = np.array([pair[2] for pair in pairs])
    if len(pairs) < 2 or np.ptp(scores) == 0:
        raise UserError(f"{place}: {len(pairs):,} pairs of one score; a correlation needs two different ones")
    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return OwnSet(name, SIMILARITY, f"{len(pairs):,} pairs", first, second, scores)


def _labels(name: str, place: str, rows: Rows, text: str, label: str) -> OwnSet:
    examples = _parsed(rows, lambda row: (_text(row.get(text), text), _label(row.get(label), label)))
    labels_of = defaultdict[str, set[str]](set)
    for one, its in examples:
        labels_of[one].add(its)
    plain = {one: next(iter(its)) for one, its in labels_of.items() if len(its) == 1}
    sizes = Counter(plain.values())
    kept = {one: its for one, its in plain.items() if sizes[its] > 1}
    counts = {
        "rows repeat others, which are kept": len(examples) - len(set(examples)),
        "texts have several labels, and are left out": len(labels_of) - len(plain),
        "labels have a single text, which is left out": sum(size == 1 for size in sizes.values()),
    }
    notes = tuple(f"{count:,} {what}" for what, count in counts.items() if count)
    classes = {its: number for number, its in enumerate(sorted(set(kept.values())))}
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise UserError(
            f"{place}: {len(classes):,} labels with two different texts or more; there must be 2 to "
            f"{MOST_CLASSES:,}{''.join(f'; {note}' for note in notes)}. Is {label} the column of labels?"
        )
    about, gold = f"{len(kept):,} texts, {len(classes):,} labels", [classes[its] for its in kept.values()]
    return OwnSet(name, LABELS, about, list(kept), gold=np.array(gold), notes=notes)


def _retrieval(name: str, place: str, rows: Rows, query: str, document: str, relevance: str) -> OwnSet:
    def parse(row: Fields) -> tuple[str, list[str], float]:
        answers = row.get(document) or [None]
        texts = [_text(one, document) for one in (answers if isinstance(answers, list) else [answers])]
        gain = _number(row.get(relevance), relevance) if relevance else 1.0
        return _text(row.get(query), query), texts, max(gain, 0.0)

    documents, gains = dict[str, int](), defaultdict[str, dict[int, float]](dict)
    for asked, texts, gain in _parsed(rows, parse):
        for one in texts:
            if gains[asked].setdefault(documents.setdefault(one, len(documents)), gain) != gain:
                raise UserError(
                    f"{place}: the query {asked!r:.60} has the document {one!r:.60} with different "
                    "relevances; keep one of these rows"
                )
    relevant = {asked: {row: gain for row, gain in of.items() if gain} for asked, of in gains.items()}
    answered = {asked: of for asked, of in relevant.items() if of}
    if len(answered) < 2 or len(documents) < 2:
        raise UserError(
            f"{place}: {len(answered):,} queries with a relevant document, {len(documents):,} different "
            "documents; there must be two of each"
        )
    without = len(gains) - len(answered)
    notes = (f"{without:,} queries without a relevant document are left out",) if without else ()
    about = f"{len(answered):,} queries, {len(documents):,} documents"
    return OwnSet(
        name, RETRIEVAL, about, [*answered], [*documents], relevant=[*answered.values()], notes=notes
    )
