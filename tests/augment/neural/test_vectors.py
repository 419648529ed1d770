"""Words are replaced by neighbours in a small file of vectors: nearness by hand, formats, and refusals."""

import gzip
import os
import re

import numpy as np
import pytest
from parse_builder import draws

from augment.core.errors import AugmentationError
from augment.neural import vectors as embedding
from augment.neural.vectors import random_word_embedding, word_vectors
from augment.spec.build import build_texts
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence, without_parse

VARIABLE = "CLEAR_WORD_VECTORS"
TEXT = "The old Man's dog sat by the sea: \"a red apple\" isn't well-known at https://sea.org/red in the U.S."
CLUSTERS = (  # words of a cluster point in nearly one direction
    ("old", "young", "ancient", "aged"),
    ("dog", "cat", "horse", "owl"),
    ("sea", "ocean", "lake", "inlet"),
    ("apple", "pear", "plum", "orange"),
    ("red", "blue", "green", "indigo"),
    ("the", "of", "in", "by"),
    ("Paris", "London", "Berlin", "Oslo"),
)


def lines(seed=0, size=8):
    random = np.random.default_rng(seed)
    axes = np.eye(size)
    found = []
    for cluster, axis in zip(CLUSTERS, axes):
        found += [(word, axis * random.uniform(1, 9) + random.normal(0, 0.05, size)) for word in cluster]
    random.shuffle(found)
    return [(word, " ".join(f"{value:.5f}" for value in vector)) for word, vector in found]


@pytest.fixture
def glove(tmp_path):
    path = tmp_path / "vectors.txt"
    noise = [f"{word} 1 2 3 4 5 6 7 8" for word in (",", "U.S.", "at name@x.org", "2nd")] + [
        "zero 0 0 0 0 0 0 0 0"
    ]
    path.write_text(
        "\n".join([*noise, *(f"{word} {vector}" for word, vector in lines())]) + "\n", encoding="utf-8"
    )
    return str(path)


def cluster_of(word):
    return next((cluster for cluster in CLUSTERS if word.lower() in map(str.lower, cluster)), ())


def test_neighbours_are_the_nearest_by_cosine(glove):
    vectors = word_vectors(glove, 1000)
    assert {*vectors.words} == {word for cluster in CLUSTERS for word in cluster}
    expected = {word: np.array(vector.split(), dtype=np.float64) for word, vector in lines()}
    for word, vector in expected.items():
        cosines = {
            other: vector @ its / np.linalg.norm(vector) / np.linalg.norm(its)
            for other, its in expected.items()
        }
        nearest = sorted((other for other in cosines if other != word), key=lambda other: -cosines[other])[:6]
        assert [vectors.words[row] for row in vectors.neighbours(vectors.rows[word.lower()], 6)] == nearest
        assert {*nearest[:3]} == {*cluster_of(word)} - {word}
    assert len(vectors.neighbours(0, 1000)) == len(vectors.words) - 1
    np.testing.assert_allclose(np.linalg.norm(vectors.matrix, axis=1), 1, rtol=1e-6)


def test_words_become_their_neighbours_and_the_rest_stays(glove):
    seen = set()
    for key in range(60):
        new = random_word_embedding(without_parse(TEXT), Draws(key), glove, 1.0, top_k=3)
        words = list(zip(re.findall(r"\S+", TEXT), re.findall(r"\S+", new)))
        assert len(words) == len(TEXT.split())
        for before, after in words:
            old, now = (re.sub(r'[":]', "", word) for word in (before, after))
            if old in ("old", "dog", "sea", "red", "apple"):
                assert now in cluster_of(old) and now != old
                seen.add(now)
            else:
                assert old == now or (old, now) == ("a", "an")  # an indigo pear
        assert ("an indigo" in new) == ('"an ' in new)
    assert len(seen) == 15  # three of each
    assert random_word_embedding(without_parse("By the sea"), draws(), glove, 0.3, top_k=3).startswith(
        "By the "
    )
    assert (
        random_word_embedding(without_parse("PARIS and Sea"), draws(1), glove, 1.0, top_k=3)
        .split()[0]
        .isupper()
    )


def test_how_many_words_change_and_names_keep_their_capital(glove):
    text = "Old dog red sea apple"
    for rate, count in ((0.0, 0), (0.1, 1), (0.3, 2), (0.5, 3), (1.0, 5)):
        for key in range(10):
            new = random_word_embedding(without_parse(text), Draws(key), glove, rate, top_k=3)
            changed = (
                0 if new is None else sum(a != b for a, b in zip(text.split(), new.split(), strict=True))
            )
            assert changed == count and (new is None or new[0].isupper())
    assert random_word_embedding(without_parse("zebra quagga"), draws(), glove, 1.0) is None
    assert random_word_embedding(without_parse(""), draws(), glove, 1.0) is None
    for key in range(20):  # no word twice in a row
        new = random_word_embedding(without_parse("cat dog"), Draws(key), glove, 0.5, top_k=3)
        assert new is None or len({*new.split()}) == 2


def test_insertion(glove):
    lengths = set()
    for key in range(40):
        new = random_word_embedding(
            without_parse("The old dog sat."), Draws(key), glove, 0.5, action="random", top_k=3
        )
        if new is None:  # two neighbours that are one word, or "sat" drawn, of which there is no vector
            continue
        lengths.add(len(new.split()))
        inserted = random_word_embedding(
            without_parse("The old dog sat."), Draws(key), glove, 0.5, action="insert"
        )
        if inserted is not None:
            rest = [word for word in inserted.split() if word in ("The", "old", "dog", "sat.")]
            assert len(inserted.split()) == 6 and inserted.startswith("The ") and len(rest) >= 4
    assert lengths == {4, 6}


def test_formats(glove, tmp_path):
    """Read GloVe's and word2vec's format, both zipped, trailing blanks and CRLF: equal vectors."""
    plain = word_vectors(glove, 1000)
    body = [f"{word} {vector}" for word, vector in lines()]
    versions = {
        "w2v.txt": "\n".join([f"{len(body)} 8", *body]),
        "trailing.vec": "\n".join([f"{len(body)} 8", *(line + " " for line in body)]) + "\n",
        "crlf.txt": "\r\n".join(body),
    }
    for name, content in versions.items():
        (tmp_path / name).write_bytes(content.encode())
        with gzip.open(tmp_path / f"{name}.gz", "wb") as file:
            file.write(content.encode())
        for path in (tmp_path / name, tmp_path / f"{name}.gz"):
            found = word_vectors(str(path), 1000)
            assert found.words == plain.words and np.array_equal(found.matrix, plain.matrix)
    first = word_vectors(glove, 5)
    assert (
        first.words == plain.words[:5]
        and first.matrix.nbytes == 5 * 8 * 4
        and {*first.rows.values()} == {*range(5)}
    )


def test_a_byte_order_mark_belongs_to_no_word(tmp_path):
    for name, first in (("glove.txt", ""), ("w2v.txt", "2 2\n")):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + f"{first}dog 3 4\ncat 1 0\n".encode())
        assert word_vectors(str(tmp_path / name), 100).words == ["dog", "cat"]


@pytest.mark.filterwarnings("error")
def test_numbers_that_overflow_are_one_message(tmp_path):
    (tmp_path / "vectors.txt").write_text("dog 1 2\ncat 1e30 1e30\n")
    with pytest.raises(AugmentationError, match="line 2: 'cat' has other than numbers"):
        word_vectors(str(tmp_path / "vectors.txt"), 100)


def test_chinese_words_of_the_parse(tmp_path):
    path = tmp_path / "zh.txt"
    path.write_text("北京 1 0\n上海 1 0.1\n他 0 1\n她 0.1 1\n", encoding="utf-8")
    sentence = ParsedSentence(
        "他去北京。", (0, 1, 2, 4), (1, 2, 4, 5), *[("",) * 4] * 3, (0, 1, 2, 3), ("",) * 4, "zh"
    )
    assert random_word_embedding(sentence, draws(), str(path), 1.0, top_k=1) == "她去上海。"


def test_files_are_read_once(glove, monkeypatch):
    word_vectors.cache_clear()
    reads = []
    read = embedding._read
    monkeypatch.setattr(embedding, "_read", lambda *arguments: reads.append(1) or read(*arguments))
    pipeline = build_texts(f"random-word-embedding:path={glove}:top_k=3|random-word-embedding:path={glove}")
    for _ in range(3):
        pipeline.texts(np.arange(5, dtype=np.uint64), [without_parse("The old dog sat by the sea.")] * 5)
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "fewer than two words of letters"),
        (b"dog 1 2\ncat 1 x\n", "line 2: 'cat' has other than numbers"),
        (b"dog 1 2\ncat nan 1\n", "line 2: 'cat' has other than numbers"),
        (b"dog 1 2\ncat 1\n", "line 2: a word and 2 numbers"),
        (b"dog\n", "line 1: a word and 1 numbers"),
        (b"2 3\ndog \x80\xff\xfe", "cannot be read as text"),
    ],
)
def test_files_that_do_not_serve(tmp_path, content, message):
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(AugmentationError, match=message):
        word_vectors(str(path), 100)
    whole = gzip.compress(os.urandom(3000).hex().encode())
    for damaged in (b"no gzip", whole[:1000], whole[:500] + b"\xff" * 200 + whole[700:]):
        (tmp_path / "broken.gz").write_bytes(damaged)
        with pytest.raises(AugmentationError, match="cannot be read as text"):
            word_vectors(str(tmp_path / "broken.gz"), 100)


def test_what_is_missing_is_said_when_a_pipeline_is_built(glove, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(AugmentationError, match=f"needs word vectors.*path=NAME .*, or in {VARIABLE}"):
        build_texts("random-word-embedding")
    with pytest.raises(AugmentationError, match="the word vectors /no/file are not a file"):
        build_texts("none|random-word-embedding:path=/no/file")
    monkeypatch.setenv(VARIABLE, glove)
    texts = build_texts("random-word-embedding").texts(
        np.arange(4, dtype=np.uint64), [without_parse("the old dog")] * 4
    )
    assert texts and all(text.startswith("the ") for text in texts.values())
