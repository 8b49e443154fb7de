"""All durable streams that one client of the cluster can reach: creating, forking, reading and
deleting them.

A fork does not copy: it begins at a seq of its source, in a store whose seqs begin there, and what
is before is read from the source. The source has a row for each fork; while there is one, a
deleted source stays, and nobody but its forks can read it. The order of steps is such that a
gateway that dies in between leaves at most a row for a fork that never came to be, which
the deletion of the source finds (`removing.py`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

from holdfast.client.connection import Client
from holdfast.client.handles.serving_wire import (
    Packer,
    ServedCursor,
    ServedMessage,
    ServingHead,
)
from holdfast.gateway.http.durable.bodies import DEFAULT_CONTENT_TYPE, media_type
from holdfast.gateway.http.durable.durable_stream import (
    PAGE_BYTES,
    DurableStream,
    Found,
    MessagePage,
    found_in,
    gone,
    not_found,
    now_ms,
    opening,
    start_of,
)
from holdfast.gateway.http.durable.expiries import STORE, Expiries
from holdfast.gateway.http.durable.known_stream import KnownStream, content_of, is_json
from holdfast.gateway.http.durable.live_feed import LiveFeed
from holdfast.gateway.http.durable.offsets import OffsetWord
from holdfast.gateway.http.durable.removing import (
    live_forks,
    next_epoch,
    remove,
    write_again,
)
from holdfast.gateway.http.durable.requests import CreateRequest, ForkRequest
from holdfast.gateway.http.durable.stream_names import store_of_url_path
from holdfast.gateway.http.durable.stream_record import (
    FORKS_CURSOR,
    MARKERS,
    REMOVING_CURSOR,
    STREAM_CURSOR,
    DurableState,
    Fork,
    ForkRow,
    StreamConfig,
)
from holdfast.gateway.http.problems import ProblemError
from holdfast.protocol.errors import DeposedWriterError, UnavailableError, WrongLastSeqError

#: How long creating waits for others that delete the stream, or create it.
_CREATE_SECONDS: Final = 20.0
#: Who destroys a store is taken for dead after so long.
_REMOVING_SECONDS: Final = 10
_PAUSE_SECONDS: Final = 0.05
_FORK_TRIES: Final = 20
#: Streams that are kept known although nobody uses them now.
_MAX_KEPT: Final = 10_000
#: Forks of forks of forks.
_MAX_DEPTH: Final = 64


class DurableStreams:
    """The durable streams of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.expiries = Expiries(client.kv(STORE))
        self._row = secrets.randbits(62)
        self._open: OrderedDict[str, DurableStream] = OrderedDict()
        self._feeds: WeakValueDictionary[str, LiveFeed] = WeakValueDictionary()

    def stream(self, store: str) -> DurableStream:
        """Return the stream of a store, which need not exist."""
        found = self._open.get(store)
        if found is None:
            serving = self._client.serving_stream(store)
            found = self._open[store] = DurableStream(serving, self._row, write_again)
            for name in list(self._open)[: max(0, len(self._open) - _MAX_KEPT)]:
                if self._open[name].is_idle:
                    del self._open[name]
        self._open.move_to_end(store)
        return found

    def feed(self, stream: DurableStream) -> LiveFeed:
        """Return the events of a stream, for all that follow it."""
        found = self._feeds.get(stream.name)
        if found is None:
            found = self._feeds[stream.name] = LiveFeed(stream, self.read)
        return found

    # Creating

    async def create(
        self, store: str, request: CreateRequest, body: bytes
    ) -> tuple[KnownStream, bool]:
        """Return a stream, and whether it was created. Raises ProblemError, HoldfastError."""
        stream = self.stream(store)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _CREATE_SECONDS
        while loop.time() < give_up_at:
            head, cursors = await stream.records()
            if REMOVING_CURSOR in cursors:
                await _wait_until_removed(stream, head, cursors[REMOVING_CURSOR])
                continue
            known = stream.known_in(head, cursors)
            if known is not None and not known.state.deleted and stream.is_over(known.config):
                await remove(self.stream, stream, expired=True)
                continue
            is_deleted = known is not None and known.state.deleted
            if known and is_deleted and not await live_forks(self.stream, known):
                await remove(self.stream, stream)
                continue
            if known is not None:
                return await self._same(known, request), False
            try:
                return await self._create(stream, head, request, body), True
            except WrongLastSeqError:
                # Somebody else has created it, and this has raised its serving epoch.
                await write_again(stream)
            except DeposedWriterError:
                pass
        raise UnavailableError(reason="others create and delete this stream all the time")

    async def _same(self, known: KnownStream, request: CreateRequest) -> KnownStream:
        """Return a stream that exists, if it is what is asked for."""
        config = known.config
        wanted_type = request.content_type
        if wanted_type is None:
            wanted_type = DEFAULT_CONTENT_TYPE if request.fork is None else config.content_type
        inherits = request.fork is not None and (
            request.ttl_seconds is None and request.expires_at is None
        )
        same = (
            not known.state.deleted
            and media_type(wanted_type) == media_type(config.content_type)
            and (inherits or config.ttl_seconds == request.ttl_seconds)
            and (inherits or config.expires_at_ms == request.expires_at_ms)
            and known.state.closed == request.closed
            and _is_same_fork(config.fork, request.fork)
        )
        if not same:
            raise ProblemError(409, "exists", "there is another stream at this path")
        return known

    async def _create(
        self, stream: DurableStream, head: ServingHead, request: CreateRequest, body: bytes
    ) -> KnownStream:
        source: DurableStream | None = None
        forked: Fork | None = None
        if request.fork is not None:
            source, source_config, forked = await self._fork_point(request.fork)
            request = inherited(request, source_config)
        if forked is not None and head.last_seq >= forked.seq:
            # The remains of a creation that was interrupted: a fork has the seqs of its source.
            if head.count:
                raise ProblemError(409, "exists", "there is a store of something else")
            await stream.store.destroy(epoch=head.epoch)
            head = await stream.store.head()
        config = _config(request, forked, head.last_seq)
        if (ends_ms := stream.ends_ms(config)) is not None:
            await self.expiries.note(stream.name, max(ends_ms, config.created_ms))
        values = content_of(body, config.content_type)
        if source is not None and forked is not None:
            if forked.prefix_bytes:
                cut = (await self._message(forked, source)).value[: forked.prefix_bytes]
                values = [cut, *values]
            await self._add_fork(source, stream.name, forked, config)
        store = stream.store
        epoch = await next_epoch(stream)
        if forked is None:
            await store.configure(serving_epoch=epoch)
        else:
            await store.configure(serving_epoch=epoch, first_seq=forked.seq)
        messages = opening(config, values, closed=request.closed)
        closed_seq = config.opened_seq + len(messages) - 1 if request.closed else 0
        state = DurableState(epoch, closed=request.closed, closed_seq=closed_seq)
        await store.batch(
            [
                *(message.operation(epoch) for message in messages),
                Packer(epoch).cursor_operation(
                    STREAM_CURSOR, config=config.to_bytes(), state=state.to_bytes()
                ),
            ]
        )
        stream.forget()
        last_seq = config.opened_seq + len(messages) - 1
        return KnownStream(config, state, epoch, last_seq, {}, {})

    # Forks

    async def _fork_point(
        self, request: ForkRequest
    ) -> tuple[DurableStream, StreamConfig, Fork]:
        """Return the source of a fork, and where the fork leaves it. Raises ProblemError."""
        source = self.stream(store_of_url_path(request.path))
        known = await source.load()
        if known is None or (not known.state.deleted and source.is_over(known.config)):
            raise ProblemError(404, "not_found", "there is no such source stream")
        if known.state.deleted:
            raise ProblemError(409, "source_gone", "the source stream was deleted")
        seq = known.tail_seq if request.offset is None else request.offset
        if seq > known.tail_seq:
            raise ProblemError(400, "invalid_offset", "the source stream ends before that offset")
        seq = max(seq, start_of(known, OffsetWord.BEGINNING))
        prefix_bytes = 0
        if request.sub_offset:
            seq, prefix_bytes = await self._advanced(source, known, seq, request.sub_offset)
        fork = Fork(
            source.name,
            known.config.id,
            request.path,
            request.offset,
            request.sub_offset,
            seq,
            prefix_bytes,
        )
        return source, known.config, fork

    async def _advanced(
        self, source: DurableStream, known: KnownStream, seq: int, sub_offset: int
    ) -> tuple[int, int]:
        """Return the seq, and the bytes of that message, which are so many messages or bytes behind
        `seq`. Raises ProblemError."""
        counts_messages = is_json(known.config.content_type)
        missing = sub_offset
        while True:
            page = await self._page(source, known, seq)
            for each in page.messages:
                if each.headers in MARKERS:
                    continue
                size = 1 if counts_messages else len(each.value)
                if missing < size:
                    return each.seq, missing
                missing -= size
                seq = each.seq + 1
                if not missing:
                    return seq, 0
            if page.is_all:
                raise ProblemError(400, "invalid_offset", "the source stream ends before that")
            if page.messages:
                seq = page.messages[-1].seq + 1

    async def _message(self, fork: Fork, source: DurableStream) -> ServedMessage:
        known = await source.state()
        page = await self._page(source, known, fork.seq)
        return next(each for each in page.messages if each.seq == fork.seq)

    async def _add_fork(
        self, source: DurableStream, store: str, fork: Fork, config: StreamConfig
    ) -> None:
        """Let the source know its fork, unless it was deleted meanwhile."""
        row = ForkRow(config.id, store, now_ms())
        for _ in range(_FORK_TRIES):
            known = await source.state()
            if known.config.id != fork.source_id:
                raise not_found()
            operation = Packer(known.epoch).cursor_operation(
                FORKS_CURSOR, config=b"", state=b"", rows=[(row.row, row.to_bytes())]
            )
            try:
                await source.store.batch([operation])
            except DeposedWriterError:
                # It is being deleted, or was to be.
                await asyncio.sleep(_PAUSE_SECONDS)
                await write_again(source)
            else:
                return
        raise ProblemError(409, "source_gone", "others create and delete the source stream")

    # Reading

    async def read(self, stream: DurableStream, start: int | OffsetWord) -> Found:
        """Return what a stream has from there on, as much as fits. Raises ProblemError."""
        if isinstance(start, OffsetWord):
            known = await stream.state()
        else:
            found, page = await stream.read_own(start)
            if found is None or stream.is_over(found.config):
                raise not_found()
            known = found
            if known.state.deleted:
                raise gone()
            if known.config.fork is None and known.config.opened_seq < start <= known.tail_seq:
                return found_in(known, page.messages, start, is_all=page.is_all)
        seq = start_of(known, start)
        page = await self._page(stream, known, seq)
        return found_in(known, page.messages, seq, is_all=page.is_all)

    async def _page(self, stream: DurableStream, known: KnownStream, start: int) -> MessagePage:
        """Return messages of a stream from `start` on, those of its source among them."""
        chain = [(stream, known)]
        while (fork := chain[-1][1].config.fork) is not None and start < fork.seq:
            if len(chain) > _MAX_DEPTH:
                raise ProblemError(508, "too_many_forks", "a fork of too many forks")
            source = self.stream(fork.store)
            source_known = await source.load()
            if source_known is None or source_known.config.id != fork.source_id:
                raise ProblemError(410, "gone", "the source of this fork does not exist any more")
            chain.append((source, source_known))
        messages: list[ServedMessage] = []
        size_bytes, seq = 0, start
        for index in reversed(range(len(chain))):
            end = chain[index - 1][1].config.fork if index else None
            while end is None or seq < end.seq:
                page = await chain[index][0].store.by_subject(
                    (), start_seq=seq, max_bytes=PAGE_BYTES - size_bytes
                )
                own = [each for each in page.messages if end is None or each.seq < end.seq]
                if end is not None:
                    # What closed the source is nothing to its forks.
                    own = [each for each in own if each.headers not in MARKERS]
                messages += own
                size_bytes += sum(len(each.value) for each in own)
                more = page.next_seq is not None and (end is None or page.next_seq < end.seq)
                if size_bytes >= PAGE_BYTES and (more or index):
                    return MessagePage(messages, is_all=False)
                if not more:
                    break
                assert page.next_seq is not None
                seq = page.next_seq
            if end is not None:
                seq = max(seq, end.seq)
        return MessagePage(messages, is_all=True)

    # Deleting

    async def delete(self, stream: DurableStream) -> None:
        """Delete a stream, or keep it for its forks alone. Raises ProblemError, HoldfastError."""
        await stream.state()
        await remove(self.stream, stream)


async def _wait_until_removed(
    stream: DurableStream, head: ServingHead, removing: ServedCursor
) -> None:
    """Wait a little for whoever destroys the store, and do it if that one seems to be dead."""
    since_ms = int(removing.state or b"0")
    if now_ms() - since_ms < _REMOVING_SECONDS * 1000:
        await asyncio.sleep(_PAUSE_SECONDS)
    else:
        await stream.store.destroy(epoch=head.epoch)


def _is_same_fork(fork: Fork | None, request: ForkRequest | None) -> bool:
    if fork is None or request is None:
        return fork is None and request is None
    # Without an offset, a fork is the one that begins where the source ended then.
    same_offset = request.offset is None or fork.offset == request.offset
    return fork.path == request.path and same_offset and fork.sub_offset == request.sub_offset


def inherited(request: CreateRequest, source: StreamConfig) -> CreateRequest:
    """Return the request for a fork with what it takes from its source. Raises ProblemError."""
    wanted = request.content_type
    if wanted is not None and media_type(wanted) != media_type(source.content_type):
        raise ProblemError(409, "content_type_mismatch", f"the source is {source.content_type}")
    request = replace(request, content_type=wanted or source.content_type)
    if request.ttl_seconds is None and request.expires_at is None:
        request = replace(
            request,
            ttl_seconds=source.ttl_seconds,
            expires_at=source.expires_at,
            expires_at_ms=source.expires_at_ms,
        )
    return request


def _config(request: CreateRequest, fork: Fork | None, last_seq: int) -> StreamConfig:
    return StreamConfig(
        id=secrets.token_hex(8),
        content_type=request.content_type or DEFAULT_CONTENT_TYPE,
        created_ms=now_ms(),
        opened_seq=last_seq + 1 if fork is None else fork.seq,
        ttl_seconds=request.ttl_seconds,
        expires_at=request.expires_at,
        expires_at_ms=request.expires_at_ms,
        fork=fork,
    )
