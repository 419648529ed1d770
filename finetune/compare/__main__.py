"""Compare runs or models on one page: what differs in their recipes, their curves, and their scores.

    clearly eval runs/one; clearly eval runs/other
    clearly compare runs/one runs/other --out compare

Differences are to the first model, with intervals over the test examples of the evaluations that both models
have behind them (finetune.sts, senteval, glue, intents ...: their answers are kept beside the figures). For
several seeds of a recipe, and intervals over them, there is `clearly sweep`.
"""

import os
from pathlib import Path

from finetune.compare.examples import choose_poolings, example_differences, example_lines, example_tables
from finetune.flags import Pooling
from finetune.report.page import write_page
from finetune.report.sources import Subject, System, collect
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import require_writable


def compare(
    *models: str,
    out: Path = Path("compare"),
    pooling: Pooling = "",
) -> None:
    """Write one page on what differs between runs or models: recipes, curves, scores with intervals.

    Args:
        models: two or more; differences are to the first.
        out: folder for compare.html and compare.json.
        pooling: which figures are compared, of models that were evaluated with several; default: those of
            the pooling that the model was trained with.
    """
    places = {os.path.realpath(model) if os.path.exists(model) else model for model in models}
    if len(places) < 2 or len(places) < len(models):
        raise UserError("name two or more different runs or models: clearly compare runs/one runs/other")
    require_writable(out)
    subjects = _subjects(models)
    systems = [System(name, [subject]) for name, subject in subjects.items()]
    evaluations = choose_poolings(subjects, pooling)
    examples = example_differences(evaluations)
    plain = {
        name: {
            task: {model: one.plain() for model, one in of_task.items()} for task, of_task in tasks.items()
        }
        for name, tasks in examples.items()
    }
    content = {"models": list(models), "examples": plain}
    introduction = [
        ", ".join(system.label for system in systems) + ".",
        "Intervals are over the benchmarks' sentence pairs and test examples. Two runs of one recipe differ "
        "by their seeds too: clearly sweep measures that.",
    ]
    differences = example_tables(examples, evaluations)
    write_page(out / "compare", "Comparison", introduction, systems, content, differences)
    for line in example_lines(examples):
        print(line)
    print(f"page: {(out / 'compare.html').resolve()}")


def _subjects(models: tuple[str, ...]) -> dict[str, Subject]:
    """Return label -> what is known of each model: of a run its recipe, curves and results."""
    subjects = []
    for model in models:
        several = collect([model])
        if len(several) > 1:
            raise UserError(f"{model} holds {len(several)} runs or models; name those to compare")
        subjects += several
    names = [subject.name for subject in subjects]
    return {
        subject.name if names.count(subject.name) == 1 else model: subject
        for model, subject in zip(models, subjects)
    }


if __name__ == "__main__":
    cli.run(compare)
