"""Semantic textual similarity: how well cosines between sentence vectors rank pairs as people do.

The protocol is SentEval's, as the SimCSE family reports it: no regressor, cosine similarity, and Spearman's
correlation over all pairs of a task at once ("all"). SentEval's other aggregations, the unweighted ("mean")
and pair-weighted ("wmean") mean over a task's subsets, and Pearson's correlation are computed beside it,
since papers differ in which they print and the difference reaches ten points (STS13 most).

    python -m finetune.sts MODEL --pooling cls,mean --eval-data DATA
    python -m finetune.sts MODEL --dimensions 256,128,64    # the first coordinates of the same vectors

Scores go to RUN/report/sts-POOLING.json (results/NAME for other models), where `python -m finetune.report`
finds them. `finetune.senteval` has the same scores among its own; this command compares poolings of one
encoder.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from finetune.encoders.models import EmbeddingModel, open_model
from finetune.flags import EvalData, Model, Out, VectorPrecision
from finetune.results import Evaluation, folder_for, write
from finetune.sts.quantized import QuantizedRows
from finetune.sts.scores import EmbedPoolings, PairScores, StsEvaluator, StsResults
from finetune.sts.tasks import OFFICIAL_PAIRS
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably, require_writable_file, to_json


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
        pairs = next(iter(results.values()))[task]["pairs"]
        if pairs != OFFICIAL_PAIRS[task]:
            lines.append(
                f"note: {task} has {pairs} pairs here, {OFFICIAL_PAIRS[task]} in the official files: not "
                "comparable with "
                "published figures"
            )
    return "\n".join(lines)


def detail_table(scores: StsResults) -> str:
    """Return every aggregation of every task and subset: the figures a paper may have printed instead."""
    columns = ("all", "mean", "wmean")
    header = "task".ljust(22) + "pairs".rjust(7)
    header += "".join(f"{name:>10}" for name in (f"{kind} {c}" for kind in ("rho", "r") for c in columns))
    lines = [header]
    for task, score in scores.items():
        values: Mapping[str, object] = score
        figures = [values[f"{kind}_{column}"] for kind in ("spearman", "pearson") for column in columns]
        printed = "".join(f"{figure:10.2f}" for figure in figures)
        lines.append(task.ljust(22) + f"{score['pairs']:7d}" + printed)
        if len(score["subsets"]) > 1:
            for name, subset in score["subsets"].items():
                lines.append(
                    f"  {name}".ljust(22)
                    + f"{subset['pairs']:7d}{subset['spearman']:10.2f}{'':20}{subset['pearson']:10.2f}"
                )
    return "\n".join(lines)


def cut_to(embed: EmbedPoolings, dimensions: Sequence[int]) -> EmbedPoolings:
    """Return `embed` with the first coordinates of its vectors, by POOLING-DIMENSION.

    Texts are encoded once, and vectors that are kept are whole ones. A dimension that is the whole width
    keeps the pooling's name.

    Raises (where it is called):
        UserError: a dimension is wider than the vectors.
    """

    def embed_and_cut(sentences: list[str]) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for pooling, vectors in embed(sentences).items():
            for dimension in dimensions:
                if dimension > vectors.shape[1]:
                    raise UserError(
                        f"--dimensions {dimension}: the vectors have {vectors.shape[1]} coordinates; leave "
                        "wider ones out"
                    )
                whole = dimension == vectors.shape[1]
                found[pooling if whole else f"{pooling}-{dimension}"] = vectors[:, :dimension]
        return found

    return embed_and_cut


def evaluation_of(
    model: EmbeddingModel, pooling: str, scores: StsResults, name: str = "", stored: str = ""
) -> Evaluation:
    """Return the scores of one pooling as the report reads them; Spearman over all pairs is the headline.

    pooling: its name, or POOLING-DIMENSION where vectors were cut (`cut_to`). name, stored: of vectors that
    are not compared as float32, what the row is called, and how they are.
    """
    plain_pooling, _, dimension = pooling.rpartition("-")
    cut = bool(plain_pooling) and dimension.isdigit()
    evaluated = replace(model, pooling=plain_pooling if cut else pooling)
    compared = stored or "cosine"
    evaluation = Evaluation.of("sts", evaluated, f"{compared}, Spearman over all pairs of a task at once")
    evaluation.pooling = name or pooling
    if cut:
        evaluation.notes.append(f"vectors cut to their first {dimension} coordinates")
    for task, score in scores.items():
        plain = {key: float(value) for key, value in score.items() if isinstance(value, float)}
        evaluation.add(task, "spearman_all", plain, subsets=score["subsets"])
        evaluation.expect_size(task, "pairs", score["pairs"], OFFICIAL_PAIRS[task])
    return evaluation


def parse_dimensions(text: str) -> list[int]:
    """Return the whole numbers of 1 or more that `--dimensions` lists.

    Raises:
        UserError: something else is listed.
    """
    words = [word.strip() for word in text.split(",")] if text else []
    if wrong := [word for word in words if not word.isdigit() or int(word) < 1]:
        raise UserError(f"--dimensions {text}: {wrong[0]!r} is no number of coordinates; write 256,128,64")
    return list(dict.fromkeys(map(int, words)))


POOLINGS = ("cls", "mean")
"""The poolings evaluated where none is named and the model does not bring its own."""


def main(
    model: Model,
    *,
    tasks: cli.Names = (),
    pooling: str = "",
    dimensions: str = "",
    eval_data: EvalData = "",
    detail: bool = False,
    token_budget: cli.Count = 16384,
    precision: VectorPrecision = "fp32",
    quantize: cli.Names = (),
    out: Out = "",
    json_file: str = "",
    pair_file: str = "",
) -> None:
    """Print the STS scores of an encoder (Spearman x 100 over all pairs of a task, cosine, no regressor).

    Args:
        tasks: task names by commas; without it, all that the data folder holds but SICK-R-MTEB, MTEB's
            SICK-R of all 9,927 pairs: SICK-R has the 4,927 of SentEval and the papers.
        pooling: poolings by commas, or "all": cls, mean, first-last, embedding-last, last-two; without it,
            cls and mean. Alone, "pooler": cls through the checkpoint's own pooler. Functions and
            sentence-transformers models bring their own.
        dimensions: numbers by commas: a row for vectors cut to their first so many coordinates, as
            a model trained with objective.matryoshka is used; without it, whole vectors.
        detail: also print every aggregation and every subset.
        token_budget: most tokens in one forward pass; halve it when memory runs out.
        quantize: also score vectors stored as int8, uint8, binary or ubinary, by commas, a row each: integers
            by their cosine, bits by their Hamming distance.
        out: folder for results, a file for each pooling; without it, RUN/report or results/MODEL.
        json_file: write all scores into this one file instead.
        pair_file: also write every pair's gold score and cosine, as TASK/gold and TASK/POOLING of this npz
            file, by which a sweep judges differences.
    """
    for name, file in (("--json-file", json_file), ("--pair-file", pair_file)):
        require_writable_file(file, name)
    widths = parse_dimensions(dimensions)
    evaluator = StsEvaluator(eval_data or None)
    started = time.monotonic()
    chosen = evaluator.choose(tasks or None)  # before torch and the model are loaded: names may be wrong
    from finetune.encoders.embed import parse_poolings

    rows = QuantizedRows(list(dict.fromkeys(quantize)))
    poolings = parse_poolings(pooling) if pooling else []
    opened = open_model(
        model, poolings[0] if poolings else "", token_budget, quiet=len(poolings) != 1, precision=precision
    )
    folder = None if json_file else folder_for(opened, out)
    if opened.head is not None and opened.encode_poolings is not None and len(poolings) != 1:
        print(
            f"note: {opened.name} keeps a head: {opened.trained_pooling} pooling goes through it, "
            "others without it",
            file=sys.stderr,
        )
    pairs = PairScores() if pair_file else None
    several = opened.encode_poolings

    def embed(sentences: list[str]) -> Mapping[str, np.ndarray]:
        if several is None:
            return {opened.pooling: opened.encode(sentences)}
        return several(sentences, poolings or POOLINGS)

    vectors_of = cut_to(embed, widths) if widths else embed
    results = evaluator.evaluate_poolings(lambda sentences: rows.add(vectors_of(sentences)), chosen, pairs)
    print(headline_table(results))
    print("".join(f"note: {how}\n" for how in dict.fromkeys(how for _, how in rows.how.values())), end="")
    if detail:
        for name, scores in results.items():
            label = f"{name} pooling" if several else name
            print(f"\n{label}: Spearman (rho) and Pearson (r) x 100\n{detail_table(scores)}")
    if pairs is not None:
        make_folder(Path(pair_file).parent)
        pairs.write(Path(pair_file))
    if folder is None:
        make_folder(Path(json_file).parent)
        content = {"model": model, "precision": opened.precision, "results": results}
        if rows.how:
            content["stored"] = {name: how for name, (_, how) in rows.how.items()}
        replace_durably(Path(json_file), to_json(content))
        return
    seconds = time.monotonic() - started
    for name, scores in results.items():
        pooled, how = rows.how.get(name, (name, ""))
        evaluation = evaluation_of(opened, pooled, scores, name, how)
        evaluation.seconds = seconds / len(results)
        print(f"all figures: {write(evaluation, folder)}")


if __name__ == "__main__":
    cli.run(main)
