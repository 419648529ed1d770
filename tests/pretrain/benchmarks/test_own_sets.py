"""Test sets of one's own: their kind by columns, what is refused and how, and figures against other code."""

import gzip
import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from scipy import stats
from sklearn import metrics
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

from pretrain.benchmarks.own_sets import halves, read_own_set
from pretrain.common.errors import CollapsedEncoder, UserError
from pretrain.common.typed_values import named_places

PAIRS = [{"sentence1": f"one {n}", "sentence2": f"two {n % 3}", "score": n / 4} for n in range(8)]
EXAMPLES = [{"text": f"text {n}", "label": "abc"[n % 3]} for n in range(30)]
ASKED = [{"query": f"query {n % 4}", "document": f"answer {n}"} for n in range(9)]


def write(path, rows):
    """Write rows in the format that a file's name has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        between = "\t" if ".tsv" in path.name else ","
        cells = [columns, *([row.get(name, "") for name in columns] for row in rows)]
        text = "".join(between.join(map(str, row)) + "\n" for row in cells)
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def read(path, rows):
    return read_own_set("mine", write(path, rows))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.parquet", "a.tsv.gz"])
@pytest.mark.parametrize("kind, rows", [("similarity", PAIRS), ("labels", EXAMPLES), ("retrieval", ASKED)])
def test_every_format_is_one_set(tmp_path, name, kind, rows):
    found = read(tmp_path / name, [{"id": 7} | row for row in rows])
    assert found.kind == kind and "left out" not in found.about
    assert found.about.endswith(f"({', '.join(rows[0])})")
    if kind == "similarity":
        assert found.first == [row["sentence1"] for row in rows]
        assert found.second == [row["sentence2"] for row in rows]
        assert found.gold.tolist() == [row["score"] for row in rows]
    elif kind == "labels":
        assert found.first == [row["text"] for row in rows] and found.gold.tolist() == [0, 1, 2] * 10
    else:
        assert found.first == [f"query {n}" for n in range(4)]
        assert found.second == [row["document"] for row in rows]
        assert found.relevant == [{0: 1, 4: 1, 8: 1}, {1: 1, 5: 1}, {2: 1, 6: 1}, {3: 1, 7: 1}]


@pytest.mark.parametrize(
    "columns, kind",
    [
        (("Sentence_A", "sentence_B", "relatedness_score"), "similarity"),
        (("question1", "question2", "label"), "similarity"),
        ((" TEXT1 ", "text2", "similarity"), "similarity"),
        (("sentence", "Intent"), "labels"),
        (("text", "category"), "labels"),
        (("question", "answer"), "retrieval"),
        (("anchor", "positive"), "retrieval"),
        (("Query", "passage", "Score"), "retrieval"),
    ],
)
def test_usual_names_are_known(tmp_path, columns, kind):
    rows = [dict(zip(columns, (f"x {n // 2}", f"y {n % 2}", n + 1))) for n in range(4)]
    if kind == "labels":
        rows = [dict(zip(columns, (f"x {n}", f"y {n % 2}"))) for n in range(4)]
    assert read(tmp_path / "set.csv", rows).kind == kind


@pytest.mark.parametrize(
    "rows, message",
    [
        ([{"a": 1, "b": 2}], r"has the columns a, b, of no kind.* similarity: sentence1\|.*; labels: text\|"),
        ([{"text": "x", "label": "y", "query": "q", "document": "d"}], "of labels and retrieval. Rename"),
        (PAIRS[:2], "2 pairs of 2 different scores; a correlation needs three pairs, and two different"),
        ([row | {"score": 3} for row in PAIRS], "8 pairs of 1 different scores"),
        ([*PAIRS, PAIRS[0] | {"score": "high"}, PAIRS[0] | {"score": ""}], r"set.csv, line 10: 'high' in the "
         r"column score is no number, the first of 2 rows with such a fault; mend them, or leave them out"),
        ([*PAIRS, PAIRS[0] | {"score": "nan"}], "line 10: 'nan' in the column score is no number"),
        ([*PAIRS, PAIRS[0] | {"sentence2": "  "}], "line 10: '  ' in the column sentence2 is no text"),
        ([row | {"label": "one"} for row in EXAMPLES], "30 different texts of 1 labels; there must be"),
        ([*EXAMPLES, {"text": "x", "label": ""}], "line 32: '' in the column label is no label"),
        ([{"text": f"x {n}", "label": n} for n in range(9)], "of 0 labels, 9 rows left out: they repeat"),
        (ASKED[:1], "1 queries, 1 documents; there must be two of each"),
        ([row | {"relevance": 0} for row in ASKED], "0 queries, 9 documents, 4 queries left out"),
        ([*ASKED, {"query": "", "document": "x"}], "line 11: '' in the column query is no text"),
    ],
)  # fmt: skip
def test_what_no_figure_could_follow_from_is_refused(tmp_path, rows, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path / "set.csv", rows)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is empty"),
        ("text,label\n", r"has the columns \(none: no row\)"),
        ("text,label\nx,a\ny\n", r"set.csv, line 3: 1 fields where the header has 2"),
        ('{"text": "x", "label": "a"}\n{"text": 5, "label": "a"}\n', "set.jsonl, line 2: 5 in the column"),
        ('{"text": "x", "label": "a"}\n{"text": "y"}\n', "line 2: None in the column label is no label"),
        ('{"text": "x", "label": NaN}\n', "line 1: nan in the column label is no label"),
        ('{"text": NaN, "label": "a"}\n', "line 1: nan in the column text is no text"),
        ('{"text": "x"\n', "set.jsonl, line 1: not JSON"),
        ('{"query": "x", "document": []}\n', r"line 1: \[\] in the column document is no text or list"),
    ],
)  # fmt: skip
def test_damaged_files_are_one_message(tmp_path, text, message):
    path = tmp_path / ("set.jsonl" if text.startswith("{") else "set.csv")
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_own_set("mine", str(path))


def test_what_has_no_columns_or_is_not_there_is_refused(tmp_path):
    (tmp_path / "set.txt").write_text("a line\n")
    with pytest.raises(UserError, match=r"set.txt has no columns: give a tsv, csv, jsonl or parquet file"):
        read_own_set("mine", str(tmp_path / "set.txt"))
    with pytest.raises(UserError, match=r"none.tsv: no such file"):
        read_own_set("mine", str(tmp_path / "none.tsv"))


def test_places_are_named():
    assert named_places(["a/b.c.tsv", "faq=d/x=y.csv", "hub:owner/Set"]) == {
        "b": "a/b.c.tsv",
        "faq": "d/x=y.csv",
        "Set": "hub:owner/Set",
    }
    assert named_places({"my set": "a.tsv"}) == {"my set": "a.tsv"}
    assert named_places([]) == named_places("none") == named_places(None) == {}
    with pytest.raises(UserError, match=r"a/x.tsv and b/x.csv would both be called x: write OTHER=b/x.csv"):
        named_places("a/x.tsv, b/x.csv")


def test_rows_that_say_nothing_are_left_out_and_counted(tmp_path):
    more = [EXAMPLES[0], EXAMPLES[1] | {"label": "c"}, {"text": "alone", "label": "rare"}]
    found = read(tmp_path / "set.jsonl", EXAMPLES + more)
    left_out = "4 rows left out: they repeat or contradict others, or alone have a label"
    assert found.about == f"29 different texts of 3 labels, {left_out} (text, label)"
    assert found.first == [row["text"] for row in EXAMPLES if row["text"] != "text 1"]
    asked = [*ASKED, {"query": "none", "document": ["more", "answer 0"], "relevance": -1}]
    asked = [{"relevance": 2} | row for row in [*asked, asked[0]]]
    found = read(tmp_path / "asked.jsonl", [*asked, asked[0] | {"relevance": 1}])  # the larger counts
    assert "4 queries, 10 documents, 1 queries left out that have no relevant document (" in found.about
    assert found.second[-1] == "more" and found.relevant[0] == {0: 2, 4: 2, 8: 2}


def vectors_of(texts, seed, width=6):
    """Vectors of texts, the same for the same text."""
    return np.stack(
        [np.random.default_rng([seed, *text.encode()]).normal(size=width) for text in texts]
    ).astype(np.float32)


def scored(found, seed=0):
    embed = [lambda texts, salt=salt: vectors_of(texts, seed + salt) for salt in (0, 1, 2)]
    figures = found.score(*found.embed(*embed))
    assert [(one.task, one.metric) for one in figures] == list(found.tasks.items())
    return {one.task: one for one in figures}


@pytest.mark.parametrize("rows", [PAIRS[:3], [EXAMPLES[n] for n in (0, 1, 3, 4)], ASKED[:4]])
def test_a_collapsed_encoder_is_an_error_however_few_the_texts(tmp_path, rows):
    found = read(tmp_path / "set.jsonl", rows)
    same = [lambda texts: np.ones((len(texts), 4), np.float32)] * 3
    with pytest.raises(CollapsedEncoder, match=r"the encoder gives all \d sentences the same vector"):
        found.embed(*same)
    apart = lambda texts: -np.ones((len(texts), 4), np.float32)  # noqa: E731
    if found.kind == "retrieval":  # queries and documents are two directions
        assert found.embed(*same[:2], apart)[1].max() == -1


def test_similarity_is_scipys(tmp_path):
    draw = np.random.default_rng(0)
    rows = [
        {"sentence1": f"a {draw.integers(20)}", "sentence2": f"b {draw.integers(20)}", "score": draw.random()}
        for _ in range(60)
    ]
    rows += rows[:3]  # each row counts
    one = scored(read(tmp_path / "set.jsonl", rows))["mine"]
    first, second = (vectors_of([row[f"sentence{n}"] for row in rows], 0) for n in (1, 2))
    cosine = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    gold = [row["score"] for row in rows]
    assert one.scores["spearman"] == pytest.approx(100 * stats.spearmanr(cosine, gold).statistic, abs=1e-4)
    assert one.scores["pearson"] == pytest.approx(100 * stats.pearsonr(cosine, gold).statistic, abs=1e-4)


def test_labels_are_scikit_learns(tmp_path):
    rows = [{"text": f"text {n}", "label": "abc"[n * n % 7 % 3]} for n in range(90)]
    found = read(tmp_path / "set.csv", rows)
    figures = scored(found)
    vectors, half = vectors_of(found.first, 0), halves(found.first, found.gold)
    sizes = np.bincount(found.gold)
    assert (np.bincount(found.gold[half]) == -(-sizes // 2)).all()
    # whatever the order of the rows
    order = np.random.default_rng(1).permutation(len(rows))
    assert (halves([found.first[row] for row in order], found.gold[order]) == half[order]).all()
    expected = np.empty_like(found.gold)
    for train in (half, ~half):
        fitted = LogisticRegression(max_iter=1000).fit(vectors[train], found.gold[train])
        expected[~train] = fitted.predict(vectors[~train])
    assert figures["mine"].answers.tolist() == expected.tolist()
    accuracy = 100 * metrics.accuracy_score(found.gold, expected)
    assert figures["mine"].scores["accuracy"] == pytest.approx(accuracy)
    clusters = KMeans(3, n_init=10, random_state=0).fit_predict(vectors)
    v_measure = 100 * metrics.v_measure_score(found.gold, clusters)
    assert figures["mine/clusters"].scores["v_measure"] == pytest.approx(v_measure)
    assert figures["mine/clusters"].answers.tolist() == clusters.tolist()


def test_of_two_labels_the_regression_is_that_of_cola(tmp_path):
    rows = [{"text": f"text {n}", "label": n % 2} for n in range(40)]
    found = read(tmp_path / "set.jsonl", rows)
    vectors, half = vectors_of(found.first, 0), halves(found.first, found.gold)
    fitted = LogisticRegression(C=2, max_iter=1000).fit(vectors[half], found.gold[half])
    assert scored(found)["mine"].answers[~half].tolist() == fitted.predict(vectors[~half]).tolist()


def test_retrieval_by_hand(tmp_path):
    """Two queries, four documents of one direction each; a gain of 3, one of 1."""
    rows = [
        {"query": "q", "document": "second", "relevance": 1},
        {"query": "q", "document": "third", "relevance": 3},
        {"query": "q", "document": "first", "relevance": 0},
        {"query": "r", "document": "second", "relevance": 1},
    ]
    found = read(tmp_path / "set.jsonl", rows)
    place = {"first": 0.1, "second": 0.2, "third": 0.3, "q": 0.0, "r": 0.2}

    def embed(texts):
        return np.array([[np.cos(place[one]), np.sin(place[one])] for one in texts], np.float32)

    (one,) = found.score(*found.embed(embed, embed, embed))
    # q: first (0), second (1), third (3); r: second
    found_q = (1 / np.log2(3) + 3 / 2) / (3 + 1 / np.log2(3))
    assert one.answers.tolist() == pytest.approx([found_q, 1])
    assert one.scores["ndcg@10"] == pytest.approx(50 * (found_q + 1))
    assert one.scores["mrr@10"] == pytest.approx(50 * (1 / 2 + 1)) and one.scores["recall@10"] == 100
