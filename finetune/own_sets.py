"""Evaluate on test sets of your own: of what kind a file is follows from the names of its columns.

    clearly own-sets MODEL --set my.tsv --set other=my.jsonl      or, with other suites, by `clearly eval`

`pretrain.benchmarks.own_sets` says which columns, and what the figures are.
"""

import json
from collections.abc import Sequence

from finetune.answers import MEAN, METRICS, Answers, examples_digest
from finetune.encoders.models import EmbeddingModel, open_model
from finetune.flags import Model
from finetune.frozen import Frozen, FrozenFlags
from finetune.results import Evaluation, run_and_write
from pretrain.benchmarks.files import known_name
from pretrain.benchmarks.own_sets import OwnSet, read_own_sets
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.typed_values import named_places


def read(sets: Sequence[str]) -> dict[str, OwnSet]:
    """Read the sets that --set names, by name."""
    try:
        places = named_places(list(sets))
    except ValueError as error:
        raise UserError(str(error)) from None
    return {one.name: one for one in read_own_sets(places)}


def score(model: EmbeddingModel, name: str, data: OwnSet, evaluation: Evaluation) -> str:
    """Score a set: a task, and of text and label one more, NAME/clusters."""
    vectors = data.embed(model.encode, model.encode_query, model.encode_document)
    gains = [json.dumps(sorted(one.items())) for one in data.relevant]
    digest = examples_digest([*data.first, *gains], data.second, data.gold)
    said = []
    for one in data.score(*vectors):
        by = one.metric if one.metric in METRICS else MEAN
        answers = Answers.of(one.answers, one.gold, by, digest)
        evaluation.add(one.task, one.metric, one.scores, answers=answers, set=data.about)
        said.append(f"{one.metric} {one.scores[one.metric]:.2f}")
    evaluation.notes += [f"{name}: {note}" for note in data.notes]
    return f"{', '.join(said)}; {data.about}"


EVALUATION = Frozen(
    "own_sets",
    "cosine; logistic regression, two halves crossed; k-means, 10 restarts; exact search",
    (),
    lambda name, data: None,
    score,
)


def main(model: Model, *, set: cli.Names, flags: FrozenFlags) -> int:
    """Score an encoder on test sets of your own: similarity, classification and clustering, or retrieval.

    Tasks are the sets' names; by default all.

    Args:
        set: a file (tsv, csv, jsonl, parquet), or NAME=FILE; several times, or between commas.
    """
    sets = read(set)  # before the model: a damaged file should not cost the loading
    names = [known_name(name, sets, "set") for name in flags.tasks] or sets
    opened = open_model(model, flags.pooling, precision=flags.precision)
    loaded = {name: sets[name] for name in names}
    return run_and_write(opened, flags.out, lambda opened: EVALUATION.evaluate(opened, loaded))


if __name__ == "__main__":
    cli.run(main)
