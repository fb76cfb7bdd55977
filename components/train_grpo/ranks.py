"""What the processes of one training agree on. In a training of one process nothing is sent anywhere.

Called by callbacks.py and stages.py. Uses torch.distributed where accelerate has set it up: gloo on CPUs, nccl on
GPUs.
"""

import os
from typing import Any

import torch.distributed


def rank() -> int:
    """This process's number; 0 keeps the books (MLflow, store, events)."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Training processes in all."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def from_first(value: Any) -> Any:
    """The value that rank 0 has, on every rank.

    Args:
        value: anything that can be pickled; ignored on other ranks.
    """
    if not _several():
        return value
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


def any_rank(flag: bool) -> bool:
    """Whether the flag is set on any rank; the same answer on all of them.

    Args:
        flag: this rank's.
    """
    if not _several():
        return flag
    flags: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(flags, flag)
    return any(flags)


def wait_for_all() -> None:
    """Go on when every rank has come here."""
    if _several():
        torch.distributed.barrier()


def _several() -> bool:
    return (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    )
