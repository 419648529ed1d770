"""Ask once whether the Hugging Face hub answers, before a data set is loaded.

The hub's own library tries for minutes.
"""

from __future__ import annotations

from pretrain.common.errors import UserError

SECONDS = 5.0  # for an answer


def reach_hub(source: str, otherwise: str) -> None:
    """Send one request to the hub, without retries; none where HF_HUB_OFFLINE says that its cache is meant.

    source: what is to be loaded, for the error; otherwise: what to do without network.

    Raises:
        UserError: no answer.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception as error:  # its HTTP library's own, which differs by version
        said = (str(error) or repr(error)).splitlines()[0]
        raise UserError(
            f"cannot load {source}: {constants.ENDPOINT} does not answer ({said}). Without network, "
            f"{otherwise}; "
            "HF_HUB_OFFLINE=1 takes what the hub's cache on this machine holds"
        ) from error
