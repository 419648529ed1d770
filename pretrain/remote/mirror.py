"""A folder here that stands for prepared data elsewhere: its manifest and tokenizer, and chunks as they come.

    MIRROR/manifest.json, MIRROR/tokenizer/    copies
    MIRROR/remote.json                         {"url": where from, "cache_bytes": how much to keep}
    MIRROR/chunks/ab/ab12...                   chunks that were read, by their sha256

Whatever opens a folder of prepared data opens a mirror, and reads the shards that are not in it from there.
"""

import json
from pathlib import Path, PurePosixPath

from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably, to_json
from pretrain.remote.chunks import RemoteChunks
from pretrain.remote.transport import Retries, Transport, Unreachable

REMOTE, MANIFEST = "remote.json", "manifest.json"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")  # the first must be there


def mirror(url: str, folder: Path, cache_bytes: int, retries: Retries | None = None) -> None:
    """Make a folder the mirror of prepared data at a URL, or check that it is one.

    cache_bytes: how many bytes of chunks to keep there; may change from one start to the next.

    Raises:
        UserError: the data cannot be read; or the folder holds other data, or a mirror of other data.
    """
    transport = Transport(url, retries)
    try:
        manifest = transport.read(MANIFEST, is_json=True)
        if (folder / MANIFEST).is_file():
            _require_same(url, folder, manifest)
            _write_source(url, folder, cache_bytes)
        else:
            _copy_tokenizer(transport, folder, manifest)
            _write_source(url, folder, cache_bytes)
            replace_durably(folder / MANIFEST, manifest)  # last: a folder with a manifest is whole
    except Unreachable as error:
        raise UserError(
            f"data.remote: {error}. It must be a folder that pretrain.prepare has written (manifest.json, "
            "tokenizer, train, heldout)"
        ) from None


def _write_source(url: str, folder: Path, cache_bytes: int) -> None:
    replace_durably(folder / REMOTE, to_json({"url": url, "cache_bytes": cache_bytes}))


def chunks_of(folder: Path) -> RemoteChunks | None:
    """Return what reads the chunks of a mirror; None of a folder that is none.

    Raises:
        UserError: its remote.json is damaged.
    """
    file = folder / REMOTE
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text("utf-8"))
        return RemoteChunks(folder, Transport(found["url"]), int(found["cache_bytes"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file} is damaged ({error!r}); give --data.remote URL again, which writes it anew"
        ) from None


def _copy_tokenizer(transport: Transport, folder: Path, manifest: bytes) -> None:
    place = f"{transport.url}/{MANIFEST}"
    try:
        tokenizer = PurePosixPath(json.loads(manifest)["tokenizer"])
    except (ValueError, KeyError, TypeError) as error:
        raise Unreachable(place, f"it is no manifest of prepared data ({error!r})") from None
    if tokenizer.is_absolute() or ".." in tokenizer.parts:
        raise Unreachable(place, f"it names a tokenizer outside of its folder ({tokenizer})")
    make_folder(folder / tokenizer)
    for number, name in enumerate(_TOKENIZER):
        try:
            content = transport.read(f"{tokenizer}/{name}", is_json=True)
        except Unreachable:
            if number == 0:
                raise
            continue
        replace_durably(folder / tokenizer / name, content)


def _require_same(url: str, folder: Path, manifest: bytes) -> None:
    if (folder / MANIFEST).read_bytes() == manifest:
        return
    if (folder / REMOTE).is_file():
        raise UserError(
            f"the data at {url} is not what {folder} mirrors: it has been prepared anew, or the URL is of "
            "other data. Runs that began on the old data need it as it was; for a new run name another "
            "folder (--data)"
        )
    raise UserError(f"{folder} holds prepared data of its own: name an empty folder (--data) for {url}")
