"""AugCSE's frozen-embedding check (Tang et al. 2022, table 1): `clearly nli-distance MODEL`.

How often (%) the entailed hypothesis is nearer to its premise than the contradicting one, over every pair of
the two that a premise has, and the mean similarities. Nothing is fitted. The paper's text compares entailment
with contradiction; its code (which made its figures) differs three times: every hypothesis that is not
entailed, neutral ones included, stands against the entailed one; similarity is the dot product of raw
vectors; the set is ANLI's round 1 *training* set. Both are given: `entailment_nearer` as in the text (by
cosine), `as_coded` as in the code. A tie is not nearer.

    ANLI      round 1, train; without it, dev and test, and the result is marked incomplete
    SNLI      SentEval's test split, three hypotheses a premise
    MNLI      dev matched
    triplets  SimCSE's csv file of premise, entailment, contradiction; without it, the smaller one from SNLI
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from finetune.answers import Answers, examples_digest
from finetune.encoders.models import EmbeddingModel
from finetune.frozen import Frozen, command
from finetune.results import Evaluation
from pretrain.benchmarks.files import DATA_SETS, csv_columns, data_root, json_rows, lines, locate, require
from pretrain.common import cli
from pretrain.common.errors import UserError

TASKS = ("ANLI", "SNLI", "MNLI", "triplets")
LABELS = {"e": "entailment", "n": "neutral", "c": "contradiction"} | {
    label: label for label in ("entailment", "neutral", "contradiction")
}
_SPLITS = {"ANLI": ("ANLI/R1", "train"), "SNLI": ("SentEval/SNLI", "test"), "MNLI": ("NLI/MNLI-dev", "dev")}
SIZES = {task: DATA_SETS[name].rows[split] for task, (name, split) in _SPLITS.items()}
"""Examples as published."""
SIMCSE_TRIPLETS = DATA_SETS["NLI/SimCSE"].rows["train"]


@dataclass(frozen=True)
class Comparisons:
    """P comparisons: premises, entailed hypotheses, others, and which of the others contradict (bool[P])."""

    premises: list[str]
    entailed: list[str]
    not_entailed: list[str]
    contradicts: np.ndarray
    remark: str | None = None
    """Why figures are not comparable with published ones, if they are not."""


def compare(examples: Iterable[tuple[str, str, str]]) -> Comparisons:
    """Pair the entailed hypotheses of a premise with its others; labels other than LABELS are left out."""
    of_premise: dict[str, list[tuple[str, str]]] = {}
    for premise, hypothesis, label in examples:
        if label in LABELS:
            of_premise.setdefault(premise, []).append((hypothesis, LABELS[label]))
    rows = [
        (premise, entailed, other, kind == "contradiction")
        for premise, hypotheses in of_premise.items()
        for entailed, first in hypotheses
        if first == "entailment"
        for other, kind in hypotheses
        if kind != "entailment"
    ]
    premises, entailed, others, contradict = map(list, zip(*rows) if rows else ((), (), (), ()))
    return Comparisons(premises, entailed, others, np.array(contradict, bool))


def load(name: str, data: str | Path | None = None) -> Comparisons:
    """Read the comparisons of a task of TASKS."""
    paths = find_files(name, data)
    if name == "triplets":
        rows = read_triplets(paths[0])
        premises, entailed, contradicting = (list(column) for column in zip(*rows, strict=True))
        remark = f"{len(rows):,} triplets of {paths[0].name} here, {SIMCSE_TRIPLETS:,} in SimCSE's file"
        decided = np.ones(len(rows), bool)
        whole = len(rows) == SIMCSE_TRIPLETS
        return Comparisons(premises, entailed, contradicting, decided, None if whole else remark)
    if name == "SNLI":
        columns = [list(lines(path)) for path in paths]
        if len({len(column) for column in columns}) != 1:
            raise UserError(f"{paths[0].parent}: s1.test, s2.test and labels.test differ in lines")
        examples = list(zip(*columns, strict=True))
    else:
        premise = "context" if name == "ANLI" else "premise"
        rows_of = (json_rows(path, premise, "hypothesis", "label") for path in paths)
        examples = [row for rows in rows_of for _, row in rows]
    found = compare(examples)
    if not found.contradicts.any():
        raise UserError(f"{name}: no premise has an entailed and a contradicting hypothesis")
    if len(examples) != SIZES[name]:
        remark = f"{len(examples):,} examples here, {SIZES[name]:,} as published"
        if len(paths) == 2:  # of ANLI
            remark = f"{paths[0].with_name('train.jsonl')} is not there; compared on its dev and test sets"
            remark += f" ({len(examples):,} examples)"
        found = replace(found, remark=remark)
    return found


def scores(
    premises: np.ndarray, entailed: np.ndarray, not_entailed: np.ndarray, contradicts: np.ndarray
) -> tuple[dict[str, float], np.ndarray]:
    """Return shares (%) and mean similarities of vectors float32[P, d]; a zero vector's cosines are 0.

    And, of the comparisons with a contradiction, whether the entailed hypothesis is nearer: bool.
    """
    sides = [side.astype(np.float64) for side in (premises, entailed, not_entailed)]
    dots = [np.einsum("pd,pd->p", sides[0], side) for side in sides[1:]]
    norms = [np.linalg.norm(side, axis=1) for side in sides]
    lengths = [norms[0] * norm for norm in norms[1:]]
    near, far = (dot / np.where(length == 0, 1.0, length) for dot, length in zip(dots, lengths))
    nearer = near > far
    figures = {
        "entailment_nearer": 100 * float(nearer[contradicts].mean()),
        "as_coded": 100 * float((dots[0] > dots[1]).mean()),
        "entailment_nearer_than_all": 100 * float(nearer.mean()),
        "entailment_similarity": float(near[contradicts].mean()),
        "contradiction_similarity": float(far[contradicts].mean()),
    }
    return figures, nearer[contradicts]


def score(model: EmbeddingModel, name: str, texts: Comparisons, evaluation: Evaluation) -> str:
    """Compare the vectors of a task's texts."""
    count, decided = len(texts.premises), int(texts.contradicts.sum())
    vectors = model.encode([*texts.premises, *texts.entailed, *texts.not_entailed])
    premises, entailed, not_entailed = np.split(vectors, 3)
    result, nearer = scores(premises, entailed, not_entailed, texts.contradicts)
    details = {"comparisons": count, "with_contradiction": decided, "premises": len(set(texts.premises))}
    data = examples_digest([*texts.premises, *texts.entailed], texts.not_entailed, texts.contradicts)
    answers = Answers.of(nearer, np.ones_like(nearer), "accuracy", data)
    evaluation.add(name, "entailment_nearer", result, answers=answers, **details)
    if texts.remark:
        evaluation.incomplete(f"{name}: {texts.remark}")
    return f"{result['entailment_nearer']:.2f}% of {decided:,}"


def files(name: str, root: Path) -> list[Path]:
    """Return the files of the data folder that a task of TASKS reads; if none is there, those to get."""
    if name == "SNLI":
        return [locate(root, f"SentEval/SNLI/{kind}.test") for kind in ("s1", "s2", "labels")]
    if name == "MNLI":
        return [root / "NLI" / "mnli_dev.jsonl"]
    if name == "triplets":
        both = [root / "NLI" / file for file in ("nli_for_simcse.csv", "nli_triplets_from_snli.csv")]
        return [next(filter(Path.is_file, both), both[0])]
    train, *not_entailed = (root / "ANLI" / "R1" / f"{part}.jsonl" for part in ("train", "dev", "test"))
    return [train] if train.is_file() else not_entailed


def find_files(name: str, data: str | Path | None) -> Sequence[Path]:
    """Return the files of a task; a UserError says which is not there."""
    root = data_root(data)
    return require(files(name, root), root)


def read_triplets(path: Path) -> list[tuple[str, str, str]]:
    """Read (premise, entailed, contradicting) of SimCSE's csv format: columns sent0, sent1, hard_neg."""
    rows = [(row[0], row[1], row[2]) for row in csv_columns(path, "sent0", "sent1", "hard_neg")]
    for number, row in enumerate(rows, start=1):
        if not all(row):
            raise UserError(f"{path}, row {number} lacks a sentence; the file is damaged")
    if not rows:
        raise UserError(f"{path} has no rows")
    return rows


EVALUATION = Frozen(
    "nli_distance",
    "premise with entailed against contradicting hypothesis, cosine; as_coded: against all others, dot "
    "product",
    TASKS,
    load,
    score,
    about="Count how often the entailed hypothesis is nearer to its premise.",
)
main = command(EVALUATION)

if __name__ == "__main__":
    cli.run(main)
