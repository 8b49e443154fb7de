"""Copies one origin into one stream, as long as its gateway serves that stream.

The origin is read and followed as any store is, through its owner: it makes no difference which
gateway serves it. What the stream has of it is told by the stream's own store, where each batch of
copies moves the position too, and every write names the serving epoch: a gateway that was deposed
stores nothing more, and whoever comes next goes on where the store says.

Reads are pages, and those of all copiers are bounded together. Between two changes of the origin,
a copier is a task that waits.

- A page counts only if the origin was not deleted and created again while it was read: its store
  would have another epoch. Then it is read again, by whoever is the origin now.
- A write is tried until its owner has answered it. If nobody can say whether it was stored, the
  stream is given up, and begins anew with another serving epoch, by which a late write is refused.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from holdfast.client import Client
from holdfast.client.following.served_changes import ServedChanges
from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import (
    Appended,
    Lost,
    ServedChange,
    ServedMessage,
    ServingHead,
)
from holdfast.gateway.jetstream.api import errors
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.api.stream_source import StreamSource, origin_info
from holdfast.gateway.jetstream.api.times import MILLISECOND
from holdfast.gateway.jetstream.origins.copying import CopyBatch, Copying
from holdfast.gateway.jetstream.origins.directory import OriginDirectory
from holdfast.gateway.jetstream.origins.position import (
    CURSOR_CONFIG,
    OriginId,
    Position,
    cursor_name,
)
from holdfast.protocol.errors import (
    DeposedWriterError,
    HoldfastError,
    LimitExceededError,
    RequestError,
)
from holdfast.protocol.limits import MAX_OPERATION_TIMEOUT_SECONDS, MAX_VALUE_BYTES
from holdfast.protocol.subject_filters import matches

logger = logging.getLogger("holdfast.gateway")

#: A page has so many messages at first. It grows up to the most, and shrinks where a page of large
#: messages takes more than it should.
_FIRST_PAGE_MESSAGES: Final = 16
_MOST_PAGE_MESSAGES: Final = 500
_PAGE_BYTES: Final = 2 * 1024 * 1024
#: Until what failed is tried again; it doubles up to the longest.
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
#: A write is tried as long as that is possible: nobody else may write what comes behind it.
_WRITE_SECONDS: Final = MAX_OPERATION_TIMEOUT_SECONDS
#: How long a question about the state of an origin waits.
_INFO_SECONDS: Final = 2.0
#: Seqs that a mirror leaves out at once. Each is written and removed.
_LONGEST_GAP: Final = 10_000_000
_SUBJECT: Final = 6
_EXPECTED_LAST_SEQ: Final = 4


class CopyingStream(ABC):
    """The stream into which is copied."""

    store: ServingStream
    config: ApiStreamConfig

    @property
    @abstractmethod
    def holdfast(self) -> Client:
        """The tenant's stores."""

    @abstractmethod
    def copied(self, message: ServedMessage) -> None:
        """A message of an origin was stored in this stream."""

    @abstractmethod
    def deposed(self) -> None:
        """A write was refused, because another gateway serves the stream, or may be stored late."""

    @abstractmethod
    def now_ms(self) -> int:
        """Return the time since the epoch."""


class _OriginChangedError(Exception):
    """The origin is another one, or its owner is: begin anew."""


class _GivenUpError(Exception):
    """The stream was given up: nothing more is copied into it here."""


class OriginCopier:
    """One origin of one stream. `begin` it, and `end` it."""

    def __init__(
        self, stream: CopyingStream, source: StreamSource, directory: OriginDirectory
    ) -> None:
        self.source: Final = source
        self._stream = stream
        self._directory = directory
        self._copying = Copying(stream.config, source, stream.now_ms)
        self._filters = source.filters
        self._task: asyncio.Task[None] | None = None
        #: Held while something is written.
        self._writing = asyncio.Lock()
        self._changed = asyncio.Event()
        #: The origin that is copied, or was until something failed.
        self._origin: ServingStream | None = None
        #: How many messages were not copied yet when that was last asked for.
        self._lag = 0
        self._feed: ServedChanges[ServedChange] | None = None
        #: How far a source was copied; None if it was not yet.
        self._position: Position | None = None
        #: The next seq of the stream itself, if that is a mirror, and whether it never had one.
        self._own_next = 1
        self._is_unused = False
        #: The next seq to read of the origin, and its last seq and the epoch of its owner when
        #: that was last asked.
        self._next_seq = 1
        self._last_seq = 0
        self._epoch = 0
        self._page_messages = _FIRST_PAGE_MESSAGES
        self._error: ApiError | None = None
        #: When the origin was heard of, by the loop.
        self._heard_at: float | None = None

    # Life

    def begin(self) -> None:
        """Copy from now on."""
        self._directory.listen(self.source.name, self._origin_changed)
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name="holdfast.jetstream.copier"
        )

    async def end(self, *, drain: bool) -> None:
        """Copy no more. With `drain`, return once what is being written is answered; without, the
        stream's epoch must be another one before anything else is copied into it."""
        self._directory.forget(self.source.name, self._origin_changed)
        if self._task is None:
            return
        if drain:
            async with self._writing:
                self._task.cancel()
        else:
            self._task.cancel()
        await asyncio.wait([self._task])

    async def info(self) -> dict[str, Any]:
        """Return what STREAM.INFO tells of this origin."""
        error, heard_at, active_ns = self._error, self._heard_at, -1
        if self._origin is not None:
            try:
                self._lag = await self._count_lag(self._origin)
                heard_at = asyncio.get_running_loop().time()
            except HoldfastError as failure:
                error = error or self._setup_failed(failure)
        if heard_at is not None:
            seconds = asyncio.get_running_loop().time() - heard_at
            active_ns = int(seconds * 1000) * MILLISECOND
        told = None if error is None else error.to_json()
        return origin_info(self.source, self._lag, active_ns, told)

    async def _count_lag(self, origin: ServingStream) -> int:
        """Return how many messages of the origin are not copied yet."""
        next_seq = self._next_seq
        head = await origin.head(timeout_seconds=_INFO_SECONDS)
        if head.last_seq < next_seq:
            return 0
        count, _ = await origin.count(self._filters, next_seq, timeout_seconds=_INFO_SECONDS)
        return count

    def _origin_changed(self) -> None:
        self._changed.set()
        if self._feed is not None:
            self._feed.stop()

    def _setup_failed(self, error: object) -> ApiError:
        if self._copying.is_mirror:
            return errors.mirror_setup_failed(error)
        return errors.source_setup_failed(error)

    # Copying

    async def _run(self) -> None:
        failures = 0
        is_loaded = False
        while True:
            self._changed.clear()
            pause_seconds = 0.0
            try:
                if not is_loaded:
                    await self._load()
                    is_loaded = True
                await self._copy_origin()
                failures = 0
            except _OriginChangedError:
                failures = 0
                self._origin = None
            except (DeposedWriterError, _GivenUpError):
                self._stream.deposed()
                return
            except (HoldfastError, ApiError) as error:
                failures += 1
                pause_seconds = self._note(error, failures)
                # A write that was refused may say that the stream is not as it was thought.
                is_loaded = False
            except Exception as error:
                # It costs this origin, and no other.
                logger.exception("jetstream.copy_failed stream=%s", self._stream.config.name)
                failures += 1
                pause_seconds = self._note(ApiError(500, 10051, repr(error)[:200]), failures)
            if self._changed.is_set():
                self._origin = None
            if pause_seconds:
                try:
                    async with asyncio.timeout(pause_seconds):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def _note(self, error: HoldfastError | ApiError, failures: int) -> float:
        """Remember what went wrong. Return when to try again, in seconds."""
        known = error if isinstance(error, ApiError) else self._setup_failed(error)
        if known != self._error:
            stream, origin = self._stream.config.name, self.source.name
            logger.warning(
                "jetstream.not_copied stream=%s origin=%s reason=%s", stream, origin, error
            )
        self._error = known
        return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(failures, 10))

    async def _load(self) -> None:
        """Read how far it was copied."""
        store = self._stream.store
        if not self._copying.is_mirror:
            found = await store.cursors(cursor_name(self.source))
            self._position = Position.from_bytes(found[0].state) if found else None
            return
        head, config = await store.head(), await store.config()
        self._own_next = head.last_seq + 1
        self._is_unused = head.last_seq < max(1, config.first_seq)

    async def _copy_origin(self) -> None:
        """Copy what there is, and what comes, until the origin is another one."""
        if self.source.consumer:
            # The gateway copies without consumers.
            raise errors.consumer_not_found()
        known = self._directory.known(self.source.name)
        if known is None:
            known = await self._directory.find(self.source.name)
        if known is None:
            self._origin = None
            raise errors.stream_not_found()
        origin = self._stream.holdfast.serving_stream(known.store)
        head = await origin.head()
        if await self._directory.find(self.source.name) != known:
            raise _OriginChangedError
        self._epoch, self._last_seq = head.epoch, head.last_seq
        async with origin.follow(head.revision) as feed:
            self._feed = feed
            try:
                self._next_seq = await self._start(origin, known, head)
                self._origin = origin
                if self._is_unused:
                    await self._jump_to(self._next_seq)
                await self._copy_all(origin, known)
                async for changes in feed:
                    self._heard()
                    if self._is_wanted(changes):
                        await self._copy_all(origin, known)
                    if self._changed.is_set():
                        break
            finally:
                self._feed = None

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._error = None

    async def _start(self, origin: ServingStream, known: OriginId, head: ServingHead) -> int:
        """Return the first seq of the origin that is not copied yet."""
        position = self._position
        if self._copying.is_mirror:
            if not self._is_unused:
                return self._own_next
        elif position is not None and position.origin == known:
            return position.seq + 1
        seq = head.first_seq
        if self.source.opt_start_seq:
            seq = min(max(self.source.opt_start_seq, seq), head.last_seq + 1)
        elif self.source.opt_start_time is not None:
            start_ms = max(0, -(-self.source.opt_start_time // MILLISECOND))
            page = await origin.by_subject(start_time_ms=start_ms, limit=1)
            seq = page.messages[0].seq if page.messages else head.last_seq + 1
        return max(seq, self._own_next)

    def _is_wanted(self, changes: Sequence[ServedChange]) -> bool:
        """Tell whether there is something new to copy. What no filter matches is passed over."""
        for change in changes:
            if isinstance(change, Lost):
                return True
            if isinstance(change, ServedMessage) and change.seq >= self._next_seq:
                filters = self._filters
                if not filters or any(matches(each, change.subject) for each in filters):
                    return True
                self._next_seq = change.seq + 1
        return False

    async def _copy_all(self, origin: ServingStream, known: OriginId) -> None:
        """Copy to the end of the origin."""
        while True:
            async with self._directory.pages:
                page = await origin.by_subject(
                    self._filters, start_seq=self._next_seq, limit=self._page_messages
                )
                self._fit_pages(page.messages)
                head = await origin.head()
                if head.epoch != self._epoch or self._changed.is_set():
                    raise _OriginChangedError
                self._heard()
                await self._store(page.messages, known)
            if page.messages:
                self._next_seq = page.messages[-1].seq + 1
            if page.next_seq is None:
                # What came before the page was asked for is in it.
                self._next_seq = max(self._next_seq, self._last_seq + 1)
            self._last_seq = head.last_seq
            if page.next_seq is None and head.last_seq < self._next_seq:
                return

    def _fit_pages(self, messages: Sequence[ServedMessage]) -> None:
        """Let the next page be of a good size."""
        if sum(len(each.value) for each in messages) > _PAGE_BYTES:
            self._page_messages = max(1, self._page_messages // 4)
        else:
            self._page_messages = min(_MOST_PAGE_MESSAGES, 2 * self._page_messages)

    async def _store(self, messages: Sequence[ServedMessage], known: OriginId) -> None:
        """Store copies of messages, and how far they go."""
        if not messages:
            return
        if self._copying.is_mirror:
            first = messages[0].seq
            if self._is_unused:
                await self._jump_to(first)
            if messages[-1].seq - self._own_next > _LONGEST_GAP:
                raise self._setup_failed(f"its seqs jump from {self._own_next - 1} to {first}")
        for batch in self._copying.batches(messages, self._own_next):
            try:
                await self._write(batch, known)
            except LimitExceededError:
                if len(batch.messages) == 1:
                    raise
                # There may be room for some of them.
                for single in batch.singly():
                    await self._write(single, known)

    async def _jump_to(self, first_seq: int) -> None:
        """Let a mirror that never had a message begin with this seq."""
        if first_seq > self._own_next:
            async with self._writing:
                await self._stream.store.configure(
                    first_seq=first_seq, timeout_seconds=_WRITE_SECONDS
                )
            self._own_next = first_seq

    async def _write(self, batch: CopyBatch, known: OriginId) -> None:
        async with self._writing:
            try:
                stored = await self._write_batch(batch, known)
            except RequestError:
                raise
            except HoldfastError as error:
                # It may be stored yet.
                raise _GivenUpError from error
            # Nothing may come between the answer and this: whoever ends it waits for both.
            self._stored(batch, stored, known)

    async def _write_batch(self, batch: CopyBatch, known: OriginId) -> list[Appended]:
        store, messages = self._stream.store, batch.messages
        packer = store.packer
        behind: list[list[Any]] = []
        if batch.filled:
            behind.append(packer.delete_operation(batch.filled))
        if self._copying.is_mirror:
            first = messages[0]._replace(expected_last_seq=self._own_next - 1)
            messages = [first, *messages[1:]]
        else:
            position = Position(known, batch.end_seq)
            behind.append(
                packer.cursor_operation(
                    cursor_name(self.source), config=CURSOR_CONFIG, state=position.to_bytes()
                )
            )
        if len(messages) == 1 and len(messages[0].value) > MAX_VALUE_BYTES:
            return [await store.append_with(messages[0], behind, timeout_seconds=_WRITE_SECONDS)]
        operations = [packer.append_operation(each) for each in messages]
        for operation in operations:
            # What fills a gap has no subject.
            operation[_SUBJECT] = operation[_SUBJECT] or None
        answers = await store.batch([*operations, *behind], timeout_seconds=_WRITE_SECONDS)
        return answers[: len(messages)]

    def _stored(self, batch: CopyBatch, stored: Sequence[Appended], known: OriginId) -> None:
        self._is_unused = False
        if self._copying.is_mirror:
            self._own_next += len(batch.messages)
        else:
            self._position = Position(known, batch.end_seq)
        self._next_seq = max(self._next_seq, batch.end_seq + 1)
        for message, each in zip(batch.messages, stored, strict=True):
            if message.subject and not each.duplicate:
                self._stream.copied(
                    ServedMessage(
                        each.seq,
                        message.subject,
                        each.time_ms,
                        message.headers,
                        message.value,
                    )
                )
