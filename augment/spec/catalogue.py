"""List every augmentation by name, with its paper, its parameters and an example."""

from augment.core.entry import REGISTERED, Entry
from augment.neural import masked, translation, vectors
from augment.rules import (
    clauses,
    contractions,
    discourse,
    names,
    phrases,
    spelling,
    substitution,
    tense,
    word_order,
)
from augment.sda import entries
from augment.tokens import rules

_MODULES = (
    rules, entries, contractions, spelling, discourse, names, word_order,
    substitution, phrases, clauses, tense, vectors, masked, translation,
)  # fmt: skip

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for module in _MODULES
    for entry in REGISTERED
    if entry.function.__module__ == module.__name__
}
