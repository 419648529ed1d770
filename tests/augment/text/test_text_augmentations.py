"""Parsed sentences, draws, and pipelines with augmentations of text work as documented."""

import pickle

import augment_tokenizers
import numpy as np
import pytest
from parse_builder import parse as by_hand

from augment.core.entry import Entry, Parameter
from augment.core.errors import AugmentationError
from augment.core.keys import bits_per_sequence, derive, sequence_keys
from augment.core.vocabulary import Vocabulary, encode
from augment.sda.entries import mv, pi
from augment.spec.build import build
from augment.spec.catalogue import CATALOGUE
from augment.spec.grammar import needs_parse, needs_text, parse
from augment.text.draws import Draws
from augment.text.encoder import TextEncoder
from augment.text.parsed import without_parse
from augment.text.parsing import find_parser, parse_texts

UNIVERSAL = by_hand(
    "The old dog was not seen.",
    "The/DT/det/3 old/JJ/amod/3 dog/NN/nsubj:pass/6 was/VBD/aux:pass/6 not/RB/advmod/6 seen/VBN/ROOT/0 "
    "././punct/6",
)
CLEARNLP = by_hand(
    "The old dog was not seen.",
    "The/DT/det/3 old/JJ/amod/3 dog/NN/nsubjpass/6 was/VBD/auxpass/6 not/RB/neg/6 seen/VBN/ROOT/0 "
    "././punct/6",
)


@pytest.mark.parametrize("sentence", [UNIVERSAL, CLEARNLP])
def test_both_label_sets_read_alike(sentence):
    relations = [sentence.relation(i) for i in range(len(sentence))]
    assert relations == ["det", "amod", "nsubj:pass", "aux:pass", "advmod", "root", "punct"]
    assert sentence.root == 5
    assert (
        sentence.children(5) == [2, 3, 4, 6]
        and sentence.subtree(2) == (0, 2)
        and sentence.subtree(5) == (0, 6)
    )
    assert sentence.auxiliaries(5) == [3] and sentence.subject(5) == 2 and sentence.verb(5) == 5
    assert sentence.with_relation(frozenset({"nsubj", "aux"})) == [2, 3]


def test_copulas_of_both_label_sets():
    universal = by_hand("She is tall.", "She/PRP/nsubj/3 is/VBZ/cop/3 tall/JJ/ROOT/0 ././punct/3")
    clear = by_hand("She is tall.", "She/PRP/nsubj/2 is/VBZ/ROOT/0 tall/JJ/acomp/2 ././punct/2")
    for sentence in (universal, clear):
        assert sentence.verb(sentence.root) == 1 and sentence.subject(sentence.root) == 0


def test_edits_leave_the_rest_untouched():
    sentence = without_parse("“Ä b”  c, d")
    assert sentence.words == ["“", "Ä", "b", "”", "c", ",", "d"]
    assert sentence.edit([]) == sentence.text
    assert sentence.edit([(7, 8, "X"), (1, 2, ""), (3, 3, "1"), (3, 3, "2")]) == "“ 12b”  X, d"
    with pytest.raises(ValueError, match="overlaps"):
        sentence.edit([(0, 3, ""), (2, 4, "")])
    with pytest.raises(ValueError, match="leaves"):
        sentence.edit([(0, 99, "")])


def test_draws_are_those_of_keys():
    keys = np.array([0, 5, 2**63, 2**64 - 1], dtype=np.uint64)
    for row, key in zip(bits_per_sequence(keys, 9).tolist(), keys.tolist()):
        draws = Draws(key)
        assert [draws.bits() for _ in range(9)] == row
        assert Draws(key).uniform() == (row[0] >> 11) * 2.0**-53


def test_draws_are_even():
    draws = [Draws(key) for key in derive(np.arange(6000, dtype=np.uint64), "x").tolist()]
    counts = np.bincount([draw.below(5) for draw in draws])
    assert len(counts) == 5 and abs(counts - 1200).max() < 5 * np.sqrt(1200)
    assert abs(np.mean([draw.chance(0.3) for draw in draws]) - 0.3) < 0.03
    many = np.array([draw.sample(range(40), 40) for draw in draws])  # more than 64 random bits tell apart
    assert (np.sort(many) == np.arange(40)).all()
    assert abs(np.bincount(many[:, 30] * 2 // 40, minlength=2) - 3000).max() < 5 * np.sqrt(1500)
    assert abs(np.corrcoef(many[:, 0], many[:, 20])[0, 1] + 1 / 39) < 0.06
    samples = [tuple(draw.sample("abc", 2)) for draw in draws]
    assert len(set(samples)) == 6 and all(len(set(sample)) == 2 for sample in samples)
    assert sorted(draws[0].sample([3, 1, 2], 9)) == [1, 2, 3]
    with pytest.raises(ValueError):
        draws[0].choice([])


@pytest.fixture(scope="module")
def prepared():
    tokenizer = augment_tokenizers.word_piece()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    encoder = TextEncoder(tokenizer.backend_tokenizer, vocabulary.cls_id, vocabulary.sep_id, 64)
    travel = by_hand(
        "He travelled widely in Europe.",
        "He/PRP/nsubj/2 travelled/VBD/ROOT/0 widely/RB/advmod/2 in/IN/case/5 Europe/NNP/obl/2 ././punct/2",
    )
    heading = by_hand(
        "A history of France!", "A/DT/det/2 history/NN/ROOT/0 of/IN/case/4 France/NNP/nmod/2 !/./punct/2"
    )
    sentences = [travel, heading] * 40
    batch = encode([sentence.text for sentence in sentences], tokenizer, vocabulary)
    return (
        vocabulary,
        encoder,
        sentences,
        batch,
        sequence_keys(3, 0, np.arange(80, dtype=np.uint64), 1, "augment"),
    )


def test_a_pipeline_gives_the_tokens_of_the_augmented_text(prepared):
    vocabulary, encoder, sentences, batch, keys = prepared
    pipeline = build("mv|pi|none", vocabulary, encoder=encoder)
    views, choices = pipeline(batch, keys, sentences), pipeline.choices(keys)
    assert set(choices.tolist()) == {0, 1, 2}
    for row, sentence in enumerate(sentences):
        name, rule = (("mv", mv), ("pi", pi), ("none", None))[choices[row]]
        new = rule(sentence, Draws(int(derive(keys[row : row + 1], 0, name)[0]))) if rule else None
        expected = batch[row] if new is None else encoder([new])[0]
        assert views[row].tolist() == expected.tolist()


def test_a_sentence_does_not_know_its_batch(prepared):
    vocabulary, encoder, sentences, batch, keys = prepared
    pipeline = pickle.loads(pickle.dumps(build("pi|mv|dn,del-word:rate=0.3", vocabulary, encoder=encoder)))
    whole, rows = pipeline(batch, keys, sentences), np.arange(79, -1, -7)
    assert pipeline(batch.take(rows), keys[rows], [sentences[row] for row in rows]) == whole.take(rows)


def test_a_function_of_batches_is_called_once_with_all_that_chose_it(prepared, monkeypatch):
    vocabulary, encoder, sentences, batch, keys = prepared
    calls = []

    def reverse(given, draws, mark):
        calls.append(len(given))
        return [
            None if own.chance(0.5) else sentence.text[::-1] + mark for sentence, own in zip(given, draws)
        ]

    loaded = []
    entry = Entry(
        name="reverse",
        paper="this test",
        parameters=(Parameter("mark", "", "put at the end", variable="REVERSE_MARK"),),
        description="backwards",
        function=reverse,
        meaning="altering",
        load=loaded.append,
        batch=True,
    )
    monkeypatch.setitem(CATALOGUE, "reverse", entry)
    monkeypatch.setenv("REVERSE_MARK", "?")
    pipeline = build("reverse|mv|none,reverse:mark=!", vocabulary, encoder=encoder)
    assert loaded == [{"mark": "?"}, {"mark": "!"}]
    found, choices = pipeline.texts(keys, sentences), pipeline.choices(keys)
    assert calls == [(choices == 0).sum(), 80]
    for row, sentence in enumerate(sentences):
        alone = pipeline.texts(keys[row : row + 1], [sentence])
        assert alone == ({0: found[row]} if row in found else {})
        own = Draws(int(derive(keys[row : row + 1], 0, "reverse")[0]))
        text = sentence.text
        if choices[row] == 0 and not own.chance(0.5):
            text = text[::-1] + "?"
        elif choices[row] == 1:
            text = mv(sentence, Draws(int(derive(keys[row : row + 1], 0, "mv")[0]))) or text
        if not Draws(int(derive(keys[row : row + 1], 1, "reverse")[0])).chance(0.5):
            text = text[::-1] + "!"
        assert found.get(row, sentence.text) == text
    assert pipeline(batch, keys, sentences) == pipeline.tokens(batch, keys, found)
    assert build("reverse", vocabulary, encoder=encoder).texts(keys[:0], []) == {}


@pytest.mark.parametrize("results", [[], ["one"], ["one", "two", "three"]])
def test_a_function_of_batches_that_loses_a_sentence_is_named(prepared, monkeypatch, results):
    entry = Entry(
        name="lossy",
        paper="this test",
        description="some",
        function=lambda given, draws: results,
        meaning="altering",
        batch=True,
    )
    monkeypatch.setitem(CATALOGUE, "lossy", entry)
    pipeline = build("lossy", prepared[0], encoder=prepared[1])
    with pytest.raises(AugmentationError, match=f"lossy gave {len(results)} results for 2 sentences"):
        pipeline.texts(prepared[4][:2], prepared[2][:2])


def test_text_and_token_augmentations_may_be_alternatives(prepared):
    vocabulary, encoder, sentences, batch, keys = prepared
    pipeline = build("mv|del-word", vocabulary, encoder=encoder)
    views, choices = pipeline(batch, keys, sentences), pipeline.choices(keys)
    has_del = [vocabulary.del_id in view for view in (views[row] for row in range(80))]
    assert has_del == (choices == 1).tolist()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("del-word,pi", "pi works on text, del-word on tokens: write 'pi,del-word'"),
        ("pi|repeat,contractions", "contractions works on text, repeat on tokens"),
        ("pi,mv", "mv reads the parse.*'pi|mv'"),
        ("dn:phrases=soun", "not one of sound, published.*did you mean 'sound'"),
    ],
)
def test_what_cannot_be(spec, message):
    with pytest.raises(AugmentationError, match=message.replace("|", r"\|")):
        parse(spec)


def test_text_is_needed(prepared):
    vocabulary, encoder, _, batch, keys = prepared
    assert needs_text("pi|repeat") and needs_parse("pi|repeat") and not needs_text("del-word,repeat")
    with pytest.raises(AugmentationError, match="--annotate MODEL"):
        build("pi", vocabulary)
    with pytest.raises(AugmentationError, match="pi works on text"):
        build("pi", vocabulary, encoder=encoder)(batch, keys)


def test_a_missing_parser_is_named(monkeypatch):
    monkeypatch.setenv("CLEAR_PARSER", "nowhere/to_be_found")
    assert find_parser() == "nowhere/to_be_found" and find_parser("mine") == "mine"
    with pytest.raises(AugmentationError, match="'nowhere/to_be_found' cannot be loaded"):
        next(parse_texts(["A text."], find_parser()))
    monkeypatch.delenv("CLEAR_PARSER")
    monkeypatch.setattr("spacy.util.get_installed_models", lambda: ["zh_core_web_sm", "en_core_web_trf"])
    assert find_parser() == "en_core_web_trf"
    monkeypatch.setattr("spacy.util.get_installed_models", lambda: [])
    with pytest.raises(AugmentationError, match=r"none is installed.*--parser"):
        find_parser()
