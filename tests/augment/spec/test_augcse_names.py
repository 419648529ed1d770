"""All of AugCSE's augmentations, by the paper's names, are in the catalogue; its sets are in the docs."""

import re
from pathlib import Path

from augment.spec.catalogue import CATALOGUE
from augment.spec.sets import SETS

# AugCSE's 26 of table 3 and the six that it filtered out (appendix A.2), and the names of the catalogue.
OF_AUGCSE = {
    "SentenceAdjectivesAntonymsSwitch": "antonym-adjectives",
    "SentenceAuxiliaryNegationRemoval": "auxiliary-negation-removal",
    "ReplaceHypernyms": "hypernyms",
    "ReplaceHyponyms": "hyponyms",
    "SentenceSubjectObjectSwitch": "subject-object-switch",
    "CityNamesTransformation": "city-names",
    "AntonymSubstitute": "antonyms",
    "ColorTransformation": "colors",
    "Summarization": "summarization",
    "DiverseParaphrase": "diverse-paraphrase",
    "SentenceReordering": "sentence-reordering",
    "TenseTransformation": "tense",
    "RandomDeletion": "random-deletion",
    "RandomCrop": "random-crop",
    "RandomSwap": "random-swap",
    "RandomWordAugmentation": "random-word",
    "RandomWordEmbAugmentation": "random-word-embedding",
    "RandomContextualWordAugmentation": "random-contextual-word",
    "YodaPerturbation": "yoda",
    "ContractionExpansions": "contractions",
    "DiscourseMarkerSubstitution": "discourse-markers",
    "Casual2Formal": "casual-to-formal",
    "GenderSwap": "gender-swap",
    "GeoNamesTransformation": "geo-names",
    "NumericToWord": "number-words",
    "SynonymSubstitution": "synonyms-wordnet",
    "PigLatin": "pig-latin",
    "PhonemeSubstitution": "phonemes",
    "VisualAttackLetter": "look-alike",
    "BackTranslation": "back-translation",
    "MultilingualBackTranslation": "multilingual-back-translation",
    "FactiveVerbTransformation": "factive-verb",
}


def test_every_augmentation_of_augcse_is_there():
    assert len(OF_AUGCSE) == 32 and set(OF_AUGCSE.values()) <= {entry.name for entry in CATALOGUE.values()}


def test_the_documentation_has_the_sets():
    text = (Path(__file__).parents[3] / "docs" / "augmentations.md").read_text().split("### AugCSE\n")[1]
    shown: set[str] = set()
    for size in (4, 8, 12, 16):
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `augcse-{size}` |")]
        shown |= set(re.findall("`([a-z-]+)`", row))  # each has those of the rows above
        assert shown == set(SETS[f"augcse-{size}"].split("|"))
