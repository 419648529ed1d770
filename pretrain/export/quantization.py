"""Sentence vectors in one byte or one bit a dimension: what an export says of them, and how they are made.

The rounding is sentence-transformers' `quantize_embeddings`, of vectors of length 1. int8 and uint8 divide
each dimension's range into 256 steps; the ranges come from sentences of the training data and stand in the
export's quantization.json. binary and ubinary keep the sign of each dimension, eight to a byte. The weights
stay as they are.
"""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.common.errors import UserError
from pretrain.common.files import write_durably
from pretrain.data.shards import ShardReader

PRECISIONS = ("int8", "uint8", "binary", "ubinary")
FILE = "quantization.json"
SENTENCES = 10_000
"""Sentences that ranges are taken from, at most."""
_HEADING = "\n## Quantised vectors\n"


@dataclass(frozen=True)
class Quantization:
    """How vectors are stored.

    Args:
        precision: a name of PRECISIONS.
        ranges: of int8 and uint8, the least and the greatest value of each dimension, float32[2, d].
        calibrated_on: what the ranges were taken from, for people.
    """

    precision: str
    ranges: np.ndarray | None = None
    calibrated_on: str = ""

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """Return vectors float32[N, d] as stored: int8 or uint8, [N, d] or, of bits, [N, ceil(d / 8)]."""
        from sentence_transformers.util.quantization import quantize_embeddings

        return quantize_embeddings(unit(vectors), self.precision, ranges=self.ranges)

    def comparable(self, stored: np.ndarray, width: int) -> np.ndarray:
        """Return what is compared by its cosine, float32[N, width]: the integers, or 1 and -1 for each bit.

        The cosine of such signs is 1 - 2 h / width, where h is the Hamming distance of the bits.
        """
        if self.precision.endswith("int8"):
            return stored.astype(np.float32)
        packed = stored.view(np.uint8) ^ np.uint8(0x80 if self.precision == "binary" else 0)
        return 2 * np.unpackbits(packed, axis=1, count=width).astype(np.float32) - 1

    def describe(self, width: int) -> str:
        """Return in words what is stored, and how it is compared. width: dimensions."""
        if self.precision.endswith("int8"):
            return f"cosine of the integers, {width:,} bytes a vector, ranges of {self.calibrated_on}"
        return f"Hamming distance of the bits, {(width + 7) // 8:,} bytes a vector"


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors float32[N, d] of length 1; a zero vector stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths == 0, 1, lengths), np.float32)


def calibrated(precision: str, vectors: np.ndarray, source: str) -> Quantization:
    """Return a quantisation by the ranges of vectors float32[N, d], where it has any."""
    if not precision.endswith("int8"):
        return Quantization(precision)
    values = unit(vectors)
    return Quantization(precision, np.stack([values.min(0), values.max(0)]), source)


def check_precision(name: str) -> str:
    """Return the name of a precision.

    Raises:
        UserError: there is no such precision.
    """
    if name not in PRECISIONS:
        raise UserError(f"vectors cannot be stored as {name!r}; choose {', '.join(PRECISIONS)}")
    return name


def quantize_export(
    folder: Path,
    policy: dict[str, Any],
    precision: str,
    sentences: Path | None = None,
) -> None:
    """Write quantization.json into an export, and say so on its card.

    Args:
        policy: of the export.
        sentences: a text file, one a line, to take ranges from; None: the data that the run was trained on.

    Raises:
        UserError: there are no such sentences.
    """
    quantization = Quantization(check_precision(precision))
    if precision.endswith("int8"):
        from sentence_transformers import SentenceTransformer  # seconds

        model = SentenceTransformer(str(folder), device="cpu")
        data = Path(policy["data"]["folder"])
        texts = _of_data(data, model.tokenizer) if sentences is None else _of_text(sentences)
        vectors = model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        quantization = calibrated(
            precision, vectors, f"{len(texts):,} sentences of {(sentences or data).name}"
        )
    content = {
        "precision": precision,
        "of": "vectors of length 1",
        "calibrated_on": quantization.calibrated_on or None,
        "ranges": None if quantization.ranges is None else quantization.ranges.tolist(),
    }
    write_durably(folder / FILE, (json.dumps(content) + "\n").encode())
    card = folder / "README.md"
    before = card.read_text("utf-8").partition(_HEADING)[0]
    about = (
        f"\nVectors are meant to be stored as {precision}: {quantization.describe(policy['hidden_size'])}. "
        f"sentence-transformers' `quantize_embeddings` makes them of vectors of length 1, by the ranges in "
        f"`{FILE}`.\n"
    )
    write_durably(card, (before + _HEADING + about).encode())


def read_quantization(folder: str | Path) -> Quantization | None:
    """Read how an export's vectors are stored; None: as float32.

    Raises:
        UserError: quantization.json is damaged.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
        ranges = None if content["ranges"] is None else np.array(content["ranges"], np.float32)
        found = Quantization(check_precision(content["precision"]), ranges, content["calibrated_on"] or "")
        if found.precision.endswith("int8") and (ranges is None or ranges.ndim != 2 or len(ranges) != 2):
            raise ValueError("no ranges")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); export the run again with --quantize") from None
    return found


def _of_data(folder: Path, tokenizer: Any) -> list[str]:
    """Return the first sequences of prepared data as text; they are shuffled."""
    try:
        reader = ShardReader(folder)
    except UserError as error:
        raise UserError(
            f"ranges are taken from the sentences of the data, and {error} Give others with --sentences FILE"
        ) from None
    chunks = (reader.read(number).sequences for number in range(reader.num_chunks))
    rows = (sequences[row].tolist() for sequences in chunks for row in range(len(sequences)))
    return tokenizer.batch_decode(list(islice(rows, SENTENCES)), skip_special_tokens=True)


def _of_text(file: Path) -> list[str]:
    try:
        lines = [line.strip() for line in file.read_text("utf-8").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--sentences {file}: cannot be read as text: {error}") from None
    texts = list(dict.fromkeys(line for line in lines if line))[:SENTENCES]
    if len(texts) < 2:
        raise UserError(
            f"--sentences {file}: {len(texts)} different sentences; give some thousand, one a line"
        )
    return texts
