"""Run all of SentEval for one model; every distinct sentence of all tasks is encoded once."""

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import Tensor

from finetune.answers import Answers, examples_digest
from finetune.encoders.models import EmbeddingModel
from finetune.results import Evaluation, TaskResult
from finetune.senteval.classifier import PairFeatures
from finetune.senteval.protocol import SETTINGS, Setting, cross_validated, nested, relatedness, split
from finetune.senteval.tasks import PROBING, TASKS, TRANSFER, Split, TaskSplits, files, load, task_name
from pretrain.benchmarks.files import data_root
from pretrain.benchmarks.sts_tasks import OFFICIAL_PAIRS, SEVEN_TASKS, StsEvaluator
from pretrain.benchmarks.sts_tasks import TASKS as STS_TASKS
from pretrain.common.errors import UserError

HEADLINES = {"simcse": "spearman_all", "senteval": "pearson_mean", "clear": "pearson_mean"}
"""Protocol -> the headline of the similarity tasks: Spearman over all pairs of a task at once (SBERT, SimCSE,
VaSCL, AugCSE, DiffCSE, SDA, V-advCSE), or Pearson, mean over a task's subsets (SentEval's own paper).
Supervised relatedness stops by the same correlation."""
_RELATEDNESS = ("SICK-R-supervised", "STS-B-supervised")
PRINTED = {
    "simcse": (*SEVEN_TASKS, *TRANSFER),
    "senteval": (*SEVEN_TASKS, *_RELATEDNESS, *TRANSFER, "SST5", "SICK-E"),
    # CLEAR's SICK-R and STS-B are the supervised tasks: no other reading gives its RoBERTa baseline
    "clear": (*SEVEN_TASKS[:5], *_RELATEDNESS, *TRANSFER),
}
"""Protocol -> the tasks that its papers print."""
DEV_TASKS = ("STS-B-dev", "SICK-R-dev", *TRANSFER)


@dataclass(frozen=True)
class SentEvalData:
    """The data of some tasks, in their order: those of similarity in `sts`, the others in `examples`."""

    tasks: list[str]
    sts: StsEvaluator
    examples: dict[str, TaskSplits]


def read_tasks(tasks: Iterable[str], data: str = "") -> SentEvalData:
    """Read the files of tasks, of `pretrain.benchmarks.sts_tasks` and `finetune.senteval.tasks`."""
    read = SentEvalData(list(dict.fromkeys(tasks)), StsEvaluator(data or None), {})
    for task in read.tasks:
        if task in TASKS:
            read.examples[task] = load(task, data or None)
        else:
            read.sts.load(task)
    return read


def evaluate(
    model: EmbeddingModel,
    data: SentEvalData,
    protocol: str = "simcse",
    setting: str = "test",
    seed: int = 1111,
    remarks: Sequence[str] = (),
) -> Evaluation:
    """Evaluate on what `read_tasks` read; setting: "test", or "dev", whose accuracy is then the headline."""
    similarity = [task for task in data.tasks if task not in TASKS]
    sentences = dict.fromkeys(data.sts.sentences(similarity))
    for examples in data.examples.values():
        for part in examples.splits.values():
            sentences.update(dict.fromkeys(part.sentences()))
    started = time.monotonic()
    index = {sentence: number for number, sentence in enumerate(sentences)}
    vectors = _Vectors(model.encode(list(index)), index)
    print(f"{len(index):,} distinct sentences encoded in {time.monotonic() - started:.0f} s", file=sys.stderr)
    fits = SETTINGS[setting].with_classifier(seed=seed)
    on_dev = setting == "dev"
    result = Evaluation.of(
        "senteval-dev" if on_dev else "senteval", model, f"{protocol}, {setting} setting, seed {seed}"
    )
    lookup = lambda some: vectors.table[vectors.rows(some)]  # noqa: E731
    scores = data.sts.evaluate(lookup, similarity) if similarity else {}
    for number, task in enumerate(data.tasks, 1):
        started = time.monotonic()
        if task in TASKS:
            examples = data.examples[task]
            result.add_result(task, _supervised(task, examples, vectors, fits, HEADLINES[protocol], on_dev))
            for split_name, published in TASKS[task].data.rows.items():
                rows = len(data.examples[task].splits[split_name])
                result.expect_size(f"{task} {split_name}", "examples", rows, published)
        else:
            figures = {key: value for key, value in scores[task].items() if isinstance(value, float)}
            details = {"subsets": scores[task]["subsets"], "pairs": scores[task]["pairs"]}
            result.add(task, HEADLINES[protocol], figures, **details)
            result.expect_size(task, "pairs", scores[task]["pairs"], OFFICIAL_PAIRS[task])
        figure = f"{result.tasks[task].metric} {result.tasks[task].value:.2f}"
        said = f"[{number}/{len(data.tasks)}] {task}: {figure} ({time.monotonic() - started:.1f} s)"
        print(said, file=sys.stderr, flush=True)
    add_averages(result)
    result.notes += remarks
    return result


def add_averages(result: Evaluation) -> None:
    """Add the means that papers print, if all of their tasks are there."""
    for name, members in (("average of 7 STS", SEVEN_TASKS), ("average of 7 transfer", TRANSFER)):
        if all(task in result.tasks for task in members):
            mean = float(np.mean([round(result.tasks[task].value, 2) for task in members]))
            result.add(name, "mean", {"mean": mean})


@dataclass(frozen=True)
class _Vectors:
    """The vectors of distinct sentences, float32[V, d], and the row of each."""

    table: np.ndarray
    index: dict[str, int]

    def rows(self, sentences: Sequence[str]) -> np.ndarray:
        return np.fromiter((self.index[sentence] for sentence in sentences), np.int64, len(sentences))

    def features(self, parts: Sequence[Split], formed_late: bool) -> Tensor | PairFeatures:
        """Return float32[N, f] of splits end to end, vectors or [|u - v|, u * v]; formed_late: SNLI."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        rows = [self.rows([text for part in parts for text in part.first])]
        if parts[0].second is not None:
            rows.append(self.rows([text for part in parts for text in part.second or ()]))
        if formed_late:
            return PairFeatures(*(torch.from_numpy(one).to(device) for one in (self.table, *rows)))
        first, *second = (self.table[one] for one in rows)
        if second:
            first = np.concatenate([np.abs(first - second[0]), first * second[0]], 1)
        return torch.from_numpy(first).to(device)


def _supervised(
    name: str, examples: TaskSplits, vectors: _Vectors, setting: Setting, headline: str, on_dev: bool
) -> TaskResult:
    """Evaluate a supervised task by its scheme."""
    scheme, classes, figures = TASKS[name].scheme, examples.classes, dict[str, float]()
    parts = [examples.splits[part] for part in ("all", "train", "dev", "test") if part in examples.splits]
    labels, tested = np.concatenate([part.labels for part in parts]), parts[-1]
    sizes = tuple(map(len, parts))
    features: Any = vectors.features(parts, scheme == "snli")
    details = {}
    if scheme == "relatedness":
        metric = headline.split("_")[0]
        figures, predictions = relatedness(features, labels, sizes, setting.classifier.seed, metric)
        dev_metric = f"dev_{metric}"
    else:
        if scheme == "nested":
            accuracy = nested(features, labels, classes, setting)
        elif scheme == "cross_validated":
            accuracy = cross_validated(features, labels, sizes[0], classes, setting)
            if classes == 2:
                figures["f1"] = round(100 * float(f1_score(tested.labels, accuracy.predictions)), 2)
        elif scheme == "snli":  # no regularisation, at most 15 passes of one epoch each
            setting = setting.with_classifier(max_epoch=15, epoch_size=1)
            accuracy = split(features, labels, sizes, classes, setting, grid=(1e-9,))
        else:
            accuracy = split(features, labels, sizes, classes, setting)
        metric, dev_metric, predictions = "accuracy", "dev_accuracy", accuracy.predictions
        figures, details = {metric: accuracy.test, dev_metric: accuracy.dev, **figures}, {"l2": accuracy.l2}
    if on_dev:  # a figure of many fits, which no answers are kept of
        return TaskResult(dev_metric, figures[dev_metric], figures, details=details)
    data = examples_digest(tested.first, tested.second, tested.labels)
    answers = Answers.of(predictions, tested.labels, metric, data)
    return TaskResult(metric, figures[metric], figures, details=details, answers=answers)


def choose_tasks(
    words: Sequence[str], protocol: str, setting: str, data: str = ""
) -> tuple[list[str], list[str]]:
    """Return tasks of names and groups ("": the protocol's), remarks on absent ones; named ones raise."""
    groups = {
        "": DEV_TASKS if setting == "dev" else PRINTED[protocol],
        "all": (*STS_TASKS, *TASKS),
        "sts": SEVEN_TASKS,
        "transfer": TRANSFER,
        "probing": PROBING,
    }
    chosen, absent = list[str](), list[str]()
    root = data_root(data)
    available = set(StsEvaluator(root).available())
    available |= {task for task in TASKS if all(path.is_file() for path in files(task, root))}
    for word in words or [""]:
        if word in groups:
            for task in groups[word]:
                (chosen if task in available else absent).append(task)
        else:
            chosen.append(task_name(word, STS_TASKS))
    remarks = [f"{task} left out: its data is not there" for task in absent]
    if not chosen:
        raise UserError("no task is left: " + "; ".join(remarks or ["name some with --tasks"]))
    return list(dict.fromkeys(chosen)), remarks
