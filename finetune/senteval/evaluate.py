"""Run all of SentEval for one model; every distinct sentence of all tasks is encoded once."""

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import Tensor

from finetune.answers import Answers, examples_digest
from finetune.encoders.models import EmbeddingModel
from finetune.results import Evaluation, TaskResult
from finetune.senteval.classifier import PairFeatures
from finetune.senteval.protocol import SETTINGS, Setting, cross_validated, nested, split
from finetune.senteval.relatedness import relatedness
from finetune.senteval.tasks import PROBING, TASKS, TRANSFER, Examples, Split, check_name, load, missing
from pretrain.benchmarks.sts_scores import StsEvaluator
from pretrain.benchmarks.sts_tasks import OFFICIAL_PAIRS, SEVEN_TASKS
from pretrain.benchmarks.sts_tasks import TASKS as STS_TASKS
from pretrain.common.errors import UserError


@dataclass(frozen=True)
class Protocol:
    """Which number is the headline of the similarity tasks, and how supervised relatedness stops."""

    sts_headline: str
    early_stop: str
    tasks: tuple[str, ...]
    """What its papers print."""


PROTOCOLS = {
    # SBERT, SimCSE, VaSCL, AugCSE, DiffCSE, SDA, V-advCSE: Spearman over all pairs of a task at once
    "simcse": Protocol("spearman_all", "spearman", (*SEVEN_TASKS, *TRANSFER)),
    # SentEval's own paper: Pearson, mean over a task's subsets
    "senteval": Protocol(
        "pearson_mean",
        "pearson",
        (*SEVEN_TASKS, "SICK-R-supervised", "STS-B-supervised", *TRANSFER, "SST5", "SICK-E"),
    ),
    # CLEAR's SICK-R and STS-B are the supervised tasks: no other reading gives its RoBERTa baseline
    "clear": Protocol(
        "pearson_mean",
        "pearson",
        (*SEVEN_TASKS[:5], "SICK-R-supervised", "STS-B-supervised", *TRANSFER),
    ),
}
DEV_TASKS = ("STS-B-dev", "SICK-R-dev", *TRANSFER)


@dataclass(frozen=True)
class TaskData:
    """The data of some tasks, in their order: those of similarity in `sts`, the others in `examples`."""

    tasks: list[str]
    sts: StsEvaluator
    examples: dict[str, Examples]


def read_tasks(tasks: Iterable[str], data: str = "") -> TaskData:
    """Read the files of tasks of `pretrain.benchmarks.sts_tasks.TASKS` and `finetune.senteval.tasks.TASKS`.

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


def evaluate(
    model: EmbeddingModel,
    data: TaskData,
    protocol: str = "simcse",
    setting: str = "test",
    seed: int = 1111,
) -> Evaluation:
    """Evaluate `model` on similarity and supervised tasks.

    Args:
        data: what `read_tasks` read.
        protocol: one of PROTOCOLS. setting: "test" or "dev", of the supervised tasks; "dev" reports the
            cross-validation or dev accuracy as the headline.
        seed: of the classifiers (SentEval: 1111).

    Raises:
        UserError: vectors that are not finite.
    """
    similarity = [task for task in data.tasks if task not in TASKS]
    sentences = dict.fromkeys(data.sts.sentences(similarity))
    for examples in data.examples.values():
        for part in examples.splits.values():
            sentences.update(dict.fromkeys(part.sentences()))
    table = _VectorTable(model, list(sentences))
    supervised = _Supervised(table, SETTINGS[setting].with_classifier(seed=seed), protocol, setting == "dev")
    name = "senteval" if setting == "test" else "senteval-dev"
    result = Evaluation.of(name, model, f"{protocol}, {setting} setting, seed {seed}")
    scores = data.sts.evaluate(table.lookup, similarity) if similarity else {}
    for number, task in enumerate(data.tasks, 1):
        started = time.monotonic()
        if task in TASKS:
            result.tasks[task] = supervised.evaluate(task, data.examples[task])
            for split_name, published in TASKS[task].sizes.items():
                rows = len(data.examples[task].splits[split_name])
                result.expect_size(f"{task} {split_name}", "examples", rows, published)
        else:
            figures = {key: value for key, value in scores[task].items() if isinstance(value, float)}
            details = {"subsets": scores[task]["subsets"], "pairs": scores[task]["pairs"]}
            result.add(task, PROTOCOLS[protocol].sts_headline, figures, **details)
            result.expect_size(task, "pairs", scores[task]["pairs"], OFFICIAL_PAIRS[task])
        figure = f"{result.tasks[task].metric} {result.tasks[task].value:.2f}"
        said = f"[{number}/{len(data.tasks)}] {task}: {figure} ({time.monotonic() - started:.1f} s)"
        print(said, file=sys.stderr, flush=True)
    add_averages(result)
    return result


def add_averages(result: Evaluation) -> None:
    """Add the means that papers print, where all of their tasks are there."""
    for name, members in (("average of 7 STS", SEVEN_TASKS), ("average of 7 transfer", TRANSFER)):
        if all(task in result.tasks for task in members):
            mean = float(np.mean([round(result.tasks[task].value, 2) for task in members]))
            result.add(name, "mean", {"mean": mean})


class _VectorTable:
    """The vectors of a list of distinct sentences."""

    def __init__(self, model: EmbeddingModel, sentences: list[str]):
        started = time.monotonic()
        self.vectors = model.encode(sentences)
        said = f"{len(sentences):,} distinct sentences encoded in {time.monotonic() - started:.0f} s"
        print(said, file=sys.stderr, flush=True)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.index = {sentence: number for number, sentence in enumerate(sentences)}

    def lookup(self, sentences: Sequence[str]) -> np.ndarray:
        """Return the vectors of these sentences, float32[N, d]."""
        return self.vectors[self.rows(sentences)]

    def rows(self, sentences: Sequence[str]) -> np.ndarray:
        """Return the rows of these sentences' vectors, int64[N]."""
        return np.fromiter((self.index[sentence] for sentence in sentences), np.int64, len(sentences))

    def features(self, parts: Sequence[Split]) -> Tensor:
        """Return float32[N, f] of the splits end to end: vectors, or for pairs [|u - v|, u * v].

        On the device where classifiers run.
        """
        first = self.lookup([sentence for part in parts for sentence in part.first])
        if parts[0].second is not None:
            second = self.lookup([sentence for part in parts for sentence in part.second or ()])
            first = np.concatenate([np.abs(first - second), first * second], 1)
        return torch.from_numpy(first).to(self.device)

    def pairs(self, parts: Sequence[Split]) -> PairFeatures:
        """Return the same with InferSent's features, for a set whose features would not fit in memory."""
        first = self.rows([sentence for part in parts for sentence in part.first])
        second = self.rows([sentence for part in parts for sentence in part.second or ()])
        return PairFeatures(*(torch.from_numpy(one).to(self.device) for one in (self.vectors, first, second)))


@dataclass(frozen=True)
class _Supervised:
    """Evaluate supervised tasks, each by its scheme."""

    table: _VectorTable
    setting: Setting
    protocol: str
    on_dev: bool

    def evaluate(self, name: str, examples: Examples) -> TaskResult:
        scheme, setting, extra = TASKS[name].scheme, self.setting, dict[str, float]()
        parts = [examples.splits[part] for part in ("all", "train", "dev", "test") if part in examples.splits]
        labels, sizes = np.concatenate([part.labels for part in parts]), tuple(map(len, parts))
        features = self.table.pairs(parts) if scheme == "snli" else self.table.features(parts)
        if scheme == "relatedness":
            return self._relatedness(features, labels, sizes, parts[-1])
        if scheme == "nested":
            accuracy = nested(features, labels, examples.classes, setting)
        elif scheme == "cross_validated":
            cut, test_labels = sizes[0], labels[sizes[0] :]
            accuracy = cross_validated(
                features[:cut], labels[:cut], features[cut:], test_labels, examples.classes, setting
            )
            if examples.classes == 2:
                extra["f1"] = round(100 * float(f1_score(test_labels, accuracy.predictions)), 2)
        elif scheme == "snli":
            # no regularisation, at most 15 passes of one epoch each, InferSent's features
            setting = setting.with_classifier(max_epoch=15, epoch_size=1)
            accuracy = split(features, labels, sizes, examples.classes, setting, grid=(1e-9,))
        else:
            accuracy = split(features, labels, sizes, examples.classes, setting)
        figures = {"accuracy": accuracy.test, "dev_accuracy": accuracy.dev, **extra}
        headline = "dev_accuracy" if self.on_dev else "accuracy"
        answers = self._answers(accuracy.predictions, parts[-1], "accuracy")
        return TaskResult(headline, figures[headline], figures, details={"l2": accuracy.l2}, answers=answers)

    def _relatedness(
        self, features: Tensor, scores: np.ndarray, sizes: Sequence[int], tested: Split
    ) -> TaskResult:
        protocol = PROTOCOLS[self.protocol]
        found = relatedness(features, scores, sizes, self.setting.classifier.seed, protocol.early_stop)
        on_dev = f"dev_{protocol.early_stop}"
        figures = {"pearson": found.pearson, "spearman": found.spearman, "mse": found.mse, on_dev: found.dev}
        headline = on_dev if self.on_dev else protocol.sts_headline.split("_")[0]
        answers = self._answers(found.predictions, tested, headline)
        return TaskResult(headline, figures[headline], figures, answers=answers)

    def _answers(self, predictions: np.ndarray, tested: Split, metric: str) -> Answers | None:
        """Return the answers that a figure on test follows from; None for one on dev, which is of many."""
        if self.on_dev:
            return None
        data = examples_digest(tested.first, tested.second, tested.labels)
        return Answers.of(predictions, tested.labels, metric, data)


def choose_tasks(
    words: Sequence[str], protocol: str, setting: str, data: str = ""
) -> tuple[list[str], list[str]]:
    """Return (tasks to run, remarks on those left out) of names and groups.

    Groups are "" (what the protocol's papers print), all, sts, transfer and probing.

    A task named by the user must have its data (the error is `load`'s); those of a group that have none are
    left out with a note.

    Raises:
        UserError: an unknown name, or nothing left.
    """
    groups = {
        "": DEV_TASKS if setting == "dev" else PROTOCOLS[protocol].tasks,
        "all": (*STS_TASKS, *TASKS),
        "sts": SEVEN_TASKS,
        "transfer": TRANSFER,
        "probing": PROBING,
    }
    chosen, absent = list[str](), list[str]()
    available = set(StsEvaluator(data or None).available())
    for word in words or [""]:
        if word in groups:
            for task in groups[word]:
                there = not missing(task, data or None) if task in TASKS else task in available
                (chosen if there else absent).append(task)
        else:
            chosen.append(check_name(word, STS_TASKS))
    remarks = [f"{task} left out: its data is not there" for task in absent]
    if not chosen:
        raise UserError("no task is left: " + "; ".join(remarks or ["name some with --tasks"]))
    return list(dict.fromkeys(chosen)), remarks
