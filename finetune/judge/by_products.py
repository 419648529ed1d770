"""Score what is taken along in place of an encoder: smaller vectors, and what `finetune.derived` fits."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from finetune.derived import ENCODED, SIF, derive
from finetune.encoders.models import EmbeddingModel
from finetune.flags import Derivation
from finetune.judge.scores import PASSAGES, Halves, Scores
from pretrain.common.errors import UserError

FITTED = {
    "sif weights": Derivation(pooling=SIF),
    "whitened": Derivation(whiten=0, sentences=2000),
    "static table": Derivation(static=ENCODED),
}
"""What is fitted on the text that was trained on, each a folder."""


def by_products(
    best: Path, text: str, out: Path, halves: Halves, open_model: Callable[[Path], EmbeddingModel]
) -> tuple[dict[str, Scores], dict[str, Path], dict[str, str]]:
    """Make the by-products of the encoder `best`, folders in `out`, and score them all.

    Returns:
        Row -> scores; row -> folder, of those of another size and speed; row -> why it cannot be made.
    """
    from sentence_transformers.util import quantize_embeddings

    vectors = halves.vectors_of(open_model(best))
    passages = vectors[PASSAGES]
    width = passages.shape[1] // 2
    ones = -passages.shape[1] % 4 ** math.ceil(math.log(passages.shape[1], 4))
    smaller: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        f"first {width}": lambda one: one[:, :width],
        "int8": lambda one: quantize_embeddings(one, "int8", calibration_embeddings=passages),
        # orders as Hamming's distance, and ties where that does: lengths are a power of 2
        "a bit": lambda one: np.pad(np.where(one > 0, 1, -1), [(0, 0), (0, ones)], constant_values=1),
    }
    rows = {
        f"best, {name}": halves.of_vectors({part: change(one) for part, one in vectors.items()})
        for name, change in smaller.items()
    }
    folders, left_out = dict[str, Path](), dict[str, str]()
    for number, (name, fit) in enumerate(FITTED.items(), 1):
        row, folder = f"best, {name}", out / name
        print(f"  by-product {number}/{len(FITTED)}: {name}", flush=True)
        try:
            derive(str(best), str(folder), fit.model_copy(update={"text": text}))
        except UserError as error:
            left_out[row] = str(error)
            continue
        rows[row] = halves.of_model(open_model(folder))
        if fit.static:
            folders[row] = folder
    return rows, folders, left_out
