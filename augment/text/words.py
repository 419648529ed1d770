"""Make the tokens of a text from those of its words, without calling the tokenizer for words met before.

This serves tokenizers that never join what stands on two sides of a space: a text's tokens are those of its
pieces between spaces. A piece is split further, into words and punctuation, as the tokenizer's own
pre-tokenizer does.
"""

import functools
import json
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

MOST_WORDS = 1 << 16
# Normalizers that do not look past a space, and those of them that leave ASCII unchanged.
_BY_CHARACTER = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"})
_LEAVES_ASCII = frozenset({"NFC", "NFD", "NFKC", "NFKD", "StripAccents"})
# How pre-tokenizers split ASCII without white space, except a space in front. ByteLevel: GPT-2's expression,
# with its classes of letters and digits spelled out. BertPreTokenizer: every punctuation character is a word.
_BYTE_LEVEL_WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+")
_BERT_WORD = re.compile(r"[A-Za-z0-9]+|[^\sA-Za-z0-9]")
_SPACE, _LINE_FEED = "\u0120", "\u010a"  # as byte-level BPE writes them
# Letters that no normalizer composes with the character before: Latin, Greek and Cyrillic.
_BLOCKS = ((0xC0, 0x2B0), (0x370, 0x400), (0x400, 0x530), (0x1E00, 0x1F00))
_LETTERS = [letter for first, last in _BLOCKS for letter in map(chr, range(first, last)) if letter.isalpha()]
_NOT_TEXT = 1 << 20  # "characters" of a token that stands for no text, or for unknown text


class Memory(dict[str, bytes | None]):
    """Keep strings with their tokens: the `most` that were asked for last, and as many from before.

    Call `turn` when nothing that was found is needed any more.
    """

    def __init__(self, most: int):
        super().__init__()
        self._most = most
        self._before: dict[str, bytes | None] = {}

    def turn(self) -> None:
        """Forget the strings from before once there are more than `most`."""
        if len(self) > self._most:
            self._before = dict(self)
            self.clear()

    def missing(self, strings: Iterable[str]) -> list[str]:
        """Return the strings that are not here, after recalling those from before."""
        absent = [string for string in strings if string not in self]
        recalled = {string: self._before[string] for string in absent if string in self._before}
        self.update(recalled)
        return [string for string in absent if string not in recalled] if recalled else absent


class Words(ABC):
    """Make the tokens of pieces that stand alone from those of their words.

    A call of the tokenizer for each new word would cost several times its work. New words therefore go as one
    text, whose tokens are then split up. Token ids are bytes of int32 throughout, joined without a look at
    single ones.
    """

    opens_alike: bool  # whether a piece has the same tokens at the beginning of a text as behind a space
    space = ""  # how tokens write one, if they do

    def __init__(self, tokenizer: Any, settings: dict[str, Any]):
        self._tokenizer = tokenizer
        self._known = Memory(MOST_WORDS)
        vocabulary = tokenizer.get_vocab()
        special = {token["content"] for token in settings["added_tokens"]} | {
            settings["model"].get("unk_token")
        }
        # tokens at which another word begins (`_split_tokens`)
        self._begins = np.zeros(max(vocabulary.values()) + 1, dtype=bool)
        # int32: the characters of text that each token stands for, without spaces
        self.characters = np.full(len(self._begins), _NOT_TEXT, dtype=np.int32)
        # bool: whether the first of them is a space (byte-level BPE, whose characters are bytes)
        self.spaced = np.zeros(len(self._begins), dtype=bool)
        for token, number in vocabulary.items():
            self._begins[number], characters = self.shape(token)
            if token not in special:
                self.characters[number] = characters
                self.spaced[number] = bool(self.space) and token.startswith(self.space)

    def __call__(self, pieces: list[str]) -> list[bytes | None]:
        """Return the token ids of each piece; None where they cannot be split from those beside it."""
        known = self._known
        known.turn()
        split = [self.split(piece) for piece in pieces]
        new = known.missing({word for words in split for word in words})
        known.update(zip(new, self.encode(new), strict=True))
        found: list[list[Any]] = [[known[word] for word in words] for words in split]  # bytes or None
        return [None if None in tokens else b"".join(tokens) for tokens in found]

    @abstractmethod
    def split(self, piece: str) -> list[str]:
        """Return the words of a piece, each with its own tokens; the whole piece where they are not known."""

    @abstractmethod
    def encode(self, words: list[str]) -> list[bytes | None]:
        """Return the token ids of each word; None where they cannot be split from those beside it."""

    @abstractmethod
    def spelling(self, settings: dict[str, Any]) -> tuple[str, tuple[Any, ...]] | None:
        """Return the method of the compiled `Pieces` that spells new words, and its first arguments, or None.

        settings: the tokenizer's.
        """

    @abstractmethod
    def shape(self, token: str) -> tuple[bool, int]:
        """Return whether another word begins at a token, and how many characters it has, spaces aside."""

    def _split_tokens(self, words: list[str], opening: str, before: str, skip: int) -> list[bytes | None]:
        """Return the tokens of words, split from those of one text.

        The text begins with `opening` and has `before` in front of each word; that takes the first `skip`
        tokens of each. None: the tokenizer does not begin anew in front of the word.
        """
        if not words:
            return []
        (row,) = encode(self._tokenizer, [opening + "".join([before + word for word in words])])
        starts = np.flatnonzero(self._begins[np.frombuffer(row, np.int32)])
        if len(starts) == len(words):
            ends = [*(4 * starts[1:]).tolist(), len(row)]
            return [row[start:end] for start, end in zip((4 * (starts + skip)).tolist(), ends)]
        if len(words) == 1:
            return [None]
        return [tokens for word in words for tokens in self._split_tokens([word], opening, before, skip)]


class ByteLevelWords(Words):
    """Split pieces as byte-level BPE does (GPT-2, RoBERTa): a word includes the space before it."""

    space = _SPACE

    def __init__(self, tokenizer: Any, settings: dict[str, Any]):
        super().__init__(tokenizer, settings)
        # Pieces stay whole where the normalizer changes letters before words are split ("IT'S").
        self._splits = all(step in _LEAVES_ASCII for step in _normalizers(settings))
        self.opens_alike = bool(settings["pre_tokenizer"].get("add_prefix_space"))

    def split(self, piece: str) -> list[str]:
        if self.opens_alike and piece[0] != " ":
            piece = " " + piece
        if (
            self._splits
            and piece.isascii()
            and (piece.isalpha() or (piece[0] == " " and piece[1:].isalpha()))
        ):
            return [piece]  # most pieces; the expression would find the same
        return _BYTE_LEVEL_WORD.findall(piece) if self._splits and is_plain(piece) else [piece]

    def encode(self, words: list[str]) -> list[bytes | None]:
        # The "a" keeps the tokenizer from adding a blank in front. A line feed, which is a token by itself,
        # comes before each word, so that no word opens the text.
        return self._split_tokens(words, "a", "\n", 1)

    def spelling(self, settings: dict[str, Any]) -> tuple[str, tuple[Any, ...]] | None:
        model = settings["model"]
        if not self._splits or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
            return None
        vocabulary = model["vocab"]
        ids = {_as_bytes(token): number for token, number in vocabulary.items()}
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        merges = [(vocabulary[one], vocabulary[other], vocabulary[one + other]) for one, other in pairs]
        return "spell_pairs", (ids, merges, bool(model.get("ignore_merges")), self._letters())

    def _letters(self) -> str:
        """Return letters beyond ASCII that the tokenizer leaves unchanged and takes for letters of a word."""
        normalizer, before = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        text = "".join(f" a{letter}b" for letter in _LETTERS)
        normal = text if normalizer is None else normalizer.normalize_str(text)
        kept = set(text.split()) & set(normal.split())
        letters = [letter for letter in _LETTERS if f"a{letter}b" in kept]
        parts = before.pre_tokenize_str("".join(f" a{letter}b" for letter in letters))
        whole = {text for text, _ in parts}
        return "".join(letter for letter in letters if _SPACE + _written(f"a{letter}b") in whole)

    def shape(self, token: str) -> tuple[bool, int]:
        return token == _LINE_FEED, len(token) - token.count(_SPACE)


class BertWords(Words):
    """Split pieces as BERT's WordPiece does: every punctuation character is a word."""

    opens_alike = True

    def __init__(self, tokenizer: Any, settings: dict[str, Any]):
        self._inside = settings["model"]["continuing_subword_prefix"]
        super().__init__(tokenizer, settings)

    def split(self, piece: str) -> list[str]:
        return _BERT_WORD.findall(piece) if is_plain(piece) else [piece]

    def encode(self, words: list[str]) -> list[bytes | None]:
        plain = [word for word in words if is_plain(word)]
        found = dict(zip(plain, self._split_tokens(plain, "", " ", 0), strict=True))
        others = [word for word in words if word not in found]
        found.update(zip(others, encode(self._tokenizer, others), strict=True))
        return [found[word] for word in words]

    def spelling(self, settings: dict[str, Any]) -> tuple[str, tuple[Any, ...]] | None:
        model = settings["model"]
        vocabulary = {token.encode(): number for token, number in model["vocab"].items()}
        unknown = model["vocab"].get(model["unk_token"])
        lowercase = any(step["type"] == "Lowercase" or step.get("lowercase") for step in _steps(settings))
        if unknown is None:
            return None
        return "spell_longest", (
            vocabulary,
            self._inside,
            unknown,
            model["max_input_chars_per_word"],
            lowercase,
        )

    def shape(self, token: str) -> tuple[bool, int]:
        begins = not token.startswith(self._inside)
        return begins, len(token) - (0 if begins else len(self._inside))


def words_between_spaces(tokenizer: Any) -> Words | None:
    """Return the `Words` of a tokenizer that cuts text at every space, None for another tokenizer."""
    settings = json.loads(tokenizer.to_str())
    before, model, steps = settings["pre_tokenizer"] or {}, settings["model"], _normalizers(settings)
    # Added tokens with a space match across pieces, and normalised ones match other letters ("c++" for an
    # added "C++").
    if any(" " in token["content"] or (steps and token["normalized"]) for token in settings["added_tokens"]):
        return None
    if any(step not in _BY_CHARACTER for step in steps) or model.get("dropout"):
        return None
    words: Words | None = None
    if model["type"] == "WordPiece" and before.get("type") == "BertPreTokenizer":
        words = BertWords(tokenizer, settings)
    elif model["type"] == "BPE" and before.get("type") == "ByteLevel" and before.get("use_regex", True):
        words = ByteLevelWords(tokenizer, settings)
    return None if words is None or None in words.encode(["a", "b"]) else words


def encode(tokenizer: Any, texts: list[str]) -> list[bytes]:
    """Return the token ids of each text, without special tokens, as bytes of int32."""
    if not texts:
        return []
    return [
        array("i", encoding.ids).tobytes()
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    ]


@functools.lru_cache(maxsize=1)
def _byte_of() -> dict[str, int]:
    """Return the byte that each letter of byte-level tokens stands for (GPT-2); a printable one is itself."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {**{chr(byte): byte for byte in own}, **{chr(256 + n): byte for n, byte in enumerate(others)}}


@functools.lru_cache(maxsize=1)
def _letter_of() -> dict[int, str]:
    return {byte: letter for letter, byte in _byte_of().items()}


def _written(text: str) -> str:
    """Return a text as byte-level tokens write it."""
    return "".join(map(_letter_of().__getitem__, text.encode()))


def _as_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; another one gets a line feed in front."""
    table = _byte_of()
    return (
        bytes(map(table.__getitem__, token))
        if all(letter in table for letter in token)
        else b"\n" + token.encode()
    )


def is_plain(text: str) -> bool:
    """Return whether a text is printable ASCII."""
    return text.isascii() and text.isprintable()


def _normalizers(settings: dict[str, Any]) -> list[str]:
    return [step["type"] for step in _steps(settings)]


def _steps(settings: dict[str, Any]) -> list[dict[str, Any]]:
    normalizer = settings["normalizer"] or {}
    return [step for step in normalizer.get("normalizers") or [normalizer] if step]
