"""Check and complete the folder of evaluation data: `--eval-data DIR`, or the environment's CLEAR_DATA.

    clearly benchmarks check DIR                               which sets are there
    clearly benchmarks fetch GLUE/RTE DIR [--source FOLDER]    get one from the hub, or a copy of it

docs/evaluation.md says what lies where; `pretrain.benchmarks.files` lists the sets.

Only sets are fetched of which the hub has what the published files hold, or what they were made from: its
STS benchmark (mteb's) is raw text, where SentEval's files are Moses tokens in lower case, and would be
counted as complete and score otherwise. A source is a name on the hub or a folder in the hub's own formats
(parquet, jsonl, csv; with a README.md that names configurations, or files named after their splits). Files
that are there stay unless they are to be replaced; each new one appears whole or not at all.
"""

import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetune.encoders.source import reach_hub
from finetune.flags import EvalData
from finetune.tuning.tasks import NLI, TASKS, ZERO_ONE, GlueTask
from pretrain.benchmarks.files import DATA_SETS, BenchmarkSet, data_root, known_name, locate
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably, require_writable

Row = Mapping[str, Any]
_LABELS = {"label": NLI}


@dataclass(frozen=True)
class File:
    """A file that a split is written into, a line for each row."""

    path: str
    """Below the data folder."""
    line: Callable[[int, Row], str]
    """Of a row, and its number."""
    header: str = ""


@dataclass(frozen=True)
class HubSet:
    """Where the hub has a set and how each of its splits is written."""

    source: str
    splits: Mapping[str, File]
    """Split on the hub -> its file."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label columns and the words for 0, 1, ...; a column that carries its own words keeps them."""
    configuration: str | None = None
    data_files: str | None = None


def fetch_set(name: str, root: Path, source: str = "", replace: bool = False) -> list[str]:
    """Write what the data folder lacks of a set of HUB, from `source` or its own; return a line a file."""
    if name not in HUB:
        raise UserError(f"{name} is not on the hub in a form that can be written; there are {', '.join(HUB)}")
    hub_set, messages = HUB[name], []
    source = source or hub_set.source
    for split, file in hub_set.splits.items():
        path = root / file.path
        if path.exists() and not replace:
            messages.append(f"{path} is there already; --replace writes it anew")
            continue
        rows = _load(hub_set, split, source)
        try:
            lines = [file.line(number, row) for number, row in enumerate(rows)]
        except KeyError as absent:
            columns = f"no column {absent}; it has {', '.join(rows[0])}"
            raise UserError(f"{source}, split {split!r}: {columns}") from None
        make_folder(path.parent)
        replace_durably(
            path, "".join(f"{line}\n" for line in [*filter(None, [file.header]), *lines]).encode()
        )
        messages.append(f"{path}: {len(rows):,} rows")
    return messages


def _load(hub_set: HubSet, split: str, source: str) -> list[Row]:
    """Read the rows of one split, label numbers as words."""
    from datasets import ClassLabel, get_dataset_config_names, load_dataset

    source = os.path.expanduser(source)
    local = Path(source).is_dir()
    if not local and source.startswith((".", "/", "~")):
        raise UserError(f"--source {source}: there is no such folder")
    if not local:
        reach_hub(source, "give --source FOLDER with the set's parquet or jsonl files")
    try:
        configuration = hub_set.configuration
        if local and configuration not in get_dataset_config_names(source):
            configuration = None  # a folder that holds this configuration alone
        rows = load_dataset(
            source, configuration, split=split, data_files=None if local else hub_set.data_files
        )
    # offline, no such set, split or file: all of these
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = (str(error) or repr(error)).splitlines()[0]
        what = f"cannot load the split {split!r} of {source}"
        raise UserError(f"{what}: {reason}. Without network, give --source FOLDER") from error
    words = {column: names for column, names in hub_set.names.items() if column in rows.column_names}
    for column in words:
        if isinstance(rows.features[column], ClassLabel):
            words[column] = tuple(rows.features[column].names)
    return [
        dict(row) | {column: _word(row[column], names) for column, names in words.items()} for row in rows
    ]


def _word(value: Any, names: tuple[str, ...]) -> str | None:
    """Return the word of a label number; None for -1, which the hub writes if there is no label."""
    if isinstance(value, str):
        return value
    if value is None or value == -1:
        return None
    if not 0 <= value < len(names):
        raise UserError(f"a label is {value}; there are words for 0 to {len(names) - 1}")
    return names[value]


def _cell(value: Any) -> str:
    """Return a value as a cell of a tsv file, which has no way to hold a tab or line end."""
    return re.sub(r"[\t\r\n]", " ", str(value))


def _csv_line(cells: Iterable[Any]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue()[:-1]


def _table(path: str, columns: Mapping[str, str], line: Callable[[Iterable[Any]], str]) -> File:
    """Return a file with a header. columns: title -> column on the hub; line: of cells."""
    return File(path, lambda _, row: line(row[name] for name in columns.values()), line(columns))


def _jsonl(path: str, content: Callable[[Row], dict[str, Any]]) -> File:
    return File(path, lambda _, row: json.dumps(content(row), ensure_ascii=False))


def _glue(task: GlueTask) -> HubSet:
    """Describe a GLUE task: of the official columns those that the hub has."""
    first, second, label = task.columns
    titles = [first] if second is None else [first, second]
    texts = dict(zip(titles, _GLUE_TEXTS.get(task.name, titles)))
    splits = {}
    for split in task.sizes:
        columns = {"index": "idx", **texts} | ({} if split.startswith("test") else {label: "label"})
        if task.headerless is not None and not split.startswith("test"):
            line = lambda _, row: f"\t{row['label']}\t\t{_cell(row['sentence'])}"  # noqa: E731
            file = File(task.file(split), line)
        else:
            file = _table(task.file(split), columns, lambda cells: "\t".join(map(_cell, cells)))
        splits[split.replace("dev", "validation")] = file
    return HubSet(
        "nyu-mll/glue",
        splits,
        {} if task.labels in ((), ZERO_ONE) else {"label": task.labels},
        task.name.lower().replace("-", ""),
    )


def _anli(number: int, part: str) -> File:
    keys = {"uid": "uid", "context": "premise", "hypothesis": "hypothesis"}
    return _jsonl(
        f"ANLI/R{number}/{part}.jsonl",
        lambda row: {key: row[name] for key, name in keys.items()} | {"label": row["label"][0]},
    )


def _chinese(part: str) -> File:
    def line(number: int, row: Row) -> str:
        first, second = _cell(row["sentence1"]), _cell(row["sentence2"])
        return f"{part}-{number:04d}||{first}||{second}||{row['score']:g}"

    return File(f"zh/STS-B/cnsd-sts-{part}.txt", line)


_GLUE_TEXTS = {"MRPC": ("sentence1", "sentence2")} | dict.fromkeys(("MNLI", "AX"), ("premise", "hypothesis"))
"""Columns of texts on the hub, where they are not called as in the official files."""
_TRAIN_DEV_TEST = {"train": "train", "validation": "dev", "test": "test"}
_NLI = ("premise", "hypothesis", "label")
_TRIPLET = ("sent0", "sent1", "hard_neg")
_BANKING = {"text": "text", "category": "label_text"}

HUB: dict[str, HubSet] = {
    **{f"GLUE/{name}": _glue(task) for name, task in TASKS.items()},
    "intents/BANKING77": HubSet(
        "mteb/banking77",
        {part: _table(f"intents/BANKING77/{part}.csv", _BANKING, _csv_line) for part in ("train", "test")},
    ),
    **{
        f"ANLI/R{number}": HubSet(
            "facebook/anli",
            {f"{part}_r{number}": _anli(number, part) for part in ("train", "dev", "test")},
            _LABELS,
        )
        for number in (1, 2, 3)
    },
    "NLI/SimCSE": HubSet(
        "princeton-nlp/datasets-for-simcse",
        {"train": _table("NLI/nli_for_simcse.csv", dict(zip(_TRIPLET, _TRIPLET)), _csv_line)},
        data_files="nli_for_simcse.csv",
    ),
    "NLI/MNLI-dev": HubSet(
        "nyu-mll/glue",
        {"validation_matched": _jsonl("NLI/mnli_dev.jsonl", lambda row: {key: row[key] for key in _NLI})},
        _LABELS,
        "mnli",
    ),
    "zh/STS-B": HubSet("mteb/STSB", {split: _chinese(part) for split, part in _TRAIN_DEV_TEST.items()}),
}

CATALOGUE = tuple(DATA_SETS.values())
GROUPS = tuple(dict.fromkeys(one.group for one in CATALOGUE))


def state_of(data_set: BenchmarkSet, root: Path) -> tuple[str, list[str]]:
    """Return what is there of a set below `root`, "complete", "incomplete" or "missing", and what is not."""
    absent = [file for file in data_set.files if not locate(root, file).is_file()]
    state = "complete" if not absent else "missing" if len(absent) == len(data_set.files) else "incomplete"
    return state, absent


def choose(names: str) -> list[BenchmarkSet]:
    """Return the sets of a comma-separated list (GROUP, GROUP/NAME or a unique NAME); all of an empty one."""
    short = [one.name.split("/")[-1].lower() for one in CATALOGUE]
    aliases = {key: one.name for key, one in zip(short, CATALOGUE) if short.count(key) == 1}
    known = (*GROUPS, *(one.name for one in CATALOGUE))
    words = [word.strip() for word in names.split(",") if word.strip()]
    wanted = [known_name(word, known, "set", aliases=aliases) for word in words]
    chosen = [one for name in wanted for one in CATALOGUE if name in (one.group, one.name)]
    return list({one.name: one for one in chosen or CATALOGUE}.values())


def report(one: BenchmarkSet, root: Path, width: int) -> str:
    """Return a line on a set; below it the files that lack, and where to get them."""
    state, absent = state_of(one, root)
    lines = [f"{one.name:{width}}  {state}"]
    if absent:
        others = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        fetch = f"clearly benchmarks fetch {one.name} {root}, or " if one.name in HUB else ""
        lines += [
            f"{'':{width}}    {absent[0]}{others} missing",
            f"{'':{width}}    get it: {fetch}{one.origin}",
        ]
    return "\n".join(lines)


def check(eval_data: EvalData = "", *, sets: str = "") -> int:
    """Print for every set whether its files are there, and where to get those that are not.

    The exit status is 0 when all are complete, 1 otherwise.

    Args:
        sets: only these: groups (SentEval, probing, GLUE, clustering, intents, ANLI, NLI, zh) or sets
            (GLUE/RTE), by commas.
    """
    root, chosen = data_root(eval_data), choose(sets)
    width, states = max(len(one.name) for one in chosen), [state_of(one, root)[0] for one in chosen]
    for one in chosen:
        print(report(one, root, width))
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    return 0 if set(states) == {"complete"} else 1


def fetch(name: str, eval_data: EvalData, *, source: str = "", replace: bool = False) -> int:
    """Get a set from the hub, or from a copy of it, and write it in the folder's layout.

    Args:
        name: the set, as GLUE/RTE.
        source: another name on the hub, or a folder with the set's parquet, jsonl or csv files.
        replace: also write files that are there; they stay otherwise.
    """
    require_writable(eval_data, "EVAL_DATA")
    root = Path(eval_data)
    chosen = choose(name)
    if len(chosen) != 1:
        names = ", ".join(one.name for one in chosen)
        raise UserError(f"{name!r} is {len(chosen)} sets; fetch them one by one: {names}")
    for line in fetch_set(chosen[0].name, root, source, replace):
        print(line, file=sys.stderr)
    print(report(chosen[0], root, len(chosen[0].name)))
    return 0


if __name__ == "__main__":
    cli.run(check=check, fetch=fetch)
