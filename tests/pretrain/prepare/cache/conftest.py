"""Annotated data that several tests make caches of."""

from pathlib import Path

import pytest
from real_data import parser_folder

from pretrain.config.data import DataConfig
from pretrain.prepare.run import prepare

SENTENCES = [
    f"{who} {does} {what} today."
    for who in ["Anna", "The old dog", "A café in Zürich", "Nobody", "My sister"]
    for does in ["has seen", "likes", "didn't find", "is", "will have"]
    for what in ["the blue house", "no money", "“a quiet life”", "what she said", "old friends"]
]


@pytest.fixture(scope="session")
def annotated(tmp_path_factory) -> Path:
    parser = parser_folder()
    folder = tmp_path_factory.mktemp("cached")
    (folder / "corpus.txt").write_text("\n".join(SENTENCES) + "\n")
    settings = {"vocabulary": 400, "heldout": 0.1, "chunk_tokens": 500, "max_length": 24, "annotate": parser}
    config = DataConfig(sources=[str(folder / "corpus.txt")], **settings)
    prepare(config, folder / "data", workers=1, progress=False)
    return folder / "data"
