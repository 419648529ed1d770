"""Hash the code and word lists of the augmentations, so that stale caches can be told from fresh ones."""

import functools
import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


@functools.cache
def rules_digest() -> str:
    """Return 12 hexadecimal digits of the sha256 over the package's modules, compiled sources and word lists.

    Names and bytes are hashed, in the order of names, over the package and all its folders. A change that
    changes no rule (a comment) counts too: a cache is then made once more than necessary.
    """
    digest = hashlib.sha256()
    for path in sorted([*_PACKAGE.rglob("*.py"), *_PACKAGE.glob("native/*"), *_PACKAGE.glob("word_lists/*")]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]
