"""The examples in docstrings: what they show is what the code gives."""

import doctest
import importlib

import pytest

MODULES = (  # in alphabetical order
    "augment.convert_weights",
    "augment.core.ragged",
    "augment.spec.grammar",
    "augment.spec.pipeline",
    "augment.spec.sets",
    "augment.text.cleaning",
    "augment.text.draws",
    "augment.text.inflection",
    "augment.text.parsed",
    "pretrain.common.help_text",
    "pretrain.config.data",
    "pretrain.data.batch",
    "pretrain.data.microbatches",
    "pretrain.objectives.base",
    "pretrain.prepare.packing",
    "pretrain.step.plan",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name):
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.attempted and not results.failed
