"""Load the models that augmentations of text call, once per process, and run them in fixed shapes.

A specification (`contextual:model=FOLDER`) or an environment variable names a model, as a folder or a hub
name. It is loaded on the CPU when a pipeline is built, and moved to its device at its first use: a process
that only builds the pipeline and passes it to workers touches no device. torch and transformers are imported
when a model is loaded, not before.
"""

import functools
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from augment.core.errors import AugmentationError
from augment.core.pretrained import pretrained, pretrained_model

DEVICE = "CLEAR_AUGMENT_DEVICE"
_WIDTH = 16  # tokens; the width of a pass is a multiple of it
_ROWS_OF_CPU, _ROWS = 8, 64  # sequences a pass: enough to fill two cores, and a GPU


class LoadedModel(NamedTuple):
    """Hold a model in evaluation mode, float32, and its tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def device(self) -> Any:
        return next(self.model.parameters()).device

    @property
    def rows(self) -> int:
        """Return the number of sequences in every pass through the model."""
        return _ROWS_OF_CPU if self.device.type == "cpu" else _ROWS


class PaddedBatch(NamedTuple):
    """Sequences (their numbers, int[n]) that run together; rows repeat the first to fill R. int64[R, L]."""

    numbers: list[int]
    rows: list[int]
    ids: Any
    mask: Any


def padded_batches(
    loaded: LoadedModel, sequences: Sequence[Sequence[int]], longest: int
) -> Iterator[PaddedBatch]:
    """Batch sequences of token ids (none longer than `longest`) by length, padded at the right.

    The last bits of a score, which may decide the word drawn, depend on the shape of the pass. So it has R
    rows, a width that follows from the sequence's own length, and at least one column of padding (without
    any, transformers passes no mask, and attention takes another path).
    """
    import torch

    widths: dict[int, list[int]] = {}
    for number, sequence in enumerate(sequences):
        widths.setdefault(min(-(-(len(sequence) + 1) // _WIDTH) * _WIDTH, longest + 1), []).append(number)
    for width, members in sorted(widths.items()):
        for start in range(0, len(members), loaded.rows):
            numbers = members[start : start + loaded.rows]
            rows = numbers + numbers[:1] * (loaded.rows - len(numbers))
            ids = torch.full((loaded.rows, width), loaded.tokenizer.pad_token_id)
            mask = torch.zeros_like(ids)
            for row, number in enumerate(rows):
                sequence = sequences[number]
                ids[row, : len(sequence)] = torch.tensor(sequence)
                mask[row, : len(sequence)] = 1
            yield PaddedBatch(numbers, rows, ids.to(loaded.device), mask.to(loaded.device))


@functools.lru_cache(maxsize=4)
def load_masked_lm(source: str) -> LoadedModel:
    """Load a masked language model with its fast tokenizer, on the CPU until `on_device` moves it."""
    from transformers import AutoModelForMaskedLM

    loaded = _load(source, AutoModelForMaskedLM, "a masked language model")
    if not loaded.tokenizer.is_fast or loaded.tokenizer.mask_token_id is None:
        raise AugmentationError(f"the model {source!r} has no fast tokenizer with a mask token")
    return loaded


@functools.lru_cache(maxsize=8)
def load_seq2seq(source: str) -> LoadedModel:
    """Load an encoder-decoder with its tokenizer, on the CPU until `on_device` moves it."""
    from transformers import AutoModelForSeq2SeqLM

    return _load(source, AutoModelForSeq2SeqLM, "an encoder-decoder")


def _load(source: str, kind: Any, what: str) -> LoadedModel:
    import torch
    from transformers import AutoTokenizer

    try:
        tokenizer = pretrained(AutoTokenizer, source)
        model, report = pretrained_model(kind, source, dtype=torch.float32, output_loading_info=True)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        where = "" if os.path.isdir(source) else f"{source!r} is no folder here: "
        raise AugmentationError(
            f"{source!r} cannot be loaded as {what}: {where}{lines[0].strip()} Give a folder with "
            "config.json, weights and tokenizer, or a hub name while the hub can be reached"
        ) from error
    # a tokenizer that transformers made without any file
    if len(tokenizer) <= len({*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}):
        raise AugmentationError(f"the model {source!r} has no tokenizer (tokenizer.json) beside it")
    if tokenizer.pad_token_id is None:
        raise AugmentationError(f"the tokenizer of {source!r} has no padding token")
    if missing := sorted(report["missing_keys"]):
        lacking = f"no weights for {missing[0]} ({len(missing)} missing)"
        raise AugmentationError(f"the model {source!r} has {lacking}: give {what} with its head")
    return LoadedModel(model.eval(), tokenizer)


def on_device(loaded: LoadedModel) -> LoadedModel:
    """Move a model to $CLEAR_AUGMENT_DEVICE, else to the first CUDA device, else leave it on the CPU."""
    import torch

    name = os.environ.get(DEVICE, "") or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        message = f"{DEVICE}={name} is no device of this process ({str(error).splitlines()[0]})"
        if multiprocessing.parent_process() is not None:
            message += ". Loader workers have no GPU: make the views once with clearly cache"
        raise AugmentationError(message) from error
    if loaded.device != device:
        loaded.model.to(device)
    return loaded
