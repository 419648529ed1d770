"""Any encoder under one interface: a run or export of ours, a Hugging Face or sentence-transformers folder, a
function.

open_model("runs/clear_micro")            a run of this project: its best/, or else export/; the pooling it was trained for
open_model("bert-base-uncased", "cls")    a Hugging Face folder or hub name, by a pooling that you choose
open_model("all-MiniLM-L6-v2")            a sentence-transformers folder or hub name, by its own modules and prompts
open_model("my_encoder.py:embed")         a Python function: list of N strings -> array [N, d]
open_model(embed)                         the same, from Python
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from augment.core.errors import CannotLoad
from augment.core.pretrained import pretrained, require_source, require_weights
from pretrain.common.errors import UserError
from pretrain.common.run_folder import describe_export, export_of

if TYPE_CHECKING:
    from pretrain.model.heads import ProjectionHead

NO_CODE = {"trust_remote_code": False}
SAFE_WEIGHTS = NO_CODE | {"use_safetensors": True}
"""`model_kwargs` of sentence-transformers: no code of the model's, and no pickled weights."""

EmbedFunction = Callable[[list[str]], np.ndarray]


@dataclass(frozen=True)
class EmbeddingModel:
    """An encoder to be judged."""

    name: str
    """What reports call it."""
    pooling: str
    """How it makes vectors: a name of `pretrain.model.pooling`, "pooler", "own modules"
    (sentence-transformers) or "function"."""
    trained_pooling: str | None
    """The pooling it was trained for, where the model says so."""
    encode: Callable[[Sequence[str]], np.ndarray]
    """Sentences, in any order, repeats allowed -> finite float32[N, d] in that order. Every distinct sentence
    is encoded once."""
    folder: Path | None = None
    """Where its weights and tokenizer lie, for evaluations that fine-tune; None for functions and hub
    names."""
    run: Path | None = None
    """The run folder that it comes from, if any: reports go to its report/."""

    max_length: int | None = None
    """Texts are cut to this many tokens; None: only where they are longer than the model takes."""

    encode_poolings: Callable[[Sequence[str], Sequence[str]], Mapping[str, np.ndarray]] | None = None
    """N sentences and names of poolings -> float32[N, d] by pooling, in as few passes as they need together;
    None: the model brings the one way in which it makes vectors."""

    head: ProjectionHead | None = None
    """What vectors by the trained pooling, or by "pooler", go through; vectors by another pooling do not."""

    @property
    def identity(self) -> str:
        """What tells these weights from others of the same name: folder, size and time of the weights; else
        the name."""
        if self.folder is None:
            return self.name
        weights = sorted(
            path
            for path in self.folder.rglob("*")
            if path.suffix in (".safetensors", ".bin") and path.is_file()
        )
        stamps = ",".join(f"{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in weights)
        return f"{self.folder.resolve()} {stamps}"

    @property
    def remark(self) -> str | None:
        """What must be said aloud about the pooling, if anything."""
        if self.trained_pooling is not None and self.pooling != self.trained_pooling:
            judged = (
                f"{self.name} was trained for {self.trained_pooling} pooling and is judged by "
                f"{self.pooling} pooling"
            )
            return f"{judged}, without the head that it keeps" if self.head is not None else judged
        return None


def open_model(
    model: str | Path | EmbedFunction,
    pooling: str = "",
    token_budget: int = 16384,
    batch_size: int = 64,
    max_length: int | None = None,
    quiet: bool = False,
) -> EmbeddingModel:
    """Open an encoder for evaluation; a remark about its pooling goes to standard error.

    Args:
        model: see the module's description.
        pooling: name of `pretrain.model.pooling` ("" means the pooling that the model was trained for; where
            it does not say, mean, which is said aloud), or "pooler": the first token's state through the
            checkpoint's own pooler. Not for functions and sentence-transformers models, which bring their
            own.
        token_budget: most tokens of one packed forward pass; batch_size: sentences of one padded pass, for
            models that cannot run packed.
        max_length: most tokens of a text, special ones included, for protocols that cut texts. Functions, and
            sentence-transformers models without a limit (static embeddings), read whole texts all the same:
            the model's `max_length` says what holds.
        quiet: no remark about the pooling, for a caller that goes on to `encode_poolings`.

    Raises:
        UserError: nothing there to load, no tokenizer, an unknown pooling, or one that the model cannot have.
    """
    if callable(model):
        return _function(model, getattr(model, "__name__", "function"), pooling)
    text = str(model)
    if ":" in text and not Path(text).exists():
        return _function(_import_function(text), text, pooling)
    source, run = resolve_run(text)
    kind = kind_of(source)
    if kind == "sentence-transformers":
        opened = _sentence_transformers(source, text, pooling, batch_size, run, max_length)
    else:
        opened = _packed(source, text, pooling, token_budget, batch_size, run, max_length, quiet)
    if opened.remark and not quiet:
        print(f"note: {opened.remark}", file=sys.stderr)
    return opened


def kind_of(source: str) -> str:
    """ "ours" (has clear.json), "sentence-transformers" (has modules.json), "hugging face" (has config.json)
    or "hub"."""
    folder = Path(source)
    for mark, kind in (
        ("clear.json", "ours"),
        ("modules.json", "sentence-transformers"),
        ("config.json", "hugging face"),
    ):
        if (folder / mark).is_file():
            return kind
    if folder.exists():
        raise UserError(
            f"{source}: no model there; a model folder has a config.json (Hugging Face) or modules.json"
        )
    try:
        require_source(source)
    except CannotLoad as error:
        raise UserError(f"{source}: {error}") from None
    return "hub" if not _hub_has_modules(source) else "sentence-transformers"


def distinct(encode: EmbedFunction, sentences: Sequence[str], name: str) -> np.ndarray:
    """float32[N, d] of N sentences, each distinct one encoded once.

    Raises:
        UserError: an encoder that gives another number of vectors, or one that is not finite (the sentence is
            named).
    """
    index: dict[str, int] = {}
    rows = np.fromiter(
        (index.setdefault(sentence, len(index)) for sentence in sentences), np.int64, len(sentences)
    )
    different = list(index)
    found = encode(different)
    if hasattr(found, "detach"):  # a torch tensor, perhaps on a GPU
        found = found.detach().cpu().float().numpy()
    try:
        with np.errstate(over="ignore"):
            vectors = np.ascontiguousarray(found, np.float32)
    except (ValueError, TypeError) as error:
        raise UserError(f"{name} gave no array of numbers for {len(different)} sentences: {error}") from None
    if vectors.ndim != 2 or len(vectors) != len(different):
        raise UserError(
            f"{name} gave an array of shape {vectors.shape} for {len(different)} sentences; expected one "
            "vector each"
        )
    require_finite(vectors, different, name)
    return vectors if len(different) == len(sentences) else vectors[rows]  # no copy of what may be gigabytes


def require_finite(vectors: np.ndarray, sentences: Sequence[str], name: str) -> None:
    """Raise a UserError that names the first of N sentences whose vector, of [N, d], is not finite."""
    damaged = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(damaged):
        # SentEval turns these into 0 and scores on; a model that gives NaN would look merely weak.
        raise UserError(
            f"{name}: the vector of {sentences[damaged[0]]!r} is not finite, and so are {len(damaged) - 1} "
            "more of "
            f"{len(sentences)}; look for NaN or infinite weights in the model"
        )


def _function(function: EmbedFunction, name: str, pooling: str) -> EmbeddingModel:
    if pooling:
        raise UserError(
            f"--pooling {pooling}: {name} is a function, which makes its vectors itself; leave the flag out"
        )
    return EmbeddingModel(name, "function", None, lambda sentences: distinct(function, sentences, name))


def _import_function(text: str) -> EmbedFunction:
    """`package.module:function` or `path/file.py:function`."""
    where, name = os.path.expanduser(text).rsplit(":", 1)
    if not name.isidentifier() or not (
        where.endswith(".py") or all(part.isidentifier() for part in where.split("."))
    ):
        raise UserError(
            f"{text}: there is no such folder, and it is no package.module:function or "
            "file.py:function either"
        )
    try:
        if where.endswith(".py"):
            if not Path(where).is_file():
                raise UserError(f"{text}: there is no file {where}")
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            module = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(spec.name, module)
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(where)
    except UserError:
        raise
    except Exception as error:  # whatever a stranger's module does when it is imported
        raise UserError(
            f"{text}: cannot import {where!r}: {type(error).__name__}: {error}. Write "
            "package.module:function or file.py:function"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{text}: {where} has no function {name!r} that takes a list of strings")
    return function


def resolve_run(source: str) -> tuple[str, Path | None]:
    """(folder or hub name to load, run folder if `source` is one or lies in one)."""
    source = os.path.expanduser(source)
    folder, exported = Path(source), export_of(source)
    if exported != source:
        from pretrain.export.folder import read_policy

        print(
            f"{source} stands for {exported} ({describe_export(read_policy(exported)) or 'a model'})",
            file=sys.stderr,
        )
        return exported, folder
    parent = folder.resolve().parent
    return source, parent if folder.name in ("export", "best") and (
        parent / "config.yaml"
    ).is_file() else None


def _hub_has_modules(name: str) -> bool:
    """Whether a hub model is a sentence-transformers one (its modules.json is in the cache or can be had)."""
    from transformers.utils import cached_file

    try:
        return cached_file(name, "modules.json", _raise_exceptions_for_missing_entries=False) is not None
    except (OSError, ValueError):
        return False


def _packed(
    source: str,
    name: str,
    pooling: str,
    token_budget: int,
    batch_size: int,
    run: Path | None,
    max_length: int | None,
    quiet: bool,
) -> EmbeddingModel:
    """A masked language model through the project's packed encoder; other architectures by
    sentence-transformers."""
    from transformers import AutoConfig

    from finetune.encoders.embed import POOLER, embed_poolings, load_model
    from pretrain.export.folder import read_policy
    from pretrain.model.architectures import FAMILIES
    from pretrain.model.pooling import check_pooling

    policy = read_policy(source)
    trained = policy["pooling"] if policy else None
    chosen = POOLER if pooling == POOLER else check_pooling(pooling or trained or "mean")
    if not pooling and trained is None and not quiet:
        print(
            f"note: {name} does not say how it was pooled in training: mean pooling; --pooling chooses",
            file=sys.stderr,
        )
    folder = Path(source) if Path(source).is_dir() else None
    try:
        model_type = pretrained(AutoConfig, source).model_type
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load a model from {source!r}: {error}") from error
    if model_type not in FAMILIES:
        padded, head = _padded(source, name, chosen, batch_size, max_length), None

        def several(sentences: Sequence[str], poolings: Sequence[str]) -> dict[str, np.ndarray]:
            others = {
                other: _padded(source, name, other, batch_size, max_length)
                for other in poolings
                if other != chosen
            }
            return {one: others.get(one, padded)(list(sentences)) for one in poolings}
    else:
        encoder, tokenizer = load_model(source, pooler=chosen == POOLER)
        head = encoder.head

        def several(sentences: Sequence[str], poolings: Sequence[str]) -> dict[str, np.ndarray]:
            return embed_poolings(encoder, tokenizer, sentences, poolings, token_budget, max_length)

    pooled = "cls" if chosen == POOLER else chosen

    def encode(sentences: list[str]) -> np.ndarray:
        return several(sentences, [pooled])[pooled]

    return EmbeddingModel(
        name,
        chosen,
        trained,
        lambda sentences: distinct(encode, sentences, name),
        folder,
        run,
        max_length,
        None if chosen == POOLER else several,
        head,
    )


def _padded(source: str, name: str, pooling: str, batch_size: int, max_length: int | None) -> EmbedFunction:
    """An architecture that the packed encoder does not know, run padded by sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    if pooling not in ("cls", "mean"):
        raise UserError(
            f"--pooling {pooling}: {name} is of a type that runs padded only, with cls or mean pooling"
        )
    try:
        require_weights(source)
        transformer = Transformer(
            source,
            config_kwargs=NO_CODE,
            model_kwargs=SAFE_WEIGHTS,
            processor_kwargs=NO_CODE,
        )
    except Exception as error:  # of its own, of transformers, of safetensors: for the same few causes
        raise UserError(f"cannot load a model from {source!r}: {error}") from error
    model = SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
    )
    _cut_at(model, max_length)
    return lambda sentences: model.encode(
        sentences, batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True
    )


def _cut_at(model: Any, max_length: int | None) -> int | None:
    """Make a SentenceTransformer cut texts to `max_length` tokens; what holds then, None where it has no such
    limit."""
    own = model.max_seq_length
    # static embeddings have no limit that could be set
    if max_length is None or own is None or math.isinf(own):
        return None
    model.max_seq_length = min(max_length, own)
    return max_length


def _sentence_transformers(
    source: str, name: str, pooling: str, batch_size: int, run: Path | None, max_length: int | None
) -> EmbeddingModel:
    """A sentence-transformers model by its own modules and prompts."""
    from sentence_transformers import SentenceTransformer

    if pooling:
        raise UserError(
            f"--pooling {pooling}: {name} is a sentence-transformers model and brings its own pooling and "
            "prompts; leave the "
            "flag out, or give the Hugging Face folder of its transformer"
        )
    try:
        require_weights(source)
        model = SentenceTransformer(source, trust_remote_code=False, model_kwargs=SAFE_WEIGHTS)
    except Exception as error:  # of its own, of transformers, of safetensors: for the same few causes
        raise UserError(f"cannot load the sentence-transformers model {source!r}: {error}") from error

    def encode(sentences: list[str]) -> np.ndarray:
        return model.encode(sentences, batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True)

    cut = _cut_at(model, max_length)
    folder = Path(source) if Path(source).is_dir() else None
    return EmbeddingModel(
        name, "own modules", None, lambda sentences: distinct(encode, sentences, name), folder, run, cut
    )
