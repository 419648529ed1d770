"""Read run folders and results folders, and group them into systems that differ only in seed."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.results import Evaluation, folder_name, read
from pretrain.common.errors import UserError
from pretrain.common.run_folder import read_json_file
from pretrain.config.validation import leaves, read_yaml
from pretrain.telemetry.metrics_file import read_metrics

SEEDLESS = frozenset({"name", "folder", "train.seed"})
"""Keys of a recipe in which runs of one system may differ."""


@dataclass
class Subject:
    """One run or model. config: the recipe, flat; evaluations by (evaluation, pooling)."""

    path: Path
    name: str
    run: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluations: dict[tuple[str, str], Evaluation] = field(default_factory=dict)

    @property
    def seed(self) -> Any:
        return self.config.get("train.seed")


@dataclass
class System:
    """Subjects that differ only in seed, under one label."""

    label: str
    members: list[Subject]

    @property
    def seeds(self) -> list[Any]:
        return [member.seed for member in self.members]


def collect(sources: Sequence[str]) -> list[Subject]:
    """Return the subjects of runs, models, results, or folders that hold several, each once, in order."""
    found: dict[Path, Subject] = {}
    for source in sources:
        subjects = list(_open(source))
        if not subjects:
            what = "no run (config.yaml) and no results (JSON of an evaluation) there"
            raise UserError(f"{source}: {what}; clearly eval makes some")
        for subject in subjects:
            found.setdefault(subject.path.resolve(), subject)
    return list(found.values())


def _open(source: str) -> Iterable[Subject]:
    folder, named = Path(source), Path("results") / folder_name(source)
    parent = folder.resolve().parent
    if (folder / "config.json").is_file() and (parent / "config.yaml").is_file():
        folder = parent
    if (found := _subject(folder)) is not None:
        return [found]
    if named.is_dir():  # of a model's name, or of its folder that is no run
        return [_results_folder(named, source)]
    if not folder.is_dir():
        raise UserError(
            f"{source}: there is no such folder, and no results in {named}; clearly eval makes some"
        )
    children = (_subject(child) for child in sorted(folder.iterdir()) if child.is_dir())
    return [subject for subject in children if subject is not None]


def _subject(folder: Path) -> Subject | None:
    """Return the run or the results that a folder holds; None: neither."""
    if (folder / "config.yaml").is_file():
        recipe, metrics = leaves(read_yaml(folder / "config.yaml")), read_metrics(folder / "metrics.jsonl")
        subject = Subject(folder, folder.resolve().name, True, dict(recipe), list(metrics))
        _add_results(subject, folder / "report")
        return subject
    if any(_is_result(path) for path in sorted(folder.glob("*.json"))):
        return _results_folder(folder, folder.name)
    return None


def _results_folder(folder: Path, name: str) -> Subject:
    subject = Subject(folder, name)
    _add_results(subject, folder)
    if not subject.evaluations:
        raise UserError(f"{name}: there are no results in {folder} yet; clearly eval {name} makes some")
    first = next(iter(subject.evaluations.values()))
    subject.name = first.model.rstrip("/").rsplit("/", 1)[-1] if "/" in first.model else first.model
    return subject


def _add_results(subject: Subject, folder: Path) -> None:
    for path in sorted(folder.glob("*.json")):
        if _is_result(path):
            evaluation = read(path)
            key = evaluation.evaluation, evaluation.pooling
            # of another protocol: only its tasks that no other file has would be lost
            if key in subject.evaluations:
                evaluation.tasks = {**subject.evaluations[key].tasks, **evaluation.tasks}
            subject.evaluations[key] = evaluation


def _is_result(path: Path) -> bool:
    content = read_json_file(path, "remove it, or make it again")
    return isinstance(content, dict) and {"evaluation", "tasks"} <= set(content)


def group(subjects: Sequence[Subject]) -> list[System]:
    """Group runs whose recipes differ only in name, folder and seed, and whose seeds all differ."""
    systems: list[list[Subject]] = []
    keys: dict[str, list[Subject]] = {}
    for subject in subjects:
        key = json.dumps(
            {k: v for k, v in subject.config.items() if k not in SEEDLESS}, sort_keys=True, default=str
        )
        peers = keys.get(key) if subject.run else None
        if peers is not None and subject.seed not in [peer.seed for peer in peers]:
            peers.append(subject)
        else:
            keys[key] = [subject]
            systems.append(keys[key])
    return [System(label, members) for label, members in zip(_labels(systems), systems, strict=True)]


def _labels(systems: Sequence[Sequence[Subject]]) -> list[str]:
    """Return the runs' folder names without the seed, with the folder before if two systems share one."""
    names = []
    for members in systems:
        name = members[0].name
        if len(members) > 1:
            name = re.sub(r"[-_. ]*seed[-_=]?\d+$", "", name) or name
        names.append(name)
    places = [members[0].path.resolve() for members in systems]
    names = [
        f"{place.parent.name}/{place.name}" if names.count(name) > 1 else name
        for name, place in zip(names, places)
    ]
    return [
        f"{name} ({names[: n + 1].count(name)})" if names.count(name) > 1 else name
        for n, name in enumerate(names)
    ]


def differences(systems: Sequence[System]) -> dict[str, list[Any]]:
    """Return recipe key -> its value in every system that is a run, None for none, if values differ."""
    recipes = [system.members[0].config for system in systems if system.members[0].run]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe if key not in SEEDLESS)
    table = {key: [recipe.get(key) for recipe in recipes] for key in keys}
    return {key: values for key, values in table.items() if any(value != values[0] for value in values)}
