"""What `clearly eval` can run: units, each a command of this project with its tasks, and suites of them.

A unit is what is chosen by a budget, done by one process, and kept when it is done. Its cost is known from
the published files: characters that go through the encoder, and seconds of everything else (classifiers,
k-means), measured in one thread for vectors 256 wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from finetune import mteb_english, nanobeir
from finetune.clustering import SIX
from finetune.data.catalogue import CATALOGUE
from finetune.files import known_name, locate
from finetune.hub import reach_hub
from finetune.intents.__main__ import SHOTS
from finetune.intents.sets import FOUR
from finetune.senteval import tasks as senteval
from finetune.sts.tasks import SEVEN_TASKS, StsFiles
from finetune.tuning.tasks import TABLE_1
from pretrain.common.errors import UserError

FINE_TUNED = ("glue", "anli")
"""Evaluations that train the weights: they take no pooling, and encoders alone."""
_TRAINING = 3.5
"""What a training step costs beside a pass without gradients."""
_GLUE_CHARACTERS = {  # million a pass over the training set
    "MNLI": 68.0,
    "QNLI": 25.5,
    "QQP": 43.5,
    "RTE": 0.8,
    "SST-2": 3.7,
    "MRPC": 0.9,
    "CoLA": 0.35,
    "STS-B": 0.75,
}
_GLUE_PASSES = 10 * 5  # epochs, seeds
_ANLI_CHARACTERS = 560.0  # million an epoch, of all its training sets


@dataclass(frozen=True)
class Unit:
    """A command with its tasks."""

    evaluation: str
    """`python -m finetune.EVALUATION`, whose figures are in EVALUATION-POOLING.json."""
    tasks: tuple[str, ...]
    characters: float
    """Million characters that go through the encoder; a training step counts as _TRAINING passes. 0: as many
    as the files have bytes."""
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
    def words(self) -> list[str]:
        """The words of its command behind the model."""
        tasks = [] if self.evaluation == "anli" else ["--tasks", ",".join(self.tasks)]
        return [*tasks, *self.flags]

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
        if self.evaluation == "senteval":
            return [
                locate(root, f"SentEval/{file}") for task in self.tasks for file in senteval.TASKS[task].files
            ]
        group = {"glue": "GLUE", "anli": "ANLI"}.get(self.evaluation, self.evaluation)
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


def _transfer() -> Iterator[Unit]:
    costs = {  # million characters, seconds
        "TREC": (0.29, 6),
        "MRPC": (1.30, 5),
        "CR": (0.36, 20),
        "MPQA": (0.18, 55),
        "MR": (1.22, 90),
        "SUBJ": (1.29, 70),
        "SST2": (3.81, 20),
    }
    for task, cost in costs.items():
        yield Unit("senteval", (task,), *cost)


def _clustering() -> Iterator[Unit]:
    costs = {
        "agnews": (1.31, 15),
        "searchsnippets": (1.75, 30),
        "stackoverflow": (1.03, 120),
        "biomedical": (1.80, 150),
        "tweet": (0.14, 60),
        "googlenews_TS": (2.21, 400),
    }
    for task in SIX:
        yield Unit("clustering", (task,), *costs[task])


def _intents() -> Iterator[Unit]:
    costs = {"SNIPS": (0.10, 5), "BANKING77": (0.70, 15), "CLINC150": (0.89, 30), "HWU64": (0.37, 15)}
    for task in FOUR:
        yield Unit("intents", (task,), *costs[task])


def _nanobeir() -> Iterator[Unit]:
    for task in nanobeir.THIRTEEN:
        yield Unit("nanobeir", (task,), 0, 1)


def _glue() -> Iterator[Unit]:
    for task in sorted(TABLE_1, key=_GLUE_CHARACTERS.__getitem__):
        yield Unit("glue", (task,), _GLUE_CHARACTERS[task] * _GLUE_PASSES * _TRAINING)


STS = Unit("sts", SEVEN_TASKS, 1.51, 4, "STS12-16, STS-B, SICK-R")
SUITES: dict[str, tuple[Unit, ...]] = {
    "quick": (
        Unit("sts", ("STS-B-dev", "SICK-R-dev", "STS-B", "SICK-R"), 0.62, 2, "STS-B, SICK-R"),
        Unit("senteval", ("TREC",), 0.29, 6),
        Unit("intents", ("SNIPS",), 0.10, 5),
    ),
    "sts": (STS,),
    "senteval": (STS, *_transfer()),
    "clustering": tuple(_clustering()),
    "intents": tuple(_intents()),
    "nanobeir": tuple(_nanobeir()),
    "glue": tuple(_glue()),
    "anli": (Unit("anli", ("R1", "R2", "R3"), 2 * _TRAINING * _ANLI_CHARACTERS),),
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


def _mteb() -> list[Unit]:
    """Return the tasks of MTEB(eng, v2), those with the fewest texts first."""
    units = [
        Unit("mteb_english", (task.metadata.name,), mteb_english.characters(task) or 1.0, 5)
        for task in mteb_english.choose(())
    ]
    return sorted(units, key=lambda unit: unit.characters)


def lacking(unit: Unit, root: Path) -> str:
    """Return why a unit cannot be done with the data that is there; "" if it can."""
    if not unit.reads_folder:
        return _hub_fault()
    absent = [path for path in unit.files(root) if not path.is_file()]
    return f"{absent[0]} is not there" if absent else ""


@cache
def _hub_fault() -> str:
    try:
        reach_hub("MTEB's data", "leave mteb-eng out")
    except UserError as error:
        return str(error)
    return ""


def none_left(units: tuple[Unit, ...], reasons: dict[str, str]) -> UserError:
    """Return the error of a suite of which nothing can be done."""
    more = "; `python -m finetune.data check DIR` says what is missing and where to get it"
    first = reasons[units[0].name]
    return UserError(f"nothing of this suite can be done: {first}{more if units[0].reads_folder else ''}")
