"""Examine the installation: Python, packages, compiled parts."""

import importlib.metadata
import platform
import sys

from packaging.requirements import Requirement

from pretrain.common.program import DISTRIBUTION
from pretrain.doctor.findings import Finding

TESTED = ((3, 11),)
"""Versions of CPython that the whole suite has passed on."""


def python() -> list[Finding]:
    """Say which Python this is, and whether the suite has been run on it."""
    what = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    if sys.version_info[:2] in TESTED:
        return [Finding("good", what)]
    tested = ", ".join(".".join(map(str, version)) for version in TESTED)
    return [Finding("note", what, f"the test suite has run on CPython {tested} only: run `make test` here")]


def packages() -> list[Finding]:
    """Compare the installed packages with what this project requires."""
    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        todo = (
            "pip install -e . in the checkout, so that its requirements are known and `clearly` is a command"
        )
        return [Finding("note", f"{DISTRIBUTION} is not installed: it runs from its folder", todo)]
    findings: list[Finding] = []
    versions: dict[str, str] = {}
    fitting = 0
    for line in required:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = versions[requirement.name] = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            findings.append(
                Finding("wrong", f"{requirement.name} is missing", f"pip install '{requirement}'")
            )
            continue
        if requirement.specifier.contains(version, prereleases=True):
            fitting += 1
        else:
            what = f"{requirement.name} {version}, where {requirement.specifier} is needed"
            findings.append(Finding("wrong", what, f"pip install '{requirement}'"))
    own = importlib.metadata.version(DISTRIBUTION)
    main = ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "deepspeed", "transformers") if name in versions
    )
    return [Finding("good", f"{DISTRIBUTION} {own}; {fitting} packages as required; {main}"), *findings]


def compiled() -> list[Finding]:
    """Say whether the compiled loops of augmentation and the compiled layers are there."""
    from augment.core.compiled import native
    from pretrain.model.kernels.native import available

    todo = "install a C++17 compiler and Python's headers, then `pip install --force-reinstall --no-deps .`"
    findings = [
        Finding("good", "text augmentation is compiled")
        if native is not None
        else Finding("note", "text augmentation runs in Python: same results, many times slower", todo)
    ]
    instructions = available()
    findings.append(
        Finding("good", f"CPU layers are compiled; they use {instructions} here")
        if instructions is not None
        else Finding("note", "CPU layers run in plain torch: same results but for rounding, slower", todo)
    )
    return findings
