"""Semantic textual similarity: how well cosines between sentence vectors rank pairs as people do.

The protocol is SentEval's, as the SimCSE family reports it: no regressor, cosine similarity, and Spearman's
correlation over all pairs of a task at once ("all"). SentEval's other aggregations, the unweighted ("mean")
and pair-weighted ("wmean") mean over a task's subsets, and Pearson's correlation are computed beside it,
since papers differ in which they print and the difference reaches ten points (STS13 most).

    clearly sts MODEL --pooling cls,mean --eval-data DATA
    clearly sts MODEL --dimensions 256,128,64    # the first coordinates of the same vectors

Scores go to RUN/report/sts-POOLING.json (results/NAME for other models), where `clearly report`
finds them. `finetune.senteval` has the same scores among its own; this command compares poolings of one
encoder.
"""

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from finetune.answers import Answers
from finetune.encoders.models import EmbeddingModel, open_model
from finetune.flags import EvalData, Model, Out, VectorPrecision
from finetune.results import Evaluation, folder_for, write
from pretrain.benchmarks.sts_tasks import OFFICIAL_PAIRS, UNDEFINED, PairScores, StsEvaluator, StsResults
from pretrain.common import cli
from pretrain.common.errors import UserError

POOLINGS = ("cls", "mean")
"""The poolings evaluated, beside that which a run was trained with, if none is named and the model does
not bring its own."""


def headline_table(results: Mapping[str, StsResults]) -> str:
    """Return Spearman x 100 over all pairs: a line per pooling, a column per task, the average last."""
    tasks = list(next(iter(results.values())))
    width = max(len(pooling) for pooling in (*results, "pooling"))
    lines = ["pooling".ljust(width) + "".join(f" {task:>10}" for task in tasks) + f"{'average':>9}"]
    for pooling, scores in results.items():
        average = f"{scores.average:9.2f}" if scores.average is not None else f"{'-':>9}"
        figures = "".join(f" {scores[task]['spearman_all']:{max(10, len(task))}.2f}" for task in tasks)
        lines.append(pooling.ljust(width) + figures + average)
    for task in tasks:
        if any(math.isnan(scores[task]["spearman_all"]) for scores in results.values()):
            lines.append(f"note: {task} has no figure: {UNDEFINED}")
        pairs = next(iter(results.values()))[task]["pairs"]
        if pairs != OFFICIAL_PAIRS[task]:
            official = f"{OFFICIAL_PAIRS[task]} in the official files"
            lines.append(
                f"note: {task} has {pairs} pairs here, {official}: not comparable with published figures"
            )
    return "\n".join(lines)


def evaluation_of(
    model: EmbeddingModel, name: str, scores: StsResults, pairs: PairScores, dimension: int = 0
) -> Evaluation:
    """Return the scores of vectors, Spearman over all pairs first; name: as "mean-64", if cut."""
    pooling = name.removesuffix(f"-{dimension}")
    protocol = "cosine, Spearman over all pairs of a task at once"
    evaluation = Evaluation.of("sts", replace(model, pooling=pooling), protocol)
    evaluation.pooling = name
    if dimension:
        evaluation.notes.append(f"vectors cut to their first {dimension} coordinates")
    for task, score in scores.items():
        plain = {key: float(value) for key, value in score.items() if isinstance(value, float)}
        details = {"subsets": score["subsets"], "pairs": score["pairs"]}
        answers = Answers.of(pairs[f"{task}/{name}"], pairs[f"{task}/gold"], "spearman", task)
        evaluation.add(task, "spearman_all", plain, answers=answers, **details)
        evaluation.expect_size(task, "pairs", score["pairs"], OFFICIAL_PAIRS[task])
    if scores.average is not None:
        evaluation.add("average of 7 STS", "mean", {"mean": scores.average})
    return evaluation


def main(
    model: Model,
    *,
    tasks: cli.Names = (),
    pooling: str = "",
    dimensions: tuple[cli.Count, ...] = (),
    eval_data: EvalData = "",
    precision: VectorPrecision = "fp32",
    out: Out = "",
) -> None:
    """Print the STS scores of an encoder (Spearman x 100 over all pairs of a task, cosine, no regressor).

    Pearson's correlation, and every aggregation and subset, are in the file of results.

    Args:
        tasks: task names by commas; without it, all that the data folder holds but SICK-R-MTEB, MTEB's
            SICK-R of all 9,927 pairs: SICK-R has the 4,927 of SentEval and the papers.
        pooling: poolings by commas, or "all": cls, mean, first-last, embedding-last, last-two; without it,
            cls, mean and that of the run. Alone, "pooler": cls through the checkpoint's own pooler; or
            "words", of a run trained with it. Functions and sentence-transformers models bring their own.
        dimensions: numbers by commas: also score vectors cut to their first N coordinates, as
            a model trained with objective.matryoshka is used; without it, whole vectors.
        out: folder for results, a file for each pooling; without it, RUN/report or results/MODEL.
    """
    evaluator = StsEvaluator(eval_data or None)
    started = time.monotonic()
    chosen = evaluator.choose(tasks or None)  # before torch and the model are loaded: names may be wrong
    from finetune.encoders.embed import parse_poolings

    poolings = parse_poolings(pooling) if pooling else []
    first = poolings[0] if poolings else ""
    opened = open_model(model, first, quiet=len(poolings) != 1, precision=precision)
    folder = folder_for(opened, out)
    encode_poolings = opened.encode_poolings
    poolings = poolings or list(dict.fromkeys(filter(None, (*POOLINGS, opened.trained_pooling))))
    if opened.head is not None and encode_poolings is not None and len(poolings) != 1:
        trained = f"{opened.trained_pooling} pooling goes through it, others without it"
        print(f"note: {opened.name} keeps a head: {trained}", file=sys.stderr)
    pairs = PairScores()
    dimension_of: dict[str, int] = {}

    def embed(sentences: list[str]) -> Mapping[str, np.ndarray]:
        if encode_poolings is None:
            by_pooling: Mapping[str, np.ndarray] = {opened.pooling: opened.encode(sentences)}
        else:
            by_pooling = encode_poolings(sentences, poolings)
        by_name = {}
        for name, vectors in by_pooling.items():
            width = vectors.shape[1]
            for dimension in dimensions or [width]:
                if dimension > width:
                    raise UserError(f"--dimensions {dimension}: the vectors have {width} coordinates")
                cut = dimension if dimension < width else 0
                row = f"{name}-{cut}" if cut else name
                by_name[row], dimension_of[row] = vectors[:, :dimension], cut
        return by_name

    results = evaluator.evaluate_poolings(embed, chosen, pairs)
    print(headline_table(results))
    seconds = time.monotonic() - started
    for name, scores in results.items():
        evaluation = evaluation_of(opened, name, scores, pairs, dimension_of[name])
        evaluation.seconds = seconds / len(results)
        print(f"all figures: {write(evaluation, folder)}")


if __name__ == "__main__":
    cli.run(main)
