"""Models that sentence-transformers runs, in padded batches: load them, and know where they cut a text."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from augment.core.pretrained import quiet_transformers, require_weights
from finetune.encoders.source import OWN_MODULES, ModelSource
from pretrain.common.errors import UserError, naming

NO_CODE = {"trust_remote_code": False}
SAFE_WEIGHTS = NO_CODE | {"use_safetensors": True}
"""`model_kwargs` of sentence-transformers: no code of the model's, and no pickled weights."""


class PaddedModel:
    """A sentence-transformers model, or one for each pooling, made by `load`."""

    def __init__(self, load: Callable[[str], Any], pooling: str, batch_size: int):
        self._load, self._batch_size = cache(load), batch_size
        self.single = pooling == OWN_MODULES
        model = self._load(pooling)
        longest = model.max_seq_length
        self.longest = None if longest is None or math.isinf(longest) else longest
        self.tokenizer = None if self.longest is None else model.tokenizer

    def vectors(self, texts: Sequence[str], poolings: Sequence[str]) -> Mapping[str, np.ndarray]:
        return {pooling: self._encode(self._load(pooling), texts) for pooling in poolings}

    def _encode(self, model: Any, texts: Sequence[str]) -> np.ndarray:
        """Return vectors [N, d]; a pooling that leaves prompts out is told the longest that begins each."""
        pools_all = all(getattr(module, "include_prompt", True) for module in model)
        prompts = {"", *(prompt or "" for prompt in model.prompts.values())}
        by_length = [""] if pools_all else sorted(prompts, key=len, reverse=True)
        prompt_of = [next(filter(text.startswith, by_length)) for text in texts]
        vectors = np.empty(0)
        for prompt in dict.fromkeys(prompt_of or [""]):
            rows = [row for row, one in enumerate(prompt_of) if one == prompt]
            made = model.encode(
                [texts[row][len(prompt) :] for row in rows],
                prompt=prompt,
                batch_size=self._batch_size,
                show_progress_bar=False,
                convert_to_numpy=True,
            )
            vectors = vectors if vectors.size else np.empty((len(texts), *made.shape[1:]), made.dtype)
            vectors[rows] = made
        return vectors


def tokenized(
    tokenizer: Any, texts: Sequence[str], pairs: Sequence[str] | None = None, **settings: Any
) -> Iterator[Any]:
    """Yield what a tokenizer makes of some thousand texts, or pairs of them, at a time, without padding.

    An Encoding costs some hundred bytes per token until it is let go.
    """
    settings = {"padding": False, "return_attention_mask": False, "return_token_type_ids": False} | settings
    for start in range(0, len(texts), 4096):
        part = slice(start, start + 4096)
        second = {} if pairs is None else {"text_pair": list(pairs[part])}
        yield tokenizer(list(texts[part]), **second, **settings)


def open_sentence_transformer(source: ModelSource, max_length: int | None) -> Any:
    """Load a SentenceTransformer, with its own modules; texts are cut to `max_length` tokens."""
    from sentence_transformers import SentenceTransformer

    # libraries raise each its own errors for the same few causes
    with naming(f"cannot load the model {source.location!r}", Exception), quiet_transformers():
        model = SentenceTransformer(source.location, trust_remote_code=False, model_kwargs=SAFE_WEIGHTS)
    return _cut_at(model, max_length)


def open_padded(source: ModelSource, pooling: str, max_length: int | None) -> Any:
    """Load a transformer with a pooling of `pretrain.model.pooling` as a SentenceTransformer."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer, WeightedLayerPooling

    from pretrain.export.sentence_transformers import layer_weights
    from pretrain.model.pooling import SECOND_STATE

    if pooling not in SECOND_STATE:
        raise UserError(f"--pooling {pooling}: {source.name} runs padded only, without the pooler")
    second = SECOND_STATE[pooling]
    states = {"output_hidden_states": True} if second is not None else {}
    with naming(f"cannot load the model {source.location!r}", Exception):
        require_weights(source.location)
        transformer = Transformer(
            source.location,
            config_kwargs=NO_CODE | states,
            model_kwargs=SAFE_WEIGHTS,
            processor_kwargs=NO_CODE,
        )
    width, modules = transformer.get_embedding_dimension(), [transformer]
    if second is not None:
        layers = transformer.auto_model.config.num_hidden_layers
        weights = torch.nn.Parameter(torch.tensor(layer_weights(second, layers)))
        modules.append(WeightedLayerPooling(width, layers, 0, weights))
    modules.append(Pooling(width, "cls" if pooling == "cls" else "mean"))
    return _cut_at(SentenceTransformer(modules=modules), max_length)


def _cut_at(model: Any, max_length: int | None) -> Any:
    own = model.max_seq_length
    # static embeddings have no limit that could be set
    if max_length is not None and own is not None and not math.isinf(own):
        model.max_seq_length = min(max_length, own)
    return model
