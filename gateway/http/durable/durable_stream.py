"""One durable stream as this gateway handles it: appends, reads, and its end.

Everything durable is in the store: the gateway can be killed at any point, and another one, or
several at once, continue. What is known of the stream is loaded when it is first written and kept
until the owner refuses an append because it is out of date (`appends.py`). Reads ask the store
each time, so they see whatever was acknowledged before.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import (
    Packer,
    ServedCursor,
    ServedMessage,
    ServingHead,
)
from holdfast.gateway.http.durable.appends import Appends
from holdfast.gateway.http.durable.known_stream import KnownStream, known_of, new_messages
from holdfast.gateway.http.durable.lifetimes import LastUse
from holdfast.gateway.http.durable.live_tail import LiveTail
from holdfast.gateway.http.durable.offsets import OffsetWord, offset_text
from holdfast.gateway.http.durable.stream_record import (
    CLOSED,
    MARKERS,
    OPENED,
    STREAM_CURSOR,
    USED_CURSOR,
    DurableMessage,
    StreamConfig,
)
from holdfast.gateway.http.problems import ProblemError
from holdfast.protocol.errors import RequestError
from holdfast.protocol.messages import Durability

#: The bytes of one answer to a read.
PAGE_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Found:
    """What a read found: content, and where it ends."""

    config: StreamConfig
    epoch: int
    contents: list[bytes]
    start_seq: int
    next_seq: int
    up_to_date: bool
    closed: bool

    @property
    def next_offset(self) -> str:
        """The offset to continue at."""
        return offset_text(self.next_seq)

    @property
    def tag(self) -> str:
        """The entity tag: it changes with the content, and when the stream is closed."""
        closed = ":c" if self.closed else ""
        return f'"{self.config.id}:{self.start_seq}:{self.next_seq}{closed}"'


class MessagePage(NamedTuple):
    """Messages of a store, markers among them, from a seq on. `is_all`: there are no more."""

    messages: Sequence[ServedMessage]
    is_all: bool


class DurableStream:
    """One stream, by the name of its store. `write_again` makes it writable
    whose serving epoch somebody has raised who writes no more."""

    def __init__(
        self,
        store: ServingStream,
        gateway_row: int,
        write_again: Callable[[DurableStream], Awaitable[None]],
    ) -> None:
        self.store = store
        self.tail = LiveTail(store)
        self._use = LastUse(gateway_row)
        self.appends = Appends(
            store,
            self._existing,
            lambda known: self.is_over(known.config),
            self._use_operation,
            lambda: write_again(self),
        )

    @property
    def name(self) -> str:
        """The name of the store."""
        return str(self.store.name)

    @property
    def is_idle(self) -> bool:
        """Whether nobody uses it, so it need not be kept."""
        return not self.tail.users and self.appends.is_idle

    async def load(self, *, to_write: bool = True) -> KnownStream | None:
        """Return the stream as it is now in the store, or None. Without `to_write` it lacks what
        only writers need: the producers and the forks. Raises HoldfastError."""
        head, by_name = await self.records([None] if to_write else [STREAM_CURSOR, USED_CURSOR])
        return self.known_in(head, by_name)

    async def records(
        self, names: Sequence[str | None] = (None,)
    ) -> tuple[ServingHead, dict[str, ServedCursor]]:
        """Return what the store has of these cursors (None: of all), not older than its head.

        Writers, who ask for all, wait for the head before they ask: of two requests that go out
        together, the first may have to be repeated, and then be answered last. A producer's row
        older than the last seq would let its retry pass for a new message.
        """
        if None in names:
            head = await self.store.head()
            found = [await self.store.cursors(name) for name in names]
        else:
            head, found = await asyncio.gather(
                self.store.head(), asyncio.gather(*map(self.store.cursors, names))
            )
        return head, {each.name: each for cursors in found for each in cursors}

    def known_in(
        self, head: ServingHead, cursors: Mapping[str, ServedCursor]
    ) -> KnownStream | None:
        """Return the stream that was found, or None."""
        try:
            known = known_of(head, cursors)
            used = cursors.get(USED_CURSOR)
            self._use.heard(() if used is None else used.rows)
        except ValueError as error:
            raise ProblemError(
                500, "foreign_store", "the store of this path is not one of a durable stream"
            ) from error
        return known

    def forget(self) -> None:
        """Load the stream again when it is next written."""
        self.appends.forget()

    def is_over(self, config: StreamConfig) -> bool:
        """Tell whether the stream has expired. While somebody waits for it, it has not."""
        if self.tail.users and config.expires_at_ms is None:
            return False
        return self._use.is_over(config, now_ms())

    def ends_ms(self, config: StreamConfig) -> int | None:
        """Return when the stream expires if nobody uses it until then; None: never."""
        return self._use.ends_ms(config)

    async def _existing(self) -> KnownStream:
        known = await self.load()
        if known is None or self.is_over(known.config):
            raise not_found()
        if known.state.deleted:
            raise gone()
        return known

    # Reads

    async def state(self) -> KnownStream:
        """Return what a HEAD tells. Raises ProblemError, HoldfastError."""
        known = await self.load(to_write=False)
        if known is None or self.is_over(known.config):
            raise not_found()
        if known.state.deleted:
            raise gone()
        return known

    async def read_own(self, start_seq: int) -> tuple[KnownStream | None, MessagePage]:
        """Return the stream, and its own messages from a seq on."""
        known, page = await asyncio.gather(
            self.load(to_write=False),
            self.store.by_subject((), start_seq=start_seq, max_bytes=PAGE_BYTES),
        )
        return known, MessagePage(page.messages, page.next_seq is None)

    async def used(self, config: StreamConfig, epoch: int) -> None:
        """Note that a reader uses the stream."""
        operation = self._use_recorded(config, Packer(epoch))
        if operation is not None:
            # It may have been deleted, and whoever reads need not be allowed to write.
            with contextlib.suppress(RequestError):
                await self.store.batch([operation], durability=int(Durability.APPLIED))

    def _use_operation(self, known: KnownStream, packer: Packer) -> list[Any] | None:
        return self._use_recorded(known.config, packer)

    def _use_recorded(self, config: StreamConfig, packer: Packer) -> list[Any] | None:
        record = self._use.to_record(config, now_ms())
        if record is None:
            return None
        return packer.cursor_operation(
            USED_CURSOR, config=b"", state=b"", rows=record.rows, removed=record.removed
        )


def found_in(
    known: KnownStream, messages: Sequence[ServedMessage], start: int, *, is_all: bool
) -> Found:
    """Return what a reader at `start` gets of messages that begin there."""
    closed = is_all and bool(messages) and messages[-1].headers == CLOSED
    contents = [each.value for each in messages if each.headers not in MARKERS]
    if not messages:
        next_seq = min(start, known.tail_seq) if known.state.closed else start
    else:
        last = messages[-1]
        next_seq = last.seq if last.headers == CLOSED else last.seq + 1
    return Found(known.config, known.epoch, contents, start, next_seq, is_all, closed)


def start_of(known: KnownStream, start: int | OffsetWord) -> int:
    """Return the seq at which a reader begins."""
    if start is OffsetWord.END:
        return known.tail_seq
    fork = known.config.fork
    if start is OffsetWord.BEGINNING:
        return 1 if fork is not None else known.config.opened_seq + 1
    assert isinstance(start, int)
    if fork is not None:
        return max(1, min(start, known.tail_seq))
    return max(known.config.opened_seq + 1, min(start, known.tail_seq))


def opening(
    config: StreamConfig, values: Sequence[bytes], *, closed: bool
) -> list[DurableMessage]:
    """Return the messages that a stream begins with, behind the marker that opens it."""
    first = DurableMessage(b"", OPENED, config.opened_seq - 1)
    return [first, *new_messages(values, closed=closed)]


def not_found() -> ProblemError:
    """Return the refusal for a stream that does not exist."""
    return ProblemError(404, "not_found", "there is no such stream")


def gone() -> ProblemError:
    """Return the refusal for a stream that was deleted, and that forks still use."""
    return ProblemError(410, "gone", "the stream was deleted")


def now_ms() -> int:
    """Return the time, in int milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


