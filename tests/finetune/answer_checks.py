"""Check that the answers that evaluations keep are those that their figures follow from."""

import pytest

from finetune.answers import resampled_figures
from finetune.results import Evaluation


def require_answers(evaluation: Evaluation, tasks: list[str], within: float = 1e-4) -> None:
    """Fail where a task has no answers, or they give another figure."""
    for name in tasks:
        task = evaluation.tasks[name]
        assert task.answers is not None, name
        figure = resampled_figures([name] * 2, [task.answers], 1)[0, -1]
        assert figure == pytest.approx(task.value, abs=within), name
