"""Transactions: several writes to one store, with the reads they rest on, stored together or not
at all.

They are optimistic: nothing is locked. The client remembers what was read, with its revision. The
owner stores the writes only if all of that is unchanged; otherwise nothing is stored and the caller
may begin again. On the wire a transaction is one operation, an atomic batch with conditions. So it
is stored once however often it is sent, and followers see its changes one after the other.

A transaction that only reads is consistent by itself if everything came in one answer, as one `get`
or one `get_many` does; it then asks the owner for nothing at its end. Otherwise faster writers
could make it fail again and again. So the client remembers what a failed transaction had read, and
the next one on this store that begins with any of it reads all of it at once. A reader that tries
again therefore succeeds, whatever writers do.

A transaction does not span stores. That of a kv has conditions on all keys with a prefix, which
see the key that somebody adds too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from holdfast.client.values.values import Values
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import (
    Value,
    ack_from_wire,
    append_operation,
    append_options,
    check_seq,
    checked_durability,
    checked_headers,
    checked_map,
    checked_value,
    delete_entries_operation,
    delete_messages_operation,
    delete_prefix_operation,
    entry_from_wire,
    expect_only_operation,
    expect_operation,
    expect_unchanged_operation,
    head_from_wire,
    listed,
    message_from_wire,
    pack_batch,
    set_entry_operation,
    set_message_operation,
)
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import (
    InvalidArgumentError,
    MalformedFrameError,
    TooLargeError,
    WrongRevisionError,
)
from holdfast.protocol.frames import (
    DELETE_ENTRIES,
    DELETE_MESSAGES,
    DELETE_PREFIX,
    GET_ENTRIES,
    GET_ENTRY,
    GET_KEYS,
    GET_MESSAGE,
    GET_SEQS,
    HEAD,
    pack,
)
from holdfast.protocol.header_block import headers_from_wire
from holdfast.protocol.limits import (
    MAX_CONTENDED_KEYS,
    MAX_CONTENDED_STORES,
    MAX_DELETE_COUNT,
    PAGE_ROWS,
)
from holdfast.protocol.messages import (
    Ack,
    AnyDurability,
    Deleted,
    Durability,
    Entry,
    Headers,
    Message,
    V,
)
from holdfast.protocol.names import check_key

_Key = TypeVar("_Key", str, int)
_Row = TypeVar("_Row", bound=Entry[Any] | Message[Any])


class _Transaction(ABC, Generic[_Key, _Row, V]):
    """What the transactions of both kinds of store have in common."""

    def __init__(
        self,
        link: Link,
        key: StoreKey,
        values: Values[V],
        durability: AnyDurability | None,
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
        #: Rows that were read ahead, each with the number of its answer.
        self._fetched: dict[_Key, tuple[_Row | None, int]] = {}
        #: The numbers of the answers that the rows seen came in, and how many answers there were.
        self._answers: set[int] = set()
        self._answer_count = 0
        #: Whether there are conditions that do not come from reads.
        self._has_conditions = False
        #: Conditions that concern more than one row.
        self._conditions: list[list[Any]] = []
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
        """Store all writes, and return the result of each, in order.

        Everything must fit into one frame of about 1 MB and 4096 operations. A transaction that
        only reads checks that everything it saw was true at one moment. If that fails, the next
        transaction on this store reads all of it in one request, so it succeeds however often
        others write.

        Raises WrongRevisionError or WrongLastSeqError if something is no longer as it was read or
        expected; InvalidSeqError, LimitExceededError, RateLimitedError and TooLargeError. After
        these errors nothing was stored.
        """
        self._check_open()
        self._committed = True
        if not self._operations and not self._has_conditions and len(self._answers) <= 1:
            return []
        conditions = [expect_operation(*condition) for condition in self._expected.items()]
        conditions += self._conditions
        packed = pack_batch(conditions + self._operations, self._link.operation_limit_bytes)
        try:
            results, time, durability = await self._link.call(
                self._key, packed, True, self._durability, self._timeout_seconds
            )
        except WrongRevisionError:
            self._remember()
            raise
        if len(results) != len(conditions) + len(self._operations):
            raise MalformedFrameError(reason=f"{len(results)} results of a transaction")
        return [
            _result(operation, result, time, durability)
            for operation, result in zip(self._operations, results[len(conditions) :], strict=True)
        ]

    def _check_open(self) -> None:
        if self._committed:
            raise InvalidArgumentError(argument="transaction", reason="it is already committed")

    async def _call(self, operation: list[Any]) -> Any:
        answer = await self._link.call(
            self._key, pack(operation), False, 0, self._timeout_seconds
        )
        self._answer_count += 1
        return answer[0]

    async def _get(self, key: _Key) -> _Row | None:
        """Return what `get` does."""
        self._check_open()
        if key in self._written:
            return self._written[key]
        if key in self._seen:
            return self._seen[key]
        if key not in self._fetched:
            lately = self._link.contended.get(self._key, ())
            if key in lately and not self._seen:
                await self._fetch(list(lately))
            else:
                row = await self._read_one(key)
                self._fetched[key] = row, self._answer_count
        return self._saw(key)

    async def _get_many(self, keys: list[_Key]) -> list[_Row | None]:
        """Return what `get_many` does."""
        self._check_open()
        known = {**self._seen, **self._written}
        if new := [key for key in dict.fromkeys(keys) if key not in known]:
            await self._fetch(new)
        return [self._written[key] if key in self._written else self._saw(key) for key in keys]

    async def _fetch(self, keys: list[_Key]) -> None:
        """Read several rows, in one answer if they fit."""
        while keys:
            part = keys[:PAGE_ROWS]
            rows, next_index = await self._read_some(part)
            if len(rows) != next_index or not rows:
                raise MalformedFrameError(reason="a page of a transaction that does not advance")
            for key, row in zip(part, rows, strict=False):
                self._fetched[key] = row, self._answer_count
            keys = keys[next_index:]

    @abstractmethod
    async def _read_one(self, key: _Key) -> _Row | None:
        """Return the row of a key or seq."""

    @abstractmethod
    async def _read_some(self, keys: list[_Key]) -> tuple[list[_Row | None], int]:
        """Return the rows of the first `keys`, as many as came in one answer, and their number."""

    def _saw(self, key: _Key) -> _Row | None:
        if key in self._seen:
            return self._seen[key]
        row, answer = self._fetched[key]
        self._answers.add(answer)
        self._seen[key] = row
        self._expected.setdefault(key, 0 if row is None else row.revision)
        return row

    def _remember(self) -> None:
        """Have the next transaction read together what this one did one after the other."""
        contended = self._link.contended
        contended.pop(self._key, None)
        contended[self._key] = tuple(self._seen)[:MAX_CONTENDED_KEYS]
        while len(contended) > MAX_CONTENDED_STORES:
            del contended[next(iter(contended))]


class KVTransaction(_Transaction[str, Entry[V], V], Generic[V]):
    """Changes several keys of a kv together. Made by `KV.transaction`; commits when its
    `async with` ends, or by `commit`. For one task.
    """

    #: What `delete_all` was asked to delete.
    _deleted_prefixes: tuple[str, ...] = ()

    async def get(self, key: str) -> Entry[V] | None:
        """Return the entry of `key`, or None. The commit succeeds only if that is still true.

        Reading a key again returns the same entry. A key that this transaction has set is returned
        as it will be, with revision and time 0.
        """
        check_key(key)
        if self._deletes(key):
            self._check_open()
            return None
        return await self._get(key)

    async def get_many(self, keys: Sequence[str]) -> list[Entry[V] | None]:
        """Return the entry of each of `keys`, or None, as `get` does.

        If they fit into an answer of about 512 KiB, all of them are as they were at one moment; a
        transaction that reads nothing else then always succeeds.

        Raises TooLargeError for more than MAX_DELETE_COUNT.
        """
        keys = _several("keys", keys)
        wanted = [key for key in map(check_key, keys) if not self._deletes(key)]
        found = dict(zip(wanted, await self._get_many(wanted), strict=True))
        return [found.get(key) for key in keys]

    async def _read_one(self, key: str) -> Entry[V] | None:
        return self._entry(await self._call([GET_ENTRY, key]))

    async def _read_some(self, keys: list[str]) -> tuple[list[Entry[V] | None], int]:
        rows, next_index = await self._call([GET_KEYS, keys])
        return list(map(self._entry, rows)), len(keys) if next_index is None else next_index

    def _entry(self, wire: Any) -> Entry[V] | None:
        return None if wire is None else self._values.entry(entry_from_wire(wire))

    def expect(self, key: str, revision: int) -> None:
        """Commit only if `revision` is the revision of `key` at that time (0: the key does
        not exist).
        """
        self._check_open()
        expect_operation(check_key(key), revision)
        self._has_conditions = True
        self._expected[key] = revision

    async def get_all(self, *, prefix: str) -> list[Entry[V]]:
        """Return the entries whose key starts with `prefix`, in order of their keys. The commit
        succeeds only if no such key was set or deleted, by anybody, since this call began; a new
        key counts too.

        What this transaction has set or deleted is as it will be. Large values are not included,
        and values that cannot be read are as in `KV.get_all`.
        """
        self._check_open()
        head = head_from_wire(await self._call([HEAD]))
        self._expect_more(expect_unchanged_operation(prefix, head.revision))
        found: dict[str, Entry[V]] = {}
        after_key: str | None = None
        while True:
            rows, after_key = await self._call([GET_ENTRIES, prefix, after_key])
            for row in rows:
                if not self._deletes(row[0]):
                    found[row[0]] = self._values.listed_entry(entry_from_wire(row))
            if after_key is None:
                break
        for key, entry in self._written.items():
            if entry is not None and key.startswith(prefix):
                found[key] = entry
            else:
                found.pop(key, None)
        return [found[key] for key in sorted(found)]

    def expect_only(self, prefix: str, keys: Sequence[str] = ()) -> None:
        """Commit only if no key that starts with `prefix` exists at that time, but `keys`, at most
        MAX_DELETE_COUNT. These need not exist. A token needs the rights to read and to write for
        what concerns prefixes.

        Otherwise the commit raises WrongRevisionError, which names another key that exists.

            async with kv.transaction() as t:
                t.expect_only("job.42.")        # nobody works on it
                t.set("job.42.worker", b"ada")
        """
        self._expect_more(expect_only_operation(prefix, keys))

    def expect_unchanged(self, prefix: str, revision: int) -> None:
        """Commit only if no key that starts with `prefix` was set or deleted after the kv had
        `revision`.

        Otherwise the commit raises WrongRevisionError, which names such a key (the prefix itself,
        if all keys were deleted at once) and its revision, 0 if it was deleted. It raises
        RevisionGoneError if more than 10,000 deletes have happened since, and TooLargeError if very
        much was set since and very many keys have the prefix.
        """
        self._expect_more(expect_unchanged_operation(prefix, revision))

    def _expect_more(self, condition: list[Any]) -> None:
        self._check_open()
        self._has_conditions = True
        self._conditions.append(condition)

    def set(
        self,
        key: str,
        value: V | Value,
        *,
        headers: Headers | None = None,
        ttl_seconds: float | None = None,
    ) -> None:
        """Set `key` at the commit. The arguments are those of `KV.set`."""
        self._check_open()
        values = self._values
        data = values.encoded(value)
        stored, marked = values.stored(data, headers)
        self._operations.append(set_entry_operation(key, stored, marked, None, ttl_seconds))
        plain = Entry(key, checked_value(data), checked_map(headers), 0, 0)
        self._written[key] = values.entry(plain)

    def delete(self, keys: str | Sequence[str]) -> None:
        """Delete one key or several at the commit, if they exist."""
        self._check_open()
        operation = delete_entries_operation(keys)
        self._operations.append(operation)
        self._written.update(dict.fromkeys(operation[1]))

    def delete_all(self, *, prefix: str) -> None:
        """Delete every key that starts with `prefix` at the commit, also those that are created
        until then; at most MAX_DELETED_WITH_PREFIX. A key of them that this transaction sets
        afterwards is there after it.

        Raises TooLargeError at the commit if there are more.
        """
        self._check_open()
        self._operations.append(delete_prefix_operation(prefix))
        self._deleted_prefixes += (prefix,)
        self._written.update({key: None for key in self._written if key.startswith(prefix)})

    def _deletes(self, key: str) -> bool:
        """Tell if `delete_all` removes a key, and nothing sets it afterwards."""
        return key not in self._written and key.startswith(self._deleted_prefixes)


class StreamTransaction(_Transaction[int, Message[V], V], Generic[V]):
    """Changes several messages of a stream together. Made by `Stream.transaction`; commits when its
    `async with` ends, or by `commit`. For one task.
    """

    async def get(self, seq: int) -> Message[V] | None:
        """Return message `seq`, or None. The commit succeeds only if that is still true.

        A message that this transaction has set is returned as it will be, with revision and time 0.
        """
        return await self._get(check_seq("seq", seq))

    async def get_many(self, seqs: Sequence[int]) -> list[Message[V] | None]:
        """Return the message of each of `seqs`, or None, as `get` does.

        If they fit into an answer of about 512 KiB, all of them are as they were at one moment; a
        transaction that reads nothing else then always succeeds.

        Raises TooLargeError for more than MAX_DELETE_COUNT.
        """
        return await self._get_many([check_seq("seq", seq) for seq in _several("seqs", seqs)])

    async def _read_one(self, key: int) -> Message[V] | None:
        wire = await self._call([GET_MESSAGE, key])
        return None if wire is None else self._values.message(message_from_wire(wire))

    async def _read_some(self, keys: list[int]) -> tuple[list[Message[V] | None], int]:
        wires, next_index = await self._call([GET_SEQS, keys])
        found = {wire[0]: self._values.message(message_from_wire(wire)) for wire in wires}
        count = len(keys) if next_index is None else next_index
        return [found.get(seq) for seq in keys[:count]], count

    def expect(self, seq: int, revision: int) -> None:
        """Commit only if `revision` is the revision of message `seq` at that time (0: it does
        not exist).
        """
        self._check_open()
        expect_operation(check_seq("seq", seq), revision)
        self._has_conditions = True
        self._expected[seq] = revision

    def expect_last_seq(self, last_seq: int) -> None:
        """Commit only if `last_seq` is the stream's last seq at that time (0: never written)."""
        self._check_open()
        expect_operation(None, last_seq)
        self._has_conditions = True
        self._expected[None] = last_seq

    def append(
        self,
        value: V | Value,
        *,
        headers: Headers | None = None,
        msg_id: str | None = None,
        ttl_seconds: float | None = None,
        subject: str | None = None,
        expected_last_subject_seq: int | None = None,
        expected_subject: str | None = None,
        rollup: Literal["sub", "all"] | None = None,
    ) -> None:
        """Append a message at the commit. The arguments are those of `Stream.append`.
        `expected_last_subject_seq` is checked against the stream as it was before the commit.
        """
        self._check_open()
        options = append_options(expected_last_subject_seq, expected_subject, rollup)
        stored, marked = self._values.stored(self._values.encoded(value), headers)
        self._operations.append(
            append_operation(stored, marked, msg_id, None, ttl_seconds, subject, options)
        )

    def set(
        self,
        seq: int,
        value: V | Value,
        *,
        headers: Headers | None = None,
        ttl_seconds: float | None = None,
    ) -> None:
        """Replace message `seq` at the commit. The arguments are those of `Stream.set`."""
        self._check_open()
        values = self._values
        data = values.encoded(value)
        stored, marked = values.stored(data, headers)
        self._operations.append(set_message_operation(seq, stored, marked, ttl_seconds))
        there = headers_from_wire(checked_headers(headers))
        plain = Message(seq, checked_value(data), there, 0, 0)
        self._written[seq] = values.message(plain)

    def delete(self, seqs: int | Sequence[int]) -> None:
        """Delete one message or several at the commit, if they exist."""
        self._check_open()
        operation = delete_messages_operation(seqs)
        self._operations.append(operation)
        self._written.update(dict.fromkeys(operation[1]))


def _several(what: str, keys: Sequence[_Key]) -> list[_Key]:
    found = listed(what, keys)
    if len(found) > MAX_DELETE_COUNT:
        raise TooLargeError(what=what, size=len(found), limit=MAX_DELETE_COUNT)
    return found


def _result(
    operation: list[Any], result: Sequence[Any], time: int, durability: Durability
) -> Ack | Deleted:
    if operation[0] in (DELETE_ENTRIES, DELETE_MESSAGES, DELETE_PREFIX):
        return Deleted(result[0], result[1])
    if len(result) > 2:
        return ack_from_wire(result, time, durability)
    return Ack(result[0] or None, result[1], time, durability)
