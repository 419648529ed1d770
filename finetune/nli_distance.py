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

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finetune.answers import Answers, examples_digest
from finetune.encoders.models import EmbeddingModel
from finetune.flags import Model
from finetune.frozen import Frozen, FrozenFlags, run
from finetune.results import Evaluation
from pretrain.benchmarks.files import csv_columns, data_root, find, json_rows, lines, locate
from pretrain.benchmarks.sets import DataSet
from pretrain.common import cli
from pretrain.common.errors import UserError

TASKS = ("ANLI", "SNLI", "MNLI", "triplets")
LABELS = {"e": "entailment", "n": "neutral", "c": "contradiction"} | {
    label: label for label in ("entailment", "neutral", "contradiction")
}
ANLI_TRAIN = 16946
SNLI_TEST = 9824
MNLI_DEV = 9815
SIMCSE_TRIPLETS = 275601


@dataclass(frozen=True)
class Comparisons:
    """P comparisons: premises, entailed hypotheses, others, and which of the others contradict (bool[P])."""

    premises: list[str]
    entailed: list[str]
    not_entailed: list[str]
    contradicts: np.ndarray
    remark: str | None = None
    """Why figures are not comparable with published ones, if they are not."""


def compare(examples: Iterable[tuple[str, str, str]], remark: str | None = None) -> Comparisons:
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
    return Comparisons(
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        np.array([row[3] for row in rows], bool),
        remark,
    )


def load(name: str, data: str | Path | None = None) -> Comparisons:
    """Read the comparisons of a task of TASKS."""
    found = {"ANLI": _anli, "SNLI": _snli, "MNLI": _mnli, "triplets": _triplets}[name](data)
    if not found.contradicts.any():
        raise UserError(f"{name}: no premise has an entailed and a contradicting hypothesis")
    return found


def scores(
    premises: np.ndarray, entailed: np.ndarray, not_entailed: np.ndarray, contradicts: np.ndarray
) -> dict[str, float]:
    """Return shares (%) and mean similarities of vectors float32[P, d]; a zero vector's cosines are 0."""
    near, far = (cosines(premises, side) for side in (entailed, not_entailed))
    dots = [np.einsum("pd,pd->p", premises.astype(np.float64), side) for side in (entailed, not_entailed)]
    return {
        "entailment_nearer": 100 * float((near > far)[contradicts].mean()),
        "as_coded": 100 * float((dots[0] > dots[1]).mean()),
        "entailment_nearer_than_all": 100 * float((near > far).mean()),
        "entailment_similarity": float(near[contradicts].mean()),
        "contradiction_similarity": float(far[contradicts].mean()),
    }


def cosines(premises: np.ndarray, not_entailed: np.ndarray) -> np.ndarray:
    """Return the cosine of each premise float32[P, d] with its other text, float64[P]; 0 of a zero vector."""
    dots = np.einsum("pd,pd->p", premises.astype(np.float64), not_entailed)
    norms = [np.linalg.norm(side.astype(np.float64), axis=1) for side in (premises, not_entailed)]
    lengths = norms[0] * norms[1]
    return dots / np.where(lengths == 0, 1.0, lengths)


def score(model: EmbeddingModel, name: str, found: Comparisons, evaluation: Evaluation) -> str:
    """Compare the vectors of a task's texts."""
    count, decided = len(found.premises), int(found.contradicts.sum())
    vectors = model.encode([*found.premises, *found.entailed, *found.not_entailed])
    sides = vectors[:count], vectors[count : 2 * count], vectors[2 * count :]
    result = scores(*sides, found.contradicts)
    details = {
        "comparisons": count,
        "with_contradiction": decided,
        "premises": len(set(found.premises)),
    }
    nearer = (cosines(sides[0], sides[1]) > cosines(sides[0], sides[2]))[found.contradicts]
    data = examples_digest([*found.premises, *found.entailed], found.not_entailed, found.contradicts)
    answers = Answers.of(nearer, np.ones_like(nearer), "accuracy", data)
    evaluation.add(name, "entailment_nearer", result, answers=answers, **details)
    if found.remark:
        evaluation.incomplete(f"{name}: {found.remark}")
    return f"{result['entailment_nearer']:.2f}% of {decided:,}"


# -- reading -----------------------------------------------------------


def _read_jsonl(path: Path, premise: str) -> list[tuple[str, str, str]]:
    """Return (premise, hypothesis, label) of every row; `premise` is the key of the first."""
    rows = json_rows(path, premise, "hypothesis", "label")
    return [(first, second, label) for _, (first, second, label) in rows]


def _anli(data: str | Path | None) -> Comparisons:
    train = find(data, "ANLI", "R1") / "train.jsonl"
    if train.is_file():
        examples = _read_jsonl(train, "context")
        return compare(examples, _size_remark(len(examples), ANLI_TRAIN))
    paths = [find(data, "ANLI", "R1", f"{part}.jsonl") for part in ("dev", "test")]
    both = [example for path in paths for example in _read_jsonl(path, "context")]
    return compare(both, f"{train} is not there; compared on its dev and test sets ({len(both):,} examples)")


def _snli(data: str | Path | None) -> Comparisons:
    columns = [list(lines(find(data, "SentEval", "SNLI", f"{kind}.test"))) for kind in ("s1", "s2", "labels")]
    counts = {len(column) for column in columns}
    if len(counts) != 1:
        raise UserError(f"{find(data, 'SentEval', 'SNLI')}: s1.test, s2.test and labels.test differ in lines")
    count = counts.pop()
    return compare(zip(*columns, strict=True), _size_remark(count, SNLI_TEST))


def _mnli(data: str | Path | None) -> Comparisons:
    examples = _read_jsonl(find(data, "NLI", "mnli_dev.jsonl"), "premise")
    return compare(examples, _size_remark(len(examples), MNLI_DEV))


def _size_remark(count: int, published: int) -> str | None:
    return f"{count:,} examples here, {published:,} as published" if count != published else None


def _triplets(data: str | Path | None) -> Comparisons:
    file = triplets_file(data)
    rows = read_triplets(file)
    premises, entailed, contradicting = (list(column) for column in zip(*rows, strict=True))
    remark: str | None = f"{len(rows):,} triplets of {file.name} here, {SIMCSE_TRIPLETS:,} in SimCSE's file"
    remark = None if len(rows) == SIMCSE_TRIPLETS else remark
    return Comparisons(premises, entailed, contradicting, np.ones(len(rows), bool), remark)


def files(name: str, root: Path) -> list[Path]:
    """Return the files of the data folder that a task of TASKS reads; where none is there, those to get."""
    if name == "SNLI":
        return [locate(root, f"SentEval/SNLI/{kind}.test") for kind in ("s1", "s2", "labels")]
    if name == "MNLI":
        return [root / "NLI" / "mnli_dev.jsonl"]
    if name == "triplets":
        return [next((path for path in _triplets_files(root) if path.is_file()), _triplets_files(root)[0])]
    train, *not_entailed = (root / "ANLI" / "R1" / f"{part}.jsonl" for part in ("train", "dev", "test"))
    return [train] if train.is_file() else not_entailed


def _triplets_files(root: Path) -> list[Path]:
    return [root / "NLI" / name for name in ("nli_for_simcse.csv", "nli_triplets_from_snli.csv")]


def triplets_file(data: str | Path | None) -> Path:
    """Return the file of triplets: SimCSE's, or else the smaller one from SNLI."""
    folder = find(data, "NLI")
    for path in _triplets_files(folder.parent):
        if path.is_file():
            return path
    command = f"clearly benchmarks fetch NLI/SimCSE {data_root(data)}"
    raise UserError(f"{folder} has no nli_for_simcse.csv; `{command}` gets it")


def read_triplets(path: Path) -> list[tuple[str, str, str]]:
    """Read (premise, entailed, contradicting) of SimCSE's csv format: columns sent0, sent1, hard_neg."""
    rows = [(row[0], row[1], row[2]) for row in csv_columns(path, "sent0", "sent1", "hard_neg")]
    for number, row in enumerate(rows, start=1):
        if not all(row):
            raise UserError(f"{path}, row {number} lacks a sentence; the file is damaged")
    if not rows:
        raise UserError(f"{path} has no rows")
    return rows


DATA_SETS = (
    DataSet(
        "NLI/SimCSE",
        ("NLI/nli_for_simcse.csv",),
        "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main/nli_for_simcse.csv",
    ),
    DataSet("NLI/MNLI-dev", ("NLI/mnli_dev.jsonl",), "cims.nyu.edu/~sbowman/multinli"),
)


EVALUATION = Frozen(
    "nli_distance",
    "premise with entailed against contradicting hypothesis, cosine; as_coded: against all others, dot "
    "product",
    TASKS,
    load,
    score,
)


def main(model: Model, *, flags: FrozenFlags) -> int:
    """Count how often the entailed hypothesis is nearer to its premise: ANLI, SNLI, MNLI, triplets."""
    return run(EVALUATION, model, flags)


if __name__ == "__main__":
    cli.run(main)
