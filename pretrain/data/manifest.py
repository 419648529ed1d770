"""`manifest.json`: what a prepared folder says that it holds, checked before anything is believed.

A manifest may come from elsewhere with the data, or be damaged. So its types, its sums and its paths are
checked when it is read, and the sizes of the files that it lists at the start of a run.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from augment.core.errors import excerpt, shortened
from pretrain.common.errors import UserError

FORMAT = "clear-shards-1"
MANIFEST = "manifest.json"
SPLITS = ("train", "heldout")
PAIRS = "heldout_pairs.json"
"""Beside the manifest, of unit sentence: [first sentence, the others] of each held-out paragraph."""
PREPARATION = 9
"""Version of what preparation does. Raise it with a change after which the same text and config give other
shards, or after which a stage keeps other files for the others under the same name. Manifests from before it
have none: they count as 1."""
_SHOWN = 5  # faults that one message lists


def path_inside(path: str) -> str:
    """Return a relative path that stays inside its folder. Raises: ValueError for any other."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"the path {excerpt(path)} must be relative and stay inside the data folder")
    os.fsencode(path)  # a ValueError for a text that no file system takes
    return path


_Path = Annotated[str, AfterValidator(path_inside)]
_Count = Annotated[int, Field(ge=0, lt=1 << 62)]
_Positive = Annotated[int, Field(ge=1, lt=1 << 62)]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    """Strict types; what else a manifest says (how the data was made) is left as it is."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Shard(_Part):
    file: _Path
    bytes: _Count
    sha256: _Sha256
    chunks: list[Annotated[tuple[_Count, _Positive, _Positive, _Positive, _Sha256], Field(strict=False)]]

    @model_validator(mode="after")
    def _chunks_lie_in_the_file(self) -> "_Shard":
        for number, (offset, size, *_) in enumerate(self.chunks):
            if offset + size > self.bytes:
                end = f"{offset + size:,} of {self.bytes:,}"
                raise ValueError(f"{shortened(self.file)}: chunk {number} ends at byte {end}")
        return self


class _Split(_Part):
    sequences: _Count
    tokens: _Count
    chunks: _Count
    shards: list[_Shard]

    @model_validator(mode="after")
    def _sums_agree(self) -> "_Split":
        rows = [row for shard in self.shards for row in shard.chunks]
        listed = {
            "sequences": sum(row[2] for row in rows),
            "tokens": sum(row[3] for row in rows),
            "chunks": len(rows),
        }
        for name, value in listed.items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} is {getattr(self, name):,}, and the chunks listed have {value:,}")
        return self


class _Annotation(_Part):
    language: str
    parser: str = ""


class _Cache(_Part):
    rules: str = ""
    resources: dict[str, str] = {}
    content: dict[str, str] = {}
    parser: _Annotation | None = None


class _Manifest(_Part):
    format: Literal["clear-shards-1"]
    preparation: _Positive | None = None
    unit: Literal["sentence", "sequence", "document", "record"]
    max_length: _Positive
    vocabulary_size: _Positive
    token_dtype: Literal["uint16", "int32"]
    tokenizer: _Path
    tokenizer_hash: str
    columns: list[str] = ["text"]
    labels: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    label_names: list[str] | None = None
    scores: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    annotation: _Annotation | None = None
    cache: _Cache | None = None
    splits: dict[str, _Split]

    @model_validator(mode="after")
    def _text_first(self) -> "_Manifest":
        if self.columns[:1] != ["text"] or len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns is {excerpt(self.columns)}: 'text' first, and no name twice")
        return self


def read_manifest(folder: str | Path) -> dict:
    """Read and check a prepared folder's manifest: keys, types, paths, sums. All faults are one error."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        unfinished = (Path(folder) / ".work").is_dir()
        why = "its preparation did not finish; run it again" if unfinished else "it has no manifest.json"
        raise UserError(f"{folder} is not prepared data: {why}. Prepare it: clearly prepare --out {folder}")
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error
    if isinstance(manifest, dict) and manifest.get("format") != FORMAT:
        found = manifest.get("format")
        raise UserError(f"{path} has format {excerpt(found)}, not {FORMAT!r}. Prepare the data again.")
    try:
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        raise _damaged(path, _faults(error)) from None
    return manifest


def _damaged(path: Path, why: object) -> UserError:
    return UserError(f"{path} is damaged: {why}. Restore it from a copy, or prepare the data again.")


def preparation_of(manifest: dict) -> int | None:
    """Return the version of preparation that made the data; None of data that no preparation made."""
    return manifest.get("preparation", 1 if manifest.get("config") or manifest.get("cache") else None)


def outdated(folder: str | Path, manifest: dict) -> str | None:
    """Say in one line that an earlier version made the data, and how to make it anew; else None."""
    found = preparation_of(manifest)
    if found is None or found >= PREPARATION:
        return None
    anew = "prepare it anew with the same flags and --overwrite"
    if manifest.get("cache"):
        anew = "prepare its data anew, and make it of that in another folder (clearly cache)"
    return (
        f"{folder} was prepared by an earlier version ({found}, this is {PREPARATION}), in other ways; it is "
        f"used as it is, and runs that began on it need it so. For a new run, {anew}"
    )


def _faults(error: ValidationError) -> str:
    found = []
    for fault in error.errors(include_url=False)[:_SHOWN]:
        place = shortened(".".join(map(str, fault["loc"])))
        what = fault["msg"].removeprefix("Value error, ")
        if fault["type"] not in ("missing", "value_error"):
            what += f" (got {str(fault['input'])[:60]!r})"
        found.append(f"{place}: {what}" if place else what)
    more = error.error_count() - len(found)
    return "; ".join(found) + (f"; and {more} more" if more > 0 else "")


def require_files(folder: str | Path, manifest: dict) -> None:
    """Compare the size of every shard with the manifest: one look at each file, before any work."""
    wrong = list(_wrong_files(Path(folder), manifest))
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        lacking = f"{'; '.join(wrong[:_SHOWN])}{more}"
        raise UserError(f"{folder} lacks files of its manifest: {lacking}. Restore them")


def _wrong_files(folder: Path, manifest: dict) -> Iterator[str]:
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            name = shortened(shard["file"])
            try:
                size = os.stat(folder / shard["file"]).st_size
            except FileNotFoundError:
                yield f"{name} is missing"
            except OSError as error:
                yield f"{name} cannot be read ({error.strerror})"
            else:
                if size != shard["bytes"]:
                    yield f"{name} has {size:,} bytes instead of {shard['bytes']:,}"
