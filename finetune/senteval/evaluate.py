"""Run all of SentEval for one model; every distinct sentence of all tasks is encoded once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import Tensor

from finetune.answers import Answers, examples_digest
from finetune.encoders.models import EmbeddingModel
from finetune.results import Evaluation, TaskResult
from finetune.senteval.classifier import PairFeatures
from finetune.senteval.protocol import SETTINGS, Accuracy, Setting, cross_validated, nested, split
from finetune.senteval.relatedness import relatedness
from finetune.senteval.tasks import (
    PROBING,
    TASKS,
    TRANSFER,
    Examples,
    Split,
    check_name,
    load,
    missing,
)
from finetune.sts.scores import StsEvaluator, TaskScores
from finetune.sts.tasks import OFFICIAL_PAIRS, SEVEN_TASKS
from finetune.sts.tasks import TASKS as STS_TASKS
from pretrain.common.errors import UserError


@dataclass(frozen=True)
class Protocol:
    """Which number is the headline of the similarity tasks, and how supervised relatedness stops."""

    sts_headline: str
    early_stop: str
    meaning: str


PROTOCOLS = {
    "simcse": Protocol(
        "spearman_all",
        "spearman",
        "cosine, Spearman over all pairs of a task at once: SBERT, SimCSE, VaSCL, "
        "AugCSE, DiffCSE, SDA, V-advCSE",
    ),
    "senteval": Protocol(
        "pearson_mean", "pearson", "cosine, Pearson, mean over a task's subsets: SentEval's own paper"
    ),
    "clear": Protocol(
        "pearson_mean",
        "pearson",
        "as senteval; CLEAR's SICK-R and STS-B columns are the supervised tasks "
        "SICK-R-supervised and STS-B-supervised (no other reading gives its RoBERTa baseline)",
    ),
}
DEFAULT_TASKS = {
    "simcse": (*SEVEN_TASKS, *TRANSFER),
    "senteval": (*SEVEN_TASKS, "SICK-R-supervised", "STS-B-supervised", *TRANSFER, "SST5", "SICK-E"),
    "clear": (*SEVEN_TASKS[:5], "SICK-R-supervised", "STS-B-supervised", *TRANSFER),
}
DEV_TASKS = ("STS-B-dev", "SICK-R-dev", *TRANSFER)
Report = Callable[[str], None]


def evaluate(
    model: EmbeddingModel,
    data: TaskData,
    protocol: str = "simcse",
    setting: str = "test",
    seed: int = 1111,
    hidden: int = 0,
    report: Report = lambda line: print(line, file=sys.stderr, flush=True),
) -> Evaluation:
    """Evaluate `model` on similarity and supervised tasks.

    Args:
        data: what `read_tasks` read.
        protocol: one of PROTOCOLS. setting: "test" or "dev", of the supervised tasks; "dev" reports the
            cross-validation or dev accuracy as the headline.
        seed, hidden: of the classifiers (SentEval: 1111, 0).
        report: takes a line of progress per task.

    Raises:
        UserError: vectors that are not finite.
    """
    tasks, sts, examples = data.tasks, data.sts, data.examples
    similarity = [task for task in tasks if task not in TASKS]
    sentences = dict.fromkeys(sts.sentences(similarity))
    for loaded in examples.values():
        for part in loaded.splits.values():
            sentences.update(dict.fromkeys(part.sentences()))
    start = time.monotonic()
    table = _VectorTable(model, list(sentences))
    report(f"{len(sentences):,} distinct sentences encoded in {time.monotonic() - start:.0f} s")
    chosen = SETTINGS[setting].with_classifier(seed=seed, hidden=hidden)
    name = "senteval" if setting == "test" else "senteval-dev"
    result = Evaluation.of(
        name, model, f"{protocol}, {setting} setting, seed {seed}" + (f", hidden {hidden}" if hidden else "")
    )
    if hidden:
        result.incomplete(
            f"classifiers with a hidden layer of {hidden}, where the papers' are logistic regressions"
        )
    scores = sts.evaluate(table.lookup, similarity) if similarity else {}
    for number, task in enumerate(tasks, 1):
        begun = time.monotonic()
        if task in TASKS:
            result.tasks[task] = _supervised(
                task, examples[task], table, chosen, PROTOCOLS[protocol], setting
            )
            for split_name, published in TASKS[task].sizes.items():
                rows = len(examples[task].splits[split_name])
                result.expect_size(f"{task} {split_name}", "examples", rows, published)
        else:
            result.tasks[task] = _similarity(scores[task], PROTOCOLS[protocol].sts_headline)
            result.expect_size(task, "pairs", scores[task]["pairs"], OFFICIAL_PAIRS[task])
        done = result.tasks[task]
        report(
            f"[{number}/{len(tasks)}] {task}: {done.metric} {done.value:.2f} "
            f"({time.monotonic() - begun:.1f} s)"
        )
    add_averages(result)
    return result


def add_averages(result: Evaluation) -> None:
    """Add the means that papers print, where all of their tasks are there."""
    for name, members in (("average of 7 STS", SEVEN_TASKS), ("average of 7 transfer", TRANSFER)):
        if all(task in result.tasks for task in members):
            mean = float(np.mean([round(result.tasks[task].value, 2) for task in members]))
            result.add(name, "mean", {"mean": mean})


@dataclass(frozen=True)
class TaskData:
    """The data of some tasks, in their order: those of similarity in `sts`, the others in `examples`."""

    tasks: list[str]
    sts: StsEvaluator
    examples: dict[str, Examples]


def read_tasks(tasks: Iterable[str], data: str = "") -> TaskData:
    """Read the files of tasks of `finetune.sts.tasks.TASKS` and `finetune.senteval.tasks.TASKS`.

    Raises:
        UserError: one is missing or damaged.
    """
    read = TaskData(list(dict.fromkeys(tasks)), StsEvaluator(data or None), {})
    for task in read.tasks:
        if task in TASKS:
            read.examples[task] = load(task, data or None)
        else:
            read.sts.load(task)
    return read


class _VectorTable:
    """The vectors of a list of distinct sentences."""

    def __init__(self, model: EmbeddingModel, sentences: list[str]):
        self.vectors = model.encode(sentences)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.index = {sentence: number for number, sentence in enumerate(sentences)}

    def lookup(self, sentences: list[str]) -> np.ndarray:
        """Return the vectors of these sentences, float32[N, d]."""
        return self.vectors[self.rows(sentences)]

    def rows(self, sentences: list[str]) -> np.ndarray:
        """Return the rows of these sentences' vectors, int64[N]."""
        return np.fromiter((self.index[sentence] for sentence in sentences), np.int64, len(sentences))

    def features(self, examples: Examples, splits: Iterable[str]) -> tuple[Tensor, np.ndarray, list[int]]:
        """Return (float32[N, f], labels [N], sizes) of the splits end to end.

        On the device where classifiers run: vectors, or for pairs [|u - v|, u * v].
        """
        parts = [examples.splits[name] for name in splits]
        first = self.lookup([sentence for part in parts for sentence in part.first])
        if parts[0].second is not None:
            second = self.lookup([sentence for part in parts for sentence in part.second or ()])
            first = np.concatenate([np.abs(first - second), first * second], 1)
        return torch.from_numpy(first).to(self.device), *_labels(parts)

    def pairs(self, examples: Examples, splits: Iterable[str]) -> tuple[PairFeatures, np.ndarray, list[int]]:
        """Return the same with InferSent's features, for a set whose features would not fit in memory."""
        parts = [examples.splits[name] for name in splits]
        first = self.rows([sentence for part in parts for sentence in part.first])
        second = self.rows([sentence for part in parts for sentence in part.second or ()])
        return PairFeatures(
            *(torch.from_numpy(one).to(self.device) for one in (self.vectors, first, second))
        ), *_labels(parts)


def _labels(parts: Sequence[Split]) -> tuple[np.ndarray, list[int]]:
    return np.concatenate([part.labels for part in parts]), [len(part) for part in parts]


def _similarity(scores: TaskScores, headline: str) -> TaskResult:
    figures = {key: value for key, value in scores.items() if isinstance(value, float)}
    details = {"subsets": scores["subsets"], "pairs": scores["pairs"]}
    return TaskResult(headline, figures[headline], figures, details=details)


def _supervised(
    name: str, examples: Examples, table: _VectorTable, setting: Setting, protocol: Protocol, which: str
) -> TaskResult:
    scheme = TASKS[name].scheme
    extra: dict[str, float] = {}
    if scheme == "relatedness":
        features, scores, (train, dev, test) = table.features(examples, ("train", "dev", "test"))
        found = relatedness(
            features, scores, (train, dev, test), setting.classifier.seed, protocol.early_stop
        )
        on_dev = f"dev_{protocol.early_stop}"
        figures = {"pearson": found.pearson, "spearman": found.spearman, "mse": found.mse, on_dev: found.dev}
        headline = on_dev if which == "dev" else protocol.sts_headline.split("_")[0]
        answers = _answers(found.predictions, examples.splits["test"], headline, which)
        return TaskResult(headline, figures[headline], figures, answers=answers)
    if scheme == "nested":
        features, labels, _ = table.features(examples, ("all",))
        accuracy = nested(features, labels, examples.classes, setting)
    elif scheme == "cross_validated":
        features, labels, sizes = table.features(examples, ("train", "test"))
        cut = sizes[0]
        accuracy = cross_validated(
            features[:cut], labels[:cut], features[cut:], labels[cut:], examples.classes, setting
        )
        if examples.classes == 2:
            extra["f1"] = round(100 * float(f1_score(labels[cut:], accuracy.predictions)), 2)
    else:
        # no regularisation, at most 15 passes of one epoch each, InferSent's features
        snli = scheme == "snli"
        if snli:
            setting = setting.with_classifier(max_epoch=15, epoch_size=1)
        if name == "WordContent":
            setting = setting.with_classifier(hidden=0)  # a thousand classes: SentEval's exception
        features, labels, (train, dev, test) = (table.pairs if snli else table.features)(
            examples, ("train", "dev", "test")
        )
        options = {"grid": (1e-9,)} if snli else {}
        accuracy = split(features, labels, (train, dev, test), examples.classes, setting, **options)
    tested = examples.splits["all" if scheme == "nested" else "test"]
    return _accuracy_result(accuracy, extra, which, _answers(accuracy.predictions, tested, "accuracy", which))


def _accuracy_result(
    accuracy: Accuracy, extra: dict[str, float], which: str, answers: Answers | None
) -> TaskResult:
    figures = {"accuracy": accuracy.test, "dev_accuracy": accuracy.dev, **extra}
    headline = "accuracy" if which == "test" else "dev_accuracy"
    return TaskResult(headline, figures[headline], figures, details={"l2": accuracy.l2}, answers=answers)


def _answers(predictions: np.ndarray, tested: Split, metric: str, which: str) -> Answers | None:
    """Return the answers that a figure on test follows from; None for one on dev, which is of many fits."""
    if which == "dev":
        return None
    data = examples_digest(tested.first, tested.second, tested.labels)
    return Answers.of(predictions, tested.labels, metric, data)


def choose_tasks(words: str, protocol: str, setting: str, data: str = "") -> tuple[list[str], list[str]]:
    """Return (tasks to run, remarks on those left out) of a comma-separated list.

    Or of "", "all", "sts", "transfer", "probing".

    A task named by the user must have its data (the error is `load`'s); those of a group that have none are
    left out with a note.

    Raises:
        UserError: an unknown name, or nothing left.
    """
    groups = {
        "": DEV_TASKS if setting == "dev" else DEFAULT_TASKS[protocol],
        "all": (*STS_TASKS, *TASKS),
        "sts": SEVEN_TASKS,
        "transfer": TRANSFER,
        "probing": PROBING,
    }
    chosen, remarks = [], []
    available = set(StsEvaluator(data or None).available())
    for word in [word.strip() for word in words.split(",") if word.strip()] or [""]:
        if word in groups:
            for task in groups[word]:
                there = not missing(task, data or None) if task in TASKS else task in available
                if there:
                    chosen.append(task)
                else:
                    remarks.append(f"{task} left out: its data is not there")
        else:
            chosen.append(check_name(word, STS_TASKS))
    if not chosen:
        raise UserError("no task is left: " + "; ".join(remarks or ["name some with --tasks"]))
    return list(dict.fromkeys(chosen)), remarks
