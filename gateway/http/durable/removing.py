"""Deleting durable streams, whoever else writes, forks or creates them meanwhile.

Whoever deletes raises the serving epoch of the store, so writes by all others are refused from then
on, and looks again. A stream with forks stays, marked as deleted. Any other loses its record in one
batch, which also tells all followers, and is then destroyed. In between its store says so, and
creations wait for the end.

Before that batch nothing says what the epoch was raised for: a deletion whose gateway died, or a
creation that came second. So an append that is refused again and again deletes nothing: it makes
the stream writable (`write_again`), and a deletion that is only slow begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from holdfast.client.handles.serving_wire import Packer
from holdfast.gateway.http.durable.durable_stream import DurableStream, now_ms
from holdfast.gateway.http.durable.known_stream import KnownStream
from holdfast.gateway.http.durable.stream_record import (
    FORKS_CURSOR,
    PRODUCERS_CURSOR,
    REMOVED,
    REMOVING_CURSOR,
    STREAM_CURSOR,
    USED_CURSOR,
    DurableMessage,
    Fork,
    ForkRow,
)
from holdfast.protocol.errors import DeposedWriterError, UnavailableError

#: Returns the stream of a store.
StreamOf = Callable[[str], DurableStream]

_TRIES: Final = 20
_PAUSE_SECONDS: Final = 0.05
#: A fork whose row is older than this, and that does not exist, will never come to be.
_FORKING_MS: Final = 60_000


async def remove(
    stream_of: StreamOf, stream: DurableStream, *, expired: bool = False
) -> None:
    """Delete a stream, or keep it for its forks alone; with `expired`, only if it still is. Raises
    HoldfastError."""
    for _ in range(_TRIES):
        epoch = await next_epoch(stream)
        if await stream.load() is None:
            return
        try:
            # Whoever would write or fork now is refused from here on.
            await stream.store.configure(serving_epoch=epoch)
            known = await stream.load()
            if known is None:
                return
            if expired and not stream.is_over(known.config):
                # It was used meanwhile.
                await _set_state(stream, known, epoch, deleted=known.state.deleted)
            elif await live_forks(stream_of, known):
                await _set_state(stream, known, epoch, deleted=True)
            else:
                await _destroy(stream, epoch)
                await _leave_source(stream_of, known)
        except DeposedWriterError:
            # Somebody else deletes it, too.
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        finally:
            stream.forget()
            stream.tail.wake()
        return
    raise UnavailableError(reason="others delete this stream, too")


async def next_epoch(stream: DurableStream) -> int:
    """Return a serving epoch beyond that of the store. Two that are taken within a millisecond
    differ, even of two lives of a store."""
    before = (await stream.store.config()).serving_epoch or 0
    return max(now_ms() * 1000 + secrets.randbelow(1000), before + 1)


async def write_again(stream: DurableStream) -> None:
    """Make a stream writable whose serving epoch was raised, and not by whoever writes its record.
    Does nothing if somebody else does so, or deletes it. Raises HoldfastError."""
    epoch = await next_epoch(stream)
    if await stream.load() is None:
        return
    with contextlib.suppress(DeposedWriterError):
        await stream.store.configure(serving_epoch=epoch)
        known = await stream.load()
        if known is not None:
            await _set_state(stream, known, epoch, deleted=known.state.deleted)
    stream.forget()


async def live_forks(stream_of: StreamOf, known: KnownStream) -> list[ForkRow]:
    """Return the forks of a stream that exist, or may soon."""
    found: list[ForkRow] = []
    for row in known.forks.values():
        fork = await stream_of(row.store).load(to_write=False)
        exists = fork is not None and fork.config.id == row.id
        if exists or now_ms() - row.time_ms < _FORKING_MS:
            found.append(row)
    return found


async def _set_state(
    stream: DurableStream, known: KnownStream, epoch: int, *, deleted: bool
) -> None:
    packer = Packer(epoch)
    state = replace(known.state, epoch=epoch, deleted=deleted).to_bytes()
    operations = [packer.cursor_operation(STREAM_CURSOR, state=state)]
    if deleted and not known.state.deleted:
        operations.append(DurableMessage(b"", REMOVED).operation(epoch))
    await stream.store.batch(operations)


async def _destroy(stream: DurableStream, epoch: int) -> None:
    # Of whatever is made in its place, the epoch is another one.
    head = await stream.store.head()
    packer = Packer(epoch)
    records = (STREAM_CURSOR, USED_CURSOR, PRODUCERS_CURSOR, FORKS_CURSOR)
    await stream.store.batch(
        [
            *(packer.delete_cursor_operation(name) for name in records),
            packer.cursor_operation(
                REMOVING_CURSOR, config=b"", state=str(now_ms()).encode()
            ),
            DurableMessage(b"", REMOVED).operation(epoch),
        ]
    )
    await stream.store.destroy(epoch=head.epoch)


async def _leave_source(stream_of: StreamOf, known: KnownStream) -> None:
    """Remove the row of a fork from its source, and the source if that waits for nothing else."""
    fork = known.config.fork
    if fork is None:
        return
    source = stream_of(fork.store)
    with contextlib.suppress(DeposedWriterError):
        left = await _without_fork(source, fork, known.config.id)
        if left is not None and left.state.deleted and not await live_forks(stream_of, left):
            await remove(stream_of, source)


async def _without_fork(source: DurableStream, fork: Fork, fork_id: str) -> KnownStream | None:
    known = await source.load()
    if known is None or known.config.id != fork.source_id:
        return None
    row = ForkRow(fork_id, "", 0).row
    await source.store.batch([Packer(known.epoch).cursor_operation(FORKS_CURSOR, removed=[row])])
    source.forget()
    return await source.load()
