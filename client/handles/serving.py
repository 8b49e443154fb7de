"""A stream as the gateway that serves it handles it: every write names the serving epoch, headers
are NATS header blocks, and results are plain tuples.

Applications use `stream.py`. What is different here:

- A write is refused with DeposedWriterError once another gateway has raised the stream's
  `serving_epoch`. So a gateway that lost a stream without noticing changes nothing any more.
- Values have no codec, and are not compressed. What native clients have compressed is returned
  decompressed.
- `append_soon` is a plain function for callbacks: it makes neither a future nor a task.
- `follow` yields lists of changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Unpack

from holdfast.client.following.follower import Follower
from holdfast.client.following.served_changes import ServedChanges
from holdfast.client.handles import configuration
from holdfast.client.handles.message_reads import MessageReads
from holdfast.client.handles.owner_jobs import destroy
from holdfast.client.handles.serving_wire import (
    Appended,
    Lost,
    NewMessage,
    Packer,
    Removed,
    ServedChange,
    ServedCursor,
    ServedMessage,
    ServedPage,
    ServingHead,
    Trimmed,
    appended,
    filled,
    head_of,
    stored_messages,
)
from holdfast.client.large_values.large_value import is_large
from holdfast.client.large_values.value_reader import ValueReader
from holdfast.client.large_values.value_upload import put_value
from holdfast.client.values.values import Values
from holdfast.client.wire.link import Answer, Gather, Link
from holdfast.client.wire.operations import PACKED_HEAD, pack_batch
from holdfast.client.wire.waiting import Waiter
from holdfast.protocol.errors import (
    MalformedFrameError,
    TooLargeError,
    ValueReplacedError,
)
from holdfast.protocol.frames import (
    APPEND,
    COUNT,
    CURSORS,
    GAPS,
    GET_BY_SUBJECT,
    GET_LASTS,
    GET_MESSAGE,
    GET_SEQS,
    SUBJECTS,
    pack,
)
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import (
    MAX_MESSAGE_SUBJECT_BYTES,
    MAX_MSG_ID_BYTES,
    MAX_VALUE_BYTES,
    PAGE_BYTES,
)
from holdfast.protocol.messages import (
    Ack,
    Change,
    ChangeKind,
    Durability,
    LargeValue,
    Message,
    SubjectInfo,
)
from holdfast.protocol.names import StoreKind, StoreName
from holdfast.protocol.store_config import ConfigSettings, StoreConfig

_PLAIN: Final = frozenset((ServedMessage,))

#: More than what an append has besides its value and headers.
_FIELDS_BYTES: Final = MAX_MESSAGE_SUBJECT_BYTES + MAX_MSG_ID_BYTES + 1024

_new: Final = tuple.__new__


class ServingStream:
    """A stream, for the gateway that serves it. Made by `Client.serving_stream`.

    It makes no round trip, and holds only a name and a serving epoch. Every method raises what
    those of `Stream` raise, and writes raise DeposedWriterError too.

    `durability` is the number of a Durability: 0 is the stream's own.
    """

    def __init__(
        self,
        link: Link,
        follower: Follower,
        name: StoreName,
        values: Values[bytes],
        serving_epoch: int | None,
        beside: str = "",
    ) -> None:
        self.name = name
        self._beside = beside
        self._values = values
        self._link = link
        self._follower = follower
        self._key = (int(StoreKind.STREAM), str(name))
        self._reads = MessageReads(link, self._key)
        #: Packs operations for `batch`.
        self.packer = Packer(serving_epoch)

    @property
    def serving_epoch(self) -> int | None:
        """The serving epoch that every write names; with None, a write names none."""
        return self.packer.serving_epoch

    @serving_epoch.setter
    def serving_epoch(self, serving_epoch: int | None) -> None:
        self.packer.serving_epoch = serving_epoch

    # Writes

    @property
    def full(self) -> bool:
        """Whether the client has so many unanswered operations that callers of `append_soon` must
        wait: see `wait_for_room`."""
        return self._link.full

    async def wait_for_room(self, timeout_seconds: float | None = None) -> None:
        """Return when there is room for another operation. Raises OperationTimeoutError."""
        await self._link.wait_for_room(timeout_seconds)

    def append_soon(
        self,
        waiter: Waiter,
        subject: str,
        value: bytes,
        headers: bytes = b"",
        msg_id: str | None = None,
        expected_last_seq: int | None = None,
        ttl_seconds: float | None = None,
        options: dict[str, Any] | None = None,
        durability: int = 0,
        timeout_seconds: float | None = None,
    ) -> None:
        """Start an append, and return at once. Appends are stored in the order of the calls.

        `waiter` is any object with two methods. `set_result(answer)` is called on the loop, with
        what `appended` takes; `done()` returns False as long as the answer is wanted. `options` is
        a map of the options of APPEND in docs/protocol.md.

        Nothing is checked, and the owner refuses what is wrong. Raises TooLargeError for what does
        not fit in one frame (`append` takes it), and ConnectionFailedError if the client is closed.

        """
        if len(value) > MAX_VALUE_BYTES:
            raise TooLargeError(what="a value", size=len(value), limit=MAX_VALUE_BYTES)
        packed = self.packer.append(
            subject, value, headers, msg_id, expected_last_seq, ttl_seconds, options
        )
        self._link.submit_for(waiter, self._key, packed, True, durability, timeout_seconds)

    def append_run_soon(
        self,
        waiter: Waiter,
        messages: Sequence[tuple[str, bytes, bytes]],
        durability: int = 0,
        timeout_seconds: float | None = None,
    ) -> None:
        """Start appends of messages `(subject, value, headers)` that ask for nothing else, and
        return at once: see `append_soon`. Each is stored or refused by itself, and all must fit
        into one frame. `waiter` gets `(results, time, durability)`: a Run, or a list of what the
        first element of an answer is to `append_soon`; or the error of all of them."""
        run = self.packer.run(messages)
        self._link.submit_for(waiter, self._key, run, True, durability, timeout_seconds)

    def before_sending(self, gather: Gather) -> None:
        """Call `gather` just before the next frame is made: what it submits leaves with that frame.
        So whoever gathers the appends of a turn loses no time.

        It is called once, and again as long as it returns True, each time for a frame of its own
        that is sent before: so the owner begins while the rest is made. It is never called within
        a call of this class, nor among answers.
        """
        self._link.before_sending(gather)

    @property
    def is_beside_owner(self) -> bool:
        """Whether the owner works in the process of this gateway, as far as it is known."""
        return self._beside != "" and self._link.owner_of(self._key) == self._beside

    @property
    def writes(self) -> tuple[int, int]:
        """Two numbers of writes of this client: see `Link.writes_of`."""
        return self._link.writes_of(self._key)

    @staticmethod
    def appended(answer: Answer | Ack) -> Appended:
        """Return the result of an append from what a waiter was given, or raise its error."""
        if type(answer) is Ack:
            return Appended(answer.seq or 0, answer.revision, answer.time, answer.duplicate)
        result, time, _ = Link.unwrap(answer)
        return appended(result, time)

    async def append(
        self,
        subject: str,
        value: bytes,
        headers: bytes = b"",
        *,
        msg_id: str | None = None,
        expected_last_seq: int | None = None,
        ttl_seconds: float | None = None,
        options: dict[str, Any] | None = None,
        durability: int = 0,
        timeout_seconds: float | None = None,
    ) -> Appended:
        """Append a message of any size, and return what `appended` does."""
        link = self._link
        with_headers_bytes = len(value) + len(headers) + _FIELDS_BYTES
        if is_large(value) or with_headers_bytes > link.operation_limit_bytes:
            message = NewMessage(
                subject, b"", headers, msg_id, expected_last_seq, ttl_seconds, options
            )

            async def commit(large: LargeValue) -> Ack:
                packed = pack(self.packer.append_operation(message, list(large)))
                answer = await link.submit(self._key, packed, True, durability, timeout_seconds)
                seq, revision, time, duplicate, _ = self.appended(answer)
                return Ack(seq, revision, time, Durability.DEFAULT, duplicate)

            return self.appended(await put_value(link, self._key, value, commit, timeout_seconds))
        if link.full:
            await link.wait_for_room(timeout_seconds)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.append_soon(
            future,
            *(subject, value, headers, msg_id, expected_last_seq, ttl_seconds, options),
            durability=durability,
            timeout_seconds=timeout_seconds,
        )
        return self.appended(await future)

    async def append_batch(
        self,
        messages: Sequence[NewMessage],
        *,
        durability: int = 0,
        timeout_seconds: float | None = None,
    ) -> list[Appended]:
        """Append all messages or none. All conditions are checked against the stream before the
        batch. Raises TooLargeError unless all fit into one frame."""
        operations = [self.packer.append_operation(message) for message in messages]
        return await self.batch(operations, durability=durability, timeout_seconds=timeout_seconds)

    async def batch(
        self,
        operations: Sequence[list[Any]],
        *,
        durability: int = 0,
        timeout_seconds: float | None = None,
    ) -> list[Any]:
        """Do all operations or none, for example to remove a message and change a cursor. Make them
        with `packer`. Return an Appended for each append, and of others the result on the wire.
        """
        packed = pack_batch(operations, self._link.operation_limit_bytes)
        results, time, _ = await self._link.call(
            self._key, packed, True, durability, timeout_seconds
        )
        if len(results) != len(operations):
            raise MalformedFrameError(reason=f"{len(results)} results of {len(operations)}")
        return [
            appended(result, time) if operation[0] == APPEND else result
            for operation, result in zip(operations, results, strict=True)
        ]

    async def append_with(
        self,
        message: NewMessage,
        operations: Sequence[list[Any]],
        *,
        timeout_seconds: float | None = None,
    ) -> Appended:
        """Append a message of any size and do these operations, all or none: see `batch`."""
        with_headers_bytes = len(message.value) + len(message.headers) + _FIELDS_BYTES
        if not (
            is_large(message.value) or 2 * with_headers_bytes > self._link.operation_limit_bytes
        ):
            first, *_ = await self.batch(
                [self.packer.append_operation(message), *operations],
                timeout_seconds=timeout_seconds,
            )
            assert isinstance(first, Appended)
            return first

        async def commit(large: LargeValue) -> Ack:
            append = self.packer.append_operation(message, list(large))
            answers = await self.batch([append, *operations], timeout_seconds=timeout_seconds)
            seq, revision, time, duplicate, _ = answers[0]
            return Ack(seq, revision, time, Durability.DEFAULT, duplicate)

        return self.appended(
            await put_value(self._link, self._key, message.value, commit, timeout_seconds)
        )

    def append_batch_soon(
        self,
        waiter: Waiter,
        messages: Sequence[NewMessage],
        durability: int = 0,
        timeout_seconds: float | None = None,
    ) -> None:
        """Start an `append_batch`, and return at once: see `append_soon`. `waiter` gets what
        `batch_appended` takes. Raises TooLargeError unless all messages fit into one frame."""
        operations = [self.packer.append_operation(message) for message in messages]
        packed = pack_batch(operations, self._link.operation_limit_bytes)
        self._link.submit_for(waiter, self._key, packed, True, durability, timeout_seconds)

    @staticmethod
    def batch_appended(answer: Answer | Ack) -> list[Appended]:
        """Return the results of a batch of appends from what a waiter was given, or raise its
        error."""
        results, time, _ = Link.unwrap(answer)
        return [appended(result, time) for result in results]

    async def delete(
        self, *seqs: int, durability: int = 0, timeout_seconds: float | None = None
    ) -> int:
        """Remove messages. Return how many of them existed."""
        operation = self.packer.delete_operation(seqs)
        (count, _), *_ = await self._write(operation, durability, timeout_seconds)
        return int(count)

    async def purge(
        self,
        filter_: str | None = None,
        *,
        before_seq: int | None = None,
        keep: int | None = None,
        durability: int = 0,
        timeout_seconds: float | None = None,
    ) -> int:
        """Remove the messages that match `filter_` and are below `before_seq`, or all but the last
        `keep` of them. Return how many existed. This takes several operations if there are many.
        """
        purged, more = 0, True
        operation = self.packer.purge_operation(filter_, before_seq, keep)
        while more:
            (count, _, more), *_ = await self._write(operation, durability, timeout_seconds)
            purged += count
        return purged

    async def configure(
        self, *, timeout_seconds: float | None = None, **settings: Unpack[ConfigSettings]
    ) -> StoreConfig:
        """Change settings, as `Stream.configure` does. Without the setting `serving_epoch`, this is
        a write like any other. With it, it says who serves the stream from now on: the epoch may
        only grow, and a smaller or equal one raises DeposedWriterError. Set the `serving_epoch` of
        this handle, too."""
        epoch = None if "serving_epoch" in settings else self.serving_epoch
        return await configuration.configure(
            self._link, self._key, settings, timeout_seconds, serving_epoch=epoch
        )

    async def begin_serving(
        self,
        epoch: int,
        *,
        only_unused: bool = False,
        former_epoch: int | None = None,
        timeout_seconds: float | None = None,
        **settings: Unpack[ConfigSettings],
    ) -> int:
        """Say who serves the stream from now on, and change settings with it, as `configure` does.
        Return the revision of this change: 1 if nobody had ever written the stream.

        With `only_unused`, raise WrongRevisionError if the stream ever had a message, or has a
        consumer, a cursor or a configuration; one that whoever serves it by `former_epoch` has made
        does not count. Raises DeposedWriterError if that is no longer the serving epoch.
        """
        settings["serving_epoch"] = epoch
        revision = await configuration.begin_serving(
            self._link,
            self._key,
            settings,
            timeout_seconds,
            serving_epoch=former_epoch,
            only_unused=only_unused,
        )
        self.serving_epoch = epoch
        return revision

    async def config(self, *, timeout_seconds: float | None = None) -> StoreConfig:
        """Return the configuration."""
        return await configuration.config(self._link, self._key, timeout_seconds)

    async def destroy(
        self, *, epoch: int | None = None, timeout_seconds: float | None = None
    ) -> bool:
        """Remove the stream, as `Stream.destroy` does. With `epoch`, which a head has told, a
        stream that was made again since stays."""
        return await destroy(self._link, self._key, timeout_seconds, epoch)

    # Cursors

    async def set_cursor(
        self,
        name: str,
        *,
        config: bytes | None = None,
        state: bytes | None = None,
        rows: Sequence[tuple[int, bytes]] = (),
        removed: Sequence[int] = (),
        durability: int = 0,
        timeout_seconds: float | None = None,
    ) -> int:
        """Create or change a cursor: what is None stays as it is, then `rows` are set by their seq
        and those of `removed` go. Return the revision."""
        operation = self.packer.cursor_operation(
            name, config=config, state=state, rows=rows, removed=removed
        )
        (revision, *_), *_ = await self._write(operation, durability, timeout_seconds)
        return int(revision)

    async def delete_cursor(
        self, name: str, *, durability: int = 0, timeout_seconds: float | None = None
    ) -> bool:
        """Remove a cursor and its rows. Return False if there was none."""
        operation = self.packer.delete_cursor_operation(name)
        (count, _), *_ = await self._write(operation, durability, timeout_seconds)
        return bool(count)

    async def cursors(
        self, name: str | None = None, *, timeout_seconds: float | None = None
    ) -> list[ServedCursor]:
        """Return all cursors in order of name, or the one with this name."""
        found: list[ServedCursor] = []
        from_name: str | None = None
        after_seq: int | None = None
        while True:
            operation = [CURSORS, name, from_name, after_seq]
            page, from_name, after_seq = await self._read(operation, timeout_seconds)
            for each, config, state, rows in page:
                if config is None:
                    # More rows of the last cursor of the page before.
                    found[-1].rows.extend((seq, data) for seq, data in rows)
                else:
                    rows = [(seq, data) for seq, data in rows]
                    found.append(ServedCursor(each, config, state, rows))
            if from_name is None:
                return found

    # Reads

    async def head(self, *, timeout_seconds: float | None = None) -> ServingHead:
        """Return the state of the stream."""
        wire, *_ = await self._link.call(self._key, PACKED_HEAD, False, 0, timeout_seconds)
        return head_of(wire)

    async def get(self, seq: int, *, timeout_seconds: float | None = None) -> ServedMessage | None:
        """Return a message, or None if there is none with this seq."""
        row = await self._read([GET_MESSAGE, seq], timeout_seconds)
        if row is None:
            return None
        found = await self._stored([row])
        return found[0] if found else None

    async def get_many(
        self, seqs: Sequence[int], *, timeout_seconds: float | None = None
    ) -> tuple[list[ServedMessage], int]:
        """Return a page of these messages in the order of `seqs`, without those that do not exist,
        and how many of `seqs` it answers: at least one. Ask again for the others."""
        rows, next_index = await self._read([GET_SEQS, list(seqs)], timeout_seconds)
        messages, count = await self._first_stored(rows)
        if count < len(rows):
            # The row with this index has at least this index among the seqs, too.
            return messages, seqs.index(rows[count][0], count)
        return messages, len(seqs) if next_index is None else next_index

    async def by_subject(
        self,
        filters: Sequence[str] = (),
        *,
        start_seq: int | None = None,
        start_time_ms: int | None = None,
        limit: int | None = None,
        max_bytes: int | None = None,
        timeout_seconds: float | None = None,
    ) -> ServedPage:
        """Return messages that match any filter (without filters: all), in order of seq: at least
        one, if there is one. A page may be short; a `next_seq` of None is the end. It takes several
        round trips if only few messages match. `timeout_seconds` applies to each."""
        while True:
            operation = [
                *(GET_BY_SUBJECT, list(filters), start_seq, start_time_ms, limit, max_bytes)
            ]
            rows, start_seq = await self._read(operation, timeout_seconds)
            messages, count = await self._first_stored(rows)
            if count < len(rows):
                start_seq = rows[count][0]
            if messages or start_seq is None:
                return ServedPage(messages, start_seq)

    async def lasts(
        self,
        filters: Sequence[str],
        *,
        up_to_seq: int | None = None,
        after_seq: int | None = None,
        limit: int | None = None,
        timeout_seconds: float | None = None,
    ) -> ServedPage:
        """Return the last message of each subject that matches any filter, in order of seq: as of
        `up_to_seq`, and only those above `after_seq`; at least one, if there is one. Pass
        `next_seq` of the page as the `after_seq` of the next."""
        while True:
            operation = [GET_LASTS, list(filters), up_to_seq, after_seq, limit]
            rows, after_seq = await self._read(operation, timeout_seconds)
            messages, count = await self._first_stored(rows)
            if count < len(rows):
                after_seq = rows[count - 1][0]
            if messages or after_seq is None:
                return ServedPage(messages, after_seq)

    def lasts_soon(self, waiter: Waiter, subjects: Sequence[str]) -> None:
        """Start to read the last message of each of these subjects, which have no wildcards, and
        return at once: see `append_soon`. `waiter` gets what `found_lasts` takes. Raises
        TooLargeError, and ConnectionFailedError if the client is closed."""
        packed = pack((GET_LASTS, subjects, None, None, None))
        self._link.submit_for(waiter, self._key, packed, False)

    @staticmethod
    def found_lasts(answer: Answer | Ack) -> tuple[list[ServedMessage], list[str], bool]:
        """Return the messages in what a waiter was given, the subjects of those with large values,
        and whether that is all: otherwise, ask again for the others. Or raise its error."""
        (rows, after_seq), *_ = Link.unwrap(answer)
        found: list[Any] = stored_messages(rows)
        large: list[str] = []
        if not _PLAIN.issuperset(map(type, found)):
            large = [row[5] for row, _ in (each for each in found if type(each) is tuple)]
            found = [each for each in found if type(each) is not tuple]
        return found, large, after_seq is None

    async def last(
        self, subject: str, *, timeout_seconds: float | None = None
    ) -> ServedMessage | None:
        """Return the last message that matches a subject or a filter, or None."""
        row = await self._reads.last_row(subject, timeout_seconds)
        found = [] if row is None else await self._stored([row])
        return found[0] if found else None

    async def last_seq(self, filter_: str, *, timeout_seconds: float | None = None) -> int:
        """Return the seq of the last message that matches a subject or a filter, 0 for none. A
        large value is not fetched."""
        row = await self._reads.last_row(filter_, timeout_seconds)
        return 0 if row is None else int(row[0])

    async def subjects(
        self,
        filter_: str = ">",
        *,
        after_subject: str | None = None,
        limit: int | None = None,
        timeout_seconds: float | None = None,
    ) -> tuple[list[SubjectInfo], str | None]:
        """Return the subjects that match, in order of their bytes, and what to pass as
        `after_subject` for the next page (None: this is the last)."""
        rows, after = await self._read([SUBJECTS, filter_, after_subject, limit], timeout_seconds)
        return [SubjectInfo(*row[:4]) for row in rows], after

    async def count(
        self,
        filters: Sequence[str] = (),
        start_seq: int | None = None,
        *,
        lasts: bool = False,
        timeout_seconds: float | None = None,
    ) -> tuple[int, int]:
        """Return how many messages from `start_seq` on match any filter, and the last seq as of
        which that is so. With `lasts`, count the subjects whose last message is one of them."""
        found, end_seq = 0, None
        while True:
            operation = [COUNT, list(filters), start_seq, lasts, end_seq]
            counted, last_seq, start_seq = await self._read(operation, timeout_seconds)
            found += counted
            end_seq = last_seq if end_seq is None else end_seq
            if start_seq is None:
                return found, end_seq

    async def gaps(self, *, timeout_seconds: float | None = None) -> AsyncIterator[list[int]]:
        """Yield the removed seqs between the first and the last message, page by page."""
        next_seq: int | None = None
        while True:
            seqs, next_seq = await self._read([GAPS, next_seq, None], timeout_seconds)
            yield seqs
            if next_seq is None:
                return

    def follow(self, start_revision: int | None = None) -> ServedChanges[ServedChange]:
        """Follow the stream: return an async iterator of lists of changes, each change once, in the
        order of revisions, whoever owns the stream.

        They begin after `start_revision`, for example that of a `head`; with None, now. Enter it
        with `async with`: from then on nothing is missed. A message that was stored and removed
        while the follower was behind appears only as removed. After a Lost, read again what you
        know; the changes after its revision follow. A value above the largest payload of NATS
        is b"".
        """
        return ServedChanges(self._link, self._follower, self._key, start_revision, self._changes)

    # Inside

    async def _write(
        self, operation: list[Any], durability: int, timeout_seconds: float | None
    ) -> Answer:
        return await self._link.call(self._key, pack(operation), True, durability, timeout_seconds)

    async def _read(self, operation: list[Any], timeout_seconds: float | None) -> Any:
        answer = await self._link.call(self._key, pack(operation), False, 0, timeout_seconds)
        return answer[0]

    async def _stored(self, rows: list[list[Any]]) -> list[ServedMessage]:
        """Return the messages of rows. One that is removed while its large value is fetched
        is left out."""
        found = stored_messages(rows)
        if _PLAIN.issuperset(map(type, found)):
            plain: Any = found
            return list(plain)
        whole = [await self._present(each) for each in found]
        return [message for message in whole if message is not None]

    async def _first_stored(self, rows: list[list[Any]]) -> tuple[list[ServedMessage], int]:
        """Return the messages of the first rows of a page, and how many rows that are. The owner
        counts only the bytes of rows: large values are fetched until they have PAGE_BYTES."""
        found = stored_messages(rows)
        if _PLAIN.issuperset(map(type, found)):
            plain: Any = found
            return list(plain), len(rows)
        messages: list[ServedMessage] = []
        large_bytes = 0
        for count, each in enumerate(found, 1):
            message = await self._present(each)
            if message is None:
                continue
            messages.append(message)
            if not isinstance(each, ServedMessage):
                large_bytes += len(message.value)
            if large_bytes >= PAGE_BYTES:
                return messages, count
        return messages, len(rows)

    async def _present(
        self, found: ServedMessage | tuple[list[Any], LargeValue]
    ) -> ServedMessage | None:
        """Do what `_whole` does. Return the message that is in its place now if it is replaced
        meanwhile: for who reads messages, it has not gone."""
        message = await self._whole(found)
        while message is None and not isinstance(found, ServedMessage):
            before, _ = found
            row = await self._read([GET_MESSAGE, before[0]], None)
            if row is None or row[1] == before[1]:
                return None
            [found] = stored_messages([row])
            message = await self._whole(found)
        return message

    async def _whole(
        self, found: ServedMessage | tuple[list[Any], LargeValue]
    ) -> ServedMessage | None:
        """Return a message with its large value, which has to be fetched; None if that is gone."""
        if isinstance(found, ServedMessage):
            return found
        row, large = found
        if large.size_bytes > self._link.bus.max_payload_bytes:
            return filled(row, b"")
        message = Message(row[0], b"", {}, row[2], row[1], large)
        what = self._values.message_name(message.seq)
        reader = ValueReader(self._link, self._key, message, what, None)
        try:
            return filled(row, await reader.read())
        except ValueReplacedError:
            return None

    async def _changes(self, changes: Sequence[Change]) -> tuple[list[ServedChange], int]:
        """Return the first changes as a gateway sees them, and how many that are. They took only
        the bytes of what was broadcast: large values are fetched until they have PAGE_BYTES."""
        found = [self._change(change) for change in changes]
        if tuple not in set(map(type, found)):
            return found, len(found)
        given: list[ServedChange] = []
        large_bytes = 0
        for count, each in enumerate(found, 1):
            change = each
            if type(each) is tuple:
                change = await self._whole(each)
                if change is None:
                    continue
                large_bytes += len(change.value)
            given.append(change)
            if large_bytes >= PAGE_BYTES:
                return given, count
        return given, len(found)

    @staticmethod
    def _change(change: Change) -> Any:
        """Return a change; of a message with a large value, what `_whole` takes."""
        message = change.message
        if message is None:
            if change.kind is ChangeKind.DELETE:
                return Removed(change.seqs)
            if change.kind is ChangeKind.TRIM:
                return Trimmed(change.end_seq)
            return Lost(change.revision)
        seq, value, headers, time, revision, large, subject = message
        if type(headers) is HeaderBlock:
            return _new(ServedMessage, (seq, subject or "", time, headers.block, value))
        row = [seq, revision, time, value, headers, subject]
        return filled(row, value) if large is None else (row, large)
