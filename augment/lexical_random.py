"""AugCSE's four random rearrangements of words: deletion, cropping, swapping, and one of the three.

A word is what stands between white space, less the punctuation around it: "don't", "well-known" and "U.S." are one each.
Rates and rounding are nlpaug's, which AugCSE used: ceil(rate * n) of n words, at least one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from math import ceil

from augment.entry import Entry, Parameter
from augment.lexical_forms import AUGCSE, balanced, keeps_capital, repeats_more, upper_first
from augment.parsed import ParsedSentence
from augment.text import Draws

# The full stop belongs to "U.S.", and to "Mr." and "J." inside a text.
_WORD = re.compile(r"\w(?:\S*\w)?(?:(?<=\.\w)\.|(?<=\b[A-Z])\.(?=\s)|(?<=\b[A-Z][a-z])\.(?=\s))?")
_ENCLOSING = re.compile(r"[\"“”()\[\]]")  # inside a word, as in PG("d","K"): stays where it is
_MOST_DELETED = 30  # nlpaug's aug_max as AugCSE set it
_STRAY = re.compile(r"([,;:])(?:\s*[,;:])+")  # marks that a deleted word had kept apart: the first stays
_EMPTY = re.compile(r"\s*(?:\(\W*\)|\[\W*\]|“\W*”|(?<!\w)\"[^\w\"]*\"(?!\w))")
_DANGLING = re.compile(r"[,;:][\s,;:]*(?=[.!?]|$)|([(\[“]|\s\")\s*[,;:][\s,;:]*|([(\[“])\s+")
_LEADING = re.compile(r"^([\"“(\[]*)[\s,;:)\]]+(?=[\w\"“(\[])")


def random_deletion(sentence: ParsedSentence, draws: Draws, rate: float = 0.6) -> str | None:
    """RandomDeletion (Wei and Zou 2019; AugCSE through nlpaug, rate 0.6): ceil(rate * n) of n words go, at most 30; one stays.

    Here: punctuation and the text between stay as they are, without the marks that would stand side by side or alone and
    the brackets and quotes that would be empty; a word that would follow itself goes too. None for fewer than two words.
    Possibly altering. Needs nothing.
        "The old man sat by the sea." -> "Old sea."
    """
    spans = _spans(sentence)
    if len(spans) < 2 or rate == 0:
        return None
    count = min(_MOST_DELETED, len(spans) - 1, max(1, ceil(rate * len(spans))))
    return _delete(sentence, spans, set(draws.sample(range(len(spans)), count)))


def random_crop(sentence: ParsedSentence, draws: Draws, rate: float = 0.6) -> str | None:
    """RandomCrop (AugCSE through nlpaug, rate 0.6): a contiguous run of ceil(rate * n) words is deleted; one word stays.

    The place is drawn evenly. The original left a text of one word, and raised an error inside, unchanged: None here.
    Possibly altering. Needs nothing.
        "The old man sat by the sea." -> "The sea."
    """
    spans = _spans(sentence)
    if len(spans) < 2 or rate == 0:
        return None
    count = min(len(spans) - 1, max(1, ceil(rate * len(spans))))
    first = draws.below(len(spans) - count + 1)
    return _delete(sentence, spans, set(range(first, first + count)))


def random_swap(sentence: ParsedSentence, draws: Draws, rate: float = 0.1) -> str | None:
    """RandomSwap (Wei and Zou 2019; AugCSE through nlpaug, rate 0.1): ceil(rate * n) words change places with a neighbour,
    left or right at random.

    Here: no word moves twice, and no two equal words change places or come to stand side by side. The capital of the
    sentence's first word stays at its start. None where no two words can. Possibly altering. Needs tags (for names).
        "The old man sat by the sea." -> "The man old sat by the sea."
    """
    text = sentence.text
    spans = _spans(sentence)
    if _ENCLOSING.search(text):
        spans = [(start, end) for start, end in spans if not _ENCLOSING.search(text, start, end)]
    words = [text[start:end] for start, end in spans]
    lower = [word.lower() for word in words]
    wanted = ceil(rate * len(spans))
    moved: set[int] = set()
    edits = []
    for i in draws.sample(range(len(spans)), len(spans)):
        if len(edits) >= 2 * wanted:
            break
        j = i + 1 if draws.chance(0.5) else i - 1
        if not 0 <= j < len(spans):
            j = 2 * i - j
        if not 0 <= j < len(spans) or i in moved or j in moved or lower[i] == lower[j]:
            continue
        i, j = min(i, j), max(i, j)
        if (i and lower[i - 1] == lower[j]) or (j + 1 < len(spans) and lower[j + 1] == lower[i]):
            continue
        lower[i], lower[j] = lower[j], lower[i]
        moved |= {i, j}
        ahead, behind = words[j], words[i]
        if i == 0 and behind[:1].isupper():
            ahead, behind = upper_first(ahead) if ahead.islower() else ahead, _inner(sentence, spans[0])
        edits += [(*spans[i], ahead), (*spans[j], behind)]
    if not edits:
        return None
    result = sentence.edit(edits)
    return None if result == text or repeats_more(result, text) else result


def random_word(sentence: ParsedSentence, draws: Draws, rate: float = 0.15) -> str | None:
    """RandomWordAugmentation (AugCSE through nlpaug, rate 0.15): one of deletion, cropping and swapping, drawn evenly.

    Possibly altering. Needs tags (for names).
        "The old man sat by the sea." -> "Old man sat by sea."
    """
    return draws.choice((random_deletion, random_crop, random_swap))(sentence, draws, rate)


def _spans(sentence: ParsedSentence) -> list[tuple[int, int]]:
    return [match.span() for match in _WORD.finditer(sentence.text)]


def _delete(sentence: ParsedSentence, spans: list[tuple[int, int]], deleted: set[int]) -> str | None:
    text = sentence.text
    last = None  # the last word kept
    for i, (start, end) in enumerate(spans):
        if i in deleted:
            continue
        if last is not None and i - 1 in deleted and text[start:end].lower() == text[slice(*spans[last])].lower():
            deleted.add(i)
        else:
            last = i
    parts, position = [], 0
    for i in sorted(deleted):
        start, end = spans[i]
        while start > position and text[start - 1].isspace():
            start -= 1
        if start == spans[i][0]:  # behind an opening quote or bracket: the space behind goes
            while end < len(text) and text[end].isspace():
                end += 1
        parts.append(text[position:start])
        position = end
    result = "".join((*parts, text[position:]))
    if ('"' in text or "(" in text or "“" in text or "[" in text) and not _EMPTY.search(text):
        while (emptied := _EMPTY.sub("", result)) != result:
            result = emptied
    if _STRAY.search(result) and not _STRAY.search(text):
        result = _STRAY.sub(r"\1", result)
    if _DANGLING.search(result) and not _DANGLING.search(text):
        result = _DANGLING.sub(lambda match: match[1] or match[2] or "", result)
    result = _LEADING.sub(r"\1", result.lstrip())
    if text[spans[0][0]].isupper():
        result = upper_first(result)
    if balanced(text) and not balanced(result):
        return None
    return None if result == text or repeats_more(result, text) else result


def _inner(sentence: ParsedSentence, span: tuple[int, int]) -> str:
    """The first word as it is written further on."""
    word = sentence.text[slice(*span)]
    i = bisect_left(sentence.starts, span[0])
    if i < len(sentence) and sentence.starts[i] == span[0] and sentence.tags[i] and not keeps_capital(sentence, i):
        return word[:1].lower() + word[1:]
    return word


def _rate(default: float) -> Parameter:
    return Parameter("rate", default, "share of the words, rounded up", 0, 1)


ENTRIES = (
    Entry(
        name="random-deletion",
        kind="text",
        paper=AUGCSE,
        parameters=(_rate(0.6),),
        description="Random words go, punctuation stays. One word always stays.",
        example="random-deletion:rate=0.6",
        function=random_deletion,
        meaning="possibly altering",
        sample=("The old man sat by the sea.", "Old sea."),
    ),
    Entry(
        name="random-crop",
        kind="text",
        paper=AUGCSE,
        parameters=(_rate(0.6),),
        description="A contiguous run of words goes.",
        example="random-crop:rate=0.6",
        function=random_crop,
        meaning="possibly altering",
        sample=("The old man sat by the sea.", "The sea."),
    ),
    Entry(
        name="random-swap",
        kind="text",
        paper=AUGCSE,
        parameters=(_rate(0.1),),
        description="Random words change places with a neighbour; the capital stays at the start.",
        example="random-swap:rate=0.1",
        function=random_swap,
        meaning="possibly altering",
        needs=("tags",),
        sample=("The old man sat by the sea.", "The man old sat by the sea."),
    ),
    Entry(
        name="random-word",
        kind="text",
        paper=AUGCSE,
        parameters=(_rate(0.15),),
        description="One of random-deletion, random-crop and random-swap, drawn evenly.",
        example="random-word:rate=0.15",
        function=random_word,
        meaning="possibly altering",
        needs=("tags",),
        sample=("The old man sat by the sea.", "Old man sat by sea."),
    ),
)
