"""Return a digest of the augmentations' own code and word lists, for what is made by them once and kept."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


@functools.cache
def rules_digest() -> str:
    """Return 12 hexadecimal digits of the sha256 over the package's modules, compiled sources and word lists.

    Hashed are names and bytes, in the order of names, of the package and of all folders in it.

    A change that changes no rule (a comment) counts too: what is kept is then made once more than it need be.
    """
    digest = hashlib.sha256()
    for path in sorted([*_PACKAGE.rglob("*.py"), *_PACKAGE.glob("native/*"), *_PACKAGE.glob("word_lists/*")]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]
