"""A static table, whose vector of a text is the mean of its tokens' rows: the library's, sooner tokenized.

Where a tokenizer never joins what a space separates, as WordPiece and byte-level BPE, the tokens of words
that were met before are looked up (`augment.text.encoder`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from augment.core.ragged import Ragged, offsets_of, segment_indices
from augment.text.cleaning import SpecialTokens
from augment.text.encoder import TextEncoder
from pretrain.data.tokenizer import encode

TEXTS_AT_ONCE = 1024
_LONGEST = 1 << 30  # tokens: texts are read whole


class StaticModel:
    """A `StaticEmbedding` (`finetune.encoders.models.Function` says what it has)."""

    longest = tokenizer = None
    single = True

    def __init__(self, modules: Sequence[Any]) -> None:
        """modules: of a sentence-transformers model, a `StaticEmbedding` first."""
        self._modules, self._tokenizer = modules, modules[0].tokenizer
        for module in modules:
            module.eval()
        self.forget()

    def forget(self) -> None:
        """Tokenize every word anew from now on."""
        self._encoder = TextEncoder(self._tokenizer, 0, 0, _LONGEST)
        self._special = SpecialTokens(self._encoder.tokenizer)

    def vectors(self, texts: Sequence[str], poolings: Sequence[str]) -> Mapping[str, np.ndarray]:
        starts = range(0, max(len(texts), 1), TEXTS_AT_ONCE)
        parts = [self._vectors(texts[start : start + TEXTS_AT_ONCE]) for start in starts]
        return dict.fromkeys(poolings, np.concatenate(parts))

    def _tokens(self, texts: list[str]) -> Ragged:
        if self._special.count(texts):  # to the library they are no text
            return encode(self._tokenizer, texts)
        framed = self._encoder(texts)  # by two tokens, which a table leaves out
        lengths = framed.lengths - 2
        return Ragged(framed.ids.take(segment_indices(framed.offsets[:-1] + 1, lengths)), offsets_of(lengths))

    @torch.inference_mode()
    def _vectors(self, texts: Sequence[str]) -> np.ndarray:
        tokens = self._tokens(list(texts))
        device = self._modules[0].embedding.weight.device
        ids, offsets = torch.from_numpy(tokens.ids), torch.from_numpy(tokens.offsets[:-1].astype(np.int32))
        features = {"input_ids": ids.to(device), "offsets": offsets.to(device)}
        for module in self._modules:
            features = module(features)
        return features["sentence_embedding"].float().cpu().numpy()
