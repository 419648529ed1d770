"""Which word may stand for another, and where: the kinds of mistakes that readers found, one by one."""

import re

import pytest

from augment.rules import senses as lexical_senses
from augment.rules.senses import substitutes
from augment.text.word_forms import word_table


def lemmas(relation, word, part, tag=""):
    tag = tag or {"n": "NN", "v": "VB", "a": "JJ", "r": "RB"}[part]
    return {found.lemma for found in substitutes(relation, word, part, tag, word)}


# -- Senses and frequency ------------------------------------------------------


def test_counts_and_frames_are_read(words):
    source = words("v | carry=3 bring | |\nv | carry=5 | |\nn | carry=9 | |\na | galore(ip) asleep(p) | |")
    assert (
        source.counts("carry", "v") == (3, 5)
        and source.counts("carry", "n") == (9,)
        and source.counts("bring", "v") == (20,)
    )
    assert (
        source.counts("carry", "a") == ()
        and source.counts("nothing", "n") == ()
        and source.counts("carr", "v") == ()
    )
    assert {frame for frame, word in source.synsets("carry", "v", 1)[0].frames if word == 0} == {2, 8}
    assert source.synsets("galore", "a")[0].places == ("ip", "p")


def test_counts_and_frames_are_those_of_nltk(whole_wordnet, nltk_reader):
    reader = nltk_reader(whole_wordnet)
    for part, lemma in (
        ("n", "car"),
        ("v", "carry"),
        ("v", "say"),
        ("a", "large"),
        ("a", "quick"),
        ("r", "well"),
    ):
        theirs = reader.synsets(lemma, part)
        own = [next(word for word in sense.lemmas() if word.name().lower() == lemma) for sense in theirs]
        assert whole_wordnet.counts(lemma, part) == tuple(word.count() for word in own)
        ours = whole_wordnet.synsets(lemma, part)
        for sense, mine, word in zip(theirs, ours, own):
            number = [name.name().lower() for name in sense.lemmas()].index(lemma) + 1
            assert sorted(word.frame_ids()) == sorted(
                frame for frame, place in mine.frames if place in (0, number)
            )


def test_a_word_of_several_senses_stays(words):
    words("n | task undertaking project=6 | | one\nn | project=5 | | another")
    assert lemmas("synonyms", "project", "n") == set()  # 6 of 11
    words("n | undertaking project=9 | | one\nn | project=2 | | another")
    assert lemmas("synonyms", "project", "n") == {"undertaking"}


def test_the_other_word_must_usually_mean_it_too(words):
    words("n | shore=2 | | prop\nn | coast shore=9 | |")
    assert lemmas("synonyms", "coast", "n") == {"shore"}
    words("n | shore=9 | | prop\nn | coast shore=2 | |")
    assert lemmas("synonyms", "coast", "n") == set()
    assert lemmas("synonyms", "shore", "n") == set()  # its usual sense has no other word


def test_rare_words_and_parts_of_words_stay_out(words):
    words(
        "v | think cogitate | |\nn | auto automobile motorcar? | |\na | first-class class | |\nn | New_York "
        "york | |"
    )
    assert lemmas("synonyms", "think", "v") == set() and lemmas("synonyms", "auto", "n") == {"automobile"}
    assert lemmas("synonyms", "class", "a") == set() and lemmas("synonyms", "york", "n") == set()


def test_what_reading_showed_to_be_wrong_stays_out(words):
    words("n | government authorities regime | |\nn | child kid minor | |")
    assert lemmas("synonyms", "government", "n") == set() and lemmas("synonyms", "child", "n") == {"kid"}


def test_what_reading_showed_to_be_right_comes_in(words):
    words("a | significant=9 | |\na | important=9 | |\na | significant=1 important=1 | |")
    assert (
        lemmas("synonyms", "important", "a") == {"significant"}
        and lemmas("synonyms", "significant", "a") == set()
    )
    words("a | significant | |\na | important | |")  # only where WordNet has it
    assert lemmas("synonyms", "important", "a") == set()


def test_broader_terms_are_usual_ones(words):
    words("n | animal | |\nn | carnivore | @animal |\nn | canine | @carnivore |\nn | dog | @canine |")
    assert lemmas("hypernyms", "dog", "n") == {"animal"}  # nobody calls it a canine
    words("n | entity | |\nn | god | @entity |")
    assert lemmas("hypernyms", "god", "n") == set()  # which says nothing


def test_antonyms_follow_the_usual_sense(words):
    senses = (
        "a | rich={} | |\na | poor | |\na | rich={} | |\na | known={} | |\na | known={} | |\na | unknown | |"
    )
    words(senses.format(9, 1, 3, 7), "rich/poor known/unknown")
    assert lemmas("antonyms", "rich", "a") == {"poor"} and lemmas("antonyms", "poor", "a") == {"rich"}
    words(senses.format(4, 6, 3, 7), "rich/poor known/unknown")
    # "known for" is in the list
    assert lemmas("antonyms", "rich", "a") == lemmas("antonyms", "known", "a") == set()


@pytest.mark.parametrize("place", range(1, 6))
def test_antonyms_are_of_the_first_three_senses(place, words):
    earlier = "a | Happy=3 | |\n" * (place - 1)
    words(earlier + "a | happy=3 | |\na | unhappy=9 | |", "happy/unhappy")
    assert lemmas("antonyms", "happy", "a") == ({"unhappy"} if place <= 3 else set())


@pytest.mark.parametrize(
    ("name", "usable"),
    [("rapid", True), ("Rapid", False), ("pdq", False), ("very_fast", False), ("a1", False)],
)
def test_what_is_written_as_no_word_of_english_is_no_antonym(name, usable, words, monkeypatch):
    """Capitals, several words, and what has no vowel behind its first letter."""
    monkeypatch.setattr(lexical_senses, "uses", lambda lemma, part: "")
    words(f"a | dull | |\na | {name} | |", f"dull/{name}")
    assert lemmas("antonyms", "dull", "a") == ({name} if usable else set())


def test_names_have_antonyms_too(words):
    source = words("a | Gentile_Greek | |\na | native | |\na | Roman Latin | |", "native/Gentile_Greek")
    for lemma in ("gentile greek", "Gentile Greek"):
        assert source.antonyms(lemma, "a") == ("native",)
    assert source.antonyms("native", "a") == ("Gentile Greek",) and source.antonyms("latin", "a") == ()


def test_formed_antonyms_follow_every_sense(words):
    words("a | happy=3 | |\na | unhappy | |\na | happy=7 | |", "happy/unhappy")
    assert lemmas("antonyms", "happy", "a") == {"unhappy"}  # a third of the uses would not do for "sad"
    words("a | happy=3 | |\na | sad | |\na | happy=7 | |", "happy/sad")
    assert lemmas("antonyms", "happy", "a") == set()


def test_plurals_alone_have_no_substitute(words):
    words("n | police force | |\nn | force police | |")
    assert lemmas("synonyms", "police", "n", "NNS") == set()


# -- The word lists ------------------------------------------------------------


def test_word_lists_are_of_words_that_are_used(whole_wordnet):
    """Every pair that is let in is one of WordNet's and comes out; nothing that is ruled out does."""
    tags = {"n": "NN", "v": "VB", "a": "JJ", "r": "RB"}
    for part, word, others in word_table("wordnet_fit.tsv"):
        assert set(others.split()) <= lemmas("synonyms", word, part), word
    for relation, part, word, others in word_table("wordnet_unfit.tsv"):
        assert whole_wordnet.synsets(word, part), word
        found = substitutes(relation, word, part, tags[part], word)
        plain = {other for other in others.split() if ":" not in other}
        assert not found if "*" in plain else plain.isdisjoint(other.lemma for other in found), word
        for other, _, frame in (other.partition(":") for other in others.split() if ":" in other):
            assert all(
                frame in lexical_senses.FRAMES and frame not in kept.frames
                for kept in found
                if kept.lemma == other
            )


def test_word_lists_are_sorted_and_whole():
    for name, columns in (("wordnet_fit.tsv", 3), ("wordnet_unfit.tsv", 4)):
        rows = word_table(name)
        assert {len(row) for row in rows} == {columns} and len({row[:-1] for row in rows}) == len(rows), name
        assert all(
            row[-1].strip() and row[-1].split() == list(dict.fromkeys(row[-1].split())) for row in rows
        )
    rows = word_table("word_uses.tsv")
    assert {row[1] for row in rows} == set("nvar") and {len(row) for row in rows} == {3, 4}
    assert {row[3] for row in rows if len(row) == 4} == {"c", "m", "g"} and all(
        int(row[2]) >= 3 for row in rows
    )


# wninput(5WN), "Verb Frames": number and text.
FRAMES = """1 Something ----s. 2 Somebody ----s. 3 It is ----ing. 4 Something is ----ing PP.
5 Something ----s something Adjective/Noun. 6 Something ----s Adjective/Noun. 7 Somebody ----s Adjective.
8 Somebody ----s something. 9 Somebody ----s somebody. 10 Something ----s somebody. 11 Something ----s something.
12 Something ----s to somebody. 13 Somebody ----s on something. 14 Somebody ----s somebody something.
15 Somebody ----s something to somebody. 16 Somebody ----s something from somebody.
17 Somebody ----s somebody with something. 18 Somebody ----s somebody of something.
19 Somebody ----s something on somebody. 20 Somebody ----s somebody PP. 21 Somebody ----s something PP.
22 Somebody ----s PP. 23 Somebody's (body part) ----s. 24 Somebody ----s somebody to INFINITIVE.
25 Somebody ----s somebody INFINITIVE. 26 Somebody ----s that CLAUSE. 27 Somebody ----s to somebody.
28 Somebody ----s to INFINITIVE. 29 Somebody ----s whether INFINITIVE. 30 Somebody ----s somebody into V-ing something.
31 Somebody ----s something with something. 32 Somebody ----s INFINITIVE. 33 Somebody ----s VERB-ing.
34 It ----s that CLAUSE. 35 Something ----s INFINITIVE."""  # noqa: E501


def test_frames_are_those_of_the_manual():
    texts = {int(n): text for n, text in re.findall(r"(\d+) ([^\d]+?)\.(?=\s|$)", FRAMES)}
    assert len(texts) == 35

    def numbers(pattern):
        return {number for number, text in texts.items() if re.search(pattern, text)}

    complement = numbers("INFINITIVE|Adjective|CLAUSE|VERB-ing")
    assert lexical_senses.FRAMES["object"] == numbers("----s some(body|thing)") - complement
    assert lexical_senses.FRAMES["object to"] == numbers("----s somebody to INF")
    assert lexical_senses.FRAMES["that"] == numbers("that CLAUSE")
    assert lexical_senses.FRAMES["to"] == numbers("----s to INF")
    assert lexical_senses.FRAMES["none"] == numbers("----(s|ing)( PP| (to|on) some.*)?$") - {27}
