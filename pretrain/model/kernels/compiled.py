"""Load and call the layer's kernels in C++ (the folder native), where they were built.

They are an optional extension: `pip install -e .` compiles them where it finds a compiler (GCC 12 or later).
It is a second extension, beside `augment._native`, because that one must import without torch and this one
runs on the threads of torch's own OpenMP library: it is compiled for OpenMP, but not linked with any, and
finds torch's when it is loaded behind torch. `torch.set_num_threads` holds for it therefore, and results have
the same bits whatever that number is.
"""

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

VARIABLE = "CLEAR_KERNELS"  # plain turns them off, to compare; native: an error without them
_INTERFACE = 1  # of the sources in native: a library compiled from other sources is not used
_EXTENSION = "pretrain.model.kernels._native"
_INSTRUCTION_SETS = ("portable", "avx2", "avx512")

_forced: str | None = None


def available() -> str | None:
    """Return the instruction set that the kernels run with; None: they are not compiled, or turned off."""
    if os.environ.get(VARIABLE) == "plain" or not instruction_sets():
        return None
    return _forced or instruction_sets()[-1]


@cache
def instruction_sets() -> tuple[str, ...]:
    """Return those of portable, avx2 and avx512 that this processor runs; none where nothing is compiled."""
    library = _library()
    return () if library is None else _INSTRUCTION_SETS[: library.instruction_sets() + 1]


@contextmanager
def forced_instruction_set(name: str) -> Iterator[None]:
    """Run the kernels of one of `instruction_sets` within the block, for tests and benchmarks."""
    global _forced
    if name not in instruction_sets():
        raise ValueError(f"{name} is not among this processor's instruction sets {instruction_sets()}")
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def call(name: str, *arguments: Tensor | float | None) -> None:
    """Call a kernel: tensors (contiguous, or None) go as pointers, and the number of threads comes last."""
    instructions = available()
    assert instructions is not None
    _function(f"{name}_{instructions}")(
        *(x.data_ptr() if isinstance(x, Tensor) else x for x in arguments), torch.get_num_threads()
    )


_POINTER, _SIZE, _INT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double
_DROPOUT = [_POINTER, _SIZE, _REAL]
_SEQUENCES = [_SIZE, _SIZE, _SIZE, _POINTER, _SIZE, _SIZE, _REAL, _SIZE]
_SIGNATURES: dict[str, list[Any]] = {  # behind the type, and before the number of threads
    "add_norm_forward": [_SIZE] * 2 + [_POINTER] * 5 + [_REAL, *_DROPOUT] + [_POINTER] * 3,
    "add_norm_backward": [_SIZE] * 2 + [_POINTER] * 3 + _DROPOUT + [_POINTER] * 6,
    "norm_dropout_forward": [_SIZE] * 2 + [_POINTER] * 3 + [_REAL, *_DROPOUT] + [_POINTER] * 2,
    "norm_dropout_backward": [_SIZE] * 2 + [_POINTER] * 3 + _DROPOUT + [_POINTER] * 3,
    "bias_gelu_forward": [_SIZE] * 2 + [_POINTER] * 3,
    "bias_gelu_backward": [_SIZE] * 2 + [_POINTER] * 5,
    "gelu_gate_forward": [_SIZE] * 2 + [_POINTER] * 2,
    "gelu_gate_backward": [_SIZE] * 2 + [_POINTER] * 3,
    "attention_forward": [*_SEQUENCES, _POINTER, *_DROPOUT] + [_POINTER] * 2,
    "attention_backward": [*_SEQUENCES, _POINTER, *_DROPOUT] + [_POINTER] * 3,
}


@cache
def _function(name: str) -> Any:
    function = getattr(_library(), name)
    function.argtypes = [_INT, *_SIGNATURES[name.rpartition("_")[0]], _INT]
    function.restype = None
    return function


@cache
def _library() -> ctypes.CDLL | None:
    spec = importlib.util.find_spec(_EXTENSION)
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)  # torch, imported above, has brought the OpenMP library
    except OSError:
        return None
    return library if library.interface_version() == _INTERFACE else None
