"""The model card of an export on the hub: its README.md, its evaluations as metadata, its origin."""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard

from pretrain.common.files import sha256_of
from pretrain.common.program import DISTRIBUTION
from pretrain.export.evaluations import WEIGHTS
from pretrain.export.model_card import AFTER_EVALUATION, EVALUATION, table

_TASK_TYPES = {"sts": "sentence-similarity", "zh_sts": "sentence-similarity", "clustering": "clustering"}
"""Evaluation -> the hub's name of such a task; all others classify."""


def hub_card(export: Path, repo: str, policy: dict[str, Any], evaluations: list[dict[str, Any]]) -> ModelCard:
    """Return the card of an export as it goes to the hub.

    Args:
        export: the folder; its README.md is the card's beginning.
        repo: OWNER/NAME.
        policy: the content of its clear.json.
        evaluations: those of its weights (`evaluations_of`). What is not complete stands in the text, with
            its notes, and not among the results that the hub compares.
    """
    card = ModelCard((export / "README.md").read_text("utf-8").replace('"PATH"', f'"{repo}"'))
    card.data.model_name = policy["recipe"]["name"]
    card.data.eval_results = [
        EvalResult(
            task_type=_TASK_TYPES.get(evaluation["evaluation"], "text-classification"),
            task_name=f"{evaluation['evaluation']} ({evaluation['pooling']} pooling)",
            dataset_type=name,
            dataset_name=name,
            metric_type=task["metric"].replace(" ", "_"),
            metric_name=task["metric"],
            metric_value=round(task["value"], 2),
        )
        for evaluation in evaluations
        if evaluation["complete"]
        for name, task in evaluation["tasks"].items()
        if task["value"] is not None
    ] or None
    # the data ends with ---, and the text after it is what can be changed
    before, heading, after = card.text.strip().partition(f"\n{AFTER_EVALUATION}\n")
    measured = [_section(evaluation) for evaluation in evaluations]
    if measured and f"\n{EVALUATION}\n" not in before:
        measured.insert(0, EVALUATION)
    sections = [before.strip(), *measured, f"{heading}{after}".strip(), _origin(export, policy)]
    card.text = "\n\n".join(section for section in sections if section) + "\n"
    return card


def _section(evaluation: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [
        (name, task["metric"], "" if task["value"] is None else f"{task['value']:.2f}")
        for name, task in evaluation["tasks"].items()
    ]
    title = f"{evaluation['evaluation']}, {evaluation['pooling']} pooling"
    remarks = [evaluation["protocol"], *evaluation["notes"]]
    if not evaluation["complete"]:
        remarks.append("not comparable with published figures")
    return table(f"### {title}", ("task", "metric", "value"), rows) + "\n\n" + ". ".join(remarks) + "."


def _origin(export: Path, policy: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [
        ("step", f"{policy['step']:,}"),
        ("code", f"{DISTRIBUTION} {policy['versions'].get(DISTRIBUTION, '')}".strip()),
        (f"sha256 of {WEIGHTS}", sha256_of(export / WEIGHTS)),
        ("sha256 of the tokenizer", policy["tokenizer_hash"]),
        ("recipe", "`training_config.yaml`"),
    ]
    return table("## More Information", ("what", "value"), rows)
