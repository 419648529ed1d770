"""Corpora that a word names: where they are from, under which licence, and how they are read."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class NamedData(NamedTuple):
    """A public corpus. The data set's own page says what holds; what is here is to choose by.

    source: what the name stands for: hub:OWNER/NAME, or hub:OWNER/NAME/FILE. unit: what a sequence is best
    made of (`data.prepare.unit`). settings: other keys of a source that reading it takes.
    """

    source: str
    about: str
    licence: str
    unit: str
    size: str
    settings: Mapping[str, Any] = MappingProxyType({})


NAMED_DATA = {
    "simcse-wiki1m": NamedData(
        "hub:princeton-nlp/datasets-for-simcse/wiki1m_for_simcse.txt",
        "sentences of English Wikipedia, one a line: what SimCSE and those after it are trained on",
        "that of Wikipedia's text, CC BY-SA; else see its page",
        "record",
        "1,000,000 sentences",
        {"layout": "lines"},
    ),
    "nli-for-simcse": NamedData(
        "hub:princeton-nlp/datasets-for-simcse/nli_for_simcse.csv",
        "triples of SNLI and MNLI (columns sent0, sent1, hard_neg), for supervised SimCSE",
        "see the pages of SNLI and MNLI",
        "record",
        "275,601 triples",
    ),
    "wikipedia": NamedData(
        "hub:wikimedia/wikipedia",
        "English Wikipedia of November 2023, an article a row (column text); another by subset: 20231101.de",
        "CC BY-SA and GFDL",
        "sequence",
        "6,407,814 articles, 11.6 GB to download",
        {"subset": "20231101.en"},
    ),
    "fineweb-edu": NamedData(
        "hub:HuggingFaceFW/fineweb-edu",
        "web pages of Common Crawl chosen for what they teach (column text)",
        "ODC-By 1.0; Common Crawl's terms of use apply too",
        "sequence",
        "some 10 billion tokens in this subset",
        {"subset": "sample-10BT"},
    ),
    "bookcorpus": NamedData(
        "hub:SamuelYang/bookcorpus",
        "a copy of BookCorpus, a sentence a row (column text) in the order of the books",
        "none: the books are their authors', its makers no longer give it out; decide for yourself",
        "sequence",
        "74,004,228 sentences",
        {"layout": "passages"},
    ),
}


def expand(source: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a source with a name of `NAMED_DATA` replaced by what it stands for.

    >>> expand({"source": "wikipedia", "subset": "20231101.de"})
    {'subset': '20231101.de', 'source': 'hub:wikimedia/wikipedia'}
    """
    named = NAMED_DATA.get(source.get("source", ""))
    return source if named is None else {**named.settings, **source, "source": named.source}


def table() -> str:
    """Return what the names stand for, as a help text."""
    parts = [
        f"  {name}  ({data.source})\n      {data.about}\n      unit {data.unit}; size: {data.size}\n"
        f"      licence: {data.licence}"
        for name, data in NAMED_DATA.items()
    ]
    return "\n".join(["corpora that a name stands for:", "", *parts])
