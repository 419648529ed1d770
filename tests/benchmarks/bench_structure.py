"""Print pairs of a text's own structure, for a reader who counts those that belong together.

    python tests/benchmarks/bench_structure.py heading 50 '/usr/share/doc/**/*.md' ...

At most two of a document and one of each passage; drawn with seed 0.
"""

import random
import sys

from augment.core.errors import shortened
from pretrain.config.data import data_config
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.rows import RowFaults
from pretrain.prepare.sources.structure import pairs_of
from pretrain.prepare.sources.structured import structured


def some_pairs(kind: str, places: list[str], draw: random.Random) -> list[tuple[str, str]]:
    """Return pairs of a kind of all documents, at most two of each, with different passages."""
    sources = data_config({"sources": [{"source": place} for place in places]}).sources
    found: dict[str, str] = {}
    for task in plan_tasks(sources, structure=True):
        for document in structured(task, sources[task.source], RowFaults()):
            pairs = pairs_of(document, [kind]).get(kind, [])
            for first, second in draw.sample(pairs, min(2, len(pairs))):
                found.setdefault(second, first)
    return [(first, second) for second, first in found.items()]


def main() -> None:
    kind, count, *places = sys.argv[1:]
    draw = random.Random(0)
    pairs = some_pairs(kind, places, draw)
    for first, second in draw.sample(pairs, min(int(count), len(pairs))):
        print(f"- {shortened(first, 110)} => {shortened(second, 170)}")


if __name__ == "__main__":
    main()
