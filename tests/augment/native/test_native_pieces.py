"""Compiled `Pieces` give the tokens of whole texts."""

import itertools
import random

import numpy as np
import pytest

from augment.core.compiled import native

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


def _rows(pieces, letters: _Letters, texts) -> tuple[list, set, set, list]:
    """Make the two calls of `TextEncoder._by_pieces`: rows and pieces to learn, then rows again."""
    first, opening, inside = pieces.rows(texts)
    assert len(first) == len(texts) and (None in first or not (opening or inside))
    for opens, missing in ((True, sorted(opening)), (False, sorted(inside))):
        pieces.learn(opens, missing, [letters.learned(piece, opens) for piece in missing])
    again = iter(pieces.rows([text for text, row in zip(texts, first) if row is None])[0])
    last = [next(again) if row is None else row for row in first]
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


@pytest.mark.parametrize("most", [10**6, 5, 0])
@pytest.mark.parametrize("room", [10**6, 3, 1, 0, -2])
@pytest.mark.parametrize("alike", [True, False])
def test_rows_of_pieces_are_those_of_texts(alike, room, most):
    rng, letters = random.Random(room + most), _Letters(alike)
    pieces = native.Pieces(alike, CLS, SEP, room, most)
    seen = set()
    for _ in range(30):
        texts = [_text(rng, rng.choice(["ab", "ab.", LETTERS])) for _ in range(rng.randrange(12))]
        rows = _rows(pieces, letters, texts)[3]
        assert _whole(rows, letters, texts, max(room, 0)) == [letters(text, max(room, 0)) for text in texts]
        seen |= {type(row) for row in rows}
    assert seen == {bytes, type(None)}


@pytest.mark.parametrize("alike", [True, False])
def test_pieces_to_learn_are_those_not_met_before(alike):
    letters = _Letters(alike)
    pieces = native.Pieces(alike, CLS, SEP, 50, 50)
    assert _rows(pieces, letters, ["ab b ab. a"])[3] == [np.array(letters("ab b ab. a"), np.int32).tobytes()]
    rows, opening, inside = pieces.rows(["b bb a"])
    assert rows == [None] and opening == (set() if alike else {"b"}) and inside == {"bb"}
    # words of ASCII and other letters do not occur again, those of another script do
    assert pieces.rows(["北a 北b a"]) == ([None], set(), set())
    assert pieces.rows(["a 北 北北"])[2] == {"北", "北北"}
    for text in ("a  b", ""):
        assert pieces.rows([text]) == ([None], set(), set())
    assert pieces.rows([]) == ([], set(), set())
