"""List every augmentation by name, with its paper, its parameters and an example."""

from typing import Any

from augment.core.entry import FIELDS, Entry, kind_of, summary_of
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
from augment.text.word_forms import word_table
from augment.tokens import rules

_MODULES = {
    module.__name__.removeprefix("augment."): module
    for module in (
        rules, entries, contractions, spelling, discourse, names, word_order, substitution, phrases, clauses,
        tense, vectors, masked, translation,
    )
}  # fmt: skip


def _entry(
    name: str, module: str, meaning: Any, needs: str, languages: str, paper: str, before: str, after: str
) -> Entry:
    """Return the entry of a row of the table."""
    fields = FIELDS.get(name) or {"function": getattr(_MODULES[module], name.replace("-", "_"))}
    return Entry(
        name=name,
        paper=paper,
        meaning=meaning,
        kind=kind_of(fields["function"]),
        needs=tuple(filter(None, needs.split("|"))),
        languages=tuple(languages.split()),
        sample=(before, after) if before else None,
        **{"description": summary_of(fields["function"]), **fields},
    )


CATALOGUE: dict[str, Entry] = {row[0]: _entry(*row) for row in word_table("augmentations.tsv")}
