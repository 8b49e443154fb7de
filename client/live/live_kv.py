"""A live kv: a dictionary with the same content everywhere.

    async with hf.live_kv("settings", codec="json") as settings:
        settings.on_change(lambda change: print(change.key, change.value, change.origin))
        settings["theme"] = "dark"          # visible at once, sent in the background
        print(settings.get("font"), len(settings), settings.unsaved)
        await settings.save()               # returns when all of it is stored

It is a MutableMapping in memory, so reading never waits. A write is visible at once, and unsaved
until the owner has confirmed it. If the owner rejects it (because of a limit of the store, for
example), the earlier value shows again and `on_reject` is called. Everything continues while the
servers or NATS are away; what is written meanwhile is sent afterwards. If the process dies, only
the keys in `unsaved` are lost; leaving the `async with` saves them first.

**Conflicts.** Somebody else may have set or created the same key in between.
`merge(base, local, remote)` then decides: it gets the value that both started from, the local one
and the remote one (None: the key did not exist), and returns a value, or DELETE. Without it the
last writer wins, which is the one whose write arrives last. All replicas end with the same value in
any case. If an outage of five minutes or more hides that an own write was stored, and somebody has
built on it since, the write is merged with itself. An idempotent merge, as for sets and texts, is
not affected by that.

**Large values** (above MAX_VALUE_BYTES) are not held once they are stored, whoever wrote them.
Their keys show. Reading one raises LargeValueNotHeldError; `KV.get_reader` of `Client.kv` reads it.
In changes a LargeValue takes the place of the value, and `entry(key).large` has it too. Such a key
can be set and deleted as any other. A merge needs all its values: if one of them is large, the
local write is rejected (`on_reject`, `save`) and the owner's value shows.

A value is decoded at each read, and its dictionaries and lists are read-only: a change in place
would be lost, so it raises TypeError. Change a copy and assign that:
`live["votes"] = {**live["votes"], "bob": 2}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, ItemsView, Iterator, MutableMapping, ValuesView
from enum import Enum
from typing import Any, Final, TypeVar

from holdfast.client.following.follower import Follower
from holdfast.client.following.subscription import Subscription
from holdfast.client.handles.kv import KV
from holdfast.client.large_values.large_value import is_large
from holdfast.client.large_values.value_upload import put_value
from holdfast.client.live.live_entries import EntryChange, EntryWrite, Held, LiveEntries, local_wins
from holdfast.client.live.live_replica import (
    FLIGHT_BYTES,
    FLIGHT_SECONDS,
    FLIGHT_WRITES,
    OUTAGES,
    LiveReplica,
)
from holdfast.client.live.live_values import encoded_for_live
from holdfast.client.live.read_only import read_only
from holdfast.client.values.codec import RAW, Codec
from holdfast.client.values.values import Values, check_headers_free, decoded_or_raise
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import (
    check_callable,
    checked_durability,
    checked_map,
    checked_ttl,
    delete_entries_operation,
    set_entry_operation,
)
from holdfast.protocol.errors import (
    HoldfastError,
    LargeValueNotHeldError,
    OperationTimeoutError,
    ProtocolError,
    WrongRevisionError,
)
from holdfast.protocol.frames import pack
from holdfast.protocol.messages import Ack, AnyDurability, Entry, Headers, LargeValue
from holdfast.protocol.names import StoreKind, StoreName, check_key

V = TypeVar("V")

#: After this time the owner is asked about a conflict, because a broadcast may be lost.
_CONFLICT_SECONDS: Final = 0.5


class KeyRemoval(Enum):
    """The type of DELETE."""

    DELETE = "delete"


#: A merge returns this to delete the key.
DELETE: Final = KeyRemoval.DELETE

#: `merge(base, local, remote)`; None means that the key does not exist.
MergeFunction = Callable[[V | None, V | None, V | None], V | KeyRemoval]


class LiveKV(LiveReplica[EntryChange[Held], V], MutableMapping[str, V]):
    """A live replica of a kv: a local copy, as a dictionary (MutableMapping). Made by
    `Client.live_kv`; use it with `async with`, or `open` and `aclose`.

    Reading never waits. A write shows at once and is sent in the background; it is *unsaved* until
    the owner has confirmed it. If the owner rejects it, the earlier value shows again and
    `on_reject` is called. Everything continues while the servers or NATS are away; what you write
    meanwhile is sent afterwards.

    A value is decoded at each read, and its dictionaries and lists are read-only. Change a copy and
    assign that.

    Values above MAX_VALUE_BYTES are uploaded in the background, and not held once they are stored.

    Writing raises InvalidNameError, InvalidArgumentError and TooLargeError for what can never be
    stored, such as a value above MAX_UNSAVED_BYTES; BusyError if MAX_UNSAVED_WRITES keys or
    MAX_UNSAVED_BYTES are unsaved (`await save()` makes room); ConnectionFailedError if the replica
    is not open. Reading raises ValueUnreadableError for a value that another codec wrote, and
    LargeValueNotHeldError for a large value.

        async with hf.live_kv("settings", codec="json") as settings:
            settings["theme"] = "dark"
            print(settings.get("font"), len(settings), settings.unsaved)
            await settings.save()
    """

    _core: LiveEntries

    def __init__(
        self,
        link: Link,
        follower: Follower,
        name: StoreName,
        codec: Codec[V],
        merge: MergeFunction[V] | None,
        durability: AnyDurability | None,
        registry: dict[int, LiveReplica[Any, Any]],
    ) -> None:
        # Lenient: a value that cannot be decompressed is an error only when it is read.
        self._values = Values(link, str(name), RAW, lenient=True)
        self._kv = KV(link, follower, name, self._values)
        self._codec = codec
        if merge is not None:
            check_callable("merge", merge)
        self._user_merge = merge
        self._durability = checked_durability(durability)
        core = LiveEntries(local_wins if merge is None else self._merged)
        super().__init__(link, str(name), core, registry)
        self._store_key = (int(StoreKind.KV), self.name)

    def __getitem__(self, key: str) -> V:
        value = self._core.visible[key]
        if isinstance(value, LargeValue):
            raise LargeValueNotHeldError(what=f"the value of {key!r}")
        return self._visible(value)

    def __setitem__(self, key: str, value: V) -> None:
        self.set(key, value)

    def set(
        self,
        key: str,
        value: V,
        *,
        headers: Headers | None = None,
        ttl_seconds: float | None = None,
    ) -> None:
        """Set `key`, as `live[key] = value` does, with headers or a ttl. Like the value, they show
        everywhere: see `entry`. `ttl_seconds` counts from when the owner stores it.

            live.set("ada", {"typing": True}, ttl_seconds=5)
        """
        self._check_open()
        given = checked_map(headers)
        check_headers_free(given)
        ttl_seconds = checked_ttl(ttl_seconds)
        data = encoded_for_live(self._codec, value)
        self._core.write(check_key(key), data, given, ttl_seconds)
        self._written()

    def __delitem__(self, key: str) -> None:
        if key not in self._core.visible:
            raise KeyError(key)
        self._check_open()
        self._core.write(key, None)
        self._written()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the present keys; the loop's body may await, and change anything."""
        return iter(tuple(self._core.visible))

    def __len__(self) -> int:
        return len(self._core.visible)

    def __contains__(self, key: object) -> bool:
        return key in self._core.visible

    def items(self) -> ItemsView[str, V]:
        """Return the present keys and values; the loop's body may await, and change anything."""
        return {key: self[key] for key in self._core.visible}.items()

    def values(self) -> ValuesView[V]:
        """Return the present values, as `items` does."""
        return {key: self[key] for key in self._core.visible}.values()

    def clear(self) -> None:
        """Delete every key that shows."""
        for key in self:
            del self[key]

    def entry(self, key: str) -> Entry | None:
        """Return the last confirmed entry of `key`, with revision, time and headers, or None. Its
        value is bytes. Raises ValueUnreadableError.
        """
        entry = self._core.confirmed.get(key)
        if entry is not None:
            decoded_or_raise(RAW, entry.value)
        return entry

    @property
    def unsaved(self) -> tuple[str, ...]:
        """The keys whose local write is not confirmed, oldest first."""
        return self._core.unsaved

    @property
    def unsaved_count(self) -> int:
        """The number of those keys."""
        return self._core.unsaved_count

    def on_change(
        self, callback: Callable[[EntryChange[V | LargeValue]], object]
    ) -> Callable[[], None]:
        """Call `callback` with each EntryChange, including local ones. Return a function that
        ends this.

        A LargeValue takes the place of a value that is not held. The entries that exist when the
        replica is opened are not reported.
        """
        return self._register(self._change_callbacks, callback)

    async def _subscription(self) -> Subscription[bytes]:
        return self._kv.watch()

    async def _send_flight(self) -> HoldfastError | None:
        await self._wait_for_work()
        link = self._link
        try:
            if link.full:
                await link.wait_for_room(None)
        except OperationTimeoutError as error:
            return error
        flight = self._core.take_flight(FLIGHT_WRITES, FLIGHT_BYTES)
        large = [write for write in flight if is_large(write.value or b"")]
        small = [write for write in flight if not is_large(write.value or b"")]
        answers = [
            link.submit(
                self._store_key, self._packed(write), True, self._durability, FLIGHT_SECONDS
            )
            for write in small
        ]
        if answers:
            await asyncio.wait(answers)
        outage: HoldfastError | None = None
        for write, answer in zip(small, answers, strict=True):
            found = answer.result()
            outage = await self._answered(write, self._told_answer(found)) or outage
        for write in large:
            outage = await self._answered(write, self._upload(write)) or outage
        return outage

    async def _told_answer(self, answer: Any) -> tuple[int, int, LargeValue | None]:
        """Return revision and time of a write that was stored. Raises the error of another."""
        if type(answer) is Ack:
            return answer.revision, answer.time, None
        (_, revision), time, _ = self._link.unwrap(answer)
        return revision, time, None

    async def _upload(self, write: EntryWrite) -> tuple[int, int, LargeValue | None]:
        """Store a large value. Return revision and time, and what stands for the value."""
        assert write.value is not None
        stored: list[LargeValue] = []

        async def commit(value: LargeValue) -> Ack:
            stored.append(value)
            headers = dict(write.headers) or None
            operation = set_entry_operation(
                write.key, value, headers, write.expected_revision, write.ttl_seconds
            )
            answer = await self._link.submit(
                self._store_key, pack(operation), True, self._durability, FLIGHT_SECONDS
            )
            if type(answer) is Ack:
                return answer
            (_, revision), time, durability = self._link.unwrap(answer)
            return Ack(None, revision, time, durability)

        ack = await put_value(self._link, self._store_key, write.value, commit, FLIGHT_SECONDS)
        return ack.revision, ack.time, stored[-1]

    async def _answered(
        self, write: EntryWrite, answer: Awaitable[tuple[int, int, LargeValue | None]]
    ) -> HoldfastError | None:
        """Tell the core the result of a write. Return the error if it is an outage."""
        try:
            revision, time, large = await answer
        except WrongRevisionError:
            self._core.refused(write.key)
        except OUTAGES as error:
            self._core.unanswered(write.key)
            return error
        except ProtocolError:
            raise
        except HoldfastError as error:
            self._core.rejected(write.key, error)
        else:
            self._core.stored(write.key, revision, time, large)
        return None

    async def _wait_for_work(self) -> None:
        """Return when there may be something to send. Meanwhile, ask the owner about conflicts."""
        while not self._core.has_waiting:
            self._work.clear()
            try:
                async with asyncio.timeout(_CONFLICT_SECONDS if self._core.conflicts else None):
                    await self._work.wait()
            except TimeoutError:
                await self._look_at_conflicts()

    async def _look_at_conflicts(self) -> None:
        for key in self._core.conflicts:
            try:
                head = await self._kv.head()
                # Not `get`, which would fetch a large value too.
                reader = await self._kv.get_reader(key)
                found = None if reader is None else reader.row
                self._core.found(key, found, head.revision)
            except OUTAGES:
                return  # the follower or the next check brings it
            self._after()

    def _merged(
        self, base: bytes | None, local: bytes | None, remote: bytes | None
    ) -> bytes | None:
        """Call the application's merge. If it fails, the local value wins."""
        assert self._user_merge is not None
        try:
            values = [
                None if each is None else self._decoded(each) for each in (base, local, remote)
            ]
            merged = self._user_merge(*values)
            if isinstance(merged, KeyRemoval):
                return None
            return encoded_for_live(self._codec, merged)
        except Exception as error:  # noqa: BLE001 (an error of the application)
            self._report("the merge of a live kv failed: the local value wins", error)
            return local

    def _told(self, change: EntryChange[Held]) -> EntryChange[V | LargeValue]:
        key, value, previous, origin = change
        return EntryChange(key, self._shown(value), self._shown(previous), origin)

    def _shown(self, value: Held | None) -> V | LargeValue | None:
        return self._visible(value) if isinstance(value, bytes) else value

    def _visible(self, value: bytes) -> V:
        """Return a value as the application sees it: decoded and read-only."""
        shown: V = read_only(self._decoded(value))
        return shown

    def _decoded(self, value: bytes) -> V:
        return decoded_or_raise(self._codec, value)

    def _packed(self, write: EntryWrite) -> bytes:
        if write.value is None:
            return pack(delete_entries_operation(write.key, write.expected_revision))
        value, headers = self._values.stored(write.value, dict(write.headers) or None)
        return pack(
            set_entry_operation(
                write.key, value, headers, write.expected_revision, write.ttl_seconds
            )
        )
