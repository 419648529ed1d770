"""Evaluate on test sets of your own: of what kind a file is follows from the names of its columns.

    clearly own-sets MODEL --set my.tsv --set other=my.jsonl      or, with other suites, by `clearly eval`

`pretrain.benchmarks.own_sets` says which columns, and what the figures are.
"""

import json

import numpy as np

from finetune.answers import MEAN, METRICS, Answers, examples_digest
from finetune.encoders.models import EmbeddingModel, open_model
from finetune.flags import Model
from finetune.frozen import Frozen, FrozenFlags
from finetune.results import Evaluation, run_and_write
from pretrain.benchmarks.files import known_name
from pretrain.benchmarks.own_sets import OwnSet, read_own_set
from pretrain.common import cli
from pretrain.common.typed_values import named_places


def add_figures(
    data: OwnSet, vectors: tuple[np.ndarray, np.ndarray], evaluation: Evaluation, **details: int
) -> str:
    """Score the vectors of a set, and add its figures with their answers; return the figures in words."""
    gains = [json.dumps(sorted(one.items())) for one in data.relevant]
    digest = examples_digest([*data.first, *gains], data.second, None if gains else data.gold)
    figures = data.score(*vectors)
    for task, metric, scores, given, gold in figures:
        answers = Answers.of(given, gold, metric if metric in METRICS else MEAN, digest)
        evaluation.add(task, metric, scores, answers=answers, **details)
    return ", ".join(f"{one.metric} {one.scores[one.metric]:.2f}" for one in figures)


def score(model: EmbeddingModel, name: str, data: OwnSet, evaluation: Evaluation) -> str:
    """Score a set: a task, and of text and label one more, NAME/clusters."""
    evaluation.notes.append(f"{name}: {data.about}")
    return add_figures(data, data.embed(model.encode, model.encode_query, model.encode_document), evaluation)


PROTOCOL = "cosine; logistic regression, two halves crossed; k-means, 10 restarts; exact search"
EVALUATION = Frozen("own_sets", PROTOCOL, (), read_own_set, score)


def main(model: Model, *, set: cli.Names, flags: FrozenFlags) -> int:
    """Score an encoder on test sets of your own: similarity, classification and clustering, or retrieval.

    Tasks are the sets' names; by default all.

    Args:
        set: a file (tsv, csv, jsonl, parquet), or NAME=FILE; several times, or between commas.
    """
    places = named_places(set)
    names = [known_name(name, places, "set") for name in flags.tasks] or places
    loaded = {name: read_own_set(name, places[name]) for name in names}
    opened = open_model(model, flags.pooling, precision=flags.precision)
    return run_and_write(opened, flags.out, lambda opened: EVALUATION.evaluate(opened, loaded))


if __name__ == "__main__":
    cli.run(main)
