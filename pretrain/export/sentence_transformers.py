"""The files in which sentence-transformers finds an encoder's pooling, and its head where one is kept.

They are not written by `SentenceTransformer(modules=...).save`: version 6 of the library writes module paths
and a pooling config that versions 2 to 5 cannot read, while all versions since 2 read the files written here.
And importing the library takes longer than an export.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers.utils import cached_file

from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, write_durably
from pretrain.data.tokenizer import prompt_tokens
from pretrain.model.heads import ProjectionHead, simcse_head
from pretrain.model.pooling import SECOND_STATE, check_pooling

POOLED_TYPES = ("bert", "roberta", "xlm-roberta")
"""Model types whose encoder class of transformers has a pooler behind [CLS]."""
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write_modules(
    out: Path,
    pooling: str,
    hidden_size: int,
    layers: int,
    max_length: int,
    head: ProjectionHead | None = None,
    prompts: Mapping[str, str] | None = None,
    include_prompt: bool = True,
    pooler: bool = False,
) -> str | None:
    """Write modules.json and what it names into the export folder `out`.

    `cls` and `mean` are the library's own poolings. The others average two hidden states before the mean over
    tokens: a layer pooling whose weights are 1 for these two and 0 for the rest.

    Args:
        pooling: a name of `pretrain.model.pooling`.
        hidden_size, layers: of the encoder.
        max_length: of the longest sequence in tokens, special ones included.
        head: what the pooled vectors go through: a `pretrain.model.heads.simcse_head`.
        prompts: name -> text before a sentence; `query` is the default where there are any. include_prompt:
            whether the mean is over their tokens, too.
        pooler: whether the library would add a pooler of new weights, with a warning; it is told not to
            (`POOLED_TYPES`).

    Returns:
        The name of the head's folder in `out`; None without a head.
    """
    second = SECOND_STATE[check_pooling(pooling)]
    modules = [("", "Transformer")]
    transformer: dict[str, object] = {"max_seq_length": max_length, "do_lower_case": False}
    if pooler:
        transformer["model_args"] = {"add_pooling_layer": False}
    if second is not None:
        weights = layer_weights(second, layers)
        folder = out / f"{len(modules)}_WeightedLayerPooling"
        make_folder(folder)
        _write(folder / "config.json", {
            "word_embedding_dimension": hidden_size, "layer_start": 0, "num_hidden_layers": layers,
        })  # fmt: skip
        save_file({"layer_weights": torch.tensor(weights)}, folder / "model.safetensors")
        modules.append((folder.name, "WeightedLayerPooling"))
        # not in config.json, where it would cost every user of the encoder
        transformer["config_args"] = {"output_hidden_states": True}
    folder = out / f"{len(modules)}_Pooling"
    make_folder(folder)
    mode = "cls_token" if pooling == "cls" else "mean_tokens"
    _write(folder / "config.json", {
        "word_embedding_dimension": hidden_size, **{f"pooling_mode_{name}": name == mode for name in MODES},
        "include_prompt": include_prompt,
    })  # fmt: skip
    modules.append((folder.name, "Pooling"))
    if head is not None:
        folder = out / f"{len(modules)}_Dense"
        make_folder(folder)
        linear = head.layers[0]
        _write(folder / "config.json", {
            "in_features": linear.in_features, "out_features": linear.out_features, "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        })  # fmt: skip
        tensors = {
            f"linear.{name}": tensor.detach().contiguous() for name, tensor in linear.named_parameters()
        }
        save_file(tensors, folder / "model.safetensors")
        modules.append((folder.name, "Dense"))
    _write(out / "sentence_bert_config.json", transformer)
    _write(out / "modules.json", [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(modules)
    ])  # fmt: skip
    _write(out / "config_sentence_transformers.json", {
        "__version__": {}, "prompts": dict(prompts or {}),
        "default_prompt_name": "query" if prompts else None, "similarity_fn_name": "cosine",
    })  # fmt: skip
    return None if head is None else folder.name


def read_head(folder: Path) -> ProjectionHead:
    """Read the head from the folder that `write_modules` named.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        tensors = load_file(folder / "model.safetensors")
        head = simcse_head(len(tensors["linear.bias"]))
        head.layers[0].load_state_dict(
            {name.removeprefix("linear."): tensor for name, tensor in tensors.items()}
        )
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise UserError(
            f"{folder} does not hold the head that the export keeps: {error}. Export the run again"
        ) from error
    return head.eval()


def unpooled_prompts(policy: Mapping[str, Any], tokenizer: Any) -> list[np.ndarray]:
    """Return the tokens of the prompts that an export's mean leaves out (`SentenceEncoder.leave_out`).

    Args:
        policy: the content of its clear.json.
    """
    prompts = policy.get("prompts") if not policy.get("prompts_pooled", True) else None
    return list(prompt_tokens(tokenizer, prompts or {}).values())


def read_modules(source: str) -> tuple[str, ProjectionHead | None]:
    """Read which pooling a model of sentence-transformers has, and the head that follows it, if one does.

    Args:
        source: a folder or hub name. A plain one, without modules.json, counts as `mean` without a head, as
            in sentence-transformers.

    Raises:
        UserError: it has modules other than a transformer, `cls` or `mean` pooling, a linear map of d to d
            with bias and tanh, and normalisation; or its files are damaged.
    """
    listed = _content(source, "modules.json")
    if listed is None:
        return "mean", None
    pooling, head, others = None, None, list[str]()
    try:
        for module in listed:
            kind, path = module["type"].rpartition(".")[2], module["path"]
            settings = _content(source, f"{path}/config.json") or {} if path else {}
            if kind == "Pooling":
                (pooling,) = _modes(settings)
            elif kind == "Dense" and settings["activation_function"].endswith(".Tanh"):
                file = cached_file(os.path.expanduser(source), f"{path}/model.safetensors")
                head = read_head(Path(file).parent)
            elif kind not in ("Transformer", "Normalize"):
                others.append(kind)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"the modules of '{source}' cannot be read: {type(error).__name__}: {error}"
        ) from error
    if pooling not in ("cls", "mean") or others:
        found = ", ".join([f"pooling {pooling}", *others])
        raise UserError(
            f"'{source}' makes its vectors by modules that have no counterpart in packed rows ({found}); "
            "give one with cls or mean pooling, and with no head or a linear map of d to d with tanh"
        )
    return pooling, head


def _modes(settings: Mapping[str, Any]) -> list[str]:
    """Return the poolings of a module's settings, as versions before and since 6 write them."""
    if (mode := settings.get("pooling_mode")) is not None:
        return [mode] if isinstance(mode, str) else list(mode)
    named = {"cls_token": "cls", "mean_tokens": "mean"}
    return [named.get(name, name) for name in MODES if settings.get(f"pooling_mode_{name}")] or ["mean"]


def _content(source: str, name: str) -> Any:
    """Return what a JSON file of a folder or hub name holds; None where there is none."""
    options = {"_raise_exceptions_for_missing_entries": False}
    file = cached_file(os.path.expanduser(source), name, **options)
    return None if file is None else json.loads(Path(file).read_text("utf-8"))


def layer_weights(second: int, layers: int) -> list[float]:
    """Return the weights of hidden states 0 (embeddings) to `layers` that average the last with `second`."""
    index = second if second >= 0 else layers + 1 + second
    if not 0 <= index <= layers:
        raise UserError(f"an encoder of {layers} layers has no hidden state {second} to pool.")
    weights = [0.0] * (layers + 1)
    weights[index] += 1.0
    weights[layers] += 1.0
    return weights


def _write(path: Path, content: object) -> None:
    write_durably(path, (json.dumps(content, indent=2) + "\n").encode())
