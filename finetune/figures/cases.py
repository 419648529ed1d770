"""SDA's figure 4: pairs with a negation, where each model ranks them, and how much it looks at every word.

The paper gathers the attention weights of the output token; which layer and heads it does not say. Here they
are the last layer's, the mean of its heads, from [CLS] or, under mean pooling, the mean over all tokens; a
word's weight is the sum over its tokens, as a share of the sentence's words. Ranks are shares (%) of the
task's pairs that are less similar, by the gold scores and by each model's cosines.
"""

import re
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from scipy.stats import rankdata

from finetune.encoders.models import EmbeddingModel, open_model
from finetune.figures.drawing import NotThere, new_panels
from pretrain.benchmarks.files import data_root, evenly_spaced
from pretrain.benchmarks.sts_scores import task_cosines
from pretrain.benchmarks.sts_tasks import Pairs, StsFiles

NEGATION = re.compile(r"\b(no|not|nobody|nothing|none|never|neither|nor|without|\w+n't)\b", re.IGNORECASE)
_WIDTH = 9.0  # of the picture, in inches
_LETTERS = 170  # in a line, the model's name among them
_NAME = 31


WordWeights = tuple[list[str], np.ndarray]
"""A sentence's words and the share of the attention that each gets: float64[W], 1 in sum."""


def negated_pairs(pairs: Pairs, count: int) -> list[int]:
    """Return numbers of `count` pairs with a negation on one side, spread evenly over their gold scores."""
    chosen = [
        number
        for number, sides in enumerate(zip(pairs.first, pairs.second))
        if sum(bool(NEGATION.search(side)) for side in sides) == 1
    ]
    chosen.sort(key=lambda number: (pairs.gold[number], number))
    return evenly_spaced(chosen, count)


def ranks(values: np.ndarray) -> np.ndarray:
    """Return for each value, float[P], the share (%) of smaller ones, equal ones counted half: float64[P].

    >>> ranks(np.array([3.0, 1.0, 2.0, 2.0])).tolist()
    [87.5, 12.5, 50.0, 50.0]
    """
    return 100 * (rankdata(values) - 0.5) / len(values)


def words_of(model: EmbeddingModel, sentences: list[str]) -> list[WordWeights]:
    """Return the attention that each word of the sentences gets; raise NotThere for other models."""
    import torch
    from transformers import AutoTokenizer

    from augment.core.pretrained import pretrained, pretrained_model

    if model.source is None or model.encoder is None:
        raise NotThere(f"{model.name} has no attention to read")
    tokenizer = pretrained(AutoTokenizer, model.source.location)
    kind = type(model.encoder.lm)  # attention of packed rows is not kept
    lm = pretrained_model(kind, model.source.location, attn_implementation="eager").eval()
    found = []
    for sentence in sentences:
        encoded = tokenizer(sentence, return_tensors="pt", truncation=True)
        with torch.no_grad():
            attention = lm(**encoded, output_attentions=True).attentions[-1][0].mean(0)  # [T, T]
        of_tokens = (attention[0] if model.pooling == "cls" else attention.mean(0)).double().numpy()
        tokens = [token for token, word in enumerate(encoded.word_ids(0)) if word is not None]
        numbers = [encoded.word_ids(0)[token] for token in tokens]
        weights = np.bincount(numbers, of_tokens[tokens])
        spans = [encoded.word_to_chars(0, word) for word in range(len(weights))]
        found.append(([sentence[start:end] for start, end in spans], weights / weights.sum()))
    return found


def cases(content: dict[str, Any], figure: dict[str, Any]) -> tuple[Figure, str]:
    """Draw the words' weights by the first seed of every row, and tabulate the pairs' ranks."""
    flags = {"task": "SICK-R", "pairs": 6} | figure["flags"]
    (pairs,) = StsFiles(data_root(figure["data"])).load(flags["task"])
    numbers = negated_pairs(pairs, int(flags["pairs"]))
    runs = [(row["name"], row["runs"][0]) for row in content["rows"] if row["runs"]]
    if not runs or not numbers:
        raise NotThere("no row has a model yet" if not runs else "no pair has one negation")
    distinct = list(dict.fromkeys([*pairs.first, *pairs.second]))
    index = {sentence: number for number, sentence in enumerate(distinct)}
    shown = [side for number in numbers for side in (pairs.first[number], pairs.second[number])]
    of_models: list[tuple[str, np.ndarray, list[WordWeights]]] = []
    for name, run in runs:
        model = open_model(run["model"], run["pooling"])
        (similarities,) = task_cosines([pairs], model.encode(distinct), index)
        of_models.append((name, ranks(similarities), words_of(model, shown)))
    gold = ranks(pairs.gold)
    text = [f"Pairs of {flags['task']} with one negation: the share of pairs that are less similar, %", ""]
    text += ["| pair | gold | " + " | ".join(name for name, _, _ in of_models) + " |"]
    text += ["|---" * (len(of_models) + 2) + "|"]
    for number in numbers:
        cells = [f"{pairs.first[number]} / {pairs.second[number]}", f"{gold[number]:.0f}"]
        cells += [f"{of_model[number]:.0f}" for _, of_model, _ in of_models]
        text.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    errors = [
        f"{np.abs(of_model[numbers] - gold[numbers]).mean():.1f} {name}" for name, of_model, _ in of_models
    ]
    text += ["", f"Mean distance of a model's rank to the gold one: {', '.join(errors)}."]
    return _heat_map(shown, of_models), "\n".join(text) + "\n"


def _heat_map(sentences: list[str], of_models: list[tuple[str, np.ndarray, list[WordWeights]]]) -> Figure:
    count = len(sentences) * len(of_models)
    figure, (axis,) = new_panels(1)
    figure.set_size_inches(_WIDTH, 0.26 * count + 0.3)
    row = 0.0
    for number in range(len(sentences)):
        for name, _, of_words in of_models:
            words, weights = of_words[number]
            place = _NAME + 1.0
            axis.text(_NAME, row, name[:_NAME], fontsize=6, ha="right", va="center", color="grey")
            for word, weight in zip(words, weights):
                box = {"boxstyle": "square,pad=0.15", "linewidth": 0}
                box["facecolor"] = colormaps["Reds"](0.75 * weight / weights.max())
                axis.text(place, row, word, fontsize=6, va="center", family="monospace", bbox=box)
                place += len(word) + 1.4
            row += 1
        row += number % 2 * 0.6
    axis.set(xlim=(0, _LETTERS), ylim=(row, -1))
    axis.axis("off")
    return figure
