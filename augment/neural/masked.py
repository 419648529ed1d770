"""Replace or insert words by draws from a masked language model, as VaSCL and AugCSE do.

Any masked language model with a fast tokenizer will do, an export of this project too. The result for a
sentence does not depend on the others (`augment.neural.models.padded_batches`).
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from augment.core.entry import augmentation
from augment.neural.models import LoadedModel, PaddedBatch, load_masked_lm, on_device, padded_batches
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import indefinite_article, upper_first

# A word of letters between white space, without the punctuation around it; not a part of "U.S.", "don't",
# "well-known" or a URL.
_ALONE = re.compile(r"(?<!\S)[\"“‘'(\[]*([^\W\d_]+)[\"”’')\],.;:!?…]*(?!\S)")
_TITLES = frozenset({"Mr", "Mrs", "Ms", "Dr", "St"})
_LAST, _NEXT = re.compile(r"(\w+)\W*$"), re.compile(r"\W*(\w+)")
_SEEN = 64  # characters searched for a neighbour


def _contextual(**fields: Any) -> Any:
    return augmentation(load=lambda values: _words_of(values["model"]), batch=True, **fields)


@_contextual(
    name="random-contextual-word",
    description="Replace words by draws from a masked language model, or put such words between them.",
)
@_contextual()
def contextual(
    sentences: Sequence[ParsedSentence],
    draws: Sequence[Draws],
    model: str,
    rate: float = 0.1,
    action: str = "substitute",
    top_k: int = 100,
) -> list[str | None]:
    """Replace words by draws from a masked language model (VaSCL, section 4.4, via nlpaug).

    ceil(rate * n) of n words are masked (VaSCL, Zhang et al. 2022: rates of 5, 10 and 20%), one after the
    other in random order, the earlier ones already replaced. Each is filled by a draw from the model's
    distribution over its `top_k` likeliest whole words (nlpaug, Ma 2019: 100). A new word has letters only,
    one token, the case of the word that it replaces, and agrees with "a" and "an" around it; it is never the
    old word or a neighbour. In Chinese, words of one character are replaced. Parts of short forms, compounds
    with hyphens, abbreviations, numbers, URLs and, for a model without capitals, names stay. action=insert
    puts a new word before a word instead; random draws one of the two for each sentence.

    With rate=0.3 and action="random" it is RandomContextualWordAugmentation (AugCSE, through nlpaug).
    """
    loaded, words = on_device(load_masked_lm(model)), _words_of(model)
    pairs = zip(sentences, draws, strict=True)
    works = [_Work.begin(sentence, own, rate, action, words.cased) for sentence, own in pairs]
    while waiting := [work for work in works if work.spots]:
        _fill(loaded, words, waiting, top_k)
    results = [work.sentence.edit(work.edits) for work in works]
    return [None if new == sentence.text else new for sentence, new in zip(sentences, results)]


@dataclass
class _Work:
    """Hold a sentence in progress: the spots (start, end) still to fill, next one last, and its edits."""

    sentence: ParsedSentence
    draws: Draws
    inserts: bool
    spots: list[tuple[int, int]]
    edits: list[tuple[int, int, str]] = field(default_factory=list)

    @classmethod
    def begin(cls, sentence: ParsedSentence, draws: Draws, rate: float, action: str, cased: bool) -> "_Work":
        inserts = draws.chance(0.5) if action == "random" else action == "insert"
        spans = plain_words(sentence)
        if sentence.language == "zh":
            spans = [(a, b) for a, b in spans if b - a == 1 and _is_chinese(sentence.text[a])]
        elif not cased:  # a model without capitals knows no names
            spans = [
                one for one in spans if one[0] == sentence.starts[0] or not sentence.text[one[0]].isupper()
            ]
        if inserts:  # only behind a space: the first word keeps its capital, a quote its first word
            spans = [(start, start) for start, _ in spans if start and sentence.text[start - 1] == " "]
        words = sum(any(map(str.isalnum, word)) for word in sentence.words)
        return cls(sentence, draws, inserts, draws.sample(spans, ceil(rate * words))[::-1])

    def masked(self, spot: tuple[int, int], mask: str) -> tuple[str, int]:
        """Return the text so far with the mask in a spot, and the position of the mask's end in it."""
        moved = sum(len(new) - (end - start) for start, end, new in self.edits if end <= spot[0])
        text = self.sentence.edit([*self.edits, (*spot, mask + " " * self.inserts)])
        return text, spot[0] + moved + len(mask)


def plain_words(sentence: ParsedSentence) -> list[tuple[int, int]]:
    """Return words of letters that stand alone, (start, end); in Chinese all words of letters."""
    text, spans = sentence.text, list(zip(sentence.starts, sentence.ends))
    if sentence.language == "zh":
        return [(start, end) for start, end in spans if text[start:end].isalpha()]
    alone = {match.span(1) for match in _ALONE.finditer(text)}
    return [
        (start, end)
        for start, end in spans
        if (start, end) in alone
        and (end - start == 1 or not text[start:end].isupper())
        and (end - start > 1 or text[start:end] in "aI")
        and not (text[end : end + 1] == "." and text[start:end] in _TITLES)
    ]


def _is_chinese(character: str) -> bool:
    return "\u4e00" <= character <= "\u9fff"


@dataclass(frozen=True)
class _Words:
    """Which tokens are whole words: by token, "" for others; by lower-case word, its tokens.

    behind_space, elsewhere: bool[V], which may follow a space, or an opening quote or nothing.
    """

    texts: list[str]
    behind_space: np.ndarray
    elsewhere: np.ndarray
    chinese: np.ndarray
    takes_an: np.ndarray
    by_word: dict[str, list[int]]
    cased: bool


@functools.lru_cache(maxsize=4)
def _words_of(source: str) -> _Words:
    """Read which tokens of a model are whole words, by the marks of its kind of tokenizer."""
    model, tokenizer = load_masked_lm(source)
    tokens = tokenizer.convert_ids_to_tokens(list(range(min(len(tokenizer), model.config.vocab_size))))
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    counts = {mark: sum(token.startswith(mark) for token in tokens) for mark in "Ġ▁"}
    space = next((mark for mark, count in counts.items() if count > len(tokens) // 20), "")
    with_space = {token for token in tokens if token.startswith(space)} if space else set()
    size = model.config.vocab_size
    texts = [""] * size
    behind_space, elsewhere, chinese, takes_an = (np.zeros(size, dtype=bool) for _ in range(4))
    by_word: dict[str, list[int]] = {}
    for i, token in enumerate(tokens):
        if token in special or token.startswith("##"):
            continue
        word = tokenizer.convert_tokens_to_string([token]).strip() if space else token
        if not word.isalpha():
            continue
        texts[i] = word
        by_word.setdefault(word.lower(), []).append(i)
        if any(map(_is_chinese, word)):
            chinese[i] = len(word) == 1
        elif len(word) > 1 or word.lower() in ("a", "i"):
            behind_space[i] = not space or token in with_space
            elsewhere[i] = behind_space[i] or space + token in with_space
            takes_an[i] = indefinite_article(word) == "an"
    cased = any(text != text.lower() for text in texts)
    return _Words(texts, behind_space, elsewhere, chinese, takes_an, by_word, cased)


def _fill(loaded: LoadedModel, words: _Words, works: list[_Work], top_k: int) -> None:
    """Fill the next spot of every sentence, by one of the `top_k` likeliest words that are allowed."""
    import torch

    tokenizer = loaded.tokenizer
    positions = getattr(loaded.model.config, "max_position_embeddings", 512)
    longest = min(tokenizer.model_max_length, positions - 2)  # RoBERTa uses the first two for none
    spots = [work.spots.pop() for work in works]
    texts, ends = zip(*(work.masked(spot, tokenizer.mask_token) for work, spot in zip(works, spots)))
    encoded = tokenizer(list(texts), truncation=True, max_length=longest, return_offsets_mapping=True)
    places: dict[int, int] = {}  # by text: that of its mask; a text that was truncated before it has none
    for i, (ids_of_text, offsets) in enumerate(zip(encoded["input_ids"], encoded["offset_mapping"])):
        for place, (token, (_, stop)) in enumerate(zip(ids_of_text, offsets)):
            if token == tokenizer.mask_token_id and stop == ends[i]:
                places.setdefault(i, place)
    seen = list(places)
    for batch in padded_batches(loaded, [encoded["input_ids"][i] for i in seen], longest):
        ours = [seen[number] for number in batch.numbers]
        logits = _at_masks(loaded.model, batch, [places[seen[row]] for row in batch.rows])[: len(ours)]
        mask = tokenizer.mask_token
        allowed = np.stack([_allowed(words, works[i], spots[i], texts[i], ends[i], mask) for i in ours])
        logits = logits.masked_fill(~torch.from_numpy(allowed).to(logits.device), -torch.inf)
        scores, ids = (part.cpu() for part in logits.topk(min(top_k, logits.shape[1])))
        values = torch.softmax(scores.double(), 1).numpy()
        for row, i in enumerate(ours):
            if allowed[row].any():
                cumulative = values[row].cumsum()
                drawn = works[i].draws.uniform() * cumulative[-1]
                place = int(np.searchsorted(cumulative, drawn, side="right"))
                new = _in_case(words, works[i], spots[i], words.texts[int(ids[row, place])])
                works[i].edits.append((*spots[i], new + " " * works[i].inserts))


def _at_masks(model: Any, batch: PaddedBatch, places: Sequence[int]) -> Any:
    """Return the scores of all words at one place of every row: float32[R, V]."""
    import torch

    device = batch.ids.device
    rows, columns = torch.arange(len(places), device=device), torch.tensor(places, device=device)
    # Score the vocabulary at the masks only: over all tokens that is half of the work, and gigabytes of
    # memory.
    at_masks = model.get_output_embeddings().register_forward_pre_hook(
        lambda _, states: (states[0][rows, columns][:, None],)
    )
    try:
        with torch.inference_mode():
            return model(input_ids=batch.ids, attention_mask=batch.mask).logits[:, 0].float()
    finally:
        at_masks.remove()


def _allowed(words: _Words, work: _Work, spot: tuple[int, int], text: str, end: int, mask: str) -> np.ndarray:
    """Return the tokens that may fill a spot, bool[V]: not the old word nor a neighbour. end: the mask's."""
    start = end - len(mask)
    if work.sentence.language == "zh":
        allowed = words.chinese.copy()
    else:
        allowed = (words.behind_space if text[max(start - 1, 0) : start] == " " else words.elsewhere).copy()
    previous = _LAST.search(text[max(start - _SEEN, 0) : start])
    following = _NEXT.match(text, end, end + _SEEN)
    before, behind = (match[1] if match else "" for match in (previous, following))
    excluded = [work.sentence.text[slice(*spot)], before, behind]
    if work.sentence.is_english:
        if before.lower() in ("a", "an"):
            allowed &= words.takes_an == (before.lower() == "an")
        excluded += ["a", "an"] if not behind else ["a" if indefinite_article(behind) == "an" else "an"]
    for word in excluded:
        allowed[words.by_word.get(word.lower(), [])] = False
    return allowed


def _in_case(words: _Words, work: _Work, spot: tuple[int, int], new: str) -> str:
    """Return a new word in the case that its place needs."""
    old, first = work.sentence.text[slice(*spot)], spot[0] <= work.sentence.starts[0]
    if new == "i" and work.sentence.is_english:
        return "I"
    if len(old) > 1 and old.isupper():
        return new.upper()
    return upper_first(new) if old[:1].isupper() and (first or (old != "I" and not words.cased)) else new
