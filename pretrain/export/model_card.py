"""The model card of an export: what the run recorded, and on the hub the evaluations of its weights.

Sections are those of the hub's own template (huggingface_hub/templates/modelcard_template.md), in its order.
"""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from pretrain.common.files import sha256_of
from pretrain.common.program import DISTRIBUTION
from pretrain.config.objectives import WITHOUT_NEGATIVES
from pretrain.export.sums import WEIGHTS
from pretrain.telemetry.formats import LABELS, flatten, format_count, format_seconds, table
from pretrain.telemetry.metrics_file import read_metrics

PAPERS = {
    "clear": "Wu et al. 2020, CLEAR: Contrastive Learning for Sentence Representation, arXiv:2012.15466",
    "mlm": "Devlin et al. 2019, BERT (masked language modelling), arXiv:1810.04805",
    "simcse": "Gao, Yao and Chen 2021, SimCSE, arXiv:2104.08821",
    "vascl": "Zhang et al. 2022, Virtual Augmentation Supported Contrastive Learning, arXiv:2110.08552",
    "augcse": "Tang et al. 2022, AugCSE, arXiv:2210.13749",
    "vadvcse": "Ko, V-advCSE: Virtual Adversarial Contrastive Learning for Sentence Embeddings",
    "sda": "Zhu et al., SDA: Simple Discrete Augmentation for Contrastive Sentence Representation Learning",
    "diffcse": "Chuang et al. 2022, DiffCSE, arXiv:2204.10298",
    "esimcse": "Wu et al. 2022, ESimCSE, arXiv:2109.04380",
    "declutr": "Giorgi et al. 2021, DeCLUTR, arXiv:2006.03659",
    "scored": "Su 2022, CoSENT, kexue.fm/archives/8847; Reimers and Gurevych 2019, arXiv:1908.10084",
    "distill": "Reimers and Gurevych 2020, arXiv:2004.09813; Hofstätter et al. 2020, arXiv:2010.02666",
    "retain": "Li and Hoiem 2016, Learning without Forgetting, arXiv:1606.09282",
}
SCORES = LABELS | {
    "partner_among": "... candidates",
    "view_signal": "variance between sequences over that between two views of one",
}
POOLING = {
    "cls": "the last layer's state of the first token",
    "mean": "the mean over the tokens of the last layer",
    "first-last": "the mean over the tokens of the first and the last layer",
    "embedding-last": "the mean over the tokens of the embedding layer and the last layer",
    "last-two": "the mean over the tokens of the last two layers",
    "words": "the mean over the tokens of word embeddings, a static table",
}
EVALUATION, AFTER_EVALUATION = "## Evaluation", "## Technical Specifications"
TASK_TYPES = {
    "sts": "sentence-similarity",
    "zh_sts": "sentence-similarity",
    "clustering": "clustering",
    "nanobeir": "information-retrieval",
}
"""Evaluation -> the hub's name of such a task; all others classify."""
TEMPLATE = Path(__file__).with_name("card.md.jinja")


def model_card(policy: dict[str, Any], metrics: Path, parameters: int, architecture: str) -> str:
    """Return the README.md of an export.

    Args:
        policy: the content of clear.json.
        metrics: the run's metrics.jsonl; records after the exported step are left out.
        parameters: how many the masked language model has.
        architecture: transformers' model type.
    """
    recipe, train = policy["recipe"], policy["recipe"]["train"]
    parts, masked = _parts(recipe), _is_masked(recipe)
    records = [record for record in read_metrics(metrics) if record.get("step", 0) <= policy["step"]]
    settings = [
        ("steps", f"{policy['step']:,} of {train['steps']:,}"),
        ("sequences per step", f"{train['global_batch']:,}"),
        ("optimizer", f"{train['optimizer']}, learning rate {train['lr']:g}, {train['schedule']}"),
        ("precision", train["precision"]),
        ("tokens, views included", format_count(policy["progress"].get("tokens", 0))),
        ("training time", format_seconds(policy["progress"].get("seconds", 0))),
    ]
    card = ModelCard.from_template(
        _card_data(recipe),
        template_path=str(TEMPLATE),
        policy=policy,
        recipe=recipe,
        trained=_objective(recipe, policy["data"]),
        architecture=architecture,
        parameters=format_count(parameters),
        pooling=POOLING[policy["pooling"]],
        head=policy["kept_head"],
        start=without_folders(recipe["model"].get("init")),
        masked=masked,
        supervised="simcse" in parts and recipe["objective"]["simcse"]["hard_negatives"],
        dimensions=sorted(recipe["objective"].get("matryoshka") or [], reverse=True),
        corpus=_corpus(policy["data"]),
        procedure=table(("what", "value"), settings),
        scores=_scores(records, "at start" if recipe["model"].get("init") else "untrained"),
        software=", ".join(f"{name} {version}" for name, version in policy["versions"].items()),
        papers=cited(recipe),
    )
    return f"{card}\n"


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
            task_type=TASK_TYPES.get(evaluation["evaluation"], "text-classification"),
            task_name=f"{evaluation['evaluation']} ({evaluation['pooling']} pooling)",
            dataset_type=name,
            dataset_name=name,
            metric_type=task["metric"].replace(" ", "_"),
            metric_name=task["metric"],
            metric_value=round(task["value"], 2),
        )
        for evaluation in evaluations
        if evaluation["complete"] and evaluation["evaluation"] != "own_sets"  # no published data set
        for name, task in evaluation["tasks"].items()
        if task["value"] is not None
    ] or None
    # the data ends with ---, and the text after it is what can be changed
    before, heading, after = card.text.strip().partition(f"\n{AFTER_EVALUATION}\n")
    measured = [_section(evaluation) for evaluation in evaluations]
    if measured and f"\n{EVALUATION}\n" not in before:
        measured.insert(0, EVALUATION)
    origin = [
        ("step", f"{policy['step']:,}"),
        ("code", f"Clearly {policy['versions'].get(DISTRIBUTION, '')}".strip()),
        (f"sha256 of {WEIGHTS}", sha256_of(export / WEIGHTS)),
        ("sha256 of the tokenizer", policy["tokenizer_hash"]),
    ]
    sections = [before.strip(), *measured, f"{heading}{after}".strip()]
    sections.append("## More Information\n\n" + table(("what", "value"), origin))
    card.text = "\n\n".join(section for section in sections if section) + "\n"
    return card


def without_folders(tree: Any) -> Any:
    """Return a tree of JSON in which absolute paths are cut to their last name, for a path may name a person.

    >>> without_folders({"data": {"folder": "/home/jane/wiki", "lanes": 4}, "sources": ["hub:a/b"]})
    {'data': {'folder': 'wiki', 'lanes': 4}, 'sources': ['hub:a/b']}
    """
    if isinstance(tree, dict):
        return {key: without_folders(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [without_folders(value) for value in tree]
    return Path(tree).name if isinstance(tree, str) and Path(tree).is_absolute() else tree


def cited(recipe: dict[str, Any]) -> list[str]:
    """Return the paper of every loss that was trained."""
    parts = dict.fromkeys([*_parts(recipe), *(["mlm"] if _is_masked(recipe) else [])])
    return [PAPERS[part] for part in parts if part in PAPERS]


def _card_data(recipe: dict[str, Any]) -> ModelCardData:
    init = recipe["model"].get("init")
    # the hub knows no folders, and one that is gone may name a person
    of_hub = init is not None and not Path(init).is_absolute() and not Path(init).exists()
    tags = ["sentence-transformers", "sentence-similarity", "feature-extraction"]
    tags += ["fill-mask"] if _is_masked(recipe) else []
    return ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=init if of_hub else None,
        tags=[*tags, *_parts(recipe)],
    )


def _parts(recipe: dict[str, Any]) -> list[str]:
    """Return the summands of the objective; a user's own is named by its class."""
    return [part.rpartition(":")[2] for part in recipe["objective"]["name"].split("+")]


def _is_masked(recipe: dict[str, Any]) -> bool:
    """Return whether the masked-language loss was trained, alone or beside others."""
    return recipe["objective"]["mlm"]["weight"] > 0 and recipe["objective"]["mlm"]["copies"] > 0


def _objective(recipe: dict[str, Any], data: dict[str, Any]) -> str:
    init = recipe["model"].get("init")
    start = f"from {without_folders(init)}" if init else "from random weights"
    others = [part for part in _parts(recipe) if part != "mlm"]
    if not others:
        return f"{start} by masked language modelling"
    views = recipe["augment"]
    first, second = views.get("anchor") or views["spec"], views.get("positive") or views["spec"]
    named = f", augmentation `{first}`" if first == second else f", augmentation `{first}` and `{second}`"
    named = "" if first == second == "none" else named
    losses = "masked language modelling and " if _is_masked(recipe) else ""
    between = "the texts of a pair" if "positive" in data.get("columns", ()) else "views of a sentence"
    kind = "a loss" if set(others) <= set(WITHOUT_NEGATIVES) else "a contrastive loss"
    return f"{start} by {losses}{kind} between {between} (objective `{'+'.join(others)}`{named})"


def _corpus(data: dict[str, Any]) -> str:
    corpus = ", ".join(without_folders(data.get("sources") or [data["folder"]]))
    if "sequences" in data:
        corpus += f": {data['sequences']:,} sequences ({data['unit']}), {format_count(data['tokens'])} tokens"
    return corpus


def _scores(records: list[dict[str, Any]], start: str) -> str:
    """Return a table of the run's first and last evaluation; "" without one."""
    evaluations = {r["step"]: dict(flatten(r["evaluation"])) for r in records if "evaluation" in r}
    if not evaluations:
        return ""
    steps = sorted({min(evaluations), max(evaluations)})
    columns = [evaluations[step] for step in steps]
    rows: list[tuple[str, ...]] = [
        (SCORES.get(name, name), *(f"{column[name]:.4g}" if name in column else "" for column in columns))
        for name in columns[-1]
    ]
    return table(("measure", *(f"step {step:,}" if step else start for step in steps)), rows)


def _section(evaluation: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [
        (name, task["metric"], "" if task["value"] is None else f"{task['value']:.2f}")
        for name, task in evaluation["tasks"].items()
    ]
    title = f"### {evaluation['evaluation']}, {evaluation['pooling']} pooling"
    remarks = [evaluation["protocol"], *evaluation["notes"]]
    if not evaluation["complete"]:
        remarks.append("not comparable with published figures")
    return "\n\n".join((title, table(("task", "metric", "value"), rows), ". ".join(remarks) + "."))
