"""Chinese STS-B, as SDA (Zhu et al.) reports it: `clearly zh-sts MODEL`.

Spearman's correlation (x 100) between cosine and gold score over the test pairs of CNSD's machine-translated
STS-B; nothing is fitted and the training set is not used. The dev set comes beside it, for choices between
models. SDA pools [CLS].
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from finetune.encoders.models import EmbeddingModel
from finetune.frozen import Frozen, command
from finetune.own_sets import add_figures
from finetune.results import Evaluation
from pretrain.benchmarks.files import DATA_SETS, find, lines
from pretrain.benchmarks.own_sets import OwnSet
from pretrain.benchmarks.sts_tasks import require_scores
from pretrain.common import cli
from pretrain.common.errors import UserError

TASKS = {"STS-B-zh": "test", "STS-B-zh-dev": "dev"}
"""Task: the split that it is."""


def read(path: Path) -> OwnSet:
    """Read lines of four fields separated by "||": number, sentence, sentence, score."""
    first, second, gold = [], [], []
    for number, line in enumerate(lines(path), start=1):
        cells = line.split("||")
        try:
            if len(cells) != 4 or not math.isfinite(float(cells[3])):
                raise ValueError
        except ValueError:
            expected = "expected number||sentence||sentence||score"
            raise UserError(f"{path}, line {number}: {expected}, found {line[:80]!r}") from None
        first.append(cells[1].strip())
        second.append(cells[2].strip())
        gold.append(float(cells[3]))
    require_scores(np.array(gold), str(path))
    return OwnSet(path.stem, "similarity", first, second, np.array(gold))


def files(task: str, root: Path) -> list[Path]:
    return [root / f"zh/STS-B/cnsd-sts-{TASKS[task]}.txt"]


def score(model: EmbeddingModel, name: str, pairs: OwnSet, evaluation: Evaluation) -> str:
    """Score a task: Spearman's and Pearson's correlation x 100 of cosine with the gold score."""
    vectors, count = pairs.embed(model.encode, model.encode, model.encode), len(pairs.first)
    said = add_figures(replace(pairs, name=name), vectors, evaluation, pairs=count)
    evaluation.expect_size(name, "pairs", count, DATA_SETS["zh/STS-B"].rows[TASKS[name]])
    return f"{said.capitalize()} over {count:,} pairs"


EVALUATION = Frozen(
    "zh_sts",
    "cosine, Spearman over all pairs, nothing fitted",
    tuple(TASKS),
    lambda task, data: read(find(data, f"zh/STS-B/cnsd-sts-{TASKS[task]}.txt")),
    score,
    pooling=("cls", "SDA's"),
    about="Score Chinese STS-B, test (STS-B-zh) and dev (STS-B-zh-dev): Spearman of cosine with the gold "
    "score.",
)
main = command(EVALUATION)

if __name__ == "__main__":
    cli.run(main)
