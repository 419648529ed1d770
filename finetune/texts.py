"""Read the sentences of the text that a flag --text names."""

import os
import sys
from pathlib import Path

from pretrain.benchmarks.files import is_file_of_lines, read_sentences
from pretrain.common.errors import UserError
from pretrain.common.typed_values import parse_value
from pretrain.config.data import Source, data_config
from pretrain.data.manifest import MANIFEST
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.readers import read_head
from pretrain.prepare.sources.rows import RowFaults
from pretrain.prepare.sources.structured import note_tags, structured
from pretrain.prepare.wrapping import margin


def read_lines(text: str) -> list[str]:
    """Return the different sentences of a file, one per line."""
    _refuse_prepared(text)
    if os.path.isdir(text) or not is_file_of_lines(Path(text)):
        kinds = "folders, text, Markdown, jsonl, csv and parquet files, and data sets of the hub"
        raise UserError(
            f"--text {text} is no file of sentences, one per line: add --split, which reads {kinds}"
        )
    if not os.path.isfile(text):  # a list or a glob, perhaps, which may be longer than a path
        raise UserError(f"--text {text}: there is no such file; --split reads several, and globs")
    found = read_sentences(Path(text), "text")
    if width := margin(read_head(Path(text))):
        note = f"note: {text} is hard-wrapped at column {width}, and each line is searched as a sentence"
        print(f"{note}; --split joins the lines of paragraphs", file=sys.stderr)
    return found


def read_split(text: str) -> list[str]:
    """Return the different sentences of texts, in order, cleaned and split as a preparation does it.

    What cannot be read is printed to standard error.

    Args:
        text: sources of `clearly prepare`, as typed there: files, folders, globs and data sets of the hub, by
            commas, or a list of mappings in YAML.
    """
    _refuse_prepared(text)
    faults, found = RowFaults(), dict[str, None]()
    given = parse_value(text, list[Source], "--text")
    try:
        sources = data_config({"sources": given}).sources
        tasks = plan_tasks(sources, structure=True, whole=True)
        note_tags(tasks, sources)
        for task in tasks:
            of_task = RowFaults(faults.counts)  # each names a few of its own
            for document in structured(task, sources[task.source], of_task, whole=True):
                found |= dict.fromkeys(sentences_of(document.whole))
            faults.named += of_task.named
    except UserError as error:
        # a preparation's flag for the same
        raise UserError(f"--text {text}: {error}".replace("--source ", "--text ")) from error
    faults.print()
    if not found:
        raise UserError(f"--text {text}: there is no sentence in it")
    return list(found)


def _refuse_prepared(folder: str) -> None:
    if os.path.isfile(os.path.join(folder, MANIFEST)):
        raise UserError(
            f"--text {folder} is prepared data, which holds no text: name its sources, with --split"
        )
