"""Measure and draw the geometry of one model's vectors; `read_inputs` finds what there is to measure on."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from augment.text.parsed import ParsedSentence
from finetune.encoders.models import EmbeddingModel
from finetune.files import csv_columns, data_root, find, read_sentences, spaced
from finetune.geometry import measures, plots
from finetune.geometry.augmentations import AugmentedSentences, View, compare, default_specifications, views
from finetune.geometry.isomorphism import measure_isomorphism, read_sets
from finetune.geometry.projector import write_projector
from finetune.intents import sets as intents
from finetune.nli_distance import read_triplets, triplets_file
from finetune.results import Evaluation, TaskResult
from finetune.sts.tasks import StsFiles
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.telemetry.monitors import effective_rank

TOP = (1, 2, 5, 10, 20, 50, 100)
NLI_SAMPLE = 20_000
RATIOS = 3.0
"""The largest ratio of two distances that a histogram of them holds."""
PLOTTED = 150
"""Sentences of the scatter plots, each with all its views."""
ISOTROPY_SOURCES = {
    "average_cosine": "Ethayarajh 2019",
    "partition_ratio": "Mu and Viswanath 2018, vectors as they are",
    "partition_ratio_unit": "the same on unit vectors",
    "isoscore": "Rudman et al. 2022",
    "effective_rank": "Roy and Vetterli 2007, centred unit vectors",
}
PROTOCOL = (
    "alignment and uniformity as Wang and Isola (alpha 2, t 2) on STS-B dev and test; neighbours by cosine "
    "over all points; "
    "isomorphism of raw vectors' spectra, bottleneck distance in dimension 0 of normalised, centred, "
    "normalised vectors"
)


def measure_model(
    model: EmbeddingModel,
    inputs: dict,
    aug: Sequence[str],
    seed: int,
    folder: Path,
    label: str = "",
    synonyms: str = "",
) -> Evaluation:
    """Take all measures that `inputs` has data for; write figures and projector files below `folder`.

    label: behind the evaluation's name. synonyms: of the augmentation subs; "": the default ones.
    """
    started = time.perf_counter()
    evaluation = Evaluation.of(f"geometry-{label}" if label else "geometry", model, PROTOCOL)
    where = figure_folder(folder, evaluation)
    make_folder(where)
    if "sts" in inputs:
        _say(model, "alignment, uniformity, isotropy")
        measure_sts(model, inputs["sts"], evaluation)
    for name, (texts, labels) in inputs.get("neighbourhood", {}).items():
        _say(model, f"neighbourhoods in {name}")
        measure_neighbourhood(model, name, texts, labels, evaluation)
    if "nli" in inputs:
        _say(model, "premises, entailments, contradictions")
        triplets, file = inputs["nli"]
        measure_nli(model, triplets, file, evaluation)
    if "isomorphism" in inputs:
        _say(model, "isomorphism of anchors, entailed and contradicting sentences")
        measure_isomorphism(model, inputs["isomorphism"], evaluation)
    if "augmentation" in inputs:
        sentences, source, parses = inputs["augmentation"]
        measure_augmentations(model, sentences, source, parses, aug, seed, evaluation, where, synonyms)
    evaluation.seconds = time.perf_counter() - started
    with plots.style():
        for name, draw in plots.all_figures(
            [(model.name.rstrip("/").rsplit("/", 1)[-1], evaluation)]
        ).items():
            figure = draw()
            if figure is not None:
                replace_durably(where / f"{name}.png", plots.to_png(figure))
                plots.plt.close(figure)
    return evaluation


def measure_sts(model: EmbeddingModel, pairs: Sequence, evaluation: Evaluation) -> None:
    """Measure alignment over pairs scored above 4 (SimCSE, footnote 3), the rest over all sentences."""
    first = [s for part in pairs for s in part.first]
    second = [s for part in pairs for s in part.second]
    gold = np.concatenate([part.gold for part in pairs])
    distinct = list(dict.fromkeys([*first, *second]))
    place = {sentence: number for number, sentence in enumerate(distinct)}
    vectors = model.encode(distinct)
    u, v = vectors[[place[s] for s in first]], vectors[[place[s] for s in second]]
    above, at_least = gold > 4, gold >= 4
    if not above.any():
        raise UserError(
            "no STS-B pair has a score above 4: there are no positives to align; the files are not STS-B's"
        )
    close, closer = measures.alignment(u[at_least], v[at_least]), measures.alignment(u[above], v[above])
    counts = int(above.sum()), int(at_least.sum())
    scores = {"alignment": closer, "alignment_4_and_above": close}
    evaluation.add("alignment", "alignment", scores, pairs=counts[0], pairs_4_and_above=counts[1])
    spread = measures.uniformity(vectors)
    evaluation.add("uniformity", "uniformity", {"uniformity": spread}, sentences=len(distinct))
    isotropy = {
        "average_cosine": measures.average_cosine(vectors),
        "partition_ratio": measures.partition_ratio(vectors),
        "partition_ratio_unit": measures.partition_ratio(measures.unit(vectors)),
        "effective_rank": effective_rank(torch.from_numpy(measures.unit(vectors))).item(),
    }
    if len(vectors) > vectors.shape[1] > 1:
        isotropy["isoscore"] = measures.isoscore(vectors)
    else:
        evaluation.notes.append(f"no IsoScore: {len(vectors)} sentences for {vectors.shape[1]} dimensions")
    evaluation.add("isotropy", "average_cosine", isotropy, sources=ISOTROPY_SOURCES)


def measure_neighbourhood(
    model: EmbeddingModel, name: str, texts: Sequence[str], labels: Sequence[str], evaluation: Evaluation
) -> None:
    """Measure purity (x 100) and distance by top K, by cosine and by Euclidean distance.

    The headline is cosine's purity at 10.
    """
    vectors = model.encode(texts)
    top = [k for k in TOP if k < len(texts)]
    found = {kind: measures.neighbourhood(vectors, labels, top, kind) for kind in measures.DISTANCES}
    scores = {}
    for kind, result in found.items():
        for k, purity, distance in zip(result.top, result.purity, result.distance, strict=True):
            scores[f"{kind}_purity@{k}"], scores[f"{kind}_distance@{k}"] = 100 * purity, distance
    headline = f"cosine_purity@{10 if 10 in top else top[-1]}"
    details: dict[str, Any] = {
        kind: {"top": r.top, "purity": r.purity, "distance": r.distance} for kind, r in found.items()
    }
    details |= {"set": name, "points": len(texts), "classes": len(set(labels))}
    evaluation.add(f"neighbourhood/{name}", headline, scores, **details)


def measure_nli(
    model: EmbeddingModel, triplets: Sequence[tuple[str, str, str]], file: str, evaluation: Evaluation
) -> None:
    """Measure the distances premise-entailment and premise-contradiction.

    The headline is how often (%) entailment is nearer.
    """
    sides = [model.encode([triplet[side] for triplet in triplets]) for side in range(3)]
    scores: dict[str, float] = {}
    details: dict[str, Any] = {"triplets": len(triplets), "file": file}
    for kind in measures.DISTANCES:
        near, far = (measures.pair_distances(sides[0], side, kind) for side in sides[1:])
        ratios = near[far > 0] / far[far > 0]
        scores |= {
            f"{kind}_entailment_nearer": 100 * float((near < far).mean()),
            f"{kind}_entailment": float(near.mean()),
            f"{kind}_contradiction": float(far.mean()),
            f"{kind}_ratio_median": float(np.median(ratios)) if len(ratios) else float("nan"),
        }
        if kind == "cosine":
            details |= {
                "entailment": plots.histogram(near),
                "contradiction": plots.histogram(far),
                "difference": plots.histogram(far - near),
                "ratio": plots.histogram(ratios, highest=RATIOS),
            }
    evaluation.add("nli", "cosine_entailment_nearer", scores, **details)
    evaluation.notes.append(
        f"nli: {len(triplets):,} triplets of {file}; VaSCL sampled 20,000 premises of SNLI and MNLI"
    )


def measure_augmentations(
    model: EmbeddingModel,
    sentences: Sequence[str],
    source: str,
    parses: Sequence[ParsedSentence] | None,
    aug: Sequence[str],
    seed: int,
    evaluation: Evaluation,
    where: Path,
    synonyms: str = "",
) -> None:
    """Measure every augmentation, and the projections; write the projector's files.

    parses: of the sentences, for augmentations of text.
    """
    augmented = AugmentedSentences(model, sentences, seed, parses, synonyms=synonyms)
    if not augmented.has_mlm_head:
        evaluation.notes.append(f"no pseudo-perplexity: {augmented.why_no_perplexity}")
    made = views(
        augmented,
        aug or default_specifications(),
        bool(aug),
        lambda name: _say(model, f"augmentation {name}"),
    )
    evaluation.notes += augmented.notes
    evaluation.notes.append(
        f"augmentations: {len(sentences):,} sentences of {source}; figures over those that change"
    )
    if any(view.changed.sum() > measures.AS_CODED_LIMIT for view in made):
        evaluation.notes.append(
            f"gromov_hausdorff_as_coded: over {measures.AS_CODED_LIMIT:,} of the sentences that change, "
            "evenly spaced, since it holds their distances at once"
        )
    for view in made:
        scores = compare(augmented, view)
        if "cosine" not in scores:
            evaluation.notes.append(
                f"{view.name} changes {view.changed.sum()} of {len(view.changed)} sentences: too few"
            )
        metric = "cosine" if "cosine" in scores else "changed"
        spread, count = scores.get("cosine_std"), int(view.changed.sum())
        evaluation.add(f"augmentation/{view.name}", metric, scores, spread, sentences=count)
    if made:
        _say(model, "PCA, t-SNE, projector files")
        evaluation.tasks["projection"] = project(augmented, made, seed)
        project_files(augmented, made, seed, where / "projector")


def project(augmented: AugmentedSentences, made: Sequence[View], seed: int) -> TaskResult:
    """Project a sample of originals and all their views by PCA and t-SNE (scikit-learn).

    The headline is PCA's share of variance (%).
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    names, which, vectors = _sampled(augmented, made, seed)
    if len(vectors) < 4:
        raise UserError(f"{len(vectors)} sentences and views are too few to project; give more --sentences")
    pca = PCA(2, random_state=seed).fit(vectors)
    tsne = TSNE(2, perplexity=min(30.0, (len(vectors) - 1) / 3), init="pca", random_state=seed).fit_transform(
        vectors
    )
    points = {"pca": pca.transform(vectors), "tsne": tsne}
    details: dict = {
        "sentences": len(set(which)),
        "pca_variance": [float(v) for v in pca.explained_variance_ratio_],
    }
    for method, cloud in points.items():
        details[method] = {}
        for name, (x, y) in zip(names, cloud, strict=True):
            details[method].setdefault(name, []).append([round(float(x), 4), round(float(y), 4)])
    share = 100 * float(pca.explained_variance_ratio_.sum())
    return TaskResult("pca_variance", share, {"pca_variance": share}, details=details)


def project_files(augmented: AugmentedSentences, made: Sequence[View], seed: int, folder: Path) -> None:
    """Write the same sample for TensorBoard's projector, coloured by augmentation, labelled by text."""
    names, which, vectors = _sampled(augmented, made, seed)
    rows = {view.name: view.rows for view in made}
    texts = [
        augmented.sentences[n] if name == "original" else augmented.text(rows[name][n])
        for name, n in zip(names, which)
    ]
    write_projector(folder, "sentences", vectors, {"text": texts, "augmentation": names, "sentence": which})


def _sampled(
    augmented: AugmentedSentences, made: Sequence[View], seed: int
) -> tuple[list[str], list[int], np.ndarray]:
    """Return (augmentation, sentence number, vector) of every view of a sampled sentence that changes it."""
    count = len(augmented.sentences)
    chosen = np.sort(np.random.default_rng(seed).choice(count, min(PLOTTED, count), replace=False))
    names, which, vectors = ["original"] * len(chosen), chosen.tolist(), [augmented.vectors[chosen]]
    for view in made:
        kept = chosen[view.changed[chosen]]
        names += [view.name] * len(kept)
        which += kept.tolist()
        vectors.append(view.vectors[kept])
    return names, which, np.concatenate(vectors)


def figure_folder(folder: Path, evaluation: Evaluation) -> Path:
    """Return the folder of a geometry evaluation's figures: beside its JSON, under the same name."""
    return folder / f"{evaluation.evaluation}-{evaluation.pooling.replace(' ', '-')}"


# -- inputs ------------------------------------------------------------


def read_inputs(
    data: str, wanted: Sequence[str], required: bool, sets: Sequence[str], text: str, count: int, seed: int
) -> tuple[dict, list[str]]:
    """Read (data by measure, notes on what is missing).

    Before any model: a damaged file should not cost the loading.
    """

    def sts() -> list:
        root = data_root(data)
        evaluator = StsFiles(root)
        return [*evaluator.load("STS-B"), *evaluator.load("STS-B-dev")]

    def sentences() -> tuple[list[str], str, None]:
        if text:
            return spaced(read_sentences(Path(text), "text-file"), count), Path(text).name, None
        found = dict.fromkeys(s for part in sts() for side in (part.first, part.second) for s in side)
        return spaced(list(found), count), "STS-B dev and test", None

    readers = {
        "sts": sts,
        "neighbourhood": lambda: {name: _read_labelled(name, data) for name in sets},
        "nli": lambda: _read_triplets(data, seed),
        "isomorphism": lambda: read_sets(data, count),
        "augmentation": sentences,
    }
    inputs, missing = {}, []
    for name in wanted:
        try:
            inputs[name] = readers[name]()
        except UserError as error:
            if required:
                raise
            missing.append(f"without {name}: {error}")
            print(f"note: {missing[-1]}", file=sys.stderr)
    if not inputs:
        raise UserError("nothing to measure: " + "; ".join(missing))
    return inputs, missing


def _read_labelled(name: str, data: str) -> tuple[list[str], list[str]]:
    """Read texts and labels of an intent set, training and test alike, or of a file in clustering/."""
    if name not in intents.SETS:
        return _read_clustering(find(data, "clustering", f"{name}.csv"))
    found = intents.read(name, data)
    # A test example whose class has no training example comes without the class's name.
    known = [(text, number) for text, number in zip(found.test_texts, found.test_labels) if number >= 0]
    labels = [found.classes[number] for number in (*found.labels, *(number for _, number in known))]
    return found.texts + [text for text, _ in known], labels


def _read_clustering(path: Path) -> tuple[list[str], list[str]]:
    """Read texts and labels of a csv file with the columns text and label; rows without text are left out."""
    rows = [
        (text.strip(), label) for text, label in csv_columns(path, "text", "label") if text.strip() and label
    ]
    if len(rows) < 3:
        raise UserError(f"{path}: {len(rows)} rows with text and label; neighbourhoods need at least 3")
    return [text for text, _ in rows], [label for _, label in rows]


def _read_triplets(data: str, seed: int) -> tuple[list[tuple[str, str, str]], str]:
    """Read (premise, entailed, contradicting), at most `NLI_SAMPLE` of them, and the file's name."""
    file = triplets_file(data)
    rows = read_triplets(file)
    if len(rows) > NLI_SAMPLE:
        rows = [
            rows[n] for n in np.sort(np.random.default_rng(seed).choice(len(rows), NLI_SAMPLE, replace=False))
        ]
    return rows, file.name


def _say(model: EmbeddingModel, what: str) -> None:
    print(f"{model.name}: {what}", file=sys.stderr, flush=True)
