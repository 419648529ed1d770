"""Hold the floors of the house: which folder may import which, no circle, no crowded folder, no prefix.

Imports are read with `ast`, those inside functions too: a late import is still a dependency.
"""

import ast
import itertools
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST_MODULES = 18  # in a folder
MOST_ROOMS, MOST_ARROWS = 21, 105
"""Rooms: augment, finetune, and each folder and module of pretrain. An arrow: one room imports another."""

ABOVE = ("pretrain.commands", "pretrain.api")
"""The commands that need both packages, and what users write programs with: they stand above both."""
PACKAGES = (("augment",), ("pretrain",), ("finetune",), ABOVE)
"""From the ground up: each may import itself and what stands before it."""

# Folder (or module beside the folders) -> what it may import besides itself, from the ground up. Nobody has
# to list `augment.core`; within `pretrain` and `finetune` nobody has to list `pretrain.common`.
MAY_IMPORT = {
    "augment.core": "",
    "augment.text": "",
    "augment.tokens": "augment.text",
    "augment.sda": "augment.text",
    "augment.rules": "augment.text augment.sda",
    "augment.neural": "augment.text",
    "augment.spec": "augment.text augment.tokens augment.sda augment.rules augment.neural",
    "pretrain.common": "",
    "pretrain.config": "augment.spec",
    "pretrain.checkpoint": "",
    "pretrain.telemetry": "",
    "pretrain.model": "",
    "pretrain.watch": "pretrain.checkpoint",
    "pretrain.losses": "pretrain.model",
    "pretrain.data.ledger": "",
    "pretrain.data": "augment.text augment.tokens augment.spec pretrain.config",
    "pretrain.objectives": "pretrain.config pretrain.model pretrain.losses pretrain.data",
    "pretrain.export": "pretrain.config pretrain.checkpoint pretrain.telemetry pretrain.model pretrain.data",
    "pretrain.prepare": "augment.text augment.tokens augment.spec pretrain.config pretrain.data",
    "pretrain.benchmarks": "pretrain.config pretrain.prepare",
    "pretrain.step": "augment.tokens augment.spec pretrain.config pretrain.telemetry pretrain.model "
    "pretrain.losses pretrain.data pretrain.objectives",
    "pretrain.start": "augment pretrain.config pretrain.checkpoint pretrain.telemetry pretrain.model "
    "pretrain.data pretrain.objectives pretrain.export pretrain.prepare "
    "pretrain.benchmarks pretrain.step",
    "pretrain.run": "pretrain",
    "pretrain.main": "pretrain.config pretrain.run pretrain.start.local_ranks",
    "pretrain.clearly": "",
    "finetune": "augment pretrain.config pretrain.telemetry pretrain.model pretrain.export pretrain.data "
    "pretrain.prepare pretrain.benchmarks finetune",
    "pretrain.api": "pretrain.config pretrain.telemetry pretrain.data pretrain.export pretrain.start.encoder "
    "finetune.encoders",
    # starts runs and evaluations, and imports neither; it reads the answers that evaluations keep
    "pretrain.commands.sweep": "pretrain.config pretrain.telemetry pretrain.benchmarks pretrain.watch "
    "finetune.answers",
    "pretrain.commands": "augment pretrain finetune",
}
EVERYONE_MAY_IMPORT = {
    "augment": ("augment.core",),
    "pretrain": ("augment.core", "pretrain.common"),
    "finetune": ("augment.core", "pretrain.common"),
}


@cache
def modules() -> dict[str, Path]:
    """Return every module of the product by its dotted name."""
    found = {}
    for package in EVERYONE_MAY_IMPORT:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules of the product that each of them imports."""
    found: dict[str, set[str]] = {}
    for name, path in modules().items():
        wanted: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                wanted.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                members = {f"{node.module}.{alias.name}" for alias in node.names}
                wanted |= members
                # `from folder import module` reaches the module, not what the folder's __init__ imports.
                if not members <= modules().keys():
                    wanted.add(node.module or "")
        found[name] = (wanted & modules().keys()) - {name}
    return found


def lies_in(name: str, folder: str) -> bool:
    """Return whether a module is a folder, or lies below it."""
    return name == folder or name.startswith(folder + ".")


def row_of(name: str) -> str | None:
    """Return the row of the table for a module; None for what only holds a package together."""
    return next((row for row in MAY_IMPORT if lies_in(name, row)), None)


def package_of(name: str) -> int:
    """Return the place of a module's package in `PACKAGES`."""
    return next(
        place
        for place, package in reversed([*enumerate(PACKAGES)])
        if any(lies_in(name, folder) for folder in package)
    )


def test_a_package_imports_nothing_of_what_stands_above_it():
    assert not [
        f"{name} imports {other}"
        for name, wanted in imports().items()
        for other in sorted(wanted)
        if package_of(other) > package_of(name)
    ]


@pytest.mark.full
def test_a_folder_imports_only_what_it_may():
    broken = []
    for name, wanted in imports().items():
        row = row_of(name)
        if row is None:
            assert not wanted, f"{name}: a package's own __init__ imports nothing"
            continue
        allowed = (row, *MAY_IMPORT[row].split(), *EVERYONE_MAY_IMPORT[name.split(".")[0]])
        broken += [
            f"{name} imports {other}"
            for other in sorted(wanted)
            if row_of(other) and not any(lies_in(other, folder) for folder in allowed)
        ]
    assert not broken


def room_of(name: str) -> str:
    """Return the room of a module."""
    package, *inner = name.split(".")
    return f"pretrain.{inner[0]}" if package == "pretrain" and inner else package


def test_rooms_and_arrows_are_few():
    pairs = {(room_of(name), room_of(other)) for name, wanted in imports().items() for other in wanted}
    arrows = {(room, other) for room, other in pairs if room != other}
    rooms = {room for arrow in arrows for room in arrow}
    assert len(rooms) <= MOST_ROOMS and len(arrows) <= MOST_ARROWS, (
        f"{len(rooms)} rooms, {len(arrows)} arrows"
    )


def test_no_module_imports_itself_through_others():
    assert not circles(imports())


def closed(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return for each node all that it reaches (Warshall's transitive closure)."""
    reached = {node: set(others) for node, others in graph.items()}
    for middle in graph:
        for others in reached.values():
            if middle in others:
                others |= reached[middle]
    return reached


def circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """Return the groups of nodes that reach each other."""
    reached = closed(graph)
    return list({frozenset(n for n in reached[node] if node in reached[n]) for node in graph} - {frozenset()})


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert circles(graph) == [frozenset("abc")]


PICTURE_BOXES = {
    "augment.sda": "rules",
    "finetune": "evaluations",
    "finetune.answers": "encoders",
    "finetune.encoders": "encoders",
    "finetune.flags": "encoders",
    "finetune.tuning": "encoders",
    "pretrain.clearly": "commands",
    "pretrain.run": "main",
}
"""The boxes in docs/architecture.md that are not named after the folder or module."""


def box_of(name: str) -> str:
    """Return the box of a module in the picture of docs/architecture.md."""
    parts = name.split(".")
    return PICTURE_BOXES.get(".".join(parts[:2])) or PICTURE_BOXES.get(parts[0]) or parts[1]


def test_the_picture_has_an_arrow_for_every_import():
    text = (ROOT / "docs/architecture.md").read_text("utf-8").split("```")[1]
    reached: dict[str, set[str]] = {}
    for line in re.sub(r'\[".*?"\]', "", text).splitlines():
        groups = [re.findall(r"\w+", group) for group in line.split("-->")]
        for sources, targets in itertools.pairwise(groups):
            for source in sources:
                reached.setdefault(source, set()).update(targets)
    assert not circles(reached | {box: set() for box in set().union(*reached.values()) - reached.keys()})
    below = closed(reached)
    missing = set()
    for name, wanted in imports().items():
        if row_of(name) is None:
            continue
        for other in wanted:
            source, target = box_of(name), box_of(other)
            if source != target and target not in below.get(source, ()):
                missing.add((source, target))
    assert not missing


@pytest.mark.parametrize("package", EVERYONE_MAY_IMPORT)
def test_folders_are_small_and_give_no_prefix(package):
    for folder in [ROOT / package, *(path for path in (ROOT / package).rglob("*") if path.is_dir())]:
        names = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
        assert len(names) <= MOST_MODULES, f"{folder} holds {len(names)} modules"
        assert not [name for name in names if name.startswith(folder.name)], folder


def test_no_two_test_files_have_one_name():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(set(names)) == len(names), "pytest would import only the first"
