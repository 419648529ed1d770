"""Let rank 0 do what one process must do alone, and give its result, or its error, to all ranks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from pretrain.common.error_output import mark_printed, print_before_sending
from pretrain.common.errors import UserError

T = TypeVar("T")


def is_rank_zero() -> bool:
    """Return whether this process is rank 0; without a process group it is."""
    return not dist.is_initialized() or dist.get_rank() == 0


def on_rank_zero(action: Callable[[], T], hours: float = 48) -> T:
    """Run `action` on rank 0 while the others wait, and return its result on every rank. Collective.

    Args:
        action: its result must be picklable.
        hours: how long the others wait. Preparing data and its models takes long.

    Raises:
        Exception: on rank 0 what `action` raised. On the others a UserError of the same text, and of the same
            class where that was one. Rank 0 has printed it before the others hear of it.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return action()
    raised: Exception | None = None
    message: list = [None, None, None]  # the result, the error's class, the error's text
    group = dist.new_group(backend="gloo", timeout=timedelta(hours=hours))
    if dist.get_rank() == 0:
        try:
            message[0] = action()
        except Exception as error:
            raised = error
            kind = type(error) if isinstance(error, UserError) else UserError
            message[1:] = kind, str(error) or type(error).__name__
            print_before_sending(error)
    dist.broadcast_object_list(message, src=0, group=group)
    dist.destroy_process_group(group)
    if raised is not None:
        raise raised
    result, kind, text = message
    if kind is not None:
        failure = kind(text)
        mark_printed(failure)
        raise failure
    return result


def gathered(mine: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Return what every rank holds, by rank: picklable, and small. Collective.

    group: of all ranks; None: the default one.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [mine]
    parts: list = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine, group=group)
    return parts
