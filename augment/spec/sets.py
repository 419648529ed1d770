"""AugCSE's named sets of augmentations, as `--aug` spells them: `augcse-12-2` is one of its ten, drawn for
each sentence.

Members: of the 4-set those with asterisks in the paper's Table 3; of the 12-set those of the released script,
in its order. The 8-set is told by a colour and the 16-set by bold type, both lost in the text. Inferred: the
8-set is the first eight of the script (it holds the 4-set and both augmentations by language models, as
section 5.7 requires); the 16-set adds four that need no model, which the paper says, and keep the meaning by
its labels, which it does not say (`ADDED_BY_16`). `augcse-K-2` (the paper's "K-2-Aug", table 9) leaves out
the two that need a language model; the 4-set has only one of them: `augcse-4-1`, which the paper does not
try. A set takes no parameters: its models are named in the environment (`augment.neural.models`), or its
members written out.
"""

from __future__ import annotations

DIVERSE_PARAPHRASE, CASUAL_TO_FORMAL = "diverse-paraphrase", "casual-to-formal"
_LANGUAGE_MODEL = (DIVERSE_PARAPHRASE, CASUAL_TO_FORMAL)
_TWELVE = (  # the released script's order: its first eight are the 8-set
    "contractions",
    DIVERSE_PARAPHRASE,
    CASUAL_TO_FORMAL,
    "auxiliary-negation-removal",
    "tense",
    "discourse-markers",
    "subject-object-switch",
    "random-swap",
    "city-names",
    "antonym-adjectives",
    "yoda",
    "sentence-reordering",
)
ADDED_BY_16 = ("gender-swap", "geo-names", "number-words", "synonyms-wordnet")
_FOUR = (DIVERSE_PARAPHRASE, "tense", "random-swap", "contractions")
_SETS = {4: _FOUR, 8: _TWELVE[:8], 12: _TWELVE, 16: (*_TWELVE, *ADDED_BY_16)}

# Name -> specification; a set's name -> that of the same set without language models.
SETS: dict[str, str] = {f"augcse-{size}": "|".join(names) for size, names in _SETS.items()}
WITHOUT_MODELS = {
    f"augcse-{size}": f"augcse-{size}-{len({*names} & {*_LANGUAGE_MODEL})}" for size, names in _SETS.items()
}
SETS |= {
    WITHOUT_MODELS[f"augcse-{size}"]: "|".join(name for name in names if name not in _LANGUAGE_MODEL)
    for size, names in _SETS.items()
}


def expand(specification: str) -> str:
    """A specification with the names of sets replaced by their alternatives; names of nothing known stay as
    they are.

    "augcse-4-1,del-word" is "tense|random-swap|contractions,del-word"; within alternatives,
    "none|augcse-4-1", the members stand beside the others, each as likely.
    """
    stages = (stage.split("|") for stage in specification.split(","))
    return ",".join("|".join(SETS.get(name.strip(), name) for name in names) for names in stages)
