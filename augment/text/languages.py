"""Tell the script and the language of a text by its letters and its commonest words, without a model.

Letters decide where a script has one language (Greek, Japanese). In the others (Latin, Cyrillic, Arabic) the
words do that a language uses most, as "the" and "of": they are a third of running text. What is short, or
between two languages, is not told.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Set

from augment.text.word_forms import word_table

_TABLE = [(code, scripts.split(), words) for code, scripts, *words in word_table("languages.tsv")]
SCRIPTS = {code: scripts for code, scripts, _ in _TABLE}
"""Language -> the scripts that it is written in, its main one first."""
_WORDS = {code: frozenset(" ".join(words).split()) for code, _, words in _TABLE}
_WORD = re.compile(r"[^\W\d_]+(?:\u200c[^\W\d_]+)*")  # with Persian's joints
_CHARACTERS = 1000  # that are read
_FEWEST_LETTERS, _FEWEST_WORDS, _LEAST_SHARE = 8, 3, 0.15  # letters, different words, share of all words
_FEWEST_CHINESE = 4 * 10  # letters of text that is told to be Chinese, each counted as 4
_RIVAL = 2  # times the words of another language alone, and one more: so many of the language alone


def letters_by_script(text: str) -> Counter[str]:
    """Count the letters of a text by script; a Chinese letter counts as a Latin word of 4."""
    found: Counter[str] = Counter()
    for letter, count in Counter(text).items():
        if letter.isalpha():
            script = script_of(letter)
            found[script] += count * (1 if script in ("LATIN", "CYRILLIC", "GREEK") else 4)
    return found


@functools.lru_cache(maxsize=1 << 14)
def script_of(letter: str) -> str:
    """Return the first word of a letter's Unicode name: "LATIN", "CJK", "KATAKANA"."""
    return re.split("[ -]", unicodedata.name(letter, "?"))[0]


def language_of(text: str) -> str:
    """Return the language of a text, as "de", or its script if no language of it is known; "": not told."""
    start = text[:_CHARACTERS]
    letters = letters_by_script(start)
    if (kana := letters["HIRAGANA"] + letters["KATAKANA"]) > letters["CJK"] / 10:
        letters["HIRAGANA"] = kana + letters.pop("CJK", 0)
    script, most = max(letters.items(), key=lambda item: item[1], default=("", 0))
    if most < max(_FEWEST_LETTERS, letters.total() / 2):
        return ""
    if not (languages := [code for code, scripts in SCRIPTS.items() if scripts[0] == script]):
        return script.lower()
    if script == "CJK" and most < _FEWEST_CHINESE:
        return ""  # a heading in Japanese or Korean may have such letters alone
    if len(languages) == 1:
        return languages[0]
    words = Counter(_WORD.findall(start.lower()))
    hits = {code: _WORDS[code] & words.keys() for code in languages}
    sizes = {code: sum(words[word] for word in found) for code, found in hits.items()}
    best = max(languages, key=sizes.__getitem__)
    if len(hits[best]) < _FEWEST_WORDS or sizes[best] < _LEAST_SHARE * words.total():
        return ""

    def only(one: Set[str], other: Set[str]) -> int:
        return sum(words[word] for word in one - other)

    own, rivals = hits[best], {frozenset(hits[code]) for code in languages if code != best}
    return best if all(only(own, other) > 1 + _RIVAL * only(other, own) for other in rivals) else ""
