"""What `clearly eval` can run: units, each a command of this project with its tasks, and suites of them.

A unit is what is chosen by a budget, done by one process, and kept when it is done. Its cost is known from
the published files: characters that go through the encoder, and seconds of everything else (classifiers,
k-means), measured in one thread for vectors 256 wide. The cost of training is measured
(`training_costs`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from finetune import cola_probe, mteb_english, nanobeir, nli_distance, zh_sts
from finetune.data.catalogue import CATALOGUE
from finetune.files import known_name, locate
from finetune.intents.__main__ import SHOTS
from finetune.sts.tasks import SEVEN_TASKS, StsFiles

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
_COSTS: dict[str, dict[str, tuple[float, float]]] = {
    "senteval": {
        "TREC": (0.29, 6),
        "MRPC": (1.30, 5),
        "CR": (0.36, 20),
        "MPQA": (0.18, 55),
        "MR": (1.22, 90),
        "SUBJ": (1.29, 70),
        "SST2": (3.81, 20),
    },
    "clustering": {
        "agnews": (1.31, 15),
        "searchsnippets": (1.75, 30),
        "stackoverflow": (1.03, 120),
        "biomedical": (1.80, 150),
        "tweet": (0.14, 60),
        "googlenews_TS": (2.21, 400),
    },
    "intents": {"SNIPS": (0.10, 5), "BANKING77": (0.70, 15), "CLINC150": (0.89, 30), "HWU64": (0.37, 15)},
    "nanobeir": dict.fromkeys(nanobeir.THIRTEEN, (0, 1)),
    "nli_distance": {"SNLI": (0.59, 1), "MNLI": (0.86, 1), "ANLI": (1.0, 1), "triplets": (0, 1)},
    "geometry": {
        "sts": (0.33, 4),
        "neighbourhood": (1.03, 12),
        "nli": (3.0, 4),
        "isomorphism": (0.35, 4),
        "augmentation": (2.0, 25),
    },
    "glue": dict.fromkeys(("CoLA", "STS-B", "RTE", "MRPC", "SST-2", "QNLI", "QQP", "MNLI"), (0, 0)),
}
"""Evaluation -> task -> (`Unit.characters`, `Unit.seconds`), in the order in which a budget takes them."""


@dataclass(frozen=True)
class Unit:
    """A command with its tasks."""

    evaluation: str
    """`python -m finetune.EVALUATION`, whose figures are in EVALUATION-POOLING.json."""
    tasks: tuple[str, ...]
    characters: float
    """Million characters that go through the encoder; 0: as many as the files have bytes. Not of those that
    train the weights, whose cost `training_costs` measures."""
    seconds: float = 0.0
    """Of everything but encoding, in one thread, vectors 256 wide."""
    label: str = ""
    """What progress calls it, where that is not its tasks."""
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.evaluation} {self.label or ','.join(self.tasks)}"

    @property
    def reads_folder(self) -> bool:
        """Whether its data lie in the folder of evaluation data; MTEB's come from the hub."""
        return self.evaluation != "mteb_english"

    @property
    def takes_precision(self) -> bool:
        """Whether its command has a --precision of vectors; others compute them in float32."""
        return self.evaluation not in (*FINE_TUNED, "geometry")

    @property
    def words(self) -> list[str]:
        """The words of its command behind the model."""
        flag = _FLAGS.get(self.evaluation, "--tasks")
        return [*([flag, ",".join(self.tasks)] if flag else []), *self.flags]

    def million_characters(self, root: Path) -> float:
        """Return `characters`, or what stands in for them."""
        if self.characters:
            return self.characters
        return sum(path.stat().st_size for path in self.files(root) if path.is_file()) / 1e6

    @property
    def expected(self) -> list[str]:
        """The names of its figures in the file of results."""
        if self.evaluation == "intents":
            return [f"{task}-{shots}" for task in self.tasks for shots in SHOTS]
        if self.evaluation == "geometry":
            return [figure for measure in self.tasks for figure in _GEOMETRY[measure]]
        return list(self.tasks)

    def files(self, root: Path) -> list[Path]:
        """Return the files that it reads, which may be absent; none of data that come from the hub."""
        if not self.reads_folder:
            return []
        if self.evaluation == "sts":
            return [file for task in self.tasks for file in StsFiles(root).files(task)]
        if self.evaluation == "nanobeir":
            folders = [root / nanobeir.FOLDER / task for task in self.tasks]
            return [
                file
                for folder in folders
                for part in nanobeir.PARTS
                for file in nanobeir.files(folder, part) or [folder / part]
            ]
        if self.evaluation == "cola_probe":
            return [locate(root, f"GLUE/CoLA/{part}.tsv") for part in cola_probe.SIZES]
        if self.evaluation == "nli_distance":
            return [file for task in self.tasks for file in nli_distance.files(task, root)]
        if self.evaluation == "zh_sts":
            return [root / "zh" / "STS-B" / zh_sts.TASKS[task][0] for task in self.tasks]
        if self.evaluation == "geometry":
            return [file for measure in self.tasks for file in _files_of_measure(measure, root)]
        group = {"glue": "GLUE", "anli": "ANLI", "senteval": "SentEval"}.get(self.evaluation, self.evaluation)
        wanted = {f"{group}/{task}" for task in self.tasks}
        found = [
            (split, locate(root, file))
            for one in CATALOGUE
            if one.name in wanted
            for split, part in one.parts.items()
            for file in part.files
        ]
        if group == "ANLI":  # trained on what there is of several sets
            return [path for split, path in found if split != "train"]
        if group == "GLUE":  # MNLI does with one of its two dev sets
            dev = [path for split, path in found if split.startswith("dev")]
            there = [path for path in dev if path.is_file()] or dev[:1]
            return [path for split, path in found if split == "train"] + there
        return [path for _, path in found]


def _files_of_measure(measure: str, root: Path) -> list[Path]:
    """Return the files that a measure of geometry reads; of isomorphism ANLI's only where they are there."""
    if measure == "neighbourhood":
        return [root / "clustering" / "stackoverflow.csv"]
    if measure in ("sts", "augmentation"):
        return [file for task in ("STS-B", "STS-B-dev") for file in StsFiles(root).files(task)]
    anli = nli_distance.files("ANLI", root) if measure == "isomorphism" else []
    return [*nli_distance.files("triplets", root), *(path for path in anli if path.is_file())]


def _units(evaluation: str) -> tuple[Unit, ...]:
    """Return a unit for each task of an evaluation, with its cost."""
    return tuple(Unit(evaluation, (task,), *cost) for task, cost in _COSTS[evaluation].items())


STS = Unit("sts", SEVEN_TASKS, 1.51, 4, "STS12-16, STS-B, SICK-R")
SUITES: dict[str, tuple[Unit, ...]] = {
    "quick": (
        Unit("sts", ("STS-B-dev", "SICK-R-dev", "STS-B", "SICK-R"), 0.62, 2, "STS-B, SICK-R"),
        Unit("senteval", ("TREC",), 0.29, 6),
        Unit("intents", ("SNIPS",), 0.10, 5),
    ),
    "sts": (STS,),
    "senteval": (STS, *_units("senteval")),
    "clustering": _units("clustering"),
    "intents": _units("intents"),
    "nanobeir": _units("nanobeir"),
    "cola_probe": (Unit("cola_probe", ("CoLA",), 0.39, 5),),
    "nli_distance": _units("nli_distance"),
    "zh_sts": (Unit("zh_sts", tuple(zh_sts.TASKS), 0.5, 1),),  # a Chinese character is a token or more
    "geometry": _units("geometry"),
    "glue": _units("glue"),
    "anli": (Unit("anli", ("R1", "R2", "R3"), 0),),
}
"""Name -> units, those first that a budget takes first."""
MTEB = "mteb-eng"
"""A suite, too; its units are the library's tasks."""
SUITES["all"] = tuple(dict.fromkeys(unit for name in SUITES if name != "quick" for unit in SUITES[name]))


def suite_named(name: str) -> tuple[Unit, ...]:
    """Return the units of a suite; `all` has MTEB's where its library is installed.

    Raises:
        UserError: no such suite (the message names the nearest), or no library.
    """
    known = known_name(name, (*SUITES, MTEB), "suite")
    units = SUITES.get(known, ())
    wanted = known == MTEB or (known == "all" and find_spec("mteb") is not None)
    return (*units, *_mteb()) if wanted else units


def with_own_sets(units: Sequence[Unit], root: Path) -> tuple[Unit, ...]:
    """Return units and, behind those of NanoBEIR's thirteen, one for each other set beside these."""
    ends = [number for number, unit in enumerate(units, 1) if unit.evaluation == "nanobeir"]
    if not ends or not (root / nanobeir.FOLDER).is_dir():
        return tuple(units)
    own = [name for name in nanobeir.available(root) if name not in nanobeir.THIRTEEN]
    added = [Unit("nanobeir", (name,), 0, 1) for name in own]
    return (*units[: ends[-1]], *added, *units[ends[-1] :])


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
    return tuple(_only(unit, named) for unit in units if named & set(unit.tasks))


def _only(unit: Unit, named: set[str]) -> Unit:
    """Return the unit with those of its tasks that are named."""
    tasks = tuple(task for task in unit.tasks if task in named)
    if tasks == unit.tasks or not _FLAGS.get(unit.evaluation, "--tasks"):
        return unit
    share = len(tasks) / len(unit.tasks)
    return replace(
        unit, tasks=tasks, label="", characters=unit.characters * share, seconds=unit.seconds * share
    )


def _mteb() -> list[Unit]:
    """Return the tasks of MTEB(eng, v2), those with the fewest texts first."""
    units = [
        Unit("mteb_english", (task.metadata.name,), mteb_english.characters(task) or 1.0, 5)
        for task in mteb_english.choose(())
    ]
    return sorted(units, key=lambda unit: unit.characters)
