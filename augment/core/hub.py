"""Ask once whether the Hugging Face hub answers, before anything is loaded from it.

The hub's own library tries for half a minute for each file.
"""

from pathlib import Path

from augment.core.waiting import within

SECONDS = 5.0  # for an answer


def hub_fault() -> str:
    """Return why the hub does not answer one request, sent without retries; "" if it does.

    Nothing is sent where HF_HUB_OFFLINE says that the hub's cache is meant.
    """
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
