"""From sentences to sequences: packed, one each, documents cut, records fitted; equal to plain references,
nothing lost."""

import random
from collections import Counter

import numpy as np

from augment.core.ragged import Ragged
from pretrain.prepare.packing import (
    fit_records,
    fit_sentences,
    full_sentences,
    one_per_document,
    one_per_sequence,
)


def reference_packing(documents: list[list[list[int]]], max_length: int) -> list[list[int]]:
    """RoBERTa's FULL-SENTENCES, one token at a time; CLS = 1, SEP = 2."""
    sequences, current = [], []
    for document in documents:
        for number, sentence in enumerate(document):
            separator = [2] if current and number == 0 else []
            if len(current) + len(separator) + len(sentence) > max_length - 2:
                sequences.append([1, *current, 2])
                current, separator = [], []
            current = current + separator + sentence
    return sequences + ([[1, *current, 2]] if current else [])


def random_documents(random_: random.Random) -> tuple[list[list[list[int]]], np.ndarray, Ragged]:
    """Documents of sentences of tokens; the document of each sentence; the sentences."""
    documents = [
        [
            [random_.randrange(10, 99) for _ in range(random_.randrange(1, 9))]
            for _ in range(random_.randrange(1, 6))
        ]
        for _ in range(random_.randrange(1, 12))
    ]
    labels = np.repeat(np.arange(len(documents)), [len(d) for d in documents])
    return documents, labels, Ragged.from_sequences([s for d in documents for s in d])


def test_packing_equals_the_reference():
    random_ = random.Random(3)
    for _ in range(200):
        documents, labels, sentences = random_documents(random_)
        max_length = random_.randrange(10, 24)
        packed = full_sentences(sentences, labels, np.ones(len(sentences), bool), max_length, 1, 2)
        assert [packed.sequences[i].tolist() for i in range(len(packed.sequences))] == reference_packing(
            documents, max_length
        )
        starts = [packed.sequences.ids[i] for i in packed.sentence_starts]
        assert starts == [s[0] for d in documents for s in d]
        assert [packed.sequences.ids[i] for i in packed.document_starts] == [d[0][0] for d in documents]


def test_documents_are_cut_as_the_reference_does():
    random_ = random.Random(4)
    for _ in range(200):
        documents, labels, sentences = random_documents(random_)
        first = np.array([random_.random() < 0.8 for _ in range(len(sentences))])
        max_length = random_.randrange(10, 24)
        counts: Counter[str] = Counter()
        packed = one_per_document(sentences, labels, first, max_length, 1, 2, counts)
        whole = [[token for sentence in document for token in sentence] for document in documents]
        expected = [[1, *tokens[: max_length - 2], 2] for tokens in whole]
        assert [packed.sequences[i].tolist() for i in range(len(packed.sequences))] == expected
        starts, position, number = [], 0, 0
        for document, sequence in zip(documents, expected):
            inside = 0
            for sentence in document:
                if first[number] and inside < len(sequence) - 2:
                    starts.append(position + 1 + inside)
                inside, number = inside + len(sentence), number + 1
            position += len(sequence)
        assert packed.sentence_starts.tolist() == starts
        assert packed.document_starts.tolist() == (packed.sequences.offsets[:-1] + 1).tolist()
        assert counts["tokens_truncated"] == sum(max(0, len(tokens) - max_length + 2) for tokens in whole)


def test_fitting_records_keeps_their_columns_together():
    """Two columns; a record without text goes, one without a second text stays; what is long is cut, or takes
    all along."""
    texts = Ragged.from_sequences([list(range(n)) for n in (3, 0, 12, 5, 4, 11, 0, 6, 10, 10)])
    counts: Counter[str] = Counter()
    fitted, stay = fit_records(texts, 2, 10, "truncate", counts)
    assert fitted.lengths.tolist() == [3, 0, 10, 5, 4, 10, 0, 6, 10, 10] and stay.tolist() == [
        True,
        True,
        True,
        False,
        True,
    ]
    assert all(fitted[i].tolist() == texts[i][:10].tolist() for i in range(10))
    assert (counts["texts_truncated"], counts["tokens_truncated"], counts["records_without_tokens"]) == (
        2,
        3,
        1,
    )
    fitted, stay = fit_records(texts, 2, 10, "drop", counts)
    assert fitted is texts and stay.tolist() == [True, False, False, False, True]
    assert counts["records_dropped_too_long"] == 2


def test_one_sentence_a_sequence():
    packed = one_per_sequence(Ragged.from_sequences([[5, 6], [7]]), 1, 2)
    assert packed.sequences == Ragged.from_sequences([[1, 5, 6, 2], [1, 7, 2]])
    assert packed.sentence_starts.tolist() == [1, 5]
    packed = one_per_sequence(Ragged.from_sequences([[], [5, 6], [], [7], []]), 1, 2)
    assert packed.sequences == Ragged.from_sequences([[], [1, 5, 6, 2], [], [1, 7, 2], []])
    assert packed.sentence_starts.tolist() == [1, 5]


def test_fitting_conserves_tokens():
    sentences = Ragged.from_sequences([list(range(n)) for n in (3, 0, 25, 10, 11, 7)])
    labels = np.arange(6)
    counts: Counter[str] = Counter()
    pieces, owners, first = fit_sentences(sentences, labels, 10, "split", counts)
    assert (
        pieces.lengths.tolist() == [3, 10, 10, 5, 10, 10, 1, 7]
        and pieces.ids.tolist() == sentences.ids.tolist()
    )
    assert owners.tolist() == [0, 2, 2, 2, 3, 4, 4, 5] and first.tolist() == [
        True,
        True,
        False,
        False,
        True,
        True,
        False,
        True,
    ]
    assert counts["sentences_split"] == 2 and counts["sentences_without_tokens"] == 1
