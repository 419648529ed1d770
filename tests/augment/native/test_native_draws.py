"""Compiled draws give what those in Python give."""

import copy
import pickle
import random

import numpy as np
import pytest
from native_sentences import PlainDraws, outcome

from augment.core.keys import derive
from augment.text.draws import Draws, draws_for

KEYS = [
    0,
    1,
    -1,
    -7,
    2**63,
    2**64 - 1,
    2**64,
    3 * 2**64 + 5,
    -(2**70),
    np.uint64(2**64 - 1),
    np.uint64(9),
    np.int64(-7),
]


def _items(rng: random.Random, size: int):
    start = rng.randrange(100)
    return rng.choice([
        range(start, start + size), list(range(size)), tuple(map(str, range(size))), "".join(map(chr,
        range(40, 40 + size))),
    ])  # fmt: skip


def _call(rng: random.Random) -> tuple:
    """Return a method of draws, and its arguments."""
    kind = rng.choice(["bits", "uniform", "below", "chance", "chance", "choice", "sample"])
    if kind == "below":
        return kind, rng.choice([0, -3, 1, 2, 7, 2**32, 2**40, rng.randrange(1, 2 ** rng.randrange(1, 41))])
    if kind == "chance":
        return kind, rng.choice([0, 1, 0.0, 1.0, 0.5, -0.5, 1.5, float("nan"), rng.random()])
    if kind == "choice":
        return kind, _items(rng, rng.choice([0, 1, 2, rng.randrange(1, 300)]))
    if kind == "sample":
        size = rng.choice([0, 1, 2, 5, rng.randrange(700)])
        return kind, _items(rng, size), rng.choice([0, 1, 3, size, size + 5, rng.randrange(size + 1)])
    return (kind,)


def test_draws_are_those_in_python():
    rng = random.Random(0)
    kinds = set()
    for key in KEYS + [rng.randrange(-(2**66), 2**66) for _ in range(250)]:
        one, other = Draws(key), PlainDraws(key)
        for number in range(40):
            name, *arguments = _call(rng)
            found, expected = (outcome(getattr(draws, name), *arguments) for draws in (one, other))
            kinds.add((name, type(found)))
            assert repr(found) == repr(expected), f"call {number} of Draws({key!r}): {name}{tuple(arguments)}"
    assert {
        ("below", type),
        ("choice", type),
        ("sample", list),
        ("chance", bool),
        ("uniform", float),
        ("bits", int),
    } <= kinds


@pytest.mark.parametrize("kind", ["compiled", "python"])
def test_nothing_is_drawn_from_nothing(kind):
    draws = (Draws if kind == "compiled" else PlainDraws)(5)
    for call in (
        lambda: draws.below(0),
        lambda: draws.below(-4),
        lambda: draws.choice([]),
        lambda: draws.choice(""),
    ):
        with pytest.raises(ValueError, match="nothing can be drawn below"):
            call()
    assert draws.sample([], 3) == draws.sample([1, 2], 0) == draws.sample(iter(()), 1) == []
    assert draws.bits() == Draws(5).bits()  # none of them took a number


def test_samples_leave_the_items_as_they_are():
    items = list(range(50))
    assert sorted(Draws(1).sample(items, 50)) == items == list(range(50))
    assert Draws(1).sample(items=items, k=3) == PlainDraws(1).sample(items=items, k=3)


def test_draws_go_on_after_a_copy():
    draws = Draws(3)
    assert draws.chance(0.5) == PlainDraws(3).chance(0.5)
    again, copied = pickle.loads(pickle.dumps(draws)), copy.deepcopy(draws)
    assert (
        again.chance(0.3) == copied.chance(0.3) == draws.chance(0.3)
        and again.bits() == copied.bits() == draws.bits()
    )


def test_draws_for_sentences_are_those_of_their_keys():
    keys = derive(np.arange(20, dtype=np.uint64), "keys")
    expected = [PlainDraws(key).bits() for key in derive(keys, "pi").tolist()]
    assert [draws.bits() for draws in draws_for(keys, "pi")] == expected
