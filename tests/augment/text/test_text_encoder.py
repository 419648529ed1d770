"""`TextEncoder` gives the tokens that the tokenizer gives."""

import logging
import pickle
import random

import augment_tokenizers
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary, encode
from augment.text.encoder import TextEncoder
from pretrain.data.tokenizer import train_tokenizer

TEXTS = [
    "He travelled widely in Europe.",
    "  Two  spaces , a tab\tand a\u00a0hard one ",
    "Naïve café 北京 — “quoted” 😀 e\u0301 \u0301x",
    "don't 'quote' 's it's -- https://x.org/a?b=c [MASK] [DEL]x end",
    "",
    " ",
    "A",
]


@pytest.mark.parametrize(
    "make", [augment_tokenizers.byte_level, augment_tokenizers.word_piece, augment_tokenizers.metaspace]
)
def test_encoder_gives_the_tokens_of_the_tokenizer(make):
    """Encode by pieces or whole, with words that neighbours must not change."""
    tokenizer = make()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    encoder = TextEncoder(tokenizer.backend_tokenizer, vocabulary.cls_id, vocabulary.sep_id, 1000)
    rng = np.random.default_rng(0)
    words = [*" ".join(TEXTS).split(" "), "x\u00a0", "\ty", "1,000.5", "'s"]
    texts = TEXTS + [" ".join(rng.choice(words, 12)) for _ in range(200)]
    expected = encode(encoder._special.taken_apart(texts), tokenizer, vocabulary)
    special = [vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id]
    for _ in range(2):  # learned, and known
        assert encoder(texts) == expected
        assert np.isin(encoder(texts).ids, special).sum() == 2 * len(texts)  # "[MASK]" in a text is text
    assert pickle.loads(pickle.dumps(encoder))(texts) == expected
    assert encoder([]).num_tokens == 0
    short = TextEncoder(tokenizer.backend_tokenizer, vocabulary.cls_id, vocabulary.sep_id, 5)(texts)
    assert short.lengths.max() == 5 and short[0].tolist() == [*expected[0][:4], expected[0][-1]]


LETTERS = (
    "abcXYZ0189.,'\"!?()[]-/\\@#$%&*_+=~`|<>{};: \t\n\x00\x1f\x7fé’“—ü\u00a0\u2028\u0301中文ﬁ²İß\u200b     "
)
PIECES = ["don't", "IT'S", "'VE", "n't", "...", "--", "[MASK]", "##ing", "1st", "U.S.", "  ", "\u00a0"]


def _changed(make, **parts):
    tokenizer = make()
    for name, part in parts.items():
        setattr(tokenizer.backend_tokenizer, name, part)
    return tokenizer


def _with_words(tokenizer, words):
    tokenizer.add_tokens(words)
    return tokenizer


# every kind whose words are told apart, with the normalizers that may stand before them; one of another kind
TOKENIZERS = {
    "byte level": lambda: _changed(augment_tokenizers.byte_level),
    "with a space in front": lambda: _changed(
        augment_tokenizers.byte_level, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)
    ),
    "in lower case": lambda: _changed(
        augment_tokenizers.byte_level,
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    ),
    "word piece": lambda: _changed(
        augment_tokenizers.word_piece, normalizer=normalizers.BertNormalizer(lowercase=False)
    ),
    "without accents": lambda: _changed(
        augment_tokenizers.word_piece, normalizer=normalizers.BertNormalizer(strip_accents=True)
    ),
    "not cleaned": lambda: _changed(
        augment_tokenizers.word_piece, normalizer=normalizers.BertNormalizer(clean_text=False)
    ),
    "prepared": lambda: train_tokenizer(iter(TEXTS * 20), "bpe", 420),
    "prepared, in lower case": lambda: train_tokenizer(iter(TEXTS * 20), "bpe", 420, lowercase=True),
    "prepared, word piece": lambda: train_tokenizer(iter(TEXTS * 20), "wordpiece", 400, lowercase=True),
    "line feeds behind spaces": lambda: train_tokenizer(iter([" \n good \n film"] * 50), "bpe", 420),
    "line feeds become spaces": lambda: _changed(
        augment_tokenizers.byte_level, normalizer=normalizers.BertNormalizer()
    ),
    "with added words": lambda: _with_words(
        augment_tokenizers.word_piece(), ["C++", AddedToken("ing", single_word=True)]
    ),
    "with an added line feed": lambda: _with_words(
        augment_tokenizers.byte_level(), ["\n", AddedToken("'s", lstrip=True)]
    ),
    "of another kind": augment_tokenizers.metaspace,
}


# not word by word
WHOLE = {"with added words", "of another kind"}


@pytest.mark.full
@pytest.mark.parametrize("name", TOKENIZERS)
def test_encoder_takes_any_text(name, monkeypatch):
    """Encode random texts, texts made of others too; memories are small, so it forgets."""
    monkeypatch.setattr("augment.text.encoder.MOST_PIECES", 100)
    tokenizer = TOKENIZERS[name]()
    rng = random.Random(0)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    encoder = TextEncoder(tokenizer.backend_tokenizer, vocabulary.cls_id, vocabulary.sep_id, 60)
    assert (name in WHOLE) == (encoder._pieces is None)

    def text() -> str:
        return "".join(
            rng.choice(LETTERS if rng.random() < 0.7 else PIECES) for _ in range(rng.randint(0, 40))
        )

    def expected(texts):
        texts = encoder._special.taken_apart(texts)
        ids = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        rows = [row[:58] for row in ids]
        return Ragged.from_sequences([[vocabulary.cls_id, *row, vocabulary.sep_id] for row in rows])

    for _ in range(20):
        origins = [text() if rng.random() < 0.5 else rng.choice(TEXTS) for _ in range(60)]
        texts = [
            " ".join(rng.sample(origin.split(" "), origin.count(" ") + 1)) + rng.choice(["", ".", "!"])
            for origin in origins
        ]
        texts = [rng.choice([new, new.swapcase(), text()]) for new in texts]
        assert encoder(texts) == expected(texts)
        assert encoder(origins) == expected(origins)


ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
ACROSS = [("Â", "ł"), ("Âł", "Ġ")]  # a no-break space, and the space behind it


@pytest.mark.parametrize(
    ("normalizer", "letters", "merges", "origin", "text"),
    [
        (None, ALPHABET, ACROSS, "x \xa0 a\xa0 b", "x a\xa0 \xa0 b"),
        (None, ALPHABET, ACROSS, "x a\xa0 b", "x b a\xa0 b"),
        (
            normalizers.Sequence([normalizers.NFKC(), normalizers.StripAccents()]),
            ALPHABET,
            [],
            "\u0302 xx¨½⑽",
            "\u0302 zz",
        ),
        # with a letter that is no byte's
        (None, ["a", "b", "x", "Ġ", "Ċ", "北"], [("x", "北")], "a x b", "b a x"),
        (None, ALPHABET, [("a", "Ġ"), ("aĠ", "b")], "x a b a", "a b x a"),  # what no split keeps apart
    ],
)
@pytest.mark.parametrize("splits", [True, False])
def test_white_space_and_vocabularies_that_few_tokenizers_have(
    normalizer, letters, merges, origin, text, splits
):
    names = list(dict.fromkeys(["[CLS]", "[SEP]", *letters, *map("".join, merges)]))
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    expected = {
        string: [0, *tokenizer.encode(string, add_special_tokens=False).ids, 1] for string in (origin, text)
    }
    encoder = TextEncoder(tokenizer, 0, 1, 100)
    for _ in range(2):
        for string in (text, origin):
            assert encoder([string])[0].tolist() == expected[string]


@pytest.mark.parametrize("marks", [{"end_of_word_suffix": "</w>"}, {"continuing_subword_prefix": "##"}])
def test_letters_with_marks_of_their_place_in_a_word(marks):
    names = [
        "[CLS]",
        "[SEP]",
        *"abxĠ",
        *(f"{letter}</w>" for letter in "abx"),
        *(f"##{one}" for one in "abx"),
    ]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, [], **marks))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder = TextEncoder(tokenizer, 0, 1, 100)
    for text in ("ab xa b", "b xa ab", "xa b ab"):
        rows = encoder([text, "ab"])
        expected = [tokenizer.encode(one, add_special_tokens=False).ids for one in (text, "ab")]
        assert [row.tolist()[1:-1] for row in rows] == expected and len(set(expected[0])) > 3


def test_a_sentence_longer_than_the_model_is_shown_whole_and_without_a_warning(caplog):
    """A warning of transformers of what a model would do: no model is asked here."""
    fast = augment_tokenizers.word_piece()
    fast.model_max_length = 4
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        encode(["He travelled widely in Europe."], fast, Vocabulary.from_tokenizer(fast))
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records
