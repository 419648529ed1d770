"""Build the compiled parts with sanitizers into build/sanitize; run their tests and fuzz targets there.

    python tests/fuzz/sanitize.py [--cases 5000]

AddressSanitizer finds reads and writes out of bounds and after free, UndefinedBehaviorSanitizer overflow of
signed integers, shifts and misaligned access. Either ends the process. Leaks are not looked for: Python keeps
objects until the process ends, and so do nanobind and torch. The libraries of the project are not
instrumented, so that what goes wrong inside torch is seen only where it meets our memory.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "sanitize"
PACKAGES = ("augment", "pretrain", "finetune", "configs")
FLAGS = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
TESTS = (
    "tests/augment/native",
    "tests/augment/text/test_text_encoder.py",
    "tests/pretrain/model/test_native_kernels.py",
)
TARGETS = ("annotation", "rules")  # what runs compiled code


def library(name: str) -> str:
    """Return the path of a sanitizer's library; it must be loaded before Python."""
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = Path(found.stdout.strip())
    if not path.is_absolute():
        sys.exit(f"gcc has no {name}: install its package of sanitizers (libasan, libubsan)")
    return str(path.resolve())


def build() -> None:
    """Copy the packages, compile their extensions there, and link the tests and what they read."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, BUILD / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("tests", "pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        (BUILD / name).symlink_to(ROOT / name)
    environment = {
        **os.environ,
        "CC": "gcc",
        "CXX": "g++",
        "CFLAGS": FLAGS,
        "CXXFLAGS": FLAGS,
        "LDFLAGS": FLAGS,
    }
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=BUILD,
        env=environment,
        check=True,
    )
    built = {path.parent.relative_to(BUILD).as_posix() for path in BUILD.rglob("_native*.so")}
    if built != {"augment", "pretrain/model/kernels"}:
        sys.exit(f"only these were compiled: {sorted(built)}")


def main() -> None:
    """Build, test, fuzz; the first that fails ends with its status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=5_000, help="of each fuzz target")
    cases = parser.parse_args().cases
    build()
    environment = {
        **os.environ,
        "PYTHONPATH": str(BUILD),
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # each object its own allocation: overruns of small ones are seen too
        "OMP_NUM_THREADS": "1",
        "CLEAR_KERNELS": "native",
    }
    commands = [[sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]]
    commands += [
        [sys.executable, "tests/fuzz/run_fuzz.py", target, "--cases", str(cases), "--processes", "1"]
        for target in TARGETS
    ]
    for command in commands:
        print(" ".join(command[1:]), flush=True)
        if status := subprocess.run(command, cwd=BUILD, env=environment, check=False).returncode:
            sys.exit(status)


if __name__ == "__main__":
    main()
