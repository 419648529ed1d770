"""The vectors of a text's sentences in an index of faiss, kept in a folder for later searches."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finetune.encoders.distinct import unit
from finetune.encoders.models import EmbeddingModel
from finetune.encoders.source import names_function
from finetune.search.stored import Floats, Signs, Storage, load_faiss
from pretrain.common.files import make_folder, replace_durably, sha256_of, to_json
from pretrain.common.folder_lock import folder_lock

_AT_ONCE = 8192  # sentences encoded between two lines of progress
_WAIT = 24 * 3600.0
_VECTORS, _ABOUT = "vectors.faiss", "index.json"


@dataclass(frozen=True)
class Hit:
    """A sentence that was found. cosine: with the query. place: number of its line among the sentences."""

    sentence: str
    cosine: float
    place: int


class SentenceIndex:
    """Sentences of a text, and their vectors.

    Args:
        vectors: N of length 1, or their signs.
        sentences: N of them.
        cut: how many of them are longer than the model takes, and are known by their beginnings.
    """

    def __init__(self, vectors: Floats | Signs, sentences: Sequence[str], cut: int = 0):
        self.vectors, self._sentences, self.cut = vectors, sentences, cut

    def nearest(self, queries: np.ndarray, count: int) -> list[list[Hit]]:
        """Return for each query, float32[Q, d], the nearest sentences, the nearest first."""
        cosines, places = self.vectors.search(unit(queries), min(count, len(self._sentences)))
        return [
            [
                Hit(self._sentences[place], float(cosine), int(place))
                for cosine, place in zip(row, found)
                if place >= 0  # a walk through the graph may find fewer
            ]
            for row, found in zip(cosines, places)
        ]


def open_index(
    model: EmbeddingModel,
    sentences: Sequence[str],
    folder: Path,
    say: Callable[[str], None],
    quantize: Storage = "none",
) -> SentenceIndex:
    """Return the index of sentences by a model; encode them unless the folder has it.

    That of a function, and in a folder that is another user's, is kept nowhere.

    Args:
        folder: of indices; one lies in a folder named by sentences, weights and how vectors are stored.
        say: takes a line of progress.
        quantize: store vectors as int8 or as signs; none: as float32.

    Raises:
        UserError: faiss is not installed, or the disk is full.
    """
    if names_function(model.name):  # nothing says when a function has changed
        return build_index(model, sentences, say, quantize)
    load_faiss()  # what is missing is said before anything is encoded
    kind = "" if quantize == "none" else f" {quantize}"
    kind += f" documents {model.document_prompt!r}" if any(model.prompts.values()) else ""
    digest = hashlib.sha256(f"{model.identity} {model.pooling} {model.precision}{kind}\n".encode())
    for sentence in sentences:
        digest.update(sentence.encode() + b"\n")
    place = folder / digest.hexdigest()[:16]
    try:
        make_folder(place)
    except PermissionError as error:  # another user's run
        say(f"the index is not kept, for {place} cannot be made: {error.strerror}")
        return build_index(model, sentences, say, quantize)
    with folder_lock(place, _WAIT):
        index = _kept_index(place, sentences, say, quantize)
        if index is None:
            index = build_index(model, sentences, say, quantize)
            content = index.vectors.serialized()
            about = {"model": model.name, "pooling": model.pooling, "sentences": len(sentences)}
            about |= {"quantize": quantize, "cut": index.cut, "sha256": hashlib.sha256(content).hexdigest()}
            replace_durably(place / _ABOUT, to_json(about))
            replace_durably(place / _VECTORS, content)  # last: it says that all is there
    return index


def _kept_index(
    place: Path, sentences: Sequence[str], say: Callable[[str], None], quantize: Storage
) -> SentenceIndex | None:
    """Return the index that a folder keeps; None: none yet, or one that is damaged.

    faiss itself takes any bytes of the right number as vectors.
    """
    if not (place / _VECTORS).is_file():
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):
        about = json.loads((place / _ABOUT).read_bytes())
        if about["sha256"] == sha256_of(place / _VECTORS):
            vectors = (Signs if quantize == "binary" else Floats).read(str(place / _VECTORS))
            return SentenceIndex(vectors, sentences, int(about["cut"]))
    say(f"the index in {place} is damaged, or of a version that kept no checksum: it is made again")
    return None


def build_index(
    model: EmbeddingModel,
    sentences: Sequence[str],
    say: Callable[[str], None],
    quantize: Storage = "none",
) -> SentenceIndex:
    """Return the index of sentences by a model, which is kept nowhere. say, quantize: as in `open_index`.

    Raises:
        UserError: faiss is not installed.
    """
    load_faiss()
    vectors: Floats | Signs | None = None
    for first in range(0, len(sentences), _AT_ONCE):
        encoded = unit(model.encode_document(sentences[first : first + _AT_ONCE]))
        if vectors is None:
            width = encoded.shape[1]
            binary = quantize == "binary"
            vectors = Signs.empty(width) if binary else Floats.empty(width, len(sentences), quantize)
        vectors.add(encoded)
        if first + _AT_ONCE < len(sentences):
            say(f"{first + len(encoded):,} of {len(sentences):,} sentences encoded")
    assert vectors is not None, "no sentences"
    return SentenceIndex(vectors, sentences, model.count_cut(sentences))
