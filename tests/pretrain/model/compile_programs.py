"""Compile every Triton program of the product for NVIDIA's sm_90, without a GPU, for the types that occur.

Run as `python compile_programs.py`: prints a line for each. Without TRITON_INTERPRET, so not within a test.
"""

import inspect

import triton
from triton.backends.compiler import GPUTarget

from pretrain.model.kernels import attending, programs

TARGET = GPUTarget("cuda", 90, 32)
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


def main() -> None:
    everything = vars(programs) | vars(attending)
    found = [program for program in everything.values() if isinstance(program, triton.JITFunction)]
    for program in found:
        name = program.fn.__name__
        if name.startswith("_"):
            continue
        types = [("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp32"), ("fp32", "fp32")]
        if "attention" in name:  # which takes the longest; long sequences take half precision only
            types = types[:1] if name.startswith("long") else types[::3]
        for activation, stream in types:
            for flag in (True, False):
                constants, signature = {}, {}
                for place, parameter in enumerate(inspect.signature(program.fn).parameters):
                    if parameter.isupper():
                        signature[parameter] = "constexpr"
                        constants[place,] = CONSTANTS.get(parameter, flag)
                        if parameter == "BLOCK" and (name == "rotation" or "attention" in name):
                            constants[place,] = 16
                        continue
                    names = TUPLES.get(parameter, (parameter,))
                    types = tuple(type_of(part, activation, stream, flag) for part in names)
                    signature[parameter] = types if parameter in TUPLES else types[0]
                    for number, kind in enumerate(types):
                        if kind == ABSENT:
                            constants[(place, number) if parameter in TUPLES else (place,)] = None
                source = triton.compiler.ASTSource(fn=program, signature=signature, constexprs=constants)
                compiled = triton.compile(source, target=TARGET)
                assert compiled.asm["cubin"]
                print(name, activation, stream, flag, len(compiled.asm["cubin"]), flush=True)


if __name__ == "__main__":
    main()
