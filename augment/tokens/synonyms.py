"""Turn a list of synonyms into token ids of a tokenizer, and match them over whole batches.

Lists have words, batches have tokens. Every word with synonyms is tokenized in each form in which running
text can show it (with and without a space before it; in small letters, with a capital, in capitals, where the
tokenizer distinguishes them), and so are its synonyms in the same form. One look-up then finds a whole word
of a batch: words of one token in an array over the vocabulary, longer ones by a 64-bit hash of their tokens
in a sorted array.

Sources: a JSON object {word: [synonyms]} (Jia et al. 2019's counterfitted_neighbors.json, which CLEAR used);
the same below a level of parts of speech {"n": {word: [...]}, "v": ...}; either of them gzipped; and a
WordNet folder or zip with data.noun, data.verb, data.adj, data.adv (Princeton's own, Debian's
/usr/share/wordnet, nltk's corpora/wordnet).
"""

import gzip
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from augment.core.errors import AugmentationError
from augment.core.keys import mix
from augment.core.ragged import Ragged, offsets_of
from augment.core.vocabulary import Vocabulary
from augment.text.cleaning import for_clean_text
from augment.text.wordnet import wordnet_candidates

_WORDNET_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
_JIA = "https://github.com/robinjia/certified-word-sub (data/counterfitted_neighbors.json)"


@dataclass(frozen=True, eq=False)
class SynonymTable:
    """E entries (a word in one form), each with its synonyms in that form, as token ids.

    Entry e is heads[head_offsets[e]:head_offsets[e + 1]]; its synonyms are the sequences
    neighbour_offsets[e]:neighbour_offsets[e + 1] of tokens, token_offsets. single: int32[vocabulary.size],
    the entry of a word of one token, or -1. hashes (uint64, rising), entries (int32): those of longer words.
    """

    source: str
    vocabulary: Vocabulary
    heads: np.ndarray
    head_offsets: np.ndarray
    neighbour_offsets: np.ndarray
    tokens: np.ndarray
    token_offsets: np.ndarray
    single: np.ndarray
    hashes: np.ndarray
    entries: np.ndarray
    longest: int

    def __len__(self) -> int:
        return len(self.head_offsets) - 1

    @staticmethod
    def load(path: str | Path | None, tokenizer: Any, vocabulary: Vocabulary | None = None) -> "SynonymTable":
        """Load a file or folder in one of the module's formats (seconds); None looks in the usual places."""
        path = find_synonyms() if path is None else Path(path)
        vocabulary = Vocabulary.from_tokenizer(tokenizer) if vocabulary is None else vocabulary
        return SynonymTable.from_words(read_synonyms(path), tokenizer, vocabulary, str(path))

    @staticmethod
    def from_words(
        synonyms: dict[str, list[str]], tokenizer: Any, vocabulary: Vocabulary, source: str = "given words"
    ) -> "SynonymTable":
        """Make a table from {word: its synonyms}."""
        words = list(dict.fromkeys([*synonyms, *(word for others in synonyms.values() for word in others)]))
        number = {word: index for index, word in enumerate(words)}
        head_words = np.array([number[word] for word in synonyms], dtype=np.int64)
        sizes = np.array([len(others) for others in synonyms.values()], dtype=np.int64)
        related = [number[word] for others in synonyms.values() for word in others]
        neighbours = np.array(related, dtype=np.int64)

        # All forms of all words as one batch: form f of word w is sequence f * len(words) + w.
        # a tokenizer that cleans takes the space before a word away
        backend, _ = for_clean_text(tokenizer.backend_tokenizer)
        forms = _forms(backend)
        batch = _encode(backend, [spell(word) for spell in forms for word in words])
        usable = _all_true(~vocabulary.special[batch.ids], batch)
        starts = vocabulary.word_starts(batch.ids)
        starts[batch.offsets[:-1][batch.lengths > 0]] = False
        whole = usable & _all_true(~starts, batch)

        shift = (np.arange(len(forms), dtype=np.int64) * len(words))[:, None]
        heads = (head_words[None, :] + shift).reshape(-1)
        targets = (neighbours[None, :] + shift).reshape(-1)
        owners = np.repeat(np.arange(len(heads), dtype=np.int64), np.tile(sizes, len(forms)))
        codes = _hash_words(batch.ids, batch.offsets[:-1], batch.lengths)
        good = usable[targets] & whole[heads[owners]] & (codes[targets] != codes[heads[owners]])
        # Without case or space marks several forms have the same tokens: keep the first.
        first = np.zeros(len(heads), dtype=bool)
        has_any = np.flatnonzero(np.bincount(owners[good], minlength=len(heads)))
        first[has_any[np.unique(codes[heads[has_any]], return_index=True)[1]]] = True
        good &= first[owners]
        entries = np.flatnonzero(first)
        if not len(entries):
            raise AugmentationError(f"synonym table {source}: this tokenizer can write none of its words")
        head_batch, neighbour_batch = batch.take(heads[entries]), batch.take(targets[good])
        single = np.full(vocabulary.size, -1, dtype=np.int32)
        lengths = head_batch.lengths
        alone = np.flatnonzero(lengths == 1)
        single[head_batch.ids[head_batch.offsets[alone]]] = alone
        several = np.flatnonzero(lengths > 1)
        hashes = codes[heads[entries[several]]]
        order = np.argsort(hashes)
        return SynonymTable(
            source, vocabulary, head_batch.ids, head_batch.offsets,
            offsets_of(np.bincount(owners[good], minlength=len(heads))[entries]),
            neighbour_batch.ids, neighbour_batch.offsets, single, hashes[order],
            several[order].astype(np.int32), int(lengths.max()),
        )  # fmt: skip

    def match(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find the words that have synonyms: (rising starts, lengths, entries); wrong once in 2**64."""
        wide = ids.astype(np.intp)
        starts = np.flatnonzero(self.vocabulary.word_starts(wide))
        lengths = np.diff(starts, append=len(ids))
        entries = np.where(lengths == 1, self.single.take(wide.take(starts)), np.int32(-1))
        if self.longest > 1:
            longer = np.flatnonzero((lengths > 1) & (lengths <= self.longest))
            codes = _hash_words(ids, starts.take(longer), lengths.take(longer))
            places = np.minimum(np.searchsorted(self.hashes, codes), len(self.hashes) - 1)
            known = self.hashes.take(places) == codes
            entries[longer] = np.where(known, self.entries.take(places), np.int32(-1))
        found = np.flatnonzero(entries >= 0)
        return starts.take(found), lengths.take(found), entries.take(found).astype(np.int64)

    def pick(self, entries: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Pick a synonym (a token sequence) per entry, int64[K], evenly by 64 random bits each: int64[K]."""
        first = self.neighbour_offsets.take(entries)
        counts = self.neighbour_offsets.take(entries + 1) - first
        chosen = ((draws >> np.uint64(32)) * counts.astype(np.uint64)) >> np.uint64(32)
        return first + chosen.view(np.int64)

    def coverage(self, batch: Ragged) -> float:
        """Return the share of ordinary tokens that have a synonym (CLEAR, section 3.3: "roughly 40%")."""
        _, lengths, _ = self.match(batch.ids)
        return int(lengths.sum()) / max(1, int((~self.vocabulary.special[batch.ids]).sum()))


def _forms(tokenizer: Any) -> list:
    """Return the spellings that a tokenizer distinguishes: with or without a space before, in three cases."""

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    spaces = [""]
    # Byte-level tokens include the space. If a tokenizer writes an extra token for it, leave it out.
    if ids(" the") != ids("the") and len(ids(" the")) <= len(ids("the")):
        spaces = [" ", ""]
    cases: list[Callable[[str], str]] = [str]
    if ids("The") != ids("the"):
        cases = [str, lambda word: word[:1].upper() + word[1:], str.upper]
    return [lambda word, space=space, case=case: space + case(word) for space in spaces for case in cases]


def _encode(tokenizer: Any, texts: list[str]) -> Ragged:
    """Tokenize many short texts without special tokens, on one thread: workers may be forked later."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        fast = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return Ragged.from_sequences([encoding.ids for encoding in fast])
    finally:
        del os.environ["TOKENIZERS_PARALLELISM"]
        if before is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def _all_true(flags: np.ndarray, batch: Ragged) -> np.ndarray:
    """Return which sequences have tokens, all of them flagged: bool[T] -> bool[N]."""
    sums = offsets_of(flags)
    counts = sums[batch.offsets[1:]] - sums[batch.offsets[:-1]]
    return (counts == batch.lengths) & (counts > 0)


def _hash_words(ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each run of tokens, uint64[K]; one pass for each token of the longest run."""
    codes = lengths.astype(np.uint64)
    active = np.flatnonzero(lengths > 0)
    step = 0
    while len(active):
        tokens = ids.take(starts.take(active) + step).astype(np.uint64)
        codes[active] = mix((codes.take(active) ^ tokens) + np.uint64(0x9E3779B97F4A7C15))
        step += 1
        active = active.compress(lengths.take(active) > step)
    return codes


def find_synonyms() -> Path:
    """Return the default table: in $CLEAR_DATA/synonyms, else CLEAR_WORDNET or an installed WordNet."""
    data = os.environ.get("CLEAR_DATA")
    names = ("counterfitted_neighbors.json", "oewn_synonyms.json.gz") if data else ()
    candidates = [*(Path(data or "") / "synonyms" / name for name in names), *wordnet_candidates()]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise AugmentationError(
        f"no synonym table found. Name one with --synonyms PATH; {_JIA} is what CLEAR used; `apt install "
        f"wordnet-base` installs WordNet. Looked for: {', '.join(map(str, candidates))}"
    )


def read_synonyms(path: str | Path) -> dict[str, list[str]]:
    """Return {lower-case word: its synonyms in the order of the source}, without words that have none."""
    path = Path(path).expanduser()
    if not path.exists():
        raise AugmentationError(f"synonym table {path} does not exist")
    try:
        if path.is_dir() or path.suffix == ".zip":
            pairs = _wordnet(path)
        else:
            with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
                pairs = _json(json.load(file), path)
        table: dict[str, dict[str, None]] = {}
        for word, synonyms in pairs:
            known = table.setdefault(word.lower(), {})
            known.update((synonym, None) for synonym in synonyms if synonym.lower() != word.lower())
    except (
        OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError, RecursionError, zlib.error,
        zipfile.BadZipFile
    ) as error:  # fmt: skip
        raise AugmentationError(f"synonym table {path} cannot be read: {error}") from error
    table = {word: synonyms for word, synonyms in table.items() if synonyms}
    if not table:
        raise AugmentationError(f"synonym table {path} has no word with a synonym")
    return {word: list(synonyms) for word, synonyms in table.items()}


def _json(content: object, path: Path) -> Iterator[tuple[str, list[str]]]:
    if not isinstance(content, dict):
        raise AugmentationError(f"synonym table {path} is no JSON object {{word: [synonyms]}}")
    for word, synonyms in content.items():
        if isinstance(synonyms, dict):
            yield from _json(synonyms, path)
        elif isinstance(synonyms, list) and all(isinstance(synonym, str) for synonym in synonyms):
            yield word, synonyms
        else:
            raise AugmentationError(f"synonym table {path}: {word!r} has {synonyms!r}, not a list of words")


def _wordnet(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Return the words of each synset as synonyms (wndb(5WN): the fourth field counts them, in base 16)."""
    if path.is_dir():
        files = [path / name for name in _WORDNET_FILES if (path / name).exists()]
        texts = [file.read_text(encoding="utf-8") for file in files]
    else:
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] in _WORDNET_FILES]
            texts = [archive.read(member).decode("utf-8") for member in members]
    if not texts:
        raise AugmentationError(f"{path} is not a WordNet folder: it has none of {', '.join(_WORDNET_FILES)}")
    for line in chain.from_iterable(text.splitlines() for text in texts):
        if line.startswith("  "):  # the licence at the head
            continue
        fields = line.split(" ")
        count = int(fields[3], 16)
        # An adjective may have its position behind it: galore(ip).
        words = [word.split("(")[0].replace("_", " ") for word in fields[4 : 4 + 2 * count : 2]]
        for word in words:
            yield word, words
