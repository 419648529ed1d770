"""Change places: small cities for well-known ones, facts from GeoNames beside a place. Rules of AugCSE."""

import functools
from typing import Any

from augment.core.entry import english
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import is_name, lengths_by_word, names_in, rewrite, word_list, word_table

_CONTINENTS = dict.fromkeys(("Africa", "Asia", "Europe", "Oceania", "North America", "South America"))


@english(
    "altering", needs="tags", sample="They moved from Paris to London. -> They moved from Nyon to Carlow."
)
def city_names(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Replace well-known, populous cities by small, little-known ones: CityNamesTransformation (NL-
    Augmenter).

    By a gazetteer of 260 (GeoNames), without an entity recogniser. A name that is part of a longer one ("New
    York Times", "Paris Hilton") stays; a city becomes the same city wherever it stands.
    """
    found = _places(sentence, 1)
    if not found:
        return None
    names = sorted({name for _, _, name in found})
    new = dict(zip(names, draws.sample(word_list("small_cities.txt"), len(names))))
    return rewrite(sentence, [(sentence.starts[i], sentence.ends[j], new[name]) for i, j, name in found])


@english(
    "preserving",
    needs="tags",
    sample="He was born in Portugal. -> He was born in Portugal, whose capital is Lisbon.",
)
def geo_names(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Put a fact from GeoNames beside a country, city or continent: GeoNamesTransformation (NL-Augmenter
    after Păiş 2019).

    One random fact (capital, continent, inhabitants, neighbours, currency, ISO code) for one random place:
    between commas before a verb, a preposition or the end, otherwise in brackets. None for a name that is
    part of a longer one or stands in front of a noun ("the France team"), or if the sentence says it already.
    """
    places = (place for number in range(3) for place in _places(sentence, number))
    found = [place for place in places if _takes_apposition(sentence, *place[:2])]
    if not found:
        return None
    _, j, name = draws.choice(sorted(found))
    makers = zip(_tables(), (_of_country, _of_city, _of_continent))
    facts = [fact for (table, _), make in makers if name in table for fact in make(name)]
    facts = [fact for fact in facts if fact[1] not in sentence.text]
    if not facts:
        return None
    fact = draws.choice(facts)[0]
    end = sentence.ends[j]
    return rewrite(sentence, [(end, end, _set_off(sentence, j, fact))])


def _places(sentence: ParsedSentence, number: int) -> list[tuple[int, int, str]]:
    """Return (first word, last word, name) of every place of a table that is not part of a longer name."""
    words, (table, lengths) = sentence.words, _tables()[number]

    def place(i: int, j: int) -> tuple[int, int, str] | None:
        name = sentence.span(i, j)
        return (i, j, name) if name in table and _is_whole_name(sentence, i, j, words) else None

    return list(names_in(words, lengths, place))


@functools.lru_cache(maxsize=1)
def _tables() -> tuple[tuple[dict[str, Any], dict[str, list[int]]], ...]:
    """Return the countries, cities and continents, each with the `lengths_by_word` of its names."""
    return tuple((table, lengths_by_word(table)) for table in (_countries(), _cities(), _CONTINENTS))


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


def _takes_apposition(sentence: ParsedSentence, i: int, j: int) -> bool:
    """Return whether the name stands by itself, as a noun phrase."""
    following = j + 1
    if following == len(sentence):
        return True
    if sentence.tags[following] == "POS" or sentence.word(following)[:1] in ("'", "’", "(", "-"):
        return False
    if sentence.pos[following] in ("VERB", "AUX"):
        return sentence.tags[following] in ("VBD", "VBZ", "VBP", "MD")
    return sentence.pos[following] in ("PUNCT", "ADP", "CCONJ", "SCONJ")


def _set_off(sentence: ParsedSentence, j: int, fact: str) -> str:
    following = j + 1
    if following == len(sentence):
        return f", {fact}"
    word, pos = sentence.word(following), sentence.pos[following]
    if word in (".", "!", "?", ";", ":", ")", "]"):
        return f", {fact}"
    if pos in ("VERB", "AUX", "ADP", "SCONJ"):
        return f", {fact},"
    return f" ({fact})"


def _of_country(name: str) -> list[tuple[str, str]]:
    """Return (fact, the word of it that the sentence must not have yet)."""
    code, _, capital, continent, inhabitants, currency, neighbours = _countries()[name]
    facts = [
        (f"whose capital is {capital}", capital),
        (f"a country in {continent}", continent),
        (f"a country of {int(inhabitants):,} inhabitants", "inhabitants"),
        (f"whose ISO code is {code}", "ISO"),
        (f"where the currency is the {currency.lower()}", currency.lower()),
    ]
    if neighbours != "-":
        first = neighbours.split(",")
        facts += [(f"which borders {_with_article(neighbour)}", neighbour) for neighbour in first[:4]]
    return facts


def _of_city(name: str) -> list[tuple[str, str]]:
    country, inhabitants = _cities()[name]
    size = f"a city of {int(inhabitants):,} inhabitants"
    return [(f"a city in {_with_article(country)}", country), (size, "inhabitants")]


def _of_continent(name: str) -> list[tuple[str, str]]:
    countries = [country for country, row in _countries().items() if row[3] == name]
    return [(f"a continent with {len(countries)} countries", "continent")]


def _with_article(country: str) -> str:
    return f"the {country}" if country in _countries() and _countries()[country][1] == "the" else country


@functools.lru_cache(maxsize=1)
def _countries() -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in word_table("countries.tsv")}


@functools.lru_cache(maxsize=1)
def _cities() -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in word_table("cities.tsv")}
