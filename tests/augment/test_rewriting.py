"""Rewriting by encoder-decoders, with tiny random ones: real loading and generation, whatever the words are."""

import numpy as np
import pytest
import torch
from parse_builder import draws
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    NllbTokenizer,
    T5Config,
    T5ForConditionalGeneration,
)

from augment import rewriting
from augment.errors import AugmentationError
from augment.neural_models import load_seq2seq
from augment.parsed import without_parse
from augment.registry import build, build_texts, from_environment
from augment.rewriting import (
    BACK,
    FORMAL,
    FORWARD,
    Search,
    back_translation,
    casual_to_formal,
    diverse_paraphrase,
    multilingual_back_translation,
)
from augment.text import Draws, draws_for
from augment.text_encoder import TextEncoder
from augment.vocabulary import Vocabulary

TEXTS = ["the old man sat by the sea", "rain fell", "a dog", "", "he saw it and left the house in a hurry that day"]
SENTENCES = [without_parse(text) for text in TEXTS]
LANGUAGES = ["eng_Latn", "deu_Latn"]
LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
SIZES = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 100, "init_std": 0.3, **LAYERS}
IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}


def tokenizer():
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *map(chr, range(ord("a"), ord("z") + 1)), ":", *LANGUAGES]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    return NllbTokenizer(vocab=vocabulary, merges=[], additional_special_tokens=LANGUAGES, model_max_length=100)


def save(folder, kind, config, seed, end):
    """A random model whose outputs end: `end` is added to the score of the end token."""
    torch.manual_seed(seed)
    model = kind(config)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias[0, 2] = end
        model.final_logits_bias[0, [0, 1, 3, 32, 33]] = -1e4
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    config = BartConfig(vocab_size=len(tokenizer()), forced_eos_token_id=2, **IDS, **SIZES)
    return save(tmp_path_factory.mktemp("there"), BartForConditionalGeneration, config, 0, 3.0)


@pytest.fixture(scope="module")
def back(tmp_path_factory):
    config = BartConfig(vocab_size=len(tokenizer()), **IDS, **SIZES)
    return save(tmp_path_factory.mktemp("back"), BartForConditionalGeneration, config, 1, 3.0)


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory):
    config = M2M100Config(vocab_size=len(tokenizer()), **IDS, **SIZES)
    return save(tmp_path_factory.mktemp("many"), M2M100ForConditionalGeneration, config, 2, 0.0)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    config = T5Config(
        vocab_size=len(tokenizer()), d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2, pad_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, initializer_factor=1.0,
    )  # fmt: skip
    return save(tmp_path_factory.mktemp("t5"), T5ForConditionalGeneration, config, 3, 0.0)


def some_draws(count, name="x"):
    return draws_for(np.arange(count, dtype=np.uint64), name)


def one(function, sentence, own, *models, **settings):
    """A sentence alone."""
    return function([sentence], [own], *models, **settings)[0]


def test_beams_are_those_of_each_text_alone(there):
    """A batch with padding against `generate` of one text at a time, unpadded, without the options of ours."""
    loaded = load_seq2seq(there)
    found = rewriting._generate(loaded, TEXTS, some_draws(len(TEXTS)), Search(4, 0.0, "best", 64))
    assert found[3] == [] and sum(map(bool, found)) >= 3
    for text, candidates in zip(TEXTS, found):
        if text:
            ids = torch.tensor([loaded.tokenizer(text).input_ids])
            output = loaded.model.generate(ids, num_beams=4, num_return_sequences=4, max_length=65, do_sample=False)
            alone = [new.strip() for new in loaded.tokenizer.batch_decode(output, skip_special_tokens=True)]
            assert candidates == [new for new in alone if 0 < len(new) < 60]


def test_back_translation_is_two_models_one_after_the_other(there, back):
    results = back_translation(SENTENCES, some_draws(5), there, back, max_length=64)
    one_by_one = [one(back_translation, s, own, there, back, max_length=64) for s, own in zip(SENTENCES, some_draws(5))]
    assert results == one_by_one and results[3] is None and sum(result is not None for result in results) >= 3
    search = Search(5, 0.0, "best", 64)
    pivot = rewriting._generate(load_seq2seq(there), [TEXTS[0]], [draws()], search)[0][0]
    again = rewriting._generate(load_seq2seq(back), [pivot], [draws()], search)[0]
    assert results[0] == again[0] and {result for result in results if result}.isdisjoint(TEXTS)
    assert one(diverse_paraphrase, SENTENCES[0], draws(), there, back, max_length=64) in again


@pytest.mark.parametrize("pick", ["best", "random"])
def test_samples_belong_to_the_sentence(there, back, pick):
    many = [SENTENCES[0]] * 20 + SENTENCES
    settings = {"forward": there, "back": back, "top_p": 0.95, "pick": pick, "max_length": 64}
    together = back_translation(many, some_draws(25), **settings)
    assert together == [one(back_translation, *pair, **settings) for pair in zip(many, some_draws(25))]
    assert len({*together[:20]}) > 3  # samples differ, the sentence being the same
    assert together != back_translation(many, some_draws(25, "y"), **settings)


def test_random_picks_are_drawn_among_beams(there, back):
    found = back_translation([SENTENCES[0]] * 40, some_draws(40), there, back, pick="random", max_length=64)
    assert 1 < len({*found}) <= 5


def test_gumbel_noise_samples_from_the_softmax():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -20.0]])
    (top_p, gumbel) = rewriting._sampling(0.9, list(range(6000)))
    counts = torch.bincount(gumbel(None, logits.expand(6000, 5)).argmax(1), minlength=5).numpy()
    p = torch.softmax(logits[0], 0).numpy()
    assert (np.abs(counts - 6000 * p) < 5 * np.sqrt(6000 * p * (1 - p)) + 1).all()
    assert top_p(None, logits).isfinite().tolist() == [[True, True, True, False, False]]  # 0.64, 0.88, 0.97


def test_sentences_and_outputs_too_long_are_left_out(there, back):
    long = without_parse("the sea " * 9)  # 82 tokens or so
    assert back_translation([long], [draws()], there, back, max_length=64) == [None]
    assert rewriting._generate(load_seq2seq(there), ["the sea"], [draws()], Search(2, 0.0, "best", 64))[0]
    model = load_seq2seq(there).model
    bias = model.final_logits_bias[0, 2].item()
    try:
        model.final_logits_bias[0, 2] = -1e4  # never ends
        assert rewriting._generate(load_seq2seq(there), ["the sea"], [draws()], Search(2, 0.0, "best", 20)) == [[]]
    finally:
        model.final_logits_bias[0, 2] = bias


def test_many_languages(multilingual):
    settings = {"top_p": 1.0, "max_length": 64}
    results = multilingual_back_translation(SENTENCES, some_draws(5), multilingual, *LANGUAGES, **settings)
    assert any(results) and results[3] is None and not any("Latn" in result for result in results if result)
    assert results[0] == one(multilingual_back_translation, SENTENCES[0], some_draws(1)[0], multilingual, *LANGUAGES, **settings)
    loaded = load_seq2seq(multilingual)
    seen = []
    handle = loaded.model.register_forward_pre_hook(
        lambda module, inputs, given: seen.append((given.get("input_ids"), given["decoder_input_ids"])), with_kwargs=True
    )
    rewriting._generate(loaded, ["rain"], [draws()], Search(1, 0.0, "best", 20), languages=("deu_Latn", "eng_Latn"))
    handle.remove()
    assert seen[1][1][0, -1] == loaded.tokenizer.convert_tokens_to_ids("eng_Latn")  # what the output begins with
    assert loaded.tokenizer("rain").input_ids[0] == loaded.tokenizer.convert_tokens_to_ids("deu_Latn")
    with pytest.raises(AugmentationError, match=r"has no language 'de': give source and pivot as its tokenizer"):
        build_texts(f"multilingual-back-translation:model={multilingual}:source=eng_Latn:pivot=de")


def test_casual_to_formal(t5, monkeypatch):
    seen = []
    generate = rewriting._generate
    monkeypatch.setattr(rewriting, "_generate", lambda loaded, texts, *rest: seen.extend(texts) or generate(loaded, texts, *rest))
    results = [one(casual_to_formal, SENTENCES[0], Draws(key), t5, top_p=1.0) for key in range(4)]
    assert seen[0] == "transfer Casual to Formal: the old man sat by the sea"
    assert len({*results}) > 1
    assert one(casual_to_formal, SENTENCES[3], draws(), t5) is None


def test_which_result_is_taken():
    text = 'The old man "sat".'
    found = ["the old man “sat” .", "The old man sat down.", "A dog slept.", "The old men sat."]
    pick = {name: rewriting._picked([text], [found], [draws()], name)[0] for name in ("best", "different", "diverse")}
    assert pick == {"best": None, "different": "The old man sat down.", "diverse": "A dog slept."}
    assert {rewriting._picked([text], [found], [draws(key)], "random")[0] for key in range(40)} == {*found[1:]}
    assert rewriting._picked([text], [[]], [draws()], "different") == [None]
    # Of "the man sat", "the man" and nothing: 2/3 + 1/2 + 0 of 1, 2 and 3 words, the mean of the three.
    assert rewriting._shared("the man", "the man sat") == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)


def test_what_is_missing_is_said_when_a_pipeline_is_built(there, monkeypatch):
    for variable in (FORWARD, BACK, FORMAL):
        monkeypatch.delenv(variable, raising=False)
    both = f"diverse-paraphrase needs two translation.*forward=FOLDER:back=FOLDER, or in {FORWARD} and {BACK}"
    with pytest.raises(AugmentationError, match=both):
        build_texts("diverse-paraphrase")
    monkeypatch.setenv(FORWARD, there)
    with pytest.raises(AugmentationError, match=f"back-translation needs two .*back=FOLDER, or in {BACK}"):
        build_texts("back-translation")
    with pytest.raises(AugmentationError, match="cannot be loaded as an encoder-decoder"):
        build_texts("back-translation:back=/no/folder")
    fast = load_seq2seq(there).tokenizer
    vocabulary = Vocabulary.from_tokenizer(fast)
    encoder = TextEncoder(fast.backend_tokenizer, vocabulary.cls_id, vocabulary.sep_id, 64)
    with pytest.raises(AugmentationError) as caught:
        build("none|augcse-8", vocabulary, encoder=encoder)
    message = str(caught.value)  # of both augmentations, and the way round them
    assert f"or in {BACK}" in message and f"or in {FORMAL}" in message and "\n" not in message
    assert message.endswith("augcse-8-2 is augcse-8 without language models")
    with pytest.raises(AugmentationError, match=r"augcse-8 at character 1 of .* is a set, which takes no parameters"):
        build_texts("augcse-8:beams=2")


def test_sets_take_their_models_from_the_environment(there, back, t5, monkeypatch):
    for variable, model in ((FORWARD, there), (BACK, back), (FORMAL, t5)):
        monkeypatch.setenv(variable, model)
    used = {FORWARD: there, BACK: back, FORMAL: t5}
    assert from_environment(["augcse-8", "pi"]) == used and from_environment(["augcse-8-2"]) == {}
    assert from_environment([f"diverse-paraphrase:forward={there}"]) == {BACK: back}
    first = "diverse-paraphrase:top_p=0.9:max_length=64|none|casual-to-formal:top_p=0.9:max_length=64"
    keys = np.arange(40, dtype=np.uint64)
    pipeline, many = build_texts(f"{first},back-translation:top_p=0.95:max_length=64"), SENTENCES * 8
    together = pipeline.texts(keys, many)
    assert len({*together.values()}) > 3
    assert together == {i: text for i in range(40) for text in pipeline.texts(keys[i : i + 1], many[i : i + 1]).values()}
