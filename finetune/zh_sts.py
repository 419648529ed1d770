"""Chinese STS-B, as SDA (Zhu et al.) reports it: `python -m finetune.zh_sts MODEL`.

Spearman's correlation (x 100) between cosine and gold score over the test pairs of CNSD's machine-translated STS-B; nothing
is fitted and the training set is not used. The dev set comes beside it, for choices between models. SDA pools [CLS].
"""

from __future__ import annotations

import difflib
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from finetune.data import find, lines
from finetune.models import EmbeddingModel, open_model
from finetune.results import Evaluation, TaskResult, folder_for, table, write
from pretrain.command import run
from pretrain.errors import UserError

TASKS = {"STS-B-zh": ("cnsd-sts-test.txt", 1361), "STS-B-zh-dev": ("cnsd-sts-dev.txt", 1458)}
"""Task: its file below zh/STS-B and the number of its pairs as published."""


@dataclass(frozen=True)
class ScoredPairs:
    """N sentence pairs and their gold scores float64[N], 0 to 5."""

    first: list[str]
    second: list[str]
    gold: np.ndarray


def read(path: Path) -> ScoredPairs:
    """Lines of four fields separated by "||": number, sentence, sentence, score.

    Raises:
        UserError: a line with other fields, a score that is no number, or fewer than two pairs.
    """
    first, second, gold = [], [], []
    for number, line in enumerate(lines(path), start=1):
        cells = line.split("||")
        try:
            if len(cells) != 4 or not math.isfinite(float(cells[3])):
                raise ValueError
        except ValueError:
            raise UserError(
                f"{path}, line {number}: expected number||sentence||sentence||score, found {line[:80]!r}; the file is damaged"
            ) from None
        first.append(cells[1].strip())
        second.append(cells[2].strip())
        gold.append(float(cells[3]))
    if len(gold) < 2:
        raise UserError(f"{path}: {len(gold)} pairs; a correlation needs at least 2")
    return ScoredPairs(first, second, np.array(gold))


def correlations(model: EmbeddingModel, pairs: ScoredPairs) -> tuple[float, float]:
    """(Spearman, Pearson) x 100 of cosine against gold; NaN where either is constant. A zero vector's cosines count as 0."""
    vectors = model.encode([*pairs.first, *pairs.second]).astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms == 0, 1.0, norms)
    one, two = unit[: len(pairs.gold)], unit[len(pairs.gold) :]
    same = np.array([a == b for a, b in zip(pairs.first, pairs.second, strict=True)]) & one.any(axis=1)
    # Exactly 1 for a sentence with itself: rounding would put an order among pairs that are tied.
    cosine = np.where(same, 1.0, np.einsum("nd,nd->n", one, two))
    if np.ptp(cosine) == 0 or np.ptp(pairs.gold) == 0:
        return math.nan, math.nan
    return 100 * float(stats.spearmanr(cosine, pairs.gold).statistic), 100 * float(stats.pearsonr(cosine, pairs.gold).statistic)


def evaluate(model: EmbeddingModel, tasks: Sequence[str] = tuple(TASKS), data: str | Path | None = None) -> Evaluation:
    """Score each task of TASKS.

    Raises:
        UserError: a file missing or damaged.
    """
    started = time.perf_counter()
    loaded = {name: read(find(data, "zh", "STS-B", TASKS[name][0])) for name in tasks}
    evaluation = Evaluation.of("zh_sts", model, "cosine, Spearman over all pairs, nothing fitted")
    if model.pooling not in ("cls", "function", "own modules"):
        evaluation.notes.append(f"{model.pooling} pooling, where SDA's figures are of [CLS]")
    for name, pairs in loaded.items():
        spearman, pearson = correlations(model, pairs)
        scores = {"spearman": spearman, "pearson": pearson}
        evaluation.tasks[name] = TaskResult("spearman", spearman, scores, details={"pairs": len(pairs.gold)})
        if len(pairs.gold) != TASKS[name][1]:
            evaluation.incomplete(f"{name} has {len(pairs.gold):,} pairs here, {TASKS[name][1]:,} as published")
        print(f"{name}: Spearman {spearman:.2f} over {len(pairs.gold):,} pairs", file=sys.stderr, flush=True)
    evaluation.seconds = time.perf_counter() - started
    return evaluation


def main(model: str, tasks: str = "", pooling: str = "", data: str = "", out: str = "") -> int:
    """Chinese STS-B: Spearman's correlation of cosine with the gold score, test and dev.

    Args:
        model: a run folder, an export, a Hugging Face or sentence-transformers folder or hub name, or file.py:function.
        tasks: STS-B-zh (test), STS-B-zh-dev, by commas; both when not given.
        pooling: cls, mean, first-last, embedding-last or last-two; not given: the pooling that the model was trained for.
        data: folder that holds zh/STS-B; the environment's CLEAR_DATA when not given.
        out: folder for the result file; not given: RUN/report, or results/MODEL.
    """
    names = [name.strip() for name in tasks.split(",") if name.strip()] or list(TASKS)
    for name in names:
        if name not in TASKS:
            near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
            raise UserError(f"unknown task {name!r}; did you mean {near!r}? Tasks: {', '.join(TASKS)}")
        find(data, "zh", "STS-B", TASKS[name][0])  # before the model: a missing file should not cost the loading
    opened = open_model(model, pooling)
    result = evaluate(opened, names, data)
    print(table(result))
    print(f"  {result.seconds:.0f} s; all figures: {write(result, folder_for(opened, out))}")
    return 0


if __name__ == "__main__":
    run(main, positional=1)
