"""The catalogue: every augmentation by name, with its paper, its parameters and what they mean, and an example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from augment import tokens

CLEAR = "CLEAR (Wu et al. 2020, arXiv:2012.15466)"


@dataclass(frozen=True)
class Parameter:
    """A parameter as `name:key=value` sets it. The type is that of the default: int, float, bool or str."""

    name: str
    default: Any
    meaning: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Entry:
    """An augmentation.

    kind "token": function(batch: Ragged, keys: uint64[N], vocabulary, **parameters) -> Ragged of the same N.
    kind "text": a sentence with its parse, and its key, to a string or None.
    needs: "synonyms" (a SynonymTable, by keyword), "del" (a tokenizer with [DEL]). check: a rule over all
    parameters together, that returns what is wrong, or None.
    """

    name: str
    kind: Literal["token", "text"]
    paper: str
    parameters: tuple[Parameter, ...]
    description: str
    example: str
    function: Callable[..., Any]
    needs: tuple[str, ...] = ()
    check: Callable[[dict[str, Any]], str | None] | None = None


def _spans_fit(values: dict[str, Any]) -> str | None:
    if values["spans"] * values["rate"] >= 1:
        return f"{values['spans']} spans of {values['rate']:g} of the length leave nothing; spans * rate must be below 1"
    return None


def _pairs_fit(values: dict[str, Any]) -> str | None:
    if 2 * values["pairs"] * values["rate"] > 1:
        return (
            f"{2 * values['pairs']} spans of {values['rate']:g} of the length do not fit without overlap; "
            "2 * pairs * rate must not exceed 1"
        )
    return None


_ENTRIES = (
    Entry(
        name="del-word",
        kind="token",
        paper=f"{CLEAR}, section 3.3",
        parameters=(Parameter("rate", 0.7, "share of the tokens deleted, exact per sequence", 0, 1),),
        description="Random tokens become [DEL], runs of [DEL] become one. One token always stays.",
        example="del-word:rate=0.5",
        function=tokens.del_word,
        needs=("del",),
    ),
    Entry(
        name="del-span",
        kind="token",
        paper=f"{CLEAR}, section 3.3",
        parameters=(
            Parameter("spans", 5, "spans deleted", 1, 64),
            Parameter("rate", 0.05, "length of a span, as a share of the sequence", 0.001, 0.999),
        ),
        description="Random spans become one [DEL] each, neighbours share one. Below 1/rate tokens: fewer "
        "spans, of one token each, at least one.",
        example="del-span:spans=3:rate=0.1",
        function=tokens.del_span,
        needs=("del",),
        check=_spans_fit,
    ),
    Entry(
        name="reorder",
        kind="token",
        paper=f"{CLEAR}, section 3.3",
        parameters=(
            Parameter("pairs", 5, "pairs of spans swapped", 1, 32),
            Parameter("rate", 0.05, "length of a span, as a share of the sequence", 0.001, 0.5),
        ),
        description="Random spans without overlap are paired at random, the two of a pair swapped. Below "
        "1/rate tokens: fewer pairs, of single tokens, at least one.",
        example="reorder:pairs=2:rate=0.1",
        function=tokens.reorder,
        check=_pairs_fit,
    ),
    Entry(
        name="subs",
        kind="token",
        paper=f"{CLEAR}, section 3.3; synonyms: Jia et al. 2019 (counter-fitted neighbours) or WordNet",
        parameters=(Parameter("rate", 0.3, "share of the tokens replaced, if as many have a synonym", 0, 1),),
        description="Random words that have synonyms are replaced by one of them, of one token or several.",
        example="subs:rate=0.2",
        function=tokens.subs,
        needs=("synonyms",),
    ),
    Entry(
        name="repeat",
        kind="token",
        paper="ESimCSE (Wu et al. 2022, COLING, arXiv:2109.04380), section 3.1",
        parameters=(Parameter("rate", 0.32, "most tokens repeated, as a share of the sequence (dup_rate)", 0, 1),),
        description="Random tokens are written twice; how many is drawn from 0 to max(2, rate * length).",
        example="repeat:rate=0.2",
        function=tokens.repeat,
    ),
    Entry(
        name="crop",
        kind="token",
        paper="COCO-LM (Meng et al. 2021, NeurIPS, arXiv:2102.08473), section 3.2",
        parameters=(Parameter("rate", 0.9, "share of the tokens kept", 0, 1),),
        description="A random contiguous run of the tokens stays, the rest goes.",
        example="crop:rate=0.7",
        function=tokens.crop,
    ),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
