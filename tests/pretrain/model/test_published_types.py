"""Checkpoints in the hub's files, of each type that a run can start from: hidden states, logits and token ids
are those of transformers."""

import json

import pytest
import torch
from published_folders import KINDS, texts, write_published
from tokenizers import Tokenizer
from transformers import AutoModelForMaskedLM, AutoTokenizer

from pretrain.common.errors import UserError
from pretrain.data.tokenizer import adopt_tokenizer, load_tokenizer, save_tokenizer
from pretrain.model.encoder import load_encoder

TEXTS = ["The old river carries a stone.", "Doctors.", "The quiet engine opens the narrow window, and more."]
OUTSIDE = ["A naïve  “ﬁne” café, 漢字: 3½ zebras!", "MiXed Case", "tabs\tand soft\u00adhyphens"]


@pytest.fixture(scope="module", params=list(KINDS))
def published(request, tmp_path_factory):
    return write_published(request.param, tmp_path_factory.mktemp("published") / request.param)


def test_hidden_states_and_logits_are_those_of_transformers(published):
    tokenizer = adopt_tokenizer(str(published), 64)
    ours = load_encoder(published, tokenizer).eval()
    theirs = AutoModelForMaskedLM.from_pretrained(published, attn_implementation="sdpa").eval()
    rows = AutoTokenizer.from_pretrained(published)(TEXTS, padding=True, return_tensors="pt")
    mask = rows["attention_mask"].bool()
    with torch.no_grad():
        expected = theirs(rows["input_ids"], attention_mask=rows["attention_mask"], output_hidden_states=True)
        hidden = ours.states(rows["input_ids"][mask], mask.sum(1), None).last
        logits = ours.mlm_logits(hidden)
    torch.testing.assert_close(hidden, expected.hidden_states[-1][mask], rtol=0, atol=1e-5)
    width = expected.logits.shape[-1]
    torch.testing.assert_close(logits[:, :width], expected.logits[mask], rtol=0, atol=1e-5)
    assert logits.shape[1] == len(tokenizer) == width + 1  # [DEL]
    assert expected.logits.std() > 0.1  # they differ


def test_an_adopted_tokenizer_gives_the_ids_of_the_checkpoints_file(published, tmp_path):
    save_tokenizer(adopt_tokenizer(str(published), 64), tmp_path / "tokenizer")
    adopted = load_tokenizer(tmp_path)
    own = Tokenizer.from_file(str(published / "tokenizer.json"))
    for text in [*TEXTS, *texts(published.parent)[:20], "A naïve “ﬁne” café, 漢字: 3½ zebras!"]:
        assert adopted(text)["input_ids"] == own.encode(text).ids
    if published.name != "bert":  # whose tokens know no blanks
        words = TEXTS[0].split()
        ids = adopted(" ".join(words), add_special_tokens=False)["input_ids"]
        assert adopted.decode(ids).split() == words


@pytest.mark.parametrize("text", OUTSIDE)
def test_raw_text_has_the_ids_of_clean_text(published, text):
    adopted = adopt_tokenizer(str(published), 64)
    cleaned = text.replace("\u00ad", "").replace("\t", " ").replace("  ", " ")
    assert adopted(text)["input_ids"] == adopted(cleaned)["input_ids"]


def test_a_tokenizer_that_does_not_end_a_text_is_refused(tmp_path):
    """As Gemma's own, which writes <bos> alone."""
    folder = write_published("mmbert", tmp_path / "mmbert")
    settings = json.loads((folder / "tokenizer.json").read_text())
    for part in ("single", "pair"):
        settings["post_processor"][part] = [
            piece
            for piece in settings["post_processor"][part]
            if piece.get("SpecialToken", {}).get("id") != "<eos>"
        ]
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="does not write <bos> text <eos>"):
        adopt_tokenizer(str(folder), 64)
