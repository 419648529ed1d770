"""Name AugCSE's sets of augmentations (sets.tsv): `--aug augcse-12-2` draws one of its ten for each sentence.

augcse-K-2: the K-set without the two that need a language model (the paper's "K-2-Aug", table 9). The 4-set
has only one of them: `augcse-4-1`, which the paper does not try.

A set takes no parameters: the environment names its models (`augment.neural.models`), or the user writes its
members out.
"""

from augment.text.word_forms import word_table

_LANGUAGE_MODEL = ("diverse-paraphrase", "casual-to-formal")
SETS = {name: members for name, members in word_table("sets.tsv")}  # noqa: C416
"""Name -> specification."""
WITHOUT_MODELS: dict[str, str] = {}
"""A set's name -> that of the same set without language models."""
for _name, _members in list(SETS.items()):
    _kept = [member for member in _members.split("|") if member not in _LANGUAGE_MODEL]
    WITHOUT_MODELS[_name] = f"{_name}-{len(_members.split('|')) - len(_kept)}"
    SETS[WITHOUT_MODELS[_name]] = "|".join(_kept)


def expand(specification: str) -> str:
    """Replace the names of sets in a specification by their alternatives; unknown names stay as they are.

    >>> expand("none|augcse-4-1,del-word")
    'none|tense|random-swap|contractions,del-word'

    Within alternatives the members stand beside the others, each equally likely.
    """
    stages = (stage.split("|") for stage in specification.split(","))
    return ",".join("|".join(SETS.get(name.strip(), name) for name in names) for names in stages)
