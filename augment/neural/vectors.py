"""Replace words by near ones in a space of word vectors: AugCSE's RandomWordEmbAugmentation.

Vectors come from a local file and are read once per process. Such files begin with the most frequent words;
those of letters alone are kept, as unit vectors in float32 (100,000 words of 50 numbers take 42 MB). A word's
neighbours are found when it is first met, in one product with all vectors (milliseconds), and kept.
"""

import functools
import gzip
import zlib
from math import ceil
from pathlib import Path
from typing import TextIO

import numpy as np

from augment.core.entry import augmentation
from augment.core.errors import AugmentationError
from augment.neural.masked import plain_words
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import like, named_words, rewrite

_KNOWN_NEIGHBOURS = 1 << 15  # words whose neighbours are kept: 17 MB at 100 of them
_MARKS = ".,;:!?…\"'“”‘’()[]"
# Neighbours of these have another function in the sentence: near "the" are "of" and "in".
_FUNCTION_WORDS = named_words("vectors.function_words")


class WordVectors:
    """Words str[n], the most frequent first, their rows in small letters, unit vectors float32[n, d]."""

    def __init__(self, words: list[str], matrix: np.ndarray):
        self.words, self.matrix = words, matrix
        self.rows = {word.lower(): row for row, word in enumerate(words)}
        self.neighbours = functools.lru_cache(maxsize=_KNOWN_NEIGHBOURS)(self._neighbours)

    def _neighbours(self, row: int, count: int) -> np.ndarray:
        """Return the rows of the `count` other words (or all) of largest cosine, nearest first: int32[K]."""
        cosines = self.matrix @ self.matrix[row]
        cosines[row] = -np.inf
        count = min(count, len(self.words) - 1)
        near = np.argpartition(-cosines, count - 1)[:count]
        return near[np.lexsort((near, -cosines[near]))].astype(np.int32)


@functools.lru_cache(maxsize=2)
def word_vectors(path: str, limit: int) -> WordVectors:
    """Read the first `limit` words of letters of a file in GloVe's or word2vec's text format, .gz too."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise AugmentationError(f"the word vectors {path} are not a file")
    try:
        with (gzip.open if file.suffix == ".gz" else open)(
            file, "rt", encoding="utf-8-sig", newline="\n"
        ) as opened:
            words, matrix = _read(opened, path, limit)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise AugmentationError(f"the word vectors {path} cannot be read as text: {error}") from error
    if len(words) < 2:
        raise AugmentationError(f"the word vectors {path} have fewer than two words of letters")
    return WordVectors(words, matrix)


def _read(lines: TextIO, path: str, limit: int) -> tuple[list[str], np.ndarray]:
    """Return words and unit vectors; words of GloVe's 840 billion tokens may have spaces."""
    words: dict[str, str] = {}
    matrix = np.empty((0, 0), np.float32)
    size = 0
    for number, line in enumerate(lines, 1):
        fields = line.rstrip("\r\n ").split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
            size = int(fields[1])
            continue
        size = size or len(fields) - 1
        if size < 1 or len(fields) <= size:
            raise AugmentationError(f"{path}, line {number}: a word and {max(size, 1)} numbers are needed")
        word = " ".join(fields[:-size])
        if not word.isalpha() or word.lower() in words:
            continue
        with np.errstate(over="ignore"):  # numbers that overflow are refused below
            try:
                vector = np.array(fields[-size:], dtype=np.float32)
            except ValueError:
                vector = np.array([np.nan])
            length = np.linalg.norm(vector)
        if not np.isfinite(length):
            raise AugmentationError(
                f"the word vectors {path}, line {number}: {word!r} has other than numbers"
            )
        if length == 0:
            continue
        if not words:
            matrix = np.empty((limit, len(vector)), np.float32)  # unwritten pages take no memory
        matrix[len(words)] = vector / length
        words[word.lower()] = word
        if len(words) == limit:
            break
    return list(words.values()), matrix[: len(words)]


@augmentation(load=lambda values: word_vectors(values["path"], values["limit"]))
def random_word_embedding(
    sentence: ParsedSentence, draws: Draws, path: str, rate: float = 0.3, action: str = "substitute",
    top_k: int = 100, limit: int = 100_000,
) -> str | None:  # fmt: skip
    """Replace words by one of their `top_k` nearest by cosine.

    AugCSE calls nlpaug with GloVe, rate 0.3. ceil(rate * n) of n words, if as many can change, are drawn at
    random. Each one's successor is drawn evenly from its neighbours (nlpaug: 100), never a word that stands
    beside it, in its capitals, with "a" and "an" corrected. action=insert puts a random word of the file
    before a word instead, which is what nlpaug's insertion does; random draws one of the two for each
    sentence, as AugCSE's code does. Function words, short forms, compounds with hyphens, abbreviations,
    numbers and URLs stay. path: word vectors in GloVe's or word2vec's text format, .gz too.
    """
    vectors = word_vectors(path, limit)
    text = sentence.text
    inserts = draws.chance(0.5) if action == "random" else action == "insert"
    spots = plain_words(sentence)
    if inserts:  # only behind a space: the first word keeps its capital, a quote its first word
        spots = [(start, start) for start, _ in spots if start and text[start - 1] == " "]
    else:
        found = [(start, end, text[start:end].lower()) for start, end in spots]
        spots = [(a, b) for a, b, word in found if word in vectors.rows and word not in _FUNCTION_WORDS]
    count = ceil(rate * sum(any(map(str.isalnum, word)) for word in sentence.words))
    edits = []
    for start, end in draws.sample(spots, count):
        if inserts:
            edits.append((start, start, draws.choice(vectors.words) + " "))
            continue
        neighbours = (*text[:start].split()[-1:], *text[end:].split()[:1])
        excluded = {word.strip(_MARKS).lower() for word in neighbours}
        near = vectors.neighbours(vectors.rows[text[start:end].lower()], top_k)
        allowed = [vectors.words[row] for row in near.tolist() if vectors.words[row].lower() not in excluded]
        if allowed:
            edits.append((start, end, like(text[start:end], draws.choice(allowed))))
    return rewrite(sentence, edits)
