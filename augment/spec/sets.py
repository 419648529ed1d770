"""Name AugCSE's sets of augmentations: `--aug augcse-12-2` draws one of its ten for each sentence.

augcse-4: those with asterisks in the paper's Table 3.
augcse-12: those of the released script, in its order.
augcse-8, augcse-16: inferred, since the paper marks them by a colour and by bold type, which its text lost.
    The 8-set is the first eight of the script: it holds the 4-set and both augmentations by language models,
    as section 5.7 requires. The 16-set adds four that need no model, as the paper says, and that its labels
    call meaning-preserving, which the paper does not say (`ADDED_BY_16`).
augcse-K-2: the same without the two that need a language model (the paper's "K-2-Aug", table 9). The 4-set
    has only one of them: `augcse-4-1`, which the paper does not try.

A set takes no parameters: the environment names its models (`augment.neural.models`), or the user writes its
members out.
"""

DIVERSE_PARAPHRASE, CASUAL_TO_FORMAL = "diverse-paraphrase", "casual-to-formal"
_LANGUAGE_MODEL = (DIVERSE_PARAPHRASE, CASUAL_TO_FORMAL)
_TWELVE = (  # the released script's order: its first eight are the 8-set
    *("contractions", DIVERSE_PARAPHRASE, CASUAL_TO_FORMAL, "auxiliary-negation-removal"),
    *("tense", "discourse-markers", "subject-object-switch", "random-swap"),
    *("city-names", "antonym-adjectives", "yoda", "sentence-reordering"),
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
    """Replace the names of sets in a specification by their alternatives; unknown names stay as they are.

    >>> expand("none|augcse-4-1,del-word")
    'none|tense|random-swap|contractions,del-word'

    Within alternatives the members stand beside the others, each equally likely.
    """
    stages = (stage.split("|") for stage in specification.split(","))
    return ",".join("|".join(SETS.get(name.strip(), name) for name in names) for names in stages)
