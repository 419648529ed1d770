"""Tell which tokenizers never join what stands on two sides of a space, and how these spell a word.

A text's tokens are then those of its pieces between spaces: the compiled `Pieces` look most of them up and
spell the others (augment/native/pieces.h).
"""

import functools
import json
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

# Normalizers that do not look past a space, and those of them that leave ASCII unchanged.
_BY_CHARACTER = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"})
_LEAVES_ASCII = frozenset({"NFC", "NFD", "NFKC", "NFKD", "StripAccents"})
_SPACE = "\u0120"  # as byte-level BPE writes it
# Letters that no normalizer composes with the character before: Latin, Greek and Cyrillic.
_BLOCKS = ((0xC0, 0x2B0), (0x370, 0x400), (0x400, 0x530), (0x1E00, 0x1F00))
_LETTERS = [letter for first, last in _BLOCKS for letter in map(chr, range(first, last)) if letter.isalpha()]
_NOT_TEXT = 1 << 20  # "characters" of a token that stands for no text, or for unknown text


@dataclass(frozen=True)
class PieceVocabulary:
    """Tokens of a tokenizer that cuts at every space: characters that each stands for, bool[V] spaced.

    opens_alike: a piece has the same tokens at the beginning of a text as behind a space. spelling: the
    method of the compiled `Pieces` that spells new words, and its first arguments, or None.
    """

    characters: np.ndarray
    spaced: np.ndarray
    opens_alike: bool
    spelling: tuple[str, tuple[Any, ...]] | None


def words_between_spaces(tokenizer: Any) -> PieceVocabulary | None:
    """Return what describes a tokenizer that cuts text at every space, None for another tokenizer."""
    settings = json.loads(tokenizer.to_str())
    before, model, steps = settings["pre_tokenizer"] or {}, settings["model"], _normalizers(settings)
    # Added tokens with a space match across pieces, and normalised ones match other letters ("c++" for an
    # added "C++").
    if any(" " in token["content"] or (steps and token["normalized"]) for token in settings["added_tokens"]):
        return None
    if any(step not in _BY_CHARACTER for step in steps) or model.get("dropout"):
        return None
    if model["type"] == "WordPiece" and before.get("type") == "BertPreTokenizer":
        inside = model["continuing_subword_prefix"]
        sizes = {token: len(token.removeprefix(inside)) for token in tokenizer.get_vocab()}
        return _words(tokenizer, settings, sizes, True, _longest_first(settings))
    if model["type"] == "BPE" and before.get("type") == "ByteLevel" and before.get("use_regex", True):
        sizes = {token: len(token) - token.count(_SPACE) for token in tokenizer.get_vocab()}
        alike = bool(before.get("add_prefix_space"))
        return _words(tokenizer, settings, sizes, alike, _by_pairs(tokenizer, settings))
    return None


def _words(
    tokenizer: Any, settings: dict[str, Any], sizes: dict[str, int], alike: bool, spelling: Any
) -> PieceVocabulary:
    vocabulary = tokenizer.get_vocab()
    special = {token["content"] for token in settings["added_tokens"]} | {settings["model"].get("unk_token")}
    characters = np.full(max(vocabulary.values()) + 1, _NOT_TEXT, dtype=np.int32)
    spaced = np.zeros(len(characters), dtype=bool)
    for token, number in vocabulary.items():
        if token not in special:
            characters[number] = sizes[token]
            spaced[number] = settings["model"]["type"] == "BPE" and token.startswith(_SPACE)
    return PieceVocabulary(characters, spaced, alike, spelling)


def _by_pairs(tokenizer: Any, settings: dict[str, Any]) -> tuple[str, tuple[Any, ...]] | None:
    """Return how byte-level BPE spells (GPT-2, RoBERTa): a word includes the space before it."""
    model = settings["model"]
    # pieces stay whole where the normalizer changes letters before words are split ("IT'S")
    splits = all(step in _LEAVES_ASCII for step in _normalizers(settings))
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


def _longest_first(settings: dict[str, Any]) -> tuple[str, tuple[Any, ...]] | None:
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
