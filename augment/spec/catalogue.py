"""List every augmentation by name, with its paper, its parameters and an example."""

import importlib
from collections.abc import Sequence
from typing import Any

from augment.core.entry import FIELDS, Entry, Parameter, kind_of, summary_of
from augment.text.word_forms import word_table
from augment.text.wordnet import wordnet


def _parameter(name: str, default: str, values: str, meaning: str) -> Parameter:
    """Return a parameter of parameters.tsv, which says how `values` is written."""
    low, is_range, high = values.partition("..")
    if is_range:
        kind = float if "." in default else int
        return Parameter(name, kind(default), meaning, float(low), float(high))
    if values.startswith("$"):
        return Parameter(name, default, meaning, variable=values[1:])
    return Parameter(name, default, meaning, choices=tuple(filter(None, values.split("|"))))


def _entry(row: Sequence[Any]) -> Entry:
    """Return the entry of a row of augmentations.tsv, which names the columns."""
    name, module, meaning, needs, languages, paper, before, after, example = row
    rules = importlib.import_module(f"augment.{module}")
    fields = FIELDS.get(name) or {"function": getattr(rules, name.replace("-", "_"))}
    described: dict[str, Any] = {"description": summary_of(fields["function"])}
    if "wordnet" in needs:
        described["require"] = wordnet
    return Entry(
        name=name,
        paper=paper,
        meaning=meaning,
        kind=kind_of(fields["function"]),
        parameters=tuple(_parameter(*row) for names, *row in _PARAMETERS if name in names.split()),
        example=example,
        needs=tuple(filter(None, needs.split("|"))),
        languages=tuple(languages.split()),
        sample=(before, after) if before else None,
        **(described | fields),
    )


_PARAMETERS = word_table("parameters.tsv")
CATALOGUE: dict[str, Entry] = {row[0]: _entry(row) for row in word_table("augmentations.tsv")}
