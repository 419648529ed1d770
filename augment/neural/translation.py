"""Rewrite sentences with encoder-decoder models: back-translation, paraphrase, a formal style.

The result for a sentence does not depend on the others (`models.padded_batches`). Draws belong to the
sentence. Beam search draws only among its results. Sampling adds each sentence's own Gumbel noise to the
model's log-probabilities and takes the largest sum, which is a draw from them (Gumbel 1954; Maddison et al.
2014, "A* sampling", section 2).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from augment.core.entry import augmentation
from augment.core.errors import AugmentationError
from augment.neural.models import LoadedModel, load_seq2seq, on_device, padded_batches
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence

_TO_FORMAL = "transfer Casual to Formal: "  # what Styleformer was trained with
_QUOTES = str.maketrans("“”‘’", "\"\"''")


@dataclass(frozen=True)
class Search:
    """How outputs are found (beams, 1: greedy; top_p, sampling without beams), and which of them is taken.

    pick: the best beam; the best other than the sentence; "diverse", of those the one that shares the fewest
    runs of words with it; or a random one of those. max_length: what is longer is left out, not cut.
    """

    beams: int = 5
    top_p: float = 0.0
    pick: str = "best"
    max_length: int = 128


def _pair(**fields: Any) -> Any:
    """Describe an augmentation that translates with two models."""

    def load(values: Mapping[str, Any]) -> list[Any]:
        return [load_seq2seq(values[step]) for step in ("forward", "back")]

    return augmentation(load=load, batch=True, **fields)


@_pair(
    name="diverse-paraphrase",
    description="Translated into another language and back, the result that is least like the sentence.",
)
@_pair()
def back_translation(
    sentences: Sequence[ParsedSentence], draws: Sequence[Draws], forward: str, back: str, **search: Any
) -> list[str | None]:
    """Translate into another language and back with two models.

    AugCSE uses English to German. None if it comes back the same, spaces, quotes and capitals aside.
    search: the fields of `Search`.

    With pick="diverse" it is DiverseParaphrase (A.2): the result that shares the fewest runs of one to three
    words with the sentence. The original chooses by DiPS (Kumar et al. 2019), whose submodular gain of one
    result also weighs its likeness in word2vec vectors; here beam search alone stands in for that.
    """
    return _rewritten(sentences, draws, Search(**search), ((forward, None), (back, None)))


@augmentation(
    load=lambda values: [
        _language_id(load_seq2seq(values["model"]).tokenizer, values[code]) for code in ("source", "pivot")
    ],
    batch=True,
)
def multilingual_back_translation(
    sentences: Sequence[ParsedSentence],
    draws: Sequence[Draws],
    model: str,
    source: str = "en",
    pivot: str = "de",
    **search: Any,
) -> list[str | None]:
    """Translate into a language and back with one model of many (M2M100): AugCSE, A.2.

    source, pivot: codes of the two languages, as the model writes them (en, de; eng_Latn of NLLB; en_XX of
    mBART). None if it comes back the same.
    """
    steps = ((model, (source, pivot)), (model, (pivot, source)))
    return _rewritten(sentences, draws, Search(**search), steps)


@augmentation(load=lambda values: load_seq2seq(values["model"]), batch=True)
def casual_to_formal(
    sentences: Sequence[ParsedSentence], draws: Sequence[Draws], model: str, **search: Any
) -> list[str | None]:
    """Rewrite in a formal style with a T5.

    The original keeps results that a second model, of entailment, finds adequate (0.95 or more) and ranks
    them; here the likeliest different result is taken.
    """
    settings = Search(**{"pick": "different", **search})
    return _rewritten(sentences, draws, settings, ((model, None),), _TO_FORMAL)


def _rewritten(
    sentences: Sequence[ParsedSentence],
    draws: Sequence[Draws],
    search: Search,
    steps: Sequence[tuple[str, tuple[str, str] | None]],
    prompt: str = "",
) -> list[str | None]:
    """Run sentences through the models of all steps (name, languages) in turn, and take results.

    A step reads the likeliest output of the one before, the first step the prompt and the sentence.
    """
    texts = [prompt + sentence.text if sentence.text else "" for sentence in sentences]
    for model, languages in steps:
        found = _generate(on_device(load_seq2seq(model)), texts, draws, search, languages)
        texts = [outputs[0] if outputs else "" for outputs in found]
    return [
        choose_result(sentence.text, outputs, own, search.pick)
        for sentence, outputs, own in zip(sentences, found, draws)
    ]


def _generate(
    loaded: LoadedModel,
    texts: Sequence[str],
    draws: Sequence[Draws],
    search: Search,
    languages: tuple[str, str] | None = None,
) -> list[list[str]]:
    """Return a model's finished outputs for each text, likeliest first; none for empty or long texts."""
    import torch

    model, tokenizer = loaded
    options: dict[str, Any] = {"do_sample": False, "num_beams": 1 if search.top_p else search.beams}
    options["num_return_sequences"] = options["num_beams"]
    if languages:
        tokenizer.src_lang = languages[0]
        _language_id(tokenizer, languages[0])
        options["forced_bos_token_id"] = _language_id(tokenizer, languages[1])
    positions = getattr(model.config, "max_position_embeddings", None) or search.max_length + 2
    longest = min(search.max_length, positions - 2)
    seeds = [one.bits() for one in draws] if search.top_p else []
    ids = [tokenizer(text).input_ids if text else [] for text in texts]
    results: list[list[str]] = [[] for _ in texts]
    fitting = [i for i, row in enumerate(ids) if 0 < len(row) <= longest]
    for batch in padded_batches(loaded, [ids[i] for i in fitting], longest):
        if search.top_p:
            own = [seeds[fitting[row]] for row in batch.rows]
            options["logits_processor"] = sampling_steps(search.top_p, own)
        with torch.inference_mode():
            limits = {"max_length": None, "max_new_tokens": longest}
            output = model.generate(input_ids=batch.ids, attention_mask=batch.mask, **limits, **options)
        end = model.generation_config.eos_token_id
        # An end token in the last place may come from the library (forced_eos_token_id), not the model.
        finished = torch.isin(output[:, 1:longest].cpu(), torch.tensor(end)).any(1).tolist()
        found = tokenizer.batch_decode(output, skip_special_tokens=True)
        width = options["num_return_sequences"]
        for place, number in enumerate(batch.numbers):
            span = range(place * width, (place + 1) * width)
            results[fitting[number]] = [found[j].strip() for j in span if finished[j] and found[j].strip()]
    return results


def _language_id(tokenizer: Any, code: str) -> int:
    """Return the token of a language, with which M2M100, NLLB and mBART begin an output."""
    try:
        found = getattr(tokenizer, "get_lang_id", tokenizer.convert_tokens_to_ids)(code)
    except KeyError:
        found = None
    if found is None or found == tokenizer.unk_token_id:
        raise AugmentationError(
            f"the model {tokenizer.name_or_path!r} has no language {code!r}: give source and pivot as its "
            "tokenizer writes them (en, de for M2M100, eng_Latn, deu_Latn for NLLB, en_XX, de_DE for mBART)"
        )
    return found


def sampling_steps(top_p: float, seeds: Sequence[int]) -> Any:
    """Return processors that sample from the top_p share: row i gets Gumbel noise from seeds[i]."""
    import torch
    from transformers import LogitsProcessor, LogitsProcessorList, TopPLogitsWarper

    streams = [np.random.Generator(np.random.Philox(key=seed)) for seed in seeds]

    class Gumbel(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            noise = np.stack([stream.gumbel(size=scores.shape[1]) for stream in streams])
            return scores + torch.from_numpy(noise).to(scores)

    return LogitsProcessorList([TopPLogitsWarper(top_p), Gumbel()])


def choose_result(text: str, translations: Sequence[str], draws: Draws, pick: str) -> str | None:
    """Return the result that `pick` names, of those that differ in more than spaces, quotes and capitals."""
    plain = _plain(text)
    candidates = translations[:1] if pick == "best" else dict.fromkeys(translations)
    different = [new for new in candidates if _plain(new) != plain]
    if not different:
        return None
    if pick == "diverse":
        return min(different, key=lambda new: shared_runs(text, new))
    return draws.choice(different) if pick == "random" else different[0]


def _plain(text: str) -> str:
    """Return a text without what a tokenizer's own spacing and quotes change."""
    return re.sub(r"\s+", "", text.translate(_QUOTES)).lower()


def shared_runs(text: str, new: str) -> float:
    """Return the share of the new text's runs of one to three words that the text has (mean of the three)."""
    shares = []
    for length in (1, 2, 3):
        runs = [Counter(zip(*(words[i:] for i in range(length)))) for words in (_words(text), _words(new))]
        shares.append((runs[0] & runs[1]).total() / max(1, runs[1].total()))
    return sum(shares) / len(shares)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
