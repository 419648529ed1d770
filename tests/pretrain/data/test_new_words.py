"""New words of a text become tokens, in every kind of tokenizer, behind those that there are."""

import re

import pytest
import torch
from encoder_helpers import make_tokenizer
from forked_python import run_python
from published_folders import KINDS, texts, write_published
from run_helpers import ROOT, environment
from transformers import AutoModelForMaskedLM

from augment.core.vocabulary import Vocabulary
from pretrain.common.errors import UserError
from pretrain.data.new_words import SEEN, add_words
from pretrain.data.tokenizer import adopt_tokenizer, load_tokenizer, save_tokenizer
from pretrain.model.encoder import load_encoder
from pretrain.model.new_rows import pieces_of_new_words

WORDS = ["osteoporosis", "osteoporotic", "tomography", "hyperlipidemia", "cohort", "orthopaedic"]
RARE = "glossolalia"
CLINICAL = [f"A {word}, a {other}." for word in WORDS for other in WORDS] * 2
CLINICAL += [f"A {RARE}."] * (SEEN - 1)


@pytest.fixture(scope="module", params=list(KINDS))
def published(request, tmp_path_factory):
    return write_published(request.param, tmp_path_factory.mktemp("published") / request.param)


@pytest.fixture(scope="module")
def tokenizers(published, tmp_path_factory):
    """The checkpoint's tokenizer, and that with new words, saved and loaded; and the new tokens."""
    before = adopt_tokenizer(str(published), 64)
    after, added = add_words(before, CLINICAL, 50)
    folder = tmp_path_factory.mktemp("extended")
    save_tokenizer(after, folder / "tokenizer")
    return before, load_tokenizer(folder), added


def ids_of(tokenizer, word: str) -> list[int]:
    """The ids of a word behind a blank."""
    before, both = tokenizer(["a", f"a {word}"], add_special_tokens=False)["input_ids"]
    assert both[: len(before)] == before
    return both[len(before) :]


def test_every_frequent_word_is_one_token(tokenizers):
    before, after, added = tokenizers
    for word in WORDS:
        (number,) = ids_of(after, word)
        assert len(ids_of(before, word)) > 1 and after.convert_ids_to_tokens(number) in added
    assert ids_of(after, RARE) == ids_of(before, RARE)


def test_what_was_there_stays(tokenizers, published):
    before, after, added = tokenizers
    old = before.get_vocab()
    assert {token: after.get_vocab()[token] for token in old} == old
    new = {token: number for token, number in after.get_vocab().items() if token not in old}
    assert set(new) == set(added) and sorted(new.values()) == [*range(len(old), len(after))]
    pieces = pieces_of_new_words(after, before)
    prose = " ".join(texts(published.parent)[:20]).split(". ")
    for text in [*prose, *CLINICAL[:36], "A naïve “ﬁne” café, 漢字: 3½ zebras!", "[DEL] the river"]:
        taken_apart = [piece for number in after(text)["input_ids"] for piece in pieces.get(number, [number])]
        assert taken_apart == before(text)["input_ids"]
    assert after.all_special_tokens == before.all_special_tokens


def test_text_goes_there_and_back(tokenizers):
    before, after, _ = tokenizers
    for text in CLINICAL[:36]:
        back = [
            tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)
            for tokenizer in (before, after)
        ]
        assert back[0] == back[1]


def test_new_words_are_words_to_masks_and_augmentations(tokenizers):
    _, after, added = tokenizers
    vocabulary = Vocabulary.from_tokenizer(after)
    numbers = after.convert_tokens_to_ids(added)
    assert vocabulary.word_start[numbers].all() and not vocabulary.special[numbers].any()


def test_the_words_that_save_most_come_first(published):
    before = adopt_tokenizer(str(published), 64)
    many = [*CLINICAL, *["a hyperlipidemia"] * 1000]
    after, _ = add_words(before, many, 1)
    whole = [word for word in WORDS if len(ids_of(after, word)) == 1]
    assert whole == ["hyperlipidemia"]


def test_rows_begin_as_the_mean_of_the_pieces(tokenizers, published):
    before, after, added = tokenizers
    grown = load_encoder(published, after)
    plain = AutoModelForMaskedLM.from_pretrained(published)
    table, was = grown.lm.get_input_embeddings().weight, plain.get_input_embeddings().weight
    head, head_was = grown.lm.get_output_embeddings(), plain.get_output_embeddings()
    assert head.weight is table and head_was.weight is was
    rows = len(was)
    assert torch.equal(table[:rows], was) and torch.equal(head.bias[:rows], head_was.bias)
    for word in WORDS:
        pieces, (number,) = ids_of(before, word), ids_of(after, word)
        torch.testing.assert_close(table[number], was[pieces].mean(0))
        torch.testing.assert_close(head.bias[number], head_was.bias[pieces].mean())
    assert not torch.equal(table[len(before) :], was.mean(0).expand(len(added), -1))
    torch.testing.assert_close(table[before.convert_tokens_to_ids("[DEL]")], was.mean(0))


def test_a_tokenizer_of_another_type_is_refused():
    with pytest.raises(UserError, match="type WordLevel; types that can: WordPiece, BPE, Unigram"):
        add_words(make_tokenizer(), CLINICAL, 5)


def prepare(folder, *flags: str) -> str:
    (folder / "clinic.txt").write_text("\n\n".join(CLINICAL))
    words = ["-m", "pretrain.prepare", "--source", str(folder / "clinic.txt"), "--out", str(folder / "data")]
    done = run_python([*words, "--progress", "false", "--dedup", "none", *flags], environment(), ROOT)
    return f"{done.returncode}\n{done.stdout}{done.stderr}"


def test_by_the_command(tmp_path):
    folder = write_published("xlm-roberta", tmp_path / "model")
    output = prepare(tmp_path, "--tokenizer", str(folder), "--new_words", "4")
    assert output.startswith("0\n") and re.search(r"new tokens +4\n", output)
    before, after = load_tokenizer(folder), load_tokenizer(tmp_path / "data")
    assert len(after) == len(before) + 1 + 4
    assert sum(len(ids_of(after, word)) == 1 for word in WORDS) == 4


def test_a_tokenizer_that_is_trained_takes_no_new_words(tmp_path):
    output = prepare(tmp_path, "--new_words", "4")
    assert output.startswith("2\n") and "name it with --tokenizer" in output
