"""Load other people's models and tokenizers safely: none of their code, no pickles, one error message.

A name is a folder, or else a name on the Hugging Face hub. A name that can only be a folder is not looked up
on the hub, which takes half a minute without a network.
"""

import glob
import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from augment.core.errors import CannotLoad, nearest_name
from augment.core.waiting import within

_HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")
SECONDS = 5.0  # for an answer of the hub, whose own library tries for half a minute for each file
_OUR_FOLDERS = ("runs", "data", "export", "best", "checkpoints")


def pretrained(kind: Any, source: str | Path, **options: Any) -> Any:
    """Return `kind.from_pretrained(source, **options)` of a configuration or tokenizer; or CannotLoad."""
    require_source(source)
    # at once: without an answer the hub's library would try for minutes
    is_folder = os.path.isdir(os.path.expanduser(source))
    if not is_folder and not in_cache(str(source)) and (fault := hub_fault()):
        raise CannotLoad(f"there is no folder {source} here, and {fault}")
    try:
        return kind.from_pretrained(os.path.expanduser(source), trust_remote_code=False, **options)
    # transformers, tokenizers and the hub raise different errors for the same few causes
    except Exception as error:
        raise CannotLoad(_first_words(error)) from error


def pretrained_model(kind: Any, source: str | Path, **options: Any) -> Any:
    """Return `pretrained` of a model class, with weights from safetensors only."""
    require_source(source)
    require_weights(source)
    with quiet_transformers():
        return pretrained(kind, source, use_safetensors=True, **options)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from drawing bars, and from calling a checkpoint without a head corrupted."""
    from transformers.utils import logging

    bar_shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar_shown:
            logging.enable_progress_bar()


def require_source(source: str | Path) -> None:
    """Refuse a name that is no folder and cannot be a hub name, before a request to the hub."""
    text, path = str(source), Path(os.path.expanduser(source))
    try:
        if path.is_dir():
            return
        is_file = path.exists()
    except OSError:  # not a possible path, such as a name of 300 characters
        is_file = False
    if is_file:
        raise CannotLoad(f"{text} is a file; give the folder of a model")
    first, _, last = text.partition("/")
    ours = last and (first in _OUR_FOLDERS or last in _OUR_FOLDERS or Path(first).is_dir())
    if _HUB_NAME.fullmatch(text) and not ours:
        return
    raise CannotLoad(no_folder(text, "give a model's folder, or its name on the hub"))


def no_folder(source: str | Path, remedy: str) -> str:
    """Return an error's text: there is no such folder; name the most similar one beside it, or the remedy."""
    path = Path(os.path.expanduser(source))
    folders = [Path(place).name for place in glob.glob(f"{glob.escape(str(path.parent))}/*/")]
    near = nearest_name(path.name, folders)
    return f"there is no folder {source}; {f'did you mean {path.parent / near}?' if near else remedy}"


def has_tokenizer(source: str | Path) -> bool:
    """Return whether a name may have a tokenizer: the library makes one up, which knows no word."""
    folder = Path(os.path.expanduser(source))
    names = ("tokenizer.json", "vocab.*", "*.model")
    return not os.path.isdir(folder) or any(any(folder.glob(name)) for name in names)


def require_weights(source: str | Path) -> None:
    """Refuse a folder whose weights, or those of its modules, cannot be read; a hub's name passes."""
    from safetensors import SafetensorError, safe_open

    folder = Path(os.path.expanduser(source))
    if pickled := pickled_weights(folder):
        raise CannotLoad(
            f"{source} holds pickled weights alone ({pickled[0].relative_to(folder)}), which can run code "
            "when read. Convert them; no code in them is run: "
            f"clearly convert {shlex.quote(str(source))}"
        )
    files = [path for part in _weight_folders(folder) for path in sorted(part.glob("*.safetensors"))]
    for path in files:
        try:
            with safe_open(path, "pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise CannotLoad(f"{path} is damaged ({_first_words(error)}); copy it again") from error


def pickled_weights(folder: str | Path) -> list[Path]:
    """Return the pickled weights of a model's folder that have no safetensors file beside them."""
    return [
        path
        for part in _weight_folders(Path(os.path.expanduser(folder)))
        if not any(part.glob("*.safetensors"))
        for path in sorted(part.glob("pytorch_model*.bin"))
        if path.is_file()
    ]


def _weight_folders(folder: Path) -> list[Path]:
    """Return a model's folder and those of the modules that sentence-transformers' modules.json names."""
    if not os.path.isdir(folder):  # Path.is_dir raises for a name that is too long
        return []
    try:
        paths = [folder / module["path"] for module in json.loads((folder / "modules.json").read_text())]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # none, or damaged: the loader says so
        paths = []
    return list(dict.fromkeys([folder, *paths]))


def _first_words(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} ..."


def hub_fault() -> str:
    """Return why the hub does not answer one request, "" if it does; HF_HUB_OFFLINE: nothing is sent."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return ""
    try:
        within(2 * SECONDS, lambda: get_session().head(constants.ENDPOINT, timeout=SECONDS))
    except Exception as error:  # its HTTP library's own, which differs by version
        return f"{constants.ENDPOINT} does not answer ({(str(error) or repr(error)).splitlines()[0]})"
    return ""


def in_cache(model: str) -> bool:
    """Return whether the hub's cache on this machine has anything of a model."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=model, repo_type="model")
    return (folder / "snapshots").is_dir()
