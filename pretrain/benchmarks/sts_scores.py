"""Score sentence vectors on the STS tasks: cosines, and their correlations with the gold scores."""

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.benchmarks.distinct import require_sound
from pretrain.benchmarks.sts_tasks import SEVEN_TASKS, Pairs, StsFiles
from pretrain.common.files import replace_durably

Embed = Callable[[list[str]], np.ndarray]
EmbedPoolings = Callable[[list[str]], Mapping[str, np.ndarray]]


TaskScores = dict[str, Any]
"""Correlations x 100 of a task by KIND_HOW, as "spearman_all", the headline: Spearman's or Pearson's, over
all pairs at once, or the plain ("mean") or pair-weighted ("wmean") mean over subsets; "pairs", their number;
"subsets", name -> {"spearman", "pearson", "pairs"}. NaN where one side is constant."""


class StsResults(dict[str, TaskScores]):
    """Task name to its scores, in the order asked for."""

    @property
    def average(self) -> float | None:
        """Mean of the seven headlines, rounded to two decimals first as papers do; None if one is absent."""
        if any(task not in self for task in SEVEN_TASKS):
            return None
        return float(np.mean([round(self[task]["spearman_all"], 2) for task in SEVEN_TASKS]))


class PairScores(dict[str, np.ndarray]):
    """Every pair's scores: "TASK/gold" and "TASK/POOLING" (the cosine) to float32[P], subsets in order.

    With them a difference between two models can be judged over the pairs: 83 KB a pooling for all tasks.
    """

    def write(self, path: Path) -> None:
        """Write them as an npz file, whole or not at all."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **self)
        replace_durably(path, buffer.getvalue())


class StsEvaluator(StsFiles):
    """Score embedding functions on the STS tasks of a data folder."""

    def evaluate(self, embed: Embed, tasks: Iterable[str] | None = None) -> StsResults:
        """Score one embedding function.

        Args:
            embed: distinct sentences, in any order, to vectors [N, d]. Called once, with every distinct
                sentence of all the tasks, so that no sentence is encoded twice.
            tasks: task names; all that are available when None.

        Raises:
            UserError: no task available, a task's data damaged or absent; as `require_sound`.
        """
        return self.evaluate_poolings(lambda sentences: {"": embed(sentences)}, tasks)[""]

    def evaluate_poolings(
        self, embed: EmbedPoolings, tasks: Iterable[str] | None = None, pairs: PairScores | None = None
    ) -> dict[str, StsResults]:
        """Score several vectors a sentence, computed in one pass: pooling name to results; see `evaluate`.

        pairs: gets every pair's scores.
        """
        loaded = {task: self.load(task) for task in self.choose(tasks)}
        sentences = self.sentences(loaded)
        index = {sentence: number for number, sentence in enumerate(sentences)}
        results = {}
        for pooling, vectors in embed(sentences).items():
            vectors = np.ascontiguousarray(vectors, np.float32)
            require_sound(vectors, sentences, f"embedding ({pooling} pooling)" if pooling else "embedding")
            results[pooling] = StsResults()
            for task, subsets in loaded.items():
                similarities = task_cosines(subsets, vectors, index)
                results[pooling][task] = score_task(subsets, similarities)
                if pairs is not None:
                    pairs[f"{task}/gold"] = np.concatenate([one.gold for one in subsets]).astype(np.float32)
                    pairs[f"{task}/{pooling}"] = np.concatenate(similarities)
        return results


def cosines(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return cosines of vectors float32[N, d] in rows `first` and `second` (int64[P]), float32[P].

    A zero vector's cosine is 0.

    Pair by pair and in float32, as SentEval has it (senteval/utils.py: cosine), to the last bit: a sentence
    with itself comes out near 1, not at 1, and the order that this puts among such pairs moves the published
    figure of STS12 by 1e-4.
    """
    found = [
        np.dot(one, two) / lengths
        if (lengths := np.linalg.norm(one) * np.linalg.norm(two))
        else np.float32(0)
        for one, two in zip(vectors[first], vectors[second])
    ]
    return np.array(found, np.float32)


def _correlations(similarity: np.ndarray, gold: np.ndarray) -> tuple[float, float]:
    """Return (Spearman, Pearson) x 100; NaN where one side is constant or there are fewer than two pairs."""
    if len(gold) < 2 or np.ptp(similarity) == 0 or np.ptp(gold) == 0:
        return float("nan"), float("nan")
    from scipy import stats

    spearman = stats.spearmanr(similarity, gold).statistic
    pearson = stats.pearsonr(similarity, gold).statistic
    return 100 * float(spearman), 100 * float(pearson)


def task_cosines(subsets: list[Pairs], vectors: np.ndarray, index: Mapping[str, int]) -> list[np.ndarray]:
    """Return each subset's cosines, float32[P]. vectors: float32[N, d]; index: sentence -> row."""
    found = []
    for pairs in subsets:
        first = np.fromiter((index[sentence] for sentence in pairs.first), np.int64, len(pairs))
        second = np.fromiter((index[sentence] for sentence in pairs.second), np.int64, len(pairs))
        found.append(cosines(vectors, first, second))
    return found


def score_task(subsets: list[Pairs], similarities: list[np.ndarray]) -> TaskScores:
    """Correlate each subset's similarities, float[P], and all of the task's at once, with the gold scores."""
    parts = {}
    for pairs, values in zip(subsets, similarities, strict=True):
        spearman, pearson = _correlations(values, pairs.gold)
        parts[pairs.name] = {"spearman": spearman, "pearson": pearson, "pairs": len(pairs)}
    whole = _correlations(np.concatenate(similarities), np.concatenate([pairs.gold for pairs in subsets]))
    sizes = [len(pairs) for pairs in subsets]
    scores: TaskScores = {}
    for how, weights in (("all", None), ("mean", None), ("wmean", sizes)):
        for kind, of_all in zip(("spearman", "pearson"), whole):
            mean = float(np.average([part[kind] for part in parts.values()], weights=weights))
            scores[f"{kind}_{how}"] = of_all if how == "all" else mean
    return {**scores, "pairs": sum(sizes), "subsets": parts}
