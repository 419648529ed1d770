"""Fetch sets from the Hugging Face hub, and write them in the layout of the data folder.

Only sets of which the hub has what the published files hold, or what they were made from: its STS benchmark
(mteb's) is raw text, where SentEval's files are Moses tokens in lower case, and would be counted as complete
and score otherwise.

A source is a name on the hub or a folder in the hub's own formats (parquet, jsonl, csv; with a README.md that
names configurations, or files named after their splits), for machines that get their data otherwise. Files
that are there stay unless they are to be replaced; each new one appears whole or not at all.
"""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.hub import reach_hub
from finetune.senteval.preprocessing import treebank
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably

Row = Mapping[str, Any]
Write = Callable[[list[Row]], dict[str, bytes]]
"""Rows of one split to the contents of its files."""

ENTAILMENT = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True)
class HubSet:
    """Where the hub has a set and how each of its splits is written."""

    source: str
    configuration: str | None
    splits: dict[str, Write]
    """Split on the hub -> writer. A writer's files are named relative to the data folder."""
    columns: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]
    """Label columns and the words for 0, 1, ...; a column that carries its own words keeps them."""
    data_files: str | None = None


def fetch(name: str, root: Path, source: str = "", replace: bool = False) -> list[str]:
    """Write what the data folder `root` lacks of a set; returns a line a file.

    Args:
        name: as in HUB. source: a hub name or local folder to read instead of the set's own. replace: also
            write the files that are there.

    Raises:
        UserError: the set is not on the hub, the source cannot be read, or lacks a split or column.
    """
    if name not in HUB:
        raise UserError(f"{name} is not on the hub in a form that can be written; there are {', '.join(HUB)}")
    hub_set = HUB[name]
    said = []
    for split, write in hub_set.splits.items():
        wanted = [file for file in write([]) if replace or not (root / file).exists()]
        said += [
            f"{root / file} is there already; --replace writes it anew"
            for file in write([])
            if file not in wanted
        ]
        rows = _load(hub_set, split, source or hub_set.source) if wanted else []
        for file, content in (write(rows) if wanted else {}).items():
            if file in wanted:
                make_folder((root / file).parent)
                replace_durably(root / file, content)
                said.append(f"{root / file}: {len(rows):,} rows")
    return said


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
        said = (str(error) or repr(error)).splitlines()[0]
        raise UserError(
            f"cannot load the split {split!r} of {source}: {said}. Without network, give --source FOLDER "
            "with the set's parquet "
            "or jsonl files"
        ) from error
    absent = [column for column in hub_set.columns if column not in rows.column_names]
    if absent:
        raise UserError(
            f"{source}, split {split!r}: no column {absent[0]!r}; it has {', '.join(rows.column_names)}"
        )
    words = {column: names for column, names in hub_set.names.items() if column in rows.column_names}
    for column in words:
        if isinstance(rows.features[column], ClassLabel):
            words[column] = tuple(rows.features[column].names)
    return [
        dict(row) | {column: _word(row[column], names) for column, names in words.items()} for row in rows
    ]


def _word(value: Any, names: tuple[str, ...]) -> str | None:
    """Return the word of a label number; None for -1, which the hub writes where there is no label."""
    if isinstance(value, str):
        return value
    if value is None or value == -1:
        return None
    if not 0 <= value < len(names):
        raise UserError(
            f"a label is {value}; there are words for 0 to {len(names) - 1}: {', '.join(names) or 'none'}"
        )
    return names[value]


# -- writing
# ----------------------------------------------------------------------------------------------------------


def _text(rows: Iterable[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def _cell(value: Any) -> str:
    """Return a value as a cell of a tsv file, which has no way to hold a tab or line end."""
    return "n/a" if value is None else re.sub(r"[\t\r\n]", " ", str(value))


def _csv(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return stream.getvalue().encode()


def _tsv(file: str, layout: str) -> Write:
    """Return a writer of a tsv file.

    layout: "title=column|title=column|...", "title" alone for what the hub's copy lacks; CoLA has no titles.
    """
    pairs = [part.partition("=") for part in layout.split("|")]
    header = ["\t".join(title for title, _, _ in pairs)] if pairs[0][0] else []

    def write(rows: list[Row]) -> dict[str, bytes]:
        body = ["\t".join(_cell(row[column]) if column else "n/a" for _, _, column in pairs) for row in rows]
        return {file: _text([*header, *body])}

    return write


def _glue(
    folder: str, configuration: str, layouts: Mapping[str, tuple[str, str]], names: tuple[str, ...] = ()
) -> HubSet:
    """Describe a GLUE task; layouts: split on the hub -> (file, layout)."""
    used = {pair.partition("=")[2] for _, layout in layouts.values() for pair in layout.split("|")} - {""}
    writers = {split: _tsv(f"GLUE/{folder}/{file}.tsv", layout) for split, (file, layout) in layouts.items()}
    return HubSet(
        "nyu-mll/glue", configuration, writers, tuple(sorted(used)), {"label": names} if names else {}
    )


def _three(labelled: str, test: str) -> dict[str, tuple[str, str]]:
    return {"train": ("train", labelled), "validation": ("dev", labelled), "test": ("test", test)}


def _pair(one: str, two: str, label: str = "|label=label") -> str:
    return f"index=idx|{one}={one}|{two}={two}{label}"


def _mnli(labels: str) -> str:
    return (
        "index=idx|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|sentence2_parse|"
        f"sentence1=premise|sentence2=hypothesis{labels}"
    )


def _anli(number: int) -> HubSet:
    def writer(part: str) -> Write:
        def write(rows: list[Row]) -> dict[str, bytes]:
            body = (
                {
                    "uid": row["uid"],
                    "context": row["premise"],
                    "hypothesis": row["hypothesis"],
                    "label": row["label"][0],
                }
                for row in rows
            )
            return {
                f"ANLI/R{number}/{part}.jsonl": _text(json.dumps(row, ensure_ascii=False) for row in body)
            }

        return write

    writers = {f"{part}_r{number}": writer(part) for part in ("train", "dev", "test")}
    return HubSet(
        "facebook/anli", None, writers, ("uid", "premise", "hypothesis", "label"), {"label": ENTAILMENT}
    )


def _snli(part: str) -> Write:
    """Write SNLI as SentEval's script does; pairs without a gold label are left out.

    Tokens are those of the Penn Treebank's sed script, in UTF-8, which SentEval itself, and so
    `senteval.tasks`, reads as latin-1.
    """

    def write(rows: list[Row]) -> dict[str, bytes]:
        gold = [row for row in rows if row["label"] is not None]
        texts = {"s1": "premise", "s2": "hypothesis"}
        files = {kind: _text(treebank(_cell(row[column])) for row in gold) for kind, column in texts.items()}
        files["labels"] = _text(row["label"] for row in gold)
        return {f"SentEval/SNLI/{kind}.{part}": content for kind, content in files.items()}

    return write


def _chinese(part: str) -> Write:
    def write(rows: list[Row]) -> dict[str, bytes]:
        cells = (
            (f"{part}-{number:04d}", _cell(row["sentence1"]), _cell(row["sentence2"]), f"{row['score']:g}")
            for number, row in enumerate(rows)
        )
        return {f"zh/STS-B/cnsd-sts-{part}.txt": _text("||".join(row) for row in cells)}

    return write


def _banking(part: str) -> Write:
    def write(rows: list[Row]) -> dict[str, bytes]:
        content = _csv(("text", "category"), ((row["text"], row["label_text"]) for row in rows))
        return {f"intents/BANKING77/{part}.csv": content}

    return write


def _triplets(rows: list[Row]) -> dict[str, bytes]:
    columns = ("sent0", "sent1", "hard_neg")
    return {
        "NLI/nli_for_simcse.csv": _csv(columns, (tuple(row[column] for column in columns) for row in rows))
    }


def _mnli_dev(rows: list[Row]) -> dict[str, bytes]:
    columns = ("premise", "hypothesis", "label")
    body = (json.dumps({column: row[column] for column in columns}, ensure_ascii=False) for row in rows)
    return {"NLI/mnli_dev.jsonl": _text(body)}


_TRAIN_DEV_TEST = {"train": "train", "validation": "dev", "test": "test"}
_SINGLE = "sentence=sentence|label=label"
_TWO = ("entailment", "not_entailment")
_MRPC = "|#1 ID|#2 ID|#1 String=sentence1|#2 String=sentence2"
_STSB = "index=idx|genre|filename|year|old_index|source1|source2|sentence1=sentence1|sentence2=sentence2"
_MNLI_DEV = _mnli("|label1|label2|label3|label4|label5|gold_label=label")

HUB: dict[str, HubSet] = {
    "SentEval/SNLI": HubSet(
        "stanfordnlp/snli",
        None,
        {split: _snli(part) for split, part in _TRAIN_DEV_TEST.items()},
        ("premise", "hypothesis", "label"),
        {"label": ENTAILMENT},
    ),
    "GLUE/CoLA": _glue("CoLA", "cola", _three("|=label||=sentence", "index=idx|sentence=sentence")),
    "GLUE/SST-2": _glue("SST-2", "sst2", _three(_SINGLE, "index=idx|sentence=sentence")),
    "GLUE/MRPC": _glue("MRPC", "mrpc", _three(f"Quality=label{_MRPC}", f"index=idx{_MRPC}")),
    "GLUE/QQP": _glue(
        "QQP",
        "qqp",
        _three(
            "id=idx|qid1|qid2|question1=question1|question2=question2|is_duplicate=label",
            "id=idx|question1=question1|question2=question2",
        ),
    ),
    "GLUE/STS-B": _glue("STS-B", "stsb", _three(f"{_STSB}|score=label", _STSB)),
    "GLUE/MNLI": _glue(
        "MNLI",
        "mnli",
        {
            "train": ("train", _mnli("|label1|gold_label=label")),
            "validation_matched": ("dev_matched", _MNLI_DEV),
            "validation_mismatched": ("dev_mismatched", _MNLI_DEV),
            "test_matched": ("test_matched", _mnli("")),
            "test_mismatched": ("test_mismatched", _mnli("")),
        },
        ENTAILMENT,
    ),
    "GLUE/QNLI": _glue(
        "QNLI", "qnli", _three(_pair("question", "sentence"), _pair("question", "sentence", "")), _TWO
    ),
    "GLUE/RTE": _glue(
        "RTE", "rte", _three(_pair("sentence1", "sentence2"), _pair("sentence1", "sentence2", "")), _TWO
    ),
    "GLUE/WNLI": _glue(
        "WNLI", "wnli", _three(_pair("sentence1", "sentence2"), _pair("sentence1", "sentence2", ""))
    ),
    "GLUE/AX": _glue(
        "diagnostic", "ax", {"test": ("diagnostic", "index=idx|sentence1=premise|sentence2=hypothesis")}
    ),
    "intents/BANKING77": HubSet(
        "mteb/banking77",
        None,
        {part: _banking(part) for part in ("train", "test")},
        ("text", "label_text"),
        {},
    ),
    **{f"ANLI/R{number}": _anli(number) for number in (1, 2, 3)},
    "NLI/SimCSE": HubSet(
        "princeton-nlp/datasets-for-simcse",
        None,
        {"train": _triplets},
        ("sent0", "sent1", "hard_neg"),
        {},
        "nli_for_simcse.csv",
    ),
    "NLI/MNLI-dev": HubSet(
        "nyu-mll/glue",
        "mnli",
        {"validation_matched": _mnli_dev},
        ("premise", "hypothesis", "label"),
        {"label": ENTAILMENT},
    ),
    "zh/STS-B": HubSet(
        "mteb/STSB",
        None,
        {split: _chinese(part) for split, part in _TRAIN_DEV_TEST.items()},
        ("sentence1", "sentence2", "score"),
        {},
    ),
}
