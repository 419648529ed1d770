"""Inflect English words by Penn Treebank tags, and find their lemmas and participles.

Spelling rules come first; `word_lists/irregular_forms.tsv`, chosen from lemminflect, has the forms that they
do not make. lemminflect itself is not used: every process that applies rules would hold its dictionary and
the spaCy that it imports. The tests compare the two.
"""

import functools
import re

from augment.text.word_forms import word_map, word_set, word_table

Pairs = dict[tuple[str, str], str]
_FORM_TAGS = {"NNP": "NN", "NNPS": "NNS", "VBP": "VB"}
_INFLECTED = word_set("NNS VBZ VBD VBN VBG JJR JJS RBR RBS")
_VOWELS = tuple("aeiou")
_HAS_VOWEL = re.compile("[aeiouy]")
# one syllable that ends in a single vowel and a single consonant
_CLOSED = re.compile(r"(?:[^aeiou]*|[^aeiou]*qu)[aeiouy][^aeiouwxy]")
_DOUBLED = re.compile(r"([^aeioulsfz])\1$")
_ENDS_DOUBLED = word_set("add ebb egg err purr whirr butt putt boycott")
# other words in -eed are not past forms
_ENDS_IN_EE = word_set("agree disagree free decree guarantee referee knee")
# British doubling: "travell" of "travelled". "quell", "misspell", "install", "enthrall", "appall" have two of
# their own.
_BRITISH = re.compile(
    r"[aeiou].*(?:(?<!qu)(?<!sp)ell|(?<![pr])(?<!st)(?<!c)(?<!squ)all)$|cill$|(?:focu|bia|ga)ss$|^buss$"
)
# Verbs and nouns without their silent e: "creat", "mov", "chang", "requir", "titl", "decid", "combin".
_DROPS_E = re.compile(
    # "caus", "us" and "accus" of "use" and its like; "bus", "virus", "bias" and "lens" have none.
    r"(?:(?:[aof]|xc|cc|^rec|ten|^(?:(?:dis)?ab|re|mis|dis|over|a?m|bem|r|per|enth|cont)?)us"
    r"|[^su]s(?<![gi]as)(?<!canvas)(?<!atlas)(?<!tmas)(?<!\blens)(?<!\biris)(?<!trellis)(?<!pelvis)(?<!ropolis)"
    r"|[^aeiou]at|creat|[ui]at|[vcu]|[^z]z|[dr]g|[aeiu]n?g|(?<![aeo])[aiu]r|(?:ad|gn|pl|st|rsc)or|[^aeioulrw]l|[^aeo]il"
    r"|[^aeo][aiu]d|[^e]ed|[^o]od|sum|ib|[^aeo]ut|[aeio]th|[^aeiou]in|[cksh]ap|vok|[mv]ot|(?<![eo])not)$"
)
_ENDS_IN_IE = word_set("die lie tie vie belie untie underlie overlie")
PASTS_THAT_ARE_BASE_FORMS = word_set("found saw lay fell ground wound bore rent bound")
"""Pasts of one verb that are the base form of another: "it bore", "to bore"."""
_BE = word_set("am is are was were be been being 'm 're ’m ’re")
_HAVE_AND_DO = word_map("has=have had=have having=have does=do did=do done=do doing=do")
_ENDINGS = {  # (ending, letters to cut, letters to add) of forms that the rules of spelling make
    "NNS": (("ies", 3, "y"), ("es", 2, ""), ("s", 1, "")),
    "VBZ": (("ies", 3, "y"), ("es", 2, ""), ("s", 1, "")),
    "VBD": (("ied", 3, "y"), ("ed", 2, "")),
    "VBN": (("ied", 3, "y"), ("ed", 2, "")),
    "VBG": (("ing", 3, ""),),
}
_OWN_VBZ = {"have": "has", "be": "is", "quiz": "quizzes", "whiz": "whizzes"}
# A verb with a prefix has the forms of the irregular verb behind it ("overslept"); the exceptions are listed.
_PREFIX = re.compile(r"(?:re|over|out|under|un|mis|fore|inter)(?=[a-z]{3})")
_NOT_PREFIXED = word_set("relay relie outfit refit")


@functools.lru_cache(maxsize=1 << 16)
def inflect(lemma: str, tag: str) -> str | None:
    """Return the form of a lemma for a Penn Treebank tag, or None if there is none.

    >>> inflect("child", "NNS"), inflect("run", "VBG"), inflect("body of water", "NNS")
    ('children', 'running', 'bodies of water')

    Of several words a verb inflects the first, a noun the last or the one before a preposition. Adjectives
    and adverbs without a form of their own take "more" and "most".
    """
    tag = _FORM_TAGS.get(tag, tag)
    if tag in ("NN", "VB", "JJ", "RB"):
        return lemma
    words = lemma.split(" ")
    if len(words) > 1 and tag[0] in "NV":
        place = 0 if tag[0] == "V" else len(words) - 1
        if tag[0] == "N":
            prepositions = (i for i in range(1, len(words)) if words[i] in ("of", "in", "for", "to", "at"))
            place = next(prepositions, place + 1) - 1
        form = inflect(words[place], tag)
        return " ".join((*words[:place], form, *words[place + 1 :])) if form else None
    known = _FORMS.get((lemma, tag)) or _prefixed(lemma, tag)
    if known:
        return known
    if tag in ("JJR", "JJS", "RBR", "RBS"):
        compared = _FORMS.get((lemma, f"JJ{tag[-1]}")) if tag[0] == "R" else None
        return compared or f"{'more' if tag[-1] == 'R' else 'most'} {lemma}"
    if tag not in ("NNS", "VBZ", "VBD", "VBN", "VBG") or not lemma[-1:].isalpha():
        return None
    return _regular(lemma, tag)


def lemma_of(word: str, tag: str, hint: str = "") -> str:
    """Return the lower-case lemma of a word by its Penn tag; hint: the parse's lemma, taken if it fits.

    Small pipelines leave many forms unchanged. British doubling is read ("travelled"), and so is the regular
    form of an irregular verb ("hanged").
    """
    return _lemma_of(word.lower(), tag, hint.lower())


def participle(past: str, lemma: str) -> str:
    """Return the past participle of a verb in the spelling of its past.

    >>> participle("went", "go"), participle("burnt", "burn")
    ('gone', 'burnt')
    """
    return _PARTICIPLES.get((lemma, past.lower()), past.lower())


def may_be_past(word: str) -> bool:
    """Return whether a word may be a past tense ("finished", which taggers call a participle; not "need")."""
    word = word.lower()
    return (word, "VBD") in _LEMMAS or lemma_of(word, "VBD") != word


def _regular(lemma: str, tag: str) -> str:
    """Return the form of a lemma by the rules of spelling alone ("try": "tries", "stop": "stopping")."""
    stem = lemma[:-1] + "i" if lemma[-1] == "y" and lemma[-2:-1] not in _VOWELS and len(lemma) > 1 else lemma
    if tag in ("NNS", "VBZ"):
        ends_in_o = tag == "VBZ" and lemma[-1] == "o" and lemma[-2:] != "oo"  # "goes"
        hisses = lemma.endswith(("s", "x", "z", "ch", "sh"))
        return stem + ("es" if ends_in_o or hisses or stem != lemma else "s")
    doubled = lemma + lemma[-1] if _CLOSED.fullmatch(lemma) else lemma
    if tag == "VBG":
        if lemma.endswith("ie"):
            return lemma[:-2] + "ying"
        silent = lemma[-1] == "e" and lemma[-2:-1] not in tuple("eoy") and len(lemma) > 2
        return (lemma[:-1] if silent else doubled) + "ing"
    if lemma[-1] == "e":
        return lemma + "d"
    return (stem if stem != lemma else doubled) + "ed"


def _prefixed(lemma: str, tag: str) -> str | None:
    """Return the form of a verb with a prefix before an irregular one ("oversleep": "overslept"), or None."""
    prefix = _PREFIX.match(lemma) if tag[0] == "V" and lemma not in _NOT_PREFIXED else None
    if prefix is None:
        return None
    form = _FORMS.get((lemma[prefix.end() :], tag))
    return prefix[0] + form if form else None


@functools.lru_cache(maxsize=1 << 16)
def _lemma_of(word: str, tag: str, hint: str) -> str:
    tag = _FORM_TAGS.get(tag, tag)
    if word in _BE:
        return "be"
    if word in _HAVE_AND_DO:
        return _HAVE_AND_DO[word]
    if tag not in _INFLECTED:
        return word
    if hint and hint != word and _makes(hint, tag, word):
        return hint
    known = _known_lemma(word, tag)
    if known is not None:
        return known
    if word.endswith("eed") and tag in ("VBD", "VBN"):
        return word[:-1] if word[:-1] in _ENDS_IN_EE else word
    with_ie = word[:-4] + "ie" if word.endswith("ying") else word[:-1]
    if with_ie in _ENDS_IN_IE:
        return with_ie
    for ending, cut, added in _ENDINGS.get(tag, ()):
        if not word.endswith(ending):
            continue
        stem = word[:-cut] + added
        if _is_doubled(stem) and tag in ("VBD", "VBN", "VBG"):
            return stem[:-1]
        with_e = _DROPS_E.search(stem) is not None and (stem, tag) not in _FORMS
        candidates = [stem + "e", stem] if with_e else [stem, stem + "e"]
        for candidate in candidates:
            long_enough = len(candidate) > (2 if ending[-1] == "d" else 1) and _HAS_VOWEL.search(candidate)
            if long_enough and word in (inflect(candidate, tag), _regular(candidate, tag)):
                return candidate
    return word


def _makes(lemma: str, tag: str, word: str) -> bool:
    """Return whether a word is a form of a lemma, by British doubling too ("travelled")."""
    if tag[0] == "V" and _is_doubled(lemma):
        return False
    regular = tag[0] in "NV" and lemma[-1:].isalpha()
    if word == inflect(lemma, tag) or (regular and word == _regular(lemma, tag)):
        return True
    return tag in ("VBD", "VBN", "VBG") and word == lemma + lemma[-1] + ("ing" if tag == "VBG" else "ed")


def _is_doubled(stem: str) -> bool:
    """Return whether an ending doubled a stem's last letter: "stopp", "travell", but not "add"."""
    doubled = _DOUBLED.search(stem) or _BRITISH.search(stem)
    return doubled is not None and stem not in _ENDS_DOUBLED


def _known_lemma(word: str, tag: str) -> str | None:
    """Return the lemma of a listed irregular form, with or without a prefix, or None."""
    known = _LEMMAS.get((word, tag))
    if known is None and tag[0] == "V" and (prefix := _PREFIX.match(word)):
        rest = _LEMMAS.get((word[prefix.end() :], tag))
        if rest is not None and prefix[0] + rest not in _NOT_PREFIXED:
            return prefix[0] + rest
    return known


def _irregular_forms() -> tuple[Pairs, Pairs, Pairs]:
    """Return {(lemma, tag): form}, {(form, tag): lemma}, {(lemma, past): participle}: each first one."""
    forms = {(lemma, "VBZ"): form for lemma, form in _OWN_VBZ.items()}
    lemmas = {(form, "VBZ"): lemma for lemma, form in _OWN_VBZ.items()}
    participles: Pairs = {}
    tags = {"NNS": ("NNS",), "VBD": ("VBD", "VBN", "VBG"), "JJR": ("JJR", "JJS")}
    for lemma, kind, *own in word_table("irregular_forms.tsv"):
        for tag, form in zip(tags[kind], own):
            forms.setdefault((lemma, tag), form)
            lemmas.setdefault((form, tag), lemma)
        if kind == "VBD":
            participles.setdefault((lemma, own[0]), own[1])
    return forms, lemmas, participles


_FORMS, _LEMMAS, _PARTICIPLES = _irregular_forms()
