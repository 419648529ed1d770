"""What `clearly eval` can run: units, each a command of this project with its tasks, and suites of them.

A unit is done by one process, and kept when it is done. The units of a suite are in the order in which a
budget takes them, the short ones first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from augment.core.pretrained import hub_fault
from finetune import anli, clustering, cola_probe, mteb_english, nanobeir, nli_distance, zh_sts
from finetune.encoders.source import ModelSource, kind_of, names_function
from finetune.intents import sets as intents
from finetune.senteval import tasks as senteval
from finetune.tuning import tasks as glue
from pretrain.benchmarks import sts_tasks as sts
from pretrain.benchmarks.files import known_name

FINE_TUNED = ("glue", "anli")
"""Evaluations that train the weights: they take no pooling, and encoders alone."""
_FLAGS = {"anli": "", "cola_probe": "", "geometry": "--measure"}
"""The flag that takes a unit's tasks, where it is not --tasks; "": the command does all of them."""
_GEOMETRY = {  # measure: its figures, of which another text or augmentation has others
    "sts": ("alignment", "uniformity", "isotropy"),
    "neighbourhood": ("neighbourhood/stackoverflow",),
    "nli": ("nli",),
    "isomorphism": ("isomorphism/NLI A-E", "isomorphism/NLI A-C", "isomorphism/NLI E-C"),
    "augmentation": ("augmentation/reorder", "projection"),
}
NOT_THERE = " is not there"
_hub_fault = cache(hub_fault)


def _geometry_files(measure: str, root: Path) -> list[Path]:
    """Return the files that a measure of geometry reads; of isomorphism ANLI's only where they are there."""
    if measure == "neighbourhood":
        return clustering.files("stackoverflow", root)
    if measure in ("sts", "augmentation"):
        return [file for task in ("STS-B", "STS-B-dev") for file in sts.files(task, root)]
    anli_files = nli_distance.files("ANLI", root) if measure == "isomorphism" else []
    return [*nli_distance.files("triplets", root), *filter(Path.is_file, anli_files)]


_FILES: dict[str, Callable[[str, Path], Sequence[Path]]] = {
    "sts": sts.files,
    "senteval": senteval.files,
    "clustering": clustering.files,
    "intents": intents.files,
    "nanobeir": nanobeir.files,
    "cola_probe": cola_probe.files,
    "nli_distance": nli_distance.files,
    "zh_sts": zh_sts.files,
    "geometry": _geometry_files,
    "glue": glue.files,
    "anli": anli.files,
}
"""Evaluation -> (task, folder of evaluation data) -> files that it reads, which may be absent."""


@dataclass(frozen=True)
class Unit:
    """A command with its tasks."""

    evaluation: str
    """`python -m finetune.EVALUATION`, whose figures are in EVALUATION-POOLING.json."""
    tasks: tuple[str, ...]
    label: str = ""
    """What progress calls it, where that is not its tasks."""

    @property
    def name(self) -> str:
        return f"{self.evaluation} {self.label or ','.join(self.tasks)}"

    @property
    def reads_folder(self) -> bool:
        """Whether its data lie in the folder of evaluation data; MTEB's come from the hub."""
        return self.evaluation in _FILES

    @property
    def takes_precision(self) -> bool:
        """Whether its command has a --precision of vectors; others compute them in float32."""
        return self.evaluation not in (*FINE_TUNED, "geometry")

    @property
    def words(self) -> list[str]:
        """The words of its command behind the model."""
        flag = _FLAGS.get(self.evaluation, "--tasks")
        return [flag, ",".join(self.tasks)] if flag else []

    @property
    def expected(self) -> list[str]:
        """The names of its figures in the file of results."""
        if self.evaluation == "intents":
            return [f"{task}-{shots}" for task in self.tasks for shots in intents.SHOTS]
        if self.evaluation == "geometry":
            return [figure for measure in self.tasks for figure in _GEOMETRY[measure]]
        return list(self.tasks)

    def files(self, root: Path) -> list[Path]:
        """Return the files that it reads, which may be absent; none of data that come from the hub."""
        if not self.reads_folder:
            return []
        return [file for task in self.tasks for file in _FILES[self.evaluation](task, root)]

    def lacking(self, root: Path) -> str:
        """Return why it cannot be done with the data that is there; "" if it can."""
        if not self.reads_folder:
            fault = _hub_fault()
            return f"MTEB's data cannot be loaded: {fault}" if fault else ""
        if self.evaluation == "nanobeir":
            folder = root / nanobeir.FOLDER / self.tasks[0]
            if folder.is_dir() and (fault := nanobeir.lacking(folder)):
                return fault
        absent = [path for path in self.files(root) if not path.is_file()]
        return f"{absent[0]}{NOT_THERE}" if absent else ""


def _units(evaluation: str, tasks: Sequence[str]) -> tuple[Unit, ...]:
    return tuple(Unit(evaluation, (task,)) for task in tasks)


STS = Unit("sts", sts.SEVEN_TASKS, "STS12-16, STS-B, SICK-R")
SUITES: dict[str, tuple[Unit, ...]] = {
    "quick": (
        Unit("sts", ("STS-B-dev", "SICK-R-dev", "STS-B", "SICK-R"), "STS-B, SICK-R"),
        Unit("senteval", ("TREC",)),
        Unit("intents", ("SNIPS",)),
    ),
    "sts": (STS,),
    "senteval": (STS, *_units("senteval", ("TREC", "MRPC", "CR", "MPQA", "MR", "SUBJ", "SST2"))),
    "clustering": _units("clustering", clustering.SIX),
    "intents": _units("intents", intents.FOUR),
    "nanobeir": _units("nanobeir", nanobeir.THIRTEEN),
    "cola_probe": _units("cola_probe", ("CoLA",)),
    "nli_distance": _units("nli_distance", ("SNLI", "MNLI", "ANLI", "triplets")),
    "zh_sts": (Unit("zh_sts", tuple(zh_sts.TASKS)),),
    "geometry": _units("geometry", tuple(_GEOMETRY)),
    "glue": _units("glue", ("CoLA", "STS-B", "RTE", "MRPC", "SST-2", "QNLI", "QQP", "MNLI")),
    "anli": (Unit("anli", anli.ROUNDS),),
}
MTEB = "mteb-eng"
"""A suite, too; its units are the library's tasks."""
SUITES["all"] = tuple(
    dict.fromkeys(unit for name in SUITES if name not in ("quick", "zh_sts") for unit in SUITES[name])
)
"""English: figures of Chinese say nothing of a model whose tokenizer does not know it."""


def suite_named(name: str) -> tuple[Unit, ...]:
    """Return the units of a suite; `all` has MTEB's where its library is installed.

    Raises:
        UserError: no such suite (the message names the nearest), or no library.
    """
    suite = known_name(name, (*SUITES, MTEB), "suite")
    units = SUITES.get(suite, ())
    if suite != MTEB and not (suite == "all" and find_spec("mteb")):
        return units
    shortest_first = sorted(mteb_english.choose(()), key=mteb_english.characters)
    return (*units, *_units("mteb_english", [task.metadata.name for task in shortest_first]))


def with_own_sets(units: Sequence[Unit], root: Path) -> tuple[Unit, ...]:
    """Return units and, behind those of NanoBEIR's thirteen, one for each other set beside these."""
    ends = [number for number, unit in enumerate(units, 1) if unit.evaluation == "nanobeir"]
    if not ends or not (root / nanobeir.FOLDER).is_dir():
        return tuple(units)
    own = _units("nanobeir", [name for name in nanobeir.available(root) if name not in nanobeir.THIRTEEN])
    return (*units[: ends[-1]], *own, *units[ends[-1] :])


def with_tasks(units: Sequence[Unit], tasks: Sequence[str], suite: str) -> tuple[Unit, ...]:
    """Return units of these tasks alone, in their order; all, where no task is named.

    A command that takes no tasks does all of its own.

    Raises:
        UserError: the suite has no such task (the message names the nearest).
    """
    if not tasks:
        return tuple(units)
    there = [task for unit in units for task in unit.tasks]
    named = {known_name(name, there, f"task of --suite {suite}") for name in tasks}
    chosen = []
    for unit in units:
        kept = tuple(task for task in unit.tasks if task in named)
        whole = kept == unit.tasks or not unit.words
        if kept:
            chosen.append(unit if whole else replace(unit, tasks=kept, label=""))
    return tuple(chosen)


def reasons_to_skip(units: Sequence[Unit], root: Path, source: ModelSource) -> dict[Unit, str]:
    """Return those of the units that cannot be done, with the reason: no data, or no such model."""
    is_encoder = not names_function(source.location) and kind_of(source.location) != "sentence-transformers"
    trains = "it trains the weights, and takes a run, an export or a Hugging Face folder"
    reasons = {
        unit: unit.lacking(root) or ("" if is_encoder or unit.evaluation not in FINE_TUNED else trains)
        for unit in units
    }
    return {unit: reason for unit, reason in reasons.items() if reason}


def skipped_lines(reasons: dict[Unit, str]) -> list[str]:
    """Return a line for each evaluation with units that are left out, with the first one's reason.

    Units whose data are not there at all have a line apart from others.
    """
    groups: dict[tuple[str, bool], list[Unit]] = {}
    for unit, reason in reasons.items():
        groups.setdefault((unit.evaluation, reason.endswith(NOT_THERE)), []).append(unit)
    lines = []
    for first, *others in groups.values():
        more = f" and {len(others)} more" if others else ""
        lines.append(f"left out: {first.name}{more}: {reasons[first]}")
    return lines
