"""Let ranks tell each other what their hosts know, and let rank 0 do alone what one process must do."""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _set_pg_timeout

from pretrain.common.error_output import mark_printed, print_before_sending
from pretrain.common.errors import UserError
from pretrain.common.files import told_to_users
from pretrain.common.run_folder import moved

T = TypeVar("T")

_CONNECT, _WAIT = timedelta(minutes=10), timedelta(hours=48)
_hosts: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None  # the default group, and that of its hosts


def is_alone() -> bool:
    """Return whether there is no other rank."""
    return not dist.is_initialized() or dist.get_world_size() == 1


def host_group() -> dist.ProcessGroup:
    """Return the gloo group in which all ranks wait for each other for up to 48 hours.

    Collective at the first call, which connects them. It stays: a rank that ends closes its connections, so
    the others notice at once. A group that is made for one exchange waits for a rank that ended before.
    """
    global _hosts
    world = dist.group.WORLD
    assert world is not None, "no process group"
    if _hosts is None or _hosts[0] is not world:
        _hosts = world, _connect()
    return _hosts[1]


def new_host_group() -> dist.ProcessGroup:
    """Return another such group, for collectives in an order of their own. Collective."""
    dist.barrier(host_group())  # fails if a rank has ended; to connect to it would take the whole timeout
    return _connect()


def _connect() -> dist.ProcessGroup:
    """Return a group of all ranks: they connect in minutes or not at all, and then wait for days."""
    group = dist.new_group(backend="gloo", timeout=_CONNECT)
    _set_pg_timeout(_WAIT, group)
    return group


def destroy_groups() -> None:
    """Destroy all groups, and let go of them: gloo's threads, alive at an interpreter's end, may abort it."""
    import deepspeed

    global _hosts
    _hosts = None
    deepspeed.comm.destroy_process_group()


def on_rank_zero(action: Callable[[], T]) -> T:
    """Run `action` on rank 0 while others wait; return its (picklable) result on every rank. Collective.

    The others wait for as long as preparing data and its models takes. What `action` raises becomes on them a
    UserError of the same text, and of the same class if it was one. Rank 0 has printed it before.
    """
    if is_alone():
        return action()
    raised: Exception | None = None
    message: list = [None, None, None]  # the result, the error's class, the error's text
    group = host_group()
    if dist.get_rank() == 0:
        try:
            message[0] = action()
        except Exception as error:
            raised = moved() or told_to_users(error)
            kind = type(raised) if isinstance(raised, UserError) else UserError
            message[1:] = kind, str(raised) or type(raised).__name__
            print_before_sending(raised)
    dist.broadcast_object_list(message, src=0, group=group)
    if raised is not None:
        raise raised
    result, kind, text = message
    if kind is not None:
        failure = kind(text)
        mark_printed(failure)
        raise failure
    return result


def gathered(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Return what every rank holds, by rank: picklable, and small. Collective.

    group: of all ranks; None: the default one.
    """
    if is_alone():
        return [value]
    parts: list = [None] * dist.get_world_size()
    dist.all_gather_object(parts, value, group=group)
    return parts


def gather_equal(part: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Stack all ranks' tensors of the same shape in order of rank: [W, ...]; of one rank, a view. Collective.

    group: as for `gathered`.
    """
    world = dist.get_world_size()
    if world == 1:
        return part[None]
    part = part.contiguous()
    every = part.new_empty((world, *part.shape))
    dist.all_gather_into_tensor(every.view(-1), part.view(-1), group=group)
    return every
