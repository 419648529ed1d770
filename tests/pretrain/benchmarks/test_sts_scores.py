"""The STS scores against sentence-transformers and scipy, on files in SentEval's layout and real ones."""

import numpy as np
import pytest
from real_data import DATA, needs_data
from scipy import stats
from sts_layout import bag_of_words

from finetune.encoders.models import open_model
from pretrain.benchmarks.distinct import distinct
from pretrain.benchmarks.files import evenly_spaced
from pretrain.benchmarks.sts_tasks import SEVEN_TASKS, TASKS, StsEvaluator, StsResults, cosines
from pretrain.common.errors import CollapsedEncoder, UserError


def test_scores_equal_sentence_transformers_and_scipy(layout):
    from sentence_transformers import util
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    class Model:  # the little of SentenceTransformer that its evaluator asks for
        class model_card_data:
            @staticmethod
            def set_evaluation_metrics(*_): ...

        similarity_fn_name = "cosine"
        truncate_dim = None

        def encode(self, sentences, **_):
            return bag_of_words(list(sentences))

    evaluator = StsEvaluator(layout)
    results = evaluator.evaluate(bag_of_words)
    for task in TASKS:
        subsets = evaluator.load(task)
        first = [sentence for pairs in subsets for sentence in pairs.first]
        second = [sentence for pairs in subsets for sentence in pairs.second]
        gold = np.concatenate([pairs.gold for pairs in subsets])
        cosines = util.pairwise_cos_sim(bag_of_words(first), bag_of_words(second)).numpy()
        assert results[task]["pearson_all"] == pytest.approx(100 * stats.pearsonr(cosines, gold)[0], abs=1e-3)
        # Rounding first, since float32 cosines of pairs that are tied differ in their last digits.
        rho = stats.spearmanr(cosines.round(5), gold)[0]
        ours = stats.spearmanr(_cosines(first, second).round(5), gold)[0]
        assert ours == pytest.approx(rho, abs=1e-9)
        assert results[task]["spearman_all"] == pytest.approx(100 * rho, abs=1.0)
        peer = EmbeddingSimilarityEvaluator(first, second, list(gold), write_csv=False)
        assert results[task]["pearson_all"] == pytest.approx(100 * peer(Model())["pearson_cosine"], abs=1e-3)


def _cosines(first, second):
    index = {sentence: n for n, sentence in enumerate(dict.fromkeys([*first, *second]))}
    vectors = np.asarray(bag_of_words(list(index)), np.float64)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)
    return (unit[[index[s] for s in first]] * unit[[index[s] for s in second]]).sum(1)


def test_aggregations_over_subsets(layout):
    score = StsEvaluator(layout).evaluate(bag_of_words, ["STS13"])["STS13"]
    pairs = [subset["pairs"] for subset in score["subsets"].values()]
    assert list(score["subsets"]) == ["FNWN", "headlines", "OnWN"]
    assert score["pairs"] == sum(pairs)
    for kind in ("spearman", "pearson"):
        each = [subset[kind] for subset in score["subsets"].values()]
        assert score[f"{kind}_mean"] == pytest.approx(sum(each) / 3)
        assert score[f"{kind}_wmean"] == pytest.approx(sum(r * n for r, n in zip(each, pairs)) / sum(pairs))


def test_average_rounds_the_seven_first(layout):
    results = StsEvaluator(layout).evaluate(bag_of_words)
    expected = np.mean([float(f"{results[task]['spearman_all']:.2f}") for task in SEVEN_TASKS])
    assert results.average == pytest.approx(expected, abs=1e-12)
    assert StsEvaluator(layout).evaluate(bag_of_words, ["STS-B-dev"]).average is None
    assert StsResults().average is None


def test_each_distinct_sentence_is_embedded_once(layout):
    calls = []

    def embed(sentences):
        calls.append(sentences)
        return bag_of_words(sentences)

    evaluator = StsEvaluator(layout)
    evaluator.evaluate(embed)
    everything = [s for task in TASKS for p in evaluator.load(task) for s in (*p.first, *p.second)]
    assert len(calls) == 1
    assert sorted(calls[0]) == sorted(set(everything))
    assert len(calls[0]) < len(everything)


def test_cosines_are_sentevals_to_the_last_bit_and_zero_vectors_count_as_zero():
    vectors = np.random.default_rng(0).normal(size=(60, 48)).astype(np.float32)
    vectors[7] = 0
    first, second = np.random.default_rng(1).integers(0, 60, (2, 500))
    second[:50] = first[:50]
    with np.errstate(invalid="ignore"):
        official = [
            np.nan_to_num(np.dot(u, v) / (np.linalg.norm(u) * np.linalg.norm(v)))
            for u, v in zip(vectors[first], vectors[second])
        ]
    found = cosines(vectors, first, second)
    assert np.array_equal(found, official) and (found[(first == 7) | (second == 7)] == 0).all()


def test_zero_vectors_have_cosine_zero(tmp_path):
    folder = tmp_path / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    texts = [("b", "b"), ("c", "c"), ("b", "c"), ("zero", "zero")]
    rows = [f"g\tf\ty\t0\t{gold}\t{one}\t{two}\n" for (one, two), gold in zip(texts, (4, 4, 1, 0))]
    (folder / "sts-dev.csv").write_text("".join(rows))
    vectors = {"b": [0.0, 2.0, 0.0], "c": [2.0, 1.0, 2.0], "zero": [0.0, 0.0, 0.0]}
    results = StsEvaluator(tmp_path).evaluate(lambda s: np.array([vectors[x] for x in s]), ["STS-B-dev"])
    assert results["STS-B-dev"]["spearman_all"] == pytest.approx(100.0)


@pytest.mark.parametrize(
    "embed",
    [
        lambda texts: np.ones((len(texts), 8)),
        lambda texts: np.outer([1 + len(text) for text in texts], [1, 2, 3]),  # of one direction
        lambda texts: 5 + 1e-7 * bag_of_words(texts),
        lambda texts: np.zeros((len(texts), 8)),
    ],
)
def test_a_collapsed_encoder_is_an_error_and_no_figure(layout, tmp_path, embed):
    for evaluate in (
        lambda: StsEvaluator(layout).evaluate(embed, ["STS-B-dev"]),
        lambda: open_model(embed).encode([f"sentence {number}" for number in range(10)]),
    ):
        with pytest.raises(CollapsedEncoder, match=r"gives all \d+ sentences the same vector") as error:
            evaluate()
        assert error.value.exit_status == 1
    assert len(open_model(embed).encode(["A cat", "a cat"])) == 2  # they may be one text to its tokenizer


def write_dev(folder, golds):
    """Write STS-B dev of so few pairs that fewer than ten sentences are in them."""
    path = folder / "STS" / "STSBenchmark" / "sts-dev.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"g\tf\ty\t{n}\t{gold}\tone {n}\t{n * 'one '}other {n}\n" for n, gold in enumerate(golds)]
    path.write_text("".join(rows))
    return folder


def test_of_few_sentences_too_a_collapsed_encoder_is_an_error(tmp_path):
    evaluator = StsEvaluator(write_dev(tmp_path, (1, 2, 3)))
    with pytest.raises(CollapsedEncoder, match="gives all 6 sentences the same vector"):
        evaluator.evaluate(lambda texts: np.ones((len(texts), 8)))
    assert np.isfinite(evaluator.evaluate(bag_of_words)["STS-B-dev"]["pearson_all"])


@pytest.mark.parametrize("golds", [(1, 2), (4, 4, 4, 4), (1,)])
def test_pairs_that_no_correlation_follows_from_are_refused(tmp_path, golds):
    counts = f"{len(golds)} pairs of {len(set(golds))} different scores"
    with pytest.raises(UserError, match=f"STS-B-dev below .*: {counts}; a correlation needs three"):
        StsEvaluator(write_dev(tmp_path, golds)).evaluate(bag_of_words)


def test_several_poolings_come_from_one_pass(layout):
    evaluator = StsEvaluator(layout)
    both = evaluator.evaluate_poolings(
        lambda sentences: {"cls": bag_of_words(sentences), "mean": bag_of_words(sentences)[:, :8]}, ["STS12"]
    )
    assert both["cls"] == evaluator.evaluate(bag_of_words, ["STS12"])
    assert both["mean"] != both["cls"]


def test_damaged_vectors_name_the_sentence(layout):
    def embed(sentences):
        vectors = bag_of_words(sentences)
        embed.bad = sentences[17]
        vectors[17, 3] = np.nan
        return vectors

    with pytest.raises(UserError) as error:
        StsEvaluator(layout).evaluate(embed, ["STS-B"])
    assert repr(embed.bad) in str(error.value)
    for wrong in (lambda vectors: vectors[1:], lambda vectors: np.vstack([vectors, vectors[:1]])):
        with pytest.raises(UserError, match=r"shape \(\d+, \d+\) for \d+ sentences"):
            StsEvaluator(layout).evaluate(lambda sentences, wrong=wrong: wrong(bag_of_words(sentences)))


@needs_data("SentEval/STS", "SentEval/SICK")
def test_bag_of_words_ranks_real_pairs_above_chance_and_as_scipy_says():
    evaluator = StsEvaluator(DATA)
    results = evaluator.evaluate(bag_of_words)
    assert 20 < results.average < 60
    for task in TASKS:
        subsets = evaluator.load(task)
        first = [sentence for pairs in subsets for sentence in pairs.first]
        second = [sentence for pairs in subsets for sentence in pairs.second]
        rho = stats.spearmanr(_cosines(first, second), np.concatenate([pairs.gold for pairs in subsets]))[0]
        # equal bags tie in float64, not in float32
        assert results[task]["spearman_all"] == pytest.approx(100 * rho, abs=1.0)


@pytest.mark.parametrize("count", [9, 10])
def test_ten_sentences_may_not_share_a_vector_and_nine_may(count):
    sentences = [f"sentence {number}" for number in range(count)]
    if count == 9:
        assert len(distinct(lambda texts: np.ones((len(texts), 2)), sentences, "m")) == 9
    else:
        with pytest.raises(CollapsedEncoder):
            distinct(lambda texts: np.ones((len(texts), 2)), sentences, "m")
    late = np.ones((200, 2), np.float32)
    late[-1, 0] = 3  # only the last differs
    assert distinct(lambda texts: late, [str(number) for number in range(200)], "m")[-1, 0] == 3


def test_examples_are_taken_evenly_with_both_ends():
    examples = list(range(11))
    assert evenly_spaced(examples, 3) == [0, 5, 10] and evenly_spaced(examples, 2) == [0, 10]
    assert evenly_spaced(examples, 11) == evenly_spaced(examples, 99) == examples
    assert evenly_spaced(examples, 1) == [0] and evenly_spaced([], 5) == []
    assert np.diff(evenly_spaced(list(range(1000)), 300)).tolist().count(4) > 90
