"""The reading tasks of a preparation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A piece of a source that one task reads: stripe `stripe` of `stripes` of `place`.

    kind: text | jsonl | csv | tsv | parquet | disk | hub | embedded. size: text bytes, estimated. layout: of
    text: lines | paragraphs | passages; of jsonl: lines | array. longest: bytes of a line, or characters of a
    row's text. width: the column at which the lines of a text file are wrapped, 0 where they are not.
    """

    source: int
    kind: str
    place: str
    stripe: int
    stripes: int
    size: int
    layout: str = "lines"
    longest: int = 8_000_000
    width: int = 0
