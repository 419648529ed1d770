"""WordNet and the substitutions by it, with the words of tests/small_wordnet.py; some tests also with the
whole of WordNet."""

import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from parse_builder import draws, outcomes, parse, tagged

from augment.core.errors import AugmentationError
from augment.rules import senses as lexical_senses
from augment.rules.substitution import (
    antonym_adjectives,
    antonyms,
    hypernyms,
    hyponyms,
    synonyms_wordnet,
    wordnet_substitution,
)
from augment.spec.catalogue import CATALOGUE
from augment.text.word_forms import indefinite_article
from augment.text.wordnet import WordNet, _Index, wordnet


@pytest.mark.parametrize("end", [b"\n", b""])
def test_lines_are_found_by_their_beginning_also_the_last(end):
    index = _Index(b"  1 a licence\na 1\nab 2\nab 3\nb 4" + end)
    assert index.lines(b"ab ") == [b"ab 2", b"ab 3"] and index.find(b"a ") == b"a 1"
    assert index.find(b"b ") == b"b 4" and index.find(b"c ") is None


def test_reads_the_format(small_wordnet):
    source = WordNet(small_wordnet)
    assert source.antonyms("Hot", "a") == ("cold",) and source.antonyms("asleep", "a") == ("awake",)
    assert source.synsets("a", "a") == source.synsets("zebra", "a") == source.synsets("ho", "a") == ()
    assert pickle.loads(pickle.dumps(source)).antonyms("hot", "a") == ("cold",)


def test_what_is_missing_is_said(tmp_path, small_wordnet):
    incomplete = tmp_path / "incomplete"
    shutil.copytree(small_wordnet, incomplete)
    (incomplete / "data.verb").unlink()
    for path in (tmp_path / "nowhere", incomplete):
        with pytest.raises(AugmentationError, match=r"cannot be read as WordNet"):
            WordNet(path)


def test_the_environment_names_one(tmp_path, monkeypatch, small_wordnet):
    """CLEAR_WORDNET before anything installed; nothing else stands in for one that is not there."""
    find = wordnet.__wrapped__
    assert find().path == small_wordnet
    archive = Path(shutil.make_archive(str(tmp_path / "words"), "zip", small_wordnet.parent))
    monkeypatch.setenv("CLEAR_WORDNET", str(archive))
    assert find().path == archive and find().antonyms("hot", "a") == ("cold",)
    monkeypatch.setenv("CLEAR_WORDNET", str(tmp_path / "nowhere"))
    monkeypatch.setenv("CLEAR_DATA", str(small_wordnet.parent))
    with pytest.raises(AugmentationError, match=r"CLEAR_WORDNET names .*nowhere, which is not there"):
        find()
    monkeypatch.delenv("CLEAR_WORDNET")
    assert find().path == small_wordnet


@pytest.fixture(params=["small", "whole"])
def source(request) -> WordNet:
    return wordnet() if request.param == "small" else request.getfixturevalue("whole_wordnet")


def agrees_with_nltk(source: WordNet, reader: Any, step: int) -> int:
    """Compare every step-th lemma of a WordNet with what nltk's reader has; return how many there were."""
    compared = 0
    for pos, name in (("n", "noun"), ("v", "verb"), ("a", "adj"), ("r", "adv")):
        lemmas = [
            line.split(" ")[0]
            for line in (source.path / f"index.{name}").read_text().splitlines()
            if line[0] != " "
        ]
        for lemma in lemmas[::step]:
            # those of "hard time" too, for "hard times"
            theirs = list(dict.fromkeys(reader.synsets(lemma, pos)))
            theirs = [sense for sense in theirs if lemma in (word.lower() for word in sense.lemma_names())]
            ours = source.synsets(lemma, pos)
            assert [[word.replace("_", " ") for word in sense.lemma_names()] for sense in theirs] == [
                list(sense.lemmas) for sense in ours
            ], lemma
            spelled = next(word for word in theirs[0].lemmas() if word.name().lower() == lemma)
            opposites = [word.name().replace("_", " ") for word in spelled.antonyms()]
            assert source.antonyms(lemma.replace("_", " "), pos, senses=1) == tuple(opposites), lemma
            for relation, symbol in (("hypernyms", "@"), ("hyponyms", "~")):
                names = [
                    word.replace("_", " ")
                    for sense in getattr(theirs[0], relation)()
                    for word in sense.lemma_names()
                ]
                assert set(source.related(lemma, pos, symbol)) == set(names), lemma
            compared += 1
    return compared


def test_agrees_with_nltk(nltk_reader):
    assert agrees_with_nltk(wordnet(), nltk_reader(wordnet()), 1) > 100


@pytest.mark.slow
def test_agrees_with_nltk_on_the_whole(whole_wordnet, nltk_reader):
    assert agrees_with_nltk(whole_wordnet, nltk_reader(whole_wordnet), 250) > 500


def test_every_lemma_of_an_index_is_found(source):
    lines = [line for line in (source.path / "index.adv").read_text().splitlines() if line[0] != " "]
    for line in lines[:: max(1, len(lines) // 400)]:
        lemma = line.split(" ")[0]
        senses = source.synsets(lemma, "r")
        assert len(senses) == int(line.split(" ")[2])
        assert all(lemma.replace("_", " ") in [word.lower() for word in sense.lemmas] for sense in senses)


def test_relations_of_known_words(source):
    assert source.antonyms("beautiful", "a") == ("ugly",) and source.antonyms("quickly", "r") == ("slowly",)
    assert "container" in source.related("spoon", "n", "@") and "teaspoon" in source.related(
        "spoon", "n", "~"
    )
    assert source.synsets("canine", "n")[0].pointers
    assert "Lassie" not in source.related("dog", "n", "~")  # an instance is no narrower term


@pytest.mark.parametrize(
    ("text", "tags", "expected"),
    [
        ("Amanda's mother was very beautiful.",
         "Amanda/NNP 's/POS mother/NN was/VBD very/RB beautiful/JJ ./.", "Amanda's mother was very ugly."),
        ("Large larger LARGE", "Large/JJ larger/JJR LARGE/JJ", "Small smaller LARGE"),
        ("A useful, useful “good” é", "A/DT useful/JJ ,/, useful/JJ “/`` good/JJ ”/'' é/NN",
         "A useless, useless “bad” é"),
        ("an unable man", "an/DT unable/JJ man/NN", "an able man"),
        ("the most beautiful Big Apple", "the/DT most/JJS beautiful/JJ Big/NNP Apple/NNP",
         "the most ugly Big Apple"),
        ("a well-good http://good.com thing", "a/DT well/RB -/HYPH good/JJ http://good.com/NN thing/NN",
         None),
        ("Swim", "Swim/VB", None),
    ],
)  # fmt: skip
def test_antonym_adjectives(source, text, tags, expected):
    assert outcomes(antonym_adjectives, tagged(text, tags)) == {expected}


def test_antonyms_are_odd(source):
    even = tagged("He is good and fast.", "He/PRP is/VBZ good/JJ and/CC fast/JJ ./.")
    assert outcomes(antonyms, even) == {"He is bad and fast.", "He is good and slow."}
    odd = tagged(
        "He is good, good and quickly fast.",
        "He/PRP is/VBZ good/JJ ,/, good/JJ and/CC quickly/RB fast/JJ ./.",
    )
    for result in outcomes(antonyms, odd):
        assert sum(word in result for word in ("slowly", "slow.")) + result.count("bad") in (1, 3)
    assert outcomes(antonyms, tagged("Paris", "Paris/NNP")) == {None}


@pytest.mark.parametrize(
    ("text", "tags", "expected"),
    [
        # one of two
        ("A good, good day", "A/DT good/JJ ,/, good/JJ day/NN", {"A bad, good day", "A good, bad day"}),
        ("“Quickly!” Zoë said.", "“/`` Quickly/RB !/. ”/'' Zoë/NNP said/VBD ./.", {"“Slowly!” Zoë said."}),
        ("Quickly", "Quickly/RB", {"Slowly"}),
        ("an unable man", "an/DT unable/JJ man/NN", {"an able man"}),
        ("See http://good.com/fast", "See/VB http://good.com/fast/NN", {None}),
        ("No day", "No/DT day/NN", {None}),
        ("the good and bad days", "the/DT good/JJ and/CC bad/JJ days/NNS", {None}),
        # what the sentence says already, with punctuation on it or in another form
        ("It was good, not bad.", "It/PRP was/VBD good/JJ ,/, not/RB bad/JJ ./.", {None}),
        ("For better or worse", "For/IN better/JJR or/CC worse/JJR", {None}),
    ],
)  # fmt: skip
def test_antonyms(source, text, tags, expected):
    assert outcomes(antonyms, tagged(text, tags)) <= expected | {None}
    assert expected == {None} or outcomes(antonyms, tagged(text, tags)) & expected


@pytest.mark.parametrize("function", [hypernyms, hyponyms])
@pytest.mark.parametrize(
    ("text", "tags", "pattern"),
    [
        ("“Dogs” ran.", "“/`` Dogs/NNS ”/'' ran/VBD ./.", r"“[A-Z][a-z ]+” ran\."),
        ("Dog", "Dog/NN", r"[A-Z][a-z ]+"),
        ("a dog, a dog", "a/DT dog/NN ,/, a/DT dog/NN", r"(?:an? (?!dog)[a-z ]+, a dog|a dog, an? "
                                                        r"(?!dog)[a-z ]+)"),
        ("Zoë’s dog", "Zoë/NNP ’s/POS dog/NN", r"Zoë’s [a-z ]+"),
        ("the Dog Star", "the/DT Dog/NNP Star/NNP", None),
        ("hot-dog http://dog.com DOG", "hot/JJ -/HYPH dog/NN http://dog.com/NN DOG/NN", None),
    ],
)  # fmt: skip
def test_one_noun(source, function, text, tags, pattern):
    found = outcomes(function, tagged(text, tags))
    if pattern is None:
        assert found == {None}
    else:
        assert found - {None} and all(re.fullmatch(pattern, result) for result in found - {None})


def test_hypernyms_and_hyponyms(source):
    assert outcomes(hypernyms, tagged("Spoons and Paris", "Spoons/NNS and/CC Paris/NNP")) == {
        "Containers and Paris"
    }
    assert "Puppies and Paris" in outcomes(hyponyms, tagged("Dogs and Paris", "Dogs/NNS and/CC Paris/NNP"))
    repeated = tagged(
        "The dog saw a dog-house, dog.", "The/DT dog/NN saw/VBD a/DT dog/NN -/HYPH house/NN ,/, dog/NN ./."
    )
    for function in (hypernyms, hyponyms):
        for result in outcomes(function, repeated):
            assert " dog-house" in result and (result.startswith("The dog") != result.endswith(", dog."))
    for noun in ("owl", "uncle", "arm", "book", "hour"):
        article = indefinite_article(noun)
        for result in outcomes(
            hypernyms, tagged(f"saw {article} {noun}", f"saw/VBD {article}/DT {noun}/NN")
        ) - {None}:
            assert result.split(" ")[1] == indefinite_article(result.split(" ", 2)[2])
    assert outcomes(hypernyms, tagged("It is http://a.com", "It/PRP is/VBZ http://a.com/NN")) == {None}


@pytest.mark.parametrize("function", [synonyms_wordnet, wordnet_substitution])
def test_synonyms(source, function):
    annotation = "The/DT/det/3 big/JJ/amod/3 car/NN/nsubj/4 began/VBD/root/0 ././punct/4"
    found = outcomes(function, parse("The big car began.", annotation), rate=1.0)
    assert any("automobile" in text or "auto" in text for text in found) and any(
        "large" in text for text in found
    )
    assert any("started" in text for text in found) and all(
        text.startswith("The ") and text.endswith(".") for text in found
    )
    assert outcomes(
        function, tagged("Zoë and 12 http://big.com", "Zoë/NNP and/CC 12/CD http://big.com/NN"), rate=1.0
    ) == {None}
    assert outcomes(function, tagged("", "")) == {None}
    behind = "He/PRP/nsubj/2 saw/VBD/root/0 something/NN/obj/2 big/JJ/amod/3 ././punct/2"
    assert outcomes(function, parse("He saw something big.", behind), rate=1.0) == {None}


def test_synonyms_rates(source):
    sentence = tagged("car car car car car car car car car car", " ".join(["car/NN"] * 10))
    for rate, changed in ((0.05, 1), (0.1, 1), (0.2, 2)):
        for key in range(20):
            result = wordnet_substitution(sentence, draws(key), rate)
            assert result is None or sum(word != "car" for word in result.split()) >= changed
    assert synonyms_wordnet(sentence, draws(), rate=0.0) is None


def test_words_that_fit_no_sentence_stay_out(source):
    different = tagged("a different day", "a/DT different/JJ day/NN")
    assert outcomes(antonym_adjectives, different) <= {None, "a similar day", "a like day"}
    for word in ("borders", "games"):  # no "boundses", no "cardses"
        for function in (hypernyms, hyponyms):
            assert not any(
                text.endswith("ses") for text in outcomes(function, tagged(word, f"{word}/NNS")) - {None}
            )
    look = tagged("a look", "a/DT look/NN")
    assert not any(
        text.endswith((" at", " of")) for text in outcomes(synonyms_wordnet, look, rate=1.0) - {None}
    )
    laugh = tagged("We had to laugh.", "We/PRP had/VBD to/TO laugh/VB ./.")
    assert all(text.startswith("We had to ") for text in outcomes(synonyms_wordnet, laugh, rate=1.0) - {None})


def test_verbs_that_help_and_phrasal_verbs_stay(source):
    phrasal = parse("He gave up.", "He/PRP/nsubj/2 gave/VBD/root/0 up/RP/compound:prt/2 ././punct/2")
    clear = parse("He gave up.", "He/PRP/nsubj/2 gave/VBD/ROOT/0 up/RP/prt/2 ././punct/2")
    helping = parse("It had begun.", "It/PRP/nsubj/3 had/VBD/aux/3 begun/VBN/root/0 ././punct/3")
    assert (
        outcomes(synonyms_wordnet, phrasal, rate=1.0) == outcomes(synonyms_wordnet, clear, rate=1.0) == {None}
    )
    assert all(text.startswith("It had ") for text in outcomes(synonyms_wordnet, helping, rate=1.0))


def test_entries_say_what_they_need(monkeypatch):
    def missing():
        raise AugmentationError("no WordNet found")

    entries = [entry for entry in CATALOGUE.values() if entry.function.__module__ == hypernyms.__module__]
    assert len(entries) == 6 and all(entry.require and "wordnet" in entry.needs for entry in entries)
    lexical_senses.substitutes.cache_clear()
    monkeypatch.setattr(lexical_senses, "wordnet", missing)
    with pytest.raises(AugmentationError, match="no WordNet"):
        hypernyms(tagged("A spoon", "A/DT spoon/NN"), draws())
