"""Share WordNets of a test's own words, and nltk's reader, with the tests of rules."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from small_wordnet import forget_words, write_small_wordnet

from augment.text import wordnet
from augment.text.wordnet import WordNet


@pytest.fixture
def words(tmp_path, monkeypatch) -> Iterator[Callable[..., WordNet]]:
    """Return a function that makes a WordNet of the given senses (small_wordnet.py says how they are written)
    the only one, and reads it."""

    def read(senses: str, antonyms: str = "") -> WordNet:
        folder = tmp_path / f"words{len(list(tmp_path.iterdir()))}"
        write_small_wordnet(folder, senses, {"a": antonyms})
        monkeypatch.setenv(wordnet.VARIABLE, str(folder))
        forget_words()
        return wordnet.wordnet()

    yield read
    monkeypatch.undo()
    forget_words()


@pytest.fixture
def nltk_reader(tmp_path, monkeypatch) -> Callable[[WordNet], Any]:
    """Return a function that opens a WordNet with nltk, which reads the same files by other code."""
    nltk = pytest.importorskip("nltk", reason="nltk is not installed; the extra `test` brings it")

    def read(source: WordNet) -> Any:
        folder = tmp_path / "corpora" / "wordnet"
        shutil.copytree(source.path, folder)
        nouns, verbs = ([f"{part}.{i}" for i in numbers] for part, numbers in PARTS)
        names = ["adj.all", "adj.pert", "adv.all", *nouns, *verbs, "adj.ppl"]
        # two files that Debian's package lacks
        for name, text in (
            ("index.sense", ""),
            ("lexnames", "".join(f"{i:02d}\t{name}\t1\n" for i, name in enumerate(names))),
        ):
            if not (folder / name).exists():
                (folder / name).write_text(text)
        monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])  # it reads nothing elsewhere
        return nltk.corpus.reader.wordnet.WordNetCorpusReader(nltk.data.find("corpora/wordnet"), None)

    return read


PARTS = (("noun", range(3, 29)), ("verb", range(29, 44)))
