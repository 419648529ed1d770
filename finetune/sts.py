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
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from finetune.encoders.models import EmbeddingModel, open_model
from finetune.flags import EvalData, Model, Out, VectorPrecision
from finetune.results import Evaluation, folder_for, write
from pretrain.benchmarks.distinct import unit
from pretrain.benchmarks.sts_scores import PairScores, StsEvaluator, StsResults
from pretrain.benchmarks.sts_tasks import OFFICIAL_PAIRS
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably, require_writable_file, to_json

PRECISIONS = ("int8", "uint8", "binary", "ubinary")
POOLINGS = ("cls", "mean")
"""The poolings evaluated where none is named and the model does not bring its own."""


@dataclass(frozen=True)
class Row:
    """Vectors that are scored: by a pooling, perhaps cut, perhaps as they would be stored."""

    pooling: str
    dimension: int = 0
    """Of how many first coordinates; 0: of all."""
    precision: str = ""
    stored: str = ""
    """How they are stored and compared, where that is not as float32."""

    @property
    def name(self) -> str:
        cut = f"-{self.dimension}" if self.dimension else ""
        return f"{self.pooling}{cut}{self.precision and ' ' + self.precision}"


def rows_of(
    vectors: np.ndarray,
    pooling: str,
    dimensions: Sequence[int],
    precisions: Sequence[str],
) -> dict[Row, np.ndarray]:
    """Return vectors float32[N, d] of a pooling, cut to each dimension, and each as it would be stored.

    A dimension that is the whole width is no cut. The ranges of integers are those of the N sentences, as in
    sentence-transformers' `EmbeddingSimilarityEvaluator`.

    Raises:
        UserError: a dimension is wider than the vectors.
    """
    found: dict[Row, np.ndarray] = {}
    width = vectors.shape[1]
    for dimension in dimensions or [width]:
        if dimension > width:
            raise UserError(f"--dimensions {dimension}: the vectors have {width} coordinates")
        row, floats = Row(pooling, dimension if dimension < width else 0), vectors[:, :dimension]
        found[row] = floats
        for precision in precisions:
            how = f"Hamming distance of the bits, {(dimension + 7) // 8:,} bytes a vector"
            if precision.endswith("int8"):
                how = (
                    f"cosine of the integers, {dimension:,} bytes a vector, ranges of the evaluated sentences"
                )
            stored = replace(row, precision=precision, stored=f"{precision}: {how}")
            found[stored] = comparable(floats, precision)
    return found


def comparable(vectors: np.ndarray, precision: str) -> np.ndarray:
    """Return what is compared by its cosine, float32[N, d]: the stored integers, or 1 and -1 for each bit.

    The rounding is sentence-transformers' `quantize_embeddings`, of vectors of length 1. The cosine of signs
    is 1 - 2 h / d, where h is the Hamming distance of the bits.
    """
    from sentence_transformers.util.quantization import quantize_embeddings

    values = np.asarray(unit(vectors), np.float32)
    if precision.endswith("int8"):
        ranges = np.stack([values.min(0), values.max(0)])
        return quantize_embeddings(values, precision, ranges=ranges).astype(np.float32)
    stored = quantize_embeddings(values, precision)
    packed = stored.view(np.uint8) ^ np.uint8(0x80 if precision == "binary" else 0)
    return 2 * np.unpackbits(packed, axis=1, count=vectors.shape[1]).astype(np.float32) - 1


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
            official = f"{OFFICIAL_PAIRS[task]} in the official files"
            lines.append(
                f"note: {task} has {pairs} pairs here, {official}: not comparable with published figures"
            )
    return "\n".join(lines)


def evaluation_of(model: EmbeddingModel, row: Row, scores: StsResults) -> Evaluation:
    """Return the scores of a row as the report reads them; Spearman over all pairs is the headline."""
    protocol = f"{row.stored or 'cosine'}, Spearman over all pairs of a task at once"
    evaluation = Evaluation.of("sts", replace(model, pooling=row.pooling), protocol)
    evaluation.pooling = row.name
    if row.dimension:
        evaluation.notes.append(f"vectors cut to their first {row.dimension} coordinates")
    for task, score in scores.items():
        plain = {key: float(value) for key, value in score.items() if isinstance(value, float)}
        evaluation.add(task, "spearman_all", plain, subsets=score["subsets"])
        evaluation.expect_size(task, "pairs", score["pairs"], OFFICIAL_PAIRS[task])
    return evaluation


def main(
    model: Model,
    *,
    tasks: cli.Names = (),
    pooling: str = "",
    dimensions: tuple[cli.Count, ...] = (),
    eval_data: EvalData = "",
    token_budget: cli.Count = 16384,
    precision: VectorPrecision = "fp32",
    quantize: cli.Names = (),
    out: Out = "",
    json_file: str = "",
    pair_file: str = "",
) -> None:
    """Print the STS scores of an encoder (Spearman x 100 over all pairs of a task, cosine, no regressor).

    Pearson's correlation, and every aggregation and subset, are in the file of results.

    Args:
        tasks: task names by commas; without it, all that the data folder holds but SICK-R-MTEB, MTEB's
            SICK-R of all 9,927 pairs: SICK-R has the 4,927 of SentEval and the papers.
        pooling: poolings by commas, or "all": cls, mean, first-last, embedding-last, last-two; without it,
            cls and mean. Alone, "pooler": cls through the checkpoint's own pooler. Functions and
            sentence-transformers models bring their own.
        dimensions: numbers by commas: a row for vectors cut to their first so many coordinates, as
            a model trained with objective.matryoshka is used; without it, whole vectors.
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
    evaluator = StsEvaluator(eval_data or None)
    started = time.monotonic()
    chosen = evaluator.choose(tasks or None)  # before torch and the model are loaded: names may be wrong
    from finetune.encoders.embed import parse_poolings

    if unknown := [name for name in quantize if name not in PRECISIONS]:
        raise UserError(f"vectors cannot be stored as {unknown[0]!r}; choose {', '.join(PRECISIONS)}")
    precisions = list(dict.fromkeys(quantize))
    poolings = parse_poolings(pooling) if pooling else []
    opened = open_model(
        model, poolings[0] if poolings else "", token_budget, quiet=len(poolings) != 1, precision=precision
    )
    folder = None if json_file else folder_for(opened, out)
    several = opened.encode_poolings
    if opened.head is not None and several is not None and len(poolings) != 1:
        trained = f"{opened.trained_pooling} pooling goes through it, others without it"
        print(f"note: {opened.name} keeps a head: {trained}", file=sys.stderr)
    pairs = PairScores() if pair_file else None
    rows: dict[str, Row] = {}

    def embed(sentences: list[str]) -> Mapping[str, np.ndarray]:
        if several is None:
            by_pooling: Mapping[str, np.ndarray] = {opened.pooling: opened.encode(sentences)}
        else:
            by_pooling = several(sentences, poolings or POOLINGS)
        found: dict[Row, np.ndarray] = {}
        for name, vectors in by_pooling.items():
            found |= rows_of(vectors, name, list(dict.fromkeys(dimensions)), precisions)
        rows.update({row.name: row for row in found})
        return {row.name: vectors for row, vectors in found.items()}

    results = evaluator.evaluate_poolings(embed, chosen, pairs)
    print(headline_table(results))
    for how in dict.fromkeys(row.stored for row in rows.values() if row.stored):
        print(f"note: {how}")
    if pairs is not None:
        make_folder(Path(pair_file).parent)
        pairs.write(Path(pair_file))
    if folder is None:
        make_folder(Path(json_file).parent)
        content = {"model": model, "precision": opened.precision, "results": results}
        if stored := {name: row.stored for name, row in rows.items() if row.stored}:
            content["stored"] = stored
        replace_durably(Path(json_file), to_json(content))
        return
    seconds = time.monotonic() - started
    for name, scores in results.items():
        evaluation = evaluation_of(opened, rows[name], scores)
        evaluation.seconds = seconds / len(results)
        print(f"all figures: {write(evaluation, folder)}")


if __name__ == "__main__":
    cli.run(main)
