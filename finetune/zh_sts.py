"""Chinese STS-B, as SDA (Zhu et al.) reports it: `clearly zh-sts MODEL`.

Spearman's correlation (x 100) between cosine and gold score over the test pairs of CNSD's machine-translated
STS-B; nothing is fitted and the training set is not used. The dev set comes beside it, for choices between
models. SDA pools [CLS].
"""

import math
from pathlib import Path

import numpy as np

from finetune.answers import Answers, examples_digest
from finetune.encoders.models import EmbeddingModel
from finetune.frozen import Frozen, command
from finetune.results import Evaluation
from pretrain.benchmarks.distinct import require_directions
from pretrain.benchmarks.files import DATA_SETS, find, lines
from pretrain.benchmarks.sts_tasks import Pairs, distinct_sentences, require_scores, score_task, task_cosines
from pretrain.common import cli
from pretrain.common.errors import UserError

TASKS = {"STS-B-zh": "test", "STS-B-zh-dev": "dev"}
"""Task: the split that it is."""


def read(path: Path) -> Pairs:
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
    return Pairs(path.stem, first, second, np.array(gold))


def files(task: str, root: Path) -> list[Path]:
    return [root / f"zh/STS-B/cnsd-sts-{TASKS[task]}.txt"]


def score(model: EmbeddingModel, name: str, pairs: Pairs, evaluation: Evaluation) -> str:
    """Score a task: Spearman's and Pearson's correlation x 100 of cosine with the gold score."""
    sentences = distinct_sentences([pairs])
    places = {sentence: number for number, sentence in enumerate(sentences)}
    vectors = model.encode(sentences)
    require_directions(model.name, vectors)
    similarities = task_cosines([pairs], vectors, places)
    both = score_task([pairs], similarities)
    scores = {"spearman": both["spearman_all"], "pearson": both["pearson_all"]}
    data = examples_digest(pairs.first, pairs.second, pairs.gold)
    answers = Answers.of(similarities[0], pairs.gold, "spearman", data)
    evaluation.add(name, "spearman", scores, answers=answers, pairs=len(pairs))
    evaluation.expect_size(name, "pairs", len(pairs), DATA_SETS["zh/STS-B"].rows[TASKS[name]])
    return f"Spearman {scores['spearman']:.2f} over {len(pairs):,} pairs"


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
