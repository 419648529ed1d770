"""mteb evaluates an export of ours as it is: plain sentence-transformers loading, its own STS Benchmark
class, local data."""

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from model_folders import SENTENCES, save_bert, save_run
from real_data import DATA, needs_data
from scipy import stats
from sentence_transformers import SentenceTransformer

from finetune.encoders.models import open_model
from pretrain.benchmarks.sts_tasks import StsEvaluator

mteb = pytest.importorskip("mteb", reason="mteb is not installed; the extra `mteb` brings it")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mteb")
    return save_run(save_bert(folder / "bert"), folder / "mine", "first-last")


def by_mteb(export, first, second, gold):
    """Spearman of cosines x 100 as mteb's STS Benchmark task gives it for these pairs."""
    task = mteb.get_task("STSBenchmark")
    task.dataset = DatasetDict(
        {"test": Dataset.from_dict({"sentence1": first, "sentence2": second, "score": gold})}
    )
    task.data_loaded = True
    model = SentenceTransformer(str(export), device="cpu")
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False, co2_tracker=False)
    return 100 * result.task_results[0].scores["test"][0]["cosine_spearman"]


def test_mteb_takes_an_export(run_folder):
    words = [word for sentence in SENTENCES for word in sentence.split()]
    random = np.random.RandomState(0)
    first, second = ([" ".join(random.choice(words, 5)) for _ in range(40)] for _ in range(2))
    gold = random.randint(51, size=40) / 10
    vectors = open_model(run_folder).encode(first + second).astype(np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = 100 * stats.spearmanr((unit[:40] * unit[40:]).sum(1), gold)[0]
    assert by_mteb(run_folder / "export", first, second, gold.tolist()) == pytest.approx(expected, abs=0.5)


@needs_data("SentEval/STS/STSBenchmark")
def test_mteb_agrees_with_ours_on_sts_b(run_folder):
    evaluator = StsEvaluator(DATA)
    ours = evaluator.evaluate(open_model(run_folder).encode, ["STS-B"])["STS-B"]["spearman_all"]
    pairs = evaluator.load("STS-B")[0]
    theirs = by_mteb(run_folder / "export", pairs.first, pairs.second, pairs.gold.tolist())
    assert theirs == pytest.approx(ours, abs=0.3)  # float32 cosines order ties by rounding
