"""Change discourse markers: a rule of AugCSE."""

from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import (
    lengths_by_word,
    like,
    named_words,
    names_in,
    rewrite,
    word_set,
    word_table,
)

_STOPS = frozenset(".;:,—–-(")
_PREPOSITIONS = word_set("of to as that than when by in on from")
_NEGATIVE = word_set("not n't n’t no never neither none nothing")
_MODIFYING = word_set("whether or and just only ever such as so not even simply precisely long partly")
_NAMING = word_set("known called named abbreviated spelled")
_NOT_ADVERB = named_words("discourse.not_adverb")


def discourse_markers(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Replace one discourse marker by another of the same class of PDTB 2.0.

    One random marker, of several words too, that stands in front of a comma, a verb or a clause
    (`word_lists/discourse_markers.tsv`), by a random other one. As published: the first occurrence of the
    string, in "sincerely" and "since July" too.
    """
    words = [word.lower() for word in sentence.words]

    def others_of(i: int, j: int) -> tuple[int, int, list[str]] | None:
        groups = _MARKERS.get(" ".join(words[i : j + 1]), ())
        others = (other for place, other in groups if _IS_PLACE[place](sentence, words, i, j))
        return next(((i, j, other) for other in others), None)

    found = list(names_in(words, _LENGTHS, others_of))
    if not found:
        return None
    i, j, alternatives = draws.choice(found)
    start, end = sentence.starts[i], sentence.ends[j]
    old = sentence.text[start:end]
    new = draws.choice(alternatives)
    return rewrite(sentence, [(start, end, like(old[:1], new) if old[:1].isupper() else new)])


def _is_opening(sentence: ParsedSentence, words: list[str], i: int, j: int) -> bool:
    """Return whether a marker stands at the start of a clause or between commas, with a comma behind it."""
    if j + 2 >= len(words) or words[j + 1] != ",":
        return False
    if words[i] == "then" and i and words[i - 1] == ",":  # "in 1814, then, ..."
        return False
    return i == 0 or words[i - 1] in (".", ";", ",", "and", "but", '"', "“")


def _is_adverb(sentence: ParsedSentence, words: list[str], i: int, j: int) -> bool:
    """Return whether a marker stands in front of a verb, in a clause that has its subject already."""
    if i == 0 or sentence.pos[i] != "ADV" or not {"VERB", "AUX"} & {*sentence.pos[j + 1 : j + 2]}:
        return False
    if sentence.heads[i] <= j or words[i - 1] in _NOT_ADVERB or words[j + 1] in _NAMING:
        return False
    if words[i] == "then" and "if" in words[:i]:
        return False
    if sentence.tags[i - 1] in ("POS", "PRP$", "DT"):
        return False  # "his later works", taken for a verb
    auxiliaries = sentence.auxiliaries(sentence.heads[i])
    if sentence.tags[j + 1] in ("VB", "VBN", "VBG") and not any(word < i for word in auxiliaries):
        return False  # "the salt thus obtained"
    return words[i - 1] not in _STOPS or words[i - 1] == ","


def _is_clause(sentence: ParsedSentence, words: list[str], i: int, j: int) -> bool:
    """Return whether a marker introduces a clause that has a subject and a finite verb behind it."""
    if j + 1 >= len(words) or words[j + 1] in _PREPOSITIONS:
        return False
    if sentence.relation(i) not in ("mark", "advmod", "cc"):
        return False
    if i and words[i - 1] in _MODIFYING:
        return False
    verb = sentence.heads[i]
    subject = sentence.subject(verb)
    if subject is None or not i < subject < sentence.verb(verb) + 1 or subject <= j:
        return False
    finite = [*sentence.auxiliaries(verb), sentence.verb(verb)]
    if not any(sentence.tags[word] in ("VBD", "VBZ", "VBP", "MD") for word in finite):
        return False
    if words[i] == "because" and (words[j + 1] == "otherwise" or sentence.pos[i - 1] == "AUX"):
        return False  # "it was because it rained"
    if words[i] == "since":  # of time, unless the clause that it hangs on is not in the perfect
        perfect = {"has", "have", "had", "been", "'s", "'ve"}
        return perfect.isdisjoint(words[child] for child in sentence.children(sentence.heads[verb]))
    if words[i] == "while" and "VBG" in (sentence.tags[verb], sentence.tags[sentence.verb(verb)]):
        return False  # "while he is reading": at that time
    # at the same time as a doing, or in contrast to it: a stative, comma-bound clause contrasts
    if words[i] == "while":
        return i == 0 or words[i - 1] == ","
    return words[i] != "as"


def _is_coordinate(sentence: ParsedSentence, words: list[str], i: int, j: int) -> bool:
    tag = sentence.tags[j + 1] if j + 1 < len(words) else ""
    if tag in ("DT", "PRP$", "NNP") and not _NEGATIVE.isdisjoint(words[:i]):
        return False  # "it was no fancy, but a duty"
    return (
        words[max(i - 1, 0)] == ","
        and sentence.relation(i) == "cc"
        and sentence.pos[sentence.heads[i]] in ("VERB", "AUX", "ADJ", "NOUN")
        and tag in ("PRP", "DT", "NNP", "VBD", "VBZ", "VBP", "PRP$", "EX")
    )


_IS_PLACE = {
    "opening": _is_opening,
    "adverb": _is_adverb,
    "clause": _is_clause,
    "coordinate": _is_coordinate,
    "anywhere": lambda sentence, words, i, j: words[j + 1 : j + 2] not in (["of"], ["to"]),
}
_MARKERS: dict[str, list[tuple[str, list[str]]]] = {}
"""By marker: (where it stands, the other markers of a class)."""
for _place, _, _line in word_table("discourse_markers.tsv"):
    for _text in _line.split("|"):
        _others = [other for other in _line.split("|") if other != _text]
        _MARKERS.setdefault(_text, []).append((_place, _others))
_LENGTHS = lengths_by_word(_MARKERS)
