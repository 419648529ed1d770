"""Plan the reading tasks of a mixture: look at its sources and cut each of them into tasks.

A source is cut by its own size alone, never by the number of workers: the same corpus gives the same tasks,
and so the same shards, on a laptop and on a cluster.
"""

import glob
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from augment.core.errors import shortened
from augment.core.pretrained import hub_fault
from pretrain.common.errors import UserError
from pretrain.common.typed_values import nearest
from pretrain.config.data import NAMED_DATA, Source
from pretrain.data.manifest import MANIFEST, PAIRS
from pretrain.prepare.sources.markup import MARKUP
from pretrain.prepare.sources.readers import (
    COMPRESSIONS,
    ReadTask,
    detect_layout,
    is_array,
    read_head,
    require_utf8,
)
from pretrain.prepare.sources.structured import columns_of
from pretrain.prepare.wrapping import margin

# beside prepared data: the config that a training gave to the preparation that it started
RECIPE = "prepare.json"
TASK_BYTES = 16 << 20  # text that one reading task handles, about
MAX_STRIPES = 8  # a compressed file is decompressed once per stripe, so not too many of them
# text bytes per stored byte, about
_INFLATION = {".gz": 3.3, ".zst": 3.3, ".bz2": 4.0, ".xz": 4.0, ".parquet": 2.0}
_KINDS = {".txt": "text", ".text": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
          ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv"}  # fmt: skip
# what to do with files that hold text, but are none
_REMEDIES = {
    ".docx .epub .fb2 .ipynb .odt .org .rtf .tex": "make text of it: pandoc -t plain {file} -o {text}",
    ".dbk .xml": "make text of it, of DocBook: pandoc -f docbook -t plain {file} -o {text}",
    ".adoc .asciidoc": "make HTML of it: asciidoctor {file}",
    ".pdf": "make text of it: pdftotext {file} {text}",
    ".srt .vtt": r"make text of it: tr -d '\r' <{file} | LC_ALL=C awk -v RS= -F '\n' '{{for (i = 1; "
    r"i <= NF && $i !~ /-->/; i++); while (++i <= NF) if ($i !~ /-->/ && !($i ~ /^[ \t0-9]*$/ && "
    r"$(i + 1) ~ /-->/)) print $i}}' | LC_ALL=C sed 's/<[^>]*>//g' | tr '\n' ' ' >{text}",
    ".eml .mbox": 'write a row for each message into a .jsonl file: {{"title": SUBJECT, "text": BODY}}',
    ".7z .rar .tar .tgz .zip": "unpack it, and name its files",
    ".ods .xls .xlsx": "save it as CSV, in UTF-8",
    ".doc .ppt .pptx": "save it as text, in UTF-8",
}
_CONVERTED = {ending: remedy for endings, remedy in _REMEDIES.items() for ending in endings.split()}


def plan_tasks(
    sources: list[Source], records: bool = False, structure: bool = False, whole: bool = False
) -> list[ReadTask]:
    """Return the reading tasks of a mixture, in an order fixed by the sources.

    records: read records (`pretrain.prepare.sources.records`), not documents. structure: read documents with
    the structure that rows give (`pretrain.prepare.sources.structured`). whole: with structure, read all of
    the text, files in markup and others, and every column that is known to hold text.
    """
    tasks: list[ReadTask] = []
    for number, source in enumerate(sources):
        planned = _plan_source(number, source, records, structure, whole)
        of_source = [replace(task, longest=int(source.line_megabytes * 1e6)) for task in planned]
        if structure:
            columns = {task.place: columns_of(task, source, whole) for task in of_source if not task.stripe}
            of_source = [replace(task, columns=columns[task.place]) for task in of_source]
        tasks += of_source
    if records and any(task.kind == "embedded" for task in tasks):
        raise UserError("source embedded holds no records: unit record reads files and datasets.")
    widths = {task.place: task.width for task in tasks if task.kind == "text"}
    if wrapped := [place for place, width in widths.items() if width]:
        what = "paragraphs are joined, unless the source has `unwrap: false`"
        if records:
            what = "each line is a record, and a paragraph is one with `layout: paragraphs` in the source"
        which = f"{len(wrapped)} of {len(widths)} text files are hard-wrapped"
        place = f"{wrapped[0]} at column {widths[wrapped[0]]}"
        print(f"note: {which} ({place}): {what}", file=sys.stderr, flush=True)
    return tasks


def _plan_source(number: int, source: Source, records: bool, structure: bool, whole: bool) -> list[ReadTask]:
    name = source.source
    if name == "embedded":
        from pretrain.prepare.sources.embedded import python_files

        size = sum(size for _, size in python_files())
        if not size:
            raise UserError("source embedded: there is no Python package here; name a text file.")
        return _striped(number, "embedded", name, size // 20, stripes=16)
    if name.startswith("hub:") and name.count("/") > 1:
        return _plan_file(number, source, _hub_file(name, source.revision), records, structure)
    if name.startswith("hub:"):
        return _plan_hub(number, source, name[4:])
    if re.match(r"\w+://", name):
        prepared = "prepared data: `clearly train --data.remote ADDRESS`"
        raise UserError(f"source {name} is an address: download it, and name the file; {prepared}.")
    path = Path(name).expanduser()
    if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):  # of `save_to_disk`
        size = sum(f.stat().st_size for f in path.rglob("*.arrow"))
        if not size:
            raise _empty(path)
        return _striped(number, "disk", str(path), size, 1 if source.layout == "passages" else 4096)
    files = _files(path, not records and source.format == "auto", structure, whole)
    if files is None:
        is_name = re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith(".") and not kind_of(name)
        if is_name and not path.parent.is_dir():  # else a misspelt folder
            return _plan_hub(number, source, name)
        parent = path.parent
        while not parent.exists():
            parent = parent.parent
        is_word = "/" not in name and not path.suffix  # else a file that is not there
        hint = nearest(name, ["embedded", *NAMED_DATA]) if is_word else ""
        raise UserError(
            f"source {name}: no such file, folder or glob match (nothing there below {parent}){hint or '.'} "
            "A Hugging Face dataset is hub:OWNER/NAME; the corpus that needs no file is 'embedded'."
        )
    tasks = [task for file in files for task in _plan_file(number, source, file, records, structure)]
    if not tasks:
        raise _empty(path)
    return tasks


def _empty(path: Path | str) -> UserError:
    return UserError(f"source {path} is empty: check the path, or download it again.")


def kind_of(name: str, marked: bool = False) -> str | None:
    """Return the format of a file by its name, whatever it is compressed by; None: no text that is read.

    marked: a file in markup is one, too.
    """
    return (_KINDS | MARKUP if marked else _KINDS).get(_ending(name))


def _ending(name: str) -> str:
    """Return how a file's name ends, in lower case, whatever it is compressed by."""
    stem, suffix = os.path.splitext(name)
    return (os.path.splitext(stem)[1] if suffix in COMPRESSIONS else suffix).lower()


def files_at(path: Path) -> list[Path]:
    """Return the files of a folder, or of a path or glob, sorted.

    Of a folder: without hidden ones and prepared data.
    """
    if path.is_dir():
        return sorted(file for file in _below(path) if file.is_file() and not _of_preparation(file))
    if path.is_file():
        return [path]
    return sorted(Path(file) for file in glob.glob(str(path), recursive=True) if os.path.isfile(file))


def _files(path: Path, marked: bool, structure: bool, whole: bool) -> list[Path] | None:
    """Return the files to read of a folder, or of a path or glob; None if there are none."""
    there = files_at(path)
    if marked and structure and not whole:
        there = _of_one_sort(path, there)
    if path.is_dir():
        if not structure and any(kind_of(file.name) for file in there):
            marked = False  # a README beside data is not the text
        files = [file for file in there if kind_of(file.name, marked)]
        if not files:
            _refuse_unread(there)
            kinds = _KINDS | MARKUP if marked else _KINDS
            ends = ", ".join([*kinds, *COMPRESSIONS])
            raise UserError(f"source {path} holds no corpus file ({ends}).")
        if others := [file.name for file in there if not kind_of(file.name, marked)]:
            named = ", ".join(others[:3]) + (", ..." if others[3:] else "")
            said = f"{len(others)} of {len(there)} files are not read, by their names: {named}"
            print(f"note: source {path}: {said}", file=sys.stderr, flush=True)
        return files
    folders = [place for place in glob.glob(str(path)) if os.path.isdir(place)]
    if folders and "**" not in path.parts:
        said = (
            f"source {path}: folders are not read ({shortened(', '.join(folders))}); ** reaches their files"
        )
        if not there:
            raise UserError(f"{said}: {path / '**'}")
        print(f"note: {said}", file=sys.stderr, flush=True)
    return there or None


def _of_one_sort(path: Path, files: list[Path]) -> list[Path]:
    """Return the files in markup, or the others, whichever have more bytes; a note says so.

    A README beside much data is not the text.
    """
    marked = [file for file in files if kind_of(file.name, True) in MARKUP.values()]
    data = [file for file in files if kind_of(file.name)]
    if not marked or not data:
        return files
    size_of_marked, size_of_data = (sum(file.stat().st_size for file in part) for part in (marked, data))
    by_headings = size_of_marked >= size_of_data
    names = f"{len(marked):,} files with headings", f"{len(data):,} files of data"
    chosen, left_out = names if by_headings else names[::-1]
    print(f"note: of {path} {chosen} are read, {left_out} are not", file=sys.stderr, flush=True)
    return marked if by_headings else data


def _below(folder: Path) -> Iterator[Path]:
    """Yield what lies in a folder and in those below it, links to folders followed, each folder once.

    Hidden files and folders are left out: locks, work folders.
    """

    def refuse(error: OSError) -> None:
        raise UserError(f"source {error.filename} cannot be read: {error.strerror}.")

    seen = set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(place, name) for name in names if not name.startswith("."))


def _of_preparation(file: Path) -> bool:
    """Return whether a file belongs to prepared data, finished or not: its manifest, pairs, recipe or
    tokenizer."""
    in_tokenizer = file.parent.name == "tokenizer"
    prepared = file.parent.parent if in_tokenizer else file.parent
    if not (file.suffix == ".json" if in_tokenizer else file.name in (MANIFEST, PAIRS, RECIPE)):
        return False
    return (prepared / ".work").is_dir() or (
        (prepared / MANIFEST).is_file() and (prepared / "tokenizer").is_dir()
    )


def _plan_file(number: int, source: Source, file: Path, records: bool, structure: bool) -> list[ReadTask]:
    kind = source.format if source.format != "auto" else kind_of(file.name, not records)
    if kind is None:
        _refuse_unread([file])
        how = f"""--source '[{{source: "{source.source}", format: text}}]'"""
        raise UserError(f"source {file}: give its `format`, as in {how} (or jsonl, csv, tsv, parquet).")
    if not os.access(file, os.R_OK):
        raise UserError(f"source {file} cannot be read: permission denied.")
    stored = file.stat().st_size
    if stored == 0:
        return []
    size = int(stored * _INFLATION.get(file.suffix.lower(), 1.0))
    if kind == "parquet":
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(file) as table:
                groups, columns = table.num_row_groups, table.schema_arrow.names
        except Exception as error:
            raise UserError(f"source {file} is not a readable parquet file ({error}).") from error
        if not records and not structure and source.text_key not in columns:
            raise UserError(
                f"source {file} has no column {source.text_key!r}; it has {', '.join(columns)}. "
                f"{source.how_to_set('text_key')}"
            )
        return _striped(number, kind, str(file), size, limit=groups)
    if kind in MARKUP.values():
        return _striped(number, kind, str(file), size, limit=1)
    if kind == "text" and source.markup != "none":
        raise UserError(f"source {file}: `markup` is of rows with fields; name HTML {file.stem}.html instead")
    require_utf8(file)
    if kind == "jsonl" and is_array(file):
        limit = 1 if source.layout == "passages" else MAX_STRIPES
        return _striped(number, kind, str(file), size, limit, "array")
    layout = source.layout if kind == "text" else "lines"
    width = 0
    if layout == "auto" or (kind == "text" and layout != "lines" and source.unwrap == "auto"):
        head = read_head(file)
        width = margin(head) if source.unwrap == "auto" else 0
        if layout == "auto":
            layout = "lines" if records else detect_layout(head)
            if width and layout == "lines" and not records:
                layout = "passages"
    # Of a plain file every task reads its own byte range; a compressed one is decompressed once per stripe.
    # So is csv read: a quoted field may hold line breaks, and only the whole file tells.
    limit = MAX_STRIPES if kind in ("csv", "tsv") or file.suffix in COMPRESSIONS else 4096
    if kind in ("jsonl", "csv", "tsv") and source.layout == "passages":
        limit = 1  # stripes take every S-th record, which would part neighbours
    tasks = _striped(number, kind, str(file), size, limit=limit, layout=layout)
    return [replace(task, width=width) for task in tasks]


def _refuse_unread(files: list[Path]) -> None:
    """Raise UserError if there is a file that text is made of, or one in markup, of which records are wanted.

    Read as text they have marks.
    """
    for file in files:
        if (markup := kind_of(file.name, marked=True)) in MARKUP.values():
            raise UserError(
                f"source {file} is {markup}, which holds no records: `clearly prepare --pairs structure` "
                "makes pairs of its headings and sections, and --unit sentence reads its sentences, without "
                "marks"
            )
        if remedy := _CONVERTED.get(_ending(file.name)):
            text = shlex.quote(str(file.with_suffix(".txt")))
            what = remedy.format(file=shlex.quote(str(file)), text=text)
            raise UserError(f"source {file}: files of {_ending(file.name)} are not read; {what}")


def _hub_file(name: str, revision: str | None) -> Path:
    """Return where a file of a dataset on the hub is on this machine, after downloading it if need be."""
    from huggingface_hub import hf_hub_download

    owner, dataset, file = name[4:].split("/", 2)
    fault = hub_fault()
    repository = f"{owner}/{dataset}"
    try:
        found = hf_hub_download(
            repository, file, repo_type="dataset", revision=revision, local_files_only=bool(fault)
        )
        return Path(found)
    # its HTTP library's kinds, which differ by version, and the hub's: no network, no such file
    except Exception as error:
        said = f"{fault}." if fault else str(error).splitlines()[0]
        raise UserError(
            f"source {name} cannot be fetched: {said} Check the name and the network. "
            f"Without one, download {file} elsewhere (https://huggingface.co/datasets/{repository}) and "
            "give its path as the source; HF_HUB_OFFLINE=1 takes what the hub's cache holds"
        ) from error


def _in_cache(name: str) -> bool:
    """Return whether the cache of `datasets` on this machine has anything of a data set."""
    from datasets.config import HF_DATASETS_CACHE
    from datasets.naming import camelcase_to_snakecase

    owner, _, last = name.rpartition("/")
    folder = "___".join([*([owner] if owner else []), camelcase_to_snakecase(last)])
    return (Path(HF_DATASETS_CACHE) / folder).is_dir()


def _plan_hub(number: int, source: Source, name: str) -> list[ReadTask]:
    import datasets

    try:
        # of a folder of that name, or a copy in its cache, `datasets` needs no hub
        if not Path(name).is_dir() and not _in_cache(name) and (fault := hub_fault()):
            raise ConnectionError(fault)
        builder = datasets.load_dataset_builder(name, source.subset, revision=source.revision)
        splits = builder.info.splits
        if source.streaming:
            files = builder.as_streaming_dataset(split=source.split).num_shards
    # datasets raises a dozen kinds: no network, no such name, split or configuration
    except Exception as error:
        subset = f" ({source.subset})" if source.subset else ""
        raise UserError(
            f"source hub:{name}{subset}, split {source.split}, cannot be opened: {error}. Check the name, "
            "the subset and the network. Without one, download it elsewhere "
            f"(https://huggingface.co/datasets/{name}) and give the folder of its files as the source; "
            "HF_HUB_OFFLINE=1 takes what the hub's cache holds"
        ) from error
    size = int(splits[source.split].num_bytes) if splits and source.split in splits else 0
    if source.streaming:  # a stream is read file by file
        return _striped(number, "hub", name, size or files * TASK_BYTES, stripes=files)
    limit = 1 if source.layout == "passages" else 4096
    return _striped(number, "hub", name, size or 16 * TASK_BYTES, limit)


def _striped(
    number: int,
    kind: str,
    place: str,
    size: int,
    limit: int = 4096,
    layout: str = "lines",
    stripes: int | None = None,
) -> list[ReadTask]:
    stripes = stripes or max(1, min(limit, math.ceil(size / TASK_BYTES)))
    return [
        ReadTask(number, kind, place, stripe, stripes, size=size // stripes, layout=layout)
        for stripe in range(stripes)
    ]
