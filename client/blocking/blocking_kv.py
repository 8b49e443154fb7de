"""A kv, for blocking code: `holdfast.client.handles.kv.KV`, method by method."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, Unpack

from holdfast.client.blocking.background import Background
from holdfast.client.blocking.blocking_pending import PendingAck, start_write, write
from holdfast.client.blocking.blocking_rows import Rows
from holdfast.client.blocking.blocking_subscription import Subscription
from holdfast.client.blocking.blocking_transaction import KVTransaction
from holdfast.client.blocking.blocking_value import ValueReader
from holdfast.client.handles.kv import KV as AsyncKV
from holdfast.client.handles.kv import _ack
from holdfast.client.handles.large_value import Source, is_large
from holdfast.client.wire.operations import (
    Value,
    checked_durability,
    entry_from_wire,
    set_entry_operation,
)
from holdfast.protocol.frames import pack
from holdfast.protocol.messages import (
    Ack,
    AnyDurability,
    Deleted,
    Entry,
    Head,
    Headers,
    V,
)
from holdfast.protocol.store_config import ConfigSettings, StoreConfig


class KV(Generic[V]):
    """A handle on one kv of the client's tenant. Cheap: it holds a name and nothing else.

    Every method may raise OperationTimeoutError (a write may or may not be stored then),
    NoCoordinatorError, NoServerError and ConnectionFailedError (nothing was sent until the timeout),
    InvalidNameError for a key, InvalidArgumentError and TooLargeError (before anything is sent), and
    StorageError when the server's disk failed.
    A `timeout_seconds` is at most 300: owners know a retry for twice as long.
    """

    def __init__(self, background: Background, kv: AsyncKV[V]) -> None:
        self.name = kv.name
        self._values = kv._values
        self._background = background
        self._kv = kv
        self._link = kv._link
        self._key = kv._key

    def __repr__(self) -> str:
        return f"KV({self.name!r})"

    def set(
        self,
        key: str,
        value: V | Value,
        *,
        headers: Headers | None = None,
        expected_revision: int | None = None,
        ttl_seconds: float | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> Ack:
        """Set `key`, any text of at most MAX_KEY_BYTES. A value above MAX_VALUE_BYTES is uploaded in
        chunks first, each with `timeout_seconds`.

        With `expected_revision` only if that is the key's revision (0: there is no such key); else
        WrongRevisionError, which carries the actual one. `ttl_seconds` after it was set the key is
        gone, unless it is set again. The ack's `seq` is None. Raises LimitExceededError and
        RateLimitedError where the kv is configured so; nothing was stored or removed then.
        """
        data = self._values.encoded(value)
        if is_large(data):
            return self._background.run(
                self._kv.set(
                    key,
                    value,
                    headers=headers,
                    expected_revision=expected_revision,
                    ttl_seconds=ttl_seconds,
                    durability=durability,
                    timeout_seconds=timeout_seconds,
                )
            )
        data, headers = self._values.stored(data, headers)
        packed = pack(set_entry_operation(key, data, headers, expected_revision, ttl_seconds))
        level = 0 if durability is None else checked_durability(durability)
        return write(self._background, self._link, self._key, packed, level, timeout_seconds, _ack)

    def set_async(
        self,
        key: str,
        value: V | Value,
        *,
        headers: Headers | None = None,
        expected_revision: int | None = None,
        ttl_seconds: float | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> PendingAck:
        """Start a `set`, with the same arguments, and return without waiting for its ack.

        For one producer that keeps many sets under way: they are stored in the order of these
        calls. Waits while so much of this client is unanswered that more would be late
        (MAX_WAITING_OPERATIONS and MAX_WAITING_BYTES at the most). At most MAX_VALUE_BYTES each:
        TooLargeError.
        """
        values = self._values
        data, headers = values.stored(values.encoded(value), headers)
        packed = pack(set_entry_operation(key, data, headers, expected_revision, ttl_seconds))
        level = 0 if durability is None else checked_durability(durability)
        return start_write(
            self._background, self._link, self._key, packed, level, timeout_seconds, _ack
        )

    def set_many(
        self,
        items: Mapping[str, V | Value] | Iterable[tuple[str, V | Value]],
        *,
        ttl_seconds: float | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> list[Ack]:
        """Set all of the keys or none; return an ack for each, in order, so [] for no keys at all.

        All must fit in one frame of about 1 MB and 4096 keys: TooLargeError. Raises
        LimitExceededError and RateLimitedError as `set` does, also if the kv could not keep all.
        """
        # An application's iterable may do anything: it is gone through here.
        pairs = items if isinstance(items, Mapping) else list(items)
        return self._background.run(
            self._kv.set_many(
                pairs,
                ttl_seconds=ttl_seconds,
                durability=durability,
                timeout_seconds=timeout_seconds,
            )
        )

    def get(self, key: str, *, timeout_seconds: float | None = None) -> Entry[V] | None:
        """Return the entry of `key`, or None.

        A large value comes along, whole: `get_reader` and `get_file` hold a few chunks of it only.
        """
        return self._background.run(self._kv.get(key, timeout_seconds=timeout_seconds))

    def get_reader(
        self, entry: str | Entry[Any], *, timeout_seconds: float | None = None
    ) -> ValueReader[Entry] | None:
        """Return a reader of the value of an entry, given by its key or as `get_all` and `watch` gave
        it; None if there is no such key. `timeout_seconds` is for each chunk.
        """
        reader = self._background.run(self._kv.get_reader(entry, timeout_seconds=timeout_seconds))
        return None if reader is None else ValueReader(self._background, reader)

    def get_file(
        self,
        entry: str | Entry[Any],
        path: str | os.PathLike[str],
        *,
        timeout_seconds: float | None = None,
    ) -> Entry | None:
        """Write the value of an entry to `path`, whole and synced or not at all, and return the entry,
        a large value left out; None, and nothing is written, if there is no such key.

        Raises what a ValueReader raises, OSError.
        """
        return self._background.run(self._kv.get_file(entry, path, timeout_seconds=timeout_seconds))

    def put_file(
        self,
        key: str,
        source: Source,
        *,
        headers: Headers | None = None,
        expected_revision: int | None = None,
        ttl_seconds: float | None = None,
        durability: AnyDurability | None = None,
        upload_id: bytes | None = None,
        timeout_seconds: float | None = None,
    ) -> Ack:
        """Set `key` to what a path or an open file gives; the other arguments are those of `set`.
        `timeout_seconds` is for each chunk.

        A put that is interrupted and called again with the same `upload_id` (16 bytes of your own,
        used for one value only) and the same content sends what is missing, within an hour; if it
        had been stored after all, the ack is that of the first time, with `duplicate` true and the
        durability unknown. Raises OSError too.
        """
        return self._background.run(
            self._kv.put_file(
                key,
                source,
                headers=headers,
                expected_revision=expected_revision,
                ttl_seconds=ttl_seconds,
                durability=durability,
                upload_id=upload_id,
                timeout_seconds=timeout_seconds,
            )
        )

    def get_all(self, *, prefix: str = "", timeout_seconds: float | None = None) -> Rows[Entry[V]]:
        """Yield the entries whose key starts with `prefix`, in order of their keys.

        Pages are fetched one ahead of the consumer. Each page is a consistent view, the whole is
        not. Large values do not come along: `entry.large` stands for one, and `get_reader` reads it.
        Reading the `value` of an entry that cannot be read raises ValueUnreadableError there, and the
        iteration goes on; `entry.unreadable` tells before.
        `timeout_seconds` is for each page.
        """
        pages = self._kv._pages(prefix, True, timeout_seconds)
        return Rows(
            self._background, pages, lambda wire: self._values.listed_entry(entry_from_wire(wire))
        )

    def keys(self, *, prefix: str = "", timeout_seconds: float | None = None) -> Rows[str]:
        """Yield the keys that start with `prefix`, in order, without reading their values."""
        pages = self._kv._pages(prefix, False, timeout_seconds)
        return Rows(self._background, pages, itemgetter(0))

    def delete(
        self,
        keys: str | Sequence[str],
        *,
        expected_revision: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Deleted:
        """Delete one key or several (at most MAX_DELETE_COUNT); return how many there were.

        With `expected_revision` only if that is the key's revision; else WrongRevisionError.
        """
        return self._background.run(
            self._kv.delete(
                keys, expected_revision=expected_revision, timeout_seconds=timeout_seconds
            )
        )

    def transaction(
        self,
        *,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> KVTransaction[V]:
        """Return a transaction: `with kv.transaction() as t:` reads, sets and deletes by `t`, and
        at the end all of it is stored or nothing.

        It is stored only if every key that was read by `t` is still as it was; else
        WrongRevisionError is raised at the end, which names the key, and the caller may begin again.
        """
        transaction = self._kv.transaction(durability=durability, timeout_seconds=timeout_seconds)
        return KVTransaction(self._background, transaction)

    def update(
        self,
        key: str,
        function: Callable[[Entry[V] | None], V | Value | None],
        *,
        headers: Headers | None = None,
        ttl_seconds: float | None = None,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> Ack | Deleted:
        """Set `key` to what `function` makes of its entry (None: there is none); None deletes it.

        If others set the key meanwhile, `function` is called again with what is there then, until
        `timeout_seconds` have passed: OperationTimeoutError, and nothing was stored.
        """
        background, kv = self._background, self._kv

        async def work(
            ask: Callable[[Callable[[], V | Value | None]], Awaitable[V | Value | None]],
        ) -> Ack | Deleted:
            # In the calling thread, where `function` may block, and use this client.
            return await kv._update(
                key,
                lambda entry: ask(lambda: function(entry)),
                headers,
                ttl_seconds,
                durability,
                timeout_seconds,
            )

        return background.run_asking(work)

    def delete_all(self, *, timeout_seconds: float | None = None) -> Deleted:
        """Delete every key; return how many there were."""
        return self._background.run(self._kv.delete_all(timeout_seconds=timeout_seconds))

    def head(self, *, timeout_seconds: float | None = None) -> Head:
        """Return where the kv stands: its revision, number of keys and their bytes."""
        return self._background.run(self._kv.head(timeout_seconds=timeout_seconds))

    def configure(
        self, *, timeout_seconds: float | None = None, **settings: Unpack[ConfigSettings]
    ) -> StoreConfig:
        """Change what is named (see StoreConfig) and return the whole configuration.

        What is left out stays as it is; None is the default again. `max_messages` counts keys. With
        `discard` "old" the keys that were set longest ago and are over new limits go at once.
        Raises InvalidArgumentError.
        """
        return self._background.run(self._kv.configure(timeout_seconds=timeout_seconds, **settings))

    def config(self, *, timeout_seconds: float | None = None) -> StoreConfig:
        """Return the kv's configuration."""
        return self._background.run(self._kv.config(timeout_seconds=timeout_seconds))

    def destroy(self, *, timeout_seconds: float | None = None) -> bool:
        """Remove the kv and every copy of it: its file, snapshots, what is in quarantine and its
        configuration. Return False if there was none. Nothing brings it back.

        Its name is free then: who writes to it makes a new kv, and a retry of this call leaves that
        alone. Followers are given a RESET. Needs a NATS permission of its own (docs/operations.md).
        Of a call that ends with OperationTimeoutError the kv may or may not be gone.
        """
        return self._background.run(self._kv.destroy(timeout_seconds=timeout_seconds))

    def watch(self, *, prefix: str = "", start_revision: int | None = None) -> Subscription[V]:
        """Follow the kv: an iterator of Change, each once, in the order of revisions.

        First the entries whose key starts with `prefix` as SET changes in the order of their keys,
        then a READY change, then what happens, live. With `start_revision` (see
        `Subscription.revision`) the changes since take the place of the entries: of a key that was set
        several times, the last. Survives reconnects and changes of owner. After a RESET change, forget
        everything: the entries and another READY follow anew. It comes when the owner no longer
        remembers deletes that were missed, or has fewer revisions: the kv was deleted and made anew.

        `with` or `close()` ends it; so does dropping it, as a `break` out of
        `for change in kv.watch()` does.
        """
        kv = self._kv
        subscription = self._background.do(
            lambda: kv.watch(prefix=prefix, start_revision=start_revision)
        )
        return Subscription(self._background, subscription)
