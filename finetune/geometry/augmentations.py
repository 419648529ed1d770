"""Measure what augmentations do to sentences as an encoder sees them.

AugCSE's similarity, perplexity and isomorphism; VaSCL's figure 4b; SDA's overlap of words (section 6.3).

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
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoTokenizer

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
from finetune.geometry import measures
from pretrain.common.errors import UserError
from pretrain.data.masking import Masked, mask_tokens
from pretrain.data.microbatches import count_micro_batches, cut_and_pack
from pretrain.data.tokenizer import tokenizer_of
from pretrain.data.worker import clip
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.modules import evaluation_mode

COMPOSITION = "del-span,reorder"
MASK_RATE = 0.15
MASK_ROUNDS = 2
"""Maskings averaged for the pseudo-perplexity: at 0.15 a short sentence shows two tokens a round."""
LOGIT_TOKENS = 4096
"""Tokens of one pass that makes logits: 15% of them by a vocabulary of 50,000 are 120 MB."""
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


def default_specifications() -> list[str]:
    """Return every token augmentation of the catalogue at its defaults, and CLEAR's composition."""
    return [*(entry.name for entry in CATALOGUE.values() if entry.kind == "token"), COMPOSITION]


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
    why_no_perplexity: "" where the model has a masked-language head.
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
        self._synonyms: SynonymTable | None = None
        self._text_encoder: TextEncoder | None = None
        if parses is not None:
            ends = (self.vocabulary.cls_id, self.vocabulary.sep_id)
            self._text_encoder = TextEncoder(self.tokenizer.backend_tokenizer, *ends, longest or LONGEST)
        self.why_no_perplexity = _why_no_perplexity(model, self.encoder)

    @cached_property
    def vectors(self) -> np.ndarray:
        """Of the originals: float32[N, d]."""
        return self.embed(self.originals, self.sentences)

    def view(self, specification: str) -> AugmentedView:
        """Augment the sentences, with the keys of training with this seed in epoch 0; embed what changes."""
        if needs_synonyms(specification) and self._synonyms is None:
            self._synonyms = SynonymTable.load(self._synonym_source, self.tokenizer, self.vocabulary)
        synonyms = self._synonyms if needs_synonyms(specification) else None
        pipeline = build(specification, self.vocabulary, synonyms, self._text_encoder)
        keys = sequence_keys(self.seed, 0, np.arange(len(self.originals), dtype=np.uint64), 0, "augment")
        if pipeline.needs_text and not pipeline.works_on_tokens:
            assert self.parses is not None  # without them `build` raises
            return self._view_of_texts(pipeline.name, pipeline.texts(keys, self.parses))
        rows = clip(pipeline(self.originals, keys, self.parses), self._longest)
        return self._view(pipeline.name, rows, ~equal_sequences(self.originals, rows), {})

    def _view_of_texts(self, name: str, texts: dict[int, str]) -> AugmentedView:
        """Return a view with new texts by number; white space and forms of quotes alone change nothing."""
        texts = {n: text for n, text in texts.items() if normalise(text) != normalise(self.sentences[n])}
        assert self._text_encoder is not None
        which, order = np.array(sorted(texts), np.int64), np.arange(len(self.originals))
        made = clip(self._text_encoder([texts[n] for n in which.tolist()]), self._longest)
        changed = np.isin(order, which)
        order[which] = len(order) + np.arange(len(which))
        return self._view(name, Ragged.concatenate([self.originals, made]).take(order), changed, texts)

    def _view(self, name: str, rows: Ragged, changed: np.ndarray, texts: dict[int, str]) -> AugmentedView:
        view = AugmentedView(name, rows, changed, texts, self.vectors.copy())
        which = np.flatnonzero(changed)
        if len(which):
            written = [] if self.encoder is not None else [self.text_of(view, n) for n in which.tolist()]
            view.vectors[which] = self.embed(rows.take(which), written)
        return view

    def text(self, row: np.ndarray) -> str:
        """Return a row of tokens as text, without [CLS] and [SEP]."""
        return self.tokenizer.decode(row[1:-1].tolist()).strip()

    def text_of(self, view: AugmentedView, number: int) -> str:
        """Return a sentence as an augmentation wrote it: its text, or else its tokens decoded."""
        return view.texts[number] if number in view.texts else self.text(view.rows[number])

    def pair(self, view: AugmentedView, number: int) -> tuple[str, str]:
        """Return a sentence before and after, without special tokens where tokens were changed."""
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

    @cached_property
    def original_losses(self) -> np.ndarray:
        """`masked_losses` of the originals, which every augmentation is compared with."""
        return self.masked_losses(self.originals)

    def masked_losses(self, rows: Ragged) -> np.ndarray:
        """Return each row's loss (nats) and hidden tokens over `MASK_ROUNDS` maskings: float64[N, 2]."""
        if self.encoder is None or self.why_no_perplexity:
            raise UserError(f"no pseudo-perplexity: {self.why_no_perplexity}")
        sums = np.zeros((len(rows), 2))
        ids = np.arange(len(rows), dtype=np.uint64)
        for number in range(MASK_ROUNDS):
            keys = sequence_keys(self.seed, number, ids, 0, "mask")
            masked = mask_tokens(rows, keys, self.vocabulary, rate=MASK_RATE, mask=1.0, random=0.0)
            owners = rows.rows()[masked.positions]
            np.add.at(sums[:, 0], owners, _losses(self.encoder, masked))
            np.add.at(sums[:, 1], owners, 1)
        return sums


def jaccard(first: str, second: str) -> float:
    """Return words (of Chinese: characters) that both texts have / that either has; 1 for none."""
    a, b = ({word.lower() for word in _WORD.findall(text)} for text in (first, second))
    return len(a & b) / len(a | b) if a or b else 1.0


def pseudo_perplexity(losses: np.ndarray) -> float:
    """Return exp of the mean loss a masked token, from rows of `masked_losses`; NaN without any."""
    loss, count = losses.sum(0)
    return float(np.exp(loss / count)) if count else float("nan")


@torch.inference_mode()
def _losses(encoder: SentenceEncoder, masked: Masked) -> np.ndarray:
    """Return the cross-entropy (nats) of every hidden token, float64[P], in passes of `LOGIT_TOKENS`."""
    device = next(encoder.parameters()).device
    lengths = masked.batch.lengths
    budget = max(LOGIT_TOKENS, int(lengths.max(initial=1)))
    # in the place of each hidden token's label its number, which says where its loss belongs
    numbered = Masked(masked.batch, masked.positions, np.arange(len(masked.positions)))
    tokens = torch.from_numpy(masked.labels).long()
    found = np.empty(len(masked.positions))
    with evaluation_mode(encoder):
        for row in cut_and_pack(numbered, count_micro_batches(lengths, budget), device):
            logits = encoder.mlm_logits(encoder(row.ids, row.lengths)[row.positions]).float()
            assert row.labels is not None  # the rows are masked
            places = row.labels.cpu()
            losses = cross_entropy(logits, tokens[places].to(device), reduction="none")
            found[places.numpy()] = losses.cpu().numpy()
    return found


def compare(sentences: AugmentedSentences, view: AugmentedView) -> dict[str, float]:
    """Compare one augmentation with the originals, over the sentences that it changes; `changed`: over all.

    Only `changed` where fewer than two change; perplexities only with a masked-language head.
    """
    which = np.flatnonzero(view.changed)
    figures = {"changed": 100 * float(view.changed.mean())}
    if len(which) < 2:
        return figures
    before, after = sentences.vectors[which], view.vectors[which]
    cosines = 1 - measures.pair_distances(before, after)
    share = np.mean([change(sentences.originals[n], view.rows[n]) for n in which.tolist()])
    figures |= {
        "tokens_changed": 100 * float(share),
        "jaccard": float(np.mean([jaccard(*sentences.pair(view, n)) for n in which.tolist()])),
        "cosine": float(cosines.mean()),
        "cosine_std": float(cosines.std()),
        **measures.compare_clouds(before, after),
    }
    if not sentences.why_no_perplexity:
        old = pseudo_perplexity(sentences.original_losses[which])
        new = pseudo_perplexity(sentences.masked_losses(view.rows.take(which)))
        figures |= {"perplexity_original": old, "perplexity_view": new, "perplexity_change": new - old}
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


def _why_no_perplexity(model: EmbeddingModel, encoder: SentenceEncoder | None) -> str:
    """Return why the model has no pseudo-perplexity; "" if it has one."""
    if encoder is None:
        return f"{model.name} does not run as a masked language model here"
    assert model.source is not None  # the encoder comes from there
    names = pretrained(AutoConfig, model.source.location).architectures or []
    if any(name.endswith(("ForMaskedLM", "ForPreTraining")) for name in names):
        return ""
    named = ", ".join(names) or "no architecture"
    return f"{model.name} has no masked-language head (its config names {named})"
