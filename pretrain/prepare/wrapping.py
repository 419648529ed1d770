"""Find hard-wrapped text, as in e-mails, licences and Gutenberg's books, and join its lines into paragraphs.

A line of such text ends where the next word would have passed the right margin. So the margin is looked for:
most lines inside paragraphs end within a word of it, or near it if a writer broke them, and few as sentences
do. Lines of poems, lists, tables and code end earlier, and sentences written one a line end in a mark.
Chinese and Japanese are wrapped between any two characters, each as wide as two letters.
"""

import re
from collections.abc import Container
from itertools import pairwise

from augment.text.cleaning import clean

_NARROWEST, _LONGEST = 40, 120  # columns; characters of a line
_FEWEST = 6  # lines that are followed by another of their paragraph
_ENDS = re.compile(r"[.!?…:;。！？][\"'”’»)\]」』）]*$")
# commas, too, are in verses and lists: in Chinese and Japanese only sentences that end inside lines are prose
_INNER_MARKS = re.compile(r"[,.;:!?][\"'”’)]? |[。！？．](?!$)")
# between these characters a line break is no blank: kana, ideographs, their marks, full-width letters
_UNSPACED = "\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff"
_BREAK = re.compile(rf"(?<=[{_UNSPACED}])[ \t]*\n\s*(?=[{_UNSPACED}])")
_WIDE = re.compile(rf"[{_UNSPACED}\uac00-\ud7a3]")
# what can be put at the end of a line: a word, or a character and the marks that begin no line
_FIRST = re.compile(rf"\s*([{_UNSPACED}][、。，．！？」』）ー]*|[^\s{_UNSPACED}]+)")
_BLANK_LINES = re.compile(r"\n(?:[ \t\r\f]*\n)+")
_FENCED = re.compile(r"^[ \t]*(```|~~~).*?^[ \t]*\1", re.M | re.S)
# a line that begins a list item, a heading, a quotation or a field; one of code or of a table
_ITEM = re.compile(
    r"\s*(?:[-*+•·o–—#=~_]+\s|[>|{}$%@\\\u3000・●■◆○※]|\d{1,3}[．、]|\w[\w-]*: "
    r"|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.)]\s)"
)
_CODE = re.compile(r"[{}(;=|:>\\]$")
_TABLE = re.compile(r"\S {3}")
_HYPHENATED = re.compile(r"([^\W\d_]+)-$")
_FIRST_WORD = re.compile(r"[^\W\d_]+")
# behind "pre-", as in "pre- and"
_JOINT_WORDS = frozenset(("and", "or", "to", "und", "oder", "bis", "et", "ou", "y", "o", "e", "en"))


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text in lower case, by which `unwrap` knows a word that was cut in two."""
    return frozenset(_FIRST_WORD.findall(text.lower()))


def one_line(paragraph: str) -> str:
    """Return a paragraph clean and as one line: a line break is a blank, but not in Chinese or Japanese."""
    return clean(paragraph if paragraph.isascii() else _BREAK.sub("", paragraph))


def _columns(text: str) -> int:
    return len(text) if text.isascii() else len(text) + len(_WIDE.findall(text))


def _room(line: str, following: str, width: int) -> int:
    """Return how many columns are left of a line with what begins the next one put behind it."""
    first = _FIRST.match(following)
    return width - _columns(line) - 1 - (_columns(first[1]) if first else 0)


def margin(text: str) -> int:
    """Return the column at which the lines of a text are wrapped, 0 if they are not.

    text: whole lines; paragraphs are separated by blank lines.
    """
    if text.count("\n") < _FEWEST:
        return 0
    text = _FENCED.sub("", text.expandtabs())
    blocks = [[line.rstrip() for line in block.split("\n")] for block in _BLANK_LINES.split(text)]
    pairs = [(a, b) for block in blocks for a, b in pairwise(block) if a and b and not _is_apart(a, b)]
    if len(pairs) < _FEWEST:
        return 0
    lengths = sorted((_columns(line), len(line)) for line, _ in pairs)
    width, length = lengths[len(lengths) * 97 // 100]  # a few lines stand out: addresses, tables
    if width < _NARROWEST or length > _LONGEST:
        return 0
    full = near = ended = capitals = words = nouns = letters = characters = marks = 0
    for line, following in pairs:
        first = following.split(None, 1)[0]
        room = _room(line, following, width)
        full += room < 3
        near += room < width // 6
        ended += bool(_ENDS.search(line))
        capitals += first[0].isupper() and not first.isupper()
        nouns += sum(word[0].isupper() and not word.isupper() for word in line.split()[1:])
        words += line.strip().count(" ") + 1 + (_columns(line) - len(line)) // 2
        letters += sum(map(str.isalpha, line))
        marks += len(_INNER_MARKS.findall(line))
        characters += len(line) - line.count(" ")
    count = len(pairs)
    is_prose = letters >= 0.7 * characters and words >= 5 * count and marks >= 0.25 * count
    # In German, words begin with capitals inside lines, too, and long ones, mostly nouns, begin more lines.
    surplus = capitals - min(0.2 * count, 2 * count * max(0, nouns / max(1, words - count) - 0.2))
    at_margin = full >= 0.6 * count and ended <= 0.3 * count and surplus <= 0.4 * count
    in_paragraphs = sum(len(block) > 1 for block in blocks) >= max(3, count // 40)  # else a list
    by_hand = near >= 0.65 * count and ended <= 0.2 * count and surplus <= 0.3 * count and in_paragraphs
    return width if is_prose and (at_margin or by_hand) else 0


def _is_apart(previous: str, line: str) -> bool:
    """Return whether a line does not continue the one before it, wherever their margin is."""
    return bool(_ITEM.match(line) or _CODE.search(previous) or _TABLE.search(previous) or _TABLE.search(line))


def unwrap(text: str, width: int, words: Container[str] = frozenset()) -> str:
    """Return a text with the lines of each paragraph joined, if they are wrapped at `width`; 0: all lines.

    A line stays apart if it is short and a capital follows, and before list items and the like. The hyphen
    of a line's end is removed only if the whole word is among `words` (in lower case); otherwise it stays,
    without a blank behind it.
    """
    if "\n" not in text:
        return text
    joined: list[str] = []
    previous, fence = "", ""
    for line in text.expandtabs().split("\n"):
        line = line.rstrip()
        mark = line.lstrip()[:3]
        if mark in ("```", "~~~") and fence in ("", mark):
            fence = "" if fence else mark
            previous = ""
        if previous and line and not fence and _continues(previous, line, width):
            joined[-1] = _join(joined[-1], line.lstrip(), words)
        else:
            joined.append(line)
        previous = line if mark not in ("```", "~~~") else ""
    return "\n".join(joined)


def _continues(previous: str, line: str, width: int) -> bool:
    """Return whether a line continues the one before it."""
    if not width:
        return True
    if _is_apart(previous, line):
        return False
    room = _room(previous, line, width)
    if line.lstrip()[0].islower():
        return room < width // 2
    return room < (4 if _ENDS.search(previous) else width // 6)


def _join(previous: str, line: str, words: Container[str]) -> str:
    match = _HYPHENATED.search(previous, max(0, len(previous) - 60))  # no further: cubic without blanks
    rest = _FIRST_WORD.match(line)
    if match is None or rest is None or rest[0] in _JOINT_WORDS:
        return previous + ("" if _BREAK.match(f"{previous[-1:]}\n{line[:1]}", 1) else " ") + line
    is_cut = rest[0].islower() and (match[1] + rest[0]).lower() in words
    return (previous[:-1] if is_cut else previous) + line
