"""Mutate valid input: bytes, texts and trees of JSON values."""

import copy
import random
from typing import Any

# what breaks readers: ends of planes, other digits and cases, marks that join or turn, no character at all
ODD_TEXTS = (
    "", " ", "\n", "\r", "\t", "\x00", "\x0b", "\x1c", "\x85", "\xa0", "\xad", "\u200b", "\u200d", "\u2028",
    "\u2029", "\u202e", "\u3000", "\ufeff", "\ufffd", "\uffff", "\U0010ffff", "\ud800", "\udc80", "\udfff",
    "e\u0301", "\u0301", "ß", "ŉ", "ﬁ", "İ", "ı", "ǅ", "Ⅷ", "½", "²", "٣", "५", "１", "〇", "ﷺ",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001d7d8", "北京", "と", "가", "שלום", "'", '"', "’",
    "“", "`", "-", "–", "—", "/", "\\", ".", "..", "...", ",", ":", ";", "|", "=", "@", "#", "%", "&", "*",
    "{", "}", "[", "]", "(", ")", "<", ">", "!", "?", "~", "^", "$", "nan", "inf", "-inf", "null", "None",
    "true",
    "0", "-1", "1e999", "1e-999", "0x1f", "1_000", "9" * 30, "9" * 5000, "007", "1.", ".5", "+",
    "A" * 300,
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 8, 127, 128, 255, 256, 511, 512, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
    2**53, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63), 10**30, 10**400,
)  # fmt: skip
VALUES = (
    None, True, False, "", "text", [], {}, [[]], [{}], {"": {}}, 0.5, -0.0, 1e308, float("inf"),
    float("-inf"), float("nan"),
)  # fmt: skip


def odd_text(chance: random.Random) -> str:
    """Draw a text of a few odd pieces."""
    return "".join(
        chance.choice(ODD_TEXTS) if chance.random() < 0.8 else chr(chance.randrange(0x110000))
        for _ in range(chance.choice((1, 1, 1, 2, 3, 5)))
    )


def mutated_bytes(chance: random.Random, data: bytes, times: int | None = None) -> bytes:
    """Flip, cut, insert, duplicate, overwrite or truncate, a few times over."""
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6)) if times is None else times):
        size, kind = len(data), chance.randrange(8)
        start = chance.randrange(size + 1)
        stop = min(size, start + chance.choice((1, 1, 2, 4, 8, 32, 200)))
        if kind == 0 and size:
            place = start % size
            data = data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]
        elif kind == 1 and size:
            place = start % size
            data = data[:place] + bytes([chance.choice((0, 1, 10, 13, 127, 128, 255))]) + data[place + 1 :]
        elif kind == 2:
            data = data[:start] + data[stop:]
        elif kind == 3:
            data = data[:stop] + data[start:stop] * chance.choice((1, 1, 2, 50)) + data[stop:]
        elif kind == 4:
            data = (
                data[:start] + bytes(chance.randrange(256) for _ in range(chance.randrange(9))) + data[start:]
            )
        elif kind == 5:
            data = data[:start] + odd_text(chance).encode("utf-8", "surrogatepass") + data[start:]
        elif kind == 6:
            number = str(chance.choice(NUMBERS))
            data = data[:start] + number.encode() + data[stop:]
        elif chance.random() < 0.3:
            data = data[:start]
        else:
            other = chance.randrange(size + 1)
            data = data[:start] + data[other : other + stop - start] + data[stop:]
    return data


def mutated_text(chance: random.Random, text: str, times: int | None = None) -> str:
    """Cut, insert, duplicate, move and change the case of characters, a few times over."""
    for _ in range(chance.choice((1, 1, 2, 4)) if times is None else times):
        kind, start = chance.randrange(6), chance.randrange(len(text) + 1)
        stop = min(len(text), start + chance.choice((1, 1, 2, 4, 12)))
        if kind == 0:
            text = text[:start] + text[stop:]
        elif kind <= 2:
            text = text[:start] + odd_text(chance) + text[start:]
        elif kind == 3:
            text = text[:stop] + text[start:stop] * chance.choice((1, 1, 3, 40)) + text[stop:]
        elif kind == 4:
            other = chance.randrange(len(text) + 1)
            text = text[:start] + text[other : other + 4] + text[stop:]
        else:
            text = (
                text[:start]
                + chance.choice((str.upper, str.lower, str.title))(text[start:stop])
                + text[stop:]
            )
    return text


def mutated_tree(chance: random.Random, tree: Any, times: int | None = None) -> Any:
    """Return a copy of a tree of JSON values in which a few nodes are dropped, swapped or of another type."""
    tree = [copy.deepcopy(tree)]
    for _ in range(chance.choice((1, 1, 1, 2, 3)) if times is None else times):
        nodes: list[tuple[Any, Any]] = []
        _collect(tree, nodes)
        holder, key = chance.choice(nodes)
        kind = chance.randrange(9)
        if kind == 0 and holder is not tree:
            del holder[key]
        elif kind == 1:
            other, at = chance.choice(nodes)
            holder[key], other[at] = other[at], holder[key]
            if _has_circle(tree):
                holder[key], other[at] = other[at], holder[key]
        elif kind == 2:
            other, at = chance.choice(nodes)
            holder[key] = copy.deepcopy(other[at])
        elif kind == 3 and isinstance(holder, dict):
            holder[odd_text(chance) if chance.random() < 0.5 else mutated_text(chance, str(key), 1)] = (
                holder.pop(key)
            )
        elif kind == 4 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif kind == 5 and isinstance(holder[key], str):
            holder[key] = mutated_text(chance, holder[key], 1)
        elif kind == 6 or (kind == 5 and isinstance(holder[key], int)):
            holder[key] = chance.choice(NUMBERS)
        elif kind == 7:
            holder[key] = odd_text(chance)
        else:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
    return tree[0]


def _collect(tree: Any, nodes: list[tuple[Any, Any]]) -> None:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        nodes.append((tree, key))
        if isinstance(tree[key], dict | list):
            _collect(tree[key], nodes)


def _has_circle(tree: Any, above: tuple[int, ...] = ()) -> bool:
    if not isinstance(tree, dict | list):
        return False
    if id(tree) in above:
        return True
    values = tree.values() if isinstance(tree, dict) else tree
    return any(_has_circle(value, (*above, id(tree))) for value in values)
