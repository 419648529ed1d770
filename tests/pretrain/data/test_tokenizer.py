"""Tokenizers: trained ones are deterministic and complete, existing ones get [DEL], misfits are refused."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest

from augment.text.cleaning import clean, without_cleaning
from pretrain.common.errors import UserError
from pretrain.data.tokenizer import (
    accented_share,
    adopt_tokenizer,
    encode,
    load_tokenizer,
    save_tokenizer,
    tokenizer_hash,
    train_tokenizer,
    without_del,
)

TEXT = "the quick brown fox jumps over a lazy dog while seven naïve zebras öffnen große Türen and 東京 sleeps"
WORDS = TEXT.split()


def corpus(count: int = 2000) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, 8)) + "." for _ in range(count)]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_trained_tokenizer(tmp_path, kind):
    tokenizer = train_tokenizer(iter(corpus()), kind, 330, max_length=32)
    assert len(tokenizer) % 64 == 0
    save_tokenizer(tokenizer, tmp_path / "tokenizer")
    loaded = load_tokenizer(tmp_path)  # a prepared folder, or the tokenizer's own
    assert tokenizer_hash(tmp_path) == tokenizer_hash(tmp_path / "tokenizer")
    assert loaded.model_max_length == 32 and loaded.is_fast
    ids = loaded("the quick fox")["input_ids"]
    assert loaded.convert_ids_to_tokens(ids)[:: len(ids) - 1] == ["[CLS]", "[SEP]"]
    assert loaded.decode(ids, skip_special_tokens=True).strip() == "the quick fox"
    pair = loaded("the fox", "a dog")["input_ids"]
    assert pair.count(loaded.sep_token_id) == 2
    for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[DEL]"):
        number = loaded.convert_tokens_to_ids(token)
        assert number in loaded.all_special_ids and number < 8
        assert loaded(token, add_special_tokens=False)["input_ids"].count(number) == 1
    assert (loaded.unk_token == "[UNK]") == (kind == "wordpiece")


def test_exact_and_rounded_vocabulary():
    assert len(train_tokenizer(iter(corpus()), "bpe", 301)) == 320
    assert len(train_tokenizer(iter(corpus()), "bpe", 301, exact=True)) == 301


def test_bytes_go_there_and_back():
    tokenizer = train_tokenizer(iter(corpus()), "bpe", 320)
    for text in ("naïve 東京 ☃", "a b", "tab"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]).lstrip() == text


def test_lowercase():
    tokenizer = train_tokenizer(iter(corpus()), "wordpiece", 320, lowercase=True)
    assert tokenizer("NAÏVE")["input_ids"] == tokenizer("naive")["input_ids"]


def test_the_share_of_letters_that_accents_take_part_in():
    assert accented_share(["naïve", "abcde"]) == 0.1
    assert accented_share(["Straße", "12 !?", ""]) == 0 and accented_share([]) == 0
    assert accented_share(["が"]) == accented_share(["한국"]) == 1  # of parts, which would come apart
    assert 0.1 < accented_share(["यह एक वाक्य है"]) < 0.5


def test_word_piece_has_the_characters_that_chinese_needs():
    characters = [chr(0x4E00 + number) for number in range(3000)]
    tokenizer = train_tokenizer(iter(["".join(characters)] * 3), "wordpiece", 8192)
    ids = tokenizer("".join(characters), add_special_tokens=False)["input_ids"]
    assert ids.count(tokenizer.unk_token_id) <= 0.0005 * 3000 + 1


def test_word_piece_is_not_filled_with_rare_characters():
    hangul = " ".join(chr(0xAC00 + number) + chr(0xAC00 + number + 1) for number in range(0, 1200, 2))
    texts = [hangul, *corpus() * 40]
    for size in (2048, 8192):  # 128 characters, and a 32nd of the vocabulary
        vocabulary = train_tokenizer(iter(texts), "wordpiece", size, exact=True).get_vocab()
        single = [piece for piece in vocabulary if len(piece.removeprefix("##")) == 1]
        characters = {piece.removeprefix("##") for piece in single}
        assert len(characters) == max(128, size // 32) and {*"".join(WORDS)} <= characters
        assert len(single) == 2 * len(characters) - sum("\u4e00" <= one <= "\u9fff" for one in characters)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_training_twice_in_other_processes_gives_the_same_tokenizer(tmp_path, kind):
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[3:]\n"
        "from pretrain.data.tokenizer import *; from test_tokenizer import corpus\n"
        "save_tokenizer(train_tokenizer(iter(corpus()), sys.argv[1], 400), Path(sys.argv[2]))\n"
    )
    here = str(__import__("pathlib").Path(__file__).parent)
    root = str(__import__("pathlib").Path(__file__).parents[3])
    hashes = set()
    for name in "ab":
        subprocess.run([sys.executable, "-c", code, kind, str(tmp_path / name), here, root], check=True)
        hashes.add(tokenizer_hash(tmp_path / name))
    assert len(hashes) == 1


def test_the_hash_is_of_what_decides_the_token_ids(tmp_path):
    content = json.loads(train_tokenizer(iter(corpus()), "bpe", 320).backend_tokenizer.to_str())

    def hash_of(**changed) -> str:
        (tmp_path / "tokenizer.json").write_text(json.dumps(dict(reversed((content | changed).items()))))
        return tokenizer_hash(tmp_path)

    assert hash_of(padding={"length": 8}, truncation={"max_length": 8}) == hash_of()
    assert len({hash_of(), hash_of(model={}), hash_of(pre_tokenizer=None), hash_of(added_tokens=[])}) == 4


def test_encode_equals_the_tokenizer_itself():
    tokenizer = train_tokenizer(iter(corpus()), "bpe", 320)
    texts = [*corpus(50), "", "x"]
    batch = encode(tokenizer.backend_tokenizer, texts, batch=7)
    assert len(batch) == len(texts)
    for number, text in enumerate(texts):
        assert batch[number].tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]


def raw_texts(count: int = 400) -> list[str]:
    """As users have them: line breaks, indents, tabs, soft hyphens, no-break spaces, accents apart, invisible
    characters."""
    choose = random.Random(0)
    between = [" ", " ", "  ", "\n", "\r\n\t", "\u00a0", "\u2009", "\u3000", "\u200b", "\x85", "\u2028"]
    inside = ["", "", "", "\u00ad", "\u200d", "\x00", "\u0301", "\ufeff", "\ufffd", "\x07"]
    made = []
    for _ in range(count):
        text = choose.choice(between)
        for word in choose.choices(WORDS, k=choose.randrange(12)):
            at = choose.randrange(len(word))
            text += word[:at] + choose.choice(inside) + word[at:] + choose.choice(between)
        made.append(text)
    return made


def loaded_again(tokenizer, folder):
    save_tokenizer(tokenizer, folder)
    return load_tokenizer(folder)


@pytest.mark.parametrize(
    "kind,lowercase", [("bpe", False), ("bpe", True), ("wordpiece", False), ("wordpiece", True)]
)
def test_a_trained_tokenizer_cleans_as_preparation_does(tmp_path, kind, lowercase):
    tokenizer = loaded_again(train_tokenizer(iter(corpus()), kind, 400, lowercase), tmp_path / "new")
    raw = raw_texts()
    cleaned = list(map(clean, raw))
    assert tokenizer(raw)["input_ids"] == tokenizer(cleaned)["input_ids"]
    # One from before tokenizers cleaned: the same tokens for clean text, and the same hash.
    content = json.loads((tmp_path / "new/tokenizer.json").read_text())
    (tmp_path / "old").mkdir()
    (tmp_path / "old/tokenizer.json").write_text(json.dumps(without_cleaning(content)))
    (tmp_path / "old/tokenizer_config.json").write_text((tmp_path / "new/tokenizer_config.json").read_text())
    old = load_tokenizer(tmp_path / "old")
    assert (
        old(cleaned)["input_ids"] == tokenizer(cleaned)["input_ids"]
        and old(raw)["input_ids"] != tokenizer(raw)["input_ids"]
    )
    assert tokenizer_hash(tmp_path / "old") == tokenizer_hash(tmp_path / "new")
    adopted = loaded_again(adopt_tokenizer(str(tmp_path / "old"), 64), tmp_path / "adopted")
    assert adopted(raw)["input_ids"] == tokenizer(raw)["input_ids"]
    assert tokenizer_hash(tmp_path / "adopted") == tokenizer_hash(tmp_path / "new")


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_an_adopted_tokenizer_cleans_and_stays_the_same_otherwise(tmp_path, family):
    """Of transformers' own classes, which build their normalizer anew when they are loaded."""
    from tokenizers import pre_tokenizers
    from transformers import BertTokenizerFast, RobertaTokenizerFast

    if family == "bert":
        words = [
            "[PAD]",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[MASK]",
            *"abcdefghijklmnopqrstuvwxyz",
            *(f"##{c}" for c in "abcdeorstuwx"),
        ]
        given = BertTokenizerFast(vocab={word: number for number, word in enumerate(words)})
    else:
        words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
        given = RobertaTokenizerFast(vocab={word: number for number, word in enumerate(words)}, merges=[])
    given.save_pretrained(tmp_path / "given")
    adopted = loaded_again(adopt_tokenizer(str(tmp_path / "given"), 64), tmp_path / "adopted")
    raw = raw_texts()
    cleaned = list(map(clean, raw))
    assert adopted(raw)["input_ids"] == adopted(cleaned)["input_ids"] == given(cleaned)["input_ids"]
    assert adopted("the fox", "a dog").data == given("the fox", "a dog").data  # types of tokens too
    assert {**given.special_tokens_map} == {**adopted.special_tokens_map}
    assert adopted.convert_tokens_to_ids("[DEL]") in adopted.all_special_ids
    again = loaded_again(adopt_tokenizer(str(tmp_path / "adopted"), 64), tmp_path / "again")
    assert again(raw)["input_ids"] == adopted(raw)["input_ids"]
    assert tokenizer_hash(tmp_path / "again") == tokenizer_hash(tmp_path / "adopted")


def test_an_existing_tokenizer_gets_del(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<s>", "</s>", "<mask>", "<unk>", "a", "word"]
    inner = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    roles = {
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "unk_token": "<unk>",
        "cls_token": "<s>",
        "sep_token": "</s>",
    }
    PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(tmp_path / "bare")
    with pytest.raises(UserError, match="does not write"):
        adopt_tokenizer(str(tmp_path / "bare"), 64)
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(tmp_path / "good")
    adopted = adopt_tokenizer(str(tmp_path / "good"), 64)
    assert len(adopted) == 8 and adopted("a [DEL] word")["input_ids"] == [1, 5, 7, 6, 2]
    before = without_del(adopted)
    assert before.get_vocab() == {name: i for i, name in enumerate(names)}
    assert before("a [DEL] word")["input_ids"] == [1, 5, 4, 4, 4, 6, 2] and before.mask_token == "<mask>"
    save_tokenizer(adopted, tmp_path / "again")
    assert len(adopt_tokenizer(str(tmp_path / "again"), 64)) == 8
    del roles["mask_token"]
    PreTrainedTokenizerFast(tokenizer_object=inner, **roles).save_pretrained(tmp_path / "maskless")
    with pytest.raises(UserError, match="mask_token"):
        adopt_tokenizer(str(tmp_path / "maskless"), 64)


def test_places_without_a_tokenizer(tmp_path):
    for function in (load_tokenizer, tokenizer_hash):
        with pytest.raises(UserError, match=r"tokenizer\.json"):
            function(tmp_path)
    with pytest.raises(UserError, match=r"cannot be opened.*leave it out"):
        adopt_tokenizer(str(tmp_path), 64)
