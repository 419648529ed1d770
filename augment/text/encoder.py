"""Turn texts into tokens, by look-up if their words have been met before.

Where a tokenizer never joins what stands on two sides of a space, a text's tokens are those of its pieces
between spaces: the compiled `Pieces` look most of them up and spell the others (augment/native/pieces.h).
"""

import functools
import json
import re
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from augment.core.compiled import native
from augment.core.ragged import Ragged, offsets_of
from augment.text.cleaning import SpecialTokens, clean, for_clean_text

Spelling = tuple[str, tuple[Any, ...]] | None
MOST_PIECES = 1 << 17  # kept by an encoder: some 20 MB
LONGEST_PIECE = 64  # characters; longer pieces (Chinese has few spaces) do not occur again


class TextEncoder:
    """Turn strings into a Ragged of `[CLS] tokens [SEP]`, at most `max_length` each, as preparation does.

    Where a tokenizer never joins what a space separates (byte-level BPE, WordPiece), the compiled module
    keeps tokens by piece: a tenth of the time, as augmented sentences consist of words met before.
    """

    def __init__(self, tokenizer: Any, cls_id: int, sep_id: int, max_length: int):
        from tokenizers import Tokenizer

        # Copies, so that the caller's settings stay unchanged. Words are looked up in clean text.
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._clean_tokenizer, self._cleans = for_clean_text(tokenizer)
        for copy in (self.tokenizer, self._clean_tokenizer):
            copy.no_padding()
            copy.no_truncation()
        self.cls_id, self.sep_id, self.max_length = cls_id, sep_id, max_length
        self._added_tokens = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]
        self._added = re.compile("|".join(map(re.escape, self._added_tokens)) or "(?!)")
        self._special = SpecialTokens(self.tokenizer)
        self._pieces: Any = None  # texts must stay whole
        if (words := words_between_spaces(self._clean_tokenizer)) is not None:
            opens_alike, spelling = words
            self._pieces = native.Pieces(opens_alike, cls_id, sep_id, max_length - 2, MOST_PIECES)
            if spelling is not None:
                method, arguments = spelling
                getattr(self._pieces, method)(*arguments, self._added_tokens, LONGEST_PIECE)

    def __call__(self, texts: Sequence[str]) -> Ragged:
        rows = self._by_pieces(list(texts)) if self._pieces is not None else self._whole(list(texts))
        lengths = np.fromiter(map(len, rows), np.int64, len(rows)) // 4
        return Ragged(np.frombuffer(b"".join(rows), np.int32).copy(), offsets_of(lengths))

    def __reduce__(self) -> tuple[Any, ...]:
        return TextEncoder, (self.tokenizer, self.cls_id, self.sep_id, self.max_length)

    def _whole(self, texts: list[str]) -> list[bytes]:
        """Return `[CLS] tokens [SEP]` of each text from the tokenizer, as bytes of int32."""
        room = 4 * max(0, self.max_length - 2)
        first, last = (array("i", [number]).tobytes() for number in (self.cls_id, self.sep_id))
        return [
            b"".join((first, row[:room], last))
            for row in encode(self.tokenizer, self._special.taken_apart(texts))
        ]

    def _by_pieces(self, given: list[str]) -> list[bytes]:
        """Return the same from pieces that are spelled or were met before, and learn the others."""
        texts = list(map(clean, given)) if self._cleans else given
        rows, opening, inside = self._pieces.rows(texts)
        if opening or inside:
            for opens, missing in ((True, list(opening)), (False, list(inside))):
                self._pieces.learn(opens, missing, self._tokens_of(missing, "" if opens else " "))
            unknown = [number for number, row in enumerate(rows) if row is None]
            for number, row in zip(unknown, self._pieces.rows([texts[number] for number in unknown])[0]):
                rows[number] = row
        unfinished = [number for number, row in enumerate(rows) if row is None]
        for number, row in zip(unfinished, self._whole([given[number] for number in unfinished])):
            rows[number] = row
        return rows

    def _tokens_of(self, pieces: list[str], prefix: str) -> list[bytes | None]:
        """Return the tokens of prefix + piece for each piece, None for those that do not stand alone."""
        alone = [
            piece
            for piece in pieces
            if len(piece) <= LONGEST_PIECE and self._is_whole(piece) and not self._added.search(piece)
        ]
        rows = encode(self._clean_tokenizer, [prefix + piece for piece in alone])
        found = dict(zip(alone, rows, strict=True))
        return list(map(found.get, pieces))

    def _is_whole(self, piece: str) -> bool:
        """Return whether a piece is not empty, without white space at its ends, also once normalized."""
        normalizer = self._clean_tokenizer.normalizer
        if not piece or piece != piece.strip():
            return False
        normal = piece if piece.isascii() or normalizer is None else normalizer.normalize_str(piece)
        return bool(normal) and normal == normal.strip()


# Normalizers that do not look past a space, and those of them that leave ASCII unchanged.
_BY_CHARACTER = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"})
_LEAVES_ASCII = frozenset({"NFC", "NFD", "NFKC", "NFKD", "StripAccents"})
# Letters that no normalizer composes with the character before: Latin, Greek and Cyrillic.
_BLOCKS = ((0xC0, 0x2B0), (0x370, 0x400), (0x400, 0x530), (0x1E00, 0x1F00))
_LETTERS = [letter for first, last in _BLOCKS for letter in map(chr, range(first, last)) if letter.isalpha()]


def words_between_spaces(tokenizer: Any) -> tuple[bool, Spelling] | None:
    """Return how a tokenizer spells that cuts text at every space, None for another tokenizer.

    That is whether a piece has the same tokens at the beginning of a text as behind a space; and the method
    of the compiled `Pieces` that spells new words, with its first arguments, or None.
    """
    settings = json.loads(tokenizer.to_str())
    before, model = settings["pre_tokenizer"] or {}, settings["model"]
    steps = [step["type"] for step in _steps(settings)]
    # Added tokens with a space match across pieces, and normalised ones match other letters ("c++" for an
    # added "C++").
    if any(" " in token["content"] or (steps and token["normalized"]) for token in settings["added_tokens"]):
        return None
    if any(step not in _BY_CHARACTER for step in steps) or model.get("dropout"):
        return None
    if model["type"] == "WordPiece" and before.get("type") == "BertPreTokenizer":
        return True, _longest_first(settings)
    if model["type"] == "BPE" and before.get("type") == "ByteLevel" and before.get("use_regex", True):
        return bool(before.get("add_prefix_space")), _by_pairs(tokenizer, settings)
    return None


def _by_pairs(tokenizer: Any, settings: dict[str, Any]) -> Spelling:
    """Return how byte-level BPE spells (GPT-2, RoBERTa): a word includes the space before it."""
    model = settings["model"]
    # pieces stay whole if the normalizer changes letters before words are split ("IT'S")
    splits = all(step["type"] in _LEAVES_ASCII for step in _steps(settings))
    if not splits or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    vocabulary = model["vocab"]
    ids = {_as_bytes(token): number for token, number in vocabulary.items()}
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    merges = [(vocabulary[one], vocabulary[other], vocabulary[one + other]) for one, other in pairs]
    return "spell_pairs", (ids, merges, bool(model.get("ignore_merges")), _letters(tokenizer))


def _letters(tokenizer: Any) -> str:
    """Return letters beyond ASCII that a tokenizer leaves unchanged and takes for letters of a word."""
    normalizer = tokenizer.normalizer
    text = "".join(f" a{letter}b" for letter in _LETTERS)
    normal = text if normalizer is None else normalizer.normalize_str(text)
    kept = set(text.split()) & set(normal.split())
    letters = [letter for letter in _LETTERS if f"a{letter}b" in kept]
    parts = tokenizer.pre_tokenizer.pre_tokenize_str("".join(f" a{letter}b" for letter in letters))
    whole = {text for text, _ in parts}
    table = {byte: letter for letter, byte in _byte_of().items()}
    written = {letter: "".join(map(table.__getitem__, f" a{letter}b".encode())) for letter in letters}
    return "".join(letter for letter in letters if written[letter] in whole)


def _longest_first(settings: dict[str, Any]) -> Spelling:
    """Return how BERT's WordPiece spells: every punctuation character is a word."""
    model = settings["model"]
    unknown, longest = model["vocab"].get(model["unk_token"]), model["max_input_chars_per_word"]
    if unknown is None:
        return None
    lowercase = any(step["type"] == "Lowercase" or step.get("lowercase") for step in _steps(settings))
    vocabulary = {token.encode(): number for token, number in model["vocab"].items()}
    return "spell_longest", (vocabulary, model["continuing_subword_prefix"], unknown, longest, lowercase)


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


def _as_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; another one gets a line feed in front."""
    try:
        return bytes(map(_byte_of().__getitem__, token))
    except KeyError:
        return b"\n" + token.encode()


def _steps(settings: dict[str, Any]) -> list[dict[str, Any]]:
    normalizer = settings["normalizer"] or {}
    return [step for step in normalizer.get("normalizers") or [normalizer] if step]
