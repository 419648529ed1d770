"""Find and read the files of the data folder: paths, csv, lines of text, JSON.

The data folder is `--eval-data DIR`, or else the environment's CLEAR_DATA; `finetune.data` describes it.
data_sets.tsv lists the sets, and `clearly benchmarks check DIR` looks for their files. An evaluation compares
how many rows they hold with what was published (`finetune.results.Evaluation.expect_size`).
"""

import codecs
import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from augment.core.errors import nearest_name
from pretrain.common.errors import UNPACKERS, UserError, naming, not_utf8
from pretrain.prepare.sources.readers import naming_damage, open_file

Example = TypeVar("Example")


@dataclass(frozen=True)
class BenchmarkSet:
    """A set and its files below the data folder: a row of data_sets.tsv."""

    name: str
    """GROUP/NAME, after the folders that it lies in."""
    rows: Mapping[str, int]
    """What is counted (a split, texts, classes) -> as published."""
    files: tuple[str, ...]
    origin: str
    """Where it comes from, for users who lack it."""

    @property
    def group(self) -> str:
        return self.name.split("/")[0]

    def paths(self, root: Path) -> list[Path]:
        """Return its files, which may be absent."""
        return [locate(root, file) for file in self.files]


def _data_sets() -> dict[str, BenchmarkSet]:
    found = {}
    for line in Path(__file__).with_name("data_sets.tsv").read_text("utf-8").splitlines()[1:]:
        name, rows, files, origin = line.split("\t")
        counts = {what: int(count) for what, count in (one.split("=") for one in rows.split())}
        found[name] = BenchmarkSet(name, counts, tuple(files.split()), origin)
    return found


DATA_SETS = _data_sets()


def data_root(data: str | Path | None = None) -> Path:
    """Return the data folder: `data`, or else the environment's CLEAR_DATA."""
    named = str(data) if data else os.environ.get("CLEAR_DATA", "")
    if not named:
        raise UserError("no evaluation data: give --eval-data DIR, or set CLEAR_DATA")
    folder = Path(named)
    if not folder.is_dir():
        raise UserError(f"the data folder {folder} is not there; --eval-data or CLEAR_DATA names it")
    return folder


def find(data: str | Path | None, *parts: str) -> Path:
    """Return the file or folder `parts` below the data folder, as `locate`."""
    root = data_root(data)
    return require([locate(root, "/".join(parts))], root)[0]


def require(paths: Sequence[Path], root: Path) -> Sequence[Path]:
    """Return files or folders of the data folder `root`, all of which must be there."""
    if absent := [path for path in paths if not path.exists()]:
        raise UserError(f"{absent[0]} is not there; `clearly benchmarks check {root}` says where to get it")
    return paths


def senteval_folder(root: Path) -> Path:
    """Return the folder that holds STS, MR, ...: SentEval/, SentEval/downstream/, downstream/ or `root`."""
    parts = ("STS", "SICK", "MR", "CR", "SUBJ", "MPQA", "SST", "TREC", "MRPC", "SNLI")
    for folder in (root / "SentEval", root / "SentEval" / "downstream", root / "downstream"):
        if any((folder / part).is_dir() for part in parts):
            return folder
    return root / "SentEval" if (root / "SentEval").is_dir() else root


def locate(root: Path, file: str) -> Path:
    """Return the path of a file below the data folder, wherever SentEval's and GLUE's own files lie in it.

    `file` starts with SentEval/ or GLUE/ for those. The data folder may be GLUE's. In SentEval's own layout
    probing/ lies beside downstream/; in others it lies beside STS/, MR/, ...
    """
    if file.startswith("GLUE/") and not (root / "GLUE").is_dir():
        return root / file.removeprefix("GLUE/")
    if not file.startswith("SentEval/"):
        return root / file
    folder, rest = senteval_folder(root), file.removeprefix("SentEval/")
    if rest.startswith("probing/") and folder.name == "downstream" and not (folder / rest).exists():
        return folder.parent / rest
    return folder / rest


def known_name(
    name: str,
    names: Iterable[str],
    kind: str,
    plain: Callable[[str], str] = str.lower,
    aliases: Mapping[str, str] | None = None,
) -> str:
    """Return `name` as `names` writes it; two names are the same if `plain` makes them so.

    aliases: plain name -> known one.
    """
    written = {plain(one): one for one in names}
    found = written | dict(aliases or {})
    if plain(name) not in found:
        near = nearest_name(plain(name), found)
        hint = f"; did you mean {found[near]!r}?" if near else "."
        raise UserError(f"unknown {kind} {name!r}{hint} There are {', '.join(written.values())}")
    return found[plain(name)]


def parse_json(text: str) -> Any:
    """Return what a JSON text says. Raises ValueError, also for half of a surrogate pair (`"\\ud800"`)."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return value


_CELL_CHARACTERS = 2**31 - 1


def open_text(path: Path, encoding: str = "utf-8", newline: str = "\n") -> io.TextIOWrapper:
    """Open a text file behind its byte order mark, if it has one, whatever its encoding."""
    file = path.open("rb")
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        file.seek(0)
    return io.TextIOWrapper(file, encoding, newline=newline)


def csv_columns(path: Path, *columns: str) -> list[tuple[str, ...]]:
    """Return the cells of these columns, row by row.

    By the csv rules: quotes, commas and line ends inside a text are text.
    """
    csv.field_size_limit(_CELL_CHARACTERS)
    try:
        with open_text(path, newline="") as file:
            rows = list(csv.reader(file, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no csv file in UTF-8: {error}; it is damaged") from error
    header = rows[0] if rows else []
    if not set(columns) <= set(header):
        wanted = f"{', '.join(columns[:-1])} and {columns[-1]}"
        raise UserError(f"{path}: the first line must name {wanted}; it has {', '.join(header) or 'nothing'}")
    if twice := [column for column in columns if header.count(column) > 1]:
        raise UserError(f"{path}: the first line names {twice[0]} twice; rename the other column")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise UserError(f"{path}, row {number}: {len(row)} cells instead of {len(header)}; it is damaged")
    places = [header.index(column) for column in columns]
    return [tuple(row[place] for place in places) for row in rows[1:]]


def json_rows(path: Path, *keys: str) -> list[tuple[int, tuple[str, ...]]]:
    """Return (line number, texts of `keys`) of every object of a jsonl file; blank lines are left out."""
    rows = []
    for number, row in json_objects(path):
        texts = tuple(text for key in keys if isinstance(text := row.get(key), str))
        if len(texts) < len(keys):
            raise UserError(f"{path}, line {number}: expected JSON with the keys {', '.join(keys)}, texts")
        rows.append((number, texts))
    return rows


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of a jsonl file; blank lines are left out."""
    for number, line in enumerate(lines(path), 1):
        if line.strip():
            try:
                row = parse_json(line)
            except ValueError as error:
                raise UserError(f"{path}, line {number}: no JSON ({error})") from None
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number}: expected an object, got {line[:60]!r}")
            yield number, row


def lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Read lines without their line ends.

    Only \\n ends a line: str.splitlines would also cut at a form feed or U+2028.
    """
    with open_text(path, encoding) as file:
        number = 0
        try:
            for line in file:
                number += 1
                yield line.rstrip("\r\n")
        except UnicodeDecodeError as error:
            place = f"{path}, after line {number}"
            raise UserError(f"{place}: not {encoding} text ({error.reason}); it is damaged") from None


def is_file_of_lines(path: Path) -> bool:
    """Return whether a file's name may be that of a text with a sentence a line, compressed or not."""
    plain = path.with_suffix("") if path.suffix in UNPACKERS else path
    return plain.suffix not in (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".zip")


def read_sentences(path: Path, flag: str) -> list[str]:
    """Read the different sentences of the text file that a flag names, one per line (compressed too)."""
    found = list(dict.fromkeys(_text_lines(path, flag)))
    if len(found) < 10:
        raise UserError(f"--{flag} {path}: {len(found)} different sentences; give at least 10, one per line")
    return found


def read_queries(path: Path) -> list[str]:
    """Read the queries of the text file that --queries names, one per line (compressed too)."""
    found = _text_lines(path, "queries")
    if not found:
        raise UserError(f"--queries {path} holds no query; give one per line")
    return found


def _text_lines(path: Path, flag: str) -> list[str]:
    """Return the lines of a text file that are not blank, without white space at their ends."""
    if path.is_dir():
        raise UserError(f"--{flag} {path} is a folder: name one file of it")
    if not path.is_file():
        raise UserError(f"--{flag} {path}: there is no such file")
    if not is_file_of_lines(path):
        raise UserError(f"--{flag} {path}: give a file of sentences, one per line (as .txt or .txt.gz)")
    found: list[str] = []
    first, number = b"", 0
    try:
        with naming(f"--{flag}", UserError), naming_damage(str(path)), open_file(path) as file:
            for number, line in enumerate(file, 1):
                first = first or line
                found.append(line.decode("utf-8-sig" if number == 1 else "utf-8").strip())
    except UnicodeDecodeError as error:
        raise UserError(f"--{flag} {not_utf8(path, first + error.object, f'line {number}')}") from error
    return [line for line in found if line]


def evenly_spaced(examples: Sequence[Example], count: int) -> list[Example]:
    """Return at most `count` of the examples, evenly spaced."""
    rows = np.linspace(0, len(examples) - 1, min(count, len(examples))).round().astype(int)
    return [examples[row] for row in rows]
