"""Compiled sentences and annotations give what those in Python give."""

import copy
import dataclasses
import itertools
import json
import pickle
import random

import numpy as np
import pytest
from native_sentences import COPULAS, METHODS, outcome
from parse_builder import parse as by_hand
from random_parses import CLEARNLP, RELATIONS, random_parse

from augment.text.parsed import ParsedSentence
from pretrain.data.annotation import Annotation, pack


def _fresh(sentence: ParsedSentence) -> ParsedSentence:
    """Return a copy whose children have not been looked up."""
    return dataclasses.replace(sentence)


@pytest.mark.parametrize("name", [*METHODS, "lower"])
def test_methods_of_a_word_are_those_in_python(name, sentences, plain_sentence):
    several = 0
    for sentence in map(_fresh, sentences):
        plain = plain_sentence(sentence)
        found, expected = (
            [outcome(getattr(kind, name), i) for i in range(len(sentence) + 1)] for kind in (sentence, plain)
        )
        assert found == expected, sentence
        several += len(set(map(repr, found))) > 1
    assert several > 100


@pytest.mark.parametrize("name", ["word", "children", "relation", "auxiliaries"])
def test_words_are_counted_from_the_end_too(name, sentences, plain_sentence):
    for sentence in map(_fresh, sentences):
        plain = plain_sentence(sentence)
        for i in range(-len(sentence), 0):
            found, expected = (outcome(getattr(kind, name), i) for kind in (sentence, plain))
            assert found == expected, f"{name}({i}) of {sentence}"
            assert found == getattr(sentence, name)(len(sentence) + i)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "verb"])
@pytest.mark.parametrize("kind", ["compiled", "python"])
def test_there_is_no_word_out_of_range(name, kind, sentences, plain_sentence):
    for sentence in map(_fresh, sentences[::20] + COPULAS):
        sentence = sentence if kind == "compiled" else plain_sentence(sentence)
        for i in (len(sentence), len(sentence) + 1, -len(sentence) - 1, 2**31, -(2**31), 2**70):
            with pytest.raises(IndexError):
                getattr(sentence, name)(i)


def test_indexes_may_be_those_of_numpy(sentences, plain_sentence):
    sentence = sentences[1]
    plain = plain_sentence(sentence)
    for name, i in itertools.product(METHODS, range(len(sentence))):
        assert (
            getattr(sentence, name)(np.int64(i))
            == getattr(plain, name)(np.int64(i))
            == getattr(sentence, name)(i)
        )


def test_words_and_relations_of_a_sentence_are_those_in_python(sentences, plain_sentence):
    rng = random.Random(0)
    labels = sorted({label.partition(":")[0] for label in (*RELATIONS, *CLEARNLP, "root")})
    found = 0
    for sentence in sentences:
        plain = plain_sentence(sentence)
        assert sentence.words == plain.words == [sentence.word(i) for i in range(len(sentence))]
        assert len(sentence) == len(plain)
        for _ in range(5):
            wanted = frozenset(rng.sample(labels, rng.choice([0, 1, 3, 10])))
            assert (
                sentence.with_relation(wanted)
                == sentence.with_relation(set(wanted))
                == plain.with_relation(wanted)
            )
            found += len(sentence.with_relation(wanted))
    assert found > 100


def test_labels_that_nobody_has_met_are_read(plain_sentence):
    sentence = by_hand("A b c", "A/DT/made:up/2 b/NN/ROOT/0 c/NN/nöch:eins/2")
    for kind in (sentence, plain_sentence(sentence)):
        assert kind.with_relation(frozenset({"made", "nöch"})) == [0, 2] and kind.relation(2) == "nöch:eins"


def test_compiled_methods_say_what_they_do():
    assert ParsedSentence.children.__doc__.startswith("Return the words that depend on word i")
    assert all(
        getattr(ParsedSentence, name).__doc__
        for name in ("words", "with_relation", "subtree", "subject", "verb")
    )


def test_children_are_listed_once(sentences):
    for sentence in map(_fresh, sentences):
        lists = [sentence.children(i) for i in range(len(sentence))]
        assert all(sentence.children(i) is own for i, own in enumerate(lists))
        assert all(sentence.heads[child] == i for i, own in enumerate(lists) for child in own)


def test_heads_outside_the_sentence_raise(plain_sentence):
    sentence = dataclasses.replace(COPULAS[0], heads=(2, 2, 2, 4))
    for kind in (sentence, plain_sentence(sentence)):
        for name in ("children", "subtree", "auxiliaries", "subject"):
            with pytest.raises(IndexError):
                getattr(kind, name)(0)


# -- Annotation ------------------------------------------------------------


def _annotated(members: dict[str, bytes], language: str = "en") -> list[ParsedSentence]:
    annotation = Annotation(members, language)
    return [annotation[row] for row in range(len(annotation))]


@pytest.fixture(scope="module")
def annotated(sentences):
    """Return (read from an annotation, as packed) of every sentence."""
    given = [dataclasses.replace(sentence, language="en") for sentence in sentences]
    return list(zip(_annotated(pack(given)), given, strict=True))


def test_sentences_come_back_as_they_were_packed(annotated, plain_sentence):
    for read, given in annotated:
        assert read == given and given == read
        for name in (field.name for field in dataclasses.fields(ParsedSentence) if field.init):
            found, expected = getattr(read, name), getattr(given, name)
            assert type(found) is type(expected) and found == expected
    members = pack([given for _, given in annotated])
    assert pack([read for read, _ in annotated]) == members
    assert pack([plain_sentence(given) for _, given in annotated]) == members
    assert _annotated(pack([])) == []


def test_sentences_of_an_annotation_are_like_others(annotated):
    for read, given in annotated:
        assert type(read) is ParsedSentence
        assert hash(read) == hash(given) and repr(read) == repr(given)
        assert len({read, given}) == 1
        for _ in range(2):  # before and after a look at its words
            for again in (pickle.loads(pickle.dumps(read)), copy.copy(read), copy.deepcopy(read)):
                assert type(again) is ParsedSentence and again == given and hash(again) == hash(given)
                assert again.words == given.words
                assert [again.children(i) for i in range(len(again))] == [
                    given.children(i) for i in range(len(given))
                ]
            assert dataclasses.replace(read) == given
            assert dataclasses.replace(read, text="x") == dataclasses.replace(given, text="x") != given
            assert dataclasses.astuple(read)[:9] == dataclasses.astuple(given)[:9]
            assert [read.verb(i) for i in range(len(given))] == [given.verb(i) for i in range(len(given))]
            assert [read.children(i) for i in range(len(given))] == [
                given.children(i) for i in range(len(given))
            ]
        with pytest.raises(dataclasses.FrozenInstanceError):
            read.text = "another"


def test_annotations_can_be_copied(sentences):
    annotation = Annotation(pack(sentences[:3]), "en")
    for again in (pickle.loads(pickle.dumps(annotation)), copy.deepcopy(annotation)):
        assert [again[row] for row in range(3)] == [annotation[row] for row in range(3)]


def test_languages_are_kept():
    members = pack([random_parse(3, "zh")])
    (sentence,) = _annotated(members, "zh")
    assert sentence == random_parse(3, "zh") and not sentence.is_english


@pytest.mark.parametrize("far", [0, 200])
@pytest.mark.parametrize("name", ["word_tags.u16", "word_relations.u8", "word_lemmas.u16", "word_heads.u16"])
def test_rows_outside_their_table_raise(name, far):
    members = pack(COPULAS[:2])
    tables = json.loads(members["tables.json"])
    sizes = {"word_lemmas.u16": 1, "word_heads.u16": len(COPULAS[1])}  # lemma 0 is in no table
    size = sizes[name] if name in sizes else len(tables[name.partition(".")[0].partition("_")[2]])
    assert tables["lemmas"] == []
    kind = "u1" if name.endswith("u8") else "<u2"
    members[name] = np.full(len(np.frombuffer(members[name], kind)), size + far, kind).tobytes()

    def read():
        for sentence in _annotated(members):
            assert all(sentence.lemmas[i] for i in range(len(sentence)))
            sentence.children(0)

    with pytest.raises(
        ValueError, match=r"names a row that its table does not have|a word that is not there"
    ):
        read()


def test_there_is_no_sentence_out_of_range():
    annotation = Annotation(pack(COPULAS), "en")
    for row in (len(COPULAS), len(COPULAS) + 1):
        with pytest.raises(IndexError):
            annotation[row]
