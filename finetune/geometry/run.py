"""Measure and draw the geometry of one model's vectors."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from augment.core.errors import AugmentationError
from augment.spec.grammar import needs_text, parse
from augment.text.parsing import find_parser, parse_texts
from finetune import clustering, nli_distance
from finetune.encoders.models import EmbeddingModel
from finetune.figures.drawing import histogram, to_png
from finetune.geometry import augmentations, plots
from finetune.geometry.options import GeometryOptions
from finetune.results import Evaluation
from pretrain.benchmarks.files import data_root, evenly_spaced, read_sentences
from pretrain.benchmarks.sts_tasks import StsEvaluator
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.telemetry import monitors

TOP = (1, 2, 5, 10, 20, 50, 100)
NLI_SAMPLE = 20_000
RATIOS = 3.0
"""The largest ratio of two distances that a histogram of them holds."""
PROTOCOL = (
    "alignment and uniformity as Wang and Isola (alpha 2, t 2) on STS-B dev and test; neighbours by cosine "
    "over all points"
)
Triplets = list[tuple[str, str, str]]


def read_inputs(
    options: GeometryOptions, wanted: Sequence[str], required: bool
) -> tuple[dict[str, Any], list[str]]:
    """Read (data by measure, notes on what is missing)."""
    inputs, missing = {}, []
    for name in wanted:
        try:
            inputs[name] = MEASURES[name][0](options)
        except UserError as error:
            if required:
                raise
            missing.append(f"without {name}: {error}")
            print(f"note: {missing[-1]}", file=sys.stderr)
    if not inputs:
        raise UserError("nothing to measure: " + "; ".join(missing))
    return inputs, missing


def measure_model(
    model: EmbeddingModel, inputs: Mapping[str, Any], options: GeometryOptions, folder: Path
) -> Evaluation:
    """Take all measures that `inputs` has data for; write figures below `folder`."""
    started = time.perf_counter()
    evaluation = Evaluation.of(f"geometry-{options.label}" if options.label else "geometry", model, PROTOCOL)
    where = folder / evaluation.file_name
    make_folder(where)
    for name, data in inputs.items():
        print(f"{model.name}: {name}", file=sys.stderr, flush=True)
        MEASURES[name][1](model, data, evaluation)
    evaluation.seconds = time.perf_counter() - started
    for name, figure in plots.all_figures([(model.name.rstrip("/").rsplit("/", 1)[-1], evaluation)]).items():
        replace_durably(where / f"{name}.png", to_png(figure))
    return evaluation


def read_sts(options: GeometryOptions) -> list:
    files = StsEvaluator(data_root(options.eval_data))
    return [*files.load("STS-B"), *files.load("STS-B-dev")]


def measure_sts(model: EmbeddingModel, pairs: Sequence, evaluation: Evaluation) -> None:
    """Measure alignment over pairs scored above 4 (SimCSE, footnote 3), the rest over all sentences.

    The average cosine is Ethayarajh's (2019), the effective rank Roy and Vetterli's (2007), of centred unit
    vectors.
    """
    first = [s for part in pairs for s in part.first]
    second = [s for part in pairs for s in part.second]
    gold = np.concatenate([part.gold for part in pairs])
    distinct = list(dict.fromkeys([*first, *second]))
    place = {sentence: number for number, sentence in enumerate(distinct)}
    above = gold > 4
    if not above.any():
        raise UserError("no STS-B pair has a score above 4: the files are not STS-B's")
    points = torch.from_numpy(augmentations.unit(model.encode(distinct)))
    sides = (points[[place[s] for s in np.array(side)[above]]] for side in (first, second))
    close = {"alignment": monitors.alignment(*sides).item()}
    evaluation.add("alignment", "alignment", close, pairs=int(above.sum()))
    spread = {"uniformity": monitors.uniformity(points).item()}
    evaluation.add("uniformity", "uniformity", spread, sentences=len(distinct))
    isotropy = {
        "average_cosine": monitors.negative_cosine(points, points).item(),
        "effective_rank": monitors.effective_rank(points).item(),
    }
    evaluation.add("isotropy", "average_cosine", isotropy)


def neighbourhood(vectors: np.ndarray, classes: np.ndarray, top: Sequence[int]) -> dict[str, list]:
    """Return VaSCL's figure 2a by 1 - cosine: mean purity of and distance to the K nearest."""
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=top[-1], algorithm="brute").fit(augmentations.unit(vectors))
    distances, found = index.kneighbors()  # of a point itself none
    counts = np.arange(1, top[-1] + 1) * len(found)
    purity = (classes[found] == classes[:, None]).sum(0).cumsum() / counts
    mean = (np.square(distances) / 2).sum(0).cumsum() / counts
    at = [k - 1 for k in top]
    return {"top": list(top), "purity": purity[at].tolist(), "distance": mean[at].tolist()}


def measure_neighbourhoods(
    model: EmbeddingModel, sets: Mapping[str, clustering.LabelledTexts], evaluation: Evaluation
) -> None:
    """Measure purity (x 100) of and distance to the top K, by cosine. The headline is purity at 10."""
    for name, data in sets.items():
        top = [k for k in TOP if k < len(data.texts)]
        found = neighbourhood(model.encode(data.filled), data.labels, top)
        scores: dict[str, float] = {}
        for k, purity, distance in zip(*found.values(), strict=True):
            scores |= {f"cosine_purity@{k}": 100 * purity, f"cosine_distance@{k}": distance}
        headline = f"cosine_purity@{10 if 10 in top else top[-1]}"
        details: dict[str, Any] = {"set": name, "points": len(data.texts), "classes": data.classes}
        evaluation.add(f"neighbourhood/{name}", headline, scores, cosine=found, **details)


def read_nli(options: GeometryOptions) -> tuple[Triplets, str]:
    """Read (premise, entailed, contradicting), at most `NLI_SAMPLE` of them, and the file's name."""
    (file,) = nli_distance.find_files("triplets", options.eval_data)
    rows = nli_distance.read_triplets(file)
    if len(rows) > NLI_SAMPLE:
        chosen = np.random.default_rng(options.seed).choice(len(rows), NLI_SAMPLE, replace=False)
        rows = [rows[n] for n in np.sort(chosen)]
    return rows, file.name


def measure_nli(model: EmbeddingModel, data: tuple[Triplets, str], evaluation: Evaluation) -> None:
    """Measure the distances to premises; the headline is how often (%) entailment is nearer."""
    triplets, file = data
    premises, entailed, contradicting = (model.encode(side) for side in zip(*triplets))
    near, far = (augmentations.pair_distances(premises, side) for side in (entailed, contradicting))
    ratios = near[far > 0] / far[far > 0]
    scores = {
        "cosine_entailment_nearer": 100 * float((near < far).mean()),
        "cosine_entailment": float(near.mean()),
        "cosine_contradiction": float(far.mean()),
        "cosine_ratio_median": float(np.median(ratios)) if len(ratios) else float("nan"),
    }
    drawn = {"entailment": histogram(near), "contradiction": histogram(far)}
    drawn["ratio"] = histogram(ratios, highest=RATIOS)
    details: dict[str, Any] = {"triplets": len(triplets), "file": file, **drawn}
    evaluation.add("nli", "cosine_entailment_nearer", scores, **details)
    evaluation.notes.append(
        f"nli: {len(triplets):,} triplets of {file}; VaSCL sampled 20,000 premises of SNLI and MNLI"
    )


Augmentable = tuple[list[str], str, list | None, GeometryOptions]
"""Sentences, where they are from, their parses if an augmentation reads them, and what is asked."""


def read_augmentation(options: GeometryOptions) -> Augmentable:
    """Read the sentences of `text_file`, or of STS-B, evenly spaced."""
    if options.text_file:
        source = Path(options.text_file).name
        texts = read_sentences(Path(options.text_file), "text-file")
    else:
        source = "STS-B dev and test"
        sides = [side for part in read_sts(options) for side in (part.first, part.second)]
        texts = list(dict.fromkeys(text for side in sides for text in side))
    texts = evenly_spaced(texts, options.sentences)
    parsed = any(needs_text(one) for one in options.augmentations)
    return texts, source, list(parse_texts(texts, find_parser(options.parser))) if parsed else None, options


def measure_augmentations(model: EmbeddingModel, data: Augmentable, evaluation: Evaluation) -> None:
    """Measure every augmentation; one that cannot be had here is an error if it was named, else a note."""
    sentences, source, parses, options = data
    augmented = augmentations.AugmentedSentences(
        model, sentences, options.seed, parses, synonyms=options.synonyms
    )
    for specification in options.augmentations or augmentations.DEFAULTS:
        try:
            view = augmented.view(specification)
        except AugmentationError as error:
            parse(specification)  # a wrong one is an error in any case
            if options.aug:
                raise
            evaluation.notes.append(f"without {specification}: {error}")
            continue
        print(f"{model.name}: augmentation {view.name}", file=sys.stderr, flush=True)
        scores, count = augmentations.compare(augmented, view), int(view.changed.sum())
        if "cosine" not in scores:
            evaluation.notes.append(f"{view.name} changes {count} of {len(sentences)} sentences: too few")
        metric = "cosine" if "cosine" in scores else "changed"
        spread = scores.get("cosine_std")
        evaluation.add(f"augmentation/{view.name}", metric, scores, spread, sentences=count)
    evaluation.notes += augmented.notes
    evaluation.notes.append(
        f"augmentations: {len(sentences):,} sentences of {source}; figures over those that change"
    )


MEASURES: dict[
    str, tuple[Callable[[GeometryOptions], Any], Callable[[EmbeddingModel, Any, Evaluation], None]]
] = {
    "sts": (read_sts, measure_sts),
    "neighbourhood": (
        lambda options: {
            name: clustering.EVALUATION.read(name, options.eval_data) for name in options.neighbours
        },
        measure_neighbourhoods,
    ),
    "nli": (read_nli, measure_nli),
    "augmentation": (read_augmentation, measure_augmentations),
}
"""What each measure reads, and what it adds to an evaluation."""
