"""What is written for users to read when their input is wrong."""

import codecs
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNPACKERS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
"""End of a compressed file's name -> the program that unpacks it."""
# letters of Western text, of which hardly three stand together; in a word what is none there: Polish "ł"
_LETTERS = re.compile(rb"[\x81-\x84\x86-\x90\x98-\x9f\xa1-\xaa\xac-\xba\xbc-\xff]+")
_SIGN = re.compile(rb"[a-z][\xb1\xb3\xb6\xb9\xbc\xbe\xbf][a-z]")


class UserError(Exception):
    """Bad input, found early: the message says what was wrong, where, and what to do about it.

    Entry points print the message alone, without a traceback, and exit with `exit_status`. Any function that
    reads what users give may raise it: docstrings name it where a caller must know.
    """

    exit_status = 2
    says_what_next = False
    """Whether the message says what is safe and what to type, of a run that it ends."""


class CollapsedEncoder(UserError):
    """All sentences have the same vector: no figure follows."""

    exit_status = 1


@contextmanager
def naming(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of some kinds into UserErrors: "WHAT: ERROR"."""
    try:
        yield
    except kinds as error:
        raise UserError(f"{what}: {error}") from error


def not_utf8(path: Path, start: bytes, place: str) -> str:
    """Return the message for a file that is not UTF-8 text: the command that converts it.

    start: bytes of the file from its beginning on, unpacked. place: what in it is not UTF-8, as "line 3".
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "UTF-16"
    elif b"\0" in start:
        return f"{path} is a binary file: it has bytes of zero. Name a text file."
    else:  # quotes and dashes of Windows are control characters in LATIN1
        encoding = "CP1252" if any(0x80 <= byte < 0xA0 for byte in start) else "LATIN1"
    guess = f"perhaps {encoding}. Convert it"
    runs = [len(run) for run in _LETTERS.findall(start)]
    if encoding != "UTF-16" and (sum(runs) < 2 * sum(n for n in runs if n > 2) or _SIGN.search(start)):
        encoding, known = "ENCODING", "CP1250, CP1251, KOI8-R, CP1255, CP932, EUC-JP, GB18030 or another"
        guess = f"nor Western. Convert it from its own encoding ({known}), and read what comes out"
    unpacker = UNPACKERS.get(path.suffix)
    plain = path.with_suffix("") if unpacker else path
    command = f"iconv -f {encoding} -t UTF-8"
    quoted = shlex.quote(str(path))
    command = f"{unpacker} -dc {quoted} | {command}" if unpacker else f"{command} {quoted}"
    converted = shlex.quote(str(plain.with_stem(f"{plain.stem}-utf8")))
    return f"{path} is not UTF-8 text ({place}), {guess}: {command} >{converted}"
