"""`Client`: what an application has of a cluster. `connect` (`connecting.py`) makes it.

A client is one connection to NATS, one tenant, one event loop, and one writer whose retries the
servers recognise. Make one for a process and share it: its operations travel together.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from holdfast.client.connection_events import ConnectionEvents
from holdfast.client.following.follower import Follower
from holdfast.client.following.pattern import PatternSubscription
from holdfast.client.following.pattern_feed import PatternFeed
from holdfast.client.handles.kv import KV
from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.store_heads import StoreHead, head_pages
from holdfast.client.handles.stream import Stream
from holdfast.client.live.live_kv import LiveKV, MergeFunction
from holdfast.client.live.live_replica import LiveReplica
from holdfast.client.live.live_stream import LiveStream
from holdfast.client.values.codec import Codec, CodecName, codec_of
from holdfast.client.values.values import Values
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import check_count, check_timeout, range_start
from holdfast.protocol.control import ServerInfo, StoreInfo
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.messages import AnyDurability
from holdfast.protocol.monitoring.samples import PartStatistics
from holdfast.protocol.names import (
    StoreKind,
    check_key,
    check_pattern,
    check_store,
    matches,
)

V = TypeVar("V")


class Client:
    """A connection to holdfast, for one tenant. Made by `connect`.

    Its methods may be called from any coroutine of its event loop, at any concurrency. Make one
    client for a process and share it: operations of all its tasks travel together. A task may be
    cancelled at any point; a write that it was waiting for may or may not be stored.
    """

    def __init__(self, link: Link, follower: Follower, owns_bus: bool) -> None:
        self._link = link
        self._follower = follower
        self._owns_bus = owns_bus
        self._events = ConnectionEvents(link)
        #: Open replicas by `id()`, because replicas compare by what they hold.
        self._replicas: dict[int, LiveReplica[Any, Any]] = {}

    @property
    def tenant(self) -> str:
        """The tenant whose stores this client uses."""
        return self._link.tenant

    @property
    def connected(self) -> bool:
        """False while the connection to NATS is lost. The client reconnects in the background, and
        operations wait meanwhile.
        """
        return self._link.bus.connected

    def on_disconnect(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` each time the connection to NATS is lost. Return a function that ends
        this.

        Callbacks take no arguments, run in the event loop and must not block. What they raise goes
        to the loop's exception handler. Closing the client calls none.

            hf.on_disconnect(lambda: print("offline"))
        """
        return self._events.on_disconnect(callback)

    def on_reconnect(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` each time the connection to NATS is back, as `on_disconnect` does.
        Operations that waited are sent again, and subscriptions catch up, without your help.
        """
        return self._events.on_reconnect(callback)

    @overload
    def stream(self, name: str, *, codec: None = None) -> Stream[bytes]: ...
    @overload
    def stream(self, name: str, *, codec: Literal["raw"]) -> Stream[bytes]: ...
    @overload
    def stream(self, name: str, *, codec: Literal["json", "msgpack"]) -> Stream[Any]: ...
    @overload
    def stream(self, name: str, *, codec: Codec[V]) -> Stream[V]: ...
    def stream(self, name: str, *, codec: Codec[Any] | CodecName | None = None) -> Stream[Any]:
        """Return a handle on a stream. This makes no round trip, and the stream need not exist.

        `codec` converts the values of this handle: "raw" (the default) leaves them as bytes, "json"
        and "msgpack" convert them, and so does a Codec of your own.

        Raises InvalidNameError; InvalidArgumentError for an unknown codec.
        """
        store = check_store(name)
        return Stream(self._link, self._follower, store, Values(self._link, store, codec_of(codec)))

    async def tell_statistics(self, kind: str, name: str, report: bytes) -> None:
        """Tell the coordinator what a gateway counts. For gateways.

        Raises NoCoordinatorError; UnknownOperationError if the coordinator is of an earlier
        version; ConnectionFailedError.
        """
        self._link.check_open()
        await self._link.router.report(kind, name, report)

    def send_now(self) -> None:
        """Send what was started in this turn of the loop, without waiting for its end. For
        gateways."""
        self._link.send_now()

    def serving_stream(
        self, name: str, *, serving_epoch: int | None = None, beside: str = ""
    ) -> ServingStream:
        """Return a handle on a stream for the gateway that serves it, in the process of the persist
        server `beside`, if it is in one. This makes no round trip.

        Raises InvalidNameError.
        """
        store = check_store(name)
        values = Values(self._link, store, codec_of(None))
        return ServingStream(self._link, self._follower, store, values, serving_epoch, beside)

    @overload
    def kv(self, name: str, *, codec: None = None) -> KV[bytes]: ...
    @overload
    def kv(self, name: str, *, codec: Literal["raw"]) -> KV[bytes]: ...
    @overload
    def kv(self, name: str, *, codec: Literal["json", "msgpack"]) -> KV[Any]: ...
    @overload
    def kv(self, name: str, *, codec: Codec[V]) -> KV[V]: ...
    def kv(self, name: str, *, codec: Codec[Any] | CodecName | None = None) -> KV[Any]:
        """Return a handle on a kv. This makes no round trip, and the kv need not exist.

        `codec` converts the values of this handle: "raw" (the default) leaves them as bytes, "json"
        and "msgpack" convert them, and so does a Codec of your own.

        Raises InvalidNameError; InvalidArgumentError for an unknown codec.
        """
        store = check_store(name)
        return KV(self._link, self._follower, store, Values(self._link, store, codec_of(codec)))

    @overload
    def live_kv(
        self,
        name: str,
        *,
        merge: MergeFunction[bytes] | None = None,
        codec: None = None,
        durability: AnyDurability | None = None,
    ) -> LiveKV[bytes]: ...
    @overload
    def live_kv(
        self,
        name: str,
        *,
        merge: MergeFunction[Any] | None = None,
        codec: CodecName,
        durability: AnyDurability | None = None,
    ) -> LiveKV[Any]: ...
    @overload
    def live_kv(
        self,
        name: str,
        *,
        merge: MergeFunction[V] | None = None,
        codec: Codec[V],
        durability: AnyDurability | None = None,
    ) -> LiveKV[V]: ...
    def live_kv(
        self,
        name: str,
        *,
        merge: MergeFunction[Any] | None = None,
        codec: Codec[Any] | CodecName | None = None,
        durability: AnyDurability | None = None,
    ) -> LiveKV[Any]:
        """Return a live replica of a kv: a local copy that follows the kv and can be written at
        once. Open it with `async with`.

        `merge(base, local, remote)` resolves conflicts; without it the last writer wins. `codec` is
        as in `kv`. `durability` is that of the writes; the kv's own by default.

        Raises InvalidNameError; InvalidArgumentError for an unknown codec or durability.
        """
        return LiveKV(
            self._link,
            self._follower,
            check_store(name),
            codec_of(codec),
            merge,
            durability,
            self._replicas,
        )

    @overload
    def live_stream(
        self,
        name: str,
        *,
        start_seq: int | None = None,
        last: int | None = None,
        codec: None = None,
        durability: AnyDurability | None = None,
    ) -> LiveStream[bytes]: ...
    @overload
    def live_stream(
        self,
        name: str,
        *,
        start_seq: int | None = None,
        last: int | None = None,
        codec: CodecName,
        durability: AnyDurability | None = None,
    ) -> LiveStream[Any]: ...
    @overload
    def live_stream(
        self,
        name: str,
        *,
        start_seq: int | None = None,
        last: int | None = None,
        codec: Codec[V],
        durability: AnyDurability | None = None,
    ) -> LiveStream[V]: ...
    def live_stream(
        self,
        name: str,
        *,
        start_seq: int | None = None,
        last: int | None = None,
        codec: Codec[Any] | CodecName | None = None,
        durability: AnyDurability | None = None,
    ) -> LiveStream[Any]:
        """Return a live replica of a stream: a local copy that follows the stream and can be
        appended to at once. Open it with `async with`.

        It holds the messages from `start_seq` on, or that number of `last` messages and all later
        ones, or all messages. `LiveStream.load` adds older ones. `codec` is as in `stream`.
        `durability` is that of the appends; the stream's own by default.

        Raises InvalidNameError; InvalidArgumentError for an unknown codec or durability, or if both
        `start_seq` and `last` are given.
        """
        return LiveStream(
            self._link,
            self._follower,
            check_store(name),
            codec_of(codec),
            start_seq,
            last,
            durability,
            self._replicas,
        )

    @overload
    def subscribe(
        self,
        pattern: str,
        *,
        start_seq: int | None = None,
        start_revisions: Mapping[str, int] | None = None,
        codec: None = None,
    ) -> PatternSubscription[bytes]: ...
    @overload
    def subscribe(
        self,
        pattern: str,
        *,
        start_seq: int | None = None,
        start_revisions: Mapping[str, int] | None = None,
        codec: CodecName,
    ) -> PatternSubscription[Any]: ...
    @overload
    def subscribe(
        self,
        pattern: str,
        *,
        start_seq: int | None = None,
        start_revisions: Mapping[str, int] | None = None,
        codec: Codec[V],
    ) -> PatternSubscription[V]: ...
    def subscribe(
        self,
        pattern: str,
        *,
        start_seq: int | None = None,
        start_revisions: Mapping[str, int] | None = None,
        codec: Codec[Any] | CodecName | None = None,
    ) -> PatternSubscription[Any]:
        """Follow all streams whose name matches `pattern`. Return an async iterator of StoreChange,
        pairs of the stream's name and a Change.

        In a pattern, `*` matches one token of a name, and a final `>` matches one or more tokens,
        as in NATS: `project.*.patches`, `project.>`.

        - The changes of each stream come in the order of their revisions, each once, as from
          `Stream.subscribe`. Changes of different streams come in no particular order.
        - With `start_seq`, each existing stream begins with its messages from there on. Without it,
          you get only what happens from now on; *now* is when you enter the subscription with
          `async with`, or ask for the first change.
        - A stream that is created later begins with its first message.
        - After a RESET change, discard what you know of its stream. Its messages follow again; a
          deleted stream has none.
        - `start_revisions` maps names to revisions: these streams resume after them (see
          `PatternSubscription.revisions`), whatever `start_seq` is.
        - `codec` is that of all their values, as in `stream`.

        One subscription in NATS serves all streams. It begins with a list of the matching streams
        and, without `start_seq`, with the head of each, so a narrow pattern is cheaper. An idle
        stream takes only a few hundred bytes of memory.

        Raises InvalidNameError for the pattern; InvalidArgumentError for the other arguments.

            async for store, change in hf.subscribe("project.*.patches"):
                print(store, change.kind, change.revision)
        """
        if start_seq is not None:
            start_seq = range_start("start_seq", start_seq)
        return self._follow(
            StoreKind.STREAM,
            pattern,
            codec_of(codec),
            start_seq=start_seq,
            start_revisions=start_revisions,
            with_history=start_seq is not None,
        )

    @overload
    def watch(
        self,
        pattern: str,
        *,
        prefix: str = "",
        with_state: bool = True,
        start_revisions: Mapping[str, int] | None = None,
        codec: None = None,
    ) -> PatternSubscription[bytes]: ...
    @overload
    def watch(
        self,
        pattern: str,
        *,
        prefix: str = "",
        with_state: bool = True,
        start_revisions: Mapping[str, int] | None = None,
        codec: CodecName,
    ) -> PatternSubscription[Any]: ...
    @overload
    def watch(
        self,
        pattern: str,
        *,
        prefix: str = "",
        with_state: bool = True,
        start_revisions: Mapping[str, int] | None = None,
        codec: Codec[V],
    ) -> PatternSubscription[V]: ...
    def watch(
        self,
        pattern: str,
        *,
        prefix: str = "",
        with_state: bool = True,
        start_revisions: Mapping[str, int] | None = None,
        codec: Codec[Any] | CodecName | None = None,
    ) -> PatternSubscription[Any]:
        """Follow all kvs whose name matches `pattern`. Return an async iterator of StoreChange,
        pairs of the kv's name and a Change.

        It works as `subscribe` does. Each existing kv begins with the entries whose key starts with
        `prefix`, as SET changes, and then a READY change. With `with_state` False you get only what
        happens from now on. The kvs in `start_revisions` resume after these revisions.

        Raises InvalidNameError for the pattern or the prefix; InvalidArgumentError for the other
        arguments.
        """
        return self._follow(
            StoreKind.KV,
            pattern,
            codec_of(codec),
            start_revisions=start_revisions,
            prefix=check_key(prefix),
            with_history=with_state,
        )

    async def servers(self, *, timeout_seconds: float | None = None) -> list[ServerInfo]:
        """Return every persist server that the coordinator knows.

        While no coordinator answers, the client keeps asking until `timeout_seconds` have passed
        (the client's timeout by default).

        Raises NoCoordinatorError; ConnectionFailedError.
        """
        self._link.check_open()
        return await self._link.router.servers(self._timeout(timeout_seconds))

    async def statistics(self, *, timeout_seconds: float | None = None) -> list[PartStatistics]:
        """Return what each part of the cluster counts, as it told the coordinator last: numbers and
        histograms by name (docs/operations.md lists them).

        Parts are the coordinators, the persist servers, the auth services, and the gateways: those
        of the tenant and of all tenants, or all of them for operators. Parts of earlier versions
        tell nothing. While no coordinator answers, the client keeps asking as in `servers`.

        Raises NoCoordinatorError; UnknownOperationError if the coordinator is of an earlier
        version; ConnectionFailedError.
        """
        self._link.check_open()
        return await self._link.router.statistics(self._timeout(timeout_seconds))

    async def stores(
        self,
        kind: StoreKind | int | None = None,
        prefix: str = "",
        *,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[StoreInfo]:
        """Yield the stores of the tenant whose name starts with `prefix`, in order of name
        and kind.

        Each has its bytes, its number of messages or keys, and the time of its last change, as its
        owner told them last: within about a minute of a change while it is open. No store is opened
        for that. `heads` tells them as they are now.

        `kind` restricts them to streams or kvs. Pages are fetched as you iterate; `timeout_seconds`
        applies to each page, as in `servers`.

        Raises NoCoordinatorError; ConnectionFailedError.
        """
        pages = self._store_pages(kind, prefix, timeout_seconds)
        async with contextlib.aclosing(pages):
            async for page in pages:
                for store in page:
                    yield store

    async def heads(
        self,
        kind: StoreKind | int | None = None,
        prefix: str = "",
        *,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[StoreHead]:
        """Yield the stores that `stores` yields, each with its head: how many messages or keys it
        has, their bytes, and when it last changed.

        The owner of each store is asked, so that what you read is exact. It opens the store for
        that, and brings it back from the bucket if it is cold: prefer `stores` for an overview of
        very many. If an owner cannot tell, for example because the store is damaged, `head` is None
        and `error` says why; the iteration continues. `timeout_seconds` applies to each part.

        Raises NoCoordinatorError; ConnectionFailedError.

            async for store, head, error in hf.heads(prefix="project."):
                print(store.name, head and (head.count, head.bytes, head.time))
        """
        pages = self._head_pages(kind, prefix, timeout_seconds)
        async with contextlib.aclosing(pages):
            async for page in pages:
                for found in page:
                    yield found

    def _head_pages(
        self, kind: StoreKind | int | None, prefix: str, timeout_seconds: float | None
    ) -> AsyncGenerator[list[StoreHead], None]:
        pages = self._store_pages(kind, prefix, timeout_seconds)
        return head_pages(self._link, pages, timeout_seconds)

    def _store_pages(
        self, kind: StoreKind | int | None, prefix: str, timeout_seconds: float | None
    ) -> AsyncGenerator[list[StoreInfo], None]:
        if kind is not None and kind not in tuple(StoreKind):
            reason = f"must be one of {', '.join(map(str, StoreKind))}, or None, not {kind!r:.80}"
            raise InvalidArgumentError(argument="kind", reason=reason)
        if not isinstance(prefix, str) or not prefix.isascii():
            reason = f"must be the start of a store's name, not {prefix!a:.80}"
            raise InvalidArgumentError(argument="prefix", reason=reason)
        wanted = None if kind is None else int(kind)
        timeout = self._timeout(timeout_seconds)
        self._link.check_open()
        return self._link.router.store_pages(wanted, prefix, timeout)

    def _timeout(self, timeout_seconds: float | None) -> float:
        if timeout_seconds is None:
            return self._link.timeout_seconds
        check_timeout(timeout_seconds)
        return timeout_seconds

    def _follow(
        self,
        kind: StoreKind,
        pattern: str,
        codec: Codec[V],
        *,
        start_seq: int | None = None,
        start_revisions: Mapping[str, int] | None,
        prefix: str = "",
        with_history: bool,
    ) -> PatternSubscription[V]:
        check_pattern(pattern)
        if start_revisions is not None and not isinstance(start_revisions, Mapping):
            reason = f"must map names to revisions, not {type(start_revisions).__name__}"
            raise InvalidArgumentError(argument="start_revisions", reason=reason)
        for name, revision in (start_revisions or {}).items():
            check_count("start_revisions", revision)
            if not matches(pattern, check_store(name)):
                reason = f"{name!r} does not match {pattern!r}"
                raise InvalidArgumentError(argument="start_revisions", reason=reason)
        feed = PatternFeed(
            self._follower,
            self._link,
            kind,
            pattern,
            start_seq=start_seq,
            start_revisions=start_revisions,
            prefix=prefix,
            with_history=with_history,
        )
        subscription = PatternSubscription(self._follower, feed, self._link, codec)
        self._follower.end_with(subscription, feed)
        return subscription

    async def close(self) -> None:
        """Disconnect. Idempotent.

        This ends live replicas and subscriptions, and waiting operations fail with
        ConnectionFailedError. A waiting write may or may not be stored, and so may the unsaved
        writes of a live replica: leave its `async with` first, or call its `save`.
        """
        for replica in list(self._replicas.values()):
            await replica.aclose(save=False)
        await self._follower.close()
        await self._link.close()
        if self._owns_bus:
            await self._link.bus.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
