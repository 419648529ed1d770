"""Make the general test of `clearly adapt`, finetune/judge/docstrings.tsv, of the demo's corpus.

    python tests/finetune/judge/make_docstrings.py finetune/judge/docstrings.tsv

First and second sentences of docstrings in pairs, each docstring's first sentence four times: with the second
of the same docstring (3), of another of its module (2), of another module of its package (1), and of another
package (0). Each second sentence is as likely in every place, so that no sentence gives a score away. The
packages are under the BSD or the Apache licence (NOTICE). Other versions of them give another file: that in
the repository is of those that pip gave in November 2026.
"""

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from pretrain.prepare.sentences import split_sentences
from pretrain.prepare.sources.embedded import prose, python_files

BSD = ("networkx", "numpy", "pandas", "scipy", "sklearn", "sympy")
APACHE = ("datasets", "huggingface_hub", "nltk", "tornado")
MODULES, DOCSTRINGS = 11, 2  # of a package, of a module
SHORTEST, LONGEST = 40, 130  # characters of a sentence
EVERY, MOST = 3, 450  # of the modules of a package in their order: reading them all takes minutes

Item = tuple[str, str, str, str]
"""Package, module, first and second sentence."""


def docstrings() -> Iterator[Item]:
    seen: Counter[str] = Counter()
    for path, _ in python_files():
        module = path.split("site-packages/")[-1]
        package = module.split("/")[0]
        if package not in BSD + APACHE or not path.endswith(".py"):
            continue
        seen[package] += 1
        if seen[package] % EVERY or seen[package] > MOST:
            continue
        for text in prose(Path(path).read_text("utf-8")):
            sentences = [one for line in text.split("\n") for one in split_sentences(line)]
            fitting = [one for one in sentences if SHORTEST <= len(one) <= LONGEST]
            if len(fitting) > 1:
                yield package, module, fitting[0], fitting[1]


def choose(found: list[Item], draw: random.Random) -> list[Item]:
    """Return a few docstrings of a few modules of each package, no sentence twice."""
    packages: defaultdict[str, defaultdict[str, list[Item]]] = defaultdict(lambda: defaultdict(list))
    taken: set[str] = set()
    for item in found:
        if item[2] != item[3] and taken.isdisjoint(item[2:]):
            taken.update(item[2:])
            packages[item[0]][item[1]].append(item)
    chosen = []
    for package in sorted(packages):
        modules = [of for _, of in sorted(packages[package].items()) if len(of) >= DOCSTRINGS]
        for of_module in draw.sample(modules, min(MODULES, len(modules))):
            chosen += draw.sample(of_module, DOCSTRINGS)
    return chosen


def main(out: str) -> None:
    draw = random.Random(0)
    items = choose(list(docstrings()), draw)
    lines = ["sentence1\tsentence2\tscore\n"]
    for package, module, first, second in items:
        others = [other for other in items if other[2] != first]
        grades = {
            2: [other for other in others if other[1] == module],
            1: [other for other in others if other[0] == package and other[1] != module],
            0: [other for other in others if other[0] != package],
        }
        lines.append(f"{first}\t{second}\t3\n")
        lines += [f"{first}\t{draw.choice(of)[3]}\t{grade}\n" for grade, of in grades.items()]
    Path(out).write_text("".join(lines), "utf-8")
    print(f"{len(items)} docstrings, {len(lines) - 1} pairs, {sum(map(len, lines)):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
