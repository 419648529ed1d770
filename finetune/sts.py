"""Semantic textual similarity: how well cosines between sentence vectors rank pairs as people do.

The protocol is SentEval's, as the SimCSE family reports it: no regressor, cosine similarity, and Spearman's
correlation over all pairs of a task at once ("all"). SentEval's other aggregations, the unweighted ("mean")
and pair-weighted ("wmean") mean over a task's subsets, and Pearson's correlation are computed beside it,
since papers differ in which they print and the difference reaches ten points (STS13 most).

    python -m finetune.sts MODEL --pooling cls,mean --eval-data DATA

Scores go to RUN/report/sts-POOLING.json (results/NAME for other models), where `python -m finetune.report`
finds them. `finetune.senteval` has the same scores among its own; this command compares poolings of one
encoder.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

import numpy as np

from finetune.encoders.models import EmbeddingModel, open_model, require_finite
from finetune.files import known_name, lines, senteval_folder
from finetune.flags import EvalData, Model, Out
from finetune.results import Evaluation, TaskResult, folder_for, write
from finetune.sets import SENTEVAL, DataSet, Part
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import replace_durably, require_writable, to_json

SEVEN_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
DEV_TASKS = ("STS-B-dev", "SICK-R-dev")
TASKS = SEVEN_TASKS + DEV_TASKS

# Pairs left in the official files once those without a gold score are dropped.
OFFICIAL_PAIRS = {
    "STS12": 3108,
    "STS13": 1500,
    "STS14": 3750,
    "STS15": 3000,
    "STS16": 1186,
    "STS-B": 1379,
    "SICK-R": 4927,
    "STS-B-dev": 1500,
    "SICK-R-dev": 500,
}

# STS13 goes without SMT, whose sentences were never free to distribute; every later paper leaves it out.
YEAR_SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
_TABLES = {  # task: (path from the data folder, has a header, columns of sentence 1, sentence 2, score)
    "STS-B": ("STS/STSBenchmark/sts-test.csv", False, (5, 6, 4)),
    "STS-B-dev": ("STS/STSBenchmark/sts-dev.csv", False, (5, 6, 4)),
    "SICK-R": ("SICK/SICK_test_annotated.txt", True, (1, 2, 3)),
    "SICK-R-dev": ("SICK/SICK_trial.txt", True, (1, 2, 3)),
}

Embed = Callable[[list[str]], np.ndarray]
EmbedPoolings = Callable[[list[str]], Mapping[str, np.ndarray]]


class SubsetScores(TypedDict):
    """Correlations x 100 over one subset; NaN where all similarities (or all golds) are equal."""

    spearman: float
    pearson: float
    pairs: int


class TaskScores(TypedDict):
    """Correlations x 100 of one task; `spearman_all` is the headline. NaN where one is undefined."""

    spearman_all: float
    pearson_all: float
    spearman_mean: float
    pearson_mean: float
    spearman_wmean: float
    pearson_wmean: float
    pairs: int
    subsets: dict[str, SubsetScores]


class StsResults(dict[str, TaskScores]):
    """Task name to its scores, in the order asked for."""

    @property
    def average(self) -> float | None:
        """Mean of the seven headlines, rounded to two decimals first as papers do; None if one is absent."""
        if any(task not in self for task in SEVEN_TASKS):
            return None
        return float(np.mean([round(self[task]["spearman_all"], 2) for task in SEVEN_TASKS]))


@dataclass(frozen=True)
class Pairs:
    """One subset: N pairs of sentences, whitespace normalised, and their gold scores float64[N]."""

    name: str
    first: list[str]
    second: list[str]
    gold: np.ndarray

    def __len__(self) -> int:
        return len(self.first)


class StsEvaluator:
    """The STS tasks found under a data folder, in SentEval's own layout.

    Args:
        data: folder holding `SentEval/STS` and `SentEval/SICK`, or `STS` and `SICK`. None means the folder
            named by the environment variable CLEAR_DATA; with neither, no task is available.
    """

    def __init__(self, data: str | Path | None = None) -> None:
        named = data if data is not None else os.environ.get("CLEAR_DATA")
        self.data = Path(named) if named else None
        self._loaded: dict[str, list[Pairs]] = {}

    def available(self) -> list[str]:
        """Tasks all of whose files are there, the seven first, then the dev sets."""
        return [task for task in TASKS if self.data is not None and not self._missing(task)]

    def load(self, task: str) -> list[Pairs]:
        """The subsets of a task, without the pairs that have no gold score.

        Raises:
            UserError: unknown task (with the nearest name), a file missing, a line that is no pair, a score
                that is not a number, or golds and pairs that differ in number.
        """
        known_name(task, TASKS, "STS task", plain=str)
        if task not in self._loaded:
            missing = self._missing(task)
            if missing:
                where = (
                    f"{missing[0]} is not there" if self.data else "--eval-data and CLEAR_DATA name no folder"
                )
                raise UserError(
                    f"{task}: {where}; the data folder must hold SentEval's downstream files as SentEval/STS "
                    "and SentEval/SICK (SentEval's get_transfer_data.bash makes them)"
                )
            self._loaded[task] = self._read_year(task) if task in YEAR_SUBSETS else [self._read_table(task)]
        return self._loaded[task]

    def evaluate(self, embed: Embed, tasks: Iterable[str] | None = None) -> StsResults:
        """Score one embedding function.

        Args:
            embed: distinct sentences, in any order, to vectors [N, d]. Called once, with every distinct
                sentence of all the tasks, so that no sentence is encoded twice.
            tasks: task names; all that are available when None.

        Raises:
            UserError: no task available, a task's data damaged or absent, vectors of the wrong shape, or a
                vector that is not finite (the sentence is named).
        """
        return self.evaluate_poolings(lambda sentences: {"": embed(sentences)}, tasks)[""]

    def evaluate_poolings(
        self, embed: EmbedPoolings, tasks: Iterable[str] | None = None
    ) -> dict[str, StsResults]:
        """As `evaluate`, for several vectors per sentence computed in one pass: pooling name to results."""
        loaded = {task: self.load(task) for task in self.choose(tasks)}
        sentences = self.sentences(loaded)
        index = {sentence: number for number, sentence in enumerate(sentences)}
        results = {}
        for pooling, vectors in embed(sentences).items():
            checked = checked_vectors(vectors, sentences, pooling)
            scores = {task: score_task(subsets, checked, index) for task, subsets in loaded.items()}
            results[pooling] = StsResults(scores)
        return results

    def choose(self, tasks: Iterable[str] | None) -> list[str]:
        """These tasks, whose data is then there and whole; all that are available when None.

        Raises:
            UserError: as `load`, or no task at all.
        """
        chosen = list(tasks) if tasks is not None else self.available()
        if not chosen:
            raise UserError(
                "no STS task found under "
                f"{self.data or 'nothing (neither --eval-data nor CLEAR_DATA is given)'}; "
                "the data folder must hold SentEval/STS and SentEval/SICK"
            )
        for task in chosen:
            self.load(task)
        return chosen

    def sentences(self, tasks: Iterable[str]) -> list[str]:
        """The distinct sentences of these tasks, in the order in which they first occur."""
        return distinct_sentences(pairs for task in tasks for pairs in self.load(task))

    def _root(self) -> Path:
        """The folder that holds `STS` and `SICK`."""
        assert self.data is not None
        return senteval_folder(self.data)

    def _files(self, task: str) -> list[Path]:
        if task in _TABLES:
            return [self._root() / _TABLES[task][0]]
        folder = self._root() / "STS" / f"{task}-en-test"
        return [folder / f"STS.{kind}.{name}.txt" for name in YEAR_SUBSETS[task] for kind in ("input", "gs")]

    def _missing(self, task: str) -> list[Path]:
        if self.data is None:
            return [Path(task)]
        return [file for file in self._files(task) if not file.is_file()]

    def _read_year(self, task: str) -> list[Pairs]:
        files = self._files(task)
        subsets = []
        for name, input_file, gold_file in zip(YEAR_SUBSETS[task], files[0::2], files[1::2], strict=True):
            rows, golds = _lines(input_file), _lines(gold_file)
            if len(rows) != len(golds):
                raise UserError(
                    f"{input_file} has {len(rows)} pairs but {gold_file.name} {len(golds)} scores; one of "
                    "them is damaged, fetch both again"
                )
            # Columns after the second (STS16 names its sources there) are not part of the task.
            cells = [(*_columns(input_file, n, row, (0, 1)), golds[n]) for n, row in enumerate(rows)]
            subsets.append(_pairs(name, gold_file, cells))
        return subsets

    def _read_table(self, task: str) -> Pairs:
        file = self._files(task)[0]
        _, header, columns = _TABLES[task]
        rows = _lines(file)
        cells = [_columns(file, n, row, columns) for n, row in enumerate(rows) if not (header and n == 0)]
        return _pairs(task, file, cells)


def _data_set(task: str) -> DataSet:
    """Return a year's set; pairs without a gold score do not count."""
    files = tuple(
        f"SentEval/STS/{task}-en-test/STS.{kind}.{subset}.txt"
        for subset in YEAR_SUBSETS[task]
        for kind in ("input", "gs")
    )

    def count(root: Path) -> int:
        return sum(len(pairs) for pairs in StsEvaluator(root).load(task))

    return DataSet(f"SentEval/{task}", {"pairs": Part(files, OFFICIAL_PAIRS[task], count)}, SENTEVAL)


DATA_SETS = tuple(map(_data_set, YEAR_SUBSETS))


def _lines(file: Path) -> list[str]:
    # Not str.splitlines: it also cuts at U+0085 and U+2028, inside a sentence, and shifts every later gold.
    return list(lines(file))


def _columns(file: Path, number: int, row: str, columns: Sequence[int]) -> tuple[str, ...]:
    cells = row.split("\t")  # quotes are part of the text: the csv module would eat them, and rows with them
    if len(cells) <= max(columns):
        raise UserError(
            f"{file}, line {number + 1}: {len(cells)} tab-separated columns, need {max(columns) + 1}; the "
            "file is damaged or "
            "not SentEval's"
        )
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


def distinct_sentences(parts: Iterable[Pairs]) -> list[str]:
    """The distinct sentences of these pairs, in the order in which they first occur."""
    return list(dict.fromkeys(sentence for part in parts for sentence in (*part.first, *part.second)))


def checked_vectors(vectors: np.ndarray, sentences: list[str], pooling: str) -> np.ndarray:
    """float32[N, d], one finite vector for each sentence.

    Raises:
        UserError: another shape, or a vector that is not finite.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    label = f" ({pooling} pooling)" if pooling else ""
    if vectors.ndim != 2 or len(vectors) != len(sentences):
        raise UserError(f"embedding{label}: expected {len(sentences)} vectors, got the shape {vectors.shape}")
    require_finite(vectors, sentences, f"embedding{label}")
    return vectors


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
    """(Spearman, Pearson) x 100; NaN where one side is constant or there are fewer than two pairs."""
    if len(gold) < 2 or np.ptp(similarity) == 0 or np.ptp(gold) == 0:
        return float("nan"), float("nan")
    from scipy import stats

    spearman = stats.spearmanr(similarity, gold).statistic
    pearson = stats.pearsonr(similarity, gold).statistic
    return 100 * float(spearman), 100 * float(pearson)


def score_task(subsets: list[Pairs], vectors: np.ndarray, index: Mapping[str, int]) -> TaskScores:
    """Correlations of cosines with the gold scores. vectors: float32[N, d]; index: sentence -> row."""
    similarities, scores = [], {}
    for pairs in subsets:
        first = np.fromiter((index[sentence] for sentence in pairs.first), np.int64, len(pairs))
        second = np.fromiter((index[sentence] for sentence in pairs.second), np.int64, len(pairs))
        similarities.append(cosines(vectors, first, second))
        spearman, pearson = _correlations(similarities[-1], pairs.gold)
        scores[pairs.name] = SubsetScores(spearman=spearman, pearson=pearson, pairs=len(pairs))
    spearman, pearson = _correlations(np.concatenate(similarities), np.concatenate([p.gold for p in subsets]))
    each_spearman = [score["spearman"] for score in scores.values()]
    each_pearson = [score["pearson"] for score in scores.values()]
    weights = [score["pairs"] for score in scores.values()]
    return TaskScores(
        spearman_all=spearman,
        pearson_all=pearson,
        spearman_mean=float(np.mean(each_spearman)),
        pearson_mean=float(np.mean(each_pearson)),
        spearman_wmean=float(np.average(each_spearman, weights=weights)),
        pearson_wmean=float(np.average(each_pearson, weights=weights)),
        pairs=sum(weights),
        subsets=scores,
    )


def headline_table(results: Mapping[str, StsResults]) -> str:
    """Spearman x 100 over all pairs: a line per pooling, a column per task, the average of the seven last."""
    tasks = list(next(iter(results.values())))
    width = max(len(pooling) for pooling in (*results, "pooling"))
    lines = ["pooling".ljust(width) + "".join(f"{task:>11}" for task in tasks) + f"{'average':>9}"]
    for pooling, scores in results.items():
        average = f"{scores.average:9.2f}" if scores.average is not None else f"{'-':>9}"
        figures = "".join(f"{scores[task]['spearman_all']:11.2f}" for task in tasks)
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
    """Every aggregation of every task, and every subset: the figures a paper may have printed instead."""
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


def evaluation_of(model: EmbeddingModel, pooling: str, scores: StsResults) -> Evaluation:
    """The scores of one pooling as the report reads them; Spearman over all pairs is the headline."""
    evaluated = replace(model, pooling=pooling)
    evaluation = Evaluation.of("sts", evaluated, "cosine, Spearman over all pairs of a task at once")
    for task, score in scores.items():
        plain = {key: float(value) for key, value in score.items() if isinstance(value, float)}
        evaluation.tasks[task] = TaskResult(
            "spearman_all", plain["spearman_all"], plain, details={"subsets": score["subsets"]}
        )
        if score["pairs"] != OFFICIAL_PAIRS[task]:
            evaluation.incomplete(
                f"{task} has {score['pairs']} pairs here, {OFFICIAL_PAIRS[task]} as published"
            )
    return evaluation


POOLINGS = ("cls", "mean")
"""The poolings evaluated where none is named and the model does not bring its own."""


def main(
    model: Model,
    *,
    tasks: cli.Names = (),
    pooling: str = "",
    eval_data: EvalData = "",
    detail: bool = False,
    token_budget: cli.Count = 16384,
    out: Out = "",
    json_file: str = "",
) -> None:
    """Print the STS scores of an encoder (Spearman x 100 over all pairs of a task, cosine, no regressor).

    Args:
        tasks: task names by commas; without it, all that the data folder holds.
        pooling: poolings by commas, or "all": cls, mean, first-last, embedding-last, last-two; without it,
            cls and mean. Alone, "pooler": cls through the checkpoint's own pooler. Functions and
            sentence-transformers models bring their own.
        detail: also print every aggregation and every subset.
        token_budget: most tokens in one forward pass; halve it when memory runs out.
        out: folder for results, a file for each pooling; without it, RUN/report or results/MODEL.
        json_file: write all scores into this one file instead.
    """
    from finetune.encoders.embed import parse_poolings

    if json_file:
        require_writable(Path(json_file).parent, "--json-file")
        if Path(json_file).is_dir():
            raise UserError(f"--json-file {json_file}: a folder; name a file in it")
    evaluator = StsEvaluator(eval_data or None)
    poolings = parse_poolings(pooling) if pooling else []
    started = time.monotonic()
    # Before the model: a mistyped name should not cost the loading.
    chosen = evaluator.choose(tasks or None)
    opened = open_model(model, poolings[0] if poolings else "", token_budget, quiet=len(poolings) != 1)
    if opened.head is not None and opened.encode_poolings is not None and len(poolings) != 1:
        print(
            f"note: {opened.name} keeps a head: {opened.trained_pooling} pooling goes through it, "
            "others without it",
            file=sys.stderr,
        )
    if (several := opened.encode_poolings) is None:
        results = evaluator.evaluate_poolings(
            lambda sentences: {opened.pooling: opened.encode(sentences)}, chosen
        )
    else:
        results = evaluator.evaluate_poolings(
            lambda sentences: several(sentences, poolings or POOLINGS), chosen
        )
    print(headline_table(results))
    if detail:
        for name, scores in results.items():
            label = f"{name} pooling" if several else name
            print(f"\n{label}: Spearman (rho) and Pearson (r) x 100\n{detail_table(scores)}")
    if json_file:
        Path(json_file).parent.mkdir(parents=True, exist_ok=True)
        replace_durably(Path(json_file), to_json({"model": model, "results": results}))
        return
    seconds = time.monotonic() - started
    for name, scores in results.items():
        evaluation = replace(evaluation_of(opened, name, scores), seconds=seconds / len(results))
        print(f"all figures: {write(evaluation, folder_for(opened, out))}")


if __name__ == "__main__":
    cli.run(main)
