"""Read the pairs of the STS tasks, SentEval's files below the data folder, and score vectors on them."""

import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.benchmarks.distinct import EmbedFunction, require_directions, require_sound
from pretrain.benchmarks.files import DATA_SETS, data_root, known_name, lines, require, senteval_folder
from pretrain.common.errors import UserError
from pretrain.common.files import replace_durably

EmbedPoolings = Callable[[list[str]], Mapping[str, np.ndarray]]

SEVEN_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
DEV_TASKS = ("STS-B-dev", "SICK-R-dev")
TASKS = SEVEN_TASKS + DEV_TASKS
SICK_OF_MTEB = "SICK-R-MTEB"
"""MTEB's SICK-R, all pairs of the three files, where SentEval and the papers have those of test."""

_YEARS = {task: DATA_SETS[f"SentEval/{task}"] for task in SEVEN_TASKS[:5]}
# Pairs left in the official files once those without a gold score are dropped.
OFFICIAL_PAIRS = {task: data.rows["pairs"] for task, data in _YEARS.items()}
OFFICIAL_PAIRS |= {"STS-B": 1379, "SICK-R": 4927, "STS-B-dev": 1500, "SICK-R-dev": 500, SICK_OF_MTEB: 9927}

# STS13 goes without SMT, whose sentences were never free to distribute; every later paper leaves it out.
YEAR_SUBSETS = {
    task: tuple(Path(file).stem.removeprefix("STS.input.") for file in data.files[::2])
    for task, data in _YEARS.items()
}
_SICK = tuple(f"SICK/SICK_{part}.txt" for part in ("train", "trial", "test_annotated"))
_TABLES = {  # task: its files below SentEval's folder; with a header and in other columns, if SICK's
    "STS-B": ("STS/STSBenchmark/sts-test.csv",),
    "STS-B-dev": ("STS/STSBenchmark/sts-dev.csv",),
    "SICK-R": _SICK[2:],
    "SICK-R-dev": _SICK[1:2],
    SICK_OF_MTEB: _SICK,
}


@dataclass(frozen=True)
class Pairs:
    """One subset: N pairs of sentences, whitespace normalised, and their gold scores float64[N]."""

    name: str
    first: list[str]
    second: list[str]
    gold: np.ndarray

    def __len__(self) -> int:
        return len(self.first)


TaskScores = dict[str, Any]
"""Correlations x 100 of a task by KIND_HOW, as "spearman_all", the headline: Spearman's or Pearson's, over
all pairs at once, or the plain ("mean") or pair-weighted ("wmean") mean over subsets; "pairs", their number;
"subsets", name -> {"spearman", "pearson", "pairs"}. NaN if one side is constant."""
UNDEFINED = "all cosines (or predictions) of a set, or all its gold scores, are equal"
"""Why a correlation is NaN."""


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


class StsEvaluator:
    """Read the STS tasks below a data folder, in SentEval's own layout, and score functions on them.

    Args:
        data: folder holding `SentEval/STS` and `SentEval/SICK`, or `STS` and `SICK`. None means the folder
            named by the environment variable CLEAR_DATA; with neither, no task is available.
    """

    def __init__(self, data: str | Path | None = None) -> None:
        named = data if data is not None else os.environ.get("CLEAR_DATA")
        self.data = Path(named) if named else None
        self._loaded: dict[str, list[Pairs]] = {}

    def available(self) -> list[str]:
        """Return the tasks all of whose files are there, the seven first, then the dev sets; not MTEB's."""
        root = self.data
        return [task for task in TASKS if root and all(file.is_file() for file in files(task, root))]

    def load(self, task: str) -> list[Pairs]:
        """Return the subsets of a task, without the pairs that have no gold score."""
        known_name(task, (*TASKS, SICK_OF_MTEB), "STS task", plain=str)
        if task not in self._loaded:
            if self.data is None:
                raise UserError(
                    f"{task} needs --eval-data or CLEAR_DATA: a folder with SentEval/STS and SentEval/SICK"
                )
            root, read = data_root(self.data), _read_year if task in YEAR_SUBSETS else _read_tables
            subsets = read(task, require(files(task, root), root))
            require_scores(np.concatenate([pairs.gold for pairs in subsets]), f"{task} below {root}")
            self._loaded[task] = subsets
        return self._loaded[task]

    def choose(self, tasks: Iterable[str] | None) -> list[str]:
        """Return these tasks, whose data is then there and whole; all that are available when None."""
        chosen = list(tasks) if tasks is not None else self.available()
        if not chosen:
            where = f"under {self.data}" if self.data else "without --eval-data or CLEAR_DATA"
            raise UserError(f"no STS task {where}: name a folder with SentEval/STS and SentEval/SICK")
        for task in chosen:
            self.load(task)
        return chosen

    def sentences(self, tasks: Iterable[str]) -> list[str]:
        """Return the distinct sentences of these tasks, in the order in which they first occur."""
        parts = [part for task in tasks for part in self.load(task)]
        return list(dict.fromkeys(sentence for part in parts for sentence in (*part.first, *part.second)))

    def evaluate(self, embed: EmbedFunction, tasks: Iterable[str] | None = None) -> StsResults:
        """Score one embedding function.

        embed: distinct sentences, in any order, to vectors [N, d]; called once, with those of all the tasks.
        tasks: their names; all that are available when None.
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
            name = f"embedding ({pooling} pooling)" if pooling else "embedding"
            require_sound(vectors, sentences, name)
            require_directions(name, vectors)
            results[pooling] = StsResults()
            for task, subsets in loaded.items():
                similarities = []
                for one in subsets:
                    first, second = ([index[text] for text in side] for side in (one.first, one.second))
                    similarities.append(cosines(vectors, np.array(first), np.array(second)))
                results[pooling][task] = score_task(subsets, similarities)
                if pairs is not None:
                    pairs[f"{task}/gold"] = np.concatenate([one.gold for one in subsets]).astype(np.float32)
                    pairs[f"{task}/{pooling}"] = np.concatenate(similarities)
        return results


def files(task: str, root: Path) -> list[Path]:
    """Return the files of a task below the data folder, which may be absent."""
    if task in _YEARS:
        return _YEARS[task].paths(root)
    return [senteval_folder(root) / name for name in _TABLES[task]]


def _read_year(task: str, files: Sequence[Path]) -> list[Pairs]:
    subsets = []
    for name, input_file, gold_file in zip(YEAR_SUBSETS[task], files[0::2], files[1::2], strict=True):
        rows, golds = list(lines(input_file)), list(lines(gold_file))
        if len(rows) != len(golds):
            raise UserError(f"{input_file}: {len(rows)} pairs, {len(golds)} gold scores; fetch both again")
        # Columns after the second (STS16 names its sources there) are not part of the task.
        cells = [(*_columns(input_file, n, row, (0, 1)), golds[n]) for n, row in enumerate(rows)]
        subsets.append(_pairs(name, gold_file, cells))
    return subsets


def _read_tables(task: str, files: Sequence[Path]) -> list[Pairs]:
    """Read pairs, one per line, as one subset; SICK's files have a header."""
    parts = []
    for file in files:
        is_sick = file.name.startswith("SICK")
        columns = (1, 2, 3) if is_sick else (5, 6, 4)
        rows = list(enumerate(lines(file)))[is_sick:]
        parts.append(_pairs(task, file, [_columns(file, number, row, columns) for number, row in rows]))
    first = [text for part in parts for text in part.first]
    second = [text for part in parts for text in part.second]
    return [Pairs(task, first, second, np.concatenate([part.gold for part in parts]))]


def _columns(file: Path, number: int, row: str, columns: Sequence[int]) -> tuple[str, ...]:
    cells = row.split("\t")  # quotes are part of the text: the csv module would eat them, and rows with them
    if len(cells) <= max(columns):
        counts = f"{len(cells)} tab-separated columns, need {max(columns) + 1}"
        raise UserError(f"{file}, line {number + 1}: {counts}; the file is damaged or not SentEval's")
    return tuple(cells[column] for column in columns)


def _pairs(name: str, file: Path, cells: Sequence[tuple[str, ...]]) -> Pairs:
    first, second, gold = [], [], []
    for number, (one, two, score) in enumerate(cells):
        if not score.strip():  # pairs that the annotators left unscored
            continue
        try:
            gold.append(float(score))
        except ValueError:
            gold.append(math.nan)
        if not math.isfinite(gold[-1]):
            raise UserError(f"{file}, pair {number + 1}: the score {score!r} is not a number")
        first.append(" ".join(one.split()))
        second.append(" ".join(two.split()))
    if not gold:
        raise UserError(f"{file}: no pair has a score")
    return Pairs(name, first, second, np.asarray(gold))


# -- scores ------------------------------------------------------------


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


def correlations(similarity: np.ndarray, gold: np.ndarray) -> tuple[float, float]:
    """Return (Spearman, Pearson) x 100; NaN if one side is constant or there are fewer than two pairs."""
    if len(gold) < 2 or np.ptp(similarity) == 0 or np.ptp(gold) == 0:
        return float("nan"), float("nan")
    from scipy import stats

    spearman = stats.spearmanr(similarity, gold).statistic
    pearson = stats.pearsonr(similarity, gold).statistic
    return 100 * float(spearman), 100 * float(pearson)


def require_scores(gold: np.ndarray, place: str) -> None:
    """Raise UserError unless a correlation with gold scores, float[P], says something; place: the set's."""
    scores = len(np.unique(gold))
    if len(gold) < 3 or scores < 2:
        raise UserError(
            f"{place}: {len(gold):,} pairs of {scores:,} different scores; a correlation needs three pairs, "
            "and two different scores"
        )


def score_task(subsets: list[Pairs], similarities: list[np.ndarray]) -> TaskScores:
    """Correlate each subset's similarities, float[P], and all of the task's at once, with the gold scores."""
    parts = {}
    for pairs, values in zip(subsets, similarities, strict=True):
        spearman, pearson = correlations(values, pairs.gold)
        parts[pairs.name] = {"spearman": spearman, "pearson": pearson, "pairs": len(pairs)}
    whole = correlations(np.concatenate(similarities), np.concatenate([pairs.gold for pairs in subsets]))
    sizes = [len(pairs) for pairs in subsets]
    scores: TaskScores = {}
    for how, weights in (("all", None), ("mean", None), ("wmean", sizes)):
        for kind, of_all in zip(("spearman", "pearson"), whole):
            mean = float(np.average([part[kind] for part in parts.values()], weights=weights))
            scores[f"{kind}_{how}"] = of_all if how == "all" else mean
    return {**scores, "pairs": sum(sizes), "subsets": parts}
