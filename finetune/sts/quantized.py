"""Vectors as they are stored, beside the float32 ones, for STS: a row of scores for each precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pretrain.export.quantization import Quantization


@dataclass
class QuantizedRows:
    """Rows of scores to add.

    Args:
        precisions: names of `pretrain.export.quantization.PRECISIONS`.
        own: what the export says; its ranges are taken for the pooling that it was trained with.
        trained_pooling: that pooling.
    """

    precisions: Sequence[str]
    own: Quantization | None = None
    trained_pooling: str | None = None
    how: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name of a row that was added -> its pooling, and how its vectors are stored and compared."""

    def add(self, vectors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return float32[N, d] by the name of a row, "mean" and "mean int8", of vectors by pooling.

        Without an export's ranges, those of the N sentences are taken, as sentence-transformers'
        `EmbeddingSimilarityEvaluator` does.
        """
        rows = {}
        for pooling, floats in vectors.items():
            rows[pooling] = floats
            for precision in self.precisions:
                stored = self._quantization(precision, pooling, floats)
                name, width = f"{pooling} {precision}", floats.shape[1]
                rows[name] = stored.comparable(stored.apply(floats), width)
                self.how[name] = pooling, f"{precision}: {stored.describe(width)}"
        return rows

    def _quantization(self, precision: str, pooling: str, floats: np.ndarray) -> Quantization:
        from pretrain.export.quantization import Quantization, calibrated  # imports torch

        own = self.own
        if own is not None and own.ranges is not None and pooling == self.trained_pooling:
            return Quantization(precision, own.ranges, own.calibrated_on)
        return calibrated(precision, floats, "the evaluated sentences")
