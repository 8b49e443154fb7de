"""Removes the stores of durable streams that have expired.

To readers an expired stream is gone at once; this takes its space back. Every gateway does it, some
streams at a time, and two that meet at one stream do no harm: whoever removes it looks again after
the others are shut out (`durable/removing.py`).
"""

from __future__ import annotations

import logging

from holdfast.gateway.http.durable.durable_stream import now_ms
from holdfast.gateway.http.durable.durable_streams import DurableStreams
from holdfast.gateway.http.durable.expiries import Due
from holdfast.gateway.http.durable.removing import remove
from holdfast.gateway.http.problems import ProblemError
from holdfast.protocol.errors import HoldfastError

logger = logging.getLogger("holdfast.gateway")

#: Streams that one sweep looks at.
_AT_ONCE = 200
#: The next look at a stream that was used is not before.
_LEAST_MS = 1000


async def sweep(streams: DurableStreams) -> int:
    """Remove streams that have expired, and return how many were due. Raises HoldfastError if
    nothing can be asked."""
    due = await streams.expiries.due(now_ms(), _AT_ONCE)
    for each in due:
        try:
            await _look(streams, each)
        except (ProblemError, HoldfastError) as error:
            # It is looked at again.
            logger.debug("gateway.sweep_failed store=%s error=%s", each.store, error)
    return len(due)


async def _look(streams: DurableStreams, due: Due) -> None:
    stream = streams.stream(due.store)
    known = await stream.load(to_write=False)
    if known is not None and not known.state.deleted:
        if stream.is_over(known.config):
            await remove(streams.stream, stream, expired=True)
        else:
            ends_ms = stream.ends_ms(known.config)
            if ends_ms is not None:
                await streams.expiries.note(due.store, max(ends_ms, now_ms() + _LEAST_MS))
    await streams.expiries.forget(due)
