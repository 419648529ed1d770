"""Where the evaluation data lies: one folder, `--data DIR` or the environment's CLEAR_DATA.

    SentEval/   SentEval's data/downstream (STS, SICK, MR, CR, SUBJ, MPQA, SST, TREC, MRPC, SNLI) and probing/
    GLUE/       one folder a task, the official tsv files
    clustering/ VaSCL's csv files (text,label)
    intents/    SNIPS, ATIS, HWU64 (seq.in, label), BANKING77 (csv), CLINC150 (json)
    ANLI/       R1, R2, R3 (jsonl)
    NLI/        SNLI and MultiNLI (jsonl)
    zh/STS-B/   cnsd-sts-{train,dev,test}.txt
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pretrain.errors import UserError


def data_root(data: str | Path | None = None) -> Path:
    """The data folder: `data`, or else the environment's CLEAR_DATA.

    Raises:
        UserError: neither is given, or it is no folder.
    """
    named = str(data) if data else os.environ.get("CLEAR_DATA", "")
    if not named:
        raise UserError("no evaluation data: give --data DIR, or set CLEAR_DATA to the folder that holds SentEval/, GLUE/, ...")
    folder = Path(named)
    if not folder.is_dir():
        raise UserError(f"the data folder {folder} is not there; --data DIR or CLEAR_DATA must name one that is")
    return folder


def find(data: str | Path | None, *parts: str) -> Path:
    """The file or folder `parts` below the data folder.

    Raises:
        UserError: it is not there; the message says where it was sought and how to see what is.
    """
    root = data_root(data)
    path = root.joinpath(*parts)
    if not path.exists():
        raise UserError(f"{path} is not there; `python -m finetune.data check {root}` says what is missing and where to get it")
    return path


def lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Lines without their line ends. Only \\n ends a line: str.splitlines would also cut at a form feed or U+2028.

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
            raise UserError(f"{path}, after line {number}: not {encoding} text ({error.reason}); the file is damaged") from None
