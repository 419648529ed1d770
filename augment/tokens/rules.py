"""Augment tokens: a whole `Ragged` and one key per sequence in, a new `Ragged` of as many sequences out.

The four of CLEAR (Wu et al. 2020, "CLEAR: Contrastive Learning for Sentence Representation", sections 3.3 and
4.1), word repetition (ESimCSE), cropping (COCO-LM), spans of documents (DeCLUTR), and what papers compare
with: whole words deleted (VaSCL), tokens masked and punctuation inserted (SDA).

Every sequence is [CLS] content [SEP]. Those two stay in place, and n below is the number of tokens between
them. Separators inside the content are content, but are never deleted by del-word nor substituted. No
function loops over sequences or tokens: each output is a list of segments of the input, a fixed number per
sequence, gathered at once.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from augment.core.entry import augmentation
from augment.core.errors import AugmentationError
from augment.core.keys import bits_per_sequence, derive, mix, token_bits, uniform_per_sequence
from augment.core.ragged import Ragged, offsets_of, segment_indices
from augment.core.selection import choose, count_per_sequence, draw_spans, round_half_even, shuffled
from augment.core.vocabulary import Vocabulary
from augment.tokens.synonyms import SynonymTable


def _unless(fits: Callable[[dict[str, Any]], bool], problem: str) -> Callable[[dict[str, Any]], str | None]:
    """Return a check of an augmentation's parameters together; problem: with {names} of parameters."""
    return lambda values: None if fits(values) else problem.format(**values)


def del_word(batch: Ragged, keys: np.ndarray, vocabulary: Vocabulary, *, rate: float = 0.7) -> Ragged:
    """Replace round(rate * n) of n content tokens by [DEL] and join runs of [DEL] (CLEAR).

    Special tokens inside the content are neither counted nor deleted. One content token always stays: with n
    = 1 nothing is deleted, and rate = 1 deletes n - 1.
    """
    del_id = vocabulary.require_del("del-word")
    content_sizes(batch, vocabulary)
    eligible = ~vocabulary.special.take(batch.ids.astype(np.intp))
    sizes = count_per_sequence(eligible, batch.offsets)
    counts = np.minimum(round_half_even(sizes * rate), np.maximum(sizes - 1, 0))
    ids = batch.ids.copy()
    ids[choose(keys, batch.lengths, counts, eligible)] = del_id
    return collapse_runs(Ragged(ids, batch.offsets), del_id)


@augmentation(
    check=_unless(
        lambda v: v["spans"] * v["rate"] < 1, "{spans} spans leave nothing; spans * rate must be below 1"
    ),
)
def del_span(
    batch: Ragged, keys: np.ndarray, vocabulary: Vocabulary, *, spans: int = 5, rate: float = 0.05
) -> Ragged:
    """Replace `spans` spans of rate * n tokens by one [DEL] each; neighbours share one (CLEAR).

    The spans do not overlap; their lengths are rate * n rounded down or up (`draw_spans`). With rate * n < 1
    there are round(spans * rate * n) spans of one token, at least one. One content token always stays: n = 1
    is left unchanged.
    """
    del_id = vocabulary.require_del("del-span")
    sizes = content_sizes(batch, vocabulary)
    starts, lengths = draw_spans(keys, sizes, spans, rate, room=np.maximum(sizes - 1, 0))
    # Segment j runs from the end of span j - 1 to the first token of span j, which [DEL] then overwrites.
    # Where the gap is empty, the [DEL] before it covers this span too. [CLS] lies at -1, so the first gap is
    # not empty.
    first = batch.offsets[:-1, None] + 1
    source = np.empty((len(batch), spans + 1), dtype=np.int64)
    taken = np.empty_like(source)
    source[:, 0] = -1
    np.add(starts, lengths, out=source[:, 1:])
    np.subtract(starts, source[:, :-1], out=taken[:, :-1])
    has_gap = taken[:, :-1] > 0
    taken[:, :-1] += has_gap
    np.subtract(sizes + 1, source[:, -1], out=taken[:, -1])
    source += first
    ids, ends = gather(batch.ids, source, taken)
    ids[ends[:, :-1][has_gap] - 1] = del_id
    result = Ragged(ids, np.concatenate([np.zeros(1, dtype=np.int64), ends[:, -1]]))
    # Only input that already has [DEL] can have runs now.
    return collapse_runs(result, del_id) if (batch.ids == del_id).any() else result


@augmentation(
    check=_unless(
        lambda v: 2 * v["pairs"] * v["rate"] <= 1,
        "2 * {pairs} spans do not fit; 2 * pairs * rate must not exceed 1",
    ),
)
def reorder(
    batch: Ragged, keys: np.ndarray, vocabulary: Vocabulary, *, pairs: int = 5, rate: float = 0.05
) -> Ragged:
    """Draw 2 * pairs spans of rate * n tokens, pair them at random and swap the two of a pair (CLEAR).

    The spans do not overlap; their lengths are rate * n rounded down or up (`draw_spans`). The two of a pair
    may differ by one; the tokens between them then move by one. The tokens stay the same multiset. With
    rate * n < 1 there are round(pairs * 2 * rate * n / 2) pairs of single tokens, at least one: n = 2 swaps
    its two tokens, n = 1 is left unchanged.
    """
    count = 2 * pairs
    sizes = content_sizes(batch, vocabulary)
    starts, lengths = draw_spans(keys, sizes, count, rate, room=sizes, multiple=2)
    # A random pairing: number the spans at random and swap neighbours in that order. The low bits of a number
    # have the span's index. Absent spans (start -1, an even number, in front) are numbered lowest, so they
    # pair among themselves.
    index_bits = np.uint64(count.bit_length())
    index = np.arange(count, dtype=np.uint64)
    order = bits_per_sequence(keys, count, stream=1) >> index_bits << index_bits
    order[starts < 0] = 0
    order |= index
    order.sort(axis=1)
    order &= (np.uint64(1) << index_bits) - np.uint64(1)
    order = order.view(np.int64)
    order += (np.arange(len(batch), dtype=np.int64) * count)[:, None]
    swapped = np.empty(len(batch) * count, dtype=np.int64)  # the span that moves to the place of span i
    swapped[order[:, 0::2]] = order[:, 1::2]
    swapped[order[:, 1::2]] = order[:, 0::2]
    # Segments: gap, span, gap, ..., span, gap. The first gap has [CLS] at -1, the last one has [SEP].
    source = np.empty((len(batch), 2 * count + 1), dtype=np.int64)
    taken = np.empty_like(source)
    source[:, 0] = -1
    np.add(starts, lengths, out=source[:, 2::2])
    np.subtract(starts, source[:, :-1:2], out=taken[:, :-1:2])
    np.subtract(sizes + 1, source[:, -1], out=taken[:, -1])
    source[:, 1::2] = starts.reshape(-1).take(swapped).reshape(starts.shape)
    taken[:, 1::2] = lengths.reshape(-1).take(swapped).reshape(starts.shape)
    source += batch.offsets[:-1, None] + 1
    return Ragged(gather(batch.ids, source, taken)[0], batch.offsets)


def subs(
    batch: Ragged, keys: np.ndarray, vocabulary: Vocabulary, *, synonyms: SynonymTable, rate: float = 0.3
) -> Ragged:
    """Replace words of the synonym table by synonyms, up to round(rate * n) of n content tokens (CLEAR).

    Words are drawn at random until they make up that many tokens; each is replaced by one of its synonyms,
    every one equally likely. Words are drawn whole: a word of several tokens counts as that many, and a
    synonym may have another length. If all words with a synonym are fewer, all are replaced. Special tokens
    are neither counted nor replaced. At least one word is replaced if any has a synonym.
    """
    content_sizes(batch, vocabulary)
    words, lengths, entries = synonyms.match(batch.ids)
    special = vocabulary.special.take(batch.ids.astype(np.intp))
    sizes = batch.lengths - count_per_sequence(special, batch.offsets)
    targets = np.maximum(round_half_even(sizes * rate), 1 if rate > 0 else 0)
    candidates = np.diff(np.searchsorted(words, batch.offsets))
    order = shuffled(keys, candidates)
    covered = offsets_of(lengths.take(order))  # tokens in earlier drawn words, over the whole batch
    first = offsets_of(candidates)
    limits = covered.take(first[:-1]) + targets
    drawn = np.zeros(len(words), dtype=bool)
    drawn[order.compress(covered[:-1] < np.repeat(limits, candidates))] = True
    counts = count_per_sequence(drawn, first)
    chosen = np.flatnonzero(drawn)  # indices gather faster than a random mask
    words = words.take(chosen)
    # The draw for a word depends on its place in the sequence, not on the other draws.
    draws = words - np.repeat(batch.offsets[:-1], counts)
    draws = mix(draws.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.repeat(derive(keys, 1), counts))
    synonym = synonyms.pick(entries.take(chosen), draws)
    return splice(
        batch, words, lengths.take(chosen), counts, synonyms.tokens, synonyms.token_offsets, synonym
    )


def repeat(batch: Ragged, keys: np.ndarray, vocabulary: Vocabulary, *, rate: float = 0.32) -> Ragged:
    """Write some random content tokens twice (ESimCSE, Wu et al. 2022, section 3.1).

    Their number is drawn per sequence, evenly from 0 to max(2, int(rate * n)), at most n; rate is the paper's
    dup_rate. The text grows by that much: leave room below the encoder's longest sequence.
    """
    sizes = content_sizes(batch, vocabulary)
    most = np.minimum(np.maximum((sizes * rate).astype(np.int64), 2), sizes)
    counts = (uniform_per_sequence(keys, 1, stream=1)[:, 0] * (most + 1)).astype(np.int64)
    inner = np.ones(batch.num_tokens, dtype=bool)
    inner[batch.offsets[:-1]] = False
    inner[batch.offsets[1:] - 1] = False
    times = np.ones(batch.num_tokens, dtype=np.int64)
    times[choose(keys, batch.lengths, counts, inner)] = 2
    return Ragged(np.repeat(batch.ids, times), offsets_of(batch.lengths + counts))


@augmentation(
    check=_unless(
        lambda v: not v["rate"] < v["min_rate"] < 1, "min_rate={min_rate:g} is above rate={rate:g}"
    ),
)
def crop(
    batch: Ragged, keys: np.ndarray, vocabulary: Vocabulary, *, rate: float = 0.9, min_rate: float = 1.0
) -> Ragged:
    """Keep a contiguous run of round(rate * n) content tokens (COCO-LM, Meng et al. 2021, section 3.2).

    At least one token stays (none if there is none); the place is drawn evenly. With min_rate below rate, the
    share is drawn evenly between the two, for each sequence and view: their lengths then no longer tell which
    views belong together.
    """
    sizes = content_sizes(batch, vocabulary)
    shares: np.ndarray | np.float64 = np.float64(rate)
    if min_rate < rate:
        shares = min_rate + (rate - min_rate) * uniform_per_sequence(keys, 1, stream=1)[:, 0]
    kept = np.minimum(np.maximum(round_half_even(sizes * shares), 1), sizes)
    return keep_run(batch, (uniform_per_sequence(keys, 1)[:, 0] * (sizes - kept + 1)).astype(np.int64), kept)


@augmentation(
    check=_unless(
        lambda v: v["min_length"] <= v["max_length"],
        "min_length={min_length} is above max_length={max_length}",
    ),
)
def span(
    batch: Ragged,
    keys: np.ndarray,
    vocabulary: Vocabulary,
    *,
    min_length: int = 32,
    max_length: int = 512,
    alpha: int = 4,
    beta: int = 2,
) -> Ragged:
    """Keep a contiguous run of int(p * (max - min) + min) content tokens, p ~ Beta(alpha, beta) (DeCLUTR).

    Source: Giorgi et al. 2021, arXiv:2006.03659, section 3.1. max is max_length, or n if the sequence is
    shorter; one shorter than min_length is kept whole. The place is drawn evenly. DeCLUTR draws anchors with
    alpha=4:beta=2 (long ones), positives with alpha=2:beta=4, and the place of a positive within reach of its
    anchor. Here the views of a sequence draw their places independently, which in a document of about
    max_length is much the same.

    p is the alpha-th smallest of alpha + beta - 1 uniform draws, whose distribution is Beta(alpha, beta)
    exactly: for whole alpha and beta that needs no inverse of the incomplete beta function, and rounds the
    same on every machine.
    """
    sizes = content_sizes(batch, vocabulary)
    draws = uniform_per_sequence(keys, alpha + beta, stream=1)
    place, draws = draws[:, 0], draws[:, 1:]
    draws.sort(axis=1)
    most = np.minimum(sizes, max_length)
    kept = (draws[:, alpha - 1] * (most - min_length) + min_length).astype(np.int64)
    kept = np.where(sizes < min_length, sizes, kept)
    return keep_run(batch, (place * (sizes - kept + 1)).astype(np.int64), kept)


def delete(batch: Ragged, keys: np.ndarray, vocabulary: Vocabulary, *, rate: float = 0.1) -> Ragged:
    """Delete ceil(rate * w) of the w words of a sequence (VaSCL, Zhang et al. 2022, section 4.4, WDel).

    VaSCL uses rates of 5, 10 and 20%. Words are whole (`Vocabulary.word_starts`), punctuation marks are words
    too. The number is rounded up as in nlpaug, which VaSCL used; one word always stays. Special tokens inside
    the content are neither counted nor deleted.
    """
    starts, first, eligible, words = _words(batch, vocabulary)
    counts = np.minimum(np.ceil(words * rate).astype(np.int64), np.maximum(words - 1, 0))
    deleted = np.zeros(len(starts), dtype=bool)
    deleted[choose(keys, np.diff(first), counts, eligible)] = True
    kept = np.flatnonzero(~np.repeat(deleted, np.diff(np.append(starts, batch.num_tokens))))
    return Ragged(batch.ids.take(kept), np.searchsorted(kept, batch.offsets).astype(np.int64))


def mask(batch: Ragged, keys: np.ndarray, vocabulary: Vocabulary, *, rate: float = 0.15) -> Ragged:
    """Replace round(rate * n) of n content tokens by [MASK] (SDA's comparison, Zhu et al. 2022, Table 8).

    At least one token is masked if there is any and rate > 0. Special tokens inside the content are neither
    counted nor masked. Nothing is predicted: masked-language modelling is elsewhere.
    """
    content_sizes(batch, vocabulary)
    eligible = ~vocabulary.special.take(batch.ids.astype(np.intp))
    sizes = count_per_sequence(eligible, batch.offsets)
    counts = np.minimum(np.maximum(round_half_even(sizes * rate), 1 if rate > 0 else 0), sizes)
    ids = batch.ids.copy()
    ids[choose(keys, batch.lengths, counts, eligible)] = vocabulary.mask_id
    return Ragged(ids, batch.offsets)


def punctuation(batch: Ragged, keys: np.ndarray, vocabulary: Vocabulary, *, rate: float = 0.3) -> Ragged:
    """Insert random marks out of . , ! ? ; : before random words, one a word (AEDA, Karimi et al. 2021).

    arXiv:2108.13230; SDA's comparison, Table 9. Their number is drawn per sequence, evenly from 1 to
    max(1, int(rate * w)) for w words (AEDA: a third of them). No mark comes before special tokens, the
    closing [SEP] included.
    """
    marks = vocabulary.require_punctuation("punctuation")
    starts, first, eligible, words = _words(batch, vocabulary)
    most = np.maximum((words * rate).astype(np.int64), 1)
    counts = np.minimum((uniform_per_sequence(keys, 1, stream=1)[:, 0] * most).astype(np.int64) + 1, words)
    chosen = choose(keys, np.diff(first), counts, eligible)
    places = starts.take(chosen)
    draws = token_bits(keys, np.diff(first), stream=2).take(chosen).astype(np.uint64)
    drawn = ((draws * np.uint64(len(marks))) >> np.uint64(32)).astype(np.int64)
    return Ragged(np.insert(batch.ids, places, marks.take(drawn)), batch.offsets + offsets_of(counts))


def _words(batch: Ragged, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return words (starts int64[W], first int64[N + 1]), which are ordinary bool[W], how many int64[N]."""
    content_sizes(batch, vocabulary)
    starts = np.flatnonzero(vocabulary.word_starts(batch.ids))
    first = np.searchsorted(starts, batch.offsets)
    eligible = ~vocabulary.special.take(batch.ids.take(starts).astype(np.intp))
    return starts, first, eligible, count_per_sequence(eligible, first)


def keep_run(batch: Ragged, starts: np.ndarray, counts: np.ndarray) -> Ragged:
    """Return [CLS], counts[i] content tokens from the starts[i]-th on, [SEP]; starts, counts: int64[N]."""
    first, last = batch.offsets[:-1], batch.offsets[1:] - 1
    source = np.stack([first, first + 1 + starts, last], axis=1)
    one = np.ones(len(batch), dtype=np.int64)
    ids, ends = gather(batch.ids, source, np.stack([one, counts, one], axis=1))
    return Ragged(ids, np.concatenate([np.zeros(1, dtype=np.int64), ends[:, -1]]))


def content_sizes(batch: Ragged, vocabulary: Vocabulary) -> np.ndarray:
    """Return the number of tokens between [CLS] and [SEP], int64[N]."""
    sizes = batch.lengths - 2
    bad = sizes < 0
    if not bad.any():
        bad = batch.ids.take(batch.offsets[:-1]) != vocabulary.cls_id
        bad |= batch.ids.take(batch.offsets[1:] - 1) != vocabulary.sep_id
    if bad.any():
        index = int(np.flatnonzero(bad)[0])
        sequence = batch[index]
        raise AugmentationError(
            f"sequence {index} of the batch ({len(sequence)} tokens, {sequence[:8].tolist()}...) does not "
            f"start with [CLS] ({vocabulary.cls_id}) and end with [SEP] ({vocabulary.sep_id})"
        )
    return sizes


def gather(ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lay S segments of `ids` per sequence end to end; starts, lengths and the ends returned: int64[N, S]."""
    flat = lengths.reshape(-1)
    ends = np.cumsum(flat).reshape(lengths.shape)
    return ids.take(segment_indices(starts.reshape(-1), flat)), ends


def collapse_runs(batch: Ragged, token: int) -> Ragged:
    """Replace every run of `token` by a single one."""
    found = batch.ids == token
    keep = np.ones(batch.num_tokens, dtype=bool)
    np.logical_and(found[1:], found[:-1], out=keep[1:])
    np.logical_not(keep[1:], out=keep[1:])
    kept = np.flatnonzero(keep)
    return Ragged(batch.ids.take(kept), np.searchsorted(kept, batch.offsets).astype(np.int64))


def splice(
    batch: Ragged,
    starts: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
    tokens: np.ndarray,
    token_offsets: np.ndarray,
    replacements: np.ndarray,
) -> Ragged:
    """Replace runs of tokens by entries of a table.

    Run k has lengths[k] tokens from starts[k] on; starts rise, runs do not overlap, and sequence i has
    counts[i] of them. Entry replacements[k] takes its place. Entry e of the table has the `tokens` from
    token_offsets[e] to token_offsets[e + 1]. All arrays: int64, but tokens as `batch.ids`.
    """
    new_starts = token_offsets.take(replacements)
    new_lengths = token_offsets.take(replacements + 1) - new_starts
    # The first token of a run is repeated once for each token of the replacement, and becomes its first; the
    # rest of the run is dropped. Then only replacements of several tokens have copies to overwrite.
    source = batch.ids.copy()
    source[starts] = tokens.take(new_starts)
    times = np.ones(batch.num_tokens, dtype=np.int64)
    times[starts] = new_lengths
    long = np.flatnonzero(lengths > 1)
    times[segment_indices(starts.take(long) + 1, lengths.take(long) - 1)] = 0
    ids = np.repeat(source, times)
    growth = offsets_of(new_lengths - lengths)
    several = np.flatnonzero(new_lengths > 1)
    rest = new_lengths.take(several) - 1
    written = segment_indices((starts + growth[:-1]).take(several) + 1, rest)
    ids[written] = tokens.take(segment_indices(new_starts.take(several) + 1, rest))
    return Ragged(ids, batch.offsets + growth.take(offsets_of(counts)))
