"""Examine an installation and its machine, and say what to do about what is found.

    clearly doctor

The exit status is 1 if something is wrong: it would fail. A note is about what works, but slower or with
less than it could. `clearly benchmarks check DIR` examines benchmarks, and `clearly train --dry-run` has the
ranks of a run meet and step.
"""

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.requirements import Requirement
from rich.console import Console
from rich.text import Text

from pretrain.common import cli
from pretrain.common.cores import threads_of_user, usable_cores
from pretrain.common.environment import choose_accelerator
from pretrain.common.program import DISTRIBUTION

PARSER = "CLEAR_PARSER"


class Diagnosis(NamedTuple):
    """One thing found, with its figure, and what to do about it, if anything."""

    level: Literal["ok", "note", "WRONG"]
    what: str
    todo: str = ""


Diagnoses = Iterator[Diagnosis]
COLOURS = {"ok": "green", "note": "yellow", "WRONG": "red"}


def doctor() -> int:
    """Examine the installation and the machine; say what to do about what is found."""
    choose_accelerator()
    console = Console(highlight=False)
    examinations: dict[str, list[Callable[[], Diagnoses]]] = {
        "software": [packages, compiled, parser],
        "machine": [processor, devices],
    }
    wrong = 0
    for heading, steps in examinations.items():
        console.print(Text(heading, style="bold"))
        for examine in steps:
            for finding in examine():
                show(console, finding)
                wrong += finding.level == "WRONG"
    verdict = {0: "nothing here will fail", 1: "1 thing will fail"}.get(wrong, f"{wrong} things will fail")
    console.print(f"\n{verdict}")
    return 1 if wrong else 0


def show(console: Console, finding: Diagnosis) -> None:
    """Print a finding, with what to do about it."""
    mark = (f"{finding.level:5}", COLOURS[finding.level])
    console.print(Text.assemble("  ", mark, "  ", finding.what), soft_wrap=True)
    if finding.todo:
        console.print(Text(f"         -> {finding.todo}"), soft_wrap=True)


# -- software ----------------------------------------------------------


def packages() -> Diagnoses:
    """Compare the installed packages with what this project requires."""
    here = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    try:
        required = [Requirement(line) for line in importlib.metadata.requires(DISTRIBUTION) or []]
    except importlib.metadata.PackageNotFoundError:
        todo = "pip install -e . in the checkout, so that `clearly` is a command"
        yield Diagnosis("note", f"{here}; Clearly is not installed: it runs from its folder", todo)
        return
    versions = {}
    for requirement in required:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, todo = requirement.name, f"pip install '{requirement}'"
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Diagnosis("WRONG", f"{name} is missing", todo)
            continue
        if requirement.specifier.contains(version, prereleases=True):
            versions[name] = version
        else:
            yield Diagnosis("WRONG", f"{name} {version}, and {requirement.specifier} is needed", todo)
    main = [f"{name} {versions[name]}" for name in ("torch", "deepspeed", "transformers") if name in versions]
    yield Diagnosis("ok", f"{here}; {len(versions)} packages as required; {', '.join(main)}")


def compiled() -> Diagnoses:
    """Say whether the compiled layers are there."""
    from pretrain.model.kernels.native import available

    todo = "install a C++17 compiler and Python's headers, then `pip install --force-reinstall --no-deps .`"
    if (instructions := available()) is None:
        yield Diagnosis("note", "CPU layers run in plain torch: same results but for rounding, slower", todo)
    else:
        yield Diagnosis("ok", f"CPU layers are compiled; they use {instructions} here")


def parser() -> Diagnoses:
    """Load the dependency parser that CLEAR_PARSER names, and parse a sentence."""
    if not (name := os.environ.get(PARSER, "")):
        todo = f"{PARSER}=NAME_OR_FOLDER names a spaCy pipeline, for augmentations that rewrite text"
        yield Diagnosis("note", "no dependency parser is named", todo)
        return
    from augment.core.errors import AugmentationError
    from augment.text.parsing import find_parser, parse_texts

    try:
        (sentence,) = parse_texts(["The dog barks."], find_parser())
        yield Diagnosis("ok", f"parser {name}: {len(sentence.words)} words of a sentence parsed")
    except (AugmentationError, OSError, ValueError) as error:
        yield Diagnosis("WRONG", f"the parser {name} does not work: {error}", f"name another in {PARSER}")


# -- machine -----------------------------------------------------------


def processor() -> Diagnoses:
    """Say which processor, cores and memory there are, and what limits them."""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    information = {key.strip(): value.strip() for key, _, value in lines}
    flags = information.get("flags", "").split()
    special = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    cores, threads, load = usable_cores(), threads_of_user(), os.getloadavg()[0]
    what = f"{information.get('model name', 'unknown processor')}, {cores} cores"
    yield Diagnosis("ok", f"{what} ({', '.join(special) or 'no AVX2'}), {memory:.0f} GiB")
    if threads is not None and threads < cores:
        todo = "unset it, unless other work needs the remaining cores"
        yield Diagnosis("note", f"OMP_NUM_THREADS is {threads}, of {cores} cores", todo)
    if load > cores / 2:
        todo = "training and every measurement will be slower; `top` shows what runs"
        yield Diagnosis("note", f"other work is running: a load of {load:.1f} on {cores} cores", todo)


def devices() -> Diagnoses:
    """Say which GPUs torch can use."""
    import torch

    driver = Path("/proc/driver/nvidia/version").exists()
    if torch.version.cuda is None:
        todo = "for a GPU, install torch's CUDA build" if driver else ""
        yield Diagnosis("note" if driver else "ok", "no GPU: torch's CPU build", todo)
    elif not torch.cuda.is_available():
        todo = "nvidia-smi must list one, and its driver be new enough for this CUDA" if driver else ""
        what = f"torch for CUDA {torch.version.cuda} finds no GPU"
        yield Diagnosis("WRONG" if driver else "note", what, todo)
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        free = torch.cuda.mem_get_info(number)[0] / gpu.total_memory
        todo = "nvidia-smi shows which process holds the rest" if free < 0.9 else ""
        what = f"GPU {number}: {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, {100 * free:.0f}% free"
        yield Diagnosis("note" if todo else "ok", what, todo)


if __name__ == "__main__":
    cli.run(doctor)
