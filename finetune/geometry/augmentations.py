"""Measure what augmentations do to sentences as an encoder sees them.

AugCSE's similarity; VaSCL's figure 4b; SDA's overlap of words (section 6.3).

Each augmentation of the catalogue is compared on the sentences that it changes, as AugCSE's appendix A.14
does: the share it changes is given beside. A model that runs packed gets the augmented tokens themselves; any
other gets them as text. Augmentations of text need the sentences' parses.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from augment.core.errors import AugmentationError
from augment.core.identity import change, equal_sequences, normalise
from augment.core.keys import sequence_keys
from augment.core.pretrained import pretrained
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary, encode
from augment.spec.build import build
from augment.spec.catalogue import CATALOGUE
from augment.spec.grammar import needs_synonyms, parse
from augment.text.encoder import TextEncoder
from augment.text.parsed import Parses
from augment.tokens.synonyms import SynonymTable
from finetune.encoders.embed import POOLER, embed_rows
from finetune.encoders.models import EmbeddingModel
from pretrain.benchmarks import distinct
from pretrain.data.tokenizer import tokenizer_of
from pretrain.data.worker import clip

DEFAULTS = [*(entry.name for entry in CATALOGUE.values() if entry.kind == "token"), "del-span,reorder"]
"""Every token augmentation of the catalogue at its defaults, and CLEAR's composition."""
LONGEST = 1 << 20
"""Tokens of a text for a model that says no limit."""
_HAN = "\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_HAN}]|[^\W{_HAN}]+(?:[-'’][^\W{_HAN}]+)*")


@dataclass(frozen=True)
class AugmentedView:
    """One augmentation of N sentences; vectors of what is not `changed` are the original's.

    texts: sentence number -> text, of those that an augmentation of text has changed and none of tokens.
    """

    name: str
    rows: Ragged
    changed: np.ndarray
    texts: dict[int, str]
    vectors: np.ndarray


def every_specification() -> list[str]:
    """Return every augmentation without a model of its own, at its defaults and in each variant."""
    found = []
    for entry in CATALOGUE.values():
        if not any(need.startswith("model:") for need in entry.needs):
            choices = [choice for p in entry.parameters if p.name == "variant" for choice in p.choices]
            variants = [f":variant={choice}" for choice in choices] or [""]
            found += [str(parse(entry.name + variant)) for variant in variants]
    return found


class AugmentedSentences:
    """N sentences, their vectors and their augmentations, by one model; encoder: None if it is not packed.

    parses: for augmentations of text. synonyms: table or WordNet of subs; "": as in training.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        sentences: Sequence[str],
        seed: int = 0,
        parses: Parses | None = None,
        synonyms: str = "",
    ):
        self.sentences, self.seed, self.notes, self.parses = list(sentences), seed, [], parses
        self.encoder = model.encoder if model.pooling != POOLER else None
        self.tokenizer = model.tokenizer or _own_tokenizer(model)
        if self.tokenizer is None:
            self.tokenizer = tokenizer_of(self.sentences)
            own = "the model has no tokenizer of its own"
            self.notes.append(f"{own}: augmentations work on a word tokenizer of these sentences")
        self.vocabulary = Vocabulary.from_tokenizer(self.tokenizer)
        longest = self.encoder.max_positions if self.encoder is not None else None
        self.originals = clip(encode(self.sentences, self.tokenizer, self.vocabulary), longest)
        self._model, self._longest = model, longest
        self._synonym_source = Path(synonyms) if synonyms else None
        self._text_encoder: TextEncoder | None = None
        if parses is not None:
            ends = (self.vocabulary.cls_id, self.vocabulary.sep_id)
            self._text_encoder = TextEncoder(self.tokenizer.backend_tokenizer, *ends, longest or LONGEST)

    @cached_property
    def vectors(self) -> np.ndarray:
        """Of the originals: float32[N, d]."""
        return self.embed(self.originals, self.sentences)

    @cached_property
    def _synonyms(self) -> SynonymTable:
        return SynonymTable.load(self._synonym_source, self.tokenizer, self.vocabulary)

    def view(self, specification: str) -> AugmentedView:
        """Augment the sentences, with the keys of training with this seed in epoch 0; embed what changes."""
        synonyms = self._synonyms if needs_synonyms(specification) else None
        pipeline = build(specification, self.vocabulary, synonyms, self._text_encoder)
        keys = sequence_keys(self.seed, 0, np.arange(len(self.originals), dtype=np.uint64), 0, "augment")
        if pipeline.needs_text and not pipeline.works_on_tokens:
            assert self.parses is not None  # without them `build` raises
            texts = {  # white space and forms of quotes alone change nothing
                number: text
                for number, text in pipeline.texts(keys, self.parses).items()
                if normalise(text) != normalise(self.sentences[number])
            }
            rows = clip(pipeline.tokens(self.originals, keys, texts), self._longest)
            return self._view(pipeline.name, rows, np.isin(np.arange(len(rows)), list(texts)), texts)
        rows = clip(pipeline(self.originals, keys, self.parses), self._longest)
        return self._view(pipeline.name, rows, ~equal_sequences(self.originals, rows), {})

    def _view(self, name: str, rows: Ragged, changed: np.ndarray, texts: dict[int, str]) -> AugmentedView:
        view = AugmentedView(name, rows, changed, texts, self.vectors.copy())
        which = np.flatnonzero(changed)
        if len(which):
            written = [] if self.encoder is not None else [self.text_of(view, n) for n in which.tolist()]
            view.vectors[which] = self.embed(rows.take(which), written)
        return view

    def text_of(self, view: AugmentedView, number: int) -> str:
        """Return a sentence as an augmentation wrote it: its text, or else its tokens without their ends."""
        if number in view.texts:
            return view.texts[number]
        return self.tokenizer.decode(view.rows[number][1:-1].tolist()).strip()

    def pair(self, view: AugmentedView, number: int) -> tuple[str, str]:
        """Return a sentence before and after, without special tokens if tokens were changed."""
        if number in view.texts:
            return self.sentences[number], view.texts[number]
        rows = self.originals[number], view.rows[number]
        before, after = (row[~self.vocabulary.special[row]].tolist() for row in rows)
        return self.tokenizer.decode(before), self.tokenizer.decode(after)

    def embed(self, rows: Ragged, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of K sentences, float32[K, d]: of tokens, or of texts for unpacked models."""
        if self.encoder is None:
            return self._model.encode(texts)
        tokens = [rows[number].astype(np.int64) for number in range(len(rows))]
        pooling = self._model.pooling
        return embed_rows(self.encoder, tokens, [pooling])[pooling]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return the rows scaled to length 1, float64[N, d]; a zero row stays zero."""
    return distinct.unit(np.asarray(vectors, np.float64))


def pair_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return 1 - cosine of corresponding rows of two [N, d], float64[N]."""
    return np.square(unit(first) - unit(second)).sum(1) / 2


def jaccard(first: str, second: str) -> float:
    """Return words (of Chinese: characters) that both texts have / that either has; 1 for none."""
    a, b = ({word.lower() for word in _WORD.findall(text)} for text in (first, second))
    return len(a & b) / len(a | b) if a or b else 1.0


def compare(sentences: AugmentedSentences, view: AugmentedView) -> dict[str, float]:
    """Compare one augmentation with the originals, over the sentences that it changes; `changed`: over all.

    Only `changed` if fewer than two change.
    """
    which = np.flatnonzero(view.changed)
    figures = {"changed": 100 * float(view.changed.mean())}
    if len(which) < 2:
        return figures
    before, after = sentences.vectors[which], view.vectors[which]
    cosines = 1 - pair_distances(before, after)
    share = np.mean([change(sentences.originals[n], view.rows[n]) for n in which.tolist()])
    figures |= {
        "tokens_changed": 100 * float(share),
        "jaccard": float(np.mean([jaccard(*sentences.pair(view, n)) for n in which.tolist()])),
        "cosine": float(cosines.mean()),
        "cosine_std": float(cosines.std()),
    }
    return figures


def _own_tokenizer(model: EmbeddingModel) -> Any:
    if model.source is None:
        return None
    try:
        tokenizer = pretrained(AutoTokenizer, model.source.location)
        Vocabulary.from_tokenizer(tokenizer)
    except (OSError, ValueError, KeyError, AugmentationError):
        return None  # the caller makes one, and notes it
    return tokenizer
