"""Find and hash what augmentations read from this machine: synonym tables, WordNet, vectors and models.

Two machines, or one machine a month later, may find other files under the same names. Runs and cached views
therefore record these hashes and compare them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from augment.spec.grammar import needs_synonyms, parse
from augment.text.wordnet import wordnet
from augment.tokens.synonym_sources import find_synonyms

SYNONYMS, WORDNET = "synonyms", "wordnet"


def resources(specs: Iterable[str], synonyms: str | Path | None = None) -> dict[str, str]:
    """Return what the augmentations of specifications read: name -> file, folder or hub name.

    The name is "synonyms", "wordnet", or an augmentation and its parameter ("contextual.model"). The
    environment and the usual places fill what specifications leave open. synonyms: the table that the user
    named.

    Raises:
        AugmentationError: a synonym table or WordNet is needed, and there is none.
    """
    specs = list(specs)
    found: dict[str, str] = {}
    if any(map(needs_synonyms, specs)):
        found[SYNONYMS] = str(synonyms or find_synonyms())
    for step in dict.fromkeys(step for spec in specs for step in parse(spec).augmentations):
        entry, values = step.entry, step.values()
        if "wordnet" in entry.needs:
            found[WORDNET] = str(wordnet().path)
        for parameter in entry.parameters:
            if parameter.variable and (where := values[parameter.name]):
                name = f"{step.name}.{parameter.name}"
                found[name if found.get(name, where) == where else f"{name}={where}"] = where
    return found


def resource_hash(where: str | Path) -> str | None:
    """Return the sha256 of a file, a folder or a hub model in the local cache; None where there is none.

    A folder's hash covers the names and bytes of its files, without hidden files, *.md and subfolders.
    """
    path = Path(where).expanduser()
    if path.is_file():
        return _file_hash(path)
    if not path.is_dir():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(str(where), "config.json")
        except HFValidationError:  # neither a path that exists nor a name that the hub allows
            return None
        if not isinstance(cached, str):
            return None
        path = Path(cached).parent
    digest = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if file.is_file() and not file.name.startswith(".") and file.suffix != ".md":
            digest.update(f"{file.name}\0{_file_hash(file)}\0".encode())
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
