"""A static table, whose vector of a text is the mean of its tokens' rows, read a word at a time.

BERT's tokenizers cut at every blank: the tokens of a text are those of its words. Words repeat, so each is
tokenized once, and a text costs a look-up a word. The tokens, and so the vectors, are the library's own.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, count, islice
from typing import Any

import numpy as np
import torch

from augment.core.ragged import Ragged, offsets_of
from augment.text.cleaning import without_cleaning
from pretrain.data.tokenizer import encode

MOST_WORDS = 500_000
"""Different words that are remembered, in some 200 bytes each."""
TEXTS_AT_ONCE = 8192


class StaticModel:
    """A `StaticEmbedding` (`finetune.encoders.models.Function` says what it has)."""

    longest = tokenizer = None
    single = True

    def __init__(self, modules: Sequence[Any]) -> None:
        self._modules = modules
        self.forget()

    @classmethod
    def of(cls, model: Any) -> "StaticModel | None":
        """Return a sentence-transformers model so; None: it is no such table, or tokens may hold blanks."""
        first, *_ = modules = [*model]
        if type(first).__name__ != "StaticEmbedding" or first.tokenizer.truncation:
            return None
        own = without_cleaning(json.loads(first.tokenizer.to_str()))
        kinds = [(own[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer")]
        blank = any(" " in token.content for token in first.tokenizer.get_added_tokens_decoder().values())
        return cls(modules) if kinds == ["BertNormalizer", "BertPreTokenizer"] and not blank else None

    def forget(self) -> None:
        """Tokenize every word anew from now on."""
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)
        self._words = Ragged.empty()  # the tokens of each word, by its number

    def vectors(self, texts: Sequence[str], poolings: Sequence[str]) -> Mapping[str, np.ndarray]:
        starts = range(0, max(len(texts), 1), TEXTS_AT_ONCE)
        parts = [self._vectors(texts[start : start + TEXTS_AT_ONCE]) for start in starts]
        return dict.fromkeys(poolings, np.concatenate(parts))

    @torch.inference_mode()
    def _vectors(self, texts: Sequence[str]) -> np.ndarray:
        if len(self._numbers) > MOST_WORDS:
            self.forget()
        words = [text.split(" ") for text in texts]
        ends = offsets_of(np.fromiter(map(len, words), np.int64, len(words)))
        flat = chain.from_iterable(words)
        numbers = np.fromiter(map(self._numbers.__getitem__, flat), np.int64, ends[-1])
        if new := list(islice(self._numbers, len(self._words), None)):
            self._words = Ragged.concatenate([self._words, encode(self._modules[0].tokenizer, new)])
        tokens = self._words.take(numbers)
        offsets = torch.from_numpy(tokens.offsets[ends[:-1]].astype(np.int32))
        device = self._modules[0].embedding.weight.device
        features = {"input_ids": torch.from_numpy(tokens.ids).to(device), "offsets": offsets.to(device)}
        for module in self._modules:
            features = module(features)
        return features["sentence_embedding"].float().cpu().numpy()
