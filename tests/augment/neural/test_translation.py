"""Tiny random encoder-decoders rewrite sentences: real loading and generation, whatever the words."""

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

from augment.core.errors import AugmentationError
from augment.core.vocabulary import Vocabulary
from augment.neural.models import load_seq2seq
from augment.neural.translation import (
    back_translation,
    casual_to_formal,
    choose_result,
    multilingual_back_translation,
    sampling_steps,
    shared_runs,
)
from augment.spec.build import build, build_texts
from augment.spec.grammar import from_environment
from augment.text.draws import Draws, draws_for
from augment.text.encoder import TextEncoder
from augment.text.parsed import without_parse

FORWARD, BACK = "CLEAR_TRANSLATION_FORWARD", "CLEAR_TRANSLATION_BACK"
FORMAL = "CLEAR_FORMAL_MODEL"
TEXTS = [
    "the old man sat by the sea",
    "rain fell",
    "a dog",
    "",
    "he saw it and left the house in a hurry that day",
]
SENTENCES = [without_parse(text) for text in TEXTS]
LANGUAGES = ["eng_Latn", "deu_Latn"]
LAYERS = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}
SIZES = {
    "d_model": 32,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 100,
    "init_std": 0.3,
    **LAYERS,
}
IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}


def tokenizer():
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *map(chr, range(ord("a"), ord("z") + 1)), ":", *LANGUAGES]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    return NllbTokenizer(
        vocab=vocabulary, merges=[], additional_special_tokens=LANGUAGES, model_max_length=100
    )


def save(folder, kind, config, seed, end):
    """Save a random model whose outputs end: `end` is added to the score of the end token."""
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
        vocab_size=len(tokenizer()), d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2, pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1, initializer_factor=1.0,
    )  # fmt: skip
    return save(tmp_path_factory.mktemp("t5"), T5ForConditionalGeneration, config, 3, 0.0)


def some_draws(count, name="x"):
    return draws_for(np.arange(count, dtype=np.uint64), name)


def one(function, sentence, own, *models, **settings):
    """Augment a sentence alone."""
    return function([sentence], [own], *models, **settings)[0]


def beams_of(folder, text, longest=64, beams=5):
    """Return the library's own beams for one text, unpadded, likeliest first: outputs of fewer than `longest`
    tokens with their end."""
    loaded = load_seq2seq(folder)
    ids = torch.tensor([loaded.tokenizer(text).input_ids])
    output = loaded.model.generate(
        ids, num_beams=beams, num_return_sequences=beams, max_length=longest + 1, do_sample=False
    )
    finished = [row for row in output if IDS["eos_token_id"] in row[1:longest]]
    return [
        new for row in finished if (new := loaded.tokenizer.decode(row, skip_special_tokens=True).strip())
    ]


def sizes(*small):
    """Run a test by default with small sizes."""
    return pytest.mark.parametrize("count,longest", [pytest.param(5, 64, marks=pytest.mark.full), small])


@sizes(4, 20)
def test_back_translation_is_two_models_one_after_the_other(there, back, count, longest):
    """Compare a padded batch with the library's search for one text at a time, twice."""
    sentences = SENTENCES if count == 5 else SENTENCES[1:4]
    many = some_draws(len(sentences))
    results = back_translation(sentences, many, there, back, max_length=longest)
    for sentence, result in zip(sentences, results):
        pivots = beams_of(there, sentence.text, longest) if sentence.text else []
        found = beams_of(back, pivots[0], longest) if pivots else []
        assert result == (found[0] if found else None)
    assert results[sentences.index(SENTENCES[3])] is None
    assert sum(result is not None for result in results) >= count - 2
    assert results == [
        one(back_translation, s, own, there, back, max_length=longest) for s, own in zip(sentences, many)
    ]


@sizes(30, 16)
def test_picks_are_among_the_beams(there, back, count, longest):
    text, count = (TEXTS[0], 80) if longest == 64 else (TEXTS[2], count)
    sentence, settings = without_parse(text), {"max_length": longest}
    beams = beams_of(back, beams_of(there, text, longest)[0], longest)
    found = back_translation([sentence] * count, some_draws(count), there, back, pick="random", **settings)
    assert {*found} == {*beams} and len({*beams}) > 1
    assert one(back_translation, sentence, draws(), there, back, pick="diverse", **settings) in beams


@pytest.mark.full
@pytest.mark.parametrize("pick", ["best", "random"])
def test_samples_belong_to_the_sentence(there, back, pick):
    many = [SENTENCES[0]] * 20 + SENTENCES
    settings = {"forward": there, "back": back, "top_p": 0.95, "pick": pick, "max_length": 64}
    together = back_translation(many, some_draws(25), **settings)
    assert together == [one(back_translation, *pair, **settings) for pair in zip(many, some_draws(25))]
    assert len({*together[:20]}) > 3  # samples differ, the sentence being the same
    assert together != back_translation(many, some_draws(25, "y"), **settings)


def test_gumbel_noise_samples_from_the_softmax():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -20.0]])
    (top_p, gumbel) = sampling_steps(0.9, list(range(6000)))
    counts = torch.bincount(gumbel(None, logits.expand(6000, 5)).argmax(1), minlength=5).numpy()
    p = torch.softmax(logits[0], 0).numpy()
    assert (np.abs(counts - 6000 * p) < 5 * np.sqrt(6000 * p * (1 - p)) + 1).all()
    assert top_p(None, logits).isfinite().tolist() == [[True, True, True, False, False]]  # 0.64, 0.88, 0.97


def test_sentences_and_outputs_too_long_are_left_out(there, back):
    long = without_parse("the sea " * 9)  # 82 tokens or so
    assert back_translation([long], [draws()], there, back, max_length=64) == [None]
    sea = without_parse("the sea")
    assert one(back_translation, sea, draws(), there, back, max_length=20)
    model = load_seq2seq(there).model
    bias = model.final_logits_bias[0, 2].item()
    try:
        model.final_logits_bias[0, 2] = -1e4  # never ends
        assert one(back_translation, sea, draws(), there, back, max_length=20) is None
    finally:
        model.final_logits_bias[0, 2] = bias


def test_many_languages(multilingual):
    settings = {"top_p": 1.0, "max_length": 64}
    results = multilingual_back_translation(SENTENCES, some_draws(5), multilingual, *LANGUAGES, **settings)
    assert any(results) and results[3] is None and not any("Latn" in result for result in results if result)
    assert results[0] == one(
        multilingual_back_translation, SENTENCES[0], some_draws(1)[0], multilingual, *LANGUAGES, **settings
    )
    loaded = load_seq2seq(multilingual)
    seen = []
    handle = loaded.model.register_forward_pre_hook(
        lambda module, inputs, given: seen.append((given.get("input_ids"), given["decoder_input_ids"])),
        with_kwargs=True,
    )
    assert (
        multilingual_back_translation(SENTENCES, some_draws(5), multilingual, *LANGUAGES, **settings)
        == results
    )
    handle.remove()
    english, german = loaded.tokenizer.convert_tokens_to_ids(LANGUAGES)
    # its bias lets them come as a first token only
    assert {german, english} <= {int(output[0, -1]) for _, output in seen}
    assert loaded.tokenizer("rain").input_ids[0] == german  # the last translation was from German
    with pytest.raises(
        AugmentationError, match=r"has no language 'de': give source and pivot as its tokenizer"
    ):
        build_texts(f"multilingual-back-translation:model={multilingual}:source=eng_Latn:pivot=de")


def test_casual_to_formal(t5):
    loaded = load_seq2seq(t5)
    seen = []
    handle = loaded.model.get_encoder().register_forward_pre_hook(
        lambda module, inputs, given: seen.append(given["input_ids"][0]), with_kwargs=True
    )
    results = [one(casual_to_formal, SENTENCES[0], Draws(key), t5, top_p=1.0) for key in range(4)]
    handle.remove()
    prompt = "transfer Casual to Formal: the old man sat by the sea"
    expected = loaded.tokenizer(prompt).input_ids
    assert seen[0].tolist() == expected + [IDS["pad_token_id"]] * (len(seen[0]) - len(expected))
    assert len({*results}) > 1
    assert one(casual_to_formal, SENTENCES[3], draws(), t5) is None


def test_which_result_is_taken():
    text = 'The old man "sat".'
    found = ["the old man “sat” .", "The old man sat down.", "A dog slept.", "The old men sat."]
    pick = {name: choose_result(text, found, draws(), name) for name in ("best", "different", "diverse")}
    assert pick == {"best": None, "different": "The old man sat down.", "diverse": "A dog slept."}
    assert {choose_result(text, found, draws(key), "random") for key in range(40)} == {*found[1:]}
    assert choose_result(text, [], draws(), "different") is None
    # Of "the man sat", "the man" and nothing: 2/3 + 1/2 + 0 of 1, 2 and 3 words, the mean of the three.
    assert shared_runs("the man", "the man sat") == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)


def test_what_is_missing_is_said_when_a_pipeline_is_built(there, monkeypatch):
    for variable in (FORWARD, BACK, FORMAL):
        monkeypatch.delenv(variable, raising=False)
    both = f"diverse-paraphrase needs two translation.*forward=NAME:back=NAME .*, or in {FORWARD} and {BACK}"
    with pytest.raises(AugmentationError, match=both):
        build_texts("diverse-paraphrase")
    monkeypatch.setenv(FORWARD, there)
    with pytest.raises(AugmentationError, match=f"back-translation needs two .*back=NAME .*, or in {BACK}"):
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
    with pytest.raises(
        AugmentationError, match=r"augcse-8 at character 1 of .* is a set, which takes no parameters"
    ):
        build_texts("augcse-8:beams=2")


@pytest.mark.full
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
    assert together == {
        i: text for i in range(40) for text in pipeline.texts(keys[i : i + 1], many[i : i + 1]).values()
    }
