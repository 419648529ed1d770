"""Where one word may stand for another: the kinds of mistakes that readers found, one by one; and what the
published variants write."""

import pytest
from parse_builder import outcomes, parse, tagged

from augment.rules.senses import substitutes, uses
from augment.rules.substitution import (
    antonym_adjectives,
    antonyms,
    hypernyms,
    hyponyms,
    synonyms_wordnet,
    wordnet_substitution,
)


def every(sentence):
    """What synonyms become of a sentence where all words change that can."""
    return outcomes(synonyms_wordnet, sentence, rate=1.0)


@pytest.mark.parametrize(
    ("text", "annotation"),
    [
        ("Starting with him, all fell.",
         "Starting/VBG/case/3 with/IN/fixed/1 him/PRP/obl/6 ,/,/punct/3 all/DT/nsubj/6 fell/VBD/root/0 "
         "././punct/6"),
        ("Starting with him, all fell.",
         "Starting/VBG/case/3 with/IN/case/3 him/PRP/obl/6 ,/,/punct/3 all/DT/nsubj/6 fell/VBD/root/0 "
         "././punct/6"),
        ("Two cable cars fell.",
         "Two/CD/nummod/3 cable/NN/compound/3 cars/NNS/nsubj/4 fell/VBD/root/0 ././punct/4"),
        ("Our car race fell.",
         "Our/PRP$/nmod:poss/3 car/NN/compound/3 race/NN/nsubj/4 fell/VBD/root/0 ././punct/4"),
        ("We came by car.", "We/PRP/nsubj/2 came/VBD/root/0 by/IN/case/4 car/NN/obl/2 ././punct/2"),
        ("He halted at nothing.",
         "He/PRP/nsubj/2 halted/VBD/ROOT/0 at/IN/prep/2 nothing/NN/pobj/3 ././punct/2"),
        ("Starting with him, all fell.",
         "Starting/VBG/prep/6 with/IN/prep/1 him/PRP/pobj/2 ,/,/punct/6 all/DT/nsubj/6 fell/VBD/ROOT/0 "
         "././punct/6"),
        ("We came by car.", "We/PRP/nsubj/2 came/VBD/ROOT/0 by/IN/prep/2 car/NN/pobj/3 ././punct/2"),
        ("She is big with pride.",
         "She/PRP/nsubj/2 is/VBZ/ROOT/0 big/JJ/acomp/2 with/IN/prep/3 pride/NN/pobj/4 ././punct/2"),
        ("He halted at nothing.",
         "He/PRP/nsubj/2 halted/VBD/root/0 at/IN/case/4 nothing/NN/obl/2 ././punct/2"),
        ("He halted himself.", "He/PRP/nsubj/2 halted/VBD/root/0 himself/PRP/obj/2 ././punct/2"),
        ("It is as big as usual.",
         "It/PRP/nsubj/4 is/VBZ/cop/4 as/RB/advmod/4 big/JJ/root/0 as/IN/case/6 usual/JJ/obl/4 ././punct/4"),
        ("She is big with pride.",
         "She/PRP/nsubj/3 is/VBZ/cop/3 big/JJ/root/0 with/IN/case/5 pride/NN/obl/3 ././punct/3"),
    ],
)  # fmt: skip
def test_bound_words_have_no_synonym(small_wordnet, text, annotation):
    assert every(parse(text, annotation)) == {None}


def test_free_words_have_some(small_wordnet):
    """The words of the cases above, where nothing binds them."""
    free = parse(
        "Our big car halted.",
        "Our/PRP$/nmod:poss/3 big/JJ/amod/3 car/NN/nsubj/4 halted/VBD/root/0 ././punct/4",
    )
    for new in ("large", "auto", "stopped"):
        assert any(new in text for text in every(free))
    in_clear = parse(
        "The big car halted in it.",
        "The/DT/det/3 big/JJ/amod/3 car/NN/nsubj/4 halted/VBD/ROOT/0 in/IN/prep/4 it/PRP/pobj/5 ././punct/4",
    )
    for new in ("large", "auto", "stopped"):
        assert any(new in text for text in every(in_clear))
    started = parse("It was starting.", "It/PRP/nsubj/3 was/VBD/aux/3 starting/VBG/root/0 ././punct/3")
    assert every(started) == {"It was beginning."}


@pytest.mark.parametrize("word", ["first", "last", "former", "latter"])
def test_words_that_point_stay(small_wordnet, word):
    """ "last week" is not "first week", "the latter president" no president."""
    sentence = parse(
        f"The {word} week began.",
        f"The/DT/det/3 {word}/JJ/amod/3 week/NN/nsubj/4 began/VBD/root/0 ././punct/4",
    )
    assert outcomes(antonym_adjectives, sentence) == outcomes(antonyms, sentence) == {None}
    for function in (hypernyms, hyponyms):
        assert outcomes(function, sentence) == {None}
    assert all(f"The {word} week" in text for text in every(sentence))


def test_nouns_keep_to_their_countability(words):
    words("n | equipment device | |\nn | information=9 fact | |\nn | gear=9 equipment | |")
    assert uses("equipment", "n") == "m" and uses("device", "n") == "c"
    some = parse("We bought equipment.", "We/PRP/nsubj/2 bought/VBD/root/0 equipment/NN/obj/2 ././punct/2")
    assert every(some) == {None}
    the = parse(
        "We bought the equipment.",
        "We/PRP/nsubj/2 bought/VBD/root/0 the/DT/det/4 equipment/NN/obj/2 ././punct/2",
    )
    assert every(the) == {"We bought the device."}
    many = parse("We bought devices.", "We/PRP/nsubj/2 bought/VBD/root/0 devices/NNS/obj/2 ././punct/2")
    one = parse(
        "We bought a device.", "We/PRP/nsubj/2 bought/VBD/root/0 a/DT/det/4 device/NN/obj/2 ././punct/2"
    )
    assert every(many) == every(one) == {None}


def test_verbs_keep_to_their_objects(words):
    """ "try to": "attempt to"; "try the soup" is another sense."""
    words("v | try attempt | |\nv | hide conceal | |\nv | assist help | |")
    assert {"object", "none"} <= next(iter(substitutes("synonyms", "help", "v", "VB", "help"))).frames
    (attempt,) = substitutes("synonyms", "try", "v", "VB", "try")
    assert attempt.lemma == "attempt" and "object" not in attempt.frames
    hide = parse("Hide it.", "Hide/VB/root/0 it/PRP/obj/1 ././punct/1")
    assert every(hide) == {"Conceal it."} and every(parse("Hide.", "Hide/VB/root/0 ././punct/1")) == {None}
    dative = parse("Help us it.", "Help/VB/root/0 us/PRP/iobj/1 it/PRP/obj/1 ././punct/1")
    clause = parse(
        "Help that it ends.", "Help/VB/root/0 that/IN/mark/4 it/PRP/nsubj/4 ends/VBZ/ccomp/1 ././punct/1"
    )
    assert every(dative) == every(clause) == {None}


def test_compounds_have_no_broader_term(small_wordnet):
    """ "machine guns" are no "machine weapons"; the first word of a compound has no synonym either."""
    race = parse("Our race car", "Our/PRP$/nmod:poss/3 race/NN/compound/3 car/NN/root/0")
    assert outcomes(hypernyms, race) == {None} and all(text.startswith("Our race ") for text in every(race))


def test_titles_before_names_stay(small_wordnet):
    """ "uncle Bob" is no "person Bob"."""
    title = parse("My uncle Bob", "My/PRP$/nmod:poss/2 uncle/NN/root/0 Bob/NNP/flat/2")
    free = parse("The uncle", "The/DT/det/2 uncle/NN/root/0")
    assert outcomes(hypernyms, title) == {None} != outcomes(hypernyms, free)
    owned = parse("My uncle", "My/PRP$/nmod:poss/2 uncle/NN/root/0")
    assert outcomes(hypernyms, owned) == {None}  # not "my person"
    pair = parse("owls and dogs", "owls/NNS/root/0 and/CC/cc/3 dogs/NNS/conj/1")
    assert outcomes(hypernyms, pair) <= {"birds and dogs"}  # not "owls and animals"


def test_adjectives_keep_to_their_place(words):
    words("a | scared frightened(p) | |\na | big large | |\na | ideal unique | |")
    before = parse(
        "The scared man ran.", "The/DT/det/3 scared/JJ/amod/3 man/NN/nsubj/4 ran/VBD/root/0 ././punct/4"
    )
    behind = parse("He is scared.", "He/PRP/nsubj/3 is/VBZ/cop/3 scared/JJ/root/0 ././punct/3")
    assert every(before) == {None} and every(behind) == {"He is frightened."}


@pytest.mark.parametrize(
    ("noun", "mark", "changes"),
    [("men", "'s", False), ("uncles", "'", False), ("owls", "'", True), ("man", "'s", True)],
)
def test_possessives_stay_possessives(words, noun, mark, changes):
    """Not "the adults's car" for "the men's car"."""
    words(
        "n | adult | |\nn | man | @adult |\nn | person | |\nn | uncle | @person |\nn | bird | |\nn | owl "
        "| @bird |"
    )
    tag = "NN" if noun == "man" else "NNS"
    sentence = parse(
        f"The {noun}{mark} car", f"The/DT/det/2 {noun}/{tag}/nmod:poss/4 {mark}/POS/case/2 car/NN/root/0"
    )
    assert (outcomes(hypernyms, sentence) != {None}) == changes


def test_comparisons_are_kept(small_wordnet):
    bigger = parse("It is bigger.", "It/PRP/nsubj/3 is/VBZ/cop/3 bigger/JJR/root/0 ././punct/3")
    assert outcomes(antonym_adjectives, bigger) == {None}  # "little" makes "less"
    assert every(bigger) == {"It is larger."}


def test_what_the_sentence_has_already_is_not_said_twice(small_wordnet):
    sentence = parse(
        "Large cars are big.", "Large/JJ/amod/2 cars/NNS/nsubj/4 are/VBP/cop/4 big/JJ/root/0 ././punct/4"
    )
    assert not any(
        text and text.lower().count("big") + text.lower().count("large") > 2 for text in every(sentence)
    )
    assert not any(text and text.endswith("large.") for text in every(sentence))


def test_the_published_code_draws_from_all_senses(words):
    words("n | shore bank=5 | |\nn | bank=5 lender | |\nn | lender | |")
    sentence = parse("The bank fell.", "The/DT/det/2 bank/NN/nsubj/3 fell/VBD/root/0 ././punct/3")
    assert outcomes(wordnet_substitution, sentence, rate=1.0, variant="code") == {
        "The shore fell.",
        "The lender fell.",
    }
    # the first word of each sense
    assert outcomes(synonyms_wordnet, sentence, rate=1.0, variant="code") == {"The shore fell."}
    assert every(sentence) == outcomes(wordnet_substitution, sentence, rate=1.0) == {None}
    name = tagged("New-bank BANK", "New/NNP -/HYPH bank/NN BANK/NN")
    assert outcomes(wordnet_substitution, name, rate=1.0, variant="code") == {None}


def test_the_published_code_takes_the_first(small_wordnet):
    dog = tagged("a dog", "a/DT dog/NN")
    assert outcomes(hypernyms, dog, variant="code") == {"a canine"} and outcomes(
        hyponyms, dog, variant="code"
    ) == {"a puppy"}
    assert outcomes(hypernyms, dog) == {"an animal"}
    first = tagged("the first one", "the/DT first/JJ one/NN")
    assert (
        outcomes(antonym_adjectives, first, variant="code")
        == outcomes(antonyms, first, variant="code")
        == {"the last one"}
    )
