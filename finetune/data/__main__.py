"""Where the evaluation data lies: one folder, `--data DIR` or the environment's CLEAR_DATA.

    python -m finetune.data check DIR                                  which sets are there and complete
    python -m finetune.data fetch GLUE/RTE DIR [--source FOLDER]       get one from the hub, or from a copy of it

    SentEval/   SentEval's data/downstream (STS, SICK, MR, CR, SUBJ, MPQA, SST, TREC, MRPC, SNLI) and probing/
    GLUE/       one folder a task, the official tsv files
    clustering/ VaSCL's csv files (text,label)
    intents/    SNIPS, ATIS, HWU64 (seq.in, label), BANKING77 (csv), CLINC150 (json)
    ANLI/       R1, R2, R3 (jsonl)
    NLI/        SNLI and MultiNLI (jsonl)
    zh/STS-B/   cnsd-sts-{train,dev,test}.txt

The catalogue of sets is in `data_catalogue`, the hub in `data_fetch`.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.common.cli import as_bool, run
from pretrain.common.errors import UserError


def data_root(data: str | Path | None = None) -> Path:
    """The data folder: `data`, or else the environment's CLEAR_DATA.

    Raises:
        UserError: neither is given, or it is no folder.
    """
    named = str(data) if data else os.environ.get("CLEAR_DATA", "")
    if not named:
        raise UserError(
            "no evaluation data: give --data DIR, or set CLEAR_DATA to the folder that holds SentEval/, "
            "GLUE/, ..."
        )
    folder = Path(named)
    if not folder.is_dir():
        raise UserError(
            f"the data folder {folder} is not there; --data DIR or CLEAR_DATA must name one that is"
        )
    return folder


def find(data: str | Path | None, *parts: str) -> Path:
    """The file or folder `parts` below the data folder.

    Raises:
        UserError: it is not there; the message says where it was sought and how to see what is.
    """
    root = data_root(data)
    path = root.joinpath(*parts)
    if not path.exists():
        raise UserError(
            f"{path} is not there; `python -m finetune.data check {root}` says what is missing and where "
            "to get it"
        )
    return path


def senteval_folder(root: Path) -> Path:
    """The folder that holds STS, MR, ...: SentEval/, SentEval/downstream/ or downstream/ of the data folder,
    or itself."""
    parts = ("STS", "SICK", "MR", "CR", "SUBJ", "MPQA", "SST", "TREC", "MRPC", "SNLI")
    for folder in (root / "SentEval", root / "SentEval" / "downstream", root / "downstream"):
        if any((folder / part).is_dir() for part in parts):
            return folder
    return root / "SentEval" if (root / "SentEval").is_dir() else root


def known_name(
    name: str,
    known: Iterable[str],
    kind: str,
    plain: Callable[[str], str] = str.lower,
    aliases: Mapping[str, str] | None = None,
) -> str:
    """`name` as `known` writes it; two names are the same where `plain` makes them so. `aliases`: plain name
    -> known one.

    Raises:
        UserError: no such `kind` of thing; the message names the nearest, and all.
    """
    written = {plain(one): one for one in known}
    found = written | dict(aliases or {})
    if plain(name) not in found:
        near = found[difflib.get_close_matches(plain(name), found, n=1, cutoff=0.0)[0]]
        raise UserError(
            f"unknown {kind} {name!r}; did you mean {near!r}? There are {', '.join(written.values())}"
        )
    return found[plain(name)]


def parse_json(text: str) -> Any:
    """Return what a JSON text says.

    Raises:
        ValueError: no JSON, nested too deep, or text that is not Unicode (half of a surrogate pair:
            `"\\ud800"`).
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return value


def csv_columns(path: Path, *columns: str) -> list[tuple[str, ...]]:
    """Cells of these columns, row by row, by the csv rules: quotes, commas and line ends inside a text are
    text.

    Raises:
        UserError: no csv file in UTF-8, a column missing, or a row with more or fewer cells than the first
            line names.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no csv file in UTF-8: {error}; it is damaged") from error
    header = rows[0] if rows else []
    if not set(columns) <= set(header):
        wanted = f"{', '.join(columns[:-1])} and {columns[-1]}"
        raise UserError(f"{path}: the first line must name {wanted}; it has {', '.join(header) or 'nothing'}")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise UserError(
                f"{path}, row {number}: {len(row)} cells instead of {len(header)}; the file is damaged"
            )
    places = [header.index(column) for column in columns]
    return [tuple(row[place] for place in places) for row in rows[1:]]


def lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Lines without their line ends. Only \\n ends a line: str.splitlines would also cut at a form feed or
    U+2028.

    Raises:
        UserError: the file is not text in that encoding.
    """
    with open(path, encoding=encoding, newline="\n") as file:
        number = 0
        try:
            for line in file:
                number += 1
                yield line.rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, after line {number}: not {encoding} text ({error.reason}); the file is damaged"
            ) from None


def read_sentences(path: Path, flag: str) -> list[str]:
    """The different sentences of a text file, one a line (.gz too), for the flag that named it.

    Raises:
        UserError: no such file, no text, or fewer than 10 sentences.
    """
    if not path.is_file():
        raise UserError(f"--{flag} {path}: there is no such file")
    if path.suffix == ".gz":
        try:
            with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
                found = [line.strip() for line in file]
        except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
            raise UserError(f"--{flag} {path}: cannot be read as text: {error}") from error
    else:
        found = [line.strip() for line in lines(path)]
    found = list(dict.fromkeys(line for line in found if line))
    if len(found) < 10:
        raise UserError(f"--{flag} {path}: {len(found)} different sentences; give at least 10, one a line")
    return found


def spaced(sentences: list[str], count: int) -> list[str]:
    """At most `count` of them, evenly spaced."""
    rows = np.linspace(0, len(sentences) - 1, min(count, len(sentences))).round().astype(int)
    return [sentences[row] for row in rows]


def main(*words: str, sets: str = "", source: str = "", replace: bool | str = False) -> int:
    """Which evaluation sets a data folder holds, and getting what it lacks.

    check DIR        print for every set whether it is complete, incomplete, missing or damaged, and where to get it. The
                     exit status is 0 when all are complete, 1 otherwise.
    fetch SET DIR    write a set of the hub in the folder's layout.

    Args:
        sets: with check, only these: groups (SentEval, probing, GLUE, clustering, intents, ANLI, NLI, zh) or
            sets (GLUE/RTE), by commas.
        source: with fetch, another name on the hub, or a folder with the set's parquet, jsonl or csv files.
        replace: with fetch, also write files that are there; they stay otherwise.
    """
    action, *words = words or ("",)
    if action not in ("check", "fetch"):
        raise UserError(
            f"say check DIR or fetch SET DIR{f', not {action!r}' if action else ''}; --help says more"
        )
    if action == "check":
        if len(words) > 1 or source or replace:
            raise UserError("write python -m finetune.data check DIR [--sets GROUP,GROUP/SET]")
        return _check(data_root(*words), sets)
    if len(words) != 2 or sets:
        raise UserError("write python -m finetune.data fetch SET DIR [--source FOLDER] [--replace]")
    return _fetch(words[0], Path(words[1]), source, as_bool(replace, "replace"))


def _check(root: Path, sets: str) -> int:
    from finetune.data.catalogue import check, choose, report
    from finetune.data.fetch import HUB

    statuses = []
    for one in choose(sets):
        _progress(one.name)
        statuses.append(check(one, root))
    _progress("")
    print(report(statuses, HUB, root))
    return 0 if all(status.state == "complete" for status in statuses) else 1


def _progress(name: str) -> None:
    """What is being counted, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r{name:<40}\r", end="", file=sys.stderr, flush=True)


def _fetch(name: str, root: Path, source: str, replace: bool) -> int:
    from finetune.data.catalogue import check, choose, report
    from finetune.data.fetch import HUB, fetch

    chosen = choose(name)
    if len(chosen) != 1:
        raise UserError(
            f"{name!r} is {len(chosen)} sets; fetch them one by one: {', '.join(one.name for one in chosen)}"
        )
    for line in fetch(chosen[0].name, root, source, replace):
        print(line, file=sys.stderr)
    print(report([check(chosen[0], root)], HUB, root))
    return 0


if __name__ == "__main__":
    run(main, positional=3)
