"""What augmentations need and is not fit: one message each, before anything is made."""

import json
import zipfile
from threading import Event

import augment_tokenizers
import pytest
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from augment.core import waiting
from augment.core.errors import AugmentationError
from augment.core.own_code import ALLOWED, allow
from augment.core.vocabulary import Vocabulary
from augment.core.waiting import within
from augment.neural.models import load_masked_lm, load_seq2seq
from augment.spec.build import build
from augment.spec.grammar import parse
from augment.spec.resources import resources
from augment.text.draws import Draws
from augment.text.parsed import without_parse
from augment.text.parsing import _batches, load_parser
from augment.tokens.synonyms import SynonymTable


@pytest.fixture(scope="module")
def fast():
    return augment_tokenizers.word_piece()


def test_a_synonym_table_of_another_tokenizer_or_of_none_of_its_words_is_refused(tmp_path, fast):
    vocabulary = Vocabulary.from_tokenizer(fast)
    words = tmp_path / "words.json"
    words.write_text(json.dumps({"big": ["large"], "good": ["fine"]}))
    table = SynonymTable.load(words, fast, vocabulary)
    assert build("subs", vocabulary, table) and len(table) >= 2
    smaller = Vocabulary.from_tokenizer(augment_tokenizers.word_piece(size=200))
    said = rf"of {vocabulary.size:,} tokens, this one has {smaller.size:,}"
    with pytest.raises(AugmentationError, match=said):
        build("subs", smaller, table)
    words.write_text(json.dumps({"большой": ["крупный"]}))
    with pytest.raises(AugmentationError, match="this tokenizer can write none of its words"):
        SynonymTable.load(words, fast, vocabulary)
    (tmp_path / "folder").mkdir()
    with pytest.raises(AugmentationError, match="is not a WordNet folder"):
        SynonymTable.load(tmp_path / "folder", fast, vocabulary)
    with zipfile.ZipFile(tmp_path / "none.zip", "w") as archive:
        archive.writestr("a/words.txt", "big large\n")
    with pytest.raises(AugmentationError, match="is not a WordNet folder"):
        SynonymTable.load(tmp_path / "none.zip", fast, vocabulary)


def test_models_without_a_mask_or_padding_token_are_refused(tmp_path):
    names = {name: number for number, name in enumerate(["[PAD]", "[UNK]", "[MASK]", "a", "b"])}
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForMaskedLM(BertConfig(vocab_size=len(names), **shape))
    for number, (tokens, said) in enumerate(
        [
            ({"mask_token": "[MASK]", "pad_token": "[PAD]"}, ""),
            ({"pad_token": "[PAD]"}, "no fast tokenizer with a mask token"),
            ({"mask_token": "[MASK]"}, "has no padding token"),
        ]
    ):
        folder = tmp_path / str(number)
        model.save_pretrained(folder)
        raw = Tokenizer(models.WordLevel(names, "[UNK]"))
        PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", **tokens).save_pretrained(folder)
        if said:
            with pytest.raises(AugmentationError, match=said):
                load_masked_lm(str(folder))
        else:
            loaded = load_masked_lm(str(folder))
            assert not loaded.model.training and loaded.tokenizer.mask_token_id == 2
    with pytest.raises(AugmentationError, match="cannot be loaded as an encoder-decoder"):
        load_seq2seq(str(tmp_path / "0"))


def test_a_pipeline_without_a_tagger_or_parser_is_refused(tmp_path):
    spacy = pytest.importorskip("spacy")
    blank = spacy.blank("en")
    blank.add_pipe("sentencizer")
    blank.to_disk(tmp_path / "blank")
    with pytest.raises(AugmentationError, match="has no tagger and no parser: give one that has both"):
        load_parser(str(tmp_path / "blank"))
    with pytest.raises(AugmentationError, match="cannot be loaded"):
        load_parser(str(tmp_path / "nothing"))


def test_texts_are_parsed_some_at_a_time_long_ones_fewer():
    short, long = ["ab"] * 600, ["x" * (1 << 16)] * 9
    assert [len(one) for one in _batches(short)] == [256, 256, 88] and list(_batches([])) == []
    assert [len(one) for one in _batches(long)] == [4, 4, 1]
    assert [len(one) for one in _batches(["x" * ((1 << 18) - 1), "a", "b"])] == [2, 1]
    assert [text for one in _batches(short + long) for text in one] == short + long


def test_functions_of_ones_own_are_named_and_what_they_give_is_checked(tmp_path, monkeypatch):
    file = tmp_path / "own.py"
    file.write_text(
        "from augment.core.errors import AugmentationError\n"
        "def louder(sentence, draws, times=2):\n    return sentence.text + '!' * times\n"
        "def blank(sentence, draws):\n    return ' '\n"
        "def number(sentence, draws):\n    return 7\n"
        "def nothing(sentence, draws):\n    return None\n"
        "def fails(sentence, draws):\n    return {}[1]\n"
        "def refuses(sentence, draws):\n    raise AugmentationError('not this one')\n"
    )
    monkeypatch.setenv(ALLOWED, "")
    allow([f"{file}:louder"])
    assert resources([f"{file}:louder"]) == {f"{file}:louder": str(file)}

    def made(name):
        return parse(f"{file}:{name}").augmentations[0].entry.function(sentence, Draws(1))

    sentence = without_parse("A dog.")
    assert made("louder") == "A dog.!!" and made("nothing") is None
    for name, said in (
        ("blank", "blank gave ' ' for 'A dog.': it must give a text, or None"),
        ("number", "number gave 7 for"),
        ("fails", "fails failed: KeyError: 1"),
        ("refuses", "^not this one$"),
    ):
        with pytest.raises(AugmentationError, match=said):
            made(name)


def test_waiting_ends_in_time_and_says_that_it_takes_long(monkeypatch, capsys):
    forever = Event()
    monkeypatch.setattr(waiting, "SLOW_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match="more than 0"):
        within(0.05, forever.wait, "it takes long")
    assert capsys.readouterr().err == "it takes long\n"
    with pytest.raises(TimeoutError):
        within(0.02, forever.wait)
    forever.set()
    monkeypatch.setattr(waiting, "SLOW_SECONDS", 60)
    assert within(90, lambda: 7, "it takes long") == 7 and capsys.readouterr().err == ""
    with pytest.raises(KeyError):
        within(90, lambda: {}["x"])
