"""Transactions, for blocking code: those of `holdfast.client.handles.transaction`, method by method."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from holdfast.client.blocking.background import Background
from holdfast.client.handles.transaction import KVTransaction as AsyncKVTransaction
from holdfast.client.handles.transaction import StreamTransaction as AsyncStreamTransaction
from holdfast.client.wire.operations import Value
from holdfast.protocol.messages import Ack, Deleted, Entry, Headers, Message, V

_Wrapped = TypeVar("_Wrapped", bound=AsyncKVTransaction[Any] | AsyncStreamTransaction[Any])


class _Transaction(Generic[_Wrapped]):
    """What the transactions of both kinds of store have in common."""

    def __init__(self, background: Background, transaction: _Wrapped) -> None:
        self._background = background
        self._transaction: _Wrapped = transaction

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, unless the body failed: then nothing is stored."""
        if exc_type is None:
            self._background.run(self._transaction.__aexit__(None, None, None))

    def commit(self) -> list[Ack | Deleted]:
        """Store all writes, and return the result of each, in order.

        Everything must fit into one frame of about 1 MB and 4096 operations. A transaction that
        only reads checks that everything it saw was true at one moment. If that fails, the next
        transaction on this store reads all of it in one request, so it succeeds however often
        others write.

        Raises WrongRevisionError or WrongLastSeqError if something is no longer as it was read or
        expected; InvalidSeqError, LimitExceededError, RateLimitedError and TooLargeError. After
        these errors nothing was stored.
        """
        return self._background.run(self._transaction.commit())


class KVTransaction(_Transaction[AsyncKVTransaction[V]], Generic[V]):
    """Changes several keys of a kv together. Made by `KV.transaction`; commits when its `with`
    ends, or by `commit`. For one thread.
    """

    def get(self, key: str) -> Entry[V] | None:
        """Return the entry of `key`, or None. The commit succeeds only if that is still true.

        Reading a key again returns the same entry. A key that this transaction has set is returned
        as it will be, with revision and time 0.
        """
        return self._background.run(self._transaction.get(key))

    def get_many(self, keys: Sequence[str]) -> list[Entry[V] | None]:
        """Return the entry of each of `keys`, or None, as `get` does.

        If they fit into an answer of about 512 KiB, all of them are as they were at one moment; a
        transaction that reads nothing else then always succeeds.

        Raises TooLargeError for more than MAX_DELETE_COUNT.
        """
        return self._background.run(self._transaction.get_many(keys))

    def expect(self, key: str, revision: int) -> None:
        """Commit only if `revision` is the revision of `key` at that time (0: the key does not
        exist).
        """
        self._transaction.expect(key, revision)

    def set(
        self,
        key: str,
        value: V | Value,
        *,
        headers: Headers | None = None,
        ttl_seconds: float | None = None,
    ) -> None:
        """Set `key` at the commit. The arguments are those of `KV.set`."""
        self._transaction.set(key, value, headers=headers, ttl_seconds=ttl_seconds)

    def delete(self, keys: str | Sequence[str]) -> None:
        """Delete one key or several at the commit, if they exist."""
        self._transaction.delete(keys)


class StreamTransaction(_Transaction[AsyncStreamTransaction[V]], Generic[V]):
    """Changes several messages of a stream together. Made by `Stream.transaction`; commits when its
    `with` ends, or by `commit`. For one thread.
    """

    def get(self, seq: int) -> Message[V] | None:
        """Return message `seq`, or None. The commit succeeds only if that is still true.

        A message that this transaction has set is returned as it will be, with revision and time 0.
        """
        return self._background.run(self._transaction.get(seq))

    def get_many(self, seqs: Sequence[int]) -> list[Message[V] | None]:
        """Return the message of each of `seqs`, or None, as `get` does.

        If they fit into an answer of about 512 KiB, all of them are as they were at one moment; a
        transaction that reads nothing else then always succeeds.

        Raises TooLargeError for more than MAX_DELETE_COUNT.
        """
        return self._background.run(self._transaction.get_many(seqs))

    def expect(self, seq: int, revision: int) -> None:
        """Commit only if `revision` is the revision of message `seq` at that time (0: it does not
        exist).
        """
        self._transaction.expect(seq, revision)

    def expect_last_seq(self, last_seq: int) -> None:
        """Commit only if `last_seq` is the stream's last seq at that time (0: never written)."""
        self._transaction.expect_last_seq(last_seq)

    def append(
        self,
        value: V | Value,
        *,
        headers: Headers | None = None,
        msg_id: str | None = None,
        ttl_seconds: float | None = None,
    ) -> None:
        """Append a message at the commit. The arguments are those of `Stream.append`."""
        self._transaction.append(value, headers=headers, msg_id=msg_id, ttl_seconds=ttl_seconds)

    def set(
        self,
        seq: int,
        value: V | Value,
        *,
        headers: Headers | None = None,
        ttl_seconds: float | None = None,
    ) -> None:
        """Replace message `seq` at the commit. The arguments are those of `Stream.set`."""
        self._transaction.set(seq, value, headers=headers, ttl_seconds=ttl_seconds)

    def delete(self, seqs: int | Sequence[int]) -> None:
        """Delete one message or several at the commit, if they exist."""
        self._transaction.delete(seqs)
