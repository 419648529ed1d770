"""A small corpus that tests of preparation share."""

from pathlib import Path

import pytest
from prepare_helpers import make_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> tuple[Path, list[list[str]]]:
    """A text file, and the sentences of each of its documents."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    return path, make_corpus(path)
