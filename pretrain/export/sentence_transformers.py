"""The files in which sentence-transformers finds an encoder's pooling, and its head if one is kept.

They are not written by `SentenceTransformer(modules=...).save`: version 6 of the library writes module paths
and a pooling config that versions 2 to 5 cannot read, while all versions since 2 read the files written here.
And importing the library takes longer than an export.
"""

import copy
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.utils import cached_file

from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, write_durably
from pretrain.data.tokenizer import prompt_tokens
from pretrain.model.heads import ProjectionHead
from pretrain.model.pooling import SECOND_STATE, check_pooling

if TYPE_CHECKING:
    from pretrain.model.encoder import SentenceEncoder

POOLED_TYPES = ("bert", "roberta", "xlm-roberta")
"""Model types whose encoder class of transformers has a pooler behind [CLS]."""
ORDER = ("Transformer", "WeightedLayerPooling", "WordWeights", "Pooling", "Dense", "Normalize")
"""Modules that have a counterpart in packed rows, in the only order."""
STATIC_FOLDER = "0_StaticEmbedding"
TASK = "feature-extraction"
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
CONFIGS = tuple(f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "xlm-roberta"))
"""Settings of a transformer; old versions of the library name the file by its type."""


@dataclass(frozen=True)
class Interface:
    """What a folder says to sentence-transformers of its use, beside pooling and head."""

    max_length: int | None = None
    """Most tokens of a text, special ones included; None: it does not say."""
    normalize: bool = False
    """Whether vectors are scaled to length 1."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Name -> text before a sentence."""
    default_prompt: str | None = None
    """Name of the prompt that stands before every sentence if none is named."""
    include_prompt: bool = True
    """Whether the mean is over the tokens of a prompt, too."""
    similarity: str | None = "cosine"

    @property
    def prompt(self) -> str:
        """The text before every sentence if no prompt is named."""
        return self.prompts.get(self.default_prompt or "", "")


@dataclass(frozen=True)
class Modules:
    """How a model of sentence-transformers makes vectors."""

    pooling: str
    """A name of `pretrain.model.pooling`, unless `others` says that it is something else."""
    head: ProjectionHead | None
    interface: Interface
    others: list[str]
    """What has no counterpart in packed rows; empty: the vectors are those of pooling and head."""
    token_weights: torch.Tensor | None = None
    """float32[V]: the weight of each token in the mean; None: all alike."""

    def install(self, encoder: "SentenceEncoder", tokenizer: Any) -> None:
        """Let an encoder make its vectors so; whether it normalises them is left to the caller."""
        encoder.head = self.head
        encoder.weigh_tokens(self.token_weights)
        encoder.leave_out(unpooled_prompts(self.interface, tokenizer))


def write_modules(
    out: Path,
    pooling: str,
    hidden_size: int,
    layers: int,
    interface: Interface,
    head: ProjectionHead | None = None,
    pooler: bool = False,
    token_weights: Mapping[str, float] | None = None,
) -> str | None:
    """Write modules.json and what it names into the export folder `out`.

    `cls` and `mean` are the library's own poolings. The others average two hidden states before the mean over
    tokens: a layer pooling whose weights are 1 for these two and 0 for the rest.

    Args:
        pooling: a name of `pretrain.model.pooling`.
        hidden_size, layers: of the encoder.
        head: what the pooled vectors go through: a `pretrain.model.heads.simcse_head`.
        pooler: whether the library would add a pooler of new weights, with a warning; it is told not to
            (`POOLED_TYPES`).
        token_weights: token -> its weight in a mean, of all tokens in order; None: all alike.

    Returns:
        The name of the head's folder in `out`; None without a head.
    """
    modules = [("", "Transformer")]

    def add(kind: str, settings: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None) -> str:
        folder = out / f"{len(modules)}_{kind}"
        make_folder(folder)
        _write(folder / "config.json", settings)
        if tensors is not None:
            save_file(tensors, folder / "model.safetensors")
        modules.append((folder.name, kind))
        return folder.name

    transformer: dict[str, object] = {"max_seq_length": interface.max_length, "do_lower_case": False}
    if pooler:
        transformer["model_args"] = {"add_pooling_layer": False}
    width = {"word_embedding_dimension": hidden_size}
    if (second := SECOND_STATE[check_pooling(pooling)]) is not None:
        weights = torch.tensor(layer_weights(second, layers))
        settings = width | {"layer_start": 0, "num_hidden_layers": layers}
        add("WeightedLayerPooling", settings, {"layer_weights": weights})
        # not in config.json, where it would cost every user of the encoder
        transformer["config_args"] = {"output_hidden_states": True}
    if token_weights is not None:
        add(
            "WordWeights",
            {"vocab": list(token_weights), "word_weights": token_weights, "unknown_word_weight": 1},
        )
    mode = "cls_token" if pooling == "cls" else "mean_tokens"
    modes = {f"pooling_mode_{name}": name == mode for name in MODES}
    add("Pooling", width | modes | {"include_prompt": interface.include_prompt})
    head_folder = None
    if head is not None:
        linear = head.layers[0]
        tensors = {
            f"linear.{name}": values.detach().contiguous() for name, values in linear.named_parameters()
        }
        head_folder = add("Dense", {
            "in_features": linear.in_features, "out_features": linear.out_features, "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }, tensors)  # fmt: skip
    _write(out / "sentence_bert_config.json", transformer)
    _list_modules(out, modules, interface)
    return head_folder


def write_static(out: Path, table: torch.Tensor, tokenizer: Any, interface: Interface) -> None:
    """Write modules.json and what it names of a static table float32[V, H] into the export folder `out`."""
    folder = out / STATIC_FOLDER
    make_folder(folder)
    words = copy.deepcopy(tokenizer.backend_tokenizer)
    words.no_truncation()
    words.no_padding()
    write_durably(folder / "tokenizer.json", words.to_str().encode())
    save_file({"embedding.weight": table.detach().contiguous()}, folder / "model.safetensors")
    _list_modules(out, [(folder.name, "StaticEmbedding")], interface)


def _list_modules(out: Path, modules: list[tuple[str, str]], interface: Interface) -> None:
    """Write modules.json of (folder, kind) in order, and what the folder says of its use."""
    if interface.normalize:
        modules = [*modules, (f"{len(modules)}_Normalize", "Normalize")]
    _write(out / "modules.json", [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(modules)
    ])  # fmt: skip
    _write(out / "config_sentence_transformers.json", {
        "__version__": {}, "prompts": dict(interface.prompts),
        "default_prompt_name": interface.default_prompt, "similarity_fn_name": interface.similarity,
    })  # fmt: skip


def weights_by_token(weights: Sequence[float], tokenizer: Any) -> dict[str, float]:
    """Return token -> weight, in order; numbers that no token has get a name of their own."""
    tokens = tokenizer.convert_ids_to_tokens(range(len(weights)))
    names = [token or f"no token {number}" for number, token in enumerate(tokens)]
    return dict(zip(names, weights, strict=True))


def unpooled_prompts(interface: Interface, tokenizer: Any) -> list[np.ndarray]:
    """Return the tokens of the prompts that a mean leaves out (`SentenceEncoder.leave_out`)."""
    return list(prompt_tokens(tokenizer, {} if interface.include_prompt else interface.prompts).values())


def read_modules(source: str) -> Modules | None:
    """Read the modules of a folder or hub name; None: it has no modules.json, or the hub does not answer."""
    try:
        listed = _content(source, "modules.json")
        if listed is None:
            return None
        paths = {module["type"].rpartition(".")[2]: module["path"] for module in listed}
        kinds = [re.sub(r"\..*\.", ".", module["type"]) for module in listed]
        plain = [f"sentence_transformers.{kind}" for kind in ORDER]
        foreign = ", ".join(kind for kind in kinds if kind not in plain)
        pooled = _content(source, f"{paths['Pooling']}/config.json") if "Pooling" in paths else None
        pooling = " and ".join(_modes({"pooling_mode": "none"} if pooled is None else pooled))
        head = _read_dense(source, paths["Dense"]) if "Dense" in paths else None
        weights = _read_word_weights(source, paths["WordWeights"]) if "WordWeights" in paths else None
        include_prompt = (pooled or {}).get("include_prompt", True)
        texts: dict[str, Any] = next(filter(None, (_content(source, name) for name in CONFIGS)), {})
        if "WeightedLayerPooling" in paths:
            settings = (_content(source, "config.json") or {}) | (texts.get("config_args") or {})
            # without hidden states the library leaves the module out
            known = pooling == "mean" and settings.get("output_hidden_states")
            averaged = _read_layer_weights(source, paths["WeightedLayerPooling"])
            pooling = averaged if known else f"{pooling} of averaged layers"
        others = {
            foreign or "order of modules": kinds != [kind for kind in plain if kind in kinds],
            f"pooling {pooling}": pooling not in SECOND_STATE,
            "Dense": "Dense" in paths and head is None,
            # the library scales the first token by its weight, too, and divides by the weights of prompts
            "WordWeights": weights is not None and (pooling == "cls" or not include_prompt),
            "transformer in a folder of its own": bool(paths.get("Transformer")),
            "transformer of another task": texts.get("transformer_task", TASK) != TASK,
            "do_lower_case": bool(texts.get("do_lower_case")),
        }
        longest = texts.get("max_seq_length")
        if longest is None:  # the library then takes the tokenizer's
            longest = (_content(source, "tokenizer_config.json") or {}).get("model_max_length")
        said = _content(source, "config_sentence_transformers.json") or {}
        interface = Interface(
            longest if longest is not None and longest < 1e9 else None,
            "Normalize" in paths,
            said.get("prompts") or {},
            said.get("default_prompt_name"),
            include_prompt,
            said.get("similarity_fn_name"),
        )
        return Modules(pooling, head, interface, [what for what, there in others.items() if there], weights)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(f"modules of '{source}' cannot be read: {type(error).__name__}: {error}") from error


def _read_dense(source: str, path: str) -> ProjectionHead | None:
    """Read a linear map with its activation; None: it computes something else."""
    settings, weights = _content(source, f"{path}/config.json"), _file(source, f"{path}/model.safetensors")
    if settings is None or weights is None:
        raise UserError(
            f"{source}/{path} lacks config.json or model.safetensors. Pickled weights, which can run code, "
            "are not read: clearly convert FOLDER"
        )
    kind = settings["activation_function"].rpartition(".")[2].lower()
    activations = {"identity": nn.Identity, "relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}
    ends = {settings.get(f"module_{end}_name") for end in ("input", "output")}
    if kind not in activations or settings.get("use_residual") or not ends <= {None, "sentence_embedding"}:
        return None
    linear = nn.Linear(settings["in_features"], settings["out_features"], bias=settings.get("bias", True))
    tensors = {key.removeprefix("linear."): tensor for key, tensor in load_file(weights).items()}
    linear.load_state_dict(tensors)
    return ProjectionHead(linear, activations[kind]()).eval()


def _read_layer_weights(source: str, path: str) -> str:
    """Return the pooling whose hidden states a layer pooling averages before the mean over tokens."""
    settings, weights = _content(source, f"{path}/config.json"), _file(source, f"{path}/model.safetensors")
    if weights is not None and settings.get("layer_start") == 0:
        given = load_file(weights)["layer_weights"].double()
        for name, second in SECOND_STATE.items():
            if second is not None and len(given) > max(1, second):
                expected = torch.tensor(layer_weights(second, len(given) - 1)).double()
                if torch.equal(given / given.sum(), expected / expected.sum()):
                    return name
    return "layers by other weights"


def _read_word_weights(source: str, path: str) -> torch.Tensor:
    """Read the weight of each token, float32[V], as the library does: from the settings alone."""
    settings = _content(source, f"{path}/config.json")
    given, other = settings["word_weights"], settings.get("unknown_word_weight", 1)
    weights = [given.get(word, given.get(word.lower(), other)) for word in settings["vocab"]]
    return torch.tensor(weights, dtype=torch.float32)


def _modes(settings: Mapping[str, Any]) -> list[str]:
    """Return the poolings of a module's settings, as versions before and since 6 write them."""
    if (mode := settings.get("pooling_mode")) is not None:
        return [mode] if isinstance(mode, str) else list(mode)
    named = {"cls_token": "cls", "mean_tokens": "mean"}
    return [named.get(name, name) for name in MODES if settings.get(f"pooling_mode_{name}")] or ["mean"]


def _content(source: str, name: str) -> Any:
    """Return what a JSON file of a folder or hub name holds; None if there is none."""
    file = _file(source, name)
    return None if file is None else json.loads(Path(file).read_text("utf-8"))


def _file(source: str, name: str) -> str | None:
    """Return the path of a file of a folder or hub name; None if there is none."""
    options = ("missing_entries", "connection_errors")  # of a hub that does not answer, and of its cache
    silent = {f"_raise_exceptions_for_{kind}": False for kind in options}
    return cached_file(os.path.expanduser(source), name, **silent)


def layer_weights(second: int, layers: int) -> list[float]:
    """Return the weights of hidden states 0 (embeddings) to `layers` that average the last with `second`."""
    weights = [0.0] * (layers + 1)
    for state in (second, layers):  # below 0: counted from the last
        weights[state] += 1.0
    return weights


def _write(path: Path, content: object) -> None:
    write_durably(path, (json.dumps(content, indent=2) + "\n").encode())
