"""A kv: the last value of each key, and with a history the former ones too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, Generic, Unpack

from holdfast.client.chain.kv_verifying import verify_kv_chain
from holdfast.client.following.follower import Follower
from holdfast.client.following.subscription import Subscription, subscription_to
from holdfast.client.following.track import Wanted
from holdfast.client.handles import configuration
from holdfast.client.handles.entry_reads import EntryReads
from holdfast.client.handles.forking import StoreFork, fork
from holdfast.client.handles.owner_jobs import destroy
from holdfast.client.handles.transaction import KVTransaction
from holdfast.client.handles.writing.pending import PendingAck
from holdfast.client.handles.writing.store_writes import StoreWrites
from holdfast.client.large_values.large_value import is_large, with_large_value
from holdfast.client.large_values.value_reader import ValueReader
from holdfast.client.large_values.value_source import Source, write_file
from holdfast.client.large_values.value_upload import put_file, put_value
from holdfast.client.values.values import Values
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import (
    PACKED_HEAD,
    Value,
    ack_from_wire,
    check_count,
    checked_durability,
    dated_changes,
    delete_entries_operation,
    delete_prefix_operation,
    entry_from_wire,
    head_from_wire,
    listed,
    paired,
    set_entry_operation,
)
from holdfast.protocol.chain.checking import ChainReport
from holdfast.protocol.chain.hashing import ChainLink
from holdfast.protocol.errors import (
    InvalidArgumentError,
    OperationTimeoutError,
    WrongRevisionError,
)
from holdfast.protocol.frames import (
    CLEAR,
    GET_ENTRY,
    GET_ENTRY_AT,
    HISTORY,
    pack,
)
from holdfast.protocol.limits import DELETED_WITH_PREFIX_AT_A_TIME
from holdfast.protocol.messages import (
    Ack,
    AnyDurability,
    Change,
    Deleted,
    Entry,
    Head,
    Headers,
    LargeValue,
    V,
    WrittenEntry,
)
from holdfast.protocol.names import StoreKind, StoreName, check_key
from holdfast.protocol.store_config import ConfigSettings, StoreConfig

_PACKED_CLEAR = pack([CLEAR])
#: The longest pause, but for jitter, before `update` tries again after others were faster.
_UPDATE_PAUSE_SECONDS = 0.05


class KV(Generic[V]):
    """A handle on one kv of the client's tenant: the last value of each key, and the values before
    it if the kv is configured to keep a history. It holds only a name, so making one is cheap.

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

    def __init__(
        self, link: Link, follower: Follower, name: StoreName, values: Values[V]
    ) -> None:
        #: The name of the kv.
        self.name = name
        self._values = values
        self._link = link
        self._follower = follower
        self._key = (int(StoreKind.KV), str(name))
        self._reads = EntryReads(link, self._key)
        self._writes = StoreWrites(link, self._key)

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

            await kv.set("theme", b"dark", ttl_seconds=3600)
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
        return answer if type(answer) is Ack else ack_from_wire(*link.unwrap(answer))

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

        Use it for one producer that keeps many sets in flight. They are stored in the order of
        these calls. The call waits while the client has more unanswered operations than can be
        answered in time, at most MAX_WAITING_OPERATIONS and MAX_WAITING_BYTES.

        Raises TooLargeError for a value above MAX_VALUE_BYTES. Other errors are raised by the
        PendingAck.
        """
        link, values = self._link, self._values
        data, headers = values.stored(values.encoded(value), headers)
        packed = pack(set_entry_operation(key, data, headers, expected_revision, ttl_seconds))
        level = 0 if durability is None else checked_durability(durability)
        if link.full:
            await link.wait_for_room(timeout_seconds)
        pending = PendingAck(ack_from_wire)
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
        """Set all of the keys or none. Return an ack for each, in order; [] if there are none.

        `items` is a mapping, or an iterable of `(key, value)` pairs. The other arguments are those
        of `set`.

        Raises TooLargeError unless all fit into one frame of about 1 MB and 4096 keys;
        LimitExceededError and RateLimitedError as `set` does, also if the kv cannot keep all of
        them.
        """
        given = items.items() if isinstance(items, Mapping) else items
        operations = []
        for key, value in paired("items", given, "a key and a value"):
            data, headers = self._values.stored(self._values.encoded(value), None)
            operations.append(set_entry_operation(key, data, headers, None, ttl_seconds))
        return await self._writes.batch(operations, durability, timeout_seconds)

    async def set_written(
        self,
        entries: Sequence[WrittenEntry[V]],
        *,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> list[Ack]:
        """Set keys to what was written elsewhere before, with its times: all or none. Return an ack
        for each, in order; its time is that of the set.

        It is for copies and imports. The age of an entry begins at its `time`; a maximum age
        removes entries in the order in which they were set, so times should not decrease. An entry
        alone may be of any size.

        Raises InvalidArgumentError for a time that is not in the past; TooLargeError unless all of
        several fit into one frame of about 1 MB and 4096 keys; and what `set` raises.

            noon = WrittenEntry("theme", b"dark", time=1_795_255_200_000)
            await kv.set_written([noon])
        """
        entries = listed("entries", entries)
        for entry in entries:
            if not isinstance(entry, WrittenEntry):
                reason = f"must be WrittenEntries, not {entry!r:.80}"
                raise InvalidArgumentError(argument="entries", reason=reason)
        if len(entries) == 1:
            [entry] = entries
            data = self._values.encoded(entry.value)
            if is_large(data):
                commit = self._writes.committing(
                    partial(self._written, entry), durability, timeout_seconds
                )
                return [await put_value(self._link, self._key, data, commit, timeout_seconds)]
        operations = [
            self._written(entry, self._values.encoded(entry.value)) for entry in entries
        ]
        return await self._writes.batch(operations, durability, timeout_seconds)

    async def get(
        self, key: str, *, revision: int | None = None, timeout_seconds: float | None = None
    ) -> Entry[V] | None:
        """Return the entry of `key`, or None if the key does not exist.

        With `revision`, return the entry as it was when the kv had that revision, which may have
        been written with it or before it. This needs a history: see `configure`.

        A large value is returned whole; `get_reader` and `get_file` keep only a few chunks of it in
        memory.

        Raises ValueUnreadableError if the value cannot be decompressed or decoded;
        RevisionGoneError if the history does not reach back to `revision`, and InvalidArgumentError
        if the kv has not reached it.

            ack = await kv.set("theme", b"dark")
            await kv.set("theme", b"light")
            before = await kv.get("theme", revision=ack.revision)
        """
        entry = await self._find(key, timeout_seconds, revision)
        if entry is not None and entry.large is not None:
            entry = await with_large_value(
                entry,
                lambda found: self._reader(found, timeout_seconds).read(),
                lambda: self._find(key, timeout_seconds, revision),
            )
        return None if entry is None else self._values.entry(entry)

    async def history(
        self, key: str, *, timeout_seconds: float | None = None
    ) -> list[Change[V]]:
        """Return what happened to `key`, oldest first: each set as a SET change with its entry, and
        each delete as a DELETE change.

        How many values are kept is configured: `configure(history=10)`. Deletes between them are
        told besides. Without a history this is the set of the present value, if there is one. A
        value whose ttl has ended is not told, nor is its end.

        Large values are not included: `entry.large` stands for one, and `get_reader` reads it. If a
        value cannot be read, reading `entry.value` raises ValueUnreadableError.

            for change in await kv.history("theme"):
                print(change.revision, change.kind, change.entry)
        """
        found: list[Change[V]] = []
        after_revision: int | None = 0
        check_key(key)
        while after_revision is not None:
            packed = pack([HISTORY, key, after_revision])
            answer, *_ = await self._link.call(self._key, packed, False, 0, timeout_seconds)
            dated, after_revision = dated_changes(answer)
            found += map(self._values.change, dated)
        return found

    async def get_reader(
        self,
        entry: str | Entry[Any],
        *,
        revision: int | None = None,
        timeout_seconds: float | None = None,
    ) -> ValueReader[Entry] | None:
        """Return a reader of the value of an entry, or None if the key does not exist.

        `entry` is a key, or an Entry that `get_all`, `watch` or `history` returned. With
        `revision`, the key is looked up as `get` does. `timeout_seconds` applies to each chunk.
        """
        if isinstance(entry, Entry) and entry.large is None and not self._values.is_raw:
            # Its value is decoded: what is stored is asked for.
            entry = entry.key
        if isinstance(entry, Entry):
            found: Entry | None = entry
        else:
            found = await self._find(entry, timeout_seconds, revision)
        if found is None:
            return None
        return self._reader(self._values.plain_entry(found), timeout_seconds)

    async def get_file(
        self,
        entry: str | Entry[Any],
        path: str | os.PathLike[str],
        *,
        revision: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Entry | None:
        """Write the value of an entry to the file `path`. Return the entry, without a large value;
        None if the key does not exist, and then nothing is written.

        The file is written completely and synced, or not at all. Raises what a ValueReader raises,
        and OSError.
        """
        reader = await self.get_reader(entry, revision=revision, timeout_seconds=timeout_seconds)
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
        """Set `key` to the content of a file.

        `source` is a path, or an open binary file that is read from its position. The other
        arguments are those of `set`. `timeout_seconds` applies to each chunk.

        To resume an interrupted call within an hour, repeat it with the same content and the same
        `upload_id`, 16 bytes of your choice that you use for one value only. The call sends what is
        missing. If the value was already stored, the ack is that of the first time, with
        `duplicate` true and the durability unknown.

        Raises what `set` raises, and OSError.
        """
        commit = self._committing(
            key, headers, expected_revision, ttl_seconds, durability, timeout_seconds
        )
        return await put_file(self._link, self._key, source, commit, upload_id, timeout_seconds)

    async def get_many(
        self, keys: Sequence[str], *, timeout_seconds: float | None = None
    ) -> list[Entry[V] | None]:
        """Return the entry of each of `keys`, or None for a key that does not exist, all as they
        were at one moment, however many there are and whoever writes meanwhile.

        Large values are not included, and values that cannot be read are as in `get_all`.
        `timeout_seconds` applies to each page of about 512 KiB.

        Raises OperationTimeoutError too if more than 10,000 deletes happened during each try.

            theme, font = await kv.get_many(["theme", "font"])
        """
        found = await self._reads.many(keys, timeout_seconds)
        return [None if entry is None else self._values.listed_entry(entry) for entry in found]

    async def get_all(
        self,
        *,
        prefix: str = "",
        after_key: str | None = None,
        limit: int | None = None,
        revision: int | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[Entry[V]]:
        """Yield the entries whose key starts with `prefix`, in order of their keys.

        - `limit` ends after so many entries.
        - `after_key` leaves out the keys up to and including this one, which need not exist. So the
          last key of one page is the cursor of the next one.

        Pages are fetched one ahead; `timeout_seconds` applies to each. Each page is a consistent
        view, but all pages together are not.

        With `revision`, the entries are those of the time when the kv had that revision, in all
        pages. This needs a history, which must reach back to there for every key: see `configure`.
        Raises RevisionGoneError if it does not, and InvalidArgumentError if the kv has not reached
        that revision.

        Large values are not included: `entry.large` stands for one, and `get_reader` reads it. If a
        value cannot be read, reading `entry.value` raises ValueUnreadableError, and
        `entry.unreadable` tells so beforehand; the iteration continues.

            async for entry in kv.get_all(prefix="user."):
                print(entry.key, entry.value)
        """
        pages = self._reads.pages(prefix, after_key, limit, True, timeout_seconds, revision)
        async with contextlib.aclosing(pages):
            async for page in pages:
                for wire in page:
                    yield self._values.listed_entry(entry_from_wire(wire))

    async def keys(
        self,
        *,
        prefix: str = "",
        after_key: str | None = None,
        limit: int | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[str]:
        """Yield the keys that start with `prefix`, in order, without their values. The arguments
        are those of `get_all`.

            page = [key async for key in kv.keys(limit=100)]
            following = [key async for key in kv.keys(after_key=page[-1], limit=100)]
        """
        pages = self._reads.pages(prefix, after_key, limit, False, timeout_seconds)
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
        """Delete one key or several, at most MAX_DELETE_COUNT. Return how many of them existed.

        With `expected_revision` the keys are deleted only if each has that revision.

        Raises WrongRevisionError, which carries the actual revision.
        """
        operation = delete_entries_operation(keys, expected_revision)
        if not operation[1]:
            return Deleted(0, (await self.head(timeout_seconds=timeout_seconds)).revision)
        return await self._writes.delete(pack(operation), timeout_seconds)

    def transaction(
        self,
        *,
        durability: AnyDurability | None = None,
        timeout_seconds: float | None = None,
    ) -> KVTransaction[V]:
        """Return a transaction. Read, set and delete through it; when its `async with` ends, all
        writes are stored, or none.

        They are stored only if every key that was read through the transaction is unchanged.
        Otherwise the end raises WrongRevisionError, which names the key, and you may begin again.

            async with kv.transaction() as t:
                entry = await t.get("balance")
                t.set("balance", entry.value + b"1")
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
        """Set `key` to what `function` returns for its present entry. `function` gets None if the
        key does not exist; if it returns None, the key is deleted.

        If others set the key meanwhile, `function` is called again with the new entry, until
        `timeout_seconds` have passed. The other arguments are those of `set`.

        Raises OperationTimeoutError when the time is over and others were faster each time; nothing
        was stored then.

            await kv.update("count", lambda entry: str(int(entry.value) + 1).encode())
        """

        async def ask(entry: Entry[V] | None) -> V | Value | None:
            return function(entry)

        return await self._update(key, ask, headers, ttl_seconds, durability, timeout_seconds)

    async def delete_all(
        self, *, prefix: str = "", atomic: bool = False, timeout_seconds: float | None = None
    ) -> Deleted:
        """Delete every key, at once. Return how many existed.

        With `prefix`, delete the keys that start with it: 1,024 at a time, so that others are not
        held up. More take several operations, each atomic; `timeout_seconds` applies to each. Keys
        that are set meanwhile may stay. If it is interrupted, call it again. A token needs the
        rights to read and to write for it.

        With `atomic`, all of them go at once, or none: at most MAX_DELETED_WITH_PREFIX, and
        TooLargeError is raised if there are more. `KVTransaction.delete_all` does the same within a
        transaction.

            await kv.delete_all(prefix="session.")
        """
        if check_key(prefix):
            return await self._delete_prefix(prefix, atomic, timeout_seconds)
        return await self._writes.delete(_PACKED_CLEAR, timeout_seconds)

    async def head(self, *, timeout_seconds: float | None = None) -> Head:
        """Return the kv's revision, its number of keys, and their bytes."""
        wire, *_ = await self._link.call(self._key, PACKED_HEAD, False, 0, timeout_seconds)
        return head_from_wire(wire)

    async def verify_chain(
        self, kept: Iterable[Ack | ChainLink] = (), *, timeout_seconds: float | None = None
    ) -> ChainReport:
        """Read the whole kv, compute its chain anew, and compare it with what you kept: acks, or a
        ChainLink of each revision and chain. The kv must be configured with `chain`.

        The report is that of `Stream.verify_chain`, with revisions of sets in place of seqs. Values
        that were replaced or deleted since count by their leaves.

        Raises InvalidArgumentError if the kv keeps no chain.

            report = await kv.verify_chain([ack])
            assert report.is_sound
        """
        pages = self._reads.pages("", None, None, True, timeout_seconds)
        return await verify_kv_chain(self._link, self._key, pages, kept, timeout_seconds)

    async def configure(
        self, *, timeout_seconds: float | None = None, **settings: Unpack[ConfigSettings]
    ) -> StoreConfig:
        """Change the given settings and return the whole configuration. The settings are the fields
        of StoreConfig; `max_messages` counts keys.

        Settings that you leave out stay as they are; None restores a default. With `discard` "old",
        keys that exceed new limits are removed at once, beginning with those that were set longest
        ago.

        `history`, from 1 to MAX_HISTORY, is how many values of each key are kept, its present one
        included; 1, the default, keeps no history. It begins when it is configured. A lower number
        removes values at once. Former values count in `max_bytes` and are removed before any key
        is; `max_messages` counts keys, and one that it removes goes with its history.

        Raises InvalidArgumentError for an unknown setting or a wrong value.
        """
        return await configuration.configure(self._link, self._key, settings, timeout_seconds)

    async def config(self, *, timeout_seconds: float | None = None) -> StoreConfig:
        """Return the kv's configuration."""
        return await configuration.config(self._link, self._key, timeout_seconds)

    async def fork(
        self, new: str, *, revision: int | None = None, timeout_seconds: float | None = None
    ) -> StoreFork:
        """Make `new` a kv that begins with what this one holds, and goes on by itself. With
        `revision` it is as this kv was then.

        It shares the snapshot of this kv in the bucket, and copies nothing until it changes. It
        needs the right to read this kv and to write the new one, and servers with a bucket. See
        docs/forks.md.

        Raises InvalidArgumentError if `new` exists, NotFoundError without this kv,
        PointNotReachedError for a revision that cannot be reached.

            await kv.fork("settings.trial")
        """
        return await fork(self._link, self._key, new, (None, revision), timeout_seconds)

    async def destroy(self, *, timeout_seconds: float | None = None) -> bool:
        """Remove the kv: its file, snapshots, quarantined files and configuration. Return False if
        it did not exist. Nothing can restore it, but what it held stays in logs for a while, and in
        exported tables; operators can purge it there (docs/erasure.md).

        Its name is free afterwards. A later write creates a new kv, which a retry of this call
        leaves alone. Followers receive a RESET. The call needs its own NATS permission
        (docs/operations.md).

        After OperationTimeoutError the kv may or may not be removed.
        """
        return await destroy(self._link, self._key, timeout_seconds)

    def watch(
        self,
        *,
        prefix: str = "",
        start_revision: int | None = None,
        with_state: bool = True,
        meta_only: bool = False,
    ) -> Subscription[V]:
        """Follow the kv. Return an async iterator of Change: each change once, in the order of
        revisions.

        First come the entries whose key starts with `prefix`, as SET changes in the order of their
        keys; then a READY change; then every change as it happens. With `start_revision` (see
        `Subscription.revision`) the changes since that revision take the place of the entries; of a
        key that was set several times since then you get only the last value.

        - With `with_state` False you get only what happens from now on, without the entries and the
          READY; *now* is when you enter the subscription with `async with`, or ask for the first
          change.
        - With `meta_only` the entries have keys, revisions and times alone: `value` is None, and
          `headers` are empty. Neither the state nor live changes come over the network with values:
          while somebody watches so, the owner broadcasts each change a second time without them.

        The subscription survives reconnects and changes of owner. After a RESET change, discard
        everything you know: the entries and another READY follow again. A RESET comes if the owner
        no longer remembers deletes that you missed, or if the kv was deleted and created again.

        `async with` or `aclose()` ends it, and so does dropping it, for example by a `break` out of
        `async for`.

            async for change in kv.watch(prefix="user."):
                print(change.kind, change.entry)
        """
        if start_revision is not None:
            check_count("start_revision", start_revision)
        check_key(prefix)
        return subscription_to(
            self._link,
            self._follower,
            self._key,
            self._values,
            Wanted(
                prefix=prefix,
                start_revision=start_revision,
                marks_ready=with_state,
                with_state=with_state,
                meta_only=meta_only,
            ),
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

    async def _delete_prefix(
        self, prefix: str, atomic: bool, timeout_seconds: float | None
    ) -> Deleted:
        count, after_key = 0, None
        limit = None if atomic else DELETED_WITH_PREFIX_AT_A_TIME
        while True:
            packed = pack(delete_prefix_operation(prefix, limit, after_key))
            answer, *_ = await self._link.call(self._key, packed, True, 0, timeout_seconds)
            deleted, revision, after_key = answer
            count += deleted
            if after_key is None:
                return Deleted(count, revision)

    async def _find(
        self, key: str, timeout_seconds: float | None, revision: int | None = None
    ) -> Entry | None:
        link = self._link
        if revision is None:
            packed = pack((GET_ENTRY, check_key(key)))
        else:
            packed = pack((GET_ENTRY_AT, check_key(key), check_count("revision", revision)))
        if link.full:
            await link.wait_for_room(timeout_seconds)
        answer = await link.submit(self._key, packed, False, 0, timeout_seconds)
        wire = link.unwrap(answer)[0]
        return None if wire is None else entry_from_wire(wire)

    def _reader(self, entry: Entry, timeout_seconds: float | None) -> ValueReader[Entry]:
        what = self._values.entry_name(entry.key)
        return ValueReader(self._link, self._key, entry, what, timeout_seconds)

    def _written(self, entry: WrittenEntry[V], value: Value | LargeValue) -> list[Any]:
        value, headers = self._values.stored_or_large(value, entry.headers)
        return set_entry_operation(
            entry.key, value, headers, None, entry.ttl_seconds, time_ms=entry.time
        )

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

        def operation(value: Value | LargeValue) -> list[Any]:
            value, marked = self._values.stored_or_large(value, headers)
            return set_entry_operation(key, value, marked, expected_revision, ttl_seconds)

        return self._writes.committing(operation, durability, timeout_seconds)
