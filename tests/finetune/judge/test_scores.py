"""Figures are the library's, BM25 is the formula's, intervals hold the truth as often as they say."""

import json
import math
import shutil
from collections import Counter

import numpy as np
import pytest
from model_folders import SENTENCES, save_bert, save_guest, save_run
from safetensors.torch import load_file, save_file
from scipy import stats
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.util import quantize_embeddings
from transformers import AutoModel

from finetune.encoders.models import open_model
from finetune.judge import bm25
from finetune.judge.by_products import by_products
from finetune.judge.choice import Judge, choose, fingerprint, general_test, read_report, report_lines
from finetune.judge.costs import ROUNDS, cost_lines, costs_of, size_of
from finetune.judge.heldout import HALVES, TRAIN, RetrievalTest, make_test
from finetune.judge.scores import (
    BM25,
    METRICS,
    PASSAGES,
    START,
    Halves,
    in_words,
    mean_interval,
    rows_of,
    table,
)
from finetune.nanobeir import FOLDER, read
from pretrain.benchmarks.retrieval import score
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.config.data import data_config
from pretrain.export.sums import WEIGHTS

WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[RetrievalTest, object]:
    """A test of random words: titles share some with their texts."""
    folder, draw = tmp_path_factory.mktemp("judge"), np.random.default_rng(0)
    rows = []
    for number in range(700):
        text = [*draw.choice(WORDS, 9), f"n{number}"]
        rows.append({"title": " ".join([*draw.choice(text, 3), "man"]), "text": " ".join(text)})
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = data_config({"sources": str(folder / "mine.jsonl")}).sources
    return make_test(sources, folder / "judge", 0, False), folder / "judge"


def test_figures_are_those_of_sentence_transformers(made, tmp_path):
    guest = save_guest(save_bert(tmp_path / "bert"), tmp_path / "guest", "mean")
    scores = Halves.of(made[1]).of_model(open_model(guest))
    model = SentenceTransformer(str(guest), device="cpu")
    for half in HALVES:
        one = read(made[1] / FOLDER / half)
        theirs = InformationRetrievalEvaluator(
            {str(number): query for number, query in enumerate(one.queries)},
            {f"{row:04d}": text for row, text in enumerate(one.documents)},
            {str(n): {f"{row:04d}" for row in rows} for n, rows in enumerate(one.relevant)},
            mrr_at_k=[10], ndcg_at_k=[10], precision_recall_at_k=[10], accuracy_at_k=[10], map_at_k=[10],
            main_score_function="cosine",
        )(model)  # fmt: skip
        ours = dict(zip(METRICS, scores[half].mean(1) / 100))
        assert 0.02 < ours["ndcg@10"] < 0.98
        for name, figure in ours.items():
            (key,) = (key for key in theirs if key.endswith(f"cosine_{name}"))
            assert figure == pytest.approx(theirs[key], abs=1e-4), name


@pytest.mark.full
def test_figures_are_those_of_mteb(made, tmp_path):
    mteb = pytest.importorskip("mteb", reason="mteb is not installed; the extra `mteb` brings it")
    from datasets import Dataset
    from test_mteb_english import about

    one = read(made[1] / FOLDER / "test")
    ids = {
        "q": [f"q{row}" for row in range(len(one.queries))],
        "p": [f"p{row}" for row in range(len(one.documents))],
    }
    relevant = {f"q{n}": {f"p{row}": 1 for row in rows} for n, rows in enumerate(one.relevant)}
    parts = {
        "corpus": Dataset.from_dict({"id": ids["p"], "text": one.documents}),
        "queries": Dataset.from_dict({"id": ids["q"], "text": one.queries}),
    }

    class Held(mteb.abstasks.AbsTaskRetrieval):
        metadata = about("Held", "Retrieval", "ndcg_at_10")

        def load_data(self, **_):
            split = parts | {"relevant_docs": relevant, "top_ranked": None}
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    guest = save_guest(save_bert(tmp_path / "bert"), tmp_path / "guest", "mean")
    ours = Halves.of(made[1]).of_model(open_model(guest))["test"].mean(1)
    model = SentenceTransformer(str(guest), device="cpu")
    results = mteb.evaluate(model, [Held()], cache=None, co2_tracker=False, show_progress_bar=False)
    theirs = results.task_results[0].scores["test"][0]
    for name, figure in zip(METRICS, ours):
        assert figure == pytest.approx(100 * theirs[name.replace("@", "_at_")], abs=0.01), name


def formula(query: str, passages: list[list[str]]) -> list[float]:
    """BM25 as it is written, k1 1.2, b 0.75."""
    mean = sum(map(len, passages)) / len(passages)
    found = []
    for passage in passages:
        counts, score = Counter(passage), 0.0
        for word in query.lower().split():
            n = sum(word in other for other in passages)
            idf = math.log(1 + (len(passages) - n + 0.5) / (n + 0.5))
            frequency = counts[word]
            score += idf * frequency / (frequency + 1.2 * (0.25 + 0.75 * len(passage) / mean))
        found.append(score)
    return found


def test_bm25_is_the_formula(made):
    one = read(made[1] / FOLDER / "test")
    passages, queries = one.documents[:80], [*one.queries[:40], "unheard of words"]
    ranking = bm25.rank(queries, passages, 80)
    for query, rows in zip(queries, ranking):
        expected = formula(query, [passage.lower().split() for passage in passages])
        along = [expected[row] for row in rows]
        assert sorted(rows) == list(range(80))
        assert along == pytest.approx(sorted(expected, reverse=True), abs=1e-6)


def test_95_percent_of_the_intervals_hold_the_mean():
    draw, held, trials = np.random.default_rng(1), 0, 200
    for _ in range(trials):
        # what differences of nDCG look like: mostly none, else large
        values = np.where(draw.random(150) < 0.6, 0.0, draw.normal(4, 30, 150))
        found = mean_interval(values, np.arange(150))
        assert found.low <= found.mean <= found.high
        held += found.low <= 0.4 * 4 <= found.high
    assert 0.91 < held / trials < 0.98


@pytest.mark.slow
@pytest.mark.parametrize("count", [6, 12, 60])
def test_95_percent_hold_the_mean_where_queries_of_a_document_are_alike(count):
    """Half of the variance is between documents, whose queries are 1 to 15."""
    draw, trials = np.random.default_rng(count), 300
    held = {"documents": 0, "queries": 0}
    for _ in range(trials):
        documents = np.repeat(np.arange(count), draw.integers(1, 16, count))
        values = 4 + draw.normal(0, 20, count)[documents] + draw.normal(0, 20, len(documents))
        for unit, numbers in (("documents", documents), ("queries", np.arange(len(documents)))):
            found = mean_interval(values, numbers)
            held[unit] += found.low <= 4 <= found.high
    assert 0.9 < held["documents"] / trials < 0.99
    assert held["queries"] / trials < 0.8


def test_the_mean_is_that_of_queries_not_of_documents():
    values, documents = np.array([10.0, 20, 30, 80]), np.array([0, 0, 0, 1])
    found = mean_interval(values, documents)
    assert found.mean == pytest.approx(35)
    # of two documents: draws are (d, d) with 20 or 80, and 35; t of one degree of freedom
    wider = 2**0.5 * stats.t.ppf(0.975, 1) / stats.norm.ppf(0.975)
    assert (found.low, found.high) == (pytest.approx(35 - 15 * wider), pytest.approx(35 + 45 * wider))


def test_the_same_queries_are_drawn_for_both_of_a_pair():
    draw = np.random.default_rng(2)
    hard = draw.uniform(0, 100, 200)  # what both find hard
    start = {"test": np.stack([hard] * 3)}
    better = {"test": np.stack([hard + 1 + draw.normal(0, 1, 200)] * 3)}
    each = np.arange(200)
    rows = rows_of({START: start, "adapted": better, BM25: {"test": start["test"] + 3}}, each)
    assert rows["adapted"]["less"][START]["verdict"] == "better"
    assert rows["adapted"]["less"][BM25]["verdict"] == "worse"
    assert in_words(rows, "adapted")[0].startswith("adapted against start: +")
    # each by itself would not be told apart
    low, high = (rows["adapted"]["figures"]["ndcg@10"][side] for side in ("low", "high"))
    assert low < hard.mean() < high
    same = rows_of({START: start, "same": start}, each)
    assert same["same"]["less"][START]["verdict"] == "not told apart"
    assert len(table(rows, 200, 200, 1000)) == 5
    several = np.stack([hard, hard + 5, hard / 2])
    figures = rows_of({START: {"test": several}}, each)[START]["figures"]
    assert [figures[name]["value"] for name in METRICS] == pytest.approx(several.mean(1))


def test_a_table_of_two_documents_has_no_figure_below_0_or_above_100():
    start = {"test": np.array([[0.0, 100.0]] * 3)}
    rows = rows_of({START: start}, np.arange(2))
    assert rows[START]["figures"]["ndcg@10"]["low"] < 0
    assert table(rows, 2, 2, 9)[1].count("50.0 [0.0, 100.0]") == 3


@pytest.mark.parametrize(
    "dev,similarity,alpha",
    [
        ({0.0: 40.0, 0.5: 44.0, 1.0: 45.0}, {}, 1.0),
        ({0.0: 40.0, 0.5: 44.0, 1.0: 45.0}, {0.0: 82.0, 0.5: 81.5, 1.0: 79.0}, 0.5),
        ({0.0: 40.0, 0.5: 44.0, 1.0: 45.0}, {0.0: 82.0, 0.5: 80.5, 1.0: 79.0}, 0.0),
        ({0.0: 40.0, 0.5: 39.0, 1.0: 40.0}, {}, 0.0),
    ],
)
def test_the_share_is_chosen_on_dev_and_forgetting_is_bounded(dev, similarity, alpha):
    assert choose(dev, similarity) == alpha


@pytest.mark.parametrize(
    "kept,forgot,last",
    [
        ("start", "", "best/ is the start: nothing"),
        (
            "start",
            "adapted",
            "start: adapted is better on your text, but forgot more than 1 point of STS-B dev",
        ),
        ("adapted", "", "what was trained:"),
    ],
)
def test_the_last_line_says_what_is_kept(kept, forgot, last):
    figure = {"value": -1.0, "low": -2.0, "high": -0.5, "verdict": "worse"}
    rows = {START: {"less": {}}, "adapted": {"less": {START: figure}}}
    similar = {"0": {"value": 80.0}, "1": {"value": 79.0, "difference": -1.0, "low": -1.5, "high": -0.4}}
    report = {"table": [], "similarity": similar, "rows": rows, "kept": kept, "forgot": forgot, "costs": {}}
    report["chosen"] = {"alpha": 1.0, "row": "adapted", "dev": {"0": 1.0, "1": 2.0}}
    lines = report_lines(report)
    assert "BM25" not in lines[-1]  # it was not measured
    for verdict, words in (("worse", "worse than BM25"), ("not told apart", "not told apart from BM25")):
        rows[kept]["less"][BM25] = figure | {"verdict": verdict}
        assert report_lines(report)[-1] == f"{lines[-1]}; {words}"
    assert "  STS-B dev, start: 80.0" in lines and "  STS-B dev, adapted: 79.0, -1.0 [-1.5, -0.4]" in lines
    assert last in lines[-1] and "adapted against start: -1.0 [-2.0, -0.5] worse" in "\n".join(lines)


@pytest.mark.parametrize("pooling,left_out", [("mean", set()), ("cls", {"best, sif weights"})])
def test_by_products_are_scored_as_their_folders_and_packed_bits_are(
    made, tmp_path, monkeypatch, capsys, pooling, left_out
):
    guest = save_guest(save_bert(tmp_path / "bert"), tmp_path / "guest", pooling)
    halves, out, encoded, vectors_of = Halves.of(made[1]), tmp_path / "out", [], Halves.vectors_of
    # of these very vectors: encoded again they differ by rounding, and a number near 0 in its sign
    monkeypatch.setattr(
        Halves, "vectors_of", lambda self, model: encoded.append(vectors_of(self, model)) or encoded[-1]
    )
    text = str(made[1] / TRAIN.format("*"))
    rows, folders, why = by_products(guest, text, out, halves, lambda folder: open_model(folder, quiet=True))
    assert capsys.readouterr().out.count("  by-product ") == 3  # said before each: they take minutes
    assert set(why) == left_out and all("mean over tokens" in one for one in why.values())
    fitted = {"best, sif weights", "best, whitened", "best, static table"} - left_out
    assert folders == {"best, static table": out / "static table"} and set(rows) == fitted | {
        "best, first 16",
        "best, int8",
        "best, a bit",
    }
    assert size_of(folders["best, static table"])[1] < 8
    vectors, *derived = encoded
    for row, vectors_of_row in zip((row for row in rows if row in fitted), derived, strict=True):
        theirs = SentenceTransformer(str(out / row.removeprefix("best, ")), device="cpu")
        assert vectors_of_row["dev"] == pytest.approx(theirs.encode(halves.sets["dev"].queries), abs=1e-4)
        assert (halves.of_vectors(vectors_of_row)["test"] == rows[row]["test"]).all()
    model = SentenceTransformer(str(guest), device="cpu")
    for half, one in halves.sets.items():
        assert vectors[half] == pytest.approx(model.encode(one.queries), abs=1e-4)
        bits = [
            np.unpackbits(quantize_embeddings(vectors[name], "ubinary"), axis=1) for name in (half, PASSAGES)
        ]
        ranking = np.argsort((bits[0][:, None] != bits[1]).sum(-1), axis=1, kind="stable")[:, :100]
        each = [
            score(rows_of_one, asked)["ndcg@10"] for rows_of_one, asked in zip(ranking.tolist(), one.relevant)
        ]
        assert rows["best, a bit"][half][0].mean() == pytest.approx(100 * np.mean(each), abs=1e-6)


def test_start_and_words_are_scored_once(made, tmp_path):
    folder, opened = made[1], []
    start = save_bert(tmp_path / "bert")

    def open_start():
        opened.append(1)
        return open_model(start, "mean")

    def begin(pooling="mean"):
        judge = Judge(made[0], folder, open_start, general_test(""), fingerprint(str(start), pooling))
        judge.begin()
        return len(opened), judge

    assert begin()[0] == 1
    scored, judge = begin()
    assert scored == 1 and set(judge.scores) == {START, BM25} and len(judge.table(judge.rows())) == 4
    # another pooling, or other weights of the same name, are another start
    assert begin("cls")[0] == 2
    weights = load_file(start / "model.safetensors")
    save_file(
        {name: 2 * tensor for name, tensor in weights.items()}, start / "model.safetensors", {"format": "pt"}
    )
    scored, other = begin("cls")
    assert scored == 3 and (other.scores[START]["test"] != judge.scores[START]["test"]).any()
    assert begin("cls")[0] == 3


def test_the_report_of_a_start_that_is_kept_compares_all_with_bm25(made, tmp_path):
    folder = shutil.copytree(made[1], tmp_path / "a[b],c" / "judge")
    start = save_bert(tmp_path / "bert")
    trained = save_run(start, tmp_path / "run", "mean") / "export"
    judge = Judge(made[0], folder, lambda: open_model(start, "mean"), general_test(""), "")
    judge.begin()
    report = judge.decide(str(start), trained, tmp_path / "best", lambda one: open_model(one, quiet=True))
    rows = report["rows"]
    assert report["kept"] == START and not report["left_out"] and "best, whitened" in rows
    assert all(BM25 in row["less"] for name, row in rows.items() if name != BM25)
    assert report_lines(report)[-1].endswith(" than BM25")
    assert not any(line.endswith(" ") for line in report["table"])
    assert not (folder / "by-products").exists()


def test_a_start_is_known_by_its_files_and_a_name_of_the_hub_by_its_folder_there(tmp_path, monkeypatch):
    start = save_bert(tmp_path / "bert")
    before = fingerprint(str(start), "mean")
    (start / "checkpoint-5").mkdir()
    (start / "checkpoint-5" / "model.safetensors").write_bytes(b"weights of another step")
    assert fingerprint(str(start), "mean") == before != fingerprint(str(start), "cls")
    cached = tmp_path / "models--owner--name" / "snapshots" / "1f"
    cached.mkdir(parents=True)
    monkeypatch.setattr("finetune.judge.choice.cached_folder", {"owner/name": cached}.get)
    named = fingerprint("owner/name", "mean")
    (cached / "model.safetensors").write_bytes(b"weights, which arrive with the first use")
    assert fingerprint("owner/name", "mean") == named != before


def test_costs_are_measured_in_turn_and_the_fastest_round_counts(tmp_path):
    calls, now = [], [0.0]

    def encoder(name, width, seconds):
        def embed(texts):
            calls.append((name, len(texts)))
            now[0] += seconds[len([one for one, _ in calls if one == name]) - 1]
            return np.ones((len(texts), width))

        return open_model(embed)

    first = encoder("first", 4, [99, 5, 2, 4, 4, 4])
    second = encoder("second", 8, [99, 1, 3, 3, 3, 3])
    bert = save_bert(tmp_path / "bert")
    models = {"first": (bert, first), "second": (None, second)}
    found = costs_of(models, ["a b", "c", "a b", "d"], clock=lambda: now[0])
    assert calls == [("first", 3), ("second", 3)] * (ROUNDS + 1)
    assert (found["first"]["speed"], found["second"]["speed"]) == (3 / 2, 3 / 1)
    assert (found["first"]["width"], found["second"]["width"]) == (4, 8)
    # without the masked-language head, as the encoder is loaded
    encoder_alone = AutoModel.from_pretrained(bert, add_pooling_layer=False)
    count = encoder_alone.num_parameters()
    assert (found["first"]["parameters"], found["first"]["megabytes"]) == (count, 4 * count / 1e6)
    encoder_alone.save_pretrained(tmp_path / "alone")
    assert size_of(tmp_path / "alone") == size_of(bert)
    _, one, other = cost_lines(found)
    assert one.split() == ["first", f"{found['first']['parameters']:,}", f"{size_of(bert)[1]:.1f}", "4", "2"]
    assert other.split() == ["second", "8", "3"]


@pytest.mark.parametrize("changed", ["export", "best"])
def test_a_report_is_of_the_weights_that_are_there(tmp_path, changed):
    folders, path = [tmp_path / "export", tmp_path / "best"], tmp_path / "judge.json"
    for folder in folders:
        folder.mkdir()
        (folder / WEIGHTS).write_text(folder.name)
    assert read_report(path, *folders) is None
    path.write_text(json.dumps({"weights": [sha256_of(folder / WEIGHTS) for folder in folders]}))
    assert read_report(path, *folders) == json.loads(path.read_text())
    (tmp_path / changed / WEIGHTS).write_text("trained again")
    assert read_report(path, *folders) is None


def test_a_report_without_what_was_trained_is_refused(tmp_path):
    with pytest.raises(UserError, match="to judge; to make it again: clearly export"):
        read_report(tmp_path / "judge.json", tmp_path / "export", tmp_path / "best")
