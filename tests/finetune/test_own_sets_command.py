"""Test sets of one's own by command: figures of sentence-transformers, results, intervals, suites."""

import json

import numpy as np
import pytest
from answer_checks import require_answers
from commands import call
from model_folders import SENTENCES, save_bert, save_prompted, save_run
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
)
from sklearn.metrics import v_measure_score
from suite_command import evaluate

from finetune.answers import METRICS
from finetune.compare import compare
from finetune.own_sets import main
from finetune.results import read
from pretrain.common.errors import UserError
from pretrain.telemetry.intervals import draws

WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})


def texts(seed, count, longest=8):
    """Different made-up texts."""
    draw, found = np.random.default_rng(seed), dict[str, None]()
    while len(found) < count:
        found[" ".join(draw.choice(WORDS, draw.integers(2, longest)))] = None
    return list(found)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of each kind, and what it holds."""
    folder, draw = tmp_path_factory.mktemp("sets"), np.random.default_rng(3)
    pairs = [(one, other, draw.random()) for one, other in zip(texts(0, 60), texts(1, 60))]
    pairs += pairs[:5]
    lines = ["sentence1\tsentence2\tscore", *("\t".join(map(str, row)) for row in pairs)]
    (folder / "pairs.tsv").write_text("\n".join(lines) + "\n")
    labelled = [(text, WORDS.index(text.split()[0]) % 3) for text in texts(2, 120)]
    (folder / "topics.csv").write_text("text,label\n" + "".join(f"{one},{its}\n" for one, its in labelled))
    asked, corpus = texts(4, 12), texts(5, 80)
    relevant = {query: draw.choice(corpus, draw.integers(1, 6), replace=False).tolist() for query in asked}
    rows = [{"query": query, "document": found, "relevance": 1} for query, found in relevant.items()]
    rows.append(
        {
            "query": asked[0],
            "document": [one for one in corpus if one not in relevant[asked[0]]],
            "relevance": 0,
        }
    )
    (folder / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder, pairs, relevant, corpus


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    return save_run(save_bert(folder / "bert"), folder / "mine", "mean")


def test_figures_are_those_of_sentence_transformers(run_folder, files, tmp_path):
    folder, pairs, relevant, corpus = files
    words = ["--set", folder / "pairs.tsv", "--set", f"asked={folder / 'faq.jsonl'},{folder / 'topics.csv'}"]
    assert call(main, run_folder, *words, out=tmp_path) == 0
    result = read(tmp_path / "own_sets-mean.json")
    assert list(result.tasks) == ["pairs", "asked", "topics", "topics/clusters"]
    require_answers(result, list(result.tasks))
    theirs = SentenceTransformer(str(run_folder / "export"), device="cpu")
    similarity = EmbeddingSimilarityEvaluator(*zip(*pairs), write_csv=False)(theirs)
    ours = result.tasks["pairs"].scores
    assert ours["spearman"] == pytest.approx(100 * similarity["spearman_cosine"], abs=1e-2)
    assert ours["pearson"] == pytest.approx(100 * similarity["pearson_cosine"], abs=1e-2)
    retrieval = InformationRetrievalEvaluator(
        {query: query for query in relevant},
        {text: text for text in corpus},
        {query: set(found) for query, found in relevant.items()},
        write_csv=False,
    )(theirs)
    for key in ("ndcg@10", "mrr@10", "recall@10", "map@100"):
        assert result.tasks["asked"].scores[key] == pytest.approx(
            100 * retrieval[f"cosine_{key}"], abs=1e-2
        ), key


def test_queries_and_documents_have_the_models_own_prompts(run_folder, files, tmp_path):
    folder, _, relevant, corpus = files
    prompted = save_prompted(run_folder / "export", tmp_path / "prompted")
    call(main, prompted, set=folder / "faq.jsonl", out=tmp_path)
    (path,) = tmp_path.glob("own_sets-*.json")
    theirs = InformationRetrievalEvaluator(
        {query: query for query in relevant},
        {text: text for text in corpus},
        {query: set(found) for query, found in relevant.items()},
        write_csv=False,
    )(SentenceTransformer(str(prompted), device="cpu"))
    assert read(path).tasks["faq"].value == pytest.approx(100 * theirs["cosine_ndcg@10"], abs=1e-2)


def test_v_measure_on_draws_is_scikit_learns():
    random = np.random.RandomState(0)
    gold = random.randint(0, 4, 90)
    found = np.where(random.rand(90) < 0.6, gold, random.randint(0, 5, 90))
    for counts in draws("a task", 90, 20):
        figures = METRICS["v_measure"](counts, gold)(found.astype(np.int16))
        for drawn, figure in zip(counts.astype(int), figures, strict=True):
            rows = np.repeat(np.arange(90), drawn)
            assert figure == pytest.approx(v_measure_score(gold[rows], found[rows]), abs=1e-9)
    same = np.zeros(5, np.int16)
    once = np.ones((1, 5))
    assert METRICS["v_measure"](once, same)(same)[0] == 1
    assert METRICS["v_measure"](once, same)(np.arange(5, dtype=np.int16))[0] == pytest.approx(0)


@pytest.mark.full
def test_eval_does_own_sets_alone_keeps_them_and_compare_has_intervals(
    run_folder, files, tmp_path, monkeypatch, capsys
):
    folder, *_ = files
    monkeypatch.chdir(tmp_path)
    for name, seed in (("one", 1), ("other", 2)):
        run = save_run(
            save_bert(tmp_path / f"bert{seed}", initializer_range=0.1 * seed), tmp_path / name, "mean"
        )
        words = [run, "--vectors=none", "--set", folder / "pairs.tsv", "--set", folder / "topics.csv"]
        said = evaluate(*words)
        assert "[1/2] own_sets pairs" in said and "[2/2] own_sets topics" in said and "left out" not in said
        assert "  own_sets pairs: pairs " in said and "topics/clusters" in said
    said = evaluate(*words)
    assert said.count("done before: own_sets") == 2
    capsys.readouterr()
    call(compare, "one", "other", out=tmp_path / "page")
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line for line in printed.splitlines() if line.startswith("  ")}
    assert set(rows) == {"pairs", "topics", "topics/clusters"}
    assert all("[" in line and "no interval" not in line for line in rows.values())
    # other rows under the same name are done again, and are not compared with the old ones
    changed = tmp_path / "pairs.tsv"
    changed.write_text("\n".join((folder / "pairs.tsv").read_text().splitlines()[:30]) + "\n")
    assert "[1/1] own_sets pairs" in evaluate(run, "--vectors=none", "--set", changed)
    call(compare, "one", "other", out=tmp_path / "page")
    assert (
        "no interval: not the same examples in the same order as the first model's: 29, not 65"
        in capsys.readouterr().out
    )


def test_a_wrong_set_is_refused_before_a_model_is_opened(files, tmp_path):
    folder, *_ = files
    for words, message in (
        (["--set", tmp_path / "none.tsv"], "no such file"),
        (["--set", f"{folder / 'pairs.tsv'},pairs={folder / 'faq.jsonl'}"], "would both be called pairs"),
        (["--set", folder / "pairs.tsv", "--suite", "quik"], "unknown suite 'quik'"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate("nobody/nothing", *words)
    with pytest.raises(UserError, match="unknown set 'topics'"):
        call(main, "nobody/nothing", set=folder / "pairs.tsv", tasks="topics")
