"""Sentences of a few words, for small models of the tests of geometry."""

import numpy as np

WORDS = ["man", "woman", "dog", "cat", "plays", "eats", "sleeps"]
WORDS += ["guitar", "apple", "river", "slowly", "green", "old", "happy"]


def sentences(count, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(4, 12))) for _ in range(count)]
