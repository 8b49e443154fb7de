"""Destroying a store: the client's side of what its owner does (`persist/jobs/administration.py`).

The epoch says which life of the store is meant: a retry never destroys a store that was written
again later."""

from __future__ import annotations

from holdfast.client.handles.owner_jobs import have_done
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import PACKED_HEAD, head_from_wire
from holdfast.client.wire.store_queue import StoreKey


async def destroy(
    link: Link, key: StoreKey, timeout_seconds: float | None, epoch: int | None = None
) -> bool:
    """Destroy a store; return False if there was none. With `epoch`, which a head has told, only
    the life of the store that had it. Raises OperationTimeoutError."""
    timeout = link.timeout_seconds if timeout_seconds is None else timeout_seconds
    if epoch is None:
        wire, *_ = await link.call(key, PACKED_HEAD, False, 0, timeout_seconds)
        head = head_from_wire(wire)
        if not head.revision:
            return False
        epoch = head.epoch
    fields = {"store": list(key), "epoch": epoch}
    await have_done(link, key, link.subjects.destroy, fields, timeout)
    return True
