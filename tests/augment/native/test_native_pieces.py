"""Compiled `Pieces` give the tokens of whole texts."""

import itertools
import random

import numpy as np
import pytest

from augment.core.compiled import native
from augment.core.ragged import Ragged

LETTERS = "ab.é北"
CLS, SEP = 0, 1


class _Letters:
    """Tokenize two letters to a token, another one at the beginning of a text unless `alike`.

    é does not stand alone. In front of a full stop there is a token for no character, as byte-level
    tokenizers have one for a space by itself.
    """

    def __init__(self, alike: bool):
        self.alike = alike
        parts = ["", "."] + [
            "".join(part) for size in (1, 2) for part in itertools.product(LETTERS, repeat=size)
        ]
        self.ids = {
            key: number + 2
            for number, key in enumerate(itertools.product((True, False), dict.fromkeys(parts)))
        }
        self.characters = np.array([1 << 20, 1 << 20, *(len(part) for _, part in self.ids)], dtype=np.int32)
        self.spaced = np.zeros(len(self.characters), dtype=bool)

    def piece(self, piece: str, opens: bool) -> list[int]:
        parts = (
            ["", piece[:1], *(piece[i : i + 2] for i in range(1, len(piece), 2))]
            if piece[:1] == "."
            else None
        )
        parts = parts or [piece[i : i + 2] for i in range(0, len(piece), 2)]
        return [self.ids[opens and not self.alike and i == 0, part] for i, part in enumerate(parts)]

    def __call__(self, text: str, room: int = 10**6) -> list[int]:
        row = [
            token for i, piece in enumerate(text.split(" ")) for token in self.piece(piece, i == 0) or [CLS]
        ]
        return [CLS, *row[:room], SEP]

    def learned(self, piece: str, opens: bool) -> bytes | None:
        return None if "é" in piece else np.array(self.piece(piece, opens), np.int32).tobytes()


def _rows(pieces, letters: _Letters, texts, origins, tokens: Ragged) -> tuple[list, set, set, list]:
    """Make the two calls of `TextEncoder._by_pieces`: rows and pieces to learn, then rows again."""
    first, opening, inside = pieces.rows(texts, origins, tokens.ids, tokens.offsets, [])
    assert len(first) == len(texts) and (None in first or not (opening or inside))
    for opens, missing in ((True, sorted(opening)), (False, sorted(inside))):
        pieces.learn(opens, missing, [letters.learned(piece, opens) for piece in missing])
    last, *_ = pieces.rows(texts, origins, tokens.ids, tokens.offsets, first)
    assert all(early is late for early, late in zip(first, last) if early is not None)
    return first, opening, inside, last


def _whole(rows: list, letters: _Letters, texts: list[str], room: int) -> list[list[int]]:
    """Return the rows, with those that the tokenizer must make."""
    return [
        letters(text, room) if row is None else np.frombuffer(row, np.int32).tolist()
        for row, text in zip(rows, texts)
    ]


def _text(rng: random.Random, letters: str = LETTERS) -> str:
    size = rng.choice([0, 1, 3, 8])
    text = " ".join("".join(rng.choices(letters, k=rng.randint(1, 4))) for _ in range(size))
    return rng.choice([text] * 12 + [text.replace(" ", "  ", 1), f" {text}", f"{text} ", " "])


NO_TOKENS = Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64))


@pytest.mark.parametrize("most", [10**6, 5, 0])
@pytest.mark.parametrize("room", [10**6, 3, 1, 0, -2])
@pytest.mark.parametrize("alike", [True, False])
def test_rows_of_pieces_are_those_of_texts(alike, room, most):
    """Compare texts without origins."""
    rng, letters = random.Random(room + most), _Letters(alike)
    pieces = native.Pieces(letters.characters, letters.spaced, alike, CLS, SEP, room, most)
    seen = set()
    for _ in range(30):
        texts = [_text(rng, rng.choice(["ab", "ab.", LETTERS])) for _ in range(rng.randrange(12))]
        rows = _rows(pieces, letters, texts, [], NO_TOKENS)[3]
        assert _whole(rows, letters, texts, max(room, 0)) == [letters(text, max(room, 0)) for text in texts]
        seen |= {type(row) for row in rows}
    assert seen == {bytes, type(None)}


@pytest.mark.parametrize("most", [10**6, 5, 0])
@pytest.mark.parametrize("room", [10**6, 4])
@pytest.mark.parametrize("alike", [True, False])
def test_rows_of_texts_made_from_others_are_those_of_texts(alike, room, most):
    """Compare texts with origins."""
    rng, letters = random.Random(most), _Letters(alike)
    pieces = native.Pieces(letters.characters, letters.spaced, alike, CLS, SEP, room, most)
    spared = 0
    for _ in range(120):
        origins = [_text(rng, rng.choice(["ab.", "ab.", LETTERS])) for _ in range(rng.choice([1, 1, 8]))]
        texts = [" ".join(rng.sample(origin.split(" "), origin.count(" ") + 1)) for origin in origins]
        texts = [
            rng.choice([text, text, origin, f"{text} {_text(rng)}", _text(rng)])
            for text, origin in zip(texts, origins)
        ]
        # some are shorter than their texts, two lack even the ends
        stored = [letters(origin) for origin in origins]
        tokens = Ragged.from_sequences(
            [rng.choice([row, row, row, row[:4], row[:-1], row[:1], []]) for row in stored]
        )
        first, _, _, rows = _rows(pieces, letters, texts, origins, tokens)
        assert _whole(rows, letters, texts, room) == [letters(text, room) for text in texts], (texts, origins)
        spared += sum(row is not None for row in first)
    assert spared > 30


@pytest.mark.parametrize("alike", [True, False])
def test_pieces_to_learn_are_those_that_an_origin_lacks(alike):
    letters = _Letters(alike)
    tokens = Ragged.from_sequences([letters("ab b ab. a")])
    pieces = native.Pieces(letters.characters, letters.spaced, alike, CLS, SEP, 50, 50)
    rows, opening, inside = pieces.rows(
        ["ab a ab.", "b bb a"][:1], ["ab b ab. a"], tokens.ids, tokens.offsets, []
    )
    assert rows == [np.array(letters("ab a ab."), np.int32).tobytes()] and not opening and not inside
    rows, opening, inside = pieces.rows(["b bb a"], ["ab b ab. a"], tokens.ids, tokens.offsets, [])
    assert rows == [None] and opening == (set() if alike else {"b"}) and inside == {"bb"}
    rare = pieces.rows(["北a 北b a"], ["ab b ab. a"], tokens.ids, tokens.offsets, [])
    assert rare == ([None], set(), set())
    assert pieces.rows(["a  b"], [], NO_TOKENS.ids, NO_TOKENS.offsets, []) == ([None], set(), set())
    assert pieces.rows([""], [], NO_TOKENS.ids, NO_TOKENS.offsets, []) == ([None], set(), set())
    assert pieces.rows([], [], NO_TOKENS.ids, NO_TOKENS.offsets, []) == ([], set(), set())
