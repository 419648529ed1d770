"""Open any encoder under one interface.

open_model("runs/clear_micro")            a run of this project, with the pooling that it was trained with
open_model("bert-base-uncased", "cls")    a Hugging Face folder or hub name, with a pooling that you choose
open_model("all-MiniLM-L6-v2")            a sentence-transformers model, with its own modules and prompts
open_model("my_encoder.py:embed")         a Python function: list of N strings -> array [N, d]
open_model(embed)                         the same, from Python
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augment.core.pretrained import pretrained, require_weights
from finetune.encoders.distinct import EmbedFunction, distinct
from finetune.encoders.kept_vectors import KeptVectors
from finetune.encoders.padded import (
    SAFE_WEIGHTS,
    cut_at,
    encode_padded,
    limit_of,
    open_padded,
    token_counts,
)
from finetune.encoders.source import ModelSource, kind_of, names_function, resolve
from pretrain.common.errors import UserError
from pretrain.common.plugins import import_file

if TYPE_CHECKING:
    from pretrain.export.quantization import Quantization
    from pretrain.model.encoder import SentenceEncoder
    from pretrain.model.heads import ProjectionHead

DOCUMENT_PROMPTS = ("document", "passage", "corpus")
KEPT_VECTORS = "CLEAR_VECTORS"
"""Environment variable: the folder of vectors that are kept."""


@dataclass(frozen=True, repr=False)
class EmbeddingModel:
    """An encoder that is opened for evaluation."""

    name: str
    """What reports call it."""
    pooling: str
    """How it makes vectors: a name of `pretrain.model.pooling`, "pooler", "own modules"
    (sentence-transformers) or "function"."""
    encode: Callable[[Sequence[str]], np.ndarray]
    """Sentences, in any order, repeats allowed -> finite float32[N, d] in that order. Every distinct sentence
    is encoded once."""
    source: ModelSource | None = None
    """Where it was loaded from; None for functions."""

    max_length: int | None = None
    """Texts are cut to this many tokens; None: only where they are longer than the model takes."""

    encode_poolings: Callable[[Sequence[str], Sequence[str]], Mapping[str, np.ndarray]] | None = None
    """N sentences and names of poolings -> float32[N, d] by pooling, in as few passes as they need together;
    None: the model brings the one way in which it makes vectors."""

    encoder: SentenceEncoder | None = None
    """The packed encoder, its tokenizer beside it; None for models that run otherwise."""
    tokenizer: Any = None
    longest: int | None = None
    """Most tokens of a text, special ones included: `encode` cuts off the rest. None: no limit is known."""
    token_counts: Callable[[Sequence[str]], Sequence[int]] | None = None
    """Texts -> their tokens before they are cut, special ones included; where `longest` is known."""

    precision: str = "fp32"
    """In which its matrix products are computed: "fp32" or "bf16"."""

    quantization: Quantization | None = None
    """How the export says that its vectors are stored; None: as float32. `encode` gives float32 all the same
    (`stored` changes that)."""

    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that it was trained with before sentences, by sentence-transformers' names (query, document)."""
    default_prompt: str = ""
    """What `encode` puts before every sentence."""
    without_prompt: Callable[[Sequence[str]], np.ndarray] | None = None
    """`encode` of sentences as they are, where it puts a prompt before each; else None."""

    batch: str = ""
    """Of what a pass consists at most: "16,384 tokens", "64 sentences"; "": a function decides itself."""

    def __repr__(self) -> str:
        """Say in a line what it is: the weights of an encoder would fill a notebook's page."""
        batch = f", at most {self.batch} a pass" if self.batch else ""
        return f"<{self.name}: pooling {self.pooling}, {self.precision}{batch}>"

    def stored(self) -> EmbeddingModel:
        """Return the model with vectors as `quantization` says, or itself where that says nothing.

        Its `encode` gives int8 or uint8, [N, d] or, of bits, [N, ceil(d / 8)].
        """
        quantization, encode = self.quantization, self.encode
        if quantization is None:
            return self
        plain = self.without_prompt
        return replace(
            self,
            encode=lambda sentences: quantization.apply(encode(sentences)),
            without_prompt=None if plain is None else lambda sentences: quantization.apply(plain(sentences)),
        )

    @property
    def query_prompt(self) -> str:
        """What stands before a query: the prompt named query."""
        return self.prompts.get("query", "")

    @property
    def document_prompt(self) -> str:
        """What stands before a document: the prompt named document, passage or corpus."""
        return next((self.prompts[name] for name in DOCUMENT_PROMPTS if name in self.prompts), "")

    def encode_query(self, sentences: Sequence[str]) -> np.ndarray:
        """Return the vectors of queries, as sentence-transformers' `encode_query`."""
        return self.encode_with(self.query_prompt, sentences)

    def encode_document(self, sentences: Sequence[str]) -> np.ndarray:
        """Return the vectors of documents, as sentence-transformers' `encode_document`."""
        return self.encode_with(self.document_prompt, sentences)

    def encode_with(self, prompt: str, sentences: Sequence[str]) -> np.ndarray:
        """Return the vectors of sentences, with this prompt and no other before each."""
        return (self.without_prompt or self.encode)(_after(prompt, sentences))

    @property
    def folder(self) -> Path | None:
        """Where its weights and tokenizer lie; None for functions and hub names."""
        return self.source.folder if self.source else None

    @property
    def run(self) -> Path | None:
        """The run folder that it comes from, if any: reports go to its report/."""
        return self.source.run if self.source else None

    @property
    def trained_pooling(self) -> str | None:
        """The pooling that it was trained with, where the model says so."""
        return self.source.trained_pooling if self.source else None

    @property
    def head(self) -> ProjectionHead | None:
        """What vectors by the trained pooling, or by "pooler", go through; others go through none."""
        return self.encoder.head if self.encoder is not None else None

    @property
    def identity(self) -> str:
        """What tells these weights from others of the same name (`ModelSource.identity`)."""
        return self.source.identity if self.source else self.name

    def count_cut(self, texts: Sequence[str]) -> int:
        """Return how many documents are longer than `longest` tokens, so that their ends are left out.

        0 where no limit is known.
        """
        if self.token_counts is None or self.longest is None:
            return 0
        prompt = self.document_prompt
        # a token has a byte at least: what is this short need not be tokenised
        few = [one for text in texts if len((one := prompt + text).encode()) + 2 > self.longest]
        cut = 0
        for start in range(0, len(few), 4096):
            cut += sum(count > self.longest for count in self.token_counts(few[start : start + 4096]))
        return cut

    @property
    def remark(self) -> str | None:
        """A warning about the pooling; None where there is nothing to say."""
        if self.trained_pooling is not None and self.pooling != self.trained_pooling:
            used = f"{self.name} was trained with {self.trained_pooling} pooling and is evaluated with "
            used += f"{self.pooling} pooling"
            return used + (", without the head that it keeps" if self.head is not None else "")
        return None


def open_model(
    model: str | Path | ModelSource | EmbedFunction,
    pooling: str = "",
    token_budget: int = 16384,
    batch_size: int = 64,
    max_length: int | None = None,
    quiet: bool = False,
    precision: str = "fp32",
) -> EmbeddingModel:
    """Open an encoder for evaluation; a remark about its pooling goes to standard error.

    Where the environment's CLEAR_VECTORS names a folder, vectors are read from it and kept in it
    (`finetune.encoders.kept_vectors`).

    Args:
        model: see the module's description.
        pooling: name of `pretrain.model.pooling` ("" means the pooling that the model was trained for; where
            it does not say, mean, with a note), or "pooler": the first token's state through the
            checkpoint's own pooler. Not for functions and sentence-transformers models, which bring their
            own.
        token_budget: most tokens of one packed forward pass; batch_size: sentences of one padded pass, for
            models that cannot run packed.
        max_length: most tokens of a text, special ones included, for protocols that cut texts. Functions, and
            sentence-transformers models without a limit (static embeddings), read whole texts all the same:
            the model's `max_length` says what holds.
        quiet: no remark about the pooling, for a caller of `encode_poolings`.
        precision: "fp32", or "bf16" by autocast: vectors are float32 all the same.

    Raises:
        UserError: nothing there to load, no tokenizer, an unknown pooling or precision, or a pooling that the
            model cannot have.
    """
    if precision not in ("fp32", "bf16"):
        raise UserError(f"there is no precision {precision!r}; choose fp32 or bf16")
    if callable(model):
        return _function(model, getattr(model, "__name__", "function"), pooling, precision)
    if not isinstance(model, ModelSource):
        if names_function(str(model)):
            return _function(_import_function(str(model)), str(model), pooling, precision)
        model = resolve(model)
    before = model.identity
    if kind_of(model.location) == "sentence-transformers":
        opened = _sentence_transformers(model, pooling, batch_size, max_length)
    else:
        opened = _packed(model, pooling, token_budget, batch_size, max_length, quiet)
    if opened.folder is not None and opened.pooling == opened.trained_pooling:
        from pretrain.export.quantization import read_quantization  # imports torch

        opened = replace(opened, quantization=read_quantization(opened.folder))
    if precision == "bf16":
        opened = _in_bfloat16(opened)
    if opened.remark and not quiet:
        print(f"note: {opened.remark}", file=sys.stderr)
    if folder := os.environ.get(KEPT_VECTORS):
        opened = keeping(opened, Path(folder), before)
    return prompted(opened)  # vectors are kept by the text with its prompt


def prompted(model: EmbeddingModel) -> EmbeddingModel:
    """Return the model with its default prompt, if it has one, before every sentence."""
    prompt, plain, several = model.default_prompt, model.encode, model.encode_poolings
    if not prompt:
        return model
    return replace(
        model,
        without_prompt=plain,
        encode=lambda sentences: plain(_after(prompt, sentences)),
        encode_poolings=None
        if several is None
        else lambda sentences, poolings: several(_after(prompt, sentences), poolings),
    )


def _after(prompt: str, sentences: Sequence[str]) -> Sequence[str]:
    """Return sentences with a prompt before each; what is no list of strings, for `distinct` to refuse."""
    if not prompt or isinstance(sentences, str):
        return sentences
    return [prompt + one if isinstance(one, str) else one for one in sentences]


def keeping(model: EmbeddingModel, root: Path, before: str) -> EmbeddingModel:
    """Return the model with its vectors read from below `root` where they are there, and kept where not.

    before: the model's identity before it was loaded; where it has changed since, nothing is kept.
    """
    assert model.source is not None
    kept = KeptVectors.of(model.source, root, model.precision, model.max_length)
    if kept is None or model.identity != before:
        why = "it has no files to know it by" if kept is None else "its weights changed while they were read"
        print(f"note: vectors of {model.name} are not kept: {why}", file=sys.stderr)
        return model
    pooling, single, several = model.pooling, model.encode, model.encode_poolings

    def encode(texts: list[str]) -> np.ndarray:
        return kept.vectors(texts, [pooling], lambda left, _: {pooling: single(left)})[pooling]

    def encode_poolings(texts: Sequence[str], poolings: Sequence[str]) -> dict[str, np.ndarray]:
        assert several is not None
        return kept.vectors(texts, poolings, several)

    return replace(
        model,
        encode=lambda sentences: distinct(encode, sentences, model.name),
        encode_poolings=None if several is None else encode_poolings,
    )


def _in_bfloat16(model: EmbeddingModel) -> EmbeddingModel:
    """Return the model with its matrix products in bfloat16, by autocast."""
    import torch

    autocast = torch.autocast("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16)
    several = model.encode_poolings
    return replace(
        model,
        precision="bf16",
        encode=autocast(model.encode),
        encode_poolings=None if several is None else autocast(several),
    )


def _function(function: EmbedFunction, name: str, pooling: str, precision: str) -> EmbeddingModel:
    given = f"--pooling {pooling}" if pooling else f"--precision {precision}" if precision != "fp32" else ""
    if given:
        raise UserError(f"{given}: {name} is a function, which makes its vectors itself; leave the flag out")
    return EmbeddingModel(name, "function", lambda sentences: distinct(function, sentences, name))


def _import_function(text: str) -> EmbedFunction:
    """Load `package.module:function` or `path/file.py:function`."""
    where, name = os.path.expanduser(text).rsplit(":", 1)
    if not name.isidentifier() or not (
        where.endswith(".py") or all(part.isidentifier() for part in where.split("."))
    ):
        raise UserError(
            f"{text}: there is no such folder, and it is no package.module:function or "
            "file.py:function either"
        )
    if where.endswith(".py"):
        try:
            module = import_file(where)
        except UserError as error:
            raise UserError(f"{text}: {error}") from error
    else:
        sys.path.insert(0, os.getcwd())
        try:
            module = importlib.import_module(where)
        except Exception as error:  # whatever the user's module does when it is imported
            raise UserError(
                f"{text}: cannot import {where!r}: {type(error).__name__}: {error}. Write "
                "package.module:function or file.py:function"
            ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{text}: {where} has no function {name!r} that takes a list of strings")
    return function


def _packed(
    source: ModelSource,
    pooling: str,
    token_budget: int,
    batch_size: int,
    max_length: int | None,
    quiet: bool,
) -> EmbeddingModel:
    """Open a masked language model packed; architectures without packed attention run padded."""
    from transformers import AutoConfig

    from finetune.encoders.embed import POOLER, embed_poolings, load_model
    from pretrain.model.architectures import FAMILIES
    from pretrain.model.pooling import check_pooling

    name, location, trained = source.name, source.location, source.trained_pooling
    chosen = POOLER if pooling == POOLER else check_pooling(pooling or trained or "mean")
    if not pooling and trained is None and not quiet:
        print(
            f"note: {name} does not say which pooling it was trained with: using mean; --pooling chooses",
            file=sys.stderr,
        )
    try:
        model_type = pretrained(AutoConfig, location).model_type
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load a model from {location!r}: {error}") from error
    encoder = tokenizer = None
    if model_type not in FAMILIES:
        padded = open_padded(source, chosen, max_length)
        longest, counting = limit_of(padded)

        def several(sentences: Sequence[str], poolings: Sequence[str]) -> dict[str, np.ndarray]:
            others = {other: open_padded(source, other, max_length) for other in poolings if other != chosen}
            return {
                one: encode_padded(others.get(one, padded), (), batch_size, sentences) for one in poolings
            }
    else:
        encoder, tokenizer = load_model(source, pooler=chosen == POOLER)
        longest = min(max_length or encoder.max_positions, encoder.max_positions)
        counting = partial(token_counts, tokenizer)

        def several(sentences: Sequence[str], poolings: Sequence[str]) -> dict[str, np.ndarray]:
            return embed_poolings(encoder, tokenizer, sentences, poolings, token_budget, max_length)

    pooled = "cls" if chosen == POOLER else chosen
    prompts = (source.policy or {}).get("prompts") or {}

    def encode(sentences: list[str]) -> np.ndarray:
        return several(sentences, [pooled])[pooled]

    return EmbeddingModel(
        name,
        chosen,
        lambda sentences: distinct(encode, sentences, name),
        source,
        max_length,
        None if chosen == POOLER else several,
        encoder,
        tokenizer,
        longest=longest,
        token_counts=counting,
        prompts=prompts,
        default_prompt=prompts.get("query", ""),
        batch=f"{batch_size:,} sentences" if encoder is None else f"{token_budget:,} tokens",
    )


def _sentence_transformers(
    source: ModelSource, pooling: str, batch_size: int, max_length: int | None
) -> EmbeddingModel:
    """Open a sentence-transformers model, with its own modules and prompts."""
    from sentence_transformers import SentenceTransformer

    if pooling:
        raise UserError(
            f"--pooling {pooling}: {source.name} is a sentence-transformers model and brings its own pooling "
            "and prompts; leave the flag out, or give the Hugging Face folder of its transformer"
        )
    try:
        require_weights(source.location)
        model = SentenceTransformer(source.location, trust_remote_code=False, model_kwargs=SAFE_WEIGHTS)
    except Exception as error:  # of its own, of transformers, of safetensors: for the same few causes
        raise UserError(
            f"cannot load the sentence-transformers model {source.location!r}: {error}"
        ) from error

    prompts = {name: prompt or "" for name, prompt in model.prompts.items()}
    encode = partial(encode_padded, model, prompts.values(), batch_size)
    cut = cut_at(model, max_length)
    longest, counting = limit_of(model)
    return EmbeddingModel(
        source.name,
        "own modules",
        lambda sentences: distinct(encode, sentences, source.name),
        source,
        cut,
        longest=longest,
        token_counts=counting,
        prompts=prompts,
        default_prompt=prompts.get(model.default_prompt_name, ""),
        batch=f"{batch_size:,} sentences",
    )
