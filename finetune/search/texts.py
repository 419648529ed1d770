"""Read what is searched: a file with a sentence a line, or texts that are split into sentences."""

from __future__ import annotations

from pathlib import Path

from finetune.files import is_file_of_lines, read_sentences
from pretrain.common.errors import UserError
from pretrain.config.data import data_config
from pretrain.data.manifest import MANIFEST
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.sources.documents import Faults, documents
from pretrain.prepare.sources.planning import plan_tasks


def read_lines(text: Path) -> list[str]:
    """Return the different sentences of a file with one a line.

    Raises:
        UserError: a folder, a file of another form, or as `read_sentences`.
    """
    _refuse_prepared(text)
    if text.is_dir() or (text.is_file() and not is_file_of_lines(text) and text.suffix != ".zip"):
        what = "a folder" if text.is_dir() else "no file of sentences, one a line"
        raise UserError(
            f"--text {text} is {what}: add --split, which reads text, jsonl, csv and parquet files and "
            "splits their texts into sentences"
        )
    return read_sentences(text, "text")


def read_split(text: str) -> list[str]:
    """Return the different sentences of texts, in order, cleaned and split as a preparation does it.

    text: sources of `clearly prepare`, by commas: files, folders, globs, data sets of the hub.

    Raises:
        UserError: a source that is not there, or cannot be read; no sentence.
    """
    _refuse_prepared(Path(text))
    sources = data_config({"sources": text}).sources
    try:
        found = {
            sentence: None
            for task in plan_tasks(sources)
            for document in documents(task, sources[task.source], Faults())
            for sentence in sentences_of(document, sources[task.source].unwrap)
        }
    except UserError as error:
        raise UserError(f"--text {text}: {error}") from error
    if not found:
        raise UserError(f"--text {text}: there is no sentence in it")
    return list(found)


def _refuse_prepared(folder: Path) -> None:
    if (folder / MANIFEST).is_file():
        raise UserError(
            f"--text {folder} is prepared data, which holds tokens and no text: name the files that it was "
            "prepared from, with --split"
        )
