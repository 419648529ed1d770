"""What augmentations read from this machine, and its hash: synonym tables, WordNet, word vectors, models.

Two machines, or one machine a month later, may find other files under the same names. What is made with them,
and every run that draws with them, records the hashes and compares them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from augment.spec.catalogue import CATALOGUE
from augment.spec.registry import IDENTITY, needs_synonyms, parse, values_of
from augment.text.wordnet import wordnet
from augment.tokens.synonym_sources import find_synonyms

SYNONYMS, WORDNET = "synonyms", "wordnet"


def resources(specs: Iterable[str], synonyms: str | Path | None = None) -> dict[str, str]:
    """Return what the augmentations of some specifications read: name -> file, folder or hub name.

    The name is "synonyms", "wordnet", or an augmentation and its parameter ("contextual.model"). What
    specifications leave open is looked up in the environment and in the usual places. synonyms: the table
    that the user has named.

    Raises: AugmentationError for a synonym table or WordNet that is nowhere.
    """
    specs = list(specs)
    found: dict[str, str] = {}
    if any(map(needs_synonyms, specs)):
        found[SYNONYMS] = str(synonyms or find_synonyms())
    for step in dict.fromkeys(step for spec in specs for step in parse(spec).steps if step.name != IDENTITY):
        entry, values = CATALOGUE[step.name], values_of(step)
        if "wordnet" in entry.needs:
            found[WORDNET] = str(wordnet().path)
        for parameter in entry.parameters:
            if parameter.variable and (where := values[parameter.name]):
                name = f"{step.name}.{parameter.name}"
                found[name if found.get(name, where) == where else f"{name}={where}"] = where
    return found


def resource_hash(where: str | Path) -> str | None:
    """Return the sha256 of a file, of a folder's files, or of a hub model in the local cache; None for what
    is not here.

    Of a folder count the names and bytes of its files, hidden ones and *.md left out, and no folders within.
    """
    path = Path(where).expanduser()
    if path.is_file():
        return _file_hash(path)
    if not path.is_dir():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(str(where), "config.json")
        except HFValidationError:  # a path that is not there, and no name of the hub's
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
