"""Chinese STS-B, as SDA (Zhu et al.) reports it: `python -m finetune.zh_sts MODEL`.

Spearman's correlation (x 100) between cosine and gold score over the test pairs of CNSD's machine-translated
STS-B; nothing is fitted and the training set is not used. The dev set comes beside it, for choices between
models. SDA pools [CLS].
"""

import math
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from finetune.answers import Answers, examples_digest
from finetune.encoders.models import EmbeddingModel, open_model
from finetune.files import find, known_name, lines
from finetune.flags import EvalData, Model, Out, Pooling, VectorPrecision
from finetune.results import Evaluation, run_and_write
from finetune.sets import DataSet, parts
from finetune.sts.scores import score_task, task_cosines
from finetune.sts.tasks import Pairs, distinct_sentences
from pretrain.common import cli
from pretrain.common.errors import UserError

TASKS = {"STS-B-zh": ("cnsd-sts-test.txt", 1361), "STS-B-zh-dev": ("cnsd-sts-dev.txt", 1458)}
"""Task: its file below zh/STS-B and the number of its pairs as published."""


def read(path: Path) -> Pairs:
    """Read lines of four fields separated by "||": number, sentence, sentence, score.

    Raises:
        UserError: a line with other fields, a score that is no number, or fewer than two pairs.
    """
    first, second, gold = [], [], []
    for number, line in enumerate(lines(path), start=1):
        cells = line.split("||")
        try:
            if len(cells) != 4 or not math.isfinite(float(cells[3])):
                raise ValueError
        except ValueError:
            raise UserError(
                f"{path}, line {number}: expected number||sentence||sentence||score, found {line[:80]!r}; "
                "the file is damaged"
            ) from None
        first.append(cells[1].strip())
        second.append(cells[2].strip())
        gold.append(float(cells[3]))
    if len(gold) < 2:
        raise UserError(f"{path}: {len(gold)} pairs; a correlation needs at least 2")
    return Pairs(path.stem, first, second, np.array(gold))


_SPLITS = {"train": ("cnsd-sts-train.txt", 5231), "dev": TASKS["STS-B-zh-dev"], "test": TASKS["STS-B-zh"]}
DATA_SETS = (
    DataSet(
        "zh/STS-B",
        parts({split: ((f"zh/STS-B/{file}",), rows) for split, (file, rows) in _SPLITS.items()}, read),
        "github.com/pluto-junzeng/CNSD",
    ),
)


def correlations(model: EmbeddingModel, pairs: Pairs) -> tuple[float, float, np.ndarray]:
    """Return (Spearman, Pearson) x 100 of cosine against gold, and the cosines float32[P].

    A zero vector's cosines count as 0.
    """
    sentences = distinct_sentences([pairs])
    vectors = model.encode(sentences)
    places = {sentence: number for number, sentence in enumerate(sentences)}
    similarities = task_cosines([pairs], vectors, places)
    scores = score_task([pairs], similarities)
    return scores["spearman_all"], scores["pearson_all"], similarities[0]


def evaluate(model: EmbeddingModel, loaded: Mapping[str, Pairs]) -> Evaluation:
    """Score each task, by name as `read` read it."""
    evaluation = Evaluation.of("zh_sts", model, "cosine, Spearman over all pairs, nothing fitted")
    evaluation.expect_pooling("cls", "SDA's")
    for name, pairs in loaded.items():
        spearman, pearson, cosines = correlations(model, pairs)
        scores = {"spearman": spearman, "pearson": pearson}
        data = examples_digest(pairs.first, pairs.second, pairs.gold)
        answers = Answers.of(cosines, pairs.gold, "spearman", data)
        evaluation.add(name, "spearman", scores, answers=answers, pairs=len(pairs))
        evaluation.expect_size(name, "pairs", len(pairs), TASKS[name][1])
        print(f"{name}: Spearman {spearman:.2f} over {len(pairs.gold):,} pairs", file=sys.stderr, flush=True)
    return evaluation


def main(
    model: Model,
    *,
    tasks: cli.Names = (),
    pooling: Pooling = "",
    eval_data: EvalData = "",
    precision: VectorPrecision = "fp32",
    out: Out = "",
) -> int:
    """Score Chinese STS-B: Spearman's correlation of cosine with the gold score, test and dev.

    Args:
        tasks: STS-B-zh (test), STS-B-zh-dev, by commas; default: both.
    """
    names = list(tasks or TASKS)
    for name in names:
        known_name(name, TASKS, "task", plain=str)
    # before the model: a missing file should not cost the loading
    loaded = {name: read(find(eval_data, "zh", "STS-B", TASKS[name][0])) for name in names}
    return run_and_write(
        open_model(model, pooling, precision=precision), out, lambda opened: evaluate(opened, loaded)
    )


if __name__ == "__main__":
    cli.run(main)
