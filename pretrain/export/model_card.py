"""Write the model card of an export from what the run recorded.

Sections are those of the hub's own template (huggingface_hub/templates/modelcard_template.md), in its order.
One that the run knows nothing about is left out.
"""

from pathlib import Path
from typing import Any

from pretrain.telemetry.formats import flatten, format_count, format_seconds
from pretrain.telemetry.metrics_file import read_metrics

CITATION = """@article{wu2020clear,
  title   = {CLEAR: Contrastive Learning for Sentence Representation},
  author  = {Wu, Zhuofeng and Wang, Sinong and Gu, Jiatao and Khabsa, Madian and Sun, Fei and Ma, Hao},
  journal = {arXiv preprint arXiv:2012.15466},
  year    = {2020}
}"""

PAPERS = {
    "mlm": "Devlin et al. 2019, BERT (masked language modelling), arXiv:1810.04805",
    "simcse": "Gao, Yao and Chen 2021, SimCSE, arXiv:2104.08821",
    "vascl": "Zhang et al. 2022, Virtual Augmentation Supported Contrastive Learning, arXiv:2110.08552",
    "augcse": "Tang et al. 2022, AugCSE, arXiv:2210.13749",
    "vadvcse": "Ko, V-advCSE: Virtual Adversarial Contrastive Learning for Sentence Embeddings",
    "sda": "Zhu et al., SDA: Simple Discrete Augmentation for Contrastive Sentence Representation Learning",
    "diffcse": "Chuang et al. 2022, DiffCSE, arXiv:2204.10298",
    "esimcse": "Wu et al. 2022, ESimCSE, arXiv:2109.04380",
    "declutr": "Giorgi et al. 2021, DeCLUTR, arXiv:2006.03659",
}

SCORES = {
    "heldout_mlm_loss": "held-out masked-language loss (nats per token)",
    "partner_found": "top-1 retrieval of the other view (share)",
    "partner_among": "... candidates",
    "partner_loss": "held-out contrastive loss (nats)",
    "stsb-dev": "STS-B dev, cosine Spearman x 100",
}


EVALUATION = "## Evaluation"
AFTER_EVALUATION = "## Technical Specifications"
"""The section that follows, which every card has."""


def model_card(policy: dict[str, Any], metrics: Path, parameters: int, architecture: str) -> str:
    """Return the README.md of an export.

    Args:
        policy: the content of clear.json.
        metrics: the run's metrics.jsonl; records after the exported step are left out.
        parameters: how many the masked language model has.
        architecture: transformers' model type.
    """
    records = [record for record in read_metrics(metrics) if record.get("step", 0) <= policy["step"]]
    recipe = policy["recipe"]
    evaluated = table(
        "### Results", *_scores(records, "at start" if recipe["model"].get("init") else "untrained")
    )
    sections = [
        _front_matter(recipe),
        f"# Model Card for {recipe['name']}\n\nA sentence encoder, trained {_objective(recipe)}.",
        _details(policy, parameters, architecture),
        _uses(policy, recipe),
        _limits(recipe),
        _usage(policy["pooling"], policy["kept_head"]),
        _dimensions(recipe["objective"].get("matryoshka") or []),
        _training(policy, recipe, policy["progress"]),
        table("#### Losses", *_losses(records)),
        f"{EVALUATION}\n\n{evaluated}" if evaluated else "",
        _software(policy["versions"]),
        _citation(recipe),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


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


def _front_matter(recipe: dict[str, Any]) -> str:
    tags = [
        "sentence-transformers",
        "sentence-similarity",
        "feature-extraction",
        "fill-mask",
        *_parts(recipe),
    ]
    init = recipe["model"].get("init")
    # the hub knows no folders, and one that is gone may name a person
    is_folder = init is not None and (Path(init).is_absolute() or Path(init).exists())
    base = f"base_model: {init}\n" if init and not is_folder else ""
    return (
        "---\nlibrary_name: sentence-transformers\npipeline_tag: sentence-similarity\n"
        f"{base}tags:\n" + "".join(f"- {tag}\n" for tag in tags) + "---"
    )


def _details(policy: dict[str, Any], parameters: int, architecture: str) -> str:
    head, start = policy["kept_head"], without_folders(policy["recipe"]["model"].get("init"))
    through = (
        f", through the head it was trained with (`{head['folder']}`: a linear map and tanh)" if head else ""
    )
    lines = [
        f"- **Model type:** {architecture}, {format_count(parameters)} parameters, {policy['hidden_size']} "
        f"dimensions, sequences of up to {policy['max_length']} tokens",
        f"- **Sentence vectors:** {_pooling(policy['pooling'])}{through}"
        + (", scaled to length 1" if policy.get("normalize") else ""),
        *([f"- **Finetuned from model:** {start}"] if start else []),
    ]
    return "## Model Details\n\n### Model Description\n\n" + "\n".join(lines)


def _uses(policy: dict[str, Any], recipe: dict[str, Any]) -> str:
    masked = " It predicts masked tokens, too." if _is_masked(recipe) else ""
    return f"""## Uses

### Direct Use

Vectors of sentences, compared by their cosine: similarity, search, clustering, features for a
classifier.{masked}

### Downstream Use

It can be fine-tuned as any encoder of transformers.

### Out-of-Scope Use

Text of other languages or domains than its training text's. Of a text of more than
{policy["max_length"]} tokens the rest is cut off."""


def _parts(recipe: dict[str, Any]) -> list[str]:
    """Return the summands of the objective; a user's own is named by its class."""
    return [part.rpartition(":")[2] for part in recipe["objective"]["name"].split("+")]


def _objective(recipe: dict[str, Any]) -> str:
    init = recipe["model"].get("init")
    start = f"from {without_folders(init)}" if init else "from random weights"
    others = [part for part in _parts(recipe) if part != "mlm"]
    if not others:
        return f"{start} by masked language modelling"
    views = recipe["augment"]
    first, second = views.get("anchor") or views["spec"], views.get("positive") or views["spec"]
    named = f"`{first}`" if first == second else f"`{first}` and `{second}`"
    first_of_two = "masked language modelling and " if _is_masked(recipe) else ""
    return (
        f"{start} by {first_of_two}a contrastive loss between views of a sentence (objective "
        f"`{'+'.join(others)}`, augmentation {named})"
    )


def _is_masked(recipe: dict[str, Any]) -> bool:
    """Return whether the masked-language loss was trained, alone or beside others."""
    return recipe["objective"]["mlm"]["weight"] > 0 and recipe["objective"]["mlm"]["copies"] > 0


def _citation(recipe: dict[str, Any]) -> str:
    """Name the paper of every loss that was trained."""
    parts = dict.fromkeys([*_parts(recipe), *(["mlm"] if _is_masked(recipe) else [])])
    bibtex = [f"```bibtex\n{CITATION}\n```"] if "clear" in parts else []
    known = "\n".join(f"- {PAPERS[part]}" for part in parts if part in PAPERS)
    methods = [*bibtex, *([known] if known else [])]
    return "\n\n".join(["## Citation\n\nThe method:", *methods]) if methods else ""


def _pooling(pooling: str) -> str:
    return {
        "cls": "the last layer's state of the first token",
        "mean": "the mean over the tokens of the last layer",
        "first-last": "the mean over the tokens of the first and the last layer",
        "embedding-last": "the mean over the tokens of the embedding layer and the last layer",
        "last-two": "the mean over the tokens of the last two layers",
    }[pooling]


def _usage(pooling: str, head: dict[str, str] | None) -> str:
    pools = f"pools as trained ({pooling})" + (", then the head" if head else "")
    kept = f"`AutoModel` alone lacks the head in `{head['folder']}`. " if head else ""
    return f"""## How to Get Started with the Model

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH")  # this folder; {pools}
vectors = model.encode(["A man is playing a guitar.", "Someone plays an instrument."])
print(model.similarity(vectors, vectors))
```

```python
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH")
# a pooler_output, where the type has one, was not trained: don't use it
encoder = AutoModel.from_pretrained("PATH")
masked = AutoModelForMaskedLM.from_pretrained("PATH")
```

{kept}`heads.safetensors` has all heads that were trained on top of the pooled vectors, if any; embedding does
not need it. `training_config.yaml` is the whole recipe."""


def _dimensions(widths: list[int]) -> str:
    """Say how to use fewer coordinates, where contrastive losses were of vectors cut to several widths."""
    if not widths:
        return ""
    listed = ", ".join(map(str, sorted(widths, reverse=True)))
    return f"""### Fewer dimensions

Vectors were trained at {listed} dimensions (Matryoshka representation learning, Kusupati et al. 2022): the
first coordinates of a vector are a vector. Compare cut vectors by their cosine.

```python
model = SentenceTransformer("PATH", truncate_dim={min(widths)})
```"""


def _training(policy: dict[str, Any], recipe: dict[str, Any], progress: dict[str, Any]) -> str:
    train = recipe["train"]
    data = policy["data"]
    sources = data.get("sources") or [data["folder"]]
    corpus = ", ".join(without_folders(sources))
    if "sequences" in data:
        corpus += f": {data['sequences']:,} sequences ({data['unit']}), {format_count(data['tokens'])} tokens"
    growth = f" from step {train['batch_warmup_steps']:,} on" if train.get("batch_warmup_steps") else ""
    decay = f" over the last {train['decay_steps']:,} steps" if train.get("decay_steps") else ""
    settings: list[tuple[str, ...]] = [
        ("sequences a step", f"{train['global_batch']:,}" + growth),
        (
            "optimizer",
            f"{train['optimizer']}, betas {tuple(train['betas'])}, weight decay {train['weight_decay']}",
        ),
        (
            "learning rate",
            f"{train['lr']:g}, warm-up {train['warmup_steps']:,} steps, then {train['schedule']}" + decay,
        ),
        ("training regime", f"{train['precision']}, ZeRO stage {train['zero']}"),
    ]
    for part in _parts(recipe):
        options = recipe["objective"].get("contrastive" if part == "clear" else part) or {}
        if part != "mlm" and options:
            given = [f"{key} {value}" for key, value in options.items() if value is not None]
            settings.append((f"objective {part}", ", ".join(given)))
    done: list[tuple[str, ...]] = [("steps", f"{policy['step']:,} of {train['steps']:,}")]
    if progress.get("tokens"):
        done.append(("tokens trained on, views included", format_count(progress["tokens"])))
    if progress.get("seconds"):
        done.append(("training time", format_seconds(progress["seconds"])))
    tables = [
        f"## Training Details\n\n### Training Data\n\n{corpus}\n\nTokenizer: sha256 "
        f"{policy['tokenizer_hash'][:16]}...",
        "### Training Procedure",
        table("#### Training Hyperparameters", ("what", "value"), settings),
        table("#### Speeds, Sizes, Times", ("what", "value"), done),
    ]
    return "\n\n".join(tables)


def _software(versions: dict[str, str]) -> str:
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{AFTER_EVALUATION}\n\n### Compute Infrastructure\n\n#### Software\n\n{listed}"


def _scores(records: list[dict[str, Any]], begin: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    evaluations = [
        (record["step"], dict(flatten(record["evaluation"]))) for record in records if "evaluation" in record
    ]
    if not evaluations:
        return (), []
    (first_step, first), (last_step, last) = evaluations[0], evaluations[-1]
    start = begin if first_step == 0 else f"step {first_step:,}"
    if first_step == last_step:
        return ("measure", start), [(SCORES.get(name, name), f"{value:.4g}") for name, value in last.items()]
    rows: list[tuple[str, ...]] = [
        (SCORES.get(name, name), f"{first[name]:.4g}" if name in first else "", f"{value:.4g}")
        for name, value in last.items()
    ]
    return ("measure", start, f"step {last_step:,}"), rows


def _losses(records: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return a table of at most eight evenly spaced records, the last one included."""
    training = [record for record in records if isinstance(record.get("loss"), dict)]
    if not training:
        return (), []
    count = min(8, len(training))
    chosen = [training[round(i * (len(training) - 1) / max(1, count - 1))] for i in range(count)]
    names = list(training[-1]["loss"])
    rows = []
    for record in chosen:
        losses = dict(flatten(record["loss"]))
        rows.append(
            (f"{record['step']:,}", *(f"{losses[name]:.4f}" if name in losses else "" for name in names))
        )
    return ("step", *names), rows


def table(heading: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a section that is a table in Markdown; empty without rows."""
    if not rows:
        return ""
    lines = [header, tuple("---" for _ in header), *rows]
    text = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    return f"{heading}\n\n" + "\n".join(f"| {line} |" for line in text)


def _limits(recipe: dict[str, Any]) -> str:
    supervised = "simcse" in _parts(recipe) and recipe["objective"]["simcse"]["hard_negatives"]
    tuned = (
        "tuned on the positives and hard negatives that its data gives"
        if supervised
        else "not tuned on labelled pairs"
    )
    return (
        "## Bias, Risks, and Limitations\n\nThe model knows what its training text knew, biases included, in "
        f"the language of that text. It was {tuned}; the scores below were measured in the run."
    )
