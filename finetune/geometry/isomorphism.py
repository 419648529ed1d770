"""How alike the clouds of anchors, entailed and contradicting sentences are (AugCSE, table 15)."""

import numpy as np

from finetune.encoders.models import EmbeddingModel
from finetune.files import spaced
from finetune.geometry import measures
from finetune.nli_distance import load, read_triplets, triplets_file
from finetune.results import Evaluation
from pretrain.common.errors import UserError

Triplets = list[tuple[str, str, str]]
PAIRS = {"A-E": (0, 1), "A-C": (0, 2), "E-C": (1, 2)}
"""A: anchors (premises); E: entailed hypotheses; C: contradicting ones."""


def read_sets(data: str, count: int) -> dict[str, tuple[Triplets, str]]:
    """Return set -> (so many triplets, taken evenly; where they are from).

    The paper does not say how many it took; the Gromov-Hausdorff distance as coded takes at most 2,000.

    Raises:
        UserError: neither NLI nor ANLI is there.
    """
    found, missing = {}, []
    try:
        file = triplets_file(data)
        found["NLI"] = (spaced(read_triplets(file), count), file.name)
    except UserError as error:
        missing.append(str(error))
    try:
        anli = load("ANLI", data)
        rows = zip(anli.premises, anli.entailed, anli.others, anli.contradicts)
        contradicting = [(premise, near, far) for premise, near, far, contradicts in rows if contradicts]
        found["ANLI"] = (spaced(contradicting, count), anli.remark or "round 1, train")
    except UserError as error:
        missing.append(str(error))
    if not found:
        raise UserError("; ".join(missing))
    return found


def measure_isomorphism(
    model: EmbeddingModel, sets: dict[str, tuple[Triplets, str]], evaluation: Evaluation
) -> None:
    """Add a task for every set and pair of clouds: COND-HM (the headline), SVG, Gromov-Hausdorff."""
    for name, (triplets, source) in sets.items():
        clouds = [model.encode([triplet[side] for triplet in triplets]) for side in range(3)]
        for pair, sides in PAIRS.items():
            first, second = (clouds[side] for side in sides)
            evaluation.add(
                f"isomorphism/{name} {pair}", "cond_hm", compare_clouds(first, second), triplets=len(triplets)
            )
        evaluation.notes.append(f"isomorphism: {len(triplets):,} triplets of {name}: {source}")


def compare_clouds(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Return how alike two clouds float32[N, d] are.

    cond_hm, the harmonic mean of their effective condition numbers; svg, the gap of their singular values;
    gromov_hausdorff, and, of at most `AS_CODED_LIMIT` points, as iso-study's code has it.
    """
    spectra = measures.compare_spectra(first, second)
    figures = {
        "cond_hm": spectra.cond_hm,
        "svg": spectra.gap.value,
        "gromov_hausdorff": measures.gromov_hausdorff(first, second),
    }
    if len(first) <= measures.AS_CODED_LIMIT:
        figures["gromov_hausdorff_as_coded"] = measures.gromov_hausdorff(first, second, as_coded=True)
    return figures
