"""List every augmentation by name, with its paper, its parameters and an example."""

from typing import Any

from augment.core.entry import Entry, Parameter
from augment.neural import masked, translation, vectors
from augment.rules import (
    clauses,
    colors,
    contractions,
    discourse,
    gender,
    letters,
    numbers,
    phrases,
    places,
    substitution,
    tense,
    word_order,
    yoda,
)
from augment.sda import entries
from augment.tokens import rules

CLEAR = "CLEAR (Wu et al. 2020, arXiv:2012.15466)"
SDA = "SDA (Zhu et al. 2022)"


def _spans_fit(values: dict[str, Any]) -> str | None:
    if values["spans"] * values["rate"] >= 1:
        return (
            f"{values['spans']} spans of {values['rate']:g} of the length leave nothing; spans * rate "
            "must be below 1"
        )
    return None


def _pairs_fit(values: dict[str, Any]) -> str | None:
    if 2 * values["pairs"] * values["rate"] > 1:
        return (
            f"{2 * values['pairs']} spans of {values['rate']:g} of the length do not fit without overlap; "
            "2 * pairs * rate must not exceed 1"
        )
    return None


def _rates_rise(values: dict[str, Any]) -> str | None:
    if values["rate"] < values["min_rate"] < 1:
        return f"min_rate={values['min_rate']:g} is above rate={values['rate']:g}"
    return None


def _lengths_rise(values: dict[str, Any]) -> str | None:
    if values["min_length"] > values["max_length"]:
        return f"min_length={values['min_length']} is above max_length={values['max_length']}"
    return None


_ENTRIES = (
    Entry(
        name="del-word",
        kind="token",
        paper=f"{CLEAR}, section 3.3",
        parameters=(Parameter("rate", 0.7, "share of the tokens deleted, exact per sequence", 0, 1),),
        description="Random tokens become [DEL], runs of [DEL] become one. One token always stays.",
        example="del-word:rate=0.5",
        function=rules.del_word,
        meaning="altering",
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
        function=rules.del_span,
        meaning="altering",
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
        function=rules.reorder,
        meaning="possibly altering",
        check=_pairs_fit,
    ),
    Entry(
        name="subs",
        kind="token",
        paper=f"{CLEAR}, section 3.3; synonyms: Jia et al. 2019 (counter-fitted neighbours) or WordNet",
        parameters=(Parameter("rate", 0.3, "share of the tokens replaced, if as many have a synonym", 0, 1),),
        description="Random words that have synonyms are replaced by one of them, of one token or several.",
        example="subs:rate=0.2",
        function=rules.subs,
        meaning="possibly altering",
        needs=("synonyms",),
    ),
    Entry(
        name="repeat",
        kind="token",
        paper="ESimCSE (Wu et al. 2022, COLING, arXiv:2109.04380), section 3.1",
        parameters=(
            Parameter("rate", 0.32, "most tokens repeated, as a share of the sequence (dup_rate)", 0, 1),
        ),
        description="Random tokens are written twice; how many is drawn from 0 to max(2, rate * length).",
        example="repeat:rate=0.2",
        function=rules.repeat,
        meaning="preserving",
    ),
    Entry(
        name="crop",
        kind="token",
        paper="COCO-LM (Meng et al. 2021, NeurIPS, arXiv:2102.08473), section 3.2",
        parameters=(
            Parameter("rate", 0.9, "share of the tokens kept; the largest, if min_rate is given", 0, 1),
            Parameter(
                "min_rate",
                1.0,
                "below 1: the smallest share, drawn evenly up to rate for each sequence and view",
                0,
                1,
            ),
        ),
        description="A random contiguous run of the tokens stays, the rest goes.",
        example="crop:rate=1:min_rate=0.5",
        function=rules.crop,
        meaning="possibly altering",
        check=_rates_rise,
    ),
    Entry(
        name="span",
        kind="token",
        paper="DeCLUTR (Giorgi et al. 2021, ACL, arXiv:2006.03659), section 3.1",
        parameters=(
            Parameter("min_length", 32, "fewest tokens; a shorter sequence is kept whole", 1, 65536),
            Parameter("max_length", 512, "most tokens", 1, 65536),
            Parameter("alpha", 4, "of the Beta distribution of the length between the two", 1, 64),
            Parameter("beta", 2, "of the same; alpha above beta: rather long spans", 1, 64),
        ),
        description="A contiguous span of a document. Anchors as by default, positives with alpha=2:beta=4; "
        "prepare the data with --unit document.",
        example="span:max_length=128:alpha=2:beta=4",
        function=rules.span,
        meaning="possibly altering",
        check=_lengths_rise,
    ),
    Entry(
        name="delete",
        kind="token",
        paper="VaSCL (Zhang et al. 2022, arXiv:2110.08552), section 4.4, at 5, 10 and 20%; SDA, Table 8, at "
        "10, 20 and 30%",
        parameters=(Parameter("rate", 0.1, "share of the words deleted, rounded up", 0, 1),),
        description="Random whole words go, and nothing comes in their place. One word always stays.",
        example="delete:rate=0.2",
        function=rules.delete,
        meaning="possibly altering",
    ),
    Entry(
        name="mask",
        kind="token",
        paper=f"a comparison of {SDA}, Table 8",
        parameters=(Parameter("rate", 0.15, "share of the tokens masked, exact per sequence", 0, 1),),
        description="Random tokens become [MASK], at least one.",
        example="mask:rate=0.1",
        function=rules.mask,
        meaning="possibly altering",
    ),
    Entry(
        name="punctuation",
        kind="token",
        paper=f"AEDA (Karimi et al. 2021, EMNLP, arXiv:2108.13230); a comparison of {SDA}, Table 9",
        parameters=(Parameter("rate", 0.3, "most marks put in, as a share of the words", 0, 1),),
        description="Random punctuation marks are put in front of random words; how many is drawn from 1 to "
        "rate * words.",
        example="punctuation:rate=0.1",
        function=rules.punctuation,
        meaning="preserving",
        needs=("punctuation",),
    ),
)

_OF_TEXT = (
    entries,
    contractions,
    numbers,
    discourse,
    gender,
    colors,
    places,
    letters,
    word_order,
    substitution,
    phrases,
    yoda,
    clauses,
    tense,
    vectors,
    masked,
    translation,
)
_TABLES = (_ENTRIES, *(module.ENTRIES for module in _OF_TEXT))

CATALOGUE: dict[str, Entry] = {entry.name: entry for table in _TABLES for entry in table}
