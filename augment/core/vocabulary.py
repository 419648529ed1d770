"""Describe a tokenizer's vocabulary to token augmentations and masking, as arrays over its token ids."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from augment.core.errors import AugmentationError
from augment.core.ragged import Ragged

DEL_TOKEN = "[DEL]"
PUNCTUATION = (".", ",", "!", "?", ";", ":")  # AEDA's
# Kinds of token, by the first character that is not a space mark: byte-level BPE and SentencePiece split
# where it changes.
SPECIAL, LETTERS, DIGITS, OTHER, MARK = 0, 1, 2, 3, 4


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A vocabulary of `size` ids (the largest id + 1; ids without a token count as special).

    del_id: -1 when the tokenizer has no [DEL]. special: bool[size], never masked, deleted or substituted.
    word_start: bool[size], tokens that begin a word anywhere. kind: uint8[size]; if `continues_by_kind`
    (byte-level BPE, SentencePiece), a token without the space mark continues a word only of its own kind:
    "(good" is two words. punctuation: int32[marks], those of . , ! ? ; : that are tokens.
    """

    size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    del_id: int
    special: np.ndarray
    word_start: np.ndarray
    kind: np.ndarray
    continues_by_kind: bool = False
    punctuation: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """Return where words begin in sequences end to end: int32[T] -> bool[T]; special tokens are words."""
        starts = self.word_start[ids]
        if len(ids):
            starts[0] = True
        if self.continues_by_kind:
            kinds = self.kind[ids]
            # A space mark that is a whole token belongs to the word after it.
            starts[1:] |= (kinds[1:] != kinds[:-1]) & (kinds[:-1] != MARK)
        else:
            starts[1:] |= self.special[ids[:-1]]
        return starts

    def require_del(self, augmentation: str) -> int:
        if self.del_id < 0:
            raise AugmentationError(
                f"{augmentation} writes {DEL_TOKEN}, which this tokenizer lacks. Add it with "
                f'tokenizer.add_tokens(["{DEL_TOKEN}"], special_tokens=True)'
            )
        return self.del_id

    def require_punctuation(self, augmentation: str) -> np.ndarray:
        if not len(self.punctuation):
            raise AugmentationError(f"{augmentation} writes punctuation marks, which are no tokens here")
        return self.punctuation

    @staticmethod
    def from_tokenizer(tokenizer: Any) -> "Vocabulary":
        """Read that of a transformers fast tokenizer; [CLS] and [SEP] may be its bos and eos."""
        ids = {
            "pad": tokenizer.pad_token_id,
            "cls": _first(tokenizer.cls_token_id, getattr(tokenizer, "bos_token_id", None)),
            "sep": _first(tokenizer.sep_token_id, getattr(tokenizer, "eos_token_id", None)),
            "mask": tokenizer.mask_token_id,
        }
        missing = [f"{name}_token" for name, token_id in ids.items() if token_id is None]
        if missing:
            name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
            raise AugmentationError(f"tokenizer {name!r} has no {', '.join(missing)}: set them first")
        tokens: dict[str, int] = tokenizer.get_vocab()
        size = max(tokens.values()) + 1
        del_id = tokens.get(DEL_TOKEN, -1)
        specials = set(tokenizer.all_special_ids) | set(ids.values()) | ({del_id} - {-1})
        # the mark of words: "##" continues one (WordPiece), "Ġ" (BPE) or "▁" begins one
        counts = {mark: sum(token.startswith(mark) for token in tokens) for mark in ("##", "Ġ", "▁")}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        is_pieces = backend is not None and type(backend.model).__name__ == "WordPiece"
        style = "##" if is_pieces else max(counts, key=counts.__getitem__)
        special = np.ones(size, dtype=bool)
        word_start = np.ones(size, dtype=bool)
        kind = np.zeros(size, dtype=np.uint8)
        for token, token_id in tokens.items():
            if token_id in specials:
                continue
            special[token_id] = False
            if style == "##":
                word_start[token_id] = not token.startswith("##")
                kind[token_id] = LETTERS
                continue
            marked = token.startswith(("Ġ", "Ċ", "ĉ") if style == "Ġ" else "▁")
            kind[token_id] = _kind(token, style)
            word_start[token_id] = marked or kind[token_id] == OTHER
        marks = np.array([tokens[mark] for mark in PUNCTUATION if mark in tokens], dtype=np.int32)
        for array in (special, word_start, kind, marks):
            array.setflags(write=False)
        pad, cls, sep, mask = ids.values()
        by_kind = style != "##"
        return Vocabulary(size, pad, cls, sep, mask, del_id, special, word_start, kind, by_kind, marks)


def encode(sentences: Sequence[str], tokenizer: Any, vocabulary: Vocabulary) -> Ragged:
    """Return `[CLS] sentence [SEP]` for each sentence."""
    settings = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    rows = tokenizer(list(sentences), **settings)["input_ids"]
    return Ragged.from_sequences([[vocabulary.cls_id, *row, vocabulary.sep_id] for row in rows])


def _kind(token: str, style: str) -> int:
    text = token[1:] if token[:1] in ("Ġ", "▁", "Ċ", "ĉ") else token
    if not text:
        return MARK
    if style == "Ġ" and ord(text[0]) > 127:
        # Byte-level characters above ASCII stand for the bytes of non-ASCII characters: mostly letters.
        return LETTERS
    if text[0].isalpha():
        return LETTERS
    return DIGITS if text[0].isnumeric() else OTHER


def _first(*candidates: int | None) -> int | None:
    return next((candidate for candidate in candidates if candidate is not None), None)
