"""Tokenizers at their edges: sizes, alphabets, accents, and those that are adopted."""

from types import SimpleNamespace

import numpy as np
import pytest

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.data import tokenizer
from pretrain.data.tokenizer import (
    accented_share,
    adopt_tokenizer,
    prompt_tokens,
    round_vocabulary,
    train_tokenizer,
)


def test_vocabularies_are_multiples_of_64_and_their_characters_frequent():
    assert [round_vocabulary(n) for n in (1, 63, 64, 65, 128, 129)] == [64, 64, 64, 128, 128, 192]
    with pytest.raises(UserError, match="The text sample is empty"):
        train_tokenizer([], "wordpiece", 300)
    plain = SimpleNamespace(normalize_str=lambda text: text)
    common = [chr(0x4E00 + n) for n in range(300)]
    texts = [character * (1000 if n < 200 else 1) for n, character in enumerate(common)]
    # 99.95% of 200,100 are 199,999.95: two hundred characters
    assert tokenizer._alphabet(texts, plain, 10_000) == tokenizer._alphabet(texts[::-1], plain, 10_000)
    assert tokenizer._alphabet(texts, plain, 8000) == sorted(common[:250])  # a 32nd of it
    assert tokenizer._alphabet(texts, plain, 1000) == sorted(common[:200])
    assert tokenizer._alphabet(texts, plain, 380) == sorted(common[:190])  # half of it
    assert tokenizer._alphabet(texts, plain, 100) == sorted(common[:128])
    assert tokenizer._alphabet(["a b\tc"], plain, 1000) == ["a", "b", "c"]


def test_the_share_of_letters_that_would_lose_something():
    assert accented_share([]) == accented_share(["123 !"]) == 0 and accented_share(["abc", "defg"]) == 0
    assert accented_share(["über", "abcdef"]) == 1 / 10 and accented_share(["u\u0308ber"]) == 1 / 5
    assert accented_share(["é1é", "a"]) == 2 / 3


def test_a_tokenizer_is_adopted_with_stand_ins_and_its_length(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<bos>", "<eos>", "<mask>", "<unk>", "a", "word"]
    inner = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    roles = {
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "unk_token": "<unk>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
    }
    for own, asked, found in ((9999, 64, 512), (9999, 600, 600), (100, 600, 100)):
        made = PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=own, **roles)
        made.save_pretrained(tmp_path / "t")
        adopted = adopt_tokenizer(str(tmp_path / "t"), asked)
        assert (adopted.cls_token, adopted.sep_token, adopted.model_max_length) == ("<bos>", "<eos>", found)
    assert prompt_tokens(adopted, {"anchor": "a word ", "positive": ""})["anchor"].tolist() == [5, 6]
    assert prompt_tokens(adopted, {"positive": ""})["positive"].dtype == np.int32
    (tmp_path / "t" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"cannot be opened: .*Name a folder with tokenizer\.json"):
        adopt_tokenizer(str(tmp_path / "t"), 64)
    texts = ["word a"] * 3
    assert tokenizer.encode(inner, texts, batch=2) == Ragged.from_sequences([[6, 5]] * 3)
