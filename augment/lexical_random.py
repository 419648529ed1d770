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
_RUN = re.compile(r"\S+")
_ENCLOSING = re.compile(r"[\"“”()\[\]]")  # inside a word, as in PG("d","K"): stays where it is
_MOST_RUNS = 1 << 16  # whose parts are kept
_MOST_DELETED = 30  # nlpaug's aug_max as AugCSE set it
_STRAY = re.compile(r"([,;:])(?:\s*[,;:])+")  # marks that a deleted word had kept apart: the first stays
_EMPTY = re.compile(r"\(\W*\)|\[\W*\]|“\W*”|\"(?<!\w\")[^\w\"]*\"(?!\w)")  # each begins with a letter: found sooner
_WITH_SPACE = re.compile(rf"\s*(?:{_EMPTY.pattern})")
_DANGLING_MARK = re.compile(r"[,;:][\s,;:]*(?=[.!?]|$)")
_DANGLING = re.compile(_DANGLING_MARK.pattern + r"|([(\[“]|\s\")\s*[,;:][\s,;:]*|([(\[“])\s+")
_LEADING = re.compile(r"^([\"“(\[]*)[\s,;:)\]]+(?=[\w\"“(\[])")


def random_deletion(sentence: ParsedSentence, draws: Draws, rate: float = 0.6) -> str | None:
    """RandomDeletion (Wei and Zou 2019; AugCSE through nlpaug, rate 0.6): ceil(rate * n) of n words go, at most 30; one stays.

    Here: punctuation and the text between stay as they are, without the marks that would stand side by side or alone and
    the brackets and quotes that would be empty; a word that would follow itself goes too. None for fewer than two words.
    Possibly altering. Needs nothing.
        "The old man sat by the sea." -> "Old sea."
    """
    runs = _Runs(sentence.text)
    many = len(runs.places)
    if many < 2 or rate == 0:
        return None
    count = min(_MOST_DELETED, many - 1, max(1, ceil(rate * many)))
    return _without(runs, set(draws.sample(range(many), count)))


def random_crop(sentence: ParsedSentence, draws: Draws, rate: float = 0.6) -> str | None:
    """RandomCrop (AugCSE through nlpaug, rate 0.6): a contiguous run of ceil(rate * n) words is deleted; one word stays.

    The place is drawn evenly. The original left a text of one word, and raised an error inside, unchanged: None here.
    Possibly altering. Needs nothing.
        "The old man sat by the sea." -> "The sea."
    """
    runs = _Runs(sentence.text)
    many = len(runs.places)
    if many < 2 or rate == 0:
        return None
    count = min(many - 1, max(1, ceil(rate * many)))
    first = draws.below(many - count + 1)
    return _without(runs, set(range(first, first + count)))


def random_swap(sentence: ParsedSentence, draws: Draws, rate: float = 0.1) -> str | None:
    """RandomSwap (Wei and Zou 2019; AugCSE through nlpaug, rate 0.1): ceil(rate * n) words change places with a neighbour,
    left or right at random.

    Here: no word moves twice, and no two equal words change places or come to stand side by side. The capital of the
    sentence's first word stays at its start. None where no two words can. Possibly altering. Needs tags (for names).
        "The old man sat by the sea." -> "The man old sat by the sea."
    """
    text = sentence.text
    runs = _Runs(text)
    places = runs.places  # of words that can move
    if _ENCLOSING.search(text):
        places = [place for place in places if not _ENCLOSING.search(runs.parts[place][1])]
    words = [runs.parts[place][1] for place in places]
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
            ahead, behind = upper_first(ahead) if ahead.islower() else ahead, _inner(sentence, runs.start(places[0]), behind)
        moved[i], moved[j] = ahead, behind
    if not moved:
        return None
    for number, word in moved.items():
        before, _, behind = runs.parts[places[number]]
        runs.texts[places[number]] = before + word + behind
    result = str(runs)
    return None if result == text or repeats_more(result, text) else result


def random_word(sentence: ParsedSentence, draws: Draws, rate: float = 0.15) -> str | None:
    """RandomWordAugmentation (AugCSE through nlpaug, rate 0.15): one of deletion, cropping and swapping, drawn evenly.

    Possibly altering. Needs tags (for names).
        "The old man sat by the sea." -> "Old man sat by sea."
    """
    return draws.choice((random_deletion, random_crop, random_swap))(sentence, draws, rate)


class _Runs:
    """What stands between white space in a text, to be changed.

    texts: the runs. gaps: white space before each, and behind the last. parts: of each run what stands before its word, the
    word, and what stands behind; None where it has no word. places: of the runs with a word.
    """

    __slots__ = ("gaps", "parts", "places", "text", "texts")

    def __init__(self, text: str):
        self.text = text
        self.texts = runs = text.split()
        self.gaps = ["", *[" "] * (len(runs) - 1), ""] if runs and " ".join(runs) == text else _RUN.split(text)
        self.parts = list(map(_PARTS.__getitem__, runs))
        if self.gaps[-1] == "" and runs:
            self.parts[-1] = _parted(runs[-1])
        self.places = [place for place, parts in enumerate(self.parts) if parts]

    def start(self, place: int) -> int:
        """Where the word of a run begins in the text."""
        return sum(map(len, self.texts[:place])) + sum(map(len, self.gaps[: place + 1])) + len(self.parts[place][0])

    def __str__(self) -> str:
        parts = [""] * (2 * len(self.texts) + 1)
        parts[::2], parts[1::2] = self.gaps, self.texts
        return "".join(parts)


def _parted(run: str) -> tuple[str, str, str] | None:
    """What stands before the word of a run (white space may follow), the word, and what stands behind; None: it has no word."""
    word = _WORD.search(run)
    return None if word is None else (run[: word.start()], word[0], run[word.end() :].rstrip())


class _Parts(dict[str, tuple[str, str, str] | None]):
    """`_parted` of runs before a space, kept: texts are looked up run by run, and `lru_cache` would take twice as long."""

    def __missing__(self, run: str) -> tuple[str, str, str] | None:
        if len(self) >= _MOST_RUNS:
            self.clear()
        # Most are letters alone, in which the expression would find the same.
        parts = self[run] = ("", run, "") if run.isalnum() else _parted(run + " ")
        return parts


_PARTS = _Parts()


def _without(runs: _Runs, numbers: set[int]) -> str | None:
    """The text without some of its words, by number, and those that would follow themselves."""
    places, parts, texts, gaps = runs.places, runs.parts, runs.texts, runs.gaps
    last = -1  # the last word kept
    for number in [number for number in range(len(places)) if number not in numbers]:
        if 0 <= last < number - 1 and parts[places[last]][1].lower() == parts[places[number]][1].lower():
            numbers.add(number)
        else:
            last = number
    for number in sorted(numbers):
        place = places[number]
        before, _, behind = parts[place]
        texts[place] = before + behind
        if not before and gaps[place]:
            gaps[place] = ""
        elif not behind:  # behind an opening quote or bracket, or where the space before has gone: the space behind goes
            gaps[place + 1] = ""
    return _tidied(str(runs), runs.text, parts[places[0]][1])


def _tidied(result: str, text: str, first: str) -> str | None:
    """A text from which words were deleted, without what cannot stand alone; None where it does not read.

    text: before. first: its first word.
    """
    enclosing = '"' in text or "(" in text or "“" in text or "[" in text
    if enclosing and not _EMPTY.search(text):
        while _EMPTY.search(result):
            result = _WITH_SPACE.sub("", result)
    if _STRAY.search(result) and not _STRAY.search(text):
        result = _STRAY.sub(r"\1", result)
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


def _inner(sentence: ParsedSentence, start: int, word: str) -> str:
    """The first word, which begins at a character, as it is written further on."""
    i = bisect_left(sentence.starts, start)
    if i < len(sentence) and sentence.starts[i] == start and sentence.tags[i] and not keeps_capital(sentence, i):
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
