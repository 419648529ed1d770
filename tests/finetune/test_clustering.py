"""Clustering against scikit-learn's KMeans as it is, Hungarian accuracy against all permutations, csv files
as they come."""

import itertools
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from commands import call
from real_data import DATA, needs_data
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, normalized_mutual_info_score
from threadpoolctl import threadpool_limits

from finetune import clustering
from finetune.clustering import LabelledTexts, hungarian_accuracy, read, trial, trials
from finetune.encoders.models import open_model
from finetune.results import Evaluation
from pretrain.benchmarks.files import DATA_SETS
from pretrain.common.errors import UserError


def blobs(count, width, classes, dtype=np.float32, seed=0):
    random = np.random.RandomState(seed)
    centres, labels = random.randn(classes, width), random.randint(classes, size=count)
    return (centres[labels] + 0.8 * random.randn(count, width)).astype(dtype), LabelledTexts(
        [""] * count, labels, classes
    )


@pytest.mark.parametrize("classes,clusters", [(3, 3), (4, 3), (3, 5), (5, 5)])
def test_hungarian_accuracy_is_the_best_over_all_matchings(classes, clusters):
    random = np.random.RandomState(classes * 10 + clusters)
    for _ in range(10):
        labels, found = random.randint(classes, size=40), random.randint(clusters, size=40)
        size = max(classes, clusters)
        best = max(
            np.mean(np.array(permutation)[found] == labels)
            for permutation in itertools.permutations(range(size))
        )
        assert hungarian_accuracy(labels, found) == pytest.approx(best)
    assert hungarian_accuracy(np.array([0, 0, 1]), np.array([7, 7, 3])) == 1.0


SHAPES = [(900, 24, 12, np.float32), (400, 8, 3, np.float64), (300, 16, 60, np.float32)]


@pytest.mark.parametrize("count,width,classes,dtype", SHAPES)
def test_equal_to_kmeans_of_scikit_learn(count, width, classes, dtype):
    vectors, data = blobs(count, width, classes, dtype)
    with threadpool_limits(1):
        for seed in (0, 3):
            plain = KMeans(classes, n_init=10, max_iter=300, random_state=seed).fit(vectors)
            scores = trial(vectors, data, seed)
            assert scores["accuracy"] == pytest.approx(100 * hungarian_accuracy(data.labels, plain.labels_))
            assert scores["nmi"] == pytest.approx(
                100 * normalized_mutual_info_score(data.labels, plain.labels_)
            )
            assert scores["ami"] == pytest.approx(
                100 * adjusted_mutual_info_score(data.labels, plain.labels_)
            )
            assert scores["ari"] == pytest.approx(100 * adjusted_rand_score(data.labels, plain.labels_))


def test_trials_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(clustering, "TRIALS", 4)
    monkeypatch.setattr(clustering, "RESTARTS", 2)
    vectors, data = blobs(500, 12, 9)
    alone = [trial(vectors, data, seed) for seed in range(4)]
    for threads in (1, 3):
        monkeypatch.setattr("torch.get_num_threads", lambda threads=threads: threads)
        assert trials(vectors, data) == alone


def test_a_text_of_white_space_alone_is_read_as_a_full_stop():
    texts = ["a ", "", " ", "\t\n\u00a0", ". "]
    assert LabelledTexts(texts, np.zeros(5, np.int64), 1).filled == ["a ", ".", ".", ".", ". "]


def test_csv_is_read_exactly(tmp_path):
    path = tmp_path / "set.csv"
    path.write_bytes(b'text,label\n"a, ""quoted"" text\nover two lines",b\n,a\n  kept ,a\nNA,b\n')
    data = read(path)
    assert data.texts == ['a, "quoted" text\nover two lines', "", "  kept ", "NA"]
    assert data.labels.tolist() == [1, 0, 0, 1] and data.classes == 2


@pytest.mark.parametrize(
    "content,message",
    [
        ("sentence,label\na,1\n", "must name text and label; it has sentence, label"),
        ("", "it has nothing"),
        ("text,label\na,1,2\n", "row 1: 3 cells instead of 2"),
        ("text,label\na,1\nb,\n", "row 2: no label"),
        ("text,label\na,1\nb, \nc,2\n", "row 2: no label"),
        ("text,label\na,1\nb,1\n", "1 class(es)"),
        ('text,label\n"a,1\n', "no csv file"),
    ],
)
def test_damaged_files_are_one_message(tmp_path, content, message):
    path = tmp_path / "set.csv"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        read(path)
    assert message in str(error.value) and str(path) in str(error.value)


def two_words(sentences):
    return np.array([[len(s), s.count("a"), s == "."] for s in sentences], np.float32)


def test_command_writes_results_and_marks_other_sizes(tmp_path, monkeypatch, capsys):
    (tmp_path / "clustering").mkdir()
    rows = "".join(f"{'a' * (1 + n % 7) + 'b' * (n * n % 13)},{n % 6}\n" for n in range(40))
    (tmp_path / "clustering" / "tweet.csv").write_text("text,label\n,0\n" + rows)
    seen = []
    monkeypatch.setitem(sys.modules, "words", type(sys)("words"))
    sys.modules["words"].embed = lambda sentences: seen.extend(sentences) or two_words(sentences)
    assert (
        call(
            clustering.main, "words:embed", tasks="tweet", eval_data=str(tmp_path), out=str(tmp_path / "out")
        )
        == 0
    )
    assert "." in seen and "" not in seen  # VaSCL's code fills an empty text so
    content = json.loads((tmp_path / "out" / "clustering-function.json").read_text())
    task = content["tasks"]["tweet"]
    assert task["value"] == task["scores"]["accuracy"] and len(task["details"]["trials"]) == 10
    each = [scores["accuracy"] for scores in task["details"]["trials"]]
    assert np.ptp(each) > 0  # or a standard deviation would show nothing
    assert task["value"] == pytest.approx(np.mean(each)) and task["std"] == pytest.approx(
        np.std(each, ddof=1)
    )
    assert content["complete"] is False and any(
        "41 texts here, 2,472 as published" in note for note in content["notes"]
    )
    assert any("reads whole texts" in note for note in content["notes"])
    printed = capsys.readouterr()
    assert "INCOMPLETE" in printed.out and "tweet: accuracy" in printed.err


def test_mistakes_are_one_message(tmp_path):
    with pytest.raises(UserError, match="did you mean 'tweet'"):
        call(clustering.main, "unused", tasks="tweets", eval_data=str(tmp_path))
    with pytest.raises(UserError, match="is not there"):
        call(clustering.main, "unused", tasks="tweet", eval_data=str(tmp_path))


@needs_data("clustering")
def test_real_files_have_the_published_sizes():
    for name in (name for name in DATA_SETS if name.startswith("clustering/")):
        data = read(DATA / f"{name}.csv")
        assert {"texts": len(data.texts), "classes": data.classes} == DATA_SETS[name].rows
        assert all(text.strip() for text in data.texts)


@pytest.mark.slow
@needs_data("clustering")
def test_real_set_equals_scikit_learn():
    data = read(DATA / "clustering" / "tweet.csv")
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    counts = TfidfVectorizer().fit_transform(data.texts)
    vectors = TruncatedSVD(64, random_state=0).fit_transform(counts).astype(np.float32)
    with threadpool_limits(1):
        plain = KMeans(data.classes, n_init=10, random_state=0).fit(vectors).labels_
        assert trial(vectors, data, 0)["accuracy"] == pytest.approx(
            100 * hungarian_accuracy(data.labels, plain)
        )


def test_model_is_opened_with_the_protocols_limit():
    assert open_model(two_words, max_length=64).max_length is None


def test_the_mean_of_the_six_sets_is_said_once_all_are_there(monkeypatch):
    monkeypatch.setattr(
        clustering, "trials", lambda vectors, data: [dict.fromkeys(clustering.METRICS, 50.0)] * 2
    )
    result, data = (
        Evaluation("clustering", "m", "mean", None, "p"),
        LabelledTexts(["a", "b"], np.arange(2), 2),
    )
    for number, name in enumerate(clustering.SIX):
        assert not any("mean accuracy" in note for note in result.notes)
        said = clustering.score(open_model(two_words), name, data, result)
        assert said == "accuracy 50.00 ± 0.00, NMI 50.00"
        result.tasks[name].value = 50.0 if number else 20.0  # as the next reads it
    assert "mean accuracy of the six sets of VaSCL's table 2: 45.00" in result.notes


@pytest.mark.parametrize(
    "pooling,said", [("mean", False), ("cls", True), ("function", False), ("own modules", False)]
)
def test_another_pooling_than_the_papers_is_said(pooling, said):
    model = replace(open_model(two_words), pooling=pooling, max_length=64)
    notes = clustering.EVALUATION.evaluate(model, {}).notes
    assert notes == (["cls pooling, where VaSCL's figures are of mean pooling"] if said else [])
    unlimited = replace(model, max_length=None)
    assert any("reads whole texts" in note for note in clustering.EVALUATION.evaluate(unlimited, {}).notes)
