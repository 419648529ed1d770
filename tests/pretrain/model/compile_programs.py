"""Compile every Triton program of the product for NVIDIA's sm_90, without a GPU, for the types that occur.

Run as `python compile_programs.py`: prints a line for each. With `tiles` it compiles attention's backward at
the tiles that are launched, and prints the bytes that each shares, and the most that they are taken for.
Without TRITON_INTERPRET, so not within a test.
"""

import inspect
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from pretrain.model.attention import BUCKETS
from pretrain.model.kernels import attending, fused, programs

TARGET = GPUTarget("cuda", 90, 32)
LARGEST = 227 * 1024
"""Bytes that a program may share on sm_90 (CUDA C++ Programming Guide, compute capabilities)."""
INTEGERS = dict.fromkeys(("width", "rows", "programs", "stride", "site", "heads", "size", "first"), "i32")
TYPES = INTEGERS | {"eps": "fp32", "scale": "fp32", "labels": "*i64", "keys": "*i64", "losses": "*fp32"}
TYPES |= {"slots": "*i32"}
FLOATS = {"bias", "weight", "norm_bias", "statistics", "sums", "cos", "sin", "log_sums", "along"}
STREAM = {"residual", "added", "sum", "normed", "of_stream", "of_residual"}
OPTIONAL = {"bias", "residual", "norm_bias", "keys", "added", "normed", "working", "of_stream", "of_working"}
ABSENT = "constexpr"  # the type of a tensor that is None
TUPLES = {
    "addends": ("bias", "residual"),
    "norm": ("weight", "norm_bias", "eps"),
    "dropout": ("keys", "site"),
    "outputs": ("added", "normed", "working", "statistics"),
    "saved": ("sum", "statistics", "weight"),
    "upstream": ("of_stream", "of_working"),
    "results": ("of_residual", "of_x", "sums"),
    "shape": ("rows", "width", "programs"),
    "written": ("output", "log_sums"),
    "read": ("gradient", "output", "log_sums", "along"),
}
CONSTANTS = {"RATE": 0.1, "BLOCK": 1024, "HALF": 32, "SIGN": -1, "IGNORED": -1}
CONSTANTS |= {"SIZE": 32, "COLUMNS": 32, "WINDOW": 8, "STEP": 16}


def type_of(name: str, activation: str, stream: str, flag: bool) -> str:
    if not flag and name in OPTIONAL:
        return ABSENT
    if name in TYPES:
        return TYPES[name]
    return f"*{'fp32' if name in FLOATS else stream if name in STREAM else activation}"


def compiled(
    program: Any, activation: str, stream: str, flag: bool, given: dict[str, object], warps: int = 4
) -> Any:
    """Compile a program for tensors of these types, with optional ones or without."""
    constants: dict[tuple[int, ...], object] = {}
    signature: dict[str, object] = {}
    for place, parameter in enumerate(inspect.signature(program.fn).parameters):
        if parameter.isupper():
            signature[parameter] = "constexpr"
            constants[place,] = given.get(parameter, flag)
            continue
        names = TUPLES.get(parameter, (parameter,))
        types = tuple(type_of(part, activation, stream, flag) for part in names)
        signature[parameter] = types if parameter in TUPLES else types[0]
        for number, kind in enumerate(types):
            if kind == ABSENT:
                constants[(place, number) if parameter in TUPLES else (place,)] = None
    source = triton.compiler.ASTSource(fn=program, signature=signature, constexprs=constants)
    return triton.compile(source, target=TARGET, options={"num_warps": warps})


def everything() -> None:
    of_modules = vars(programs) | vars(attending)
    found = [program for program in of_modules.values() if isinstance(program, triton.JITFunction)]
    for program in found:
        name = program.fn.__name__
        if name.startswith("_"):
            continue
        types = [("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp32"), ("fp32", "fp32")]
        if "attention" in name:  # which takes the longest; long sequences take half precision only
            types = types[:1] if name.startswith("long") else types[::3]
        given = CONSTANTS | ({"BLOCK": 16} if name == "rotation" or "attention" in name else {})
        for activation, stream in types:
            for flag in (True, False):
                cubin = compiled(program, activation, stream, flag, given).asm["cubin"]
                assert cubin
                print(name, activation, stream, flag, len(cubin), flush=True)


def tiles() -> None:
    """Compile what shares the most: backward programs, with dropout, at the tiles that are launched."""
    short = [("attention_backward", most, fused._WARPS[most], kind) for most in BUCKETS for kind in (2, 4)]
    long = [("long_attention_of_queries", BUCKETS[-1], fused._LONG_WARPS, 2)]
    long += [("long_attention_of_keys", BUCKETS[-1], fused._LONG_WARPS, 2)]
    for name, most, warps, size in short + long:
        for columns in (32, 64, 128):
            bound = fused.shared_by(
                fused._LONG_TILES if "long" in name else fused._TILES, size, most, columns
            )
            if bound > LARGEST:
                print(name, columns, most, size, "is left to others", flush=True)
                continue
            given = CONSTANTS | {"SIZE": columns, "COLUMNS": columns, "BLOCK": most, "STEP": fused._STEP}
            kind = {2: "bf16", 4: "fp32"}[size]
            program = compiled(getattr(attending, name), kind, "fp32", True, given | {"WINDOW": -1}, warps)
            print(name, columns, most, size, program.metadata.shared, bound, flush=True)


if __name__ == "__main__":
    tiles() if sys.argv[1:] == ["tiles"] else everything()
