"""Cleaning changes text as documented, and a tokenizer that cleans gives raw text the same tokens."""

import json
import random
import re
import sys
import unicodedata

import augment_tokenizers
import pytest
from tokenizers import Tokenizer, normalizers

from augment.text.cleaning import clean, for_clean_text, with_cleaning, without_cleaning
from augment.text.encoder import TextEncoder, words_between_spaces

CONTROLS = [
    chr(c)
    for c in range(sys.maxunicode + 1)
    if re.fullmatch(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad]", chr(c))
]
SPACES = [chr(c) for c in range(sys.maxunicode + 1) if chr(c).isspace() and chr(c) not in CONTROLS] + list(
    "\u200b\u2060\ufeff"
)
LETTERS = [
    *"aeiou .,!?'-",
    "é",
    "ﬁ",
    "東",
    "京",
    "ß",
    "🙂",
    "\u0301",
    "\u0308",
    "e\u0301",
    "가",
    "\u1100\u1161",
    "\u212b",
]


def nasty(count: int, seed: int = 0) -> list[str]:
    """Return texts full of controls, odd white space and letters that are composed or taken apart."""
    choose = random.Random(seed)
    pieces = [
        CONTROLS,
        SPACES,
        ["\u200c", "\u200d", "\u202a", "\ufffd", "\r\n", "\n\n", "  "],
        LETTERS,
        LETTERS,
        LETTERS,
    ]
    return [
        "".join(choose.choice(choose.choice(pieces)) for _ in range(choose.randrange(30)))
        for _ in range(count)
    ]


def test_clean():
    assert clean(" a\t b\u00a0c\u200bd\r\n") == "a b c d"
    assert clean("co\u00adop e\u0301\x00\x07") == "coop \u00e9"
    assert clean("\ufeffA") == "A"
    assert clean("a\x01b") == "ab"
    assert clean("e\u00ad\u0301") == "\u00e9"  # letter and accent meet when the soft hyphen goes


def test_clean_text_is_clean():
    for text in nasty(5000):
        cleaned = clean(text)
        assert clean(cleaned) == cleaned == cleaned.strip() and "  " not in cleaned
        assert unicodedata.is_normalized("NFC", cleaned)
        assert not set(cleaned) & ({*CONTROLS, *SPACES} - {" "})


TOKENIZERS = {
    "byte level": (augment_tokenizers.byte_level, None),
    "byte level of a sequence": (augment_tokenizers.byte_level, normalizers.Sequence([normalizers.NFC()])),
    "byte level of one": (augment_tokenizers.byte_level, normalizers.NFKC()),
    "word piece": (augment_tokenizers.word_piece, normalizers.BertNormalizer(lowercase=True)),
    "steps": (
        augment_tokenizers.word_piece,
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    ),
}


@pytest.fixture(params=TOKENIZERS)
def backend(request) -> Tokenizer:
    make, normalizer = TOKENIZERS[request.param]
    backend = make().backend_tokenizer
    if normalizer is not None or make is augment_tokenizers.byte_level:
        backend.normalizer = normalizer
    return backend


def cleaning(backend: Tokenizer) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(with_cleaning(json.loads(backend.to_str()))))


def ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def test_a_tokenizer_that_cleans_gives_raw_text_the_tokens_of_clean_text(backend):
    texts = nasty(3000, seed=1)
    cleaned = list(map(clean, texts))
    assert ids(cleaning(backend), texts) == ids(cleaning(backend), cleaned) == ids(backend, cleaned)


def test_cleaning_is_put_on_once_and_taken_off_without_a_trace(backend):
    settings = json.loads(backend.to_str())
    cleans = json.loads(cleaning(backend).to_str())
    assert with_cleaning(cleans) is cleans
    assert without_cleaning(cleans) == settings and without_cleaning(settings) is settings
    assert for_clean_text(backend)[1] is False
    own, known = for_clean_text(cleaning(backend))
    assert known and json.loads(own.to_str()) == settings


def test_texts_are_encoded_fast_and_as_the_tokenizer_does(backend):
    """Look words up with a tokenizer that cleans, whatever an augmentation writes."""
    tokenizer = cleaning(backend)
    encoder = TextEncoder(tokenizer, 1, 2, 64)
    assert (encoder._pieces is None) == (words_between_spaces(backend) is None)
    texts = nasty(500, seed=2)
    texts += [" ".join(text.split()) for text in texts]
    changed = [text.replace("a", "  o ") + " x" for text in texts]
    for given in (texts, texts, changed):
        assert [row.tolist()[1:-1] for row in encoder(given)] == [row[:62] for row in ids(tokenizer, given)]
