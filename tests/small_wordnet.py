"""A small WordNet in Princeton's own format (wndb(5WN)), so that what reads one is tested alike on every
machine.

Add a word: a line of `SENSES` for each of its senses, in their order of frequency, and, of an adjective or
adverb, its antonym in `ANTONYMS`. The words are English, the glosses and the choice of senses are ours.
"""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from augment.rules import senses, substitution
from augment.text import wordnet

FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_TYPES = {"n": 1, "v": 2, "a": 3, "s": 5, "r": 4}
_LEXICOGRAPHER = {"n": 3, "v": 29, "a": 0, "r": 2}  # the numbers of noun.Tops, verb.body, adj.all and adv.all
_INVERSE = {"@": "~", "@i": "~i", "&": "&", "!": "!"}
_HEAD = "".join(
    f"  {number} {line}  \n"
    for number, line in enumerate(
        ("A small WordNet for tests,", "with lines at the head as the whole one has."), start=1
    )
)

# part of speech | words | pointers | gloss. The part "s" is an adjective's satellite. A word that ends in "?"
# is in no tagged text in this sense, one that ends in "=7" seven times; others 20 times in their first sense,
# 4 in the second, once in more. "(p)" is an adjective's place. A pointer is a symbol and the first word of a
# synset of the same part: @ broader, @i class of an instance, & adjective's head; what points back is added.
SENSES = """
n | animal beast | | a living thing that moves by itself
n | dog domestic_dog | @canine | an animal that lives with people and barks
n | canine canid? | @animal | an animal of the dogs' family
n | puppy pup | @dog | a young dog
n | Lassie | @i dog | the dog of a film
n | bird | @animal | an animal with feathers
n | owl | @bird | a bird that hunts at night
n | vehicle | | what carries people or goods
n | car auto automobile machine | @vehicle | a vehicle with an engine and four wheels
n | cable_car car | @vehicle | a vehicle drawn by a cable
n | machine | | a thing with parts that does work
n | container | | a thing that holds others
n | spoon | @container | a small bowl with a handle, to eat with
n | teaspoon | @spoon | a small spoon
n | line bound boundary bounds | | where something ends
n | border edge | @line | the line around an area
n | game | | what is played by rules
n | card_game cards | @game | a game played with cards
n | whist | @card_game | a game of four players
n | person individual soul | | a human being
n | friend | @person | a person whom one likes
n | man adult_male | @person | a grown male person
n | uncle | @person | a brother of a parent
n | look looking looking_at | | the act of directing the eyes
n | time_unit unit_of_time | | an amount of time
n | hour hr 60_minutes? | @time_unit | sixty minutes
n | building edifice | | a thing with a roof and walls
n | house home_base? | @building | a building to live in
v | stop halt discontinue | | come to an end, or bring to one
v | halt arrest? | | cause to stand
v | begin start get_down? | | take the first step
v | laugh express_joy express_mirth? | | make the sounds of joy
v | giggle titter? | @laugh | laugh a little
v | see perceive cognize? | | take in with the eyes
v | yield give_up surrender | | leave to another
v | give yield | | hand to another
a | beautiful | | pleasant to look at
a | ugly | | unpleasant to look at
a | good | | as it should be
a | bad | | not as it should be
a | useful utile? | | of use
a | useless | | of no use
a | able | | that can
a | unable | | that cannot
a | large big | | of more than common size
s | great | &large | very large
a | small little | | of less than common size
a | fast | | that takes little time
s | quick speedy | &fast | soon done
a | slow | | that takes much time
a | different | | not like another
a | same | | like itself
a | unlike different | | not equal
a | like similar | | nearly equal
a | old | | that has lived long
a | young | | that has not lived long
a | quiet | | with little sound
a | noisy | | with much sound
a | hot | | of much heat
a | cold | | of little heat
a | first | | before all others
a | last | | after all others
a | former | | the one before
a | latter | | the one behind
a | asleep(p) | | in sleep
a | awake(p) | | not in sleep
r | quickly rapidly | | in little time
r | slowly slow | | in much time
r | well good | | as it should be done
r | badly ill | | as it should not be done
"""

# Of the first senses that have the two words; each is the other's.
ANTONYMS = {
    "a": "beautiful/ugly good/bad useful/useless able/unable large/small big/little fast/slow "
    "different/same unlike/like "
    "old/young quiet/noisy hot/cold asleep/awake first/last former/latter",
    "r": "quickly/slowly well/badly",
}


class _Synset(NamedTuple):
    type: str  # n v a s r
    words: list[str]  # as data files have them: "asleep(p)"
    counts: list[int]  # how often each word was tagged in this sense
    gloss: str
    # symbol, number of the target among the part's synsets, words from and to or 0
    pointers: list[tuple[str, int, int, int]]


def write_small_wordnet(folder: Path, senses: str = SENSES, antonyms: dict[str, str] = ANTONYMS) -> Path:
    """Write index.*, data.*, *.exc and cntlist.rev of the senses into a new folder, and return it."""
    folder.mkdir(parents=True)
    parts = _parts(senses, antonyms)
    for part, name in FILES.items():
        synsets = parts[part]
        lines = [_data_line(part, synset, [0] * len(synsets), 0) for synset in synsets]
        offsets, position = [], len(_HEAD)
        for line in lines:  # offsets have eight digits, so that they do not change where the lines lie
            offsets.append(position)
            position += len(line.encode())
        lines = [_data_line(part, synset, offsets, offset) for synset, offset in zip(synsets, offsets)]
        (folder / f"data.{name}").write_text(_HEAD + "".join(lines), encoding="utf-8")
        (folder / f"index.{name}").write_text(
            _HEAD + "".join(_index_lines(part, synsets, offsets)), encoding="utf-8"
        )
        (folder / f"{name}.exc").touch()
    counts = sorted(line for part in FILES for line in _count_lines(part, parts[part]))
    (folder / "cntlist.rev").write_text("".join(counts), encoding="utf-8")
    return folder


def _parts(senses: str, antonyms: dict[str, str]) -> dict[str, list[_Synset]]:
    """{part of speech: its synsets}, with all pointers both ways."""
    parts: dict[str, list[_Synset]] = {part: [] for part in FILES}
    wanted = []
    for line in senses.strip().splitlines():
        kind, words, pointers, gloss = (field.strip() for field in line.split("|"))
        part = "a" if kind == "s" else kind
        names, counts = [], []
        for word in words.split():
            name, _, count = word.replace("?", "=0").partition("=")
            earlier = sum(
                _bare(name).lower() in map(str.lower, map(_bare, synset.words)) for synset in parts[part]
            )
            names.append(name)
            counts.append(int(count or max(1, 20 // 5**earlier)))
        parts[part].append(_Synset(kind, names, counts, gloss, []))
        for pointer in pointers.replace("@i ", "@i").split():
            symbol = pointer[:2] if pointer.startswith("@i") else pointer[0]
            wanted.append((part, len(parts[part]) - 1, symbol, pointer[len(symbol) :]))
    for part, number, symbol, name in wanted:
        synsets = parts[part]
        target = next(i for i, synset in enumerate(synsets) if synset.words[0] == name)
        synsets[number].pointers.append((symbol, target, 0, 0))
        synsets[target].pointers.append((_INVERSE[symbol], number, 0, 0))
    for part, pairs in antonyms.items():
        for pair in pairs.split():
            (first, one), (second, other) = (_place(parts[part], word) for word in pair.split("/"))
            parts[part][first].pointers.append(("!", second, one, other))
            parts[part][second].pointers.append(("!", first, other, one))
    return parts


def _place(synsets: list[_Synset], word: str) -> tuple[int, int]:
    """(number of the first synset that has a word, the word's place in it from 1)."""
    return next(
        (i, place)
        for i, synset in enumerate(synsets)
        for place, own in enumerate(synset.words, 1)
        if _bare(own) == word
    )


def _bare(word: str) -> str:
    return word.split("(")[0]


def _data_line(part: str, synset: _Synset, offsets: list[int], offset: int) -> str:
    fields = [f"{offset:08d}", f"{_LEXICOGRAPHER[part]:02d}", synset.type, f"{len(synset.words):02x}"]
    fields += [f"{word} 0" for word in synset.words]
    fields += [f"{len(synset.pointers):03d}"]
    fields += [
        f"{symbol} {offsets[target]:08d} {part} {one:02x}{other:02x}"
        for symbol, target, one, other in synset.pointers
    ]
    # two frames: somebody ...s, somebody ...s something
    fields += ["02 + 02 00 + 08 00"] if part == "v" else []
    return " ".join(fields) + f" | {synset.gloss}  \n"


def _index_lines(part: str, synsets: list[_Synset], offsets: list[int]) -> list[str]:
    """One line a lemma, sorted: how many senses, the symbols of their pointers, how many senses are attested,
    their offsets."""
    senses: dict[str, list[int]] = defaultdict(list)
    attested: dict[str, int] = defaultdict(int)
    for number, synset in enumerate(synsets):
        for word, count in zip(synset.words, synset.counts):
            senses[_bare(word).lower()].append(number)
            attested[_bare(word).lower()] += count > 0
    lines = []
    for lemma in sorted(senses, key=str.encode):
        found = senses[lemma]
        symbols = list(dict.fromkeys(symbol for number in found for symbol, *_ in synsets[number].pointers))
        fields = [lemma, part, len(found), len(symbols), *symbols, len(found), attested[lemma]]
        lines.append(
            " ".join(map(str, fields)) + "".join(f" {offsets[number]:08d}" for number in found) + "  \n"
        )
    return lines


def _count_lines(part: str, synsets: list[_Synset]) -> list[str]:
    """One line for each tagged sense of a lemma: its key, its number, how often (cntlist(5WN))."""
    senses: dict[str, int] = defaultdict(int)
    lines = []
    for synset in synsets:
        head = f"{_bare(synset.words[0])}:00" if synset.type == "s" else ":"
        for word, count in zip(synset.words, synset.counts):
            lemma = _bare(word).lower()
            senses[lemma] += 1
            if count:
                key = f"{lemma}%{_TYPES[synset.type]}:{_LEXICOGRAPHER[part]:02d}:00:{head}"
                lines.append(f"{key} {senses[lemma]} {count}\n")
    return lines


def forget_words() -> None:
    """Empty what the modules remember of a WordNet."""
    for module in (wordnet, senses, substitution):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
