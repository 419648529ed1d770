"""The commands, how this process was started, and which version of this program it is."""

import functools
import shlex
import sys
from contextlib import suppress
from pathlib import Path

DISTRIBUTION = "sentence-clear"
"""The name under which pip knows Clearly, and by which checkpoints and exports record its version."""
_SOURCES = Path(__file__).resolve().parents[2]
COMMANDS = {
    "prepare": ("pretrain.prepare", "raw text in, a tokenizer and shuffled, de-duplicated shards out"),
    "cache": ("pretrain.prepare.cache", "views of prepared data, made once"),
    "recipes": ("pretrain.commands.recipes", "the recipes that --config takes, each with what it is for"),
    "train": ("pretrain.main", "pretrain or post-train an encoder, evaluate and export it"),
    "adapt": ("pretrain.commands.adapt", "continue an encoder on your own text, and compare with its start"),
    "inspect": ("pretrain.commands.inspect", "a training batch as the model will see it, decoded"),
    "augment": ("pretrain.commands.augment", "what augmentations do to sentences"),
    "plan": ("pretrain.commands.plan", "memory and time of a run, before it starts"),
    "mine": ("pretrain.commands.mine", "hard negatives for labelled pairs: triples to train on"),
    "sweep": ("pretrain.commands.sweep", "several runs and seeds, one table, with intervals"),
    "eval": ("finetune.evaluate", "an encoder by a suite of evaluations, within a budget of time"),
    "export": ("pretrain.commands.export", "an encoder for sentence-transformers: whole, whitened, static"),
    "compare": ("finetune.compare", "what differs between runs: recipes, curves, scores with intervals"),
    "search": ("finetune.search", "the sentences of a text that mean most nearly what a query means"),
    "convert": ("pretrain.commands.convert", "pickled weights of a model to safetensors"),
    "show": ("pretrain.commands.show", "one page on a run: curves, a batch, search before and after"),
    "verify": ("pretrain.commands.verify", "whether a run has read its data, and its weights come from it"),
    "record": ("pretrain.commands.record", "the board: encoders from raw text within a time, re-executable"),
    "doctor": ("pretrain.commands.doctor", "what this machine has, what will fail on it, and what to do"),
    "report": ("finetune.report", "one page about runs and models, side by side"),
    "benchmarks": ("finetune.data", "which data sets of the evaluations are there; gets one from the hub"),
    # the evaluations, one by one
    "sts": ("finetune.sts", "similarity: seven STS tasks, by several poolings in one pass"),
    "senteval": ("finetune.senteval", "SentEval: similarity, transfer and probing tasks"),
    "glue": ("finetune.glue", "GLUE, fine-tuned by RoBERTa's recipe"),
    "anli": ("finetune.anli", "adversarial NLI, fine-tuned"),
    "clustering": ("finetune.clustering", "short texts, by k-means"),
    "intents": ("finetune.intents", "few-shot intents"),
    "nanobeir": ("finetune.nanobeir", "retrieval"),
    "own-sets": ("finetune.own_sets", "test sets of your own: similarity, labels, retrieval"),
    "mteb-english": ("finetune.mteb_english", "MTEB(eng, v2), by the library mteb"),
    "nli-distance": ("finetune.nli_distance", "whether entailment is nearer than contradiction"),
    "cola-probe": ("finetune.cola_probe", "CoLA on frozen vectors"),
    "zh-sts": ("finetune.zh_sts", "Chinese STS-B"),
    "geometry": ("finetune.geometry", "alignment, uniformity, isotropy, what each augmentation does"),
    "figures": ("finetune.figures", "figures of a sweep's table"),
}
"""Word of `clearly` -> the module that it starts, and what it does."""


def program() -> str:
    """Return how this process is started: "clearly sweep", "python pretrain/main.py"."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name.startswith("pytest"):
        return f"python {shlex.quote(sys.argv[0])}"
    module = spec.name.removesuffix(".__main__")
    words = (f"clearly {word}" for word, (name, _) in COMMANDS.items() if name == module)
    return next(words, f"python -m {module}")


@functools.cache
def own_version() -> str:
    """Return the version and the commit, as "0.1.0, commit 1a2b...-dirty"; what is not known is left out."""
    from importlib.metadata import PackageNotFoundError, version  # takes a while: not of every command

    parts = []
    with suppress(PackageNotFoundError):
        parts.append(version(DISTRIBUTION))
    if commit := _commit():
        parts.append(f"commit {commit}")
    return ", ".join(parts)


def _commit() -> str:
    """Return the commit of the checkout that this program is; empty: it was installed without one."""
    if not (_SOURCES / ".git").exists():
        return ""
    import subprocess

    # a command that only looks must not wait for, nor take, the lock of the index
    words = ["git", "--no-optional-locks", "-C", str(_SOURCES)]
    words += ["describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
