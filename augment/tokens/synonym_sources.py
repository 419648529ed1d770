"""Read synonyms from word lists on disk into one dictionary {lower-case word: its synonyms}.

Formats: a JSON object {word: [synonyms]} (Jia et al. 2019's counterfitted_neighbors.json, which CLEAR used);
the same below a level of parts of speech {"n": {word: [...]}, "v": ...}; either of them gzipped; and a
WordNet folder or zip with data.noun, data.verb, data.adj, data.adv (Princeton's own, Debian's
/usr/share/wordnet, nltk's corpora/wordnet).
"""

import gzip
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from augment.core.errors import AugmentationError
from augment.text.wordnet import wordnet_candidates

_WORDNET_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
_JIA = "https://github.com/robinjia/certified-word-sub (data/counterfitted_neighbors.json)"


def find_synonyms() -> Path:
    """Return the default table: in $CLEAR_DATA/synonyms, else CLEAR_WORDNET or an installed WordNet."""
    candidates = list(_candidates())
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


def _candidates() -> Iterator[Path]:
    data = os.environ.get("CLEAR_DATA")
    if data:
        yield Path(data) / "synonyms" / "counterfitted_neighbors.json"
        yield Path(data) / "synonyms" / "oewn_synonyms.json.gz"
    yield from wordnet_candidates()


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
