"""Parsed sentences, draws, specifications with text in them, and the way from strings back to tokens."""

import pickle
import random

import augment_tokenizers
import numpy as np
import pytest
from parse_builder import parse as by_hand
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from augment.core.compiled import native
from augment.core.entry import Entry, Parameter
from augment.core.errors import AugmentationError
from augment.core.keys import bits_per_sequence, derive, sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from augment.preview import encode
from augment.sda.entries import mv, pi
from augment.spec.build import build
from augment.spec.catalogue import CATALOGUE
from augment.spec.grammar import needs_parse, needs_text, parse
from augment.text.draws import Draws
from augment.text.encoder import TextEncoder
from augment.text.parsed import find_parser, parse_texts, without_parse
from pretrain.data.tokenizer import train_tokenizer

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
TEXTS = [
    "He travelled widely in Europe.",
    "  Two  spaces , a tab\tand a\u00a0hard one ",
    "Naïve café 北京 — “quoted” 😀 e\u0301 \u0301x",
    "don't 'quote' 's it's -- https://x.org/a?b=c [MASK] [DEL]x end",
    "",
    " ",
    "A",
]


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


@pytest.fixture(params=["compiled", "python"])
def both_kinds(request, monkeypatch):
    """Encoders with their pieces compiled, and with those in Python."""
    if request.param == "python":
        monkeypatch.setattr("augment.text.encoder.native", None)
    elif native is None:
        pytest.skip("augment._native is not there, or not to be used")


@pytest.mark.usefixtures("both_kinds")
@pytest.mark.parametrize(
    "make", [augment_tokenizers.byte_level, augment_tokenizers.word_piece, augment_tokenizers.metaspace]
)
def test_encoder_gives_the_tokens_of_the_tokenizer(make):
    """By pieces or whole: what stands beside a word does not change it, and what would is not taken apart."""
    tokenizer = make()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    encoder = TextEncoder(tokenizer.backend_tokenizer, vocabulary.cls_id, vocabulary.sep_id, 1000)
    rng = np.random.default_rng(0)
    words = [*" ".join(TEXTS).split(" "), "x\u00a0", "\ty", "1,000.5", "'s"]
    texts = TEXTS + [" ".join(rng.choice(words, 12)) for _ in range(200)]
    expected = encode(texts, tokenizer, vocabulary)
    for _ in range(2):  # learned, and known
        assert encoder(texts) == expected
    assert pickle.loads(pickle.dumps(encoder))(texts) == expected
    assert encoder([]).num_tokens == 0
    short = TextEncoder(tokenizer.backend_tokenizer, vocabulary.cls_id, vocabulary.sep_id, 5)(texts)
    assert short.lengths.max() == 5 and short[0].tolist() == [*expected[0][:4], expected[0][-1]]


LETTERS = (
    "abcXYZ0189.,'\"!?()[]-/\\@#$%&*_+=~`|<>{};: \t\n\x00\x1f\x7fé’“—ü\u00a0\u2028\u0301中文ﬁ²İß\u200b     "
)
PIECES = ["don't", "IT'S", "'VE", "n't", "...", "--", "[MASK]", "##ing", "1st", "U.S.", "  ", "\u00a0"]


def _changed(make, **parts):
    tokenizer = make()
    for name, part in parts.items():
        setattr(tokenizer.backend_tokenizer, name, part)
    return tokenizer


def _with_words(tokenizer, words):
    tokenizer.add_tokens(words)
    return tokenizer


# every kind whose words are told apart, with the normalizers that may stand before them; one of another kind
TOKENIZERS = {
    "byte level": lambda: _changed(augment_tokenizers.byte_level),
    "with a space in front": lambda: _changed(
        augment_tokenizers.byte_level, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)
    ),
    "in lower case": lambda: _changed(
        augment_tokenizers.byte_level,
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    ),
    "word piece": lambda: _changed(
        augment_tokenizers.word_piece, normalizer=normalizers.BertNormalizer(lowercase=False)
    ),
    "without accents": lambda: _changed(
        augment_tokenizers.word_piece, normalizer=normalizers.BertNormalizer(strip_accents=True)
    ),
    "not cleaned": lambda: _changed(
        augment_tokenizers.word_piece, normalizer=normalizers.BertNormalizer(clean_text=False)
    ),
    "prepared": lambda: train_tokenizer(iter(TEXTS * 20), "bpe", 420),
    "prepared, in lower case": lambda: train_tokenizer(iter(TEXTS * 20), "bpe", 420, lowercase=True),
    "prepared, word piece": lambda: train_tokenizer(iter(TEXTS * 20), "wordpiece", 400, lowercase=True),
    "line feeds behind spaces": lambda: train_tokenizer(iter([" \n good \n film"] * 50), "bpe", 420),
    "line feeds become spaces": lambda: _changed(
        augment_tokenizers.byte_level, normalizer=normalizers.BertNormalizer()
    ),
    "with added words": lambda: _with_words(
        augment_tokenizers.word_piece(), ["C++", AddedToken("ing", single_word=True)]
    ),
    "with an added line feed": lambda: _with_words(
        augment_tokenizers.byte_level(), ["\n", AddedToken("'s", lstrip=True)]
    ),
    "of another kind": augment_tokenizers.metaspace,
}


# not word by word
WHOLE = {"line feeds become spaces", "with added words", "with an added line feed", "of another kind"}


@pytest.mark.usefixtures("both_kinds")
@pytest.mark.parametrize("name", TOKENIZERS)
def test_encoder_takes_any_text(name, monkeypatch):
    """Random texts of what parts words, alone and with the tokens of the texts that they were made from; it
    forgets at times."""
    monkeypatch.setattr("augment.text.encoder.MOST_PIECES", 100)
    monkeypatch.setattr("augment.text.words.MOST_WORDS", 100)
    tokenizer = TOKENIZERS[name]()
    rng = random.Random(0)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    encoder = TextEncoder(tokenizer.backend_tokenizer, vocabulary.cls_id, vocabulary.sep_id, 60)
    assert (name in WHOLE) == (encoder._words is None)

    def text() -> str:
        return "".join(
            rng.choice(LETTERS if rng.random() < 0.7 else PIECES) for _ in range(rng.randint(0, 40))
        )

    def expected(texts):
        rows = [row[:58] for row in tokenizer(texts, add_special_tokens=False)["input_ids"]]
        return Ragged.from_sequences([[vocabulary.cls_id, *row, vocabulary.sep_id] for row in rows])

    for _ in range(20):
        origins = [text() if rng.random() < 0.5 else rng.choice(TEXTS) for _ in range(60)]
        texts = [
            " ".join(rng.sample(origin.split(" "), origin.count(" ") + 1)) + rng.choice(["", ".", "!"])
            for origin in origins
        ]
        texts = [rng.choice([new, new.swapcase(), text()]) for new in texts]
        tokens = expected(origins)
        assert encoder(texts, origins, tokens) == expected(texts)
        # stored shorter than they are
        cut = Ragged.from_sequences([row[:4] for row in map(tokens.__getitem__, range(60))])
        assert encoder(texts, origins, cut) == expected(texts)
        assert encoder(texts[:1], origins[:1], tokens.slice(0, 1)) == expected(texts[:1])
        assert encoder(origins) == tokens


ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
ACROSS = [("Â", "ł"), ("Âł", "Ġ")]  # a no-break space, and the space behind it


@pytest.mark.usefixtures("both_kinds")
@pytest.mark.parametrize(
    ("normalizer", "letters", "merges", "origin", "text"),
    [
        (None, ALPHABET, ACROSS, "x \xa0 a\xa0 b", "x a\xa0 \xa0 b"),
        (None, ALPHABET, ACROSS, "x a\xa0 b", "x b a\xa0 b"),
        (
            normalizers.Sequence([normalizers.NFKC(), normalizers.StripAccents()]),
            ALPHABET,
            [],
            "\u0302 xx¨½⑽",
            "\u0302 zz",
        ),
        # with a letter that is no byte's
        (None, ["a", "b", "x", "Ġ", "Ċ", "北"], [("x", "北")], "a x b", "b a x"),
    ],
)
def test_white_space_and_vocabularies_that_few_tokenizers_have(normalizer, letters, merges, origin, text):
    names = list(dict.fromkeys(["[CLS]", "[SEP]", *letters, *map("".join, merges)]))
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    expected = {
        string: [0, *tokenizer.encode(string, add_special_tokens=False).ids, 1] for string in (origin, text)
    }
    encoder = TextEncoder(tokenizer, 0, 1, 100)
    for _ in range(2):
        assert (
            encoder([text], [origin], Ragged.from_sequences([expected[origin]]))[0].tolist() == expected[text]
        )
        assert encoder([origin])[0].tolist() == expected[origin]


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
        "reverse", "text", "this test", (Parameter("mark", "", "put at the end", variable="REVERSE_MARK"),),
        "backwards",
        "reverse", reverse, "altering", load=loaded.append, batch=True,
    )  # fmt: skip
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
        "lossy",
        "text",
        "this test",
        (),
        "some",
        "lossy",
        lambda given, draws: results,
        "altering",
        batch=True,
    )
    monkeypatch.setitem(CATALOGUE, "lossy", entry)
    pipeline = build("lossy", prepared[0], encoder=prepared[1])
    with pytest.raises(
        AugmentationError, match=f"augmentation lossy gave {len(results)} results for 2 sentences"
    ):
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
        ("del-word,pi", "pi works on text and stands behind del-word.*'pi,del-word'"),
        ("pi|repeat,contractions", "contractions works on text and stands behind repeat"),
        ("pi,mv", "mv reads the parse.*'pi|mv'"),
        ("neg:variant=cod", "none of paper, code.*did you mean 'code'"),
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
