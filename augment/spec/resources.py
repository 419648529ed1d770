"""Find and hash what augmentations read: synonym tables, WordNet, vectors, models, their own code and lists.

Two machines, or one machine a month later, may find other files under the same names. Runs and cached views
therefore record these hashes and compare them.
"""

import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from augment.spec.grammar import needs_synonyms, parse
from augment.text.word_forms import named_words
from augment.text.wordnet import wordnet
from augment.tokens.synonyms import find_synonyms

_PACKAGE = Path(__file__).parents[1]
SYNONYMS, WORDNET = "synonyms", "wordnet"

# What transformers reads of a model: its configurations, weights and tokenizer.
_MODEL_FILES = named_words("resources.model_files")


def resources(specs: Iterable[str], synonyms: str | Path | None = None) -> dict[str, str]:
    """Return what specifications read, by name ("wordnet", "contextual.model"): file, folder or hub name."""
    specs = list(specs)
    found: dict[str, str] = {}
    if any(map(needs_synonyms, specs)):
        found[SYNONYMS] = str(synonyms or find_synonyms())
    for step in dict.fromkeys(step for spec in specs for step in parse(spec).augmentations):
        entry, values = step.entry, step.values()
        if step.is_own:
            found[step.name] = step.name.rpartition(":")[0]
        if "wordnet" in entry.needs:
            found[WORDNET] = str(wordnet().path)
        for parameter in entry.parameters:
            if parameter.variable and (where := values[parameter.name]):
                name = f"{step.name}.{parameter.name}"
                found[name if found.get(name, where) == where else f"{name}={where}"] = where
    return found


def resource_hash(where: str | Path) -> str | None:
    """Return the sha256 of a file, a folder, or a hub model in the local cache; None: it is not here.

    Of a folder count the names and bytes of its files, hidden ones, *.md and folders left out; of a model's
    only what loading reads: the hub's cache gains files when other libraries need them.
    """
    path = Path(os.path.expanduser(where))
    if path.is_file():
        return _file_hash(path)
    if path.is_dir():
        return _folder_hash(path)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(str(where), "config.json")
    except HFValidationError:  # a path that is not there, and no name of the hub's
        return None
    snapshot = Path(cached).parent if isinstance(cached, str) else None
    return _folder_hash(snapshot) if snapshot is not None and any(snapshot.glob("*.safetensors")) else None


def _folder_hash(folder: Path) -> str:
    is_model = (folder / "config.json").is_file()
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        counts = any(map(file.match, _MODEL_FILES)) if is_model else file.suffix != ".md"
        if counts and file.is_file() and not file.name.startswith("."):
            digest.update(f"{file.name}\0{_file_hash(file)}\0".encode())
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def rules_digest() -> str:
    """Return 12 hexadecimal digits of the sha256 over the package's modules, compiled sources, word lists."""
    digest = hashlib.sha256()
    for path in sorted([*_PACKAGE.rglob("*.py"), *_PACKAGE.glob("native/*"), *_PACKAGE.glob("word_lists/*")]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]
