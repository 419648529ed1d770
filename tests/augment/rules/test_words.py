"""AugCSE's rules of colours, gender and places, on sentences tagged by hand."""

import re

import pytest
from parse_builder import outcomes, tagged

from augment.rules import names
from augment.rules.names import city_names, colors, gender_swap, geo_names
from augment.text.word_forms import indefinite_article, word_list

SMALL = set(word_list("small_cities.txt"))


# Colours
# ------------------------------------------------------------------------------------------------------------


def test_colours_whole_words_only():
    sentence = tagged(
        "Stan is tan and Alfred hired them.",
        "Stan/NNP is/VBZ tan/JJ and/CC Alfred/NNP hired/VBD them/PRP ./.",
    )
    for result in outcomes(colors, sentence):
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
        ("It was in the red last year.", "It/PRP was/VBD in/IN the/DT red/JJ last/JJ year/NN ./."),
        (
            "Are black people so black?",
            "Are/VBP black/JJ people/NNS so/RB black/JJ ?/.",
        ),
        ("A red alga, brown algal mats", "A/DT red/JJ alga/NN ,/, brown/JJ algal/JJ mats/NNS"),
        ("Black beans, a silver platter", "Black/JJ beans/NNS ,/, a/DT silver/JJ platter/NN"),
        ("A black and white photo", "A/DT black/JJ and/CC white/JJ photo/NN"),
        (
            "He was black, as were green parties.",
            "He/PRP was/VBD black/JJ ,/, as/IN were/VBD green/JJ parties/NNS ./.",
        ),
        ("charlie brown saw ivory trade", "charlie/NN brown/NN saw/VBD ivory/JJ trade/NN"),
        ("White urban farm owners, red Sox", "White/JJ urban/JJ farm/NN owners/NNS ,/, red/JJ Sox/NNPS"),
        ("A navy blue coat, red white", "A/DT navy/JJ blue/JJ coat/NN ,/, red/JJ white/NN"),
        ("Is the sky blue?", "Is/VBZ the/DT sky/NN blue/JJ ?/."),
        ("He saw red, as the new black.", "He/PRP saw/VBD red/JJ ,/, as/IN the/DT new/JJ black/JJ ./."),
        ("Rosa had not been white.", "Rosa/NNP had/VBD not/RB been/VBN white/JJ ./."),
        ("What percentage is white?", "What/WDT percentage/NN is/VBZ white/JJ ?/."),
        (
            "A black young “voter”, red wolves",
            "A/DT black/JJ young/JJ “/`` voter/NN ”/'' ,/, red/JJ wolves/NNS",
        ),
        ("Black or white", "Black/JJ or/CC white/JJ"),
        ("It was mostly white then.", "It/PRP was/VBD mostly/RB white/JJ then/RB ./."),
        ("", ""),
    ],
)
def test_no_colour(text, tags):
    assert outcomes(colors, tagged(text, tags)) == {None}


def test_colours_repeated_capital_article_and_longest_first():
    sentence = tagged("Red is red.", "Red/JJ is/VBZ red/JJ ./.")
    found = outcomes(colors, sentence)
    assert len(found) > 30 and all(re.fullmatch(r"[A-Z][a-z ]+ is [a-z ]+\.", result) for result in found)
    assert any(result.lower().split(" is ")[0] != result[:-1].split(" is ")[1] for result in found)
    for result in outcomes(colors, tagged("He has a red car.", "He/PRP has/VBZ a/DT red/JJ car/NN ./.")):
        article, colour = re.match(r"He has (an?) ([a-z ]+) car\.", result).groups()
        assert article == indefinite_article(colour) and colour != "red"
    bought = "He/PRP bought/VBD the/DT sky/JJ blue/JJ car/NN ./."
    for result in outcomes(colors, tagged("He bought the sky blue car.", bought)):
        assert result.removeprefix("He bought the ").removesuffix(" car.") in names.COLOURS
    for result in outcomes(colors, tagged("a dark blue é", "a/DT dark/JJ blue/JJ é/NN")):
        assert re.fullmatch(r"an? [a-z ]+ é", result) and "blue" not in result.replace(
            "blue violet", ""
        ).replace(" blue", "")


def test_colours_are_those_of_css():
    webcolors = pytest.importorskip(
        "webcolors", reason="webcolors is not installed; the extra `test` brings it"
    )
    assert {name.replace(" ", "") for name in names.COLOURS} == set(webcolors.names("css3"))


# Gender
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tags", "expected"),
    [
        ("She saw her.", "She/PRP saw/VBD her/PRP ./.", "He saw him."),
        ("She saw her dog.", "She/PRP saw/VBD her/PRP$ dog/NN ./.", "He saw his dog."),
        ("It is his.", "It/PRP is/VBZ his/PRP$ ./.", "It is hers."),
        ("Read his “Life”.", "Read/VB his/PRP$ “/`` Life/NNP ”/'' ./.", "Read her “Life”."),
        ("He hurt himself, and his wife left.",
         "He/PRP hurt/VBD himself/PRP ,/, and/CC his/PRP$ wife/NN left/VBD ./.",
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
    found = outcomes(gender_swap, tagged(text, tags))
    if text.startswith("Mrs."):
        assert (
            all(re.fullmatch(r"Mr\. Smith met Queen [A-Z][a-z]+\.", result) for result in found)
            and len(found) > 5
        )
    else:
        assert found == {expected}


def test_names_stay_the_same_within_a_sentence_and_differ_between():
    tags = "Mary/NNP saw/VBD Anna/NNP ,/, but/CC Mary/NNP Fox/NNP hid/VBD ./."
    found = outcomes(gender_swap, tagged("Mary saw Anna, but Mary Fox hid.", tags), 1000)
    assert len(found) > 30
    for result in found:
        first, second, again = re.fullmatch(r"(\w+) saw (\w+), but (\w+) Fox hid\.", result).groups()
        assert first == again and len({first, second, "Mary", "Anna"}) == 4


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
    for result in outcomes(city_names, tagged(text, tags)):
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
    assert outcomes(city_names, tagged(text, tags)) == {None}


@pytest.mark.parametrize(
    ("text", "tags", "pattern"),
    [
        (
            "He was born in Portugal.",
            "He/PRP was/VBD born/VBN in/IN Portugal/NNP ./.",
            "He was born in Portugal, .+\\.",
        ),
        ("Portugal won.", "Portugal/NNP won/VBD ./.", r"Portugal, .+, won\."),
        ("In Portugal, he slept", "In/IN Portugal/NNP ,/, he/PRP slept/VBD", r"In Portugal \(.+\), he slept"),
        ("the United States", "the/DT United/NNP States/NNPS", r"the United States, .+"),
        (
            "Vienna is big.",
            "Vienna/NNP is/VBZ big/JJ ./.",
            "Vienna, a city (?:in Austria|of [\\d,]+ inhabitants), is big\\.",
        ),
    ],
)
def test_geo_names(text, tags, pattern):
    found = outcomes(geo_names, tagged(text, tags))
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
    assert outcomes(geo_names, tagged(text, tags)) == {None}


def test_no_fact_that_the_sentence_has():
    found = outcomes(geo_names, tagged("Lisbon is in Portugal", "Lisbon/NNP is/VBZ in/IN Portugal/NNP"), 200)
    assert not any("capital is Lisbon" in result or "a city in Portugal" in result for result in found)
