"""The STS evaluator against sentence-transformers and scipy, on files in SentEval's layout and real ones."""

import hashlib
import json
import math

import numpy as np
import pytest
from commands import call
from model_folders import save_bert, save_run
from real_data import DATA, needs_data
from scipy import stats

from finetune import sts
from finetune.encoders import models
from finetune.encoders.embed import embed_poolings, load_model
from finetune.encoders.source import resolve
from finetune.sts import OFFICIAL_PAIRS, SEVEN_TASKS, TASKS, YEAR_SUBSETS, StsEvaluator, StsResults, cosines
from pretrain.common.errors import UserError

WORDS = ["a", "the", "man", "woman", "child", "dog", "eats", "guitar", '"no"', "5", "café", "—", "slowly"]


def bag_of_words(sentences):
    """A deterministic embedding with some meaning in it: hashed word counts, float32[N, 64]."""
    vectors = np.zeros((len(sentences), 64), dtype=np.float32)
    for row, sentence in enumerate(sentences):
        for word in sentence.split():
            vectors[row, int(hashlib.md5(word.encode()).hexdigest(), 16) % 64] += 1
    return vectors


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """A SentEval folder in which every task has a few pairs, some of them without a score."""
    rng = np.random.default_rng(7)

    def sentence():
        return " ".join(rng.choice(WORDS, rng.integers(2, 9)))

    data = tmp_path_factory.mktemp("data")
    for task, subsets in YEAR_SUBSETS.items():
        folder = data / "SentEval" / "STS" / f"{task}-en-test"
        folder.mkdir(parents=True)
        for size, name in enumerate(subsets, start=12):
            golds = ["" if i % 5 == 3 else f"{rng.uniform(0, 5):.2f}" for i in range(size)]
            rows = [f"{sentence()}\t {sentence()}  x" + "\tsource" * (task == "STS16") for _ in golds]
            (folder / f"STS.input.{name}.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
            (folder / f"STS.gs.{name}.txt").write_text("".join(gold + "\n" for gold in golds))
    benchmark = data / "SentEval" / "STS" / "STSBenchmark"
    benchmark.mkdir()
    for split in ("dev", "test"):
        rows = [f'g\tf\t2012\t{i}\t{rng.uniform(0, 5):.3f}\t"{sentence()}\t{sentence()}\n' for i in range(30)]
        (benchmark / f"sts-{split}.csv").write_text("".join(rows), encoding="utf-8")
    sick = data / "SentEval" / "SICK"
    sick.mkdir()
    for name in ("SICK_trial.txt", "SICK_test_annotated.txt"):
        rows = [f"{i}\t{sentence()}\t{sentence()}\t{rng.uniform(1, 5):.1f}\tNEUTRAL\r\n" for i in range(25)]
        header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
        (sick / name).write_text(header + "".join(rows), encoding="utf-8", newline="")
    return data


def test_every_task_is_found_in_either_layout(layout, monkeypatch):
    monkeypatch.delenv("CLEAR_DATA", raising=False)
    assert StsEvaluator(layout).available() == list(TASKS)
    assert StsEvaluator(layout / "SentEval").available() == list(TASKS)
    assert StsEvaluator(layout / "SentEval" / "SICK").available() == []
    assert StsEvaluator().available() == []
    monkeypatch.setenv("CLEAR_DATA", str(layout))
    assert StsEvaluator().available() == list(TASKS)


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
    rho = [subset["spearman"] for subset in score["subsets"].values()]
    pairs = [subset["pairs"] for subset in score["subsets"].values()]
    assert list(score["subsets"]) == ["FNWN", "headlines", "OnWN"]
    assert score["pairs"] == sum(pairs)
    assert score["spearman_mean"] == pytest.approx(sum(rho) / 3)
    assert score["spearman_wmean"] == pytest.approx(sum(r * n for r, n in zip(rho, pairs)) / sum(pairs))


def test_average_rounds_the_seven_first(layout):
    results = StsEvaluator(layout).evaluate(bag_of_words)
    expected = np.mean([float(f"{results[task]['spearman_all']:.2f}") for task in SEVEN_TASKS])
    assert results.average == pytest.approx(expected, abs=1e-12)
    assert StsEvaluator(layout).evaluate(bag_of_words, ["STS-B-dev"]).average is None
    assert StsResults().average is None


def test_pairs_without_a_gold_are_dropped_and_text_is_normalised(layout):
    subset = StsEvaluator(layout).load("STS16")[0]
    assert len(subset) == 12 - 2  # rows 3 and 8 have no score
    assert all(sentence.endswith(" x") and "  " not in sentence for sentence in subset.second)
    assert not any("source" in sentence for sentence in subset.second)


def test_quotes_of_the_benchmark_are_text(layout):
    pairs = StsEvaluator(layout).load("STS-B")[0]
    assert len(pairs) == 30
    assert all(sentence.startswith('"') for sentence in pairs.first)


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


def test_constant_similarities_give_nan_not_a_figure(layout):
    results = StsEvaluator(layout).evaluate(lambda s: np.ones((len(s), 8)), ["STS-B-dev"])
    assert math.isnan(results["STS-B-dev"]["spearman_all"])


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
    with pytest.raises(UserError, match=r"expected \d+ vectors"):
        StsEvaluator(layout).evaluate(lambda s: bag_of_words(s)[1:], ["STS-B"])


def test_damaged_data_is_named(layout, tmp_path):
    with pytest.raises(UserError, match="did you mean 'STS-B-dev'"):
        StsEvaluator(layout).evaluate(bag_of_words, ["STSB-dev"])
    with pytest.raises(UserError, match=r"sts-dev\.csv is not there"):
        StsEvaluator(tmp_path).evaluate(bag_of_words, ["STS-B-dev"])
    with pytest.raises(UserError, match="no STS task found"):
        StsEvaluator(tmp_path).evaluate(bag_of_words)
    folder = tmp_path / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    file = folder / "sts-dev.csv"
    file.write_text("g\tf\ty\t0\t3.0\tone\n")
    with pytest.raises(UserError, match="line 1: 6 tab-separated columns"):
        StsEvaluator(tmp_path).evaluate(bag_of_words, ["STS-B-dev"])
    for score in ("three", "nan", "inf"):
        file.write_text(f"g\tf\ty\t0\t{score}\tone\ttwo\n")
        with pytest.raises(UserError, match=f"'{score}' is not a number"):
            StsEvaluator(tmp_path).evaluate(bag_of_words, ["STS-B-dev"])
    folder = tmp_path / "STS" / "STS13-en-test"
    folder.mkdir()
    for name in YEAR_SUBSETS["STS13"]:
        (folder / f"STS.input.{name}.txt").write_text("a\tb\nc\td\n")
        (folder / f"STS.gs.{name}.txt").write_text("1.0\n")
    with pytest.raises(UserError, match=r"2 pairs but STS\.gs\.FNWN\.txt 1 scores"):
        StsEvaluator(tmp_path).evaluate(bag_of_words, ["STS13"])


def test_tables_print_the_figures_and_warn_of_other_pairs(layout):
    results = StsEvaluator(layout).evaluate(bag_of_words)
    table = sts.headline_table({"mean": results})
    row = table.splitlines()[1].split()
    figures = [results[task]["spearman_all"] for task in TASKS] + [results.average]
    assert row == ["mean", *(f"{figure:.2f}" for figure in figures)]
    assert "STS-B has 30 pairs here, 1379" in table
    detail = sts.detail_table(results)
    for task in TASKS:
        assert f"{results[task]['pearson_wmean']:.2f}" in detail


# -- the command on any encoder
# --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A Hugging Face folder, a run trained for cls pooling, a sentence-transformers folder that pools the
    maximum."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    root = tmp_path_factory.mktemp("models")
    bert = save_bert(root / "bert")
    SentenceTransformer(modules=[Transformer(str(bert)), Pooling(32, "max")], device="cpu").save(
        str(root / "st")
    )
    return {"bert": bert, "run": save_run(bert, root / "run", "cls"), "st": root / "st"}


def command(model, layout, tmp_path, **flags):
    call(
        sts.main,
        str(model),
        eval_data=str(layout),
        tasks="STS13, SICK-R",
        json_file=str(tmp_path / "scores.json"),
        **flags,
    )
    return json.loads((tmp_path / "scores.json").read_text())["results"]


@pytest.mark.parametrize("kind", ["bert", "run"])
@pytest.mark.parametrize("pooling", ["", "all", "mean"])
def test_the_command_judges_several_poolings_of_a_run_or_folder_at_once(
    folders, layout, tmp_path, capsys, kind, pooling
):
    encoder, tokenizer = load_model(resolve(folders[kind]))
    names = {"": ["cls", "mean"], "mean": ["mean"]}.get(
        pooling, ["cls", "mean", "first-last", "embedding-last", "last-two"]
    )
    expected = StsEvaluator(layout).evaluate_poolings(
        lambda sentences: embed_poolings(encoder, tokenizer, sentences, names), ["STS13", "SICK-R"]
    )
    capsys.readouterr()
    assert command(folders[kind], layout, tmp_path, pooling=pooling) == expected
    # about the pooling only where a single one is judged that it was not trained for
    said = capsys.readouterr().err
    assert ("was trained with cls pooling and is evaluated with mean" in said) == (
        kind == "run" and pooling == "mean"
    )
    assert "does not say how" not in said


def test_the_command_takes_models_that_bring_their_vectors(folders, layout, tmp_path, capsys):
    module = tmp_path / "encoder_for_sts.py"
    module.write_text(
        "import numpy\ndef embed(texts):\n    return numpy.array([[len(t), t.count('a'), 1.0] for t in "
        "texts])\n"
    )
    for model, name in ((folders["st"], "own modules"), (f"{module}:embed", "function")):
        results = command(model, layout, tmp_path, detail=True)
        encode = models.open_model(str(model)).encode
        assert results == {name: StsEvaluator(layout).evaluate(encode, ["STS13", "SICK-R"])}
        assert f"{name}: Spearman (rho)" in capsys.readouterr().out
        with pytest.raises(UserError, match="leave the"):
            command(model, layout, tmp_path, pooling="cls,mean")


def test_the_place_of_a_json_file_is_made_or_refused_before_the_model_is_opened(layout, tmp_path):
    place = tmp_path / "new" / "scores.json"
    (tmp_path / "embed.py").write_text("import numpy\ndef f(texts): return numpy.eye(len(texts), 4)\n")
    call(sts.main, f"{tmp_path}/embed.py:f", eval_data=str(layout), tasks="SICK-R", json_file=str(place))
    assert json.loads(place.read_text())["results"]["function"]["SICK-R"]["pairs"] == 25
    for wrong, said in ((place / "x.json", "is not a folder"), (place.parent, "a folder; name a file in it")):
        with pytest.raises(UserError, match=rf"--json.file \S+: .*{said}"):
            call(sts.main, "no/such/model", eval_data=str(layout), json_file=str(wrong))


def test_the_command_pools_types_that_run_padded_only(layout, tmp_path):
    from model_folders import albert, padded

    folder = albert(tmp_path / "albert")
    results = command(folder, layout, tmp_path)
    for pooling in ("cls", "mean"):
        expected = StsEvaluator(layout).evaluate(
            lambda sentences, by=pooling: padded(folder, by, sentences), ["SICK-R"]
        )
        assert results[pooling]["SICK-R"]["pearson_all"] == pytest.approx(
            expected["SICK-R"]["pearson_all"], abs=1e-2
        )
    with pytest.raises(UserError, match="runs padded only, with cls or mean"):
        command(folder, layout, tmp_path, pooling="cls,first-last")


real_data = needs_data("SentEval/STS", "SentEval/SICK")


@real_data
def test_official_pair_counts():
    evaluator = StsEvaluator(DATA)
    assert evaluator.available() == list(TASKS)
    assert {task: sum(len(pairs) for pairs in evaluator.load(task)) for task in TASKS} == OFFICIAL_PAIRS


@real_data
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
