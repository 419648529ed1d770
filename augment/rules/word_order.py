"""Delete, crop or swap words at random, or do one of the three: rules of AugCSE.

A word is what stands between white space, less the punctuation around it: "don't", "well-known" and "U.S."
are one each. Rates and rounding are nlpaug's, which AugCSE used: ceil(rate * n) of n words, at least one.
"""

import re
from collections.abc import Callable, Iterable
from math import ceil

from augment.core.compiled import native
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import balanced, keeps_capital, repeats_more, upper_first, word_at

word_spans: Callable[[str], list[tuple[int, int]]] = native.word_spans
"""Return (start, end) of the words of a text, in characters.

The full stop belongs to "U.S.", and to "Mr." and "J." inside a text."""
cut: Callable[[str, list[tuple[int, int]]], str] = native.cut
"""Return the text without rising spans and the space before each, or, if there is none, behind it."""
_ENCLOSING = re.compile(r"[\"“”()\[\]]")  # inside a word, as in PG("d","K"): stays where it is
_MOST_DELETED = 30  # nlpaug's aug_max as AugCSE set it
_STRAY = re.compile(r"([,;:])(?:\s*[,;:])+")  # marks that a deleted word had kept apart: the first stays
# each begins with a letter: found sooner
_EMPTY = re.compile(r"\(\W*\)|\[\W*\]|“\W*”|\"(?<!\w\")[^\w\"]*\"(?!\w)")
_WITH_SPACE = re.compile(rf"\s*(?:{_EMPTY.pattern})")
_DANGLING_MARK = re.compile(r"[,;:][\s,;:]*(?=[.!?]|$)")
_DANGLING = re.compile(_DANGLING_MARK.pattern + r"|([(\[“]|\s\")\s*[,;:][\s,;:]*|([(\[“])\s+")
_TORN = re.compile(r"(?<=[,;])[+*)%]+(?!\w)")  # what is left of "year+" or ":)" behind a comma
_DASH = re.compile(r"(?:^|\s)[-–—]+(?=[,;:.!?])")
_LEADING = re.compile(r"^([\"“(\[]*)[\s,;:)\]]+(?=[\w\"“(\[])")


def random_deletion(sentence: ParsedSentence, draws: Draws, rate: float = 0.6) -> str | None:
    """Delete ceil(rate * n) of n words, at most 30; one stays.

    Punctuation stays, but for marks that would stand side by side or alone and for empty brackets and quotes;
    a word that would follow itself goes too. None for fewer than two words.
    """
    return _deleted(sentence.text, rate, _MOST_DELETED, lambda many, count: draws.sample(range(many), count))


def random_crop(sentence: ParsedSentence, draws: Draws, rate: float = 0.6) -> str | None:
    """Delete a contiguous run of ceil(rate * n) words; one stays.

    The place is drawn evenly. None for fewer than two words.
    """

    def run(many: int, count: int) -> range:
        first = draws.below(many - count + 1)
        return range(first, first + count)

    return _deleted(sentence.text, rate, len(sentence.text), run)


def random_swap(sentence: ParsedSentence, draws: Draws, rate: float = 0.1) -> str | None:
    """Swap ceil(rate * n) words with a neighbour, left or right at random.

    No word moves twice, and no two equal words change places or come to stand side by side. The capital of
    the sentence's first word stays at its start. None if no two words can be swapped.
    """
    text = sentence.text
    spans = word_spans(text)
    if _ENCLOSING.search(text):
        spans = [span for span in spans if not _ENCLOSING.search(text, *span)]
    words = [text[start:end] for start, end in spans]
    lower = [word.lower() for word in words]
    wanted = ceil(rate * len(words))
    moved: dict[int, str] = {}
    for i in draws.sample(range(len(words)), len(words)):
        if len(moved) >= 2 * wanted:
            break
        j = i + 1 if draws.chance(0.5) else i - 1
        if not 0 <= j < len(words):
            j = 2 * i - j
        if not 0 <= j < len(words) or i in moved or j in moved or lower[i] == lower[j]:
            continue
        i, j = min(i, j), max(i, j)
        if (i and lower[i - 1] == lower[j]) or (j + 1 < len(words) and lower[j + 1] == lower[i]):
            continue
        lower[i], lower[j] = lower[j], lower[i]
        ahead, behind = words[j], words[i]
        if i == 0 and behind[:1].isupper():
            ahead = upper_first(ahead) if ahead.islower() else ahead
            first = word_at(sentence, spans[0][0])
            known = first is not None and sentence.tags[first] and not keeps_capital(sentence, first)
            behind = behind[:1].lower() + behind[1:] if known else behind
        moved[i], moved[j] = ahead, behind
    if not moved:
        return None
    result = sentence.edit([(*spans[number], word) for number, word in moved.items()])
    return None if result == text or repeats_more(result, text) else result


def random_word(sentence: ParsedSentence, draws: Draws, rate: float = 0.15) -> str | None:
    """Delete, crop or swap words, one of the three drawn evenly."""
    return draws.choice((random_deletion, random_crop, random_swap))(sentence, draws, rate)


def _deleted(text: str, rate: float, limit: int, choose: Callable[[int, int], Iterable[int]]) -> str | None:
    """Return the text without words, by number, that are chosen, and those that would follow themselves."""
    spans = word_spans(text)
    many = len(spans)
    if many < 2 or rate == 0:
        return None
    numbers = set(choose(many, min(limit, many - 1, max(1, ceil(rate * many)))))
    last = -1  # the last word kept
    for number, (start, end) in enumerate(spans):
        if number in numbers:
            continue
        if 0 <= last < number - 1 and text[slice(*spans[last])].lower() == text[start:end].lower():
            numbers.add(number)
        else:
            last = number
    result = cut(text, [spans[number] for number in sorted(numbers)])
    return _tidied(result, text, text[slice(*spans[0])])


def _tidied(result: str, text: str, first: str) -> str | None:
    """Return a text without what deleted words left alone, or None; first: the first word of `text`."""
    enclosing = '"' in text or "(" in text or "“" in text or "[" in text
    if enclosing and not _EMPTY.search(text):
        while _EMPTY.search(result):
            result = _WITH_SPACE.sub("", result)
    if _STRAY.search(result) and not _STRAY.search(text):
        result = _STRAY.sub(r"\1", result)
    for mark in (_TORN, _DASH):
        if mark.search(result) and not mark.search(text):
            result = mark.sub("", result)
    dangling = _DANGLING if enclosing else _DANGLING_MARK
    if dangling.search(result) and not dangling.search(text):
        result = dangling.sub(lambda match: "".join(filter(None, match.groups())), result)
    if not result[:1].isalnum():
        result = _LEADING.sub(r"\1", result.lstrip())
    if first[0].isupper():
        result = upper_first(result)
    if enclosing and balanced(text) and not balanced(result):
        return None
    return None if result == text or repeats_more(result, text) else result
