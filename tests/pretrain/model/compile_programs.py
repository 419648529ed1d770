"""Compile every Triton program of the product for NVIDIA's sm_90, without a GPU, for the types that occur.

Run as `python compile_programs.py`: prints a line for each. Without TRITON_INTERPRET, so not within a test.
"""

import inspect

import triton
from triton.backends.compiler import GPUTarget

from pretrain.model.kernels import programs

TARGET = GPUTarget("cuda", 90, 32)
INTEGERS = {"width": "i32", "rows": "i32", "programs": "i32", "site": "i32", "heads": "i32", "size": "i32"}
TYPES = INTEGERS | {"stride": "i32", "eps": "fp32", "labels": "*i64", "keys": "*i64", "losses": "*fp32"}
FLOATS = {"bias", "weight", "norm_bias", "statistics", "sums", "cos", "sin"}
STREAM = {"residual", "added", "normed", "of_stream", "of_residual"}
OPTIONAL = {"bias", "residual", "norm_bias", "keys", "added", "normed", "working", "of_stream", "of_working"}
CONSTANTS = {"THRESHOLD": int(0.1 * 2**32), "RATE": 0.1, "BLOCK": 1024, "HALF": 32, "SIGN": -1, "IGNORED": -1}


def main() -> None:
    found = [program for program in vars(programs).values() if isinstance(program, triton.JITFunction)]
    for program in found:
        name = program.fn.__name__
        if name.startswith("_"):
            continue
        for activation, stream in (("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp32"), ("fp32", "fp32")):
            for flag in (True, False):
                constants, signature = {}, {}
                for parameter in inspect.signature(program.fn).parameters:
                    if parameter.isupper():
                        signature[parameter] = "constexpr"
                        constants[parameter] = CONSTANTS.get(parameter, flag)
                    elif (
                        not flag
                        and parameter in OPTIONAL
                        and (parameter, name) != ("added", "connect_backward")
                    ):
                        signature[parameter], constants[parameter] = "constexpr", None
                    elif parameter in TYPES:
                        signature[parameter] = TYPES[parameter]
                    else:
                        kind = (
                            "fp32" if parameter in FLOATS else stream if parameter in STREAM else activation
                        )
                        signature[parameter] = f"*{kind}"
                if name == "rotation":
                    constants["BLOCK"] = 16
                source = triton.compiler.ASTSource(fn=program, signature=signature, constexprs=constants)
                compiled = triton.compile(source, target=TARGET)
                assert compiled.asm["cubin"]
                print(name, activation, stream, flag, len(compiled.asm["cubin"]), flush=True)


if __name__ == "__main__":
    main()
