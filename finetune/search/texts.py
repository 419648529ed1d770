"""Read what is searched: a file with a sentence a line, or texts that are split into sentences."""

import os
from collections.abc import Callable
from pathlib import Path

from finetune.files import is_file_of_lines, read_sentences
from pretrain.common.errors import UserError
from pretrain.common.typed_values import typed
from pretrain.config.data import Source, data_config
from pretrain.data.manifest import MANIFEST
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.sources.documents import Faults, documents
from pretrain.prepare.sources.planning import plan_tasks

_MOST_NAMED = 20  # of what cannot be read


def read_lines(text: str) -> list[str]:
    """Return the different sentences of a file with one a line.

    Raises:
        UserError: a folder, a file of another form, or as `read_sentences`.
    """
    _refuse_prepared(text)
    path, is_folder = Path(text), os.path.isdir(text)
    if is_folder or (os.path.isfile(text) and not is_file_of_lines(path) and path.suffix != ".zip"):
        what = "a folder" if is_folder else "no file of sentences, one a line"
        raise UserError(
            f"--text {text} is {what}: add --split, which reads text, jsonl, csv and parquet files and "
            "splits their texts into sentences"
        )
    if not os.path.isfile(text):
        raise UserError(
            f"--text {text}: there is no such file; several, globs, and data sets of the hub are read with "
            "--split"
        )
    return read_sentences(path, "text")


def read_split(text: str, say: Callable[[str], None]) -> list[str]:
    """Return the different sentences of texts, in order, cleaned and split as a preparation does it.

    Args:
        text: sources of `clearly prepare`, as typed there: files, folders, globs and data sets of the hub, by
            commas, or a list of mappings in YAML.
        say: takes a line for what cannot be read.

    Raises:
        UserError: a source that is not there, or cannot be read; no sentence.
    """
    _refuse_prepared(text)
    faults, found = Faults(), dict[str, None]()
    given = typed(text, list[Source], "--text")
    try:
        sources = data_config({"sources": given}).sources
        for task in plan_tasks(sources):
            of_task = Faults(faults.counts)  # each names a few of its own
            for document in documents(task, sources[task.source], of_task):
                found |= dict.fromkeys(sentences_of(document))
            faults.named += of_task.named
    except UserError as error:
        # a preparation's flag for the same
        raise UserError(f"--text {text}: {error}".replace("--source ", "--text ")) from error
    for name, count in sorted(faults.counts.items()):
        say(f"note: {count:,} {name.replace('_', ' ')}")
    for fault in faults.named[:_MOST_NAMED]:
        say(f"  {fault}")
    if not found:
        raise UserError(f"--text {text}: there is no sentence in it")
    return list(found)


def _refuse_prepared(folder: str) -> None:
    if os.path.isfile(os.path.join(folder, MANIFEST)):
        raise UserError(
            f"--text {folder} is prepared data, which holds tokens and no text: name the files that it was "
            "prepared from, with --split"
        )
