"""A vocabulary knows the words and special tokens of its tokenizer."""

import augment_tokenizers
import numpy as np
import pytest

from augment.core.errors import AugmentationError
from augment.core.vocabulary import Vocabulary

TEXT = 'The movie (good films) wasn\'t, "unbelievably" big; a house 42x.'


def words_by_flags(tokenizer, text: str) -> list[str]:
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    content = tokenizer(text, add_special_tokens=False)["input_ids"]
    starts = vocabulary.word_starts(
        np.array([vocabulary.cls_id, *content, vocabulary.sep_id], dtype=np.int32)
    )
    assert starts[0] and starts[1] and starts[-1]
    words: list[str] = []
    for begins, token in zip(starts[1:-1], tokenizer.convert_ids_to_tokens(content), strict=True):
        if begins:
            words.append("")
        words[-1] += token.removeprefix("##").removeprefix("Ġ").removeprefix("▁")
    return [word for word in words if word]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            augment_tokenizers.word_piece,
            'the movie ( good films ) wasn \' t , " unbelievably " big ; a house 42x .',
        ),
        (
            augment_tokenizers.byte_level,
            'The movie ( good films ) wasn \'t , " unbelievably " big ; a house 42 x .',
        ),
    ],
)
def test_words_are_found_in_running_text(make, expected):
    found = words_by_flags(make(), TEXT)
    assert [word for word in found if word[-1].isalnum()] == [w for w in expected.split() if w[-1].isalnum()]


def test_sentencepiece_words():
    sentence = "the good movie was a big house"
    assert words_by_flags(augment_tokenizers.metaspace(), sentence) == sentence.split(" ")


@pytest.mark.parametrize("make", [augment_tokenizers.word_piece, augment_tokenizers.byte_level])
def test_ids_and_special_tokens(make):
    tokenizer = make()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.size == len(tokenizer)
    named = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[DEL]", "[UNK]"]
    assert sorted(np.flatnonzero(vocabulary.special)) == sorted(tokenizer.convert_tokens_to_ids(named))
    assert vocabulary.del_id == tokenizer.convert_tokens_to_ids("[DEL]")
    marks = tokenizer.convert_ids_to_tokens(vocabulary.punctuation.tolist())
    assert marks == [mark for mark in ".,!?;:" if mark in tokenizer.get_vocab()] and "." in marks
    assert vocabulary.special.dtype == vocabulary.word_start.dtype == bool
    assert vocabulary.word_start[vocabulary.special].all()
    assert not vocabulary.special.flags.writeable


def test_sequences_end_to_end_start_words():
    vocabulary = Vocabulary.from_tokenizer(augment_tokenizers.word_piece())
    inside = int(np.flatnonzero(~vocabulary.word_start)[0])
    ids = np.array(
        [vocabulary.cls_id, inside, inside, vocabulary.sep_id, vocabulary.cls_id, inside], np.int32
    )
    assert vocabulary.word_starts(ids).tolist() == [True, True, False, True, True, True]
    assert vocabulary.word_starts(ids[:0]).tolist() == []


def test_what_is_missing_is_said():
    without = Vocabulary.from_tokenizer(augment_tokenizers.word_piece(delete=False))
    assert without.del_id == -1
    with pytest.raises(AugmentationError, match=r"del-word writes \[DEL\].*add_tokens"):
        without.require_del("del-word")
    tokenizer = augment_tokenizers.word_piece()
    tokenizer.mask_token = None
    with pytest.raises(AugmentationError, match="mask_token"):
        Vocabulary.from_tokenizer(tokenizer)


def test_sequence_tokens_stand_in_for_cls_and_sep():
    tokenizer = augment_tokenizers.word_piece()
    ids = tokenizer.cls_token_id, tokenizer.sep_token_id
    tokenizer.cls_token = tokenizer.sep_token = None
    tokenizer.bos_token, tokenizer.eos_token = "[CLS]", "[SEP]"
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert (vocabulary.cls_id, vocabulary.sep_id) == ids
