"""Pack token ids into the sequences of a shard: one sentence or document each, or sentences up to a length.

`sequence` is RoBERTa's FULL-SENTENCES (Liu et al. 2019, section 4.2): contiguous sentences up to the
maximum length, crossing into the next document after one more separator token.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from augment.core.ragged import Ragged, offsets_of, segment_indices


@dataclass
class Packed:
    """Sequences with special tokens; starts are int64 indices into `sequences.ids`, ascending.

    columns: sequences of one record, which follow each other. labels: int64[records], or None; scores are
    float32. texts: of data that is to be annotated, what gives the texts of all sequences of records start,
    ..., stop - 1.
    """

    sequences: Ragged
    sentence_starts: np.ndarray
    document_starts: np.ndarray
    columns: int = 1
    labels: np.ndarray | None = None
    texts: Callable[[int, int], list[str]] | None = None


def fit_sentences(
    sentences: Ragged, documents: np.ndarray, longest: int, policy: str, counts: Counter[str]
) -> tuple[Ragged, np.ndarray, np.ndarray]:
    """Make every sentence at most `longest` tokens, by `policy`, and drop empty ones; count what is lost.

    sentences: token ids without special tokens. documents: int64[N], document of each sentence, any labels.
    policy: truncate (keep the head), split (into pieces of `longest`), drop.

    Returns: (sentences, documents, first: bool[N'], whether a row is not a split's next piece).
    """
    lengths = sentences.lengths
    long = lengths > longest
    empty = lengths == 0
    counts["sentences_without_tokens"] += int(empty.sum())
    pieces = np.where(empty, 0, 1)
    kept = np.minimum(lengths, longest)
    if policy == "split":
        pieces = -(-lengths // longest)
        counts["sentences_split"] += int(long.sum())
    elif policy == "truncate":
        counts["sentences_truncated"] += int(long.sum())
        counts["tokens_truncated"] += int((lengths - kept).sum())
    else:
        pieces[long] = 0
        counts["sentences_dropped_too_long"] += int(long.sum())
        counts["tokens_dropped_too_long"] += int(lengths[long].sum())
    if (pieces == 1).all() and not long.any():
        return sentences, documents, np.ones(len(sentences), bool)
    rows = np.repeat(np.arange(len(lengths)), pieces)
    piece = segment_indices(np.zeros(len(lengths), np.int64), pieces)
    starts = sentences.offsets[:-1][rows] + piece * longest
    sizes = np.minimum(lengths[rows] - piece * longest, longest)
    ids = sentences.ids.take(segment_indices(starts, sizes))
    return Ragged(ids, offsets_of(sizes)), documents[rows], piece == 0


def fit_records(
    texts: Ragged, columns: int, longest: int, policy: str, counts: Counter[str]
) -> tuple[Ragged, np.ndarray]:
    """Make every text of every record at most `longest` tokens; what is lost is counted.

    texts: token ids without special tokens; row k * columns + c is column c of record k, empty if it has
    none. policy: truncate (keep the head) or drop (the whole record).

    Returns: (texts, of as many rows; bool[records], those that stay: with text, fitting if policy is drop).
    """
    lengths = texts.lengths
    long = lengths > longest
    stay = lengths[::columns] > 0
    counts["records_without_tokens"] += int((~stay).sum())
    if policy == "drop":
        fit = ~long.reshape(-1, columns).any(axis=1)
        counts["records_dropped_too_long"] += int((~fit).sum())
        return texts, stay & fit
    counts["texts_truncated"] += int(long.sum())
    if not long.any():
        return texts, stay
    kept = np.minimum(lengths, longest)
    counts["tokens_truncated"] += int((lengths - kept).sum())
    return Ragged(texts.ids.take(segment_indices(texts.offsets[:-1], kept)), offsets_of(kept)), stay


def one_per_sequence(sentences: Ragged, cls_id: int, sep_id: int) -> Packed:
    """Return [CLS] sentence [SEP] for every sentence; an empty one, of a column that is lacking, stays."""
    filled = sentences.lengths > 0
    offsets = offsets_of(sentences.lengths + 2 * filled)
    starts = offsets[:-1][filled]
    ids = np.empty(offsets[-1], np.int32)
    ids[starts] = cls_id
    ids[offsets[1:][filled] - 1] = sep_id
    ids[segment_indices(offsets[:-1] + 1, sentences.lengths)] = sentences.ids
    return Packed(Ragged(ids, offsets), starts + 1, np.empty(0, np.int64))


def one_per_document(
    sentences: Ragged,
    documents: np.ndarray,
    first: np.ndarray,
    max_length: int,
    cls_id: int,
    sep_id: int,
    counts: Counter[str],
) -> Packed:
    """Return [CLS] document [SEP] for every document, its sentences end to end, cut after `max_length`.

    What is cut is counted. Arguments as of `full_sentences`.
    """
    opens = np.ones(len(sentences), bool)
    opens[1:] = documents[1:] != documents[:-1]
    bounds = np.append(np.flatnonzero(opens), len(sentences))
    offsets = sentences.offsets[bounds]
    lengths = np.diff(offsets)
    kept = np.minimum(lengths, max_length - 2)
    counts["documents_truncated"] += int((kept < lengths).sum())
    counts["tokens_truncated"] += int((lengths - kept).sum())
    whole = Ragged(sentences.ids.take(segment_indices(offsets[:-1], kept)), offsets_of(kept))
    packed = one_per_sequence(whole, cls_id, sep_id)
    owner = np.repeat(np.arange(len(lengths)), np.diff(bounds))
    inside = sentences.offsets[:-1] - offsets[owner]
    starts = packed.sentence_starts
    return Packed(packed.sequences, (starts[owner] + inside)[first & (inside < kept[owner])], starts)


def full_sentences(
    sentences: Ragged, documents: np.ndarray, first: np.ndarray, max_length: int, cls_id: int, sep_id: int
) -> Packed:
    """Pack sentences, in order, into sequences [CLS] s1 s2 ... [SEP] s1' ... [SEP].

    A sequence has at most `max_length` tokens; [SEP] ends it and separates documents. sentences: without
    special tokens, none longer than max_length - 2. documents: int64[N]; if the label changes, the next
    document begins. first: bool[N], as `fit_sentences` gives it.

    Three sentences, the third of another document ([CLS] is 1, [SEP] is 2):

    >>> sentences = Ragged.from_sequences([[11, 12], [21], [31, 32, 33]])
    >>> packed = full_sentences(sentences, np.array([0, 0, 1]), np.ones(3, bool), 9, cls_id=1, sep_id=2)
    >>> [packed.sequences[row].tolist() for row in range(len(packed.sequences))]
    [[1, 11, 12, 21, 2, 31, 32, 33, 2]]
    >>> packed.sentence_starts.tolist(), packed.document_starts.tolist()
    ([1, 3, 5], [1, 5])
    """
    count = len(sentences)
    if not count:
        return Packed(Ragged.empty(), np.empty(0, np.int64), np.empty(0, np.int64))
    capacity = max_length - 2
    opens_document = np.append(True, documents[1:] != documents[:-1])
    opens, separated = np.zeros(count, bool), np.zeros(count, bool)
    used = capacity  # the first sentence opens a sequence
    # Where a sequence ends depends on where the last one ended: the one loop over sentences, some 0.1 us
    # each.
    for number, (length, new) in enumerate(zip(sentences.lengths.tolist(), opens_document.tolist())):
        if used + length + new > capacity:
            opens[number] = True
            used = length
        else:
            separated[number] = new
            used += length + new
    # Every sentence brings its prefix: [SEP][CLS] where a sequence opens (the very first: [CLS]), [SEP]
    # between documents.
    prefix = np.where(opens, 2, separated.astype(np.int64))
    prefix[0] = 1
    ends = np.cumsum(sentences.lengths + prefix)
    starts = ends - sentences.lengths
    ids = np.empty(ends[-1] + 1, np.int32)
    ids[-1] = sep_id
    ids[segment_indices(starts, sentences.lengths)] = sentences.ids
    ids[starts[opens] - 1] = cls_id
    ids[starts[opens][1:] - 2] = sep_id
    ids[starts[separated] - 1] = sep_id
    offsets = np.append(starts[opens] - 1, len(ids))
    return Packed(Ragged(ids, offsets), starts[first], starts[opens_document & first])
