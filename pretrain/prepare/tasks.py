"""The reading tasks of a preparation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A piece of a source that one task reads: stripe `stripe` of `stripes` of `place`.

    kind: text | jsonl | csv | tsv | parquet | disk | hub | embedded. size: text bytes, estimated.
    """

    source: int
    kind: str
    place: str
    stripe: int
    stripes: int
    size: int
    layout: str = "lines"
