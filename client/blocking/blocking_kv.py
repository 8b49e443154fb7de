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
    """A handle on one kv of the client's tenant: the last value of each key, without history. It
    holds only a name, so making one is cheap.

    Every method may raise these errors, besides those that it names:

    - InvalidNameError for a key, InvalidArgumentError and TooLargeError, before anything is sent;
    - NoCoordinatorError, NoServerError and ConnectionFailedError, if nothing could be sent before
      the timeout;
    - OperationTimeoutError, if no answer came before the timeout: a write may or may not be stored;
    - StorageError, if the server's disk failed.

    Every error has a stable `code` and its `fields`. `timeout_seconds` replaces the client's
    timeout for one call. It is at most 300, because the owner of a store recognises a retry only
    for twice as long.
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
        """Set `key`, any text of at most MAX_KEY_BYTES. The ack's `seq` is None.

        - `headers` maps text to text.
        - `expected_revision` sets the key only if that is its revision (0: the key does not exist).
        - `ttl_seconds` removes the key so long after it was set, unless it is set again.
        - `durability` is the level that the ack waits for: "applied", "synced" or "stored"; the
          kv's own by default.

        A value above MAX_VALUE_BYTES is uploaded in chunks first; `timeout_seconds` then applies to
        each chunk.

        Raises WrongRevisionError, which carries the actual revision; LimitExceededError and
        RateLimitedError if the kv is configured with limits. After these errors nothing was stored
        or removed.

            kv.set("theme", b"dark", ttl_seconds=3600)
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

        Use it for one producer that keeps many sets in flight. They are stored in the order of
        these calls. The call waits while the client has more unanswered operations than can be
        answered in time, at most MAX_WAITING_OPERATIONS and MAX_WAITING_BYTES.

        Raises TooLargeError for a value above MAX_VALUE_BYTES. Other errors are raised by the
        PendingAck.
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
        """Set all of the keys or none. Return an ack for each, in order; [] if there are none.

        `items` is a mapping, or an iterable of `(key, value)` pairs. The other arguments are those
        of `set`.

        Raises TooLargeError unless all fit into one frame of about 1 MB and 4096 keys;
        LimitExceededError and RateLimitedError as `set` does, also if the kv cannot keep all of
        them.
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
        """Return the entry of `key`, or None if the key does not exist.

        A large value is returned whole; `get_reader` and `get_file` keep only a few chunks of it in
        memory.

        Raises ValueUnreadableError if the value cannot be decompressed or decoded.
        """
        return self._background.run(self._kv.get(key, timeout_seconds=timeout_seconds))

    def get_reader(
        self, entry: str | Entry[Any], *, timeout_seconds: float | None = None
    ) -> ValueReader[Entry] | None:
        """Return a reader of the value of an entry, or None if the key does not exist.

        `entry` is a key, or an Entry that `get_all` or `watch` returned. `timeout_seconds` applies
        to each chunk.
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
        """Write the value of an entry to the file `path`. Return the entry, without a large value;
        None if the key does not exist, and then nothing is written.

        The file is written completely and synced, or not at all. Raises what a ValueReader raises,
        and OSError.
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
        """Set `key` to the content of a file.

        `source` is a path, or an open binary file that is read from its position. The other
        arguments are those of `set`. `timeout_seconds` applies to each chunk.

        To resume an interrupted call within an hour, repeat it with the same content and the same
        `upload_id`, 16 bytes of your choice that you use for one value only. The call sends what is
        missing. If the value was already stored, the ack is that of the first time, with
        `duplicate` true and the durability unknown.

        Raises what `set` raises, and OSError.
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

        Pages are fetched one ahead; `timeout_seconds` applies to each. Each page is a consistent
        view, but all pages together are not.

        Large values are not included: `entry.large` stands for one, and `get_reader` reads it. If a
        value cannot be read, reading `entry.value` raises ValueUnreadableError, and
        `entry.unreadable` tells so beforehand; the iteration continues.

            for entry in kv.get_all(prefix="user."):
                print(entry.key, entry.value)
        """
        pages = self._kv._pages(prefix, True, timeout_seconds)
        return Rows(
            self._background, pages, lambda wire: self._values.listed_entry(entry_from_wire(wire))
        )

    def keys(self, *, prefix: str = "", timeout_seconds: float | None = None) -> Rows[str]:
        """Yield the keys that start with `prefix`, in order, without their values.
        `timeout_seconds` applies to each page.
        """
        pages = self._kv._pages(prefix, False, timeout_seconds)
        return Rows(self._background, pages, itemgetter(0))

    def delete(
        self,
        keys: str | Sequence[str],
        *,
        expected_revision: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Deleted:
        """Delete one key or several, at most MAX_DELETE_COUNT. Return how many of them existed.

        With `expected_revision` the keys are deleted only if each has that revision.

        Raises WrongRevisionError, which carries the actual revision.
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
        """Return a transaction. Read, set and delete through it; when its `with` ends, all writes
        are stored, or none.

        They are stored only if every key that was read through the transaction is unchanged.
        Otherwise the end raises WrongRevisionError, which names the key, and you may begin again.

            with kv.transaction() as t:
                entry = t.get("balance")
                t.set("balance", entry.value + b"1")
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
        """Set `key` to what `function` returns for its present entry. `function` gets None if the
        key does not exist; if it returns None, the key is deleted.

        If others set the key meanwhile, `function` is called again with the new entry, until
        `timeout_seconds` have passed. The other arguments are those of `set`.

        Raises OperationTimeoutError when the time is over and others were faster each time; nothing
        was stored then.

            kv.update("count", lambda entry: str(int(entry.value) + 1).encode())
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
        """Delete every key. Return how many existed."""
        return self._background.run(self._kv.delete_all(timeout_seconds=timeout_seconds))

    def head(self, *, timeout_seconds: float | None = None) -> Head:
        """Return the kv's revision, its number of keys, and their bytes."""
        return self._background.run(self._kv.head(timeout_seconds=timeout_seconds))

    def configure(
        self, *, timeout_seconds: float | None = None, **settings: Unpack[ConfigSettings]
    ) -> StoreConfig:
        """Change the given settings and return the whole configuration. The settings are the fields
        of StoreConfig; `max_messages` counts keys.

        Settings that you leave out stay as they are; None restores a default. With `discard` "old",
        keys that exceed new limits are removed at once, beginning with those that were set longest
        ago.

        Raises InvalidArgumentError for an unknown setting or a wrong value.
        """
        return self._background.run(self._kv.configure(timeout_seconds=timeout_seconds, **settings))

    def config(self, *, timeout_seconds: float | None = None) -> StoreConfig:
        """Return the kv's configuration."""
        return self._background.run(self._kv.config(timeout_seconds=timeout_seconds))

    def destroy(self, *, timeout_seconds: float | None = None) -> bool:
        """Remove the kv and every copy of it: its file, snapshots, quarantined files and
        configuration. Return False if it did not exist. Nothing can restore it.

        Its name is free afterwards. A later write creates a new kv, which a retry of this call
        leaves alone. Followers receive a RESET. The call needs its own NATS permission
        (docs/operations.md).

        After OperationTimeoutError the kv may or may not be removed.
        """
        return self._background.run(self._kv.destroy(timeout_seconds=timeout_seconds))

    def watch(self, *, prefix: str = "", start_revision: int | None = None) -> Subscription[V]:
        """Follow the kv. Return an iterator of Change: each change once, in the order of revisions.

        First come the entries whose key starts with `prefix`, as SET changes in the order of their
        keys; then a READY change; then every change as it happens. With `start_revision` (see
        `Subscription.revision`) the changes since that revision take the place of the entries; of a
        key that was set several times since then you get only the last value.

        The subscription survives reconnects and changes of owner. After a RESET change, discard
        everything you know: the entries and another READY follow again. A RESET comes if the owner
        no longer remembers deletes that you missed, or if the kv was deleted and created again.

        `with` or `close()` ends it, and so does dropping it, for example by a `break` out of `for`.

            for change in kv.watch(prefix="user."):
                print(change.kind, change.entry)
        """
        kv = self._kv
        subscription = self._background.do(
            lambda: kv.watch(prefix=prefix, start_revision=start_revision)
        )
        return Subscription(self._background, subscription)
