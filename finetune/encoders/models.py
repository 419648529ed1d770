"""Open any encoder under one interface.

open_model("runs/clear_micro")            a run of this project, with the pooling that it was trained with
open_model("bert-base-uncased", "cls")    a Hugging Face folder or hub name, with a pooling that you choose
open_model("all-MiniLM-L6-v2")            a sentence-transformers model, with its own modules and prompts
open_model(embed)                         a Python function: list of N strings -> array [N, d]
open_model("my_encoder.py:embed")         the same, if the command names it (`augment.core.own_code`)
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augment.core.errors import AugmentationError, CannotLoad
from augment.core.own_code import load
from augment.core.pretrained import pretrained, require_weights
from finetune.encoders.kept_vectors import KeptVectors
from finetune.encoders.padded import PaddedModel, open_padded, open_sentence_transformer, tokenized
from finetune.encoders.source import OWN_MODULES, ModelSource, kind_of, names_function, resolve
from pretrain.benchmarks.distinct import EmbedFunction, distinct
from pretrain.common.errors import UserError, naming

if TYPE_CHECKING:
    from finetune.encoders.embed import PackedModel
    from finetune.encoders.static import StaticModel
    from pretrain.export.sentence_transformers import Interface
    from pretrain.model.encoder import SentenceEncoder
    from pretrain.model.heads import ProjectionHead

KEPT_VECTORS = "CLEAR_VECTORS"
"""Environment variable: the folder of vectors that are kept, or none."""


@dataclass(frozen=True)
class Function:
    """A Python function that makes vectors, with what `PackedModel` and `PaddedModel` have.

    longest: most tokens of a text; None: no limit is known, and no tokenizer. single: whether it has one way
    to make vectors, whatever pooling is named.
    """

    function: EmbedFunction
    longest = tokenizer = None
    single = True

    def vectors(self, texts: Sequence[str], poolings: Sequence[str]) -> Mapping[str, np.ndarray]:
        return dict.fromkeys(poolings, self.function(list(texts)))


@dataclass(frozen=True, repr=False)
class EmbeddingModel:
    """An encoder that is opened for evaluation."""

    name: str
    """What reports call it."""
    pooling: str
    """How it makes vectors: a name of `pretrain.model.pooling`, "pooler", OWN_MODULES or "function"."""
    runs: "Function | PackedModel | PaddedModel | StaticModel"
    source: ModelSource | None = None
    """Where it was loaded from; None for functions."""
    max_length: int | None = None
    """Texts are cut to this many tokens; None: only if they are longer than the model takes."""
    precision: str = "fp32"
    """In which its matrix products are computed: "fp32" or "bf16"."""
    kept_vectors: KeptVectors | None = None
    """Where vectors are read from and kept; None: nowhere."""

    def __repr__(self) -> str:
        """Say in a line what it is: the weights of an encoder would fill a notebook's page."""
        return f"<{self.name}: pooling {self.pooling}, {self.precision}>"

    def encode(self, sentences: Sequence[str], prompt: str | None = None) -> np.ndarray:
        """Return finite float32[N, d]; each distinct sentence is encoded once, behind the prompt, if any."""
        self.require_own(prompt)
        texts = self._prompted(sentences, self.prompt if prompt is None else prompt)
        return distinct(lambda left: self._vectors(left, [self.pooling])[self.pooling], texts, self.name)

    def require_own(self, prompt: str | None) -> None:
        """Raise UserError for a prompt that is not the model's, if its mean leaves prompts out."""
        pools = self._interface is None or self._interface.include_prompt
        if prompt and not pools and prompt not in self.prompts.values():
            own = ", ".join(map(repr, filter(None, self.prompts.values()))) or "none"
            raise UserError(f"{self.name} leaves prompts out of its mean: give one of {own}, not {prompt!r}")

    @property
    def encode_poolings(self) -> Callable[[Sequence[str], Sequence[str]], Mapping[str, np.ndarray]] | None:
        """N sentences and names of poolings -> float32[N, d] by pooling; None: the model has one way."""
        if self.runs.single:
            return None
        return lambda texts, poolings: self._vectors(self._prompted(texts, self.prompt), poolings)

    def _vectors(self, texts: Sequence[str], poolings: Sequence[str]) -> Mapping[str, np.ndarray]:
        if self.kept_vectors is None:
            return self._computed(texts, poolings)
        return self.kept_vectors.vectors(texts, poolings, self._computed)  # by the text with its prompt

    def _computed(self, texts: Sequence[str], poolings: Sequence[str]) -> Mapping[str, np.ndarray]:
        if self.precision == "fp32":
            return self.runs.vectors(texts, poolings)
        import torch

        with torch.autocast("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16):
            return self.runs.vectors(texts, poolings)

    @staticmethod
    def _prompted(sentences: Sequence[str], prompt: str) -> Sequence[str]:
        if not prompt or isinstance(sentences, str):  # which is refused, and no list
            return sentences
        return [prompt + one if isinstance(one, str) else one for one in sentences]

    @property
    def encoder(self) -> "SentenceEncoder | None":
        """The packed encoder; None for models that run otherwise, or bring their own modules."""
        return None if self.pooling == OWN_MODULES else getattr(self.runs, "encoder", None)

    @property
    def tokenizer(self) -> Any:
        return None if self.encoder is None else self.runs.tokenizer

    @property
    def longest(self) -> int | None:
        """Most tokens of a text, special ones included; None: no limit is known."""
        return self.runs.longest

    @property
    def query_prompt(self) -> str:
        return self.prompts.get("query") or ""

    @property
    def document_prompt(self) -> str:
        return self.prompts.get("document") or ""

    def encode_query(self, sentences: Sequence[str]) -> np.ndarray:
        """Return the vectors of queries, as sentence-transformers' `encode_query`."""
        return self.encode(sentences, self.query_prompt)

    def encode_document(self, sentences: Sequence[str]) -> np.ndarray:
        """Return the vectors of documents, as sentence-transformers' `encode_document`."""
        return self.encode(sentences, self.document_prompt)

    @property
    def run(self) -> Path | None:
        """The run folder that it comes from, if any: reports go to its report/."""
        return self.source.run if self.source else None

    @property
    def trained_pooling(self) -> str | None:
        """The pooling that it was trained with, if the model says so."""
        return self.source.trained_pooling if self.source else None

    @property
    def head(self) -> "ProjectionHead | None":
        """What vectors by the trained pooling, or by "pooler", go through; others go through none."""
        return self.encoder.head if self.encoder is not None else None

    @property
    def identity(self) -> str:
        """What tells these weights from others of the same name (`ModelSource.identity`)."""
        return self.source.identity if self.source else self.name

    @property
    def _interface(self) -> "Interface | None":
        """What its modules.json says of prompts and lengths; None: it has none."""
        modules = self.source.modules if self.source else None
        return None if modules is None else modules.interface

    @property
    def prompts(self) -> Mapping[str, str]:
        """The prompts that the model brings, by name, as query and document."""
        return {} if self._interface is None else self._interface.prompts

    @property
    def prompt(self) -> str:
        """The prompt that stands before every sentence if none is named; "": none does."""
        return "" if self._interface is None else self._interface.prompt

    def count_cut(self, texts: Sequence[str]) -> int:
        """Return how many documents are longer than `longest` tokens, whose ends are left out."""
        longest = self.longest
        if longest is None:
            return 0
        # a token has a byte at least: what is this short need not be tokenised
        few = [one for one in self._prompted(texts, self.document_prompt) if len(one.encode()) + 2 > longest]
        parts = tokenized(self.runs.tokenizer, few, truncation=False, verbose=False)
        return sum(len(row) > longest for part in parts for row in part["input_ids"])

    @property
    def remark(self) -> str | None:
        """A warning about the pooling; None if there is nothing to say."""
        if self.trained_pooling in (None, self.pooling):
            return None
        used = f"{self.name} was trained with {self.trained_pooling} pooling and is evaluated with "
        used += f"{self.pooling} pooling"
        return used + (", without the head that it keeps" if self.head is not None else "")


def open_model(
    model: str | Path | ModelSource | EmbedFunction,
    pooling: str = "",
    token_budget: int = 16384,
    batch_size: int = 64,
    max_length: int | None = None,
    quiet: bool = False,
    precision: str = "fp32",
) -> EmbeddingModel:
    """Open an encoder for evaluation, packed if we know its parts, else padded.

    Vectors are kept in the folder that CLEAR_VECTORS names, if it names one.

    Args:
        model: see the module's description.
        pooling: of `pretrain.model.pooling`, "" (that of training, or mean with a note), or "pooler"; not for
            functions and sentence-transformers models.
        token_budget: most tokens of one packed forward pass; batch_size: sentences of one padded pass.
        max_length: most tokens of a text; functions and static embeddings read whole texts all the same.
        quiet: no remarks, for a caller of `encode_poolings`.
        precision: "fp32", or "bf16" by autocast: vectors are float32 all the same.
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
    chosen = pooling_of(model, pooling, quiet)
    runs = _open_encoder(model, chosen, token_budget, batch_size, max_length, quiet)
    limit = None if runs.longest is None else max_length
    opened = EmbeddingModel(model.name, chosen, runs, model, limit, precision)
    if opened.remark and not quiet:
        print(f"note: {opened.remark}", file=sys.stderr)
    folder = os.environ.get(KEPT_VECTORS, "none")
    return opened if folder in ("", "none") else with_kept_vectors(opened, Path(folder), before)


def with_kept_vectors(model: EmbeddingModel, root: Path, identity: str) -> EmbeddingModel:
    """Return the model with vectors kept below `root`, unless its identity has changed from `identity`."""
    assert model.source is not None
    kept = KeptVectors.of(model.source, root, model.precision, model.max_length)
    if kept is None or model.identity != identity:
        why = "it has no files to know it by" if kept is None else "its weights changed while they were read"
        print(f"note: vectors of {model.name} are not kept: {why}", file=sys.stderr)
        return model
    return replace(model, kept_vectors=kept)


def _function(function: EmbedFunction, name: str, pooling: str, precision: str) -> EmbeddingModel:
    if pooling or precision != "fp32":
        flag = f"--pooling {pooling}" if pooling else f"--precision {precision}"
        raise UserError(f"{flag}: {name} is a function, which makes its vectors itself; leave the flag out")
    return EmbeddingModel(name, "function", Function(function))


def _import_function(text: str) -> EmbedFunction:
    """Load `package.module:function` or `path/file.py:function`."""
    if not re.fullmatch(r"(.+\.py|\w+(\.\w+)*):[^\W\d]\w*", text):
        raise UserError(f"{text}: no such folder, and no package.module:function or file.py:function either")
    with naming(text, AugmentationError):
        function = load(text)
    if not callable(function):
        raise UserError(f"{text} is no function that takes a list of strings")
    return function


def pooling_of(source: ModelSource, pooling: str, quiet: bool) -> str:
    """Return how a model makes vectors; refuse a pooling that it cannot have."""
    from finetune.encoders.embed import POOLER
    from pretrain.model.pooling import WORDS, check_pooling

    if pooling == WORDS != source.trained_pooling:
        raise UserError(f"--pooling {WORDS}: {source.name} was not trained so; clearly export --static input")
    if kind_of(source.location) == "sentence-transformers":
        if pooling:
            raise UserError(f"--pooling {pooling}: {source.name} brings its own pooling; leave the flag out")
        return OWN_MODULES
    if not pooling and source.trained_pooling is None and not quiet:
        unknown = f"{source.name} does not say which pooling it was trained with"
        print(f"note: {unknown}: using mean; --pooling chooses", file=sys.stderr)
    return POOLER if pooling == POOLER else check_pooling(pooling or source.trained_pooling or "mean")


def _open_encoder(
    source: ModelSource, pooling: str, token_budget: int, batch_size: int, max_length: int | None, quiet: bool
) -> "PackedModel | PaddedModel | StaticModel":
    """Open a masked language model, an export of ours, or by OWN_MODULES a sentence-transformers model."""
    from transformers import AutoConfig

    from finetune.encoders.embed import PackedModel
    from pretrain.model.architectures import FAMILIES
    from pretrain.model.pooling import WORDS

    own = pooling in (OWN_MODULES, WORDS)
    why = _unknown_modules(source) if own else ""
    with naming(f"cannot load a model from {source.location!r}", OSError, ValueError):
        packs = not why and pretrained(AutoConfig, source.location).model_type in FAMILIES
    if packs:
        return PackedModel.open(source, pooling, token_budget, max_length, quiet)
    if own and not quiet and "StaticEmbedding" not in why:
        why = f"packing does not know its {why or 'type of transformer'}"
        print(f"note: {source.name} runs padded, which takes longer: {why}", file=sys.stderr)
    if own:
        from finetune.encoders.static import StaticModel

        opened = open_sentence_transformer(source, max_length)
        if type(opened[0]).__name__ == "StaticEmbedding" and not opened[0].tokenizer.truncation:
            return StaticModel([*opened])
        return PaddedModel(lambda _: opened, pooling, batch_size)
    return PaddedModel(lambda other: open_padded(source, other, max_length), pooling, batch_size)


def _unknown_modules(source: ModelSource) -> str:
    """Return what of a sentence-transformers model cannot run packed, beside its type; "" for nothing."""
    with naming(f"cannot load the model {source.location!r}", CannotLoad):
        require_weights(source.location)
    assert source.modules is not None  # it has a modules.json
    interface, others = source.modules.interface, ", ".join(source.modules.others)
    leaves_out = not interface.include_prompt and any(interface.prompts.values())
    # prompts whose tokens may end within one of the text
    return others or ("prompts that the mean leaves out" if leaves_out else "")
