"""All of AugCSE's augmentations, by the paper's names, are in the catalogue and in the docs' table."""

from pathlib import Path

from augment.spec.catalogue import CATALOGUE

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


def test_every_augmentation_of_augcse_is_there_and_in_the_documentation():
    assert len(OF_AUGCSE) == 32 and set(OF_AUGCSE.values()) <= {entry.name for entry in CATALOGUE.values()}
    text = (Path(__file__).parents[3] / "docs" / "augmentations.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("|")]
    shown = {row[1].strip(): row[2].strip().strip("`") for row in rows if row[1].strip() in OF_AUGCSE}
    assert shown == OF_AUGCSE
