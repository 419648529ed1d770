"""The scores of a record: by the evaluations of the project, one file each, and over seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from finetune.encoders.source import OWN_MODULES
from finetune.results import file_name, read, read_if_there
from pretrain.benchmarks.sts_tasks import SEVEN_TASKS
from pretrain.commands.record.tracks import HELD_OUT
from pretrain.common.errors import UserError
from pretrain.common.files import remove_file, sha256_of
from pretrain.common.processes import run_to_end
from pretrain.export.folder import read_policy
from pretrain.export.sums import weights_identity
from pretrain.telemetry.intervals import interval, paired_error

LEGS = ("seven STS", "transfer", "retrieval")
"""On which records are compared; `DEV` chooses among them."""
DEV = "STS-B dev"
KINDS = ("title", "neighbour")
"""Of pairs in held-out text: a heading and what it heads, a sentence and the next one."""
NEEDED = {"sts": ("average of 7 STS", "STS-B-dev"), "senteval": ("average of 7 transfer",), "nanobeir": KINDS}
"""Evaluation -> the figures of it that a record needs."""
P_BETTER, P_WORSE = 0.01, 0.05
"""One-sided, by Welch's t over seeds: to beat the standing record on a leg, and to lose one."""


def make_retrieval(eval_data: Path, folder: Path) -> None:
    """Make the test of retrieval in the frozen held-out text, unless it is there."""
    from finetune.judge.heldout import make_sets

    text, digest = eval_data / HELD_OUT[0], HELD_OUT[1]
    if not text.is_file() or sha256_of(text) != digest:
        raise UserError(f"{text} is not there, or not the board's held-out text (sha256 {digest})")
    make_sets(text, folder, KINDS)


def evaluate(model: Path, report: Path, eval_data: Path, retrieval: Path) -> dict[str, float]:
    """Evaluate an export, leaving out what its report has of the same weights, and return its scores."""
    words = {
        "sts": [f"--eval-data={eval_data}", f"--tasks={','.join(SEVEN_TASKS)},STS-B-dev"],
        "senteval": [f"--eval-data={eval_data}", "--tasks=transfer"],
        "nanobeir": [f"--eval-data={retrieval}"],
    }
    for name, flags in words.items():
        path, pooling = _file_of(report, name, model)
        kept, wanted = read_if_there(path), (weights_identity(model), pooling)
        if not kept or (kept.source, kept.pooling) != wanted or not kept.tasks.keys() >= set(NEEDED[name]):
            remove_file(path)  # beside a file of another model, the new one would get another name
            flags += [f"--out={report}", *([f"--pooling={pooling}"] if pooling != OWN_MODULES else [])]
            run_to_end(f"finetune.{name}", [str(model), *flags], "The same command continues")
    return read_scores(report, model)


def _file_of(report: Path, name: str, model: Path) -> tuple[Path, str]:
    """Return the file of an evaluation of a model by the pooling of its training, and that pooling."""
    pooling = (read_policy(model) or {}).get("pooling", OWN_MODULES)
    return report / f"{file_name(name, pooling)}.json", pooling


def read_scores(report: Path, model: Path) -> dict[str, float]:
    """Return leg -> score x 100 of a model, of a report's files."""
    try:
        sts, transfer, retrieval = (
            {figure: read(_file_of(report, name, model)[0]).tasks[figure].value for figure in figures}
            for name, figures in NEEDED.items()
        )
        return {
            LEGS[0]: sts["average of 7 STS"],
            LEGS[1]: transfer["average of 7 transfer"],
            LEGS[2]: float(np.mean([retrieval[kind] for kind in KINDS])),
            DEV: sts["STS-B-dev"],
        }
    except KeyError as error:
        mend = "`clearly benchmarks check` says which data are not there"
        raise UserError(f"{report} lacks {error.args[0]}: {mend}") from None


def summary_of(values: Sequence[float]) -> dict[str, float]:
    """Return the mean over seeds and its 95% interval (Student's t)."""
    mean = float(np.mean(values))
    found = interval(mean, paired_error(values))
    low, high = (mean, mean) if found is None else (found.low, found.high)
    return {"mean": round(mean, 3), "low": round(low, 3), "high": round(high, 3)}


def verdicts(new: Mapping[str, Sequence[float]], old: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return leg -> "better", "worse" or "not told apart", of two records' values by seed; higher wins."""
    from scipy import stats

    found = {}
    for leg in new:
        better, worse = (
            stats.ttest_ind(new[leg], old[leg], equal_var=False, alternative=side).pvalue
            for side in ("greater", "less")
        )
        found[leg] = "better" if better < P_BETTER else "worse" if worse < P_WORSE else "not told apart"
    return found
