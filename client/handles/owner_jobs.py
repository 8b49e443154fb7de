"""Jobs that the owner of a store does for an application: destroying and forking stores.

The client repeats its request, with the name of one job, until the owner has done it, so a lost
reply costs nothing. If the owner dies or hands the store over, the next owner begins anew. What
owners do is in `persist/jobs/administration.py`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import PACKED_HEAD, head_from_wire
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.bus.bus import NoRespondersError
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import HoldfastError, OperationTimeoutError, UnavailableError
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS

_POLL_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = 0.2


async def destroy(
    link: Link, key: StoreKey, timeout_seconds: float | None, epoch: int | None = None
) -> bool:
    """Destroy a store; return False if there was none. With `epoch`, which a head has told, only
    the life of the store that had it, as in each retry: what was written again later is left
    alone. Raises OperationTimeoutError."""
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


async def have_done(
    link: Link,
    key: StoreKey,
    subject_of: Callable[[str, str], str],
    fields: Mapping[str, object],
    timeout_seconds: float,
) -> Mapping[str, Any]:
    """Have the owner of a store do a job, and return its report. `subject_of` returns the subject
    for a tenant and a server. Raises OperationTimeoutError, and the error that the job ends with.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timeout_seconds
    payload, owner = b"", None
    while True:
        try:
            if owner is None:
                # A job that ended in an error is over: the next try is another job.
                payload = encode_control(job=link.entropy.randbytes(8).hex(), **fields)
                owner = await _owner(link, key)
            subject = subject_of(link.tenant, owner.server)
            reply = decode_control(
                await link.bus.request(subject, payload, CONTROL_TIMEOUT_SECONDS, link.tenant)
            )
        except UnavailableError as error:
            link.check_open()
            if loop.time() >= give_up_at:
                raise OperationTimeoutError(
                    timeout_seconds=timeout_seconds, reason=str(error)
                ) from error
            if isinstance(error, NoRespondersError) and owner is not None:
                with contextlib.suppress(HoldfastError):
                    await link.router.suspect(owner.server, owner.incarnation)
            owner = None
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            if reply.get("done"):
                return reply
            if loop.time() >= give_up_at:
                raise OperationTimeoutError(
                    timeout_seconds=timeout_seconds, reason="the owner is still at it"
                )
            await asyncio.sleep(_POLL_SECONDS)


async def _owner(link: Link, key: StoreKey) -> Owner:
    [owner] = await link.router.resolve([key])
    if isinstance(owner, HoldfastError):
        raise owner
    return owner
