"""The examples in docstrings: what they show is what the code gives."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("augment", "finetune", "pretrain")
    for path in (ROOT / package).rglob("*.py")
    if re.search(r"^ *>>> ", path.read_text(), re.MULTILINE)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name):
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.attempted and not results.failed


def test_the_central_types_have_examples():
    central = (
        "augment.core.ragged",
        "pretrain.data.batch",
        "pretrain.model.rows",
        "pretrain.objectives.base",
        "pretrain.step.plan",
    )
    assert set(central) <= set(MODULES)
