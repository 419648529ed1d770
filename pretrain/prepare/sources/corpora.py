"""What a corpus is made of: the typed data configuration, the sources behind it, and the tasks that read
them.

A source is cut into tasks by its own size alone, never by the number of workers: the same corpus gives the
same tasks, and so the same shards, on a laptop and on a cluster.
"""

from __future__ import annotations

import glob
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pretrain.common.errors import UserError
from pretrain.data.manifest import MANIFEST

# beside prepared data: the config that a training gave to the preparation that it started
RECIPE = "prepare.json"
TASK_BYTES = 16 << 20  # text that one reading task handles, about
MAX_STRIPES = 8  # a compressed file is decompressed once per stripe, so not too many of them
# text bytes per stored byte, about
_INFLATION = {".gz": 3.3, ".zst": 3.3, ".bz2": 4.0, ".xz": 4.0, ".parquet": 2.0}
COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
_KINDS = {".txt": "text", ".text": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
          ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv"}  # fmt: skip
_WEIGHT = re.compile(r"^(.*[^@])@(\d+(?:\.\d+)?)$")


class Source(BaseModel):
    """One corpus of a mixture. Written short as `PLACE` or `PLACE@WEIGHT`."""

    model_config = ConfigDict(extra="forbid")

    source: str = Field(
        description="'embedded' (documentation of the installed Python packages), a file, folder or glob "
        "(text, jsonl, csv, tsv, "
        "parquet; all but parquet also as .gz, .zst, .bz2 and .xz), a folder of datasets' save_to_disk, or "
        "a Hugging Face name "
        "as hub:OWNER/NAME"
    )
    weight: float = Field(
        1.0,
        gt=0,
        description="how often an epoch shows each of its sequences: 2 means twice, 0.3 keeps a fixed 30% "
        "of them, chosen by "
        "hash. Held-out data is never repeated",
    )
    format: Literal["auto", "text", "jsonl", "parquet", "csv", "tsv"] = Field(
        "auto", description="auto: by the file's name"
    )
    layout: Literal["auto", "lines", "paragraphs", "passages"] = Field(
        "auto",
        description="documents in a text file: one a line; lines with a blank line between documents; or "
        "passages, running text cut every 32 kB. auto: paragraphs if there are blank lines, else lines; for "
        "unit record: lines. "
        "In other formats a record is a document, and passages joins records that follow each other, as the "
        "sentences "
        "of a book that are a row each",
    )
    unwrap: bool = Field(
        False, description="line breaks inside a document are soft; blank lines end paragraphs"
    )
    text_key: str = Field(
        "text", description="field with the text, for jsonl, csv, tsv, parquet and datasets"
    )
    positive_key: str = Field("positive", description="of records: field with a text that means the same")
    negative_key: str = Field(
        "negative", description="of records: field with a text that means something else"
    )
    augmented_key: str = Field(
        "augmented", description="of records: field with the text after an augmentation"
    )
    label_key: str = Field("label", description="of records: field with a label, a whole number from 0 on")
    other_fields: Literal["refuse", "ignore"] = Field(
        "refuse",
        description="of records: what to do about other fields; one that may be a misspelt name is refused "
        "either way",
    )
    subset: str | None = Field(None, description="Hugging Face configuration name, as 20231101.en")
    split: str = Field("train", description="Hugging Face split")
    revision: str | None = Field(None, description="Hugging Face revision: a commit to pin, or a branch")
    streaming: bool = Field(
        True, description="read a hub dataset as it downloads, without keeping it on disk"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = _WEIGHT.match(value)
        if match and not Path(value).exists():
            return {"source": match[1], "weight": float(match[2])}
        return {"source": value}

    def __str__(self) -> str:
        return self.source if self.weight == 1 else f"{self.source}@{self.weight:g}"


class DataConfig(BaseModel):
    """How text becomes shards. Everything here is part of what the shards are; executor and workers are
    not."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    sources: list[Source] = Field(
        default_factory=lambda: [Source(source="embedded")],
        description="the corpora of the mixture: names, comma-separated, each with @WEIGHT if not 1; or a "
        "list of mappings in "
        "YAML. Where two hold the same sentence, the first one keeps it",
    )
    unit: Literal["sentence", "sequence", "document", "record"] = Field(
        "sentence",
        description="sentence: every sequence is one sentence; sequence: full sentences of a document, "
        "packed up to "
        "max_length, crossing into the next document after an extra separator (RoBERTa's FULL-SENTENCES); "
        "document: every "
        "sequence is a document, cut behind max_length; record: a line of a text file, or a row of another "
        "source with a text "
        "and optionally a positive, a negative, an augmented text and a label, as it is",
    )
    max_length: int = Field(64, ge=8, description="longest sequence in tokens, special tokens included")
    long_sentences: Literal["auto", "truncate", "split", "drop"] = Field(
        "auto",
        description="a sentence (of records: a text) longer than max_length; auto: split (units sequence "
        "and document, which "
        "take nothing else) or truncate; dropping a text drops its record. Counted in the manifest "
        "either way",
    )
    tokenizer: str | None = Field(
        None, description="existing tokenizer: folder or Hugging Face name; [DEL] is added. none: train one"
    )
    tokenizer_type: Literal["bpe", "wordpiece"] = Field(
        "bpe", description="trained tokenizer: byte-level BPE or WordPiece"
    )
    vocabulary: int = Field(
        16384, ge=300, description="vocabulary of a trained tokenizer, rounded up to a multiple of 64"
    )
    exact_vocabulary: bool = Field(False, description="do not round the vocabulary")
    lowercase: bool = Field(False, description="trained tokenizer lower-cases and strips accents")
    tokenizer_megabytes: float = Field(
        24, gt=0, description="text sample to train the tokenizer on, fixed by hash"
    )
    heldout: float = Field(
        0.01,
        ge=0,
        lt=0.5,
        description="share of documents held out, chosen by hash: at least one of two, and of a single one "
        "its last "
        "sentences. 0: nothing",
    )
    min_words: int = Field(
        4,
        ge=1,
        description="shorter sentences are no prose, and are dropped; characters count in Chinese and the "
        "like. (In "
        "units sequence and document: see min_prose. Records are never dropped)",
    )
    min_letters: float = Field(
        0.6,
        ge=0,
        le=1,
        description="smallest share of letters among a sentence's non-blank characters, to be prose",
    )
    min_prose: float = Field(
        0.5,
        ge=0,
        le=1,
        description="units sequence and document, whose running text stays whole: smallest share of a "
        "document's characters that stand in sentences of prose; a document below is dropped, others "
        "lose nothing",
    )
    dedup: Literal["exact", "minhash", "none"] = Field(
        "exact",
        description="exact: every sentence (or record) once over all sources; minhash: near-duplicate "
        "documents removed as well "
        "(datatrove); none: only what also occurs in held-out text is removed from train. In units sequence "
        "and document, "
        "documents are compared, not sentences",
    )
    seed: int = Field(
        0, ge=0, description="seed of the shuffle, the held-out choice and the weights' sampling"
    )
    chunk_tokens: int = Field(65536, ge=64, description="tokens in a chunk, about")
    bucket_megabytes: float = Field(
        64,
        gt=0,
        description="most text that a shard-writing task holds at a time; it needs 0.3 GB and 8 times that",
    )

    annotate: str | None = Field(
        None,
        description="spaCy pipeline, by name or folder: text and parse are kept beside the tokens, which "
        "augmentations of text "
        "(pi, mv, dn, neg ...) need; auto: $CLEAR_PARSER, or else one that is installed. For units sentence "
        "and record",
    )

    @field_validator("sources", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, Source | dict):
            value = [value]
        if not value:
            raise ValueError("no source given: name at least one, as 'embedded' or a text file")
        return value

    @model_validator(mode="after")
    def _records_stay_whole(self) -> DataConfig:
        refused = {
            "long_sentences: split": self.long_sentences == "split",
            "dedup: minhash": self.dedup == "minhash",
            "layout: passages": any(source.layout == "passages" for source in self.sources),
        }
        for setting, given in refused.items():
            if given and self.unit == "record":
                raise ValueError(
                    f"{setting} is not for unit record, whose texts stay as they are and belong together"
                )
        return self

    @model_validator(mode="after")
    def _running_text_stays_whole(self) -> DataConfig:
        if self.keeps_documents and self.long_policy != "split":
            raise ValueError(
                f"long_sentences: {self.long_sentences} would take text out of the middle of documents, "
                f"which unit {self.unit} "
                "keeps whole: leave it at auto, which splits a sentence that is too long"
            )
        return self

    @model_validator(mode="after")
    def _one_text_a_sequence(self) -> DataConfig:
        if self.annotate is not None and (self.keeps_documents or self.long_sentences == "split"):
            setting = f"unit {self.unit}" if self.keeps_documents else "long_sentences: split"
            raise ValueError(
                f"annotate is not for {setting}: a sequence there is not one whole text, and has no parse "
                "of its own"
            )
        return self

    @property
    def long_policy(self) -> str:
        """`long_sentences` with auto resolved."""
        if self.long_sentences != "auto":
            return self.long_sentences
        return "split" if self.keeps_documents else "truncate"

    @property
    def keeps_documents(self) -> bool:
        """Whether the sentences of a document stay together."""
        return self.unit in ("sequence", "document")


@dataclass(frozen=True)
class Task:
    """A piece of a source that one task reads: stripe `stripe` of `stripes` of `place`.

    kind: text | jsonl | csv | tsv | parquet | disk | hub | embedded. size: text bytes, estimated.
    """

    source: int
    kind: str
    place: str
    stripe: int
    stripes: int
    size: int
    layout: str = "lines"


def plan_tasks(sources: list[Source], records: bool = False) -> list[Task]:
    """The reading tasks of a mixture, in an order fixed by the sources. records: of
    `pretrain.prepare.sources.records`, not documents.

    Raises: UserError for a source that is missing, empty, of unknown type, or not available offline.
    """
    tasks: list[Task] = []
    for number, source in enumerate(sources):
        tasks += _plan_source(number, source, records)
    if records and any(task.kind == "embedded" for task in tasks):
        raise UserError("source embedded holds no records: unit record reads files and datasets.")
    return tasks


def _plan_source(number: int, source: Source, records: bool) -> list[Task]:
    name = source.source
    if name == "embedded":
        from pretrain.prepare.sources.embedded import python_files

        size = sum(size for _, size in python_files())
        if not size:
            raise UserError(
                "source embedded: no Python package is installed in this environment; name a text file."
            )
        return _striped(number, "embedded", name, size // 20, stripes=16)
    if name.startswith("hub:"):
        return _plan_hub(number, source, name[4:])
    path = Path(name).expanduser()
    if _is_saved_dataset(path):
        size = sum(f.stat().st_size for f in path.rglob("*.arrow"))
        if not size:
            raise _empty(path)
        return _striped(number, "disk", str(path), size, 1 if source.layout == "passages" else 4096)
    files = _files(path)
    if files is None:
        if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith(".") and not _kind_of(name):
            return _plan_hub(number, source, name)
        parent = path.parent
        while not parent.exists():
            parent = parent.parent
        raise UserError(
            f"source {name}: no such file, folder or glob match (nothing there below {parent}). A Hugging "
            "Face dataset is "
            "written hub:OWNER/NAME; the corpus that needs no file is 'embedded'."
        )
    tasks = []
    for file in files:
        tasks += _plan_file(number, source, file, records)
    if not tasks:
        raise _empty(path)
    return tasks


def _empty(path: Path | str) -> UserError:
    return UserError(
        f"source {path} is empty: there is no text to prepare. Check the path, or the download behind it."
    )


def _is_saved_dataset(path: Path) -> bool:
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def _kind_of(name: str) -> str | None:
    stem, suffix = os.path.splitext(name)
    return _KINDS.get((os.path.splitext(stem)[1] if suffix in COMPRESSIONS else suffix).lower())


def _files(path: Path) -> list[Path] | None:
    """Return the files of a path or glob, sorted; None if there is nothing of that name. Hidden ones are not
    looked for."""
    if path.is_dir():
        found = sorted(
            file
            for file in path.rglob("*")
            if file.is_file()
            and _kind_of(file.name)
            and not _hidden(file, path)
            and not _of_preparation(file)
        )
        if not found:
            raise UserError(
                f"source {path}: the folder holds no corpus file ({', '.join(_KINDS)}; "
                f"{', '.join(COMPRESSIONS)})."
            )
        return found
    if path.is_file():
        return [path]
    found = sorted(Path(file) for file in glob.glob(str(path), recursive=True) if os.path.isfile(file))
    return found or None


def _hidden(file: Path, folder: Path) -> bool:
    """Whether a file in a folder, or a folder on the way to it, is hidden: locks, work folders, checkpoints
    of notebooks."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _of_preparation(file: Path) -> bool:
    """Whether a file belongs to prepared data, finished or not, and is no text: its manifest, recipe or
    tokenizer."""
    in_tokenizer = file.parent.name == "tokenizer"
    home = file.parent.parent if in_tokenizer else file.parent
    if not (file.suffix == ".json" if in_tokenizer else file.name in (MANIFEST, RECIPE)):
        return False
    return (home / ".work").is_dir() or ((home / MANIFEST).is_file() and (home / "tokenizer").is_dir())


def _plan_file(number: int, source: Source, file: Path, records: bool) -> list[Task]:
    kind = source.format if source.format != "auto" else _kind_of(file.name)
    if kind is None:
        raise UserError(
            f"source {file}: its name does not tell the format; give the source `format: text`, jsonl, csv, "
            "tsv or parquet."
        )
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
        if not records and source.text_key not in columns:
            raise UserError(
                f"source {file} has no column {source.text_key!r}; it has {', '.join(columns)}. Set text_key."
            )
        return _striped(number, kind, str(file), size, limit=groups)
    layout = source.layout if kind == "text" else "lines"
    if layout == "auto" and records:
        layout = "lines"
    if layout == "auto":
        from pretrain.prepare.sources.readers import detect_layout

        layout = detect_layout(file)
    # Of a plain file every task reads its own byte range; a compressed one is decompressed once per stripe.
    # So is csv read: a quoted field may hold line breaks, and only the whole file tells.
    limit = MAX_STRIPES if kind in ("csv", "tsv") or file.suffix in COMPRESSIONS else 4096
    if kind in ("jsonl", "csv", "tsv") and source.layout == "passages":
        limit = 1  # stripes take every S-th record, which would part neighbours
    return _striped(number, kind, str(file), size, limit=limit, layout=layout)


def _plan_hub(number: int, source: Source, name: str) -> list[Task]:
    import datasets

    try:
        builder = datasets.load_dataset_builder(name, source.subset, revision=source.revision)
        splits = builder.info.splits
        if source.streaming:
            files = builder.as_streaming_dataset(split=source.split).num_shards
    # datasets raises a dozen kinds: no network, no such name, split or configuration
    except Exception as error:
        subset = f" ({source.subset})" if source.subset else ""
        raise UserError(
            f"source hub:{name}{subset}, split {source.split}, cannot be opened: {error}. Check the name, "
            "the subset and the "
            "network; a copy on disk is named by its folder."
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
) -> list[Task]:
    stripes = stripes or max(1, min(limit, math.ceil(size / TASK_BYTES)))
    return [Task(number, kind, place, stripe, stripes, size // stripes, layout) for stripe in range(stripes)]
