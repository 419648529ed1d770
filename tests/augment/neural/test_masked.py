"""Words from tiny random masked language models: which may come where, and how often each is drawn."""

import pickle
import re

import numpy as np
import pytest
import torch
from parse_builder import draws
from random_parses import words_of
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from augment.core.errors import AugmentationError
from augment.core.vocabulary import Vocabulary
from augment.neural import masked
from augment.neural.masked import contextual
from augment.neural.models import DEVICE, load_masked_lm, on_device, padded_batches
from augment.spec.build import build, build_texts
from augment.spec.grammar import parse
from augment.text.draws import draws_for
from augment.text.encoder import TextEncoder
from augment.text.parsed import ParsedSentence, without_parse

VARIABLE = "CLEAR_MASKED_LM"
WORDS = [*words_of("the a an old man sat by sea apple house red he saw paris i"), *"中国人"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.3,
}
TEXTS = (
    "The old man sat by the sea.",
    "He saw Paris, a red house (by the sea) and  an apple!",
    'He said: "the old man isn\'t well-known at https://sea.house/red in the U.S."',
    "the",
    "...",
    "",
    "Old men in the NATO saw 12 Schröders, he 'saw' déjà a house.",
)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    pieces = [*SPECIAL, *WORDS, ".", ",", "!", "##s", "##ed", *"bcdefgh", "12"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece()
    torch.manual_seed(0)
    lm = BertForMaskedLM(BertConfig(vocab_size=len(pieces), max_position_embeddings=66, **SIZES))
    return save(folder, tokenizer, lm, SPECIAL)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    folder = tmp_path_factory.mktemp("roberta")
    special = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: i for i, piece in enumerate([*special, *alphabet])}
    merges = []
    for word in ("the", "old", "Man", "sea", "Paris", "saw", "apple", "ing"):
        for start in ("Ġ", ""):
            if word == "ing" and start:
                continue
            letters = list(start + word)
            while len(letters) > 1:
                merge = (letters[0], letters[1])
                if merge not in merges:
                    merges.append(merge)
                vocabulary.setdefault("".join(merge), len(vocabulary))
                letters[:2] = ["".join(merge)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1), add_prefix_space=False)
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=len(vocabulary),
        max_position_embeddings=66,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **SIZES,
    )
    return save(folder, tokenizer, RobertaForMaskedLM(config), special)


def save(folder, tokenizer, lm, special):
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    if special is not SPECIAL:
        names = ("pad_token", "cls_token", "sep_token", "unk_token", "mask_token")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, **dict(zip(names, special))
    ).save_pretrained(folder)
    lm.save_pretrained(folder)
    return str(folder)


def many(text, model, count, **parameters):
    sentence = without_parse(text)
    return contextual(
        [sentence] * count, draws_for(np.arange(count, dtype=np.uint64), "contextual"), model, **parameters
    )


def one(sentence, own, model, *parameters):
    """Augment a sentence alone."""
    return contextual([sentence], [own], model, *parameters)[0]


def test_only_the_chosen_words_change(bert):
    sentence = without_parse(TEXTS[0])
    for rate, count in ((0.05, 1), (0.1, 1), (0.2, 2), (0.3, 3), (1.0, 7), (0.0, 0)):
        for new in many(TEXTS[0], bert, 20, rate=rate):
            if count == 0:
                assert new is None
                continue
            assert re.fullmatch(r"[A-Z]?\w*( \w+){6}\.", new), new
            pairs = list(zip(sentence.words, re.findall(r"\w+", new)))
            assert sum(a.lower() != b.lower() for a, b in pairs) == count
            assert all(a == b or a.lower() != b.lower() for a, b in pairs)


@pytest.mark.parametrize("keys", [range(2), pytest.param(range(2, 20), marks=pytest.mark.full)])
def test_what_is_no_plain_word_stays(bert, keys):
    for key in keys:
        for text in TEXTS:
            new = one(without_parse(text), draws(key), bert, 1.0)
            assert new != text
            if new is None:
                continue
            skeleton = re.compile(r"[^\W\d_]+")
            assert skeleton.sub("w", new) == skeleton.sub("w", text)  # spaces, quotes, numbers, marks
            for kept in (
                "https://sea.house/red",
                "well-known",
                "isn't",
                "U.S.",
                "NATO",
                "Paris",
                "Schröders",
                "12",
                "  ",
            ):
                assert kept not in text or kept in new, new
            assert not re.search(r"(?i)\b(\w+) \1\b", new), new
            assert not re.search(r"(?i)\b(a (apple|old|an|i)|an (?!apple|old|i|a\b)\w+)\b", new), new
            assert new[:1].isupper() == text[:1].isupper() or new[0] == "I"
    assert [one(without_parse(text), draws(), bert, 1.0) for text in ("...", "", "12")] == [None] * 3


def test_insertion(bert, roberta):
    for model in (bert, roberta):
        for new in many(TEXTS[0], model, 30, rate=0.3, action="insert"):
            words, rest = re.findall(r"\w+", new), iter(re.findall(r"\w+", TEXTS[0]))
            assert len(words) == 10 and new.endswith(".") and "  " not in new and new.startswith("The ")
            missing = next(rest)
            for word in words:
                missing = next(rest, None) if word == missing else missing
            assert missing is None
    lengths = {len(new.split()) for new in many(TEXTS[0], bert, 40, rate=0.3, action="random")}
    assert lengths == {7, 10}


def test_words_are_drawn_from_the_models_distribution(bert):
    """Compare frequencies of 4,000 draws for one masked word with softmax over the allowed words."""
    lm, tokenizer = load_masked_lm(bert)
    found = many("He saw", bert, 4000, rate=0.5)
    first = [new.split()[0].lower() for new in found if new.endswith(" saw")]
    with torch.inference_mode():
        logits = lm.double()(**tokenizer("[MASK] saw", return_tensors="pt")).logits[0, 1]
    lm.float()
    allowed = [word for word in WORDS if word.isascii() and word not in ("he", "saw", "an")]  # "a saw"
    p = torch.softmax(logits[tokenizer.convert_tokens_to_ids(allowed)], 0).numpy()
    counts = np.array([first.count(word) for word in allowed])
    assert counts.sum() == len(first) and 1800 < len(first) < 2200
    assert (np.abs(counts - p * len(first)) < 5 * np.sqrt(p * (1 - p) * len(first)) + 1).all()
    likeliest = [allowed[i] for i in p.argsort()[-3:]]
    of_three = {
        new.split()[0].lower() for new in many("He saw", bert, 100, rate=0.5, top_k=3) if new.endswith(" saw")
    }
    assert of_three == {*likeliest}


def test_a_sentence_does_not_know_its_batch(bert, roberta):
    sentences = [without_parse(text) for text in TEXTS * 6]
    keys = np.arange(len(sentences), dtype=np.uint64)
    for model in (bert, roberta):
        together = contextual(sentences, draws_for(keys, "contextual"), model, 0.3, "random")
        assert together == [
            one(sentence, own, model, 0.3, "random")
            for sentence, own in zip(sentences, draws_for(keys, "contextual"))
        ]
        assert len({*together}) > 12
        others = contextual(sentences, draws_for(keys, "random-contextual-word"), model, 0.3, "random")
        assert others != together


@pytest.fixture(scope="module")
def wide(bert, tmp_path_factory):
    """Return a model with matrices large enough for a library to cut them in different ways."""
    folder = tmp_path_factory.mktemp("wide")
    tokenizer = load_masked_lm(bert).tokenizer
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=320,
        num_hidden_layers=2,
        num_attention_heads=5,
        intermediate_size=640,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_scores_are_the_same_to_the_bit_whoever_shares_the_batch(wide):
    """Compare scores alone, in any place, beside any others: not only the drawn word is the same."""
    loaded = on_device(load_masked_lm(wide))
    random = np.random.default_rng(0)
    sequences = [
        [2, *random.integers(5, 20, length).tolist(), 4, 3] for length in random.integers(1, 60, 150)
    ]

    def scores(order):
        rows = {}
        for batch in padded_batches(loaded, [sequences[i] for i in order], 64):
            logits = masked._at_masks(
                loaded.model, batch, [len(sequences[order[row]]) - 2 for row in batch.rows]
            )
            assert batch.ids.shape[0] == loaded.rows and batch.mask[:, -1].sum() == 0
            rows |= {order[number]: logits[place] for place, number in enumerate(batch.numbers)}
        return rows

    whole, shuffled = scores(range(150)), scores(random.permutation(150).tolist())
    assert sorted(whole) == sorted(shuffled) == [*range(150)]
    assert all(torch.equal(whole[i], shuffled[i]) for i in range(150))
    for i in range(0, 150, 25):
        assert torch.equal(scores([i])[i], whole[i])
    plain = loaded.model(input_ids=torch.tensor([sequences[0]])).logits[0, -2]  # neither padding nor others
    torch.testing.assert_close(whole[0], plain, rtol=1e-4, atol=1e-5)


def test_byte_level_words(roberta):
    """Check whole words of a model with capitals: none without its space inside a text, no word's end."""
    known = {
        token[1:].lower() for token in load_masked_lm(roberta).tokenizer.get_vocab() if token.startswith("Ġ")
    }
    assert "ing" not in known and "he" not in known and "paris" in known
    for text in ("The old Paris (sea) fell", "old 'saw' the"):
        for new in many(text, roberta, 60, rate=1.0):
            assert {word.lower() for word in re.findall(r"\w+", new)} <= known, new
            assert "(" not in text or re.fullmatch(r"\w+ \w+ \w+ \(\w+\) \w+", new), new


def test_long_sentences_change_where_the_model_sees(bert):
    text = "the old man sat by a sea " * 20
    changed = [new for new in many(text, bert, 10, rate=0.2) if new]
    assert changed
    for new in changed:
        assert new.split()[62:] == text.split()[62:] and new.split() != text.split()


def test_chinese_words_of_one_character(bert):
    text = "他去北京人"
    sentence = ParsedSentence(
        text, (0, 1, 2, 4), (1, 2, 4, 5), *[("",) * 4] * 3, (0, 1, 2, 3), ("",) * 4, "zh"
    )
    for key in range(20):
        new = one(sentence, draws(key), bert, 1.0)
        assert (
            len(new) == 5
            and new[2:4] == "北京"
            and {new[0], new[1], new[4]} <= set("中国人")
            and new[4] != "人"
        )


def test_in_a_specification(bert, monkeypatch):
    tokenizer = load_masked_lm(bert).tokenizer
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    encoder = TextEncoder(tokenizer.backend_tokenizer, vocabulary.cls_id, vocabulary.sep_id, 64)
    sentences = [without_parse(TEXTS[0])] * 8
    keys = np.arange(8, dtype=np.uint64)
    named = build(f"contextual:rate=0.3:model={bert}", vocabulary, encoder=encoder).texts(keys, sentences)
    assert len(named) == 8
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(
        AugmentationError, match=rf"contextual needs a masked language model.*model=NAME.*{VARIABLE}"
    ):
        build("contextual", vocabulary, encoder=encoder)
    with pytest.raises(AugmentationError, match="'/no/folder' is no folder here"):
        build("none|contextual:model=/no/folder", vocabulary, encoder=encoder)
    monkeypatch.setenv(VARIABLE, bert)
    pipeline = build("contextual:rate=0.3", vocabulary, encoder=encoder)
    monkeypatch.delenv(VARIABLE)  # what the environment said is kept, for workers that have another
    assert (
        pickle.loads(pickle.dumps(pipeline)).texts(keys, sentences)
        == named
        == build_texts(f"contextual:rate=0.3:model={bert}|contextual:rate=0.3:model={bert}").texts(
            keys, sentences
        )
    )
    with pytest.raises(AugmentationError, match="did you mean 'substitute'"):
        parse("contextual:action=substitut")


def test_models_that_do_not_serve(bert, tmp_path, monkeypatch):
    sentence = without_parse(TEXTS[0])
    with pytest.raises(
        AugmentationError, match="cannot be loaded as a masked language model: '/no/folder' is no folder here"
    ):
        one(sentence, draws(), "/no/folder")
    encoder = tmp_path / "encoder"
    BertModel(BertConfig(vocab_size=50, **SIZES)).save_pretrained(encoder)
    with pytest.raises(AugmentationError, match="has no tokenizer"):
        one(sentence, draws(), str(encoder))
    load_masked_lm(bert).tokenizer.save_pretrained(encoder)
    with pytest.raises(
        AugmentationError, match=r"no weights for cls.predictions.*give a masked language model with its head"
    ):
        one(sentence, draws(), str(encoder))
    monkeypatch.setenv(DEVICE, "abacus")
    with pytest.raises(AugmentationError, match=f"{DEVICE}=abacus is no device"):
        one(sentence, draws(), bert)
