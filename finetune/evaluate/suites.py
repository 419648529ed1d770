"""What `clearly eval` can run: units, each a command of this project with its tasks, and suites of them.

A unit is done by one process, and kept when it is done: OUT/eval.json says so, and is checked against the
files of figures. The units of a suite are in the order in which a budget takes them, the short ones first.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from augment.core.pretrained import hub_fault
from finetune import anli, clustering, mteb_english, nanobeir, nli_distance, zh_sts
from finetune.encoders.source import ModelSource
from finetune.intents import sets as intents
from finetune.results import ROUNDED, Evaluation, read_if_there
from finetune.senteval import tasks as senteval
from finetune.tuning import tasks as glue
from finetune.tuning.labelled import require_encoder
from pretrain.benchmarks import sts_tasks as sts
from pretrain.benchmarks.files import DATA_SETS, known_name
from pretrain.benchmarks.own_sets import read_own_set
from pretrain.common.errors import UserError
from pretrain.common.files import replace_durably, to_json
from pretrain.common.folder_lock import folder_lock
from pretrain.common.typed_values import named_places
from pretrain.prepare.sources.planning import files_at

_GEOMETRY = {  # measure: its figures, of which another text or augmentation has others
    "sts": ("alignment", "uniformity", "isotropy"),
    "neighbourhood": ("neighbourhood/stackoverflow",),
    "nli": ("nli",),
    "augmentation": ("augmentation/reorder",),
}
NOT_THERE = " is not there"
_hub_fault = cache(hub_fault)


def _geometry_files(measure: str, root: Path) -> list[Path]:
    if measure == "neighbourhood":
        return DATA_SETS["clustering/stackoverflow"].paths(root)
    if measure in ("sts", "augmentation"):
        return [file for task in ("STS-B", "STS-B-dev") for file in sts.files(task, root)]
    return nli_distance.files("triplets", root)


@dataclass(frozen=True)
class EvaluationCommand:
    """What `clearly eval` must know of the command of an evaluation."""

    files: Callable[[str, Path], Sequence[Path]] | None
    """(task, folder of evaluation data) -> files that it reads, which may be absent; None: the hub's."""
    flag: str = "--tasks"
    """The flag that takes its tasks; "": it does all of them."""
    figures: Callable[[str], Sequence[str]] = lambda task: [task]
    """Task -> the names of its figures in the file of results."""
    takes_precision: bool = True
    """Whether it has a --precision of vectors; others compute them in float32."""
    trains: bool = False
    """Whether it trains the weights: it takes no pooling, and encoders alone."""


COMMANDS = {
    "sts": EvaluationCommand(sts.files),
    "senteval": EvaluationCommand(senteval.files),
    "clustering": EvaluationCommand(lambda name, root: DATA_SETS[f"clustering/{name}"].paths(root)),
    "intents": EvaluationCommand(
        lambda name, root: DATA_SETS[f"intents/{name}"].paths(root),
        figures=lambda task: [f"{task}-{shots}" for shots in intents.SHOTS],
    ),
    "nanobeir": EvaluationCommand(nanobeir.files),
    "cola_probe": EvaluationCommand(glue.files, flag=""),
    "nli_distance": EvaluationCommand(nli_distance.files),
    "zh_sts": EvaluationCommand(zh_sts.files),
    "geometry": EvaluationCommand(_geometry_files, "--measure", _GEOMETRY.__getitem__, takes_precision=False),
    "glue": EvaluationCommand(glue.files, takes_precision=False, trains=True),
    "anli": EvaluationCommand(anli.files, flag="", takes_precision=False, trains=True),
    "mteb_english": EvaluationCommand(None),
    "own_sets": EvaluationCommand(
        lambda task, root: files_at(Path(task.partition("=")[2])),
        "--set",
        lambda task: [task.partition("=")[0]],
    ),
}
"""Evaluation -> its command, `clearly EVALUATION`."""


@dataclass(frozen=True)
class EvaluationJob:
    """A command with its tasks."""

    evaluation: str
    """One of COMMANDS, whose figures are in EVALUATION-POOLING.json."""
    tasks: tuple[str, ...]
    label: str = ""
    """What progress calls it, if that is not its tasks."""

    @property
    def name(self) -> str:
        return f"{self.evaluation} {self.label or ','.join(self.tasks)}"

    @property
    def command(self) -> EvaluationCommand:
        return COMMANDS[self.evaluation]

    @property
    def words(self) -> list[str]:
        """The words of its command behind the model."""
        return [self.command.flag, ",".join(self.tasks)] if self.command.flag else []

    @property
    def expected(self) -> list[str]:
        """The names of its figures in the file of results."""
        return [figure for task in self.tasks for figure in self.command.figures(task)]

    def files(self, root: Path) -> list[Path]:
        """Return the files that it reads, which may be absent; none of data that come from the hub."""
        read = self.command.files
        return [] if read is None else [file for task in self.tasks for file in read(task, root)]

    def lacking(self, root: Path) -> str:
        """Return why it cannot be done with the data that is there; "" if it can."""
        if self.command.files is None:
            fault = _hub_fault()
            return f"MTEB's data cannot be loaded: {fault}" if fault else ""
        if self.evaluation == "nanobeir":
            folder = root / nanobeir.FOLDER / self.tasks[0]
            if folder.is_dir() and (fault := nanobeir.lacking(folder)):
                return fault
        absent = [path for path in self.files(root) if not path.is_file()]
        return f"{absent[0]}{NOT_THERE}" if absent else ""


def _units(evaluation: str, tasks: Sequence[str]) -> tuple[EvaluationJob, ...]:
    return tuple(EvaluationJob(evaluation, (task,)) for task in tasks)


STS = EvaluationJob("sts", sts.SEVEN_TASKS, "STS12-16, STS-B, SICK-R")
SUITES: dict[str, tuple[EvaluationJob, ...]] = {
    "quick": (
        EvaluationJob("sts", ("STS-B-dev", "SICK-R-dev", "STS-B", "SICK-R"), "STS-B, SICK-R"),
        EvaluationJob("senteval", ("TREC",)),
        EvaluationJob("intents", ("SNIPS",)),
    ),
    "sts": (STS,),
    "senteval": (STS, *_units("senteval", ("TREC", "MRPC", "CR", "MPQA", "MR", "SUBJ", "SST2"))),
    "clustering": _units("clustering", clustering.SIX),
    "intents": _units("intents", tuple(intents.SETS)),
    "nanobeir": _units("nanobeir", nanobeir.THIRTEEN),
    "cola_probe": _units("cola_probe", ("CoLA",)),
    "nli_distance": _units("nli_distance", ("SNLI", "MNLI", "ANLI", "triplets")),
    "zh_sts": (EvaluationJob("zh_sts", tuple(zh_sts.TASKS)),),
    "geometry": _units("geometry", tuple(_GEOMETRY)),
    "glue": _units("glue", ("CoLA", "STS-B", "RTE", "MRPC", "SST-2", "QNLI", "QQP", "MNLI")),
    "anli": (EvaluationJob("anli", anli.ROUNDS),),
}
MTEB = "mteb-eng"
"""A suite, too; its units are the library's tasks."""
SUITES["all"] = tuple(
    dict.fromkeys(unit for name in SUITES if name not in ("quick", "zh_sts") for unit in SUITES[name])
)
"""English: figures of Chinese say nothing of a model whose tokenizer does not know it."""


def suite_named(name: str, root: Path) -> tuple[EvaluationJob, ...]:
    """Return the units of a suite, behind NanoBEIR's thirteen one for each other set beside these.

    `all` has MTEB's if its library is installed.
    """
    suite = known_name(name, (*SUITES, MTEB), "suite")
    units = list(SUITES.get(suite, ()))
    ends = [number for number, unit in enumerate(units, 1) if unit.evaluation == "nanobeir"]
    if ends and (root / nanobeir.FOLDER).is_dir():
        own = [name for name in nanobeir.available(root) if name not in nanobeir.THIRTEEN]
        units[ends[-1] : ends[-1]] = _units("nanobeir", own)
    if suite == MTEB or (suite == "all" and find_spec("mteb")):
        units += _units("mteb_english", [task.metadata.name for task in mteb_english.choose(())])
    return tuple(units)


def own_units(sets: Sequence[str]) -> tuple[EvaluationJob, ...]:
    """Return a unit for each test set of the user's own, which can be read."""
    found = [(read_own_set(name, place).name, place) for name, place in named_places(sets).items()]
    return tuple(EvaluationJob("own_sets", (f"{name}={place}",), name) for name, place in found)


def with_tasks(units: Sequence[EvaluationJob], tasks: Sequence[str], suite: str) -> tuple[EvaluationJob, ...]:
    """Return units of these tasks alone; all, if none is named, or the command takes none."""
    if not tasks:
        return tuple(units)
    there = [task for unit in units for task in unit.tasks]
    named = {known_name(name, there, f"task of --suite {suite}") for name in tasks}
    kept = {unit: tuple(task for task in unit.tasks if task in named) for unit in units}
    return tuple(
        unit if some == unit.tasks or not unit.words else replace(unit, tasks=some, label="")
        for unit, some in kept.items()
        if some
    )


def reasons_to_skip(
    units: Sequence[EvaluationJob], root: Path, source: ModelSource
) -> dict[EvaluationJob, str]:
    """Return the units that cannot be done, with the reason: no data, or no such model."""
    reasons = {unit: unit.lacking(root) for unit in units}
    if trained := [unit for unit in units if unit.command.trains and not reasons[unit]]:
        try:
            require_encoder(source)
        except UserError as error:
            reasons |= dict.fromkeys(trained, str(error))
    return {unit: reason for unit, reason in reasons.items() if reason}


def skipped_lines(reasons: dict[EvaluationJob, str]) -> list[str]:
    """Return a line for each evaluation with skipped units: those without data, and others."""
    groups: dict[tuple[str, bool], list[EvaluationJob]] = {}
    for unit, reason in reasons.items():
        groups.setdefault((unit.evaluation, reason.endswith(NOT_THERE)), []).append(unit)
    more = {group[0]: f" and {len(group) - 1} more" * (len(group) > 1) for group in groups.values()}
    return [f"left out: {first.name}{others}: {reasons[first]}" for first, others in more.items()]


FILE = "eval.json"


@dataclass
class EvaluationRecord:
    """The units that were done for these weights and settings (pooling, precision) in a folder of results."""

    folder: Path
    identity: str
    settings: Mapping[str, Any]

    @property
    def units(self) -> dict[str, dict[str, Any]]:
        """What is noted of the units that are done; a damaged file has nothing in it."""
        try:
            return dict(json.loads((self.folder / FILE).read_text("utf-8"))["units"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def figures(self, unit: EvaluationJob, root: Path) -> Evaluation | None:
        """Return the figures of a unit; None: it is not done, or was of other weights, settings or data."""
        entry = self.units.get(unit.name)
        if not isinstance(entry, dict) or entry.get("of") != self._of(unit, root):
            return None
        return self.written(unit)

    def written(self, unit: EvaluationJob) -> Evaluation | None:
        """Return the newest figures of a unit that are of these weights; None: there are none."""
        paths = self.folder.glob(f"{unit.evaluation}-*.json")
        for path in sorted(paths, key=lambda path: -path.stat().st_mtime_ns):
            if (evaluation := read_if_there(path)) is None:
                continue
            same = evaluation.evaluation == unit.evaluation and evaluation.source == self.identity
            if not unit.command.trains:
                precision = self._precision(unit)
                rounded = [note for note in evaluation.notes if note.startswith(ROUNDED)]
                same &= rounded == ([] if precision == "fp32" else [ROUNDED + precision])
                same &= evaluation.pooling == self.settings["pooling"]
            if same and set(unit.expected) <= set(evaluation.tasks):
                return evaluation
        return None

    def add(self, unit: EvaluationJob, root: Path, seconds: float, evaluation: Evaluation) -> None:
        """Note that a unit is done, beside what other processes have noted."""
        figures = {
            name: {key: getattr(evaluation.tasks[name], key) for key in ("metric", "value", "std")}
            for name in unit.expected
        }
        entry = {"of": self._of(unit, root), "seconds": round(seconds, 1), "tasks": figures}
        with folder_lock(self.folder, wait=60.0, part=FILE):
            content = {"identity": self.identity, **self.settings, "units": {**self.units, unit.name: entry}}
            replace_durably(self.folder / FILE, to_json(content))

    def _of(self, unit: EvaluationJob, root: Path) -> dict[str, Any]:
        """Return all that a unit's figures depend on, as JSON gives it back."""
        there = ((path, path.stat() if path.is_file() else None) for path in unit.files(root))
        stamps = [[str(path), *((now.st_size, now.st_mtime_ns) if now else ())] for path, now in there]
        own = {} if unit.command.trains else {**self.settings, "precision": self._precision(unit)}
        return {"identity": self.identity, "words": unit.words, "data": stamps, **own}

    def _precision(self, unit: EvaluationJob) -> str:
        return self.settings["precision"] if unit.command.takes_precision else "fp32"
