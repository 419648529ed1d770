"""Estimate the time of evaluations that train the weights: GLUE and ANLI.

A few steps of the model itself are timed, at two lengths. A step costs a part that does not depend on its
tokens (the optimizer, the calls of kernels) and a part for each token. How many steps and tokens there are
follows from the data that is there.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from augment.core.ragged import Ragged, offsets_of
from finetune import anli
from finetune.encoders.source import ModelSource
from finetune.evaluate.costs import START_SECONDS
from finetune.evaluate.suites import Unit
from finetune.glue.command import SEEDS
from finetune.glue.runs import EPOCHS, FAIRSEQ, MAX_LENGTH
from finetune.glue.side_by_side import choose_processes
from finetune.tuning.classifier import choose_precision, logits_of
from finetune.tuning.finetuning import FineTuning
from finetune.tuning.labelled import Encoded, Source, encode_examples, open_source
from finetune.tuning.recipe import Recipe
from finetune.tuning.tasks import Examples, folder_of, load, task_named
from pretrain.common.cores import threads_of_user, usable_cores
from pretrain.common.errors import UserError

_ROWS = 16
_SHORT, _LONG = 8, 64  # tokens of an example
_SECONDS = 1.0  # of a measurement, at least one step
_MOST_BYTES = 2000  # of an example in its file, in the mean: published sets have 40 to 1,200
_SAMPLE = 256  # examples of a set that are tokenised, to know the length of the others


@dataclass(frozen=True)
class TrainingSpeed:
    """What training and evaluation of a model cost in one process."""

    step: float
    """Seconds of a step beside those of its tokens."""
    token: float
    """Seconds of a token in a step."""
    evaluated: float
    """Seconds of a token without gradients."""

    def seconds(self, steps: float, tokens: float, evaluated: float) -> float:
        """Return the seconds of so many steps with so many tokens together, and evaluated tokens."""
        return self.step * steps + self.token * tokens + self.evaluated * evaluated


def measure_training(source: Source, threads: int) -> TrainingSpeed:
    """Train on a few random batches, with so many threads; the weights of `source` stay as they are."""
    draw = np.random.default_rng(0)
    lengths = np.repeat([_SHORT, min(_LONG, source.encoder.max_positions)], _ROWS)
    offsets = offsets_of(lengths)
    ids = draw.integers(0, source.encoder.lm.config.vocab_size, offsets[-1]).astype(np.int32)
    types = Ragged(np.zeros_like(ids), offsets) if source.encoder.has_token_types else None
    rows = Encoded(Ragged(ids, offsets), types, np.zeros(len(lengths), np.int64), 0)
    precision = choose_precision("auto")
    with _threads(threads):
        training = FineTuning(
            source, rows, 2, Recipe(1e-5, _ROWS, 1, 0.0), 0, lambda logits: (0.0, {}, np.empty(0)),
            precision=precision,
        )  # fmt: skip
        short, long = np.arange(_ROWS), np.arange(_ROWS, 2 * _ROWS)
        training.update(short)  # the first step makes the optimizer's state
        seconds = [_mean_of(partial(_step, training, rows)) for rows in (short, long)]
        few, many = int(lengths[short].sum()), int(lengths[long].sum())
        passed = _mean_of(lambda: logits_of(training.model, rows, many, precision))
    token = max(0.0, (seconds[1] - seconds[0]) / (many - few))
    return TrainingSpeed(max(0.0, seconds[0] - token * few), token, passed / (few + many))


@dataclass
class TrainingCosts:
    """What units that train the weights cost."""

    seconds: dict[Unit, float] = field(default_factory=dict)
    """Beside those of starting a process."""
    at_least: set[Unit] = field(default_factory=set)
    """Units of which `seconds` has a lower bound, too long for the budget already."""
    refused: dict[Unit, str] = field(default_factory=dict)
    """Units that cannot be done, with the reason."""


def training_costs(
    units: Sequence[Unit], model: ModelSource, root: Path, jobs: int, budget: float = math.inf
) -> TrainingCosts:
    """Return the costs of units that train the weights.

    A model that cannot be trained refuses all of them, and a damaged set its own unit. The data of a unit is
    read only where its training may fit in the budget, by the sizes of its files.

    Args:
        root: the folder of evaluation data.
        jobs: units that run side by side, each with its share of the cores, or with as many threads as the
            user's OMP_NUM_THREADS says.
        budget: seconds, from this call on.
    """
    end = time.monotonic() + budget
    costs, speeds = TrainingCosts(), dict[int, TrainingSpeed]()
    try:
        source = open_source(model.location)
    except UserError as error:
        costs.refused = dict.fromkeys(units, str(error))
        return costs
    parameters = sum(part.numel() for part in source.encoder.parameters())
    cores = max(1, usable_cores() // jobs)
    for unit in units:
        processes = 1 if jobs > 1 or unit.evaluation != "glue" else choose_processes(SEEDS, parameters)
        runs = math.ceil(SEEDS / processes) if unit.evaluation == "glue" else 1
        threads = threads_of_user() or (1 if processes > 1 else cores)
        try:
            if threads not in speeds:
                speeds[threads] = measure_training(source, threads)
            least = runs * _least(unit, root, speeds[threads])
            if START_SECONDS + least > end - time.monotonic():
                costs.seconds[unit] = least
                costs.at_least.add(unit)
                continue
            size = _glue(source, unit.tasks[0], root) if unit.evaluation == "glue" else _anli(source, root)
        except UserError as error:
            costs.refused[unit] = str(error)
            continue
        work = speeds[threads].seconds(size.steps, size.tokens, size.evaluated)
        costs.seconds[unit] = runs * work + size.reading
    return costs


def _least(unit: Unit, root: Path, speed: TrainingSpeed) -> float:
    """Return the seconds that the training of a run takes at least, by the sizes of its files alone."""
    if unit.evaluation == "glue":
        task = task_named(unit.tasks[0])
        epochs, batch = EPOCHS, FAIRSEQ[task.name][1]
        size = float((folder_of(task, root) / "train.tsv").stat().st_size)
    else:
        epochs, batch = anli.RECIPE.epochs, anli.RECIPE.batch_size
        files = [(corpus.weight, corpus.file(root)) for corpus in anli.TRAINING]
        size = float(sum(weight * path.stat().st_size for weight, path in files if path is not None))
    examples = size / _MOST_BYTES
    return epochs * speed.seconds(examples / batch, examples * _SHORT, 0)


@dataclass(frozen=True)
class _Size:
    """Steps, their tokens, and evaluated tokens of a run; seconds of reading and tokenising the data."""

    steps: float
    tokens: float
    evaluated: float
    reading: float


def _glue(source: Source, task: str, root: Path) -> _Size:
    started = time.perf_counter()
    splits = load(task, str(root)).splits
    reading = time.perf_counter() - started
    train = splits["train"]
    tokens, tokenising = _tokens(source, train, MAX_LENGTH)
    evaluated = 0.0
    for name, rows in splits.items():
        if name.startswith("dev"):
            some, seconds = _tokens(source, rows, MAX_LENGTH)
            evaluated, tokenising = evaluated + some, tokenising + seconds
    steps = math.ceil(len(train) / FAIRSEQ[task][1])
    return _Size(EPOCHS * steps, EPOCHS * tokens, EPOCHS * evaluated, reading + tokenising)


def _anli(source: Source, root: Path) -> _Size:
    started = time.perf_counter()
    sets = anli.load_sets(str(root))
    reading = time.perf_counter() - started
    weights = {corpus.name: corpus.weight for corpus in anli.TRAINING}
    examples = tokens = dev = evaluated = 0.0
    for name, rows in sets.train.items():
        some, seconds = _tokens(source, rows, anli.MAX_LENGTH)
        examples, tokens = examples + weights[name] * len(rows), tokens + weights[name] * some
        reading += seconds
    for name, rows in sets.evaluation.items():
        some, seconds = _tokens(source, rows, anli.MAX_LENGTH)
        reading += seconds
        if name.endswith("dev"):  # again and again; the test sets once
            dev += some
        else:
            evaluated += some
    epochs, of_epoch = anli.RECIPE.epochs, math.ceil(examples / anli.RECIPE.batch_size)
    steps = epochs * of_epoch
    ends, between = range(of_epoch, steps + 1, of_epoch), range(0, steps + 1, anli.EVALUATE_EVERY)
    evaluated += len({*ends, *between[1:]}) * dev
    return _Size(steps, epochs * tokens, evaluated, reading)


def _tokens(source: Source, rows: Examples, max_length: int) -> tuple[float, float]:
    """Return how many tokens a set has, and the seconds of tokenising it, both from a sample of it."""
    some = rows.sample(_SAMPLE)
    started = time.perf_counter()
    encoded = encode_examples(source, some.first, some.second, some.targets, max_length)
    times = len(rows) / len(some)
    return times * int(encoded.tokens.lengths.sum()), times * (time.perf_counter() - started)


def _step(training: FineTuning, rows: np.ndarray) -> float:
    return float(training.update(rows))  # waits for the device


def _mean_of(work: Callable[[], object]) -> float:
    """Return the mean seconds of several calls: what others take of the cores is in it.

    The first call, which is slower, counts only where it takes all of the time.
    """
    seconds, calls = _timed(work), 1
    if seconds < _SECONDS:
        seconds, calls = _timed(work), 1
    while seconds < _SECONDS:
        seconds, calls = seconds + _timed(work), calls + 1
    return seconds / calls


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
