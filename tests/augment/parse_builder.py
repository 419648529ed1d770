"""Write parses by hand, in Universal Dependencies or ClearNLP's labels: "word/TAG/relation/head"."""

from collections.abc import Callable
from typing import Any

from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence

POS = {
    "NN": "NOUN", "NNS": "NOUN", "NNP": "PROPN", "NNPS": "PROPN", "PRP": "PRON", "PRP$": "PRON", "WP": "PRON",
    "WDT": "PRON",
    "EX": "PRON", "JJ": "ADJ", "JJR": "ADJ", "JJS": "ADJ", "RB": "ADV", "RBR": "ADV", "RBS": "ADV",
    "WRB": "ADV", "DT": "DET",
    "IN": "ADP", "TO": "PART", "CC": "CCONJ", "CD": "NUM", "MD": "AUX", "POS": "PART", "RP": "ADP",
    "UH": "INTJ", "FW": "X",
    "VB": "VERB", "VBD": "VERB", "VBG": "VERB", "VBN": "VERB", "VBP": "VERB", "VBZ": "VERB", ".": "PUNCT",
    ",": "PUNCT",
    ":": "PUNCT", "``": "PUNCT", "''": "PUNCT", "HYPH": "PUNCT", "-LRB-": "PUNCT", "-RRB-": "PUNCT",
    "$": "SYM",
    # of Chinese pipelines
    "NR": "PROPN", "NT": "NOUN", "PN": "PRON", "VV": "VERB", "VE": "VERB", "VC": "AUX", "VA": "ADJ",
    "AD": "ADV", "PU": "PUNCT", "AS": "PART", "LB": "ADP", "BA": "ADP", "DEC": "PART", "P": "ADP",
    "SP": "PART", "LC": "PART",
}  # fmt: skip
_AUXILIARY = ("aux", "aux:pass", "auxpass", "cop")


def parse(text: str, annotation: str) -> ParsedSentence:
    """Build the parse of a text from "word/TAG/relation/head" for every word, in order.

    head is the 1-based number of a word, 0 for the root. The words are found in the text. Lemmas are the
    lower-case words.
    """
    starts, ends, tags, pos, heads, deps = [], [], [], [], [], []
    position = 0
    for number, field in enumerate(annotation.split()):
        word, tag, relation, head = field.rsplit("/", 3)
        start = text.index(word, position)
        assert not text[position:start].strip(), f"{text[position:start]!r} is in no word"
        position = start + len(word)
        starts.append(start)
        ends.append(position)
        tags.append(tag)
        negation = tag == "RB" and word.lower() in ("n't", "not", "n’t")
        pos.append(
            "AUX"
            if relation in _AUXILIARY
            else "PART"
            if negation
            else "SCONJ"
            if relation == "mark"
            else POS[tag]
        )
        heads.append(int(head) - 1 if head != "0" else number)
        deps.append(relation)
    assert not text[position:].strip(), f"{text[position:]!r} is in no word"
    lemmas = tuple(text[start:end].lower() for start, end in zip(starts, ends))
    return ParsedSentence(
        text, tuple(starts), tuple(ends), tuple(tags), tuple(pos), lemmas, tuple(heads), tuple(deps)
    )


def tagged(text: str, annotation: str = "") -> ParsedSentence:
    """Build a sentence of words with tags, "word/TAG", each depending on the first.

    Without tags the text is split at spaces, all "NN", for rules that read no tags.
    """
    fields = annotation.split() or [f"{word}/NN" for word in text.split()]
    return parse(
        text,
        " ".join(f"{field}/{'root/0' if number == 0 else 'dep/1'}" for number, field in enumerate(fields)),
    )


def draws(key: int = 0) -> Draws:
    return Draws(key)


def outcomes(
    function: Callable, sentence: ParsedSentence, keys: int = 100, **parameters: Any
) -> set[str | None]:
    """Return what a rule makes of a sentence with the draws of many keys."""
    return {function(sentence, Draws(key), **parameters) for key in range(keys)}
