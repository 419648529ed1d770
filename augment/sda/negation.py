"""Negate English sentences, once or twice: SDA's rules over the clauses of `augment.sda.english`.

Each function returns edits, or None if the rule does not apply. Twice is a negation, and a phrase of denial
before it: "It is not true that" and the like, where it stands, and what it may deny.
"""

import re
from collections.abc import Sequence

from augment.sda import english
from augment.text.draws import Draws
from augment.text.negation import assertive, needs_negation
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, is_name, like, lower_first, named_words, overlap, word_map, word_set

_WITHOUT = word_map("no=some nobody=somebody nothing=something nowhere=somewhere none=some")
_DUTIES = word_set("must should ought shall sha may might need dare")
_BEFORE_NOT = named_words("negation.before_not")
_ANY = word_set("any anyone anybody anything anywhere")
_ALMOST = frozenset({"hardly", "scarcely", "barely"})
_ANY_NEGATIVE = re.compile(
    r"\b(?:never|no|nobody|nothing|nowhere|none|neither|nor|hardly|scarcely|barely)\b", re.IGNORECASE
)
_TRACES = ("no", "ne", "hard", "scarce", "bare")  # of those: quicker to look for
# With these words "no" forms a phrase that has no counterpart with "some": "no less than"; "no doubt" denies
# nothing.
_BOUND_TO_NO = word_set("other sooner less fewer more later such means further earlier better")
_ASIDES = word_set("doubt matter wonder")
_FORMULAS = named_words("negation.formulas")
_ARGUMENTS = ("nsubj", "obj", "attr")
_AMOUNTS = word_set("lots plenty loads tons number couple bit kind sort type most all half")
PREFIXES = {
    # The paper's examples (sections 3.1 and 4.3). "Not that he did not come" is no sentence of its own, and
    # "it is not the fact that" no English: only "published" has them.
    "sound": ("It is not true that", "It is not the case that", "It can't be that"),
    "published": ("It is not true that", "It can't be that", "It is not the fact that", "Not that"),
}
_PAIRS = {'"': '"', "“": "”", "'": "'", "‘": "’", "(": ")", "[": "]"}
_APOSTROPHES = frozenset("'‘’")
_ASIDE = frozenset({",", ";", ":", "-", "--", "–", "—"})
_SPEECH = re.compile(r"[,.!?…—-][\"”’']")
_ADVERBIAL = named_words("prefixes.adverbial")
_CONNECTIVE = word_set("so then plus also besides still otherwise hence thus therefore")
_PAIRED = frozenset({"both", "either", "neither"})
_RELATIVE = frozenset({"WDT", "WP", "WP$", "WRB"})


def negation_edits(sentence: ParsedSentence, draws: Draws) -> list[Edit] | None:
    """Return the edits of `augment.sda.entries.neg`, or None."""
    if not len(sentence):
        return None
    clause = english.main_clause(sentence)
    return _negated(sentence, clause) or _denied(sentence, clause, draws)


def double_negation_edits(sentence: ParsedSentence, draws: Draws, phrases: str) -> list[Edit] | None:
    """Return the edits of `augment.sda.entries.dn`, or None."""
    clause = english.main_clause(sentence)
    if clause is None or clause.subject is None or not english.is_assertion(sentence, clause):
        return None
    phrase = draws.choice(PREFIXES[phrases])
    found = deniable(sentence, clause)
    if found is None:
        return None
    clause, first = found
    if sentence.lower(clause.finite) in _DUTIES or sentence.lower(clause.finite + 1) == "better":
        return None  # not to have to is no having to: "it is not true that he must not go"
    is_negative, edits = _without_negation(sentence, clause)
    if not is_negative and not _turns_with_not(sentence, clause):
        edits = english.negate(sentence, clause, _BEFORE_NOT)
    return prefixed(sentence, phrase, edits, first, clause.head) if edits else None


def _negated(sentence: ParsedSentence, clause: english.Clause | None) -> list[Edit] | None:
    """Return edits that negate the main clause by its own words, or what there is without a finite verb."""
    if clause is None:
        return None if states_something(sentence) or _is_formula(sentence) else _fragment(sentence)
    is_negative, edits = _without_negation(sentence, clause)
    if is_negative:
        return edits
    tag = english.finite_tag(sentence, clause)
    if tag not in english.FINITE and tag != "VB" and states_something(sentence):
        return None  # "Living in Paris, he took part", with the wrong root
    return None if _turns_with_not(sentence, clause) else english.negate(sentence, clause, _BEFORE_NOT)


def _turns_with_not(sentence: ParsedSentence, clause: english.Clause) -> bool:
    """Return whether a `not` would not deny the clause: "not a little", "any of them", "see you there"."""
    behind = max(clause.finite, clause.verb if clause.verb == clause.head else clause.finite) + 1
    words = [sentence.lower(i) for i in range(behind, min(behind + 2, len(sentence)))]
    before = sentence.lower(clause.finite - 1)
    if words in (["a", "little"], ["a", "few"]) or before == "not":  # "why not go?"
        return True
    if clause.subject is not None:
        first = sentence.subtree(clause.subject)[0]
        return first < clause.finite and sentence.lower(first) in _ANY
    behind_it = [child for child in sentence.children(clause.head) if child > clause.finite]
    hearers = [child for child in behind_it if sentence.lower(child) in ("you", "u", "ya")]
    kinds = {sentence.relation(child).partition(":")[0] for child in hearers}
    return sentence.tags[clause.finite] in ("VB", "VBP") and not kinds.isdisjoint(("obj", "iobj", "obl"))


def _denied(sentence: ParsedSentence, clause: english.Clause | None, draws: Draws) -> list[Edit] | None:
    """Deny a statement that has no negation of its own by a phrase: "It is not true that only he came"."""
    phrase = draws.choice(PREFIXES["sound"])
    if clause is None or english.finite_tag(sentence, clause) not in english.FINITE:
        return prefixed(sentence, phrase) if states_something(sentence) else None
    found = deniable(sentence, clause) if english.is_assertion(sentence, clause) else None
    if found is None or found[0].head != clause.head:
        return None
    return prefixed(sentence, phrase, (), found[1], clause.head)


def _without_negation(sentence: ParsedSentence, clause: english.Clause) -> tuple[bool, list[Edit] | None]:
    """Return whether a clause is negative, and the edits that take its negation away, None if there is no
    way.

    A negation is its `not`, else `no longer`, never, nobody, nothing, the `no` of an argument, or "neither
    ... nor". "Any" behind it becomes "some".
    """
    if clause.negation is not None:
        return True, _with_some(sentence, clause.negation, english.affirm(sentence, clause))
    before = english.negation_before_subject(sentence, clause)
    if before is not None:  # "not all men came"
        return True, [english.without_words(sentence, before)]
    before = _not_before_participle(sentence, clause)
    if before is not None:
        return True, _without_plain_not(sentence, before)
    lower = sentence.text.lower()  # first, as the expression takes a while
    if not (any(map(lower.__contains__, _TRACES)) and _ANY_NEGATIVE.search(lower)):
        return False, None
    found, edits = _negative_word(sentence, clause)
    # "either ... or" leaves nothing negative behind
    if found is None or sentence.lower(found) == "neither":
        return found is not None, edits
    return True, _with_some(sentence, found, edits)


def _not_before_participle(sentence: ParsedSentence, clause: english.Clause) -> int | None:
    """Return the `not` before the participle of a clause without a tense: "(definitely) not going there"."""
    finite = clause.finite
    if sentence.tags[finite] not in ("VBG", "VBN") or english.finite_tag(sentence, clause) in english.FINITE:
        return None
    own = {clause.head, clause.verb, finite}
    found = (i for i in range(finite) if sentence.lower(i) == "not")
    return next((i for i in found if i + 1 == finite or sentence.heads[i] in own), None)


def _without_plain_not(sentence: ParsedSentence, i: int) -> list[Edit] | None:
    """Return edits that take away a `not` of no finite verb; None if nothing is left without it."""
    if not any(word[:1].isalnum() for number, word in enumerate(sentence.words) if number != i):
        return None
    return _with_some(sentence, i, [english.without_words(sentence, i)])


def _with_some(sentence: ParsedSentence, negative: int, edits: list[Edit] | None) -> list[Edit] | None:
    """Return the edits with "some" for its "any"; None if something needs the negative word."""
    if not edits:
        return None
    words = [word.lower().replace("’", "'") for word in sentence.words]
    if needs_negation(words, negative):
        return None
    if english.is_question(sentence):
        return edits
    others = assertive(sentence, words, negative)
    # "Not any good": "any" gets both its capital and another form
    return None if overlap(edits, others) else [*edits, *others]


def _negative_word(sentence: ParsedSentence, clause: english.Clause) -> tuple[int | None, list[Edit] | None]:
    """Return (the negative word of a clause that is none of its verb, edits that make it positive)."""
    for i in range(len(sentence)):
        lower = sentence.lower(i)
        if (lower == "never" or lower in _ALMOST) and sentence.heads[i] in (clause.head, clause.verb):
            return i, None if clause.inverted else [english.without_words(sentence, i)]
        if lower in ("neither", "nor"):
            nor = [j for j in range(i + 1, len(sentence)) if sentence.lower(j) == "nor"]
            if lower == "nor" or len(nor) != 1:  # it stands by itself
                return i, None
            pair = ((i, "either"), (nor[0], "or"))
            return i, [sentence.replacement(j, like(sentence.word(j), new)) for j, new in pair]
        if lower in _WITHOUT:
            following = sentence.lower(i + 1)
            if lower == "no" and following == "longer":
                return i, [english.without_words(sentence, i, i + 1)]
            argument = sentence.relation(sentence.heads[i])[:5] in _ARGUMENTS
            if lower == "no" and following in _ASIDES and not argument:
                continue
            if lower == "no" and following in _BOUND_TO_NO:
                return i, None
            if edit := _without_no(sentence, i, clause.head):
                return i, [edit]
    return None, None


def _without_no(sentence: ParsedSentence, i: int, head: int) -> Edit | None:
    """Write `some` for `no` and its like in an argument of word `head`."""
    lower = sentence.lower(i)
    owner = i if lower != "no" else sentence.heads[i]
    if lower == "no" and (sentence.relation(i) != "det" or owner == i):
        return None
    if sentence.heads[owner] != head and owner != head:
        return None
    if lower == "no" and owner == i + 1 and sentence.lower(owner) == "one":
        return sentence.starts[i], sentence.ends[owner], like(sentence.word(i), "someone")
    return sentence.replacement(i, like(sentence.word(i), _WITHOUT[lower]))


def _fragment(sentence: ParsedSentence) -> list[Edit] | None:
    """Negate a sentence without a verb: `no` for the article of its noun, or before a noun without one; `not`
    before anything else, and away with one that is there. None for questions and exclamations ("What a
    day!")."""
    opening = sentence.lower(0)
    if sentence.tags[0][:1] == "W" or (english.is_question(sentence) and opening == "why"):
        return None
    root = sentence.root
    found = next((i for i in range(root + 1) if sentence.lower(i) in english.NOT), None)
    if found is not None:  # "a not so good idea" has another form without it
        bound = sentence.lower(found) != "not" or (found > 0 and sentence.pos[found - 1] == "DET")
        return None if bound else _without_plain_not(sentence, found)
    nominal = sentence.pos[root] == "NOUN" and not is_name(sentence, 0)
    lower = sentence.lower(root)
    nominal = nominal and not lower.endswith(("thing", "body", "one")) and lower not in _AMOUNTS
    if nominal := nominal and (sentence.pos[0] != "DET" or sentence.heads[0] == root):
        for child in sentence.children(root):
            if sentence.lower(child) in ("a", "an", "the") and child < root:
                return [sentence.replacement(child, like(sentence.word(child), "no"))]
            if sentence.lower(child) == "no":
                return [english.without_words(sentence, child)]
            if sentence.relation(child) in ("det", "nmod:poss", "nummod", "case", "det:predet", "prep"):
                nominal = nominal and child > root
    nominal = nominal and sentence.subtree(root)[0] == 0 and "," not in sentence.text[: sentence.starts[root]]
    first = 0
    if sentence.pos[0] == "PUNCT" and sentence.text.startswith(("-", "–", "—", "*")):
        first = next((i for i in range(len(sentence)) if sentence.word(i)[0].isalnum()), 0)
    return prefixed(sentence, "No" if nominal else "Not", (), first)


def _is_formula(sentence: ParsedSentence) -> bool:
    """Return whether a sentence without a verb greets, thanks, asks, or is a name of words with capitals."""
    root = sentence.root
    if sentence.tags[root] == "UH" or sentence.lower(0) in _FORMULAS:
        return True
    if english.is_question(sentence) and any(tag[:1] == "W" for tag in sentence.tags):
        return True
    named = root > 0 and sentence.word(root)[:1].isupper() and sentence.word(0)[:1].isupper()
    return named and not is_name(sentence, root) and sentence.subtree(root)[0] == 0


def prefixed(
    sentence: ParsedSentence, prefix: str, edits: Sequence[Edit] = (), first: int = 0, head: int | None = None
) -> list[Edit]:
    """Return `edits`, and a phrase such as "It is not true that" before the sentence, or before the clause
    that begins with word `first`.

    It stands behind a quotation mark or bracket that the whole sentence stands in, behind a conjunction, an
    interjection, a form of address or an adverb with a comma ("But", "However,"), and behind a clause with a
    conjunction of its own ("If it rains,") that depends on word `head`. The first word after it has no
    capital, unless it is written with one everywhere.
    """
    opening = first = first or (1 if _is_enclosed(sentence) else 0)
    while len(sentence) > first + 2:
        marked = sentence.word(first + 1) in _ASIDE
        conjoins = sentence.pos[first] == "CCONJ" and sentence.lower(first) not in _PAIRED
        aside = marked and (
            sentence.pos[first] in ("ADV", "INTJ") or sentence.relation(first) in ("vocative", "discourse")
        )
        connects = sentence.heads[first] == head and sentence.lower(first) in _CONNECTIVE
        if conjoins or aside or connects or sentence.tags[first] == "UH":
            first += 2 if marked else 1
        elif (behind := _behind_adverbial(sentence, first, head)) is not None:
            first = behind
        else:
            break
    place = sentence.starts[first]
    if first > opening or any(map(str.isalnum, sentence.text[:place])):
        return [
            (place, place, prefix[0].lower() + prefix[1:] + " "),
            *(_from(sentence, edit, place) for edit in edits),
        ]
    joined = sentence.starts[first + 1 : first + 2] == sentence.ends[first : first + 1]
    if joined and sentence.word(first) in _APOSTROPHES:
        first += 1  # "'Tis"; `place` stays before the apostrophe
    begin, end = sentence.starts[first], sentence.ends[first]
    rest = [edit for edit in edits if edit[0] >= end]
    early = [_from(sentence, edit, place) for edit in edits if edit[0] < end]
    if not early:
        return [(place, place, prefix + " "), (begin, end, lower_first(sentence, first)), *rest]
    # The first word is edited itself, and by rules that write lower case.
    (start, end, new), *others = early
    in_capitals = len(sentence.word(first)) > 1 and sentence.word(first).isupper()
    new = new if in_capitals else new[:1].lower() + new[1:]
    return [(place, place, prefix + " "), (start, end, new), *others, *rest]


def deniable(sentence: ParsedSentence, main: english.Clause) -> tuple[english.Clause, int] | None:
    """Return the clause that a phrase of denial may stand before, and its first word.

    It is the main clause, `main`; if clauses with subjects of their own are coordinated with it the last,
    as the phrase denies all that follows ("It rained, and it is not true that he did not come"). None if
    it would deny more than that clause, or tear a quotation from what is said of it.
    """
    if main.subject is None or main.subject > main.finite:
        return None
    marks = (child for child in sentence.dependents(main.head, "mark") if child < main.subject)
    if any(sentence.lower(child) not in _CONNECTIVE for child in marks):
        return None  # a reason or condition by itself: "Because it rained."
    heads, clause, subject, first = [main.head], main, main.subject, 0
    for head in heads:
        joined = [child for child in sentence.dependents(head, "conj") if child > main.finite]
        heads += joined
        for child in joined:
            other = english.clause_of(sentence, child) if not sentence.has_dependent(child, "mark") else None
            if other is None or other.subject is None or child <= clause.head:
                continue
            if english.is_finite(sentence, other):
                clause, subject = other, other.subject
    if heads[-1] > clause.head:
        full = not clause.auxiliaries and sentence.lower(clause.finite) not in english.BE
        shared = {
            clause.head,
            *(english.coordinated(sentence, clause, english.finite_tag(sentence, clause)) if full else ()),
        }
        for head in heads:
            other = english.clause_of(sentence, head) if head not in shared and head > clause.head else None
            if other is not None and english.is_finite(sentence, other):
                return None  # "was built and opened": denied, what is shared would be torn
    if clause is not main or clause.head != sentence.root:
        begin, end = sentence.subtree(subject)
        relative = not _RELATIVE.isdisjoint(sentence.tags[begin : end + 1])  # "..., many of which were"
        if subject > clause.finite or clause.inverted or relative:
            return None
        found = _first_of(sentence, clause)
        if found is None:
            return None
        first = found
    start, end = sentence.ends[first], sentence.starts[clause.finite]
    if _SPEECH.search(sentence.text, start, end):
        return None
    if any(child < subject for child in sentence.dependents(clause.head, "ccomp", "parataxis")):
        return None  # "It rained, he said"
    for child in sentence.children(clause.head):  # "..., they are not toys": would be denied too
        coordinate = sentence.relation(child) == "parataxis" and child > clause.finite
        begin = sentence.subtree(child)[0] if coordinate else 0
        commas = coordinate and "," in (sentence.word(begin), sentence.word(begin - 1))
        if commas and sentence.subject(child) is not None:
            return None
    return clause, first


def states_something(sentence: ParsedSentence) -> bool:
    """Return whether a text without a main clause has a finite verb of no subordinate clause."""
    if english.is_question(sentence) or _SPEECH.search(sentence.text, 0, sentence.ends[-1] - 1):
        return False
    for i, tag in enumerate(sentence.tags):
        if tag not in english.FINITE:
            continue
        head = sentence.heads[i] if sentence.relation(i) in ("aux", "aux:pass", "cop") else i
        relation = sentence.relation(head)
        before = [child for child in sentence.children(head) if child < i]
        introduced = any(sentence.relation(j) == "mark" or sentence.tags[j] in _RELATIVE for j in before)
        cased = any(child < sentence.root for child in sentence.dependents(sentence.root, "case"))
        heading = sentence.pos[sentence.root] in ("NOUN", "PROPN", "PRON") and not cased
        if introduced or (relation[:3] == "acl" and heading):
            continue
        return True
    return False


def _first_of(sentence: ParsedSentence, clause: english.Clause) -> int | None:
    """Return a coordinated clause's first word behind its conjunction; None if nothing parts it off."""
    first = sentence.subtree(clause.head)[0]
    parted = first > 0 and (
        sentence.word(first - 1) in (",", ";", ":", "—", "-") or sentence.pos[first - 1] == "CCONJ"
    )
    while first < clause.finite and (sentence.pos[first] in ("CCONJ", "PUNCT")):
        parted, first = True, first + 1
    return first if parted and clause.subject is not None and first <= clause.subject else None


def _behind_adverbial(sentence: ParsedSentence, first: int, head: int | None) -> int | None:
    """Return the word behind the comma of a subordinate clause of `head` that begins with word `first`."""
    if head is None or sentence.lower(first) not in _ADVERBIAL:
        return None
    for child in sentence.children(head):
        if sentence.relation(child) == "advcl" and sentence.subtree(child)[0] == first:
            last = sentence.subtree(child)[1]
            behind = last + 1 if sentence.word(last) == "," else last + 2
            parted = behind < len(sentence) and sentence.word(behind - 1) == ","
            return behind if parted and behind < head else None
    return None


def _from(sentence: ParsedSentence, edit: Edit, place: int) -> Edit:
    """Make an edit that removes the word at `place` take the blank behind it, not the one before."""
    start, end, new = edit
    if not start < place < end or sentence.text[start:place].strip():
        return edit
    return place, end + sentence.text[end:].startswith(" "), new


def _is_enclosed(sentence: ParsedSentence) -> bool:
    """Return whether the sentence opens with a quote or bracket that closes behind its root, or nowhere."""
    closing = _PAIRS.get(sentence.word(0)) if len(sentence) > 1 else None
    if closing is None:
        return False
    if sentence.word(0) in _APOSTROPHES:
        marks = (i for i in range(1, len(sentence)) if sentence.word(i) == closing)
        return next((i for i in marks if sentence.tags[i] != "POS"), -1) > sentence.root
    place = sentence.text.find(closing, sentence.ends[0])
    return place < 0 or place > sentence.starts[sentence.root]
