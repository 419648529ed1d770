"""Refuse at once what would be loaded from a Hugging Face hub that does not answer."""

from augment.core.pretrained import hub_fault
from pretrain.common.errors import UserError


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
