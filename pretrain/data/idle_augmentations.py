"""Augmentations of a set that never apply to the data: their share of the draws leaves sentences as they are.

`sentence-reordering`, a member of AugCSE's sets of 12 and 16, needs texts of several sentences, and most
corpora hold single
ones: the class that a discriminator is to tell then has no example. A set is drawn as the paper names it;
what is idle is said.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from augment.core.keys import derive
from augment.spec.pipeline import Pipeline
from augment.text.draws import draws_for
from augment.text.parsed import Parses

SAMPLE = 500  # sentences that an augmentation of text is tried on
_FEWEST = 50  # draws that tell anything


def of_cache(manifest: dict[str, Any]) -> list[str]:
    """List the augmentations that changed none of the sentences which drew them, by a cache's counts."""
    counts = manifest["cache"]["rates"]
    return [
        _line(name, column, found["drawn"], len(of_column))
        for column, of_column in counts.items()
        for name, found in of_column.items()
        if found["drawn"] >= _FEWEST and not found["changed"]
    ]


def of_sentences(pipelines: Iterable[tuple[str, Pipeline]], sentences: Parses) -> list[str]:
    """List the augmentations of (view, pipeline) that change nothing in a sample of sentences.

    Augmentations by a model take too long to be tried.
    """
    sample = [sentences[row] for row in range(0, len(sentences), max(1, len(sentences) // SAMPLE))][:SAMPLE]
    keys = np.arange(len(sample), dtype=np.uint64)
    lines = []
    for view, pipeline in pipelines:
        if not pipeline.stages or len(pipeline.stages[0]) == 1 or len(sample) < _FEWEST:
            continue
        for step in pipeline.stages[0]:
            if not step.is_text or step.batch or step.function is None:
                continue
            made = (
                step.function(sentence, draws)
                for sentence, draws in zip(sample, draws_for(derive(keys, 0), step.name))
            )
            if all(new is None for new in made):
                lines.append(_line(step.name, view, len(sample), len(pipeline.stages[0])))
    return lines


def _line(name: str, view: str, tried: int, alternatives: int) -> str:
    return (
        f"idle       {name} ({view}) changed none of {tried:,} sentences: 1 of {alternatives} draws "
        "leaves them as they are"
    )
