"""Read WordNet in place: Princeton's files (index.*, data.*) in a folder or in nltk's zip.

nltk's reader takes 5 s and 200 MB to import and refuses folders outside nltk_data; a rule in a loader worker
needs four relations of single lemmas. The index is sorted and the data file is addressed by offset
(wndb(5WN)), so only the starts of the index's lines are loaded. Bisection finds a lemma, offsets find its
synsets, and what was found is remembered.
"""

import functools
import itertools
import mmap
import os
import re
import sys
import zipfile
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from augment.core.errors import AugmentationError

VARIABLE = "CLEAR_WORDNET"
_FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_COUNTS = "cntlist.rev"  # how often each sense is tagged (cntlist(5WN)); the types of synsets in its keys
_TYPES = {"n": b"1", "v": b"2", "a": b"35", "r": b"4"}
_COLLOCATION = re.compile(rb"^([^ \n]*_[^ \n]*) ", re.MULTILINE)


@dataclass(frozen=True)
class Synset:
    """A sense: its lemmas, in WordNet's order, and the fields of its pointers, unread: few rules follow them.

    places: where each adjective may stand: "p" behind a verb, "a" before a noun, "ip" behind it, "" anywhere.
    frames: of a verb, (number in wninput(5WN), number of the word, 0: all).
    """

    lemmas: tuple[str, ...]
    fields: tuple[str, ...]
    places: tuple[str, ...] = ()
    frames: tuple[tuple[int, int], ...] = ()

    @functools.cached_property
    def pointers(self) -> tuple[tuple[str, int, str, int, int], ...]:
        """Return (symbol, offset, part of speech, numbers of its word and the target's; 0: all)."""
        return tuple(
            (symbol, int(target), "a" if its_pos == "s" else its_pos, int(ends[:2], 16), int(ends[2:], 16))
            for symbol, target, its_pos, ends in zip(*(self.fields[i::4] for i in range(4)))
        )


class WordNet:
    """Look words up in one WordNet; it pickles as its path, so that workers map the same pages.

    path: a folder or zip with index.noun, data.noun and so on.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._index = {pos: _Index(self._open(f"index.{name}")) for pos, name in _FILES.items()}
        self._data = {pos: self._open(f"data.{name}") for pos, name in _FILES.items()}
        self._tagged = _Index(self._open(_COUNTS))
        self.offsets = functools.lru_cache(maxsize=1 << 16)(self._offsets)
        self.synset = functools.lru_cache(maxsize=1 << 15)(self._synset)

    def __reduce__(self):
        return WordNet, (self.path,)

    def _open(self, name: str) -> mmap.mmap | bytes:
        try:
            if self.path.is_dir():
                with open(self.path / name, "rb") as file:
                    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with zipfile.ZipFile(self.path) as archive:
                member = next(entry for entry in archive.namelist() if entry.rsplit("/", 1)[-1] == name)
                return archive.read(member)
        except (OSError, ValueError, StopIteration, zipfile.BadZipFile) as error:
            raise AugmentationError(
                f"{self.path} cannot be read as WordNet: it has no usable {name} ({error})"
            ) from error

    def synsets(self, lemma: str, pos: str, max_senses: int | None = None) -> tuple[Synset, ...]:
        """Return (the first `max_senses`) senses of a lemma, the most frequent first; pos: n, v, a, r."""
        return tuple([self.synset(offset, pos) for offset in self.offsets(lemma, pos)[:max_senses]])

    def _offsets(self, lemma: str, pos: str) -> tuple[int, ...]:
        """Return the offsets of a lemma's senses, the most frequent one first."""
        line = self._index[pos].find(lemma.replace(" ", "_").lower().encode() + b" ")
        if line is None:
            return ()
        fields = line.split()
        return tuple(map(int, fields[-int(fields[2]) :]))

    def _synset(self, offset: int, pos: str) -> Synset:
        data = self._data[pos]
        fields = data[offset : data.find(b"|", offset)].decode().split()
        words = int(fields[3], 16)
        # Adjectives may carry their syntactic position, as in galore(ip).
        names = [word.partition("(") for word in fields[4 : 4 + 2 * words : 2]]
        lemmas = tuple([name.replace("_", " ") for name, _, _ in names])
        start = 4 + 2 * words
        stop = start + 1 + 4 * int(fields[start])
        # each after a plus, behind their count
        pairs = zip(fields[stop + 2 :: 3], fields[stop + 3 :: 3]) if pos == "v" else ()
        frames = tuple([(int(frame), int(word, 16)) for frame, word in pairs])
        places = tuple([place.rstrip(")") for _, _, place in names])
        return Synset(lemmas, tuple(fields[start + 1 : stop]), places, frames)

    def counts(self, lemma: str, pos: str) -> tuple[int, ...]:
        """Return how often WordNet's makers tagged each sense of a lemma, in the order of the senses."""
        found = [0] * len(self.offsets(lemma, pos))
        key = lemma.replace(" ", "_").lower().encode() + b"%"
        for line in self._tagged.lines(key):
            sense, number, count = line.split()
            if sense[len(key)] in _TYPES[pos] and 0 < int(number) <= len(found):
                found[int(number) - 1] += int(count)
        return tuple(found)

    @functools.cached_property
    def collocations(self) -> frozenset[str]:
        """Return every lemma of several words, joined by underscores, except intensifiers ("good and")."""
        found = (name.decode() for index in self._index.values() for name in _COLLOCATION.findall(index.data))
        return frozenset(name for name in found if not name.endswith("_and"))

    def opposites(self, lemma: str, pos: str, senses: int) -> Iterator[tuple[int, int, str, int]]:
        """Yield a lemma's own antonyms in its `senses` most frequent senses.

        An antonym is the sense's offset, then the offset, part of speech and place of the other word.
        """
        for offset in self.offsets(lemma, pos)[:senses]:
            synset = self.synset(offset, pos)
            names = [word.lower() for word in synset.lemmas]
            own = names.index(lemma.lower()) + 1 if lemma.lower() in names else 0
            for symbol, target, its_pos, source, end in synset.pointers:
                if symbol == "!" and source == own:
                    yield offset, target, its_pos, end - 1

    def antonyms(self, lemma: str, pos: str, senses: int = 2) -> tuple[str, ...]:
        """Return a lemma's own antonyms in the first of its `senses` most frequent senses that has any."""
        found = list(self.opposites(lemma, pos, senses))
        return tuple(
            self.synset(at, its_pos).lemmas[i] for sense, at, its_pos, i in found if sense == found[0][0]
        )

    def related(self, lemma: str, pos: str, symbol: str) -> tuple[str, ...]:
        """Return the broader ("@") or narrower ("~") terms of the most frequent sense."""
        found: dict[str, None] = {}
        for synset in self.synsets(lemma, pos, 1):
            for kind, offset, its_pos, _, _ in synset.pointers:
                if kind == symbol:
                    found.update(dict.fromkeys(self.synset(offset, its_pos).lemmas))
        return tuple(found)


@functools.lru_cache(maxsize=1)
def wordnet() -> WordNet:
    """Return the WordNet that CLEAR_WORDNET names, or else the first installed one."""
    candidates = wordnet_candidates()
    for candidate in candidates:
        if candidate.exists():
            return WordNet(candidate)
    if named := os.environ.get(VARIABLE):
        raise AugmentationError(f"{VARIABLE} names {named}, which is not there")
    raise AugmentationError(
        f"no WordNet found: `apt install wordnet-base`, or name its folder in {VARIABLE}. Looked for: "
        f"{', '.join(map(str, candidates))}"
    )


def wordnet_candidates() -> list[Path]:
    """Return the folders and zips that may hold WordNet, in order: CLEAR_WORDNET alone if it is set."""
    if named := os.environ.get(VARIABLE):
        return [Path(named).expanduser()]
    data = os.environ.get("CLEAR_DATA")
    found = [Path(data) / "wordnet"] if data else []
    found.append(Path("/usr/share/wordnet"))
    folders = [*filter(None, os.environ.get("NLTK_DATA", "").split(os.pathsep)), "~/nltk_data"]
    folders += [f"{sys.prefix}/nltk_data", "/usr/local/share/nltk_data", "/usr/share/nltk_data"]
    for folder in folders:
        corpora = Path(folder).expanduser() / "corpora"
        found += [corpora / "wordnet", corpora / "wordnet.zip"]
    return found


class _Index:
    """Find lines of a sorted file by their beginning, by bisection; the lines themselves stay in the file."""

    def __init__(self, data: mmap.mmap | bytes):
        self.data = data
        raw = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(raw == ord("\n"))
        if raw[-1:].tolist() != [ord("\n")]:
            ends = np.append(ends, len(raw))
        self._starts = array("q", np.concatenate([[0], ends[:-1] + 1]).astype(np.int64).tobytes())
        self._ends = array("q", ends.astype(np.int64).tobytes())

    def find(self, start: bytes) -> bytes | None:
        """Return the line that begins so, or None."""
        return next(iter(self.lines(start)), None)

    def lines(self, start: bytes) -> list[bytes]:
        """Return all lines that begin so."""
        # the licence at the head is indented: a space sorts before every lemma
        first = bisect_left(range(len(self._starts)), start, key=self._line)
        beginning = map(self._line, range(first, len(self._starts)))
        return list(itertools.takewhile(lambda line: line.startswith(start), beginning))

    def _line(self, number: int) -> bytes:
        return self.data[self._starts[number] : self._ends[number]]
