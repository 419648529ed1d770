"""Split cleaned text into sentences by rules.

One regular expression finds the places where a sentence can end. Each place is decided by the word before it
and by what follows. Tokenised text (`the end . " I know , " he said .`) and lower-cased text are split too:
there, a mark stands alone between blanks, and no capital letter tells that a sentence begins.

`docs/data.md` has the comparison with spaCy's rule-based `sentencizer` on gold sentences, and both speeds.
"""

import re

from augment.text.cleaning import clean
from augment.text.word_forms import named_words

# Titles and references: a name or a number follows, never a new sentence.
_NEVER_ENDS = named_words("sentences.never_ends")
# Abbreviations that also close sentences: only a word that commonly opens one decides for an end.
_MAY_END = named_words("sentences.may_end")
_OPENERS = named_words("sentences.openers")
# Of those, the words that hardly ever continue a sentence after an abbreviation: without capitals they
# alone decide.
_SUBJECTS = named_words("sentences.subjects")
_NUMBERED = named_words("sentences.numbered")
# German writes ordinals as "26." and nouns with a capital: before these, such a number ends no sentence.
_AFTER_ORDINALS = named_words("sentences.after_ordinals")
_SPEECH = named_words("sentences.speech")

_ABBREVIATIONS = _NEVER_ENDS | _MAY_END
# Western marks end before white space alone; Chinese full stops need none
_OTHER_MARKS = "।॥۔؟።։။།។"  # of Hindi, Urdu, Arabic, Amharic, Armenian, Burmese, Tibetan, Khmer
_MARKS, _FULL_STOPS = f".!?…{_OTHER_MARKS}", "。！？｡．"
_CLOSERS = "\"'”’»)\\]}"
# a sentence goes on after a quotation and inside of one that it opened, and a number after its point
_GOES_ON = re.compile(
    r"(?<=[」』）｣])(?!ところ|とて|とにか|とりあ|もう|もちろ|もっと|はい、|でも、|がっ|にっ)"  # what begins one
    r"(?:[とはがをにでもの、]|って|など)|(?<=．)\d|(?<=[\da-zA-Zａ-ｚＡ-Ｚ]．)"
)
_OPENED, _CLOSES = re.compile("[「『（｢][^」』）｣]*$"), re.compile("[^「『（｢]{,99}[」』）｣]")
# „so“ and »so«: elsewhere these open, so only a blank behind them shows that they close
_GERMAN_CLOSERS = "“‘«"
_BOUNDARY = re.compile(
    rf"[{_MARKS}{_FULL_STOPS}]+"  # One class first: the search then runs ten times as fast.
    # tokenised: `. . . )`
    rf"(?:[{_CLOSERS}{_GERMAN_CLOSERS}]*(?: [.!?…]+(?= ))*(?: (?:''|[”’»)\]}}]|-R[RCS]B-)(?= |$))*(?: +|$)"
    rf"|(?<=[{_FULL_STOPS}])[{_CLOSERS}」』）｣]*"
    r"|(?<=[a-z].)(?=[A-Z][a-z]+(?:[ ,']|$)))"  # "the end.The next": a line break was lost
)
_MEASURED = re.compile(r"\d (?:см|стр|ul) ?$")  # units behind a number: elsewhere "см." means "see"
_LAST_WORD = re.compile(r"[^\s(\[{\"“‘'«/–—-]*$")
_OPENING = "\"'“‘«([{¿¡*-–—`"
_BEFORE_WORDS = _OPENING + "» "
_APART = "\"':;="  # what a closing quote or an emoticon that stands alone begins with
_EMOTICON = re.compile(r"[:;=]['^]?-?[)(DPp](?: +|$)")
_ADDRESS = re.compile(r"https?:|www\.")
_NEXT_WORDS = re.compile(r"([\w’']+)(?: ([\w’']+))?")
_PLAIN_END = re.compile(r"(?<![\w.])[\w’']{3,}\. +([A-Za-z])")


def split_sentences(line: str) -> list[str]:
    """Return the sentences of one cleaned paragraph, in order; only white space between them is left out.

    A sentence ends at . ! ? … 。！？ and their Hindi, Urdu and Arabic kin, closing quotes included. It does not
    end after titles, initials, inner abbreviations, list numbers and German dates ("26. März"). After "etc.",
    "U.S." and the like it ends only if a word that commonly opens a sentence follows. Before a lower-case
    letter it ends after a full stop after a common word, and if sentences are written in lower case.

    >>> split_sentences('It is " red . " He met Mr. Smith .')
    ['It is " red . "', 'He met Mr. Smith .']
    """
    sentences: list[str] = []
    start = 0
    paragraph = _Paragraph(line)
    for match in _BOUNDARY.finditer(line):
        mark, end = match.span()
        if mark < start:
            continue  # inside of what closes the sentence before
        following = line[end : end + 1]
        if following.isupper() and line[mark] == "." and line[mark + 1] == " ":
            # The common case, decided as `ends` would: a full stop after a plain word, before a capital
            # letter.
            behind = mark - 1 if line[mark - 1] == " " else mark
            word = line[line.rfind(" ", start, behind) + 1 : behind]
            if len(word) > 1 and word.isalpha() and word.lower() not in _ABBREVIATIONS:
                sentences.append(line[start:end].rstrip())
                start = end
                continue
        closed = paragraph.skip_closers(end, start) if following in _APART else end
        if closed >= len(line) or paragraph.ends(start, mark, end, closed):
            if sentence := line[start:closed].strip():
                sentences.append(sentence)
            start = closed
    if rest := line[start:].strip():
        sentences.append(rest)
    return sentences


class _Paragraph:
    """A cleaned line, and what is known of it as a whole: how it is written, and which of its quotes are open."""

    def __init__(self, line: str):
        self.line = line
        self._lowered: bool | None = None
        self._quotes = self._counted = 0

    def skip_closers(self, position: int, start: int) -> int:
        """Return the position after a closing quote or an emoticon that stands alone at `position`, and its blank."""
        line = self.line
        character = line[position : position + 1]
        if not character:
            return position
        if character in ":;=":
            match = _EMOTICON.match(line, position)
            return match.end() if match else position
        if line[position + 1 : position + 2] not in ("", " "):
            return position
        if character == '"':
            self._quotes += line.count('"', self._counted, position)
            self._counted = position
            closes = self._quotes % 2 == 1
        else:
            closes = f" {line[start:position]}".count(" ' ") % 2 == 1
        return min(position + 2, len(line)) if closes or position + 2 >= len(line) else position

    def ends(self, start: int, mark: int, behind: int, following: int) -> bool:
        """Return whether the mark at `mark` ends the sentence that began at `start`.

        behind: after the mark, its closers and blank. following: the same, after closers that stand alone
            too.
        """
        line = self.line
        character = line[mark]
        if character in _FULL_STOPS or line[behind - 1] in f"{_FULL_STOPS}」』）｣":
            opened = _OPENED.search(line, max(start + 1, behind - 200), behind)
            inside = opened and _CLOSES.match(line, behind)
            return not inside and not _GOES_ON.match(line, behind)
        if character in _OTHER_MARKS:
            return True
        if mark == start:
            return False  # a mark without a sentence before it
        alone = line[mark - 1] == " "
        match = _LAST_WORD.search(line, max(start, mark - 24), mark - 1 if alone else mark)
        assert match is not None  # the pattern also matches the empty word at the end
        word = match.group()
        plain = word.isalpha() and word.islower() and word not in _ABBREVIATIONS
        if line[behind - 1] != " ":  # "the end.The next"
            return plain
        next_character = line[following]
        opens = next_character == "»" and line[following + 1 : following + 2].isalnum()  # German »so«
        if opens or next_character in _OPENING:
            rest = line[following : following + 8].lstrip(_BEFORE_WORDS)
            if not rest:
                return character != "."
            next_character = rest[0]
        if next_character in ".,;:!?)]}”»":
            return False
        is_ellipsis = character == "…" or line[mark : mark + 2] == ".." or line[mark : mark + 3] == ". ."
        lowered = False
        if next_character.islower() and not _ADDRESS.match(line, following):
            quoted = following > behind or line[behind - 2] in "\"'”’»“‘«"
            lowered = self._is_lowered(start)
            if quoted and (not lowered or self._goes_on_after_speech(following)):
                return False
            if not lowered and (character != "." or is_ellipsis or len(word) < 4 or not plain):
                return False
        if is_ellipsis and (alone or lowered):
            return self._opens(following, lowered)
        return character != "." or self._word_ends(word, start, mark, following, next_character, lowered)

    def _word_ends(
        self, word: str, start: int, mark: int, following: int, next_character: str, lowered: bool
    ) -> bool:
        """Return whether a full stop after `word` ends a sentence, and is not part of an abbreviation."""
        lower = word.lower()
        if len(word) == 1 and word.isalpha() and (word.isascii() or word.isupper()):
            return self._opens(following, lowered)  # an initial: "J. Smith"; but "World War I. The"
        if lower in _ABBREVIATIONS and _MEASURED.search(self.line, max(start, mark - 6), mark):
            return True
        if lower in _NEVER_ENDS:
            return lower not in _MAY_END and lower in _NUMBERED and not next_character.isdigit()
        if lower in _MAY_END or ("." in word and len(word) <= 8 and lower.replace(".", "").isalpha()):
            return self._opens(following, lowered)
        if word.isdigit() and len(word) <= 2 and self._follows_ordinal(following):
            return False  # "am 26. März", "im 19. Jahrhundert"
        # "2. Method", "Methods: 2.1. Data": a number of a list or a heading, not a sentence
        before, dotted = self.line[start : mark - len(word)], "." in word
        begins = len(before) < 2 or (dotted and before.endswith(": "))
        return not (begins and word.replace(".", "").isdigit() and len(word) <= (9 if dotted else 3))

    def _follows_ordinal(self, position: int) -> bool:
        """Return whether the word at `position` is one that German puts after an ordinal number."""
        match = _NEXT_WORDS.match(self.line, position)
        return match is not None and match[1] in _AFTER_ORDINALS

    def _opens(self, position: int, lowered: bool) -> bool:
        """Return whether the word at `position` is one that commonly opens a sentence."""
        rest = self.line[position : position + 8]
        match = _NEXT_WORDS.match(self.line, position + len(rest) - len(rest.lstrip(_BEFORE_WORDS)))
        if match is None:
            return False
        word = match[1]
        if lowered:
            return word in _SUBJECTS
        is_initial = len(word) == 1 and self.line.startswith(".", match.end(1))  # "A." of "J. A. Smith"
        return word[0].isupper() and word.lower() in _OPENERS and not is_initial

    def _is_lowered(self, start: int) -> bool:
        """Return whether sentences may begin in lower case here: the one from `start` does, or most do."""
        for character in self.line[start : start + 40]:
            if character.isalpha():
                if character.islower():
                    return True
                break
        if self._lowered is None:
            following = _PLAIN_END.findall(self.line)
            low = sum(map(str.islower, following))
            self._lowered = low >= 2 and 2 * low > len(following)
        return self._lowered

    def _goes_on_after_speech(self, position: int) -> bool:
        """Return whether a sentence continues after a closing quote: `he said`, `said the king`."""
        match = _NEXT_WORDS.match(self.line, position)
        return match is not None and (match[1] in _SPEECH or match[2] in _SPEECH)


def sentences_of(text: str) -> list[str]:
    """Return the clean sentences of a document. A line is a paragraph."""
    lines = filter(None, map(clean, text.split("\n")))
    return [sentence for line in lines for sentence in split_sentences(line)]


_NON_LETTERS = bytes(c for c in range(128) if not chr(c).isalpha() and not chr(c).isspace())
_WHITE = bytes(c for c in range(128) if chr(c).isspace())
# scripts without spaces: kana, ideographs; Thai, Lao, Tibetan, Burmese; Khmer
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u109f\u1780-\u17ff]")


def count_words(sentence: str) -> int:
    """Count the words between blanks; in scripts without blanks every character counts as one."""
    words = sentence.count(" ") + 1
    if sentence.isascii():
        return words
    return max(words, len(_UNSPACED.findall(sentence)))


def is_prose(sentence: str, min_words: int, min_letters: float) -> bool:
    """Return whether a cleaned sentence has enough words and letters, and is not a heading.

    Bytes of UTF-8 beyond ASCII count as letters, so that no script is at a disadvantage. A heading is one of
    wiki markup, as WikiText has them on lines of their own: `= = Life cycle = =`.
    """
    if sentence[:1] == sentence[-1:] == "=":
        return False
    if sentence.count(" ") + 1 < min_words and count_words(sentence) < min_words:
        return False
    if not min_letters:
        return True
    raw = sentence.encode().translate(None, _WHITE)
    return len(raw.translate(None, _NON_LETTERS)) >= min_letters * len(raw)
