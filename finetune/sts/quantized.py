"""Vectors as they are stored, beside the float32 ones, for STS: a row of scores for each precision.

The rounding is sentence-transformers' `quantize_embeddings`, of vectors of length 1. int8 and uint8 divide
each dimension's range into 256 steps; binary and ubinary keep the sign of each dimension, eight to a byte.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from finetune.encoders.distinct import unit
from pretrain.common.errors import UserError

PRECISIONS = ("int8", "uint8", "binary", "ubinary")


@dataclass
class QuantizedRows:
    """Rows of scores to add.

    Args:
        precisions: names of `PRECISIONS`.

    Raises:
        UserError: there is no such precision.
    """

    precisions: Sequence[str]
    how: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name of a row that was added -> its pooling, and how its vectors are stored and compared."""

    def __post_init__(self) -> None:
        for name in self.precisions:
            if name not in PRECISIONS:
                raise UserError(f"vectors cannot be stored as {name!r}; choose {', '.join(PRECISIONS)}")

    def add(self, vectors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return float32[N, d] by the name of a row, "mean" and "mean int8", of vectors by pooling.

        The ranges are those of the N sentences, as in sentence-transformers' `EmbeddingSimilarityEvaluator`.
        """
        rows = {}
        for pooling, floats in vectors.items():
            rows[pooling] = floats
            for precision in self.precisions:
                name, width = f"{pooling} {precision}", floats.shape[1]
                rows[name] = comparable(floats, precision)
                how = f"Hamming distance of the bits, {(width + 7) // 8:,} bytes a vector"
                if precision.endswith("int8"):
                    how = (
                        f"cosine of the integers, {width:,} bytes a vector, ranges of the evaluated sentences"
                    )
                self.how[name] = pooling, f"{precision}: {how}"
        return rows


def comparable(vectors: np.ndarray, precision: str) -> np.ndarray:
    """Return what is compared by its cosine, float32[N, d]: the stored integers, or 1 and -1 for each bit.

    The cosine of such signs is 1 - 2 h / d, where h is the Hamming distance of the bits.
    """
    from sentence_transformers.util.quantization import quantize_embeddings

    values = np.asarray(unit(vectors), np.float32)
    if precision.endswith("int8"):
        ranges = np.stack([values.min(0), values.max(0)])
        return quantize_embeddings(values, precision, ranges=ranges).astype(np.float32)
    stored = quantize_embeddings(values, precision)
    packed = stored.view(np.uint8) ^ np.uint8(0x80 if precision == "binary" else 0)
    return 2 * np.unpackbits(packed, axis=1, count=vectors.shape[1]).astype(np.float32) - 1
