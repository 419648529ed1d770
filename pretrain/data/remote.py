"""Copy prepared data from a URL into a folder: its tokenizer, the shards of its manifest, and that last.

HTTP goes through `requests`, everything else (s3://, gs://, file://, memory:// ...) through fsspec, whose
package for a protocol the user installs (s3fs, gcsfs).
"""

import hashlib
import json
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from augment.core.waiting import within
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.data.manifest import MANIFEST, PAIRS, read_manifest
from pretrain.data.shard_writer import naming_full_disk

TIMEOUTS = (10.0, 30.0)
"""Seconds to wait for a connection, and for the next bytes of an answer."""
TRIES, FIRST_WAIT, LONGEST_WAIT = 7, 0.5, 30.0
"""How often a file is tried, and the seconds before the second try, which double up to the last of these."""
DEADLINE, SLOWEST = 120.0, 100_000
"""Seconds that one try may take, beside those of its bytes at the slowest rate, bytes per second."""
LARGEST = 1 << 30
"""Bytes of a file whose size the manifest does not say."""
_PIECE = 1 << 14  # a try that was given up ends when its thread has as many bytes
_FINAL = (400, 401, 403, 404, 405, 410)  # answers that another try does not change
_AT_ONCE = 4  # shards, each in memory until its sha256 is known
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")  # the first must be there


class Unreachable(UserError):
    """A file that could not be had, and why."""


def copy_prepared(url: str, folder: Path) -> None:
    """Copy the prepared data at a URL, or what a folder does not have of it yet; the manifest comes last."""
    url = url.rstrip("/")
    content = _read(f"{url}/{MANIFEST}")
    own = folder / MANIFEST
    if own.is_file() and own.read_bytes() != content:
        raise UserError(f"{folder} holds other prepared data than {url}: name another folder (--data)")
    with tempfile.TemporaryDirectory(prefix="manifest-") as place:
        replace_durably(Path(place) / MANIFEST, content)
        try:
            manifest = read_manifest(place)  # which checks it: paths that leave the folder, for instance
        except UserError as error:
            raise UserError(f"data.remote: {error}".replace(place, url)) from None
    shards = [shard for split in manifest["splits"].values() for shard in split["shards"]]
    missing = [shard for shard in shards if not _is_there(folder / shard["file"], shard["bytes"])]
    if own.is_file() and not missing:
        return
    size = sum(shard["bytes"] for shard in missing)
    print(f"copying {len(missing)} shards, {size / 1e9:.2f} GB, from {url}", file=sys.stderr, flush=True)

    def copy(name: str, shard: dict | None = None) -> None:
        found = _read(f"{url}/{name}", shard)
        make_folder((folder / name).parent)
        replace_durably(folder / name, found)

    copy(f"{manifest['tokenizer']}/{_TOKENIZER[0]}")
    for name in (*(f"{manifest['tokenizer']}/{name}" for name in _TOKENIZER[1:]), PAIRS):
        try:
            copy(name)
        except Unreachable:
            continue  # not every data has it
    with naming_full_disk(folder), ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda shard: copy(shard["file"], shard), missing))
    replace_durably(own, content)


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _is_whole(content: bytes, shard: dict | None) -> bool:
    if shard is not None:
        return hashlib.sha256(content).hexdigest() == shard["sha256"]
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def _read(place: str, shard: dict | None = None) -> bytes:
    """Return the content of a shard, or of a JSON file (None), whose size nothing says.

    shard: what the manifest says of it.

    Raises: Unreachable if another try could not help, UserError after all tries.
    """
    seconds, most = DEADLINE, LARGEST
    if shard is not None:
        seconds, most = DEADLINE + shard["bytes"] / SLOWEST, shard["bytes"]
    slow = f"waiting for {place}, up to {seconds:.0f} s"
    for failures in range(1, TRIES + 1):
        try:
            content = within(seconds, lambda: _read_once(place, most), slow)
            if _is_whole(content, shard):
                return content
            why = "what comes is damaged"
        except OSError as error:  # those of requests, too
            why = " ".join(str(error).split())[:400]
        if failures < TRIES:
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (failures - 1))
            time.sleep(wait * random.uniform(0.5, 1.5))
    raise UserError(f"data.remote: {place} cannot be read: {why} ({TRIES} tries)")


def _read_once(place: str, max_bytes: int) -> bytes:
    if place.startswith(("http://", "https://")):
        import requests

        with requests.get(place, timeout=TIMEOUTS, stream=True) as answer:
            if answer.status_code in _FINAL:
                said = f"{answer.status_code} {answer.reason}"
                raise Unreachable(f"data.remote: {place}: the server answers {said}")
            answer.raise_for_status()
            content = bytearray()
            for piece in answer.iter_content(_PIECE):
                content += piece
                if len(content) > max_bytes:
                    break
            return _at_most(max_bytes, bytes(content), place)
    import fsspec

    try:
        with fsspec.open(place, "rb") as stream:
            content = stream.read(max_bytes + 1)
    except (FileNotFoundError, PermissionError) as error:
        raise Unreachable(f"data.remote: {place}: {error}") from None
    except (ImportError, ValueError) as error:  # a protocol that nothing here speaks
        raise UserError(f"data.remote: {place} cannot be read: {error}") from None
    except Exception as error:  # every protocol has errors of its own
        raise OSError(str(error)) from error
    return _at_most(max_bytes, content, place)


def _at_most(max_bytes: int, content: bytes, place: str) -> bytes:
    if len(content) > max_bytes:
        raise Unreachable(f"data.remote: {place}: the server sends more than {max_bytes:,} bytes")
    return content
