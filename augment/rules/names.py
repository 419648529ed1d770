"""Swap genders, change places, put facts about them, change colours: rules of AugCSE that go by lists."""

import re
from collections.abc import Iterator
from typing import Any

from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import (
    Edit,
    is_name,
    lengths_by_word,
    like,
    named_words,
    names_in,
    rewrite,
    word_list,
    word_map,
    word_set,
    word_table,
)

_PRONOUNS = word_map("he=she she=he himself=herself herself=himself him=her hers=his")
_PAIRS: dict[str, str] = {}
for _male, _female in word_table("gender_pairs.tsv"):
    _PAIRS.setdefault(_male, _female)
    _PAIRS.setdefault(_female, _male)
_GIVEN_NAMES = {name: gender for gender, names in word_table("given_names.tsv") for name in names.split()}
_TITLES = {title: other for title, other in word_table("titles.tsv")}  # noqa: C416
# Written with a capital in front of a name these are titles, and swapped; other capitalised pairs are (parts
# of) names.
_RANKS = named_words("names.ranks")
# What stands behind a "his" or "her" that owns nothing.
_BEHIND_PRONOUNS = word_set("PUNCT ADP CCONJ SCONJ AUX DET PRON PART")
_OWNED = word_set("NOUN PROPN ADJ NUM VERB ADV")  # what a noun phrase begins with
_BEFORE_NO_PERSON = word_set("St. Saint San Fort Mount Lake Port the The - of de van von")
_BEHIND_NO_PERSON = word_set("- River Street County Island Islands College University Church Bay City")
_SECOND_NAMES = named_words("names.second_names")
_QUOTES = frozenset("\"“‘'`") | {"``"}


def gender_swap(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Replace words and names of one gender by those of the other.

    "her" is "his" or "him", and "his" is "her" or "hers", by tag. A given name becomes the same new name
    wherever it stands, and none that the sentence has; family names, places, "Martin Luther King" stay.
    """
    tags = sentence.tags
    words = sentence.words
    renamed: dict[str, str] = {}
    edits: list[Edit] = []
    for i, word in enumerate(words):
        lower = word.lower()
        new = None
        if lower in _PRONOUNS:
            new = _PRONOUNS[lower]
        elif lower == "her":
            new = "his" if _is_possessive(sentence, i) else "him"
        elif lower == "his":
            new = "her" if _is_possessive(sentence, i) else "hers"
        elif lower in _TITLES and word[0].isupper() and _before_name(sentence, i):
            new = _TITLES[lower]
            if lower == "miss" and sentence.text[sentence.ends[i] :].startswith("."):
                new = "Mr"
        elif lower in _PAIRS and _is_common(sentence, i, word, lower):
            new = _PAIRS[lower]
        elif word in _GIVEN_NAMES and _is_given_name(sentence, i, words):
            if word not in renamed:
                taken = {*words, *renamed.values()}
                others = [
                    name
                    for name, its in _GIVEN_NAMES.items()
                    if its != _GIVEN_NAMES[word] and name not in taken
                ]
                renamed[word] = draws.choice(others)
            new = renamed[word]
        if new is not None and tags[i] != "FW":
            edits.append(sentence.replacement(i, like(word, new) if len(word) > 1 else new))
    return rewrite(sentence, edits)


def _is_possessive(sentence: ParsedSentence, i: int) -> bool:
    """Return whether "her" or "his" belongs to a noun behind it, by its tag and by what follows."""
    tag = sentence.tags[i]
    while i + 1 < len(sentence) and sentence.word(i + 1) in _QUOTES:  # 'his "autobiography"'
        i += 1
    if i + 1 >= len(sentence) or sentence.pos[i + 1] in _BEHIND_PRONOUNS:
        return False
    return tag == "PRP$"


def _before_name(sentence: ParsedSentence, i: int) -> bool:
    following = i + 1
    while following < len(sentence) and sentence.word(following) == ".":
        following += 1
    return following < len(sentence) and sentence.word(following)[:1].isupper()


def _is_common(sentence: ParsedSentence, i: int, word: str, lower: str) -> bool:
    kind = sentence.tags[i][:2]
    if kind[:1] == "V" or (kind != "NN" and lower in ("host", "hosts", "steward", "guys")):
        return False
    if lower in _RANKS and i and sentence.tags[i - 1] in ("NN", "NNP"):
        return False  # "burger king"
    if (i + 1 < len(sentence) and sentence.word(i + 1) == "-") or (i and sentence.word(i - 1) == "-"):
        return False  # "man-made", "half-brother" if it is cut in three
    if word[0].islower():
        return True
    if lower in _RANKS:
        return _before_name(sentence, i) and sentence.word(i + 1) not in ("Island", "Street", "Cup", "Edward")
    # A capital in the middle is a name's; at the start of the sentence, if no name goes on behind it, it
    # is not.
    return i == 0 and sentence.tags[i] not in ("NNP", "NNPS")


def _is_given_name(sentence: ParsedSentence, i: int, words: list[str]) -> bool:
    if sentence.tags[i] not in ("NNP", "NN"):
        return False
    if i:
        before = words[i - 1]
        if before in _BEFORE_NO_PERSON:
            return False
        if before[:1].isupper() and before[:1].isalpha() and sentence.tags[i - 1][:3] == "NNP":
            title = before.lower() in _TITLES or before.lower() in _RANKS
            return title or before.rstrip(".") in ("Dr", "Rev", "Sir", "Queen")
    if i + 1 < len(words):
        following = words[i + 1]
        if following in _SECOND_NAMES and i + 2 < len(words) and sentence.tags[i + 1] == "NNP":
            return False  # "Mary Jo"
        if sentence.tags[i + 1] == "POS" and _OWNED.isdisjoint(sentence.pos[i + 2 : i + 3]):
            return False  # "at Ralph's": a shop
        if following in _BEHIND_NO_PERSON:
            return False
    return True


_CONTINENTS = dict.fromkeys(("Africa", "Asia", "Europe", "Oceania", "North America", "South America"))
_COUNTRIES = {row[0]: row[1:] for row in word_table("countries.tsv")}
_CITIES = {row[0]: row[1:] for row in word_table("cities.tsv")}
_PLACES: tuple[dict[str, Any], ...] = (_COUNTRIES, _CITIES, _CONTINENTS)
_LENGTHS = tuple(map(lengths_by_word, _PLACES))


def city_names(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Replace well-known, populous cities by small, little-known ones.

    By a gazetteer of 260 (GeoNames), without an entity recogniser. A name that is part of a longer one ("New
    York Times", "Paris Hilton") stays; a city becomes the same city wherever it stands.
    """
    found = _places(sentence, 1)
    if not found:
        return None
    names = sorted({name for _, _, name in found})
    new = dict(zip(names, draws.sample(word_list("small_cities.txt"), len(names))))
    return rewrite(sentence, [(sentence.starts[i], sentence.ends[j], new[name]) for i, j, name in found])


def geo_names(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Put a fact from GeoNames beside a country, city or continent.

    One random fact (capital, continent, inhabitants, neighbours, currency, ISO code) for one random place:
    between commas before a verb, a preposition or the end, otherwise in brackets. None for a name that is
    part of a longer one or stands in front of a noun ("the France team"), or if the sentence says it already.
    """
    places = (place for number in range(3) for place in _places(sentence, number))
    found = [place for place in places if _takes_apposition(sentence, place[1])]
    if not found:
        return None
    _, j, name = draws.choice(sorted(found))
    facts = [fact for fact, said in _facts(name) if said not in sentence.text]
    if not facts:
        return None
    fact = draws.choice(facts)
    end, at_end = sentence.ends[j], j + 1 == len(sentence)
    if at_end or sentence.word(j + 1) in (".", "!", "?", ";", ":", ")", "]"):
        written = f", {fact}"
    else:
        written = f", {fact}," if sentence.pos[j + 1] in ("VERB", "AUX", "ADP", "SCONJ") else f" ({fact})"
    return rewrite(sentence, [(end, end, written)])


def _places(sentence: ParsedSentence, number: int) -> list[tuple[int, int, str]]:
    """Return (first word, last word, name) of every place of a table that is not part of a longer name."""
    words, table = sentence.words, _PLACES[number]

    def place(i: int, j: int) -> tuple[int, int, str] | None:
        name = sentence.span(i, j)
        return (i, j, name) if name in table and _is_whole_name(sentence, i, j, words) else None

    return list(names_in(words, _LENGTHS[number], place))


def _is_whole_name(sentence: ParsedSentence, i: int, j: int, words: list[str]) -> bool:
    if i:
        before = words[i - 1]
        if before in ("-", "/", "–", "New", "West", "East", "North", "South", "'", "’", "@", "#") or (
            before[:1].isupper() and is_name(sentence, i - 1)
        ):
            return False
    if i > 1 and words[i - 1] == "of" and is_name(sentence, i - 2):
        return False  # "University of Houston"
    if j + 1 < len(words):
        following = words[j + 1]
        if following in ("-", "/", "–", "&") or (following[:1].isupper() and is_name(sentence, j + 1)):
            return False
        if following == "." and sentence.text[sentence.ends[j] : sentence.ends[j] + 2].strip(".").isalnum():
            return False  # a host name
    return True


def _takes_apposition(sentence: ParsedSentence, j: int) -> bool:
    """Return whether the name stands by itself, as a noun phrase."""
    following = j + 1
    if following == len(sentence):
        return True
    if sentence.tags[following] == "POS" or sentence.word(following)[:1] in ("'", "’", "(", "-"):
        return False
    if sentence.pos[following] in ("VERB", "AUX"):
        return sentence.tags[following] in ("VBD", "VBZ", "VBP", "MD")
    return sentence.pos[following] in ("PUNCT", "ADP", "CCONJ", "SCONJ")


def _facts(name: str) -> Iterator[tuple[str, str]]:
    """Yield (fact, the word of it that the sentence must not have yet) of a place."""
    if name in _COUNTRIES:
        code, _, capital, continent, inhabitants, currency, neighbours = _COUNTRIES[name]
        yield f"whose capital is {capital}", capital
        yield f"a country in {continent}", continent
        yield f"a country of {int(inhabitants):,} inhabitants", "inhabitants"
        yield f"whose ISO code is {code}", "ISO"
        yield f"where the currency is the {currency.lower()}", currency.lower()
        for neighbour in neighbours.split(",")[:4] if neighbours != "-" else ():
            yield f"which borders {_with_article(neighbour)}", neighbour
    if name in _CITIES:
        country, inhabitants = _CITIES[name]
        yield f"a city in {_with_article(country)}", country
        yield f"a city of {int(inhabitants):,} inhabitants", "inhabitants"
    if name in _CONTINENTS:
        yield f"a continent with {sum(row[3] == name for row in _COUNTRIES.values())} countries", "continent"


def _with_article(country: str) -> str:
    return f"the {country}" if country in _COUNTRIES and _COUNTRIES[country][1] == "the" else country


_SHARES = word_set("more less mostly predominantly largely mainly overwhelmingly entirely exclusively all")
_JOINTS = ("-", "/", "–")
_SKIN = word_set("black white brown")
# a noun of persons, or of what is no thing, by its end; some things share it ("a black container"), and stay
_PERSON = re.compile(rf"(?:{'|'.join(named_words('colors.ends'))})s?$")
_KIND = re.compile(r"(?:wort|weed|fish|berry|bird|fly|grass|heron|urchin|squid|crab|snail|moth)s?$")
_OF_PERSONS = named_words("colors.of_persons")
_QUOTE_MARKS = ("'", '"', "“", "‘", "`", "``", "''")
_SURNAMES = word_set("black white brown green gray grey")
_BEFORE_COLOUR = ("DT", "PRP$", "IN", "CC", "VBG", "VBN", "CD", ",")
_LOOKS = named_words("colors.looks")
_IN_PHRASE = word_set("NN JJ `` ''")  # the beginnings of tags
_PEOPLES = named_words("colors.peoples")
_SAYINGS = named_words("colors.sayings")
_SHADES = word_set("pale light dark deep bright vivid dull soft rich pure slightly very")
COLOURS = {line.lstrip("*"): line[0] == "*" for line in word_list("colours.txt")}
"""Names of colours; whether each is mostly a thing, no colour."""
_COLOUR_LENGTHS = lengths_by_word(COLOURS)
# nouns that a colour makes a name with: things; groups of people
_THINGS = {colour: word_set(nouns) for colour, nouns in word_table("colour_nouns.tsv")}
_GROUPS = {one: nouns for colours, nouns in _THINGS.items() if " " in colours for one in colours.split()}
_BEFORE_NOUN = _SHADES | word_set("in and or , the of")


def colors(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Replace every colour by another of the 147 of CSS ("dark sea green").

    Whole words, the longest name first, a colour drawn for each (as published: substrings, one colour). Names
    stay ("Red Sea", "Mr Brown", "green tea", "black voters"); words that are things more often than colours
    ("orange", "wheat", "snow") only count as adjectives.
    """
    words = sentence.words

    def other_colour(i: int, j: int) -> Edit | None:
        old = sentence.span(i, j)
        name = old.lower()
        if name not in COLOURS or not _is_colour(sentence, i, j, COLOURS[name], words):
            return None
        shaded = i > 0 and words[i - 1].lower() in _SHADES  # no "pale dark red"
        others = [other for other in COLOURS if other != name and not (shaded and " " in other)]
        return sentence.replacement(i, like(old, draws.choice(others)), j)

    return rewrite(sentence, names_in([word.lower() for word in words], _COLOUR_LENGTHS, other_colour))


def _is_colour(sentence: ParsedSentence, i: int, j: int, is_thing: bool, words: list[str]) -> bool:
    tag = sentence.tags[j]
    before = [word.lower() for word in words[max(0, i - 3) : i]]
    behind = sentence.tags[j + 1] if j + 1 < len(words) else "."
    if tag not in ("JJ", "NN") or (is_thing and not _is_seen(sentence, i, before)):
        return False
    if i and (sentence.tags[i - 1].startswith("NN") or words[i - 1] in _QUOTE_MARKS):
        return False  # a name ("charlie brown"), a shade of its own ("cherry red"), or only called so
    if tag == "NN" and not behind.startswith("NN") and before[-1:] and before[-1] not in _BEFORE_NOUN:
        return False  # "assume black 's identity", "at red"
    if words[i] in _SURNAMES and sentence.text.islower() and i and sentence.tags[i - 1] not in _BEFORE_COLOUR:
        return False  # "james brown" in a text without capitals
    if i and (before[-1] in ("to", "into") or before[-1].endswith("ish") or before[-1] in COLOURS):
        return False  # "navy blue"
    if COLOURS.get(sentence.lower(j + 1)) is False or "_".join([*before[-1:], words[j].lower()]) in _SAYINGS:
        return False  # "red white red", "saw red"
    behind_verb = i > 1 and before[-1] == "the" and sentence.tags[i - 2][:2] == "VB"
    if behind_verb and i < j and behind[:2] not in ("NN", "JJ"):
        return False  # "is the sky blue?"
    if sentence.text[: sentence.starts[i]][-1:] in (":", "=") or (not i and behind[:2] in ("VB", "MD")):
        return False  # markup; a player of chess
    if words[i][:1].isupper() and (i or (j + 1 < len(words) and words[j + 1][:1].isupper())):
        return False  # the name of something
    if i and (words[i - 1] in _JOINTS or (words[i - 1][:1].isupper() and sentence.pos[i - 1] == "PROPN")):
        return False
    if before[-2:] == ["in", "the"] and (tag == "NN" or not behind.startswith("NN")):
        return False  # "in the red"
    around = " ".join(words[max(0, j - 2) : j + 3]).lower()
    if re.search("black (and|or|&) white", around) or _is_of_people(sentence, i, before):
        return False  # a picture without colours
    if words[j + 1 : j + 2] and words[j + 1] in _JOINTS:
        return False
    nouns = _nouns_behind(sentence, j)
    if words[j].lower() in _SKIN and any(_PERSON.search(noun.lower()) for noun in nouns):
        return False
    return not any(_is_named(words[j].lower(), noun) for noun in nouns)


def _is_seen(sentence: ParsedSentence, i: int, previous: list[str]) -> bool:
    """Return whether a word such as "gold" describes looks: behind a shade or verb, or beside a colour."""
    if sentence.tags[i] != "JJ":
        return False
    behind = sentence.tags[i + 1] if i + 1 < len(sentence) else "."
    if i and (previous[-1] in _SHADES or (previous[-1] in _LOOKS and behind[:2] not in ("NN", "JJ"))):
        return True
    around = [word.lower() for word in (*sentence.words[max(0, i - 2) : i], *sentence.words[i + 1 : i + 3])]
    return not {"and", "or", ","}.isdisjoint(around) and any(COLOURS.get(word) is False for word in around)


def _nouns_behind(sentence: ParsedSentence, j: int) -> list[str]:
    """Return the nouns behind a colour: "water" of "black and grey water", two of "black jury members"."""
    words, k = sentence.words, j + 1
    while sentence.lower(k) in ("and", "or", ",", "&") and sentence.lower(k + 1) in COLOURS:
        k += 2
    end = k + 1
    while end < len(words) and sentence.tags[end][:2] in _IN_PHRASE and words[k] != ",":
        end += 1
    return words[k:end]


def _is_of_people(sentence: ParsedSentence, i: int, previous: list[str]) -> bool:
    """Return whether a colour says what people somebody is of: "predominantly white", "he was black"."""
    if sentence.lower(i) not in _SKIN:
        return False
    behind = sentence.tags[i + 1] if i + 1 < len(sentence) else "."
    is_noun = (sentence.tags[i] == "NN" and previous[-1:] != ["in"]) or behind in ("VBN", "VBD", "MD", "POS")
    is_noun |= previous[-1:] == ["the"] and behind[:2] not in ("NN", "JJ")
    verb = i - 1
    while verb > 0 and sentence.tags[verb][:2] in ("VB", "RB", "MD"):
        verb -= 1
    is_said = 0 <= verb < i - 1 and sentence.tags[verb] in ("NNP", "PRP", "CD", "WP")
    words = [word.lower() for word in sentence.words]
    return (
        is_noun
        or not _PEOPLES.isdisjoint(words)
        or any(words[k] in _SKIN and words[k + 1] in _GROUPS["black"] for k in range(len(words) - 1))
        or (is_said and behind[:2] not in ("NN", "JJ"))
        or (i > 0 and previous[-1] in _SHARES)
        or not _OF_PERSONS.isdisjoint({*previous, *words[i + 1 : i + 4]})
    )


def _is_named(colour: str, noun: str) -> bool:
    """Return whether a colour is part of a name for a thing ("black hole") or a group of people."""
    things, groups = _THINGS.get(colour, frozenset()), _GROUPS.get(colour, frozenset())
    lower = noun.lower()
    either = {lower, lower.removesuffix("s"), lower.removesuffix("es"), re.sub("ies$", "y", lower)}
    either.add(re.sub("ves$", "f", lower))
    kind = bool(_KIND.search(lower)) or (bool(groups) and noun[:1].isupper())
    return kind or not either.isdisjoint(things | groups)
