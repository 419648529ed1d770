"""STS of vectors as they are stored: the scores of sentence-transformers' evaluator, a row a precision."""

import json

import numpy as np
import pytest
import torch
from commands import call
from model_folders import save_bert, save_run
from scipy import stats
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.util import pairwise_cos_sim, pairwise_manhattan_sim
from sentence_transformers.util.quantization import quantize_embeddings

from finetune import sts
from finetune.encoders.models import open_model
from pretrain.benchmarks.sts_tasks import StsFiles
from pretrain.common.errors import UserError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return save_run(save_bert(root / "bert"), root / "run", "mean")


def test_rows_are_the_scores_of_the_librarys_evaluator(run, layout, tmp_path, capsys):
    call(
        sts.main, run, eval_data=layout, tasks="SICK-R", quantize="int8,uint8,binary,ubinary",
        pooling="mean", json_file=tmp_path / "scores.json",
    )  # fmt: skip
    said = capsys.readouterr().out
    content = json.loads((tmp_path / "scores.json").read_text())
    assert content["precision"] == "fp32"
    (pairs,) = StsFiles(layout).load("SICK-R")
    model = SentenceTransformer(str(run / "export"), device="cpu")
    floats = open_model(run, "mean").encode([*pairs.first, *pairs.second])
    floats = floats / np.linalg.norm(floats, axis=1, keepdims=True)
    for precision, similarity in (
        ("int8", "cosine"), ("uint8", "cosine"), ("binary", "manhattan"), ("ubinary", "manhattan")
    ):  # fmt: skip
        evaluator = EmbeddingSimilarityEvaluator(
            pairs.first, pairs.second, pairs.gold, precision=precision, similarity_fn_names=[similarity]
        )
        theirs = evaluator(model)
        row = content["results"][f"mean {precision}"]["SICK-R"]
        stored = quantize_embeddings(floats, precision)
        if similarity == "manhattan":
            stored = np.unpackbits(stored.view(np.uint8) ^ (0x80 if precision == "binary" else 0), axis=1)
        first, second = torch.from_numpy(stored).double().chunk(2)
        expected = {"cosine": pairwise_cos_sim, "manhattan": pairwise_manhattan_sim}[similarity](
            first, second
        )
        for kind, correlation in (("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
            figure = 100 * correlation(expected, pairs.gold).statistic
            assert row[f"{kind}_all"] == pytest.approx(figure, abs=0.01)
            # in a padded pass a value at the edge of its step may fall to the other side: of 25 pairs,
            # neighbours that change places move the figure by 0.08
            assert figure == pytest.approx(100 * theirs[f"{kind}_{similarity}"], abs=1)
    assert "\nmean int8" in said and "\nmean binary" in said
    assert "note: int8: cosine of the integers, 32 bytes a vector, ranges of the evaluated sentences" in said
    assert "note: binary: Hamming distance of the bits, 4 bytes a vector" in said
    assert content["stored"]["mean ubinary"] == "ubinary: Hamming distance of the bits, 4 bytes a vector"


def test_an_unknown_precision_is_refused_before_the_model(layout):
    with pytest.raises(UserError, match="cannot be stored as 'int7'"):
        call(sts.main, "no/such/model", eval_data=layout, quantize="int7")
