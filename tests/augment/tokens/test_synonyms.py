"""Synonym tables read their sources, match whole words as a plain search does, and substitute."""

import gzip
import json
import pickle
import zipfile
from pathlib import Path

import augment_tokenizers
import numpy as np
import pytest
from real_data import DATA, needs_data

from augment.core.errors import AugmentationError
from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary, encode
from augment.tokens.rules import subs
from augment.tokens.synonyms import SynonymTable, find_synonyms, read_synonyms

WORDS = {
    "good": ["fine", "great"],
    "big": ["large"],
    "movie": ["film", "cinematography"],
    "house": ["home", "dwelling"],
    "unbelievably": ["very"],
    "was": [],
}
SENTENCES = [
    "the good movie was a big house",
    "Good films, (big) house; House HOUSE unbelievably",
    "goodly movies are housed biggest",
    "",
    "nothing here",
    "big big big big big big big big big big",
]
FAMILIES = [
    augment_tokenizers.word_piece,
    augment_tokenizers.byte_level,
    lambda: augment_tokenizers.word_piece(500, lowercase=False),
    augment_tokenizers.metaspace,
]


def make(family):
    tokenizer = family()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    words = {word: synonyms for word, synonyms in WORDS.items() if synonyms}
    return tokenizer, vocabulary, SynonymTable.from_words(words, tokenizer, vocabulary)


def spelled(tokenizer, tokens) -> str:
    return tokenizer.decode(list(map(int, tokens))).replace(" ##", "").replace("##", "").strip()


def keys_for(batch: Ragged, seed: int = 0) -> np.ndarray:
    return sequence_keys(seed, 0, np.arange(len(batch), dtype=np.uint64), 0, "augment")


@pytest.mark.parametrize("family", FAMILIES)
def test_finds_whole_words_in_every_form(family):
    tokenizer, vocabulary, table = make(family)
    batch = encode(SENTENCES, tokenizer, vocabulary)
    starts, lengths, entries = table.match(batch.ids)
    found = [spelled(tokenizer, batch.ids[s : s + n]) for s, n in zip(starts, lengths, strict=True)]
    lower = [word.lower() for word in found]
    first = ["good", "movie", "big", "house", "good", "big", "house", "house", "house", "unbelievably"]
    if family is augment_tokenizers.metaspace:
        del first[5]  # "(big)": the form without a space mark is not among those that it tells apart
    assert lower == [*first, *["big"] * 10]
    for word, entry, start, length in zip(found, entries, starts, lengths, strict=True):
        head = table.heads[table.head_offsets[entry] : table.head_offsets[entry + 1]]
        assert np.array_equal(head, batch.ids[start : start + length])
        group = range(table.neighbour_offsets[entry], table.neighbour_offsets[entry + 1])
        others = [spelled(tokenizer, table.tokens[slice(*table.token_offsets[s : s + 2])]) for s in group]
        assert set(others) <= {
            case(o) for o in WORDS[word.lower()] for case in (str, str.upper, str.capitalize)
        }
        if word != word.lower():  # the synonym is written as the word is
            assert all((other.isupper() if word.isupper() else other[0].isupper()) for other in others)


@pytest.mark.parametrize("family", FAMILIES[:3])
def test_match_equals_a_plain_search(family):
    _, vocabulary, table = make(family)
    heads = {}
    for entry in range(len(table)):
        tokens = table.heads[table.head_offsets[entry] : table.head_offsets[entry + 1]]
        heads[tuple(tokens.tolist())] = entry
    assert len(heads) == len(table)
    rng = np.random.default_rng(0)
    pieces = [list(head) for head in heads] * 20 + [[i] for i in np.flatnonzero(~vocabulary.special).tolist()]
    rows = []
    for length in rng.integers(0, 40, 100):
        row = [token for piece in rng.integers(0, len(pieces), length) for token in pieces[piece]]
        rows.append([vocabulary.cls_id, *row, vocabulary.sep_id])
    batch = Ragged.from_sequences(rows)
    flags = [*vocabulary.word_starts(batch.ids).tolist(), True]
    expected, begin = [], 0
    for place in range(1, len(flags)):
        if flags[place]:
            word = tuple(batch.ids[begin:place].tolist())
            if word in heads:
                expected.append((begin, place - begin, heads[word]))
            begin = place
    assert list(zip(*(array.tolist() for array in table.match(batch.ids)), strict=True)) == expected
    assert len(expected) > 100
    covered = sum(length for _, length, _ in expected)
    assert table.coverage(batch) == covered / int((~vocabulary.special[batch.ids]).sum())


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("family", FAMILIES[:3])
def test_substitution_takes_whole_words_up_to_the_rate(family, rate):
    tokenizer, vocabulary, table = make(family)
    sentences = [
        *SENTENCES,
        "big",  # of which the rate takes less than half a token
        *[" ".join(np.random.default_rng(i).permutation([*WORDS] * 3)) for i in range(60)],
    ]
    batch = encode(sentences, tokenizer, vocabulary)
    keys = keys_for(batch)
    result = subs(batch, keys, vocabulary, synonyms=table, rate=rate)
    starts, lengths, entries = table.match(batch.ids)
    for index in range(len(batch)):
        low, high = batch.offsets[index], batch.offsets[index + 1]
        inside = (starts >= low) & (starts < high)
        places = dict(
            zip(starts[inside] - low, zip(lengths[inside], entries[inside], strict=True), strict=True)
        )
        # Read both along each other: where a word stood, the result has it or a synonym of it.
        options = _align(batch[index].tolist(), result[index].tolist(), places, table)
        assert options, (sentences[index], spelled(tokenizer, result[index]))
        size = high - low - 2
        target = max(round(rate * size), 1 if rate else 0)
        sizes = [length for length, _ in places.values()]
        longest = max(sizes, default=0)
        assert any(min(target, sum(sizes)) <= replaced < target + max(longest, 1) for replaced in options)
    if rate == 0:
        assert result == batch


def _align(row, view, places, table) -> set[int]:
    """Return numbers of replaced tokens under which `view` is `row` with words replaced by synonyms."""
    states = {(0, 0): {0}}
    answers = set()
    while states:
        following = {}
        for (i, j), counts in states.items():
            if i == len(row):
                answers |= counts if j == len(view) else set()
                continue
            moves = []
            if j < len(view) and row[i] == view[j]:
                moves.append((1, 1, 0))
            if i in places:
                length, entry = places[i]
                for s in range(table.neighbour_offsets[entry], table.neighbour_offsets[entry + 1]):
                    synonym = table.tokens[table.token_offsets[s] : table.token_offsets[s + 1]].tolist()
                    if view[j : j + len(synonym)] == synonym:
                        moves.append((int(length), len(synonym), int(length)))
            for di, dj, replaced in moves:
                following.setdefault((i + di, j + dj), set()).update(count + replaced for count in counts)
        states = following
    return answers


def test_substitution_by_hand():
    tokenizer, vocabulary, table = make(augment_tokenizers.word_piece)
    batch = encode(["the big house was big", "Big?", "was the"], tokenizer, vocabulary)
    seen = set()
    for seed in range(40):
        result = subs(batch, keys_for(batch, seed), vocabulary, synonyms=table, rate=1.0)
        texts = [spelled(tokenizer, result[index][1:-1]) for index in range(3)]
        assert texts[1:] in (["large?", "was the"], ["large ?", "was the"])
        seen.add(texts[0])
    assert seen == {"the large home was large", "the large dwelling was large"}


def test_substitution_does_not_know_the_batch():
    tokenizer, vocabulary, table = make(augment_tokenizers.byte_level)
    sentences = [" ".join(np.random.default_rng(i).permutation([*WORDS] * (i % 5))) for i in range(80)]
    batch = encode(sentences, tokenizer, vocabulary)
    keys = keys_for(batch)
    whole = subs(batch, keys, vocabulary, synonyms=table)
    order = np.random.default_rng(0).permutation(len(batch))
    assert subs(batch.take(order), keys[order], vocabulary, synonyms=table) == whole.take(order)
    parts = [
        subs(batch.slice(i, i + 9), keys[i : i + 9], vocabulary, synonyms=table)
        for i in range(0, len(batch), 9)
    ]
    assert Ragged.concatenate(parts) == whole
    assert (
        pickle.loads(pickle.dumps(table)).match(batch.ids)[0].tolist() == table.match(batch.ids)[0].tolist()
    )


def test_synonyms_are_drawn_evenly():
    tokenizer, vocabulary, table = make(augment_tokenizers.word_piece)
    batch = encode(["good"] * 4000, tokenizer, vocabulary)
    result = subs(batch, keys_for(batch), vocabulary, synonyms=table, rate=1.0)
    fine = [vocabulary.cls_id, *tokenizer("fine", add_special_tokens=False)["input_ids"], vocabulary.sep_id]
    count = sum(result[index].tolist() == fine for index in range(4000))
    assert abs(count - 2000) < 5 * np.sqrt(1000)


# Sources

EXPECTED = {"big": ["large", "great"], "large": ["big"]}


def test_json_sources(tmp_path):
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps({"Big": ["large", "great", "big"], "large": ["big"], "none": []}))
    assert read_synonyms(plain) == EXPECTED
    nested = tmp_path / "nested.json.gz"
    with gzip.open(nested, "wt") as file:
        json.dump({"a": {"big": ["large"], "large": ["big"]}, "n": {"big": ["great", "large"]}}, file)
    assert read_synonyms(nested) == EXPECTED


def test_wordnet_sources(tmp_path):
    folder = tmp_path / "wordnet"
    folder.mkdir()
    (folder / "data.adj").write_text(
        "  1 This software and database is being provided to you\n"
        "00000001 00 a 03 big 0 large(p) 0 well-known_thing 0 001 & 00000002 a 0000 | above average\n"
        "00000002 00 s 01 alone 0 000 | no synonym\n"
    )
    (folder / "data.noun").write_text("00000003 03 n 02 Big 0 shot 0 000 | a person\n")
    expected = {
        "big": ["shot", "large", "well-known thing"],
        "shot": ["Big"],
        "large": ["big", "well-known thing"],
        "well-known thing": ["big", "large"],
    }
    assert read_synonyms(folder) == expected
    archive = tmp_path / "wordnet.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for member in ("data.noun", "data.adj"):
            file.write(folder / member, f"wordnet/{member}")
    assert read_synonyms(archive) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "[1]", "no JSON object"),
        ("a.json", '{"a": "b"}', "not a list of words"),
        ("a.json", "{", "cannot be read"),
        ("a.json", '{"a": ' + "[" * 50_000, "cannot be read"),
        ("a.json", '{"a": []}', "no word with a synonym"),
        ("a.json.gz", "no gzip", "cannot be read"),
        ("a.zip", "no zip", "cannot be read"),
        ("missing.json", None, "does not exist"),
    ],
)
def test_bad_sources_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(AugmentationError, match=f"{name}.*{message}"):
        read_synonyms(tmp_path / name)


def test_where_tables_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEAR_DATA", str(tmp_path))
    table = tmp_path / "synonyms" / "counterfitted_neighbors.json"
    table.parent.mkdir()
    table.write_text("{}")
    assert find_synonyms() == table
    monkeypatch.delenv("CLEAR_DATA")
    monkeypatch.setattr(Path, "exists", lambda self: False)
    with pytest.raises(AugmentationError, match="no synonym table found"):
        find_synonyms()


@pytest.mark.full
@needs_data("text/wiki_sentences_200k.txt.gz", "synonyms/counterfitted_neighbors.json")
def test_clear_covers_about_two_fifths_of_wikipedia():
    from pretrain.data.tokenizer import tokenizer_of

    with gzip.open(DATA / "text" / "wiki_sentences_200k.txt.gz", "rt", encoding="utf-8") as file:
        sentences = [line.strip() for _, line in zip(range(2000), file, strict=False)]
    tokenizer = tokenizer_of(sentences)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    table = SynonymTable.load(DATA / "synonyms" / "counterfitted_neighbors.json", tokenizer, vocabulary)
    assert 0.35 < table.coverage(encode(sentences, tokenizer, vocabulary)) < 0.5
