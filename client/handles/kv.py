"""A kv: the last value of each key, no history."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any, Generic, Unpack

from holdfast.client.handles.destroying import destroy
from holdfast.client.handles.large_value import (
    Source,
    ValueReader,
    is_large,
    put_file,
    put_value,
    with_large_value,
    write_file,
)
from holdfast.client.handles.pending import PendingAck
from holdfast.client.handles.transaction import KVTransaction
from holdfast.client.values.values import Values
from holdfast.client.wire import configuration
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import (
    Value,
    check_count,
    checked_durability,
    delete_entries_operation,
    entry_from_wire,
    head_from_wire,
    pack_batch,
    set_entry_operation,
)
from holdfast.protocol.errors import (
    MalformedFrameError,
    OperationTimeoutError,
    WrongRevisionError,
)
from holdfast.protocol.frames import CLEAR, GET_ENTRIES, GET_ENTRY, HEAD, pack
from holdfast.protocol.messages import (
    Ack,
    AnyDurability,
    Deleted,
    Durability,
    Entry,
    Head,
    Headers,
    LargeValue,
    V,
)
from holdfast.protocol.names import StoreKind, StoreName, check_key
from holdfast.protocol.store_config import ConfigSettings, StoreConfig

if TYPE_CHECKING:
    from holdfast.client.following.follower import Follower
    from holdfast.client.following.subscription import Subscription


_PACKED_HEAD = pack([HEAD])
_PACKED_CLEAR = pack([CLEAR])
#: The longest pause, but for jitter, before `update` tries again after others were faster.
_UPDATE_PAUSE_SECONDS = 0.05


class KV(Generic[V]):
    """A handle on one kv of the client's tenant. Cheap: it holds a name and nothing else.

    Every method may raise OperationTimeoutError (a write may or may not be stored then),
    NoCoordinatorError, NoServerError and ConnectionFailedError (nothing was sent until the timeout),
    InvalidNameError for a key, InvalidArgumentError and TooLargeError (before anything is sent), and
    StorageError when the server's disk failed.
    A `timeout_seconds` is at most 300: owners know a retry for twice as long.
    """

    def __init__(
        self, link: Link, follower: Follower, name: StoreName, values: Values[V]
    ) -> None:
        self.name = name
        self._values = values
        self._link = link
        self._follower = follower
        self._key = (int(StoreKind.KV), str(name))

    def __repr__(self) -> str:
        return f"KV({self.name!r})"

    async def set(
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
        link, values = self._link, self._values
        data = values.encoded(value)
        if is_large(data):
            commit = self._committing(
                key, headers, expected_revision, ttl_seconds, durability, timeout_seconds
            )
            return await put_value(link, self._key, data, commit, timeout_seconds)
        data, headers = values.stored(data, headers)
        packed = pack(set_entry_operation(key, data, headers, expected_revision, ttl_seconds))
        level = 0 if durability is None else checked_durability(durability)
        if link.full:
            await link.wait_for_room(timeout_seconds)
        answer = await link.submit(self._key, packed, True, level, timeout_seconds)
        return answer if type(answer) is Ack else _ack(*link.unwrap(answer))

    async def set_async(
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
        link, values = self._link, self._values
        data, headers = values.stored(values.encoded(value), headers)
        packed = pack(set_entry_operation(key, data, headers, expected_revision, ttl_seconds))
        level = 0 if durability is None else checked_durability(durability)
        if link.full:
            await link.wait_for_room(timeout_seconds)
        pending = PendingAck(_ack)
        link.submit_for(pending, self._key, packed, True, level, timeout_seconds)
        return pending

    async def set_many(
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
        pairs = items.items() if isinstance(items, Mapping) else items
        operations = []
        for key, value in pairs:
            data, headers = self._values.stored(self._values.encoded(value), None)
            operations.append(set_entry_operation(key, data, headers, None, ttl_seconds))
        level = checked_durability(durability)
        if not operations:
            return []
        packed = pack_batch(operations, self._link.operation_limit_bytes)
        results, time, stored = await self._link.call(
            self._key, packed, True, level, timeout_seconds
        )
        if len(results) != len(operations):
            raise MalformedFrameError(reason=f"{len(results)} results of {len(operations)}")
        return [Ack(None, result[1], time, stored) for result in results]

    async def get(self, key: str, *, timeout_seconds: float | None = None) -> Entry[V] | None:
        """Return the entry of `key`, or None.

        A large value comes along, whole: `get_reader` and `get_file` hold a few chunks of it only.
        """
        entry = await self._find(key, timeout_seconds)
        if entry is not None and entry.large is not None:
            entry = await with_large_value(
                entry,
                lambda found: self._reader(found, timeout_seconds).read(),
                lambda: self._find(key, timeout_seconds),
            )
        return None if entry is None else self._values.entry(entry)

    async def get_reader(
        self, entry: str | Entry[Any], *, timeout_seconds: float | None = None
    ) -> ValueReader[Entry] | None:
        """Return a reader of the value of an entry, given by its key or as `get_all` and `watch` gave
        it; None if there is no such key. `timeout_seconds` is for each chunk."""
        if isinstance(entry, Entry) and entry.large is None and not self._values.is_raw:
            # Its value is decoded: what is stored is asked for.
            entry = entry.key
        found = entry if isinstance(entry, Entry) else await self._find(entry, timeout_seconds)
        if found is None:
            return None
        return self._reader(self._values.plain_entry(found), timeout_seconds)

    async def get_file(
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
        reader = await self.get_reader(entry, timeout_seconds=timeout_seconds)
        if reader is None:
            return None
        await write_file(reader, path)
        return reader.row

    async def put_file(
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
        commit = self._committing(
            key, headers, expected_revision, ttl_seconds, durability, timeout_seconds
        )
        return await put_file(self._link, self._key, source, commit, upload_id, timeout_seconds)

    async def get_all(
        self, *, prefix: str = "", timeout_seconds: float | None = None
    ) -> AsyncIterator[Entry[V]]:
        """Yield the entries whose key starts with `prefix`, in order of their keys.

        Pages are fetched one ahead of the consumer. Each page is a consistent view, the whole is
        not. Large values do not come along: `entry.large` stands for one, and `get_reader` reads it.
        Reading the `value` of an entry that cannot be read raises ValueUnreadableError there, and the
        iteration goes on; `entry.unreadable` tells before.
        `timeout_seconds` is for each page.
        """
        pages = self._pages(prefix, True, timeout_seconds)
        async with contextlib.aclosing(pages):
            async for page in pages:
                for wire in page:
                    yield self._values.listed_entry(entry_from_wire(wire))

    async def keys(
        self, *, prefix: str = "", timeout_seconds: float | None = None
    ) -> AsyncIterator[str]:
        """Yield the keys that start with `prefix`, in order, without reading their values."""
        pages = self._pages(prefix, False, timeout_seconds)
        async with contextlib.aclosing(pages):
            async for page in pages:
                for wire in page:
                    yield wire[0]

    async def delete(
        self,
        keys: str | Sequence[str],
        *,
        expected_revision: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Deleted:
        """Delete one key or several (at most MAX_DELETE_COUNT); return how many there were.

        With `expected_revision` only if that is the key's revision; else WrongRevisionError.
        """
        operation = delete_entries_operation(keys, expected_revision)
        if not operation[1]:
            return Deleted(0, (await self.head(timeout_seconds=timeout_seconds)).revision)
        packed = pack(operation)
        (count, revision), *_ = await self._link.call(self._key, packed, True, 0, timeout_seconds)
        return Deleted(count, revision)

    def transaction(
        self,
        *,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> KVTransaction[V]:
        """Return a transaction: `async with kv.transaction() as t:` reads, sets and deletes by `t`, and
        at the end all of it is stored or nothing.

        It is stored only if every key that was read by `t` is still as it was; else
        WrongRevisionError is raised at the end, which names the key, and the caller may begin again.
        """
        return KVTransaction(self._link, self._key, self._values, durability, timeout_seconds)

    async def update(
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

        async def ask(entry: Entry[V] | None) -> V | Value | None:
            return function(entry)

        return await self._update(key, ask, headers, ttl_seconds, durability, timeout_seconds)

    async def delete_all(self, *, timeout_seconds: float | None = None) -> Deleted:
        """Delete every key; return how many there were."""
        call = self._link.call(self._key, _PACKED_CLEAR, True, 0, timeout_seconds)
        (count, revision), *_ = await call
        return Deleted(count, revision)

    async def head(self, *, timeout_seconds: float | None = None) -> Head:
        """Return where the kv stands: its revision, number of keys and their bytes."""
        wire, *_ = await self._link.call(self._key, _PACKED_HEAD, False, 0, timeout_seconds)
        return head_from_wire(wire)

    async def configure(
        self, *, timeout_seconds: float | None = None, **settings: Unpack[ConfigSettings]
    ) -> StoreConfig:
        """Change what is named (see StoreConfig) and return the whole configuration.

        What is left out stays as it is; None is the default again. `max_messages` counts keys. With
        `discard` "old" the keys that were set longest ago and are over new limits go at once.
        Raises InvalidArgumentError.
        """
        return await configuration.configure(self._link, self._key, settings, timeout_seconds)

    async def config(self, *, timeout_seconds: float | None = None) -> StoreConfig:
        """Return the kv's configuration."""
        return await configuration.config(self._link, self._key, timeout_seconds)

    async def destroy(self, *, timeout_seconds: float | None = None) -> bool:
        """Remove the kv and every copy of it: its file, snapshots, what is in quarantine and its
        configuration. Return False if there was none. Nothing brings it back.

        Its name is free then: who writes to it makes a new kv, and a retry of this call leaves that
        alone. Followers are given a RESET. Needs a NATS permission of its own (docs/operations.md).
        Of a call that ends with OperationTimeoutError the kv may or may not be gone.
        """
        return await destroy(self._link, self._key, timeout_seconds)

    def watch(self, *, prefix: str = "", start_revision: int | None = None) -> Subscription[V]:
        """Follow the kv: an async iterator of Change, each once, in the order of revisions.

        First the entries whose key starts with `prefix` as SET changes in the order of their keys,
        then a READY change, then what happens, live. With `start_revision` (see
        `Subscription.revision`) the changes since take the place of the entries: of a key that was set
        several times, the last. Survives reconnects and changes of owner. After a RESET change, forget
        everything: the entries and another READY follow anew. It comes when the owner no longer
        remembers deletes that were missed, or has fewer revisions: the kv was deleted and made anew.

        `async with` or `aclose()` ends it; so does dropping it, as a `break` out of
        `async for change in kv.watch()` does.
        """
        if start_revision is not None:
            check_count("start_revision", start_revision)
        check_key(prefix)
        return self._follower.subscribe(
            StoreKind.KV,
            self.name,
            self._values,
            prefix=prefix,
            start_revision=start_revision,
            marks_ready=True,
        )

    async def _update(
        self,
        key: str,
        ask: Callable[[Entry[V] | None], Awaitable[V | Value | None]],
        headers: Headers | None,
        ttl_seconds: float | None,
        durability: AnyDurability | None,
        timeout_seconds: float | None,
    ) -> Ack | Deleted:
        """Do what `update` does; `ask` may wait."""
        timeout = self._link.timeout_seconds if timeout_seconds is None else timeout_seconds
        loop = asyncio.get_running_loop()
        deadline_at = loop.time() + timeout
        pause_seconds = 0.0
        left_seconds = timeout
        while True:
            entry = await self.get(key, timeout_seconds=left_seconds)
            revision = 0 if entry is None else entry.revision
            value = await ask(entry)
            try:
                if value is None:
                    return await self.delete(
                        key, expected_revision=revision, timeout_seconds=left_seconds
                    )
                return await self.set(
                    key,
                    value,
                    headers=headers,
                    expected_revision=revision,
                    ttl_seconds=ttl_seconds,
                    durability=durability,
                    timeout_seconds=left_seconds,
                )
            except WrongRevisionError as error:
                # At once the first time; a herd spreads out.
                await asyncio.sleep(random.uniform(0, pause_seconds))
                pause_seconds = min(2 * pause_seconds + 0.002, _UPDATE_PAUSE_SECONDS)
                left_seconds = deadline_at - loop.time()
                if left_seconds <= 0:
                    raise OperationTimeoutError(
                        timeout_seconds=timeout, reason=str(error)
                    ) from error

    async def _find(self, key: str, timeout_seconds: float | None) -> Entry | None:
        link = self._link
        packed = pack((GET_ENTRY, check_key(key)))
        if link.full:
            await link.wait_for_room(timeout_seconds)
        answer = await link.submit(self._key, packed, False, 0, timeout_seconds)
        wire = link.unwrap(answer)[0]
        return None if wire is None else entry_from_wire(wire)

    def _reader(self, entry: Entry, timeout_seconds: float | None) -> ValueReader[Entry]:
        what = self._values.entry_name(entry.key)
        return ValueReader(self._link, self._key, entry, what, timeout_seconds)

    def _committing(
        self,
        key: str,
        headers: Headers | None,
        expected_revision: int | None,
        ttl_seconds: float | None,
        durability: AnyDurability | None,
        timeout_seconds: float | None,
    ) -> Callable[[Value | LargeValue], Awaitable[Ack]]:
        """Return what makes a value, or what was uploaded, that of `key`. Raises before anything is
        sent."""
        level = checked_durability(durability)

        def operation(value: Value | LargeValue) -> list[Any]:
            value, marked = self._values.stored_or_large(value, headers)
            return set_entry_operation(key, value, marked, expected_revision, ttl_seconds)

        async def commit(value: Value | LargeValue) -> Ack:
            packed = pack(operation(value))
            answer = await self._link.submit(self._key, packed, True, level, timeout_seconds)
            return answer if type(answer) is Ack else _ack(*self._link.unwrap(answer))

        operation(b"")
        return commit

    async def _pages(
        self, prefix: str, with_values: bool, timeout_seconds: float | None
    ) -> AsyncGenerator[list[list[Any]], None]:
        """Yield the rows of the keys that start with `prefix`, page by page."""
        after_key: str | None = None
        check_key(prefix)
        page = self._fetch(prefix, after_key, with_values, timeout_seconds)
        while True:
            (rows, after_key), *_ = self._link.unwrap(await page)
            if after_key is not None:
                page = self._fetch(prefix, after_key, with_values, timeout_seconds)
            yield rows
            if after_key is None:
                return

    def _fetch(
        self, prefix: str, after_key: str | None, with_values: bool, timeout_seconds: float | None
    ) -> Any:
        packed = pack([GET_ENTRIES, prefix, after_key, None, with_values])
        return self._link.submit(self._key, packed, False, 0, timeout_seconds)


def _ack(result: Sequence[Any], time: int, durability: Durability) -> Ack:
    return Ack(None, result[1], time, durability)
