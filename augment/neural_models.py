"""Finding and loading the models that augmentations of text call: from a folder or by a hub name, once per process.

A model is named in the specification (`contextual:model=FOLDER`) or in an environment variable. torch and transformers
are imported when a model is loaded, not before.
"""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple

from augment.errors import AugmentationError

DEVICE = "CLEAR_AUGMENT_DEVICE"


class Loaded(NamedTuple):
    """A model in evaluation mode, float32, on its device, and its tokenizer."""

    model: Any
    tokenizer: Any
    device: Any


def find_model(given: str, parameter: str, variable: str, name: str, what: str, example: str) -> str:
    """The folder or hub name of a model: `given`, else the environment's `variable`.

    parameter: of the augmentation `name`, that names it. what: what it must be. example: a public one.

    Raises: AugmentationError when neither is set.
    """
    found = given or os.environ.get(variable, "")
    if not found:
        raise AugmentationError(
            f"{name} needs {what}, and none is given: name a folder or a hub name (such as {example}) in the specification, "
            f"{name}:{parameter}=FOLDER, or in {variable}, which also takes names with ':' ',' or '|' in them"
        )
    return found


@functools.lru_cache(maxsize=4)
def load_masked_lm(source: str) -> Loaded:
    """A masked language model with its fast tokenizer.

    Raises: AugmentationError when there is none at `source`, or it has no masked-language head or no mask token.
    """
    transformers = _transformers()
    loaded, missing = _load(source, transformers.AutoModelForMaskedLM, "a masked language model")
    if missing:
        raise AugmentationError(
            f"the model {source!r} has no weights for {missing[0]} ({len(missing)} missing): give a masked language model with "
            "its head, not an encoder alone"
        )
    if not loaded.tokenizer.is_fast or loaded.tokenizer.mask_token_id is None:
        lacks = "mask token" if loaded.tokenizer.is_fast else "fast tokenizer (tokenizer.json)"
        raise AugmentationError(f"the model {source!r} has no {lacks}: give a masked language model that has one")
    return loaded


@functools.lru_cache(maxsize=4)
def load_seq2seq(source: str) -> Loaded:
    """An encoder-decoder with its tokenizer.

    Raises: AugmentationError when there is none at `source`, or weights are missing.
    """
    loaded, missing = _load(source, _transformers().AutoModelForSeq2SeqLM, "an encoder-decoder (sequence to sequence) model")
    if missing:
        raise AugmentationError(f"the model {source!r} is incomplete: no weights for {missing[0]} ({len(missing)} missing)")
    return loaded


def _load(source: str, kind: Any, what: str) -> tuple[Loaded, list[str]]:
    import torch

    from_hub = f"{source!r} is no folder here, so it was looked for on the hub" if not os.path.isdir(source) else ""
    try:
        tokenizer = _transformers().AutoTokenizer.from_pretrained(source)
        model, report = kind.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise AugmentationError(
            f"{source!r} cannot be loaded as {what}: {from_hub + ': ' if from_hub else ''}{lines[0].strip()} Give a folder with "
            "config.json, weights and tokenizer, or a hub name while the hub can be reached"
        ) from error
    if len(tokenizer) <= len({*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}):  # what transformers makes of nothing
        raise AugmentationError(f"the model {source!r} has no tokenizer: give a folder that has its files too (tokenizer.json)")
    device = _device()
    return Loaded(model.eval().to(device), tokenizer, device), sorted(report["missing_keys"])


def _transformers() -> Any:
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise AugmentationError(
            f"augmentations by a model need torch and transformers, and {error.name} is not installed: pip install torch "
            "transformers"
        ) from error
    return transformers


def _device() -> Any:
    """$CLEAR_AUGMENT_DEVICE, else the first CUDA device, else the CPU."""
    import torch

    name = os.environ.get(DEVICE, "") or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise AugmentationError(
            f"{DEVICE}={name} is no device of this machine ({str(error).splitlines()[0]}): give cpu, cuda or cuda:NUMBER"
        ) from error
