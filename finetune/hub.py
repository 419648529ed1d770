"""Ask once whether the Hugging Face hub answers, before a data set or a model is loaded.

The hub's own library tries for half a minute for each file.
"""

from __future__ import annotations

from pretrain.common.errors import UserError

SECONDS = 5.0  # for an answer


def hub_fault() -> str:
    """Return why the hub does not answer one request, sent without retries; "" if it does.

    Nothing is sent where HF_HUB_OFFLINE says that the hub's cache is meant.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return ""
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception as error:  # its HTTP library's own, which differs by version
        return f"{constants.ENDPOINT} does not answer ({(str(error) or repr(error)).splitlines()[0]})"
    return ""


def reach_hub(source: str, otherwise: str) -> None:
    """Ask the hub whether it answers, as `hub_fault` does.

    source: what is to be loaded, for the error; otherwise: what to do without network.

    Raises:
        UserError: no answer.
    """
    if fault := hub_fault():
        raise UserError(
            f"cannot load {source}: {fault}. Without network, {otherwise}; "
            "HF_HUB_OFFLINE=1 takes what the hub's cache on this machine holds"
        )
