"""What is fine-tuned, and on what: an encoder with its tokenizer, and labelled examples tokenised for it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augment.core.errors import CannotLoad
from augment.core.pretrained import pretrained
from augment.core.ragged import Ragged
from finetune.encoders.models import EmbeddingModel, Function
from finetune.encoders.padded import tokenized
from finetune.encoders.source import ModelSource, names_function, resolve
from pretrain.common.errors import UserError, naming

if TYPE_CHECKING:
    from pretrain.model.encoder import SentenceEncoder


@dataclass(frozen=True)
class PretrainedEncoder:
    """Hold what is fine-tuned: an encoder, float32, on the CPU, never changed; and its tokenizer."""

    model: EmbeddingModel
    """Its name and folders; pooling "cls", because the head reads the first token."""
    encoder: "SentenceEncoder"
    tokenizer: Any
    fingerprint: str
    """Hex digest of the weights and the tokenizer: results of another state of the same folder are not
    mistaken for it."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """N tokenised examples."""

    tokens: Ragged
    token_types: Ragged | None
    """0 in the first text of a pair and 1 in the second, for models that have token types."""
    targets: np.ndarray | None
    """int64[N] classes or float32[N] numbers; None: not known."""
    cut: int
    """How many were longer than the model takes, or than the task allows, and lost their ends."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def known_targets(self) -> np.ndarray:
        """Return the targets of examples that training or a score needs them of."""
        assert self.targets is not None, "these examples have no targets"
        return self.targets


def require_encoder(source: ModelSource) -> None:
    """Raise UserError for what has no transformer of a type that can be trained; no weights are read."""
    from transformers import AutoConfig

    from pretrain.model.architectures import family_of

    if names_function(source.location):
        raise UserError(f"{source.name}: a function cannot be fine-tuned; name the folder of its encoder")
    with naming(f"{source.name}: cannot load an encoder to fine-tune", CannotLoad):
        family_of(pretrained(AutoConfig, source.location).model_type)


def open_source(model: str | Path) -> PretrainedEncoder:
    """Open a run, an export, a Hugging Face or sentence-transformers folder or hub name for fine-tuning."""
    name = str(model)
    source = ModelSource(name, name) if names_function(name) else resolve(name)
    from finetune.encoders.embed import embed_sentences, load_model  # imports torch

    require_encoder(source)
    encoder, tokenizer = load_model(source)
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"{model}: its tokenizer has no fast version (tokenizer.json); convert it first")
    encoder.head, encoder.normalize = None, False  # are for sentence vectors: the task brings its own head
    encoder.cpu()

    embed = partial(embed_sentences, encoder, tokenizer, pooling="cls")
    opened = EmbeddingModel(source.name, "cls", Function(embed), source)
    return PretrainedEncoder(opened, encoder, tokenizer, _fingerprint(encoder, tokenizer))


def _fingerprint(encoder: "SentenceEncoder", tokenizer: Any) -> str:
    digest = hashlib.sha256()
    # not the masked-language head, which is not used
    for name, tensor in encoder.lm.base_model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    for setting in ("padding", "truncation"):  # rewritten at every call
        content.pop(setting, None)
    digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()


def encode_examples(
    source: PretrainedEncoder,
    first: Sequence[str],
    second: Sequence[str] | None,
    targets: np.ndarray | None,
    max_length: int,
) -> Encoded:
    """Tokenise sentences, or pairs, whose longer text is cut first, to `max_length` or the encoder's."""
    longest = min(max_length, source.encoder.max_positions)
    config = source.encoder.lm.config
    marks = config.model_type in ("bert", "electra") and config.type_vocab_size > 1  # RoBERTa has one type
    with_types = second is not None and marks
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    was_cut = 0
    texts = [text.strip() for text in first]
    pairs = None if second is None else [text.strip() for text in second]
    how = {"truncation": True, "max_length": longest, "return_token_type_ids": with_types}
    for batch in tokenized(source.tokenizer, texts, pairs, **how):
        ids += [np.asarray(row, np.int32) for row in batch["input_ids"]]
        if with_types:
            types += [np.asarray(row, np.int32) for row in batch["token_type_ids"]]
        was_cut += sum(bool(encoding.overflowing) for encoding in batch.encodings)
    token_types = Ragged.from_sequences(types) if types else None
    return Encoded(Ragged.from_sequences(ids), token_types, targets, was_cut)
