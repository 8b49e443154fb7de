"""Transactions: several writes to one store, and what they rest on, stored together or not at all.

Optimistic: nothing is locked. What was read is remembered with its revision, and the owner stores the
writes only if all of it still is as it was seen; else nothing is stored and the caller may begin
again, with what is there now. It is one operation on the wire, an atomic batch with conditions: so it is stored
once however often it is sent, and followers see its changes one after the other.

Does not span stores, and does not see keys that were not read (no ranges).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from holdfast.client.link import Link
from holdfast.client.operations import (
    Value,
    append_operation,
    check_seq,
    checked_durability,
    checked_headers,
    checked_value,
    delete_entries_operation,
    delete_messages_operation,
    entry_from_wire,
    expect_operation,
    message_from_wire,
    pack_batch,
    set_entry_operation,
    set_message_operation,
)
from holdfast.client.store_queue import StoreKey
from holdfast.client.values import Values
from holdfast.protocol.errors import InvalidArgumentError, MalformedFrameError
from holdfast.protocol.frames import (
    APPEND,
    DELETE_ENTRIES,
    DELETE_MESSAGES,
    GET_ENTRY,
    GET_MESSAGE,
    pack,
)
from holdfast.protocol.messages import Ack, Deleted, Durability, Entry, Headers, Message, V
from holdfast.protocol.names import check_key

_Key = TypeVar("_Key", str, int)
_Row = TypeVar("_Row", bound=Entry[Any] | Message[Any])


class _Transaction(Generic[_Key, _Row, V]):
    """What the transactions of both kinds of store have in common."""

    def __init__(
        self,
        link: Link,
        key: StoreKey,
        values: Values[V],
        durability: Durability | str | None,
        timeout_seconds: float | None,
    ) -> None:
        self._link = link
        self._key = key
        self._values = values
        self._durability = checked_durability(durability)
        self._timeout_seconds = timeout_seconds
        self._seen: dict[_Key, _Row | None] = {}
        self._expected: dict[_Key | None, int] = {}
        self._written: dict[_Key, _Row | None] = {}
        self._operations: list[list[Any]] = []
        self._committed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, unless the body failed: then nothing is stored."""
        if exc_type is None and not self._committed:
            await self.commit()

    async def commit(self) -> list[Ack | Deleted]:
        """Store all of it, and return what came of each write, in order.

        Raises WrongRevisionError or WrongLastSeqError when something is not any more as it was read
        or expected, InvalidSeqError, LimitExceededError, RateLimitedError: nothing was stored. All
        must fit in one frame of about 1 MB and 4096 operations: TooLargeError. Of a transaction that
        only read it says whether all that it saw was so at one time.
        """
        self._check_open()
        self._committed = True
        conditions = [expect_operation(*condition) for condition in self._expected.items()]
        if not conditions and not self._operations:
            return []
        packed = pack_batch(conditions + self._operations, self._link.operation_limit_bytes)
        results, time, durability = await self._link.call(
            self._key, packed, True, self._durability, self._timeout_seconds
        )
        if len(results) != len(conditions) + len(self._operations):
            raise MalformedFrameError(reason=f"{len(results)} results of a transaction")
        return [
            _result(operation, result, time, durability)
            for operation, result in zip(self._operations, results[len(conditions) :], strict=True)
        ]

    def _check_open(self) -> None:
        if self._committed:
            raise InvalidArgumentError(argument="transaction", reason="it has been committed")

    async def _read(self, number: int, key: _Key) -> Any:
        answer = await self._link.call(
            self._key, pack([number, key]), False, 0, self._timeout_seconds
        )
        return answer[0]

    def _saw(self, key: _Key, row: _Row | None) -> _Row | None:
        self._seen[key] = row
        self._expected.setdefault(key, 0 if row is None else row.revision)
        return row


class KVTransaction(_Transaction[str, Entry[V], V], Generic[V]):
    """Several keys of a kv, changed together. Made by `KV.transaction`; commits at the end of its
    `async with`, or by `commit`. For one task."""

    async def get(self, key: str) -> Entry[V] | None:
        """Return the entry of `key`, or None; the commit holds only if that is still so then.

        A key that was read before is the same again; one that this transaction has set is as it
        will be, with revision and time 0.
        """
        self._check_open()
        check_key(key)
        if key in self._written:
            return self._written[key]
        if key in self._seen:
            return self._seen[key]
        wire = await self._read(GET_ENTRY, key)
        return self._saw(key, None if wire is None else self._values.entry(entry_from_wire(wire)))

    def expect(self, key: str, revision: int) -> None:
        """Let the commit hold only if `revision` is the key's then (0: there is no such key)."""
        self._check_open()
        expect_operation(check_key(key), revision)
        self._expected[key] = revision

    def set(
        self,
        key: str,
        value: V | Value,
        *,
        headers: Headers | None = None,
        ttl_seconds: float | None = None,
    ) -> None:
        """Set `key` at the commit. Arguments as those of `KV.set`."""
        self._check_open()
        values = self._values
        data = values.encoded(value)
        stored, marked = values.stored(data, headers)
        self._operations.append(set_entry_operation(key, stored, marked, None, ttl_seconds))
        plain = Entry(key, checked_value(data), checked_headers(headers) or {}, 0, 0)
        self._written[key] = values.entry(plain)

    def delete(self, keys: str | Sequence[str]) -> None:
        """Delete one key or several at the commit, those that are there."""
        self._check_open()
        operation = delete_entries_operation(keys)
        self._operations.append(operation)
        self._written.update(dict.fromkeys(operation[1]))


class StreamTransaction(_Transaction[int, Message[V], V], Generic[V]):
    """Several messages of a stream, changed together. Made by `Stream.transaction`; commits at the
    end of its `async with`, or by `commit`. For one task."""

    async def get(self, seq: int) -> Message[V] | None:
        """Return message `seq`, or None; the commit holds only if that is still so then.

        One that this transaction has set is as it will be, with revision and time 0.
        """
        self._check_open()
        check_seq("seq", seq)
        if seq in self._written:
            return self._written[seq]
        if seq in self._seen:
            return self._seen[seq]
        wire = await self._read(GET_MESSAGE, seq)
        found = None if wire is None else self._values.message(message_from_wire(wire))
        return self._saw(seq, found)

    def expect(self, seq: int, revision: int) -> None:
        """Let the commit hold only if `revision` is that of message `seq` then (0: there is none)."""
        self._check_open()
        expect_operation(check_seq("seq", seq), revision)
        self._expected[seq] = revision

    def expect_last_seq(self, last_seq: int) -> None:
        """Let the commit hold only if `last_seq` is the stream's then (0: never written)."""
        self._check_open()
        expect_operation(None, last_seq)
        self._expected[None] = last_seq

    def append(
        self,
        value: V | Value,
        *,
        headers: Headers | None = None,
        msg_id: str | None = None,
        ttl_seconds: float | None = None,
    ) -> None:
        """Append a message at the commit. Arguments as those of `Stream.append`."""
        self._check_open()
        stored, marked = self._values.stored(self._values.encoded(value), headers)
        self._operations.append(append_operation(stored, marked, msg_id, None, ttl_seconds))

    def set(
        self,
        seq: int,
        value: V | Value,
        *,
        headers: Headers | None = None,
        ttl_seconds: float | None = None,
    ) -> None:
        """Replace message `seq` at the commit. Arguments as those of `Stream.set`."""
        self._check_open()
        values = self._values
        data = values.encoded(value)
        stored, marked = values.stored(data, headers)
        self._operations.append(set_message_operation(seq, stored, marked, ttl_seconds))
        plain = Message(seq, checked_value(data), checked_headers(headers) or {}, 0, 0)
        self._written[seq] = values.message(plain)

    def delete(self, seqs: int | Sequence[int]) -> None:
        """Delete one message or several at the commit, those that are there."""
        self._check_open()
        operation = delete_messages_operation(seqs)
        self._operations.append(operation)
        self._written.update(dict.fromkeys(operation[1]))


def _result(
    operation: list[Any], result: Sequence[Any], time: int, durability: Durability
) -> Ack | Deleted:
    if operation[0] in (DELETE_ENTRIES, DELETE_MESSAGES):
        return Deleted(result[0], result[1])
    if len(result) > 2 and operation[0] == APPEND:
        seq, revision, first_time, duplicate = result[:4]
        return Ack(seq, revision, first_time, durability, duplicate)
    return Ack(result[0] or None, result[1], time, durability)
