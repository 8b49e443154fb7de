"""`connect` and `Client`: where an application's use of holdfast begins and ends.

A client is one connection to NATS, one tenant, one event loop, and one writer whose retries the
servers recognise. Make one for a process and share it: its operations travel together.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from holdfast.client.following.follower import Follower
from holdfast.client.following.pattern import PatternSubscription
from holdfast.client.following.pattern_feed import PatternFeed
from holdfast.client.handles.kv import KV
from holdfast.client.handles.stream import Stream
from holdfast.client.live.live_kv import LiveKV, MergeFunction
from holdfast.client.live.live_replica import LiveReplica
from holdfast.client.live.live_stream import LiveStream
from holdfast.client.values.codec import Codec, CodecName, codec_of
from holdfast.client.values.values import Values
from holdfast.client.wire.link import Link, check_timeout
from holdfast.client.wire.operations import range_start
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.bus.bus_nats import check_options, connect_nats
from holdfast.protocol.control import ServerInfo, StoreInfo
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import (
    OPERATION_TIMEOUT_SECONDS,
)
from holdfast.protocol.messages import AnyDurability
from holdfast.protocol.names import StoreKind, check_key, check_pattern, check_store, check_tenant
from holdfast.protocol.subjects import DEFAULT_NATS, DEFAULT_PREFIX, Subjects, inboxes_of

V = TypeVar("V")


class Client:
    """A connection to holdfast. Made by `connect`.

    Methods may be called from any coroutine of its event loop, at any concurrency. A task may be
    cancelled at any point; a write of its may then be stored or not.
    """

    def __init__(self, link: Link, follower: Follower, owns_bus: bool) -> None:
        self._link = link
        self._follower = follower
        self._owns_bus = owns_bus
        #: Those that are open, by their id: they are compared by what they hold.
        self._replicas: dict[int, LiveReplica[Any, Any]] = {}

    @property
    def tenant(self) -> str:
        """The tenant whose stores these are."""
        return self._link.tenant

    @property
    def connected(self) -> bool:
        """False while NATS is lost; it is sought in the background, and operations wait."""
        return self._link.bus.connected

    @overload
    def stream(self, name: str, *, codec: None = None) -> Stream[bytes]: ...
    @overload
    def stream(self, name: str, *, codec: Literal["raw"]) -> Stream[bytes]: ...
    @overload
    def stream(self, name: str, *, codec: Literal["json", "msgpack"]) -> Stream[Any]: ...
    @overload
    def stream(self, name: str, *, codec: Codec[V]) -> Stream[V]: ...
    def stream(self, name: str, *, codec: Codec[Any] | CodecName | None = None) -> Stream[Any]:
        """Return a handle on a stream; no round trip.

        `codec` is what its values are to this handle: "raw" (the default: bytes), "json", "msgpack" or
        a Codec. Raises InvalidNameError and InvalidArgumentError.
        """
        store = check_store(name)
        return Stream(self._link, self._follower, store, Values(self._link, store, codec_of(codec)))

    @overload
    def kv(self, name: str, *, codec: None = None) -> KV[bytes]: ...
    @overload
    def kv(self, name: str, *, codec: Literal["raw"]) -> KV[bytes]: ...
    @overload
    def kv(self, name: str, *, codec: Literal["json", "msgpack"]) -> KV[Any]: ...
    @overload
    def kv(self, name: str, *, codec: Codec[V]) -> KV[V]: ...
    def kv(self, name: str, *, codec: Codec[Any] | CodecName | None = None) -> KV[Any]:
        """Return a handle on a kv; no round trip.

        `codec` is what its values are to this handle: "raw" (the default: bytes), "json", "msgpack" or
        a Codec. Raises InvalidNameError and InvalidArgumentError.
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
        """Return a local copy of a kv that follows it and is written at once: `async with` it.

        `merge(base, local, remote)` settles conflicts; without it the last writer wins. `codec` is
        "raw" (the default), "json", "msgpack" or a Codec. Raises InvalidNameError and
        InvalidArgumentError.
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
        """Return a local copy of a stream that follows it and is appended to at once: `async with` it.

        It holds the messages from `start_seq` on, or the `last` so many and what comes, or all;
        `LiveStream.load` brings older ones. `codec` is as in `live_kv`. Raises InvalidNameError and
        InvalidArgumentError.
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

    def subscribe(self, pattern: str, *, start_seq: int | None = None) -> PatternSubscription:
        """Follow all streams whose name matches `pattern`: an async iterator of StoreChange, a pair of
        the stream's name and a Change.

        In a pattern `*` stands for one token of a name and a last `>` for one or more, as in NATS:
        `project.*.patches`, `project.>`. Of each stream the changes come in the order of their
        revisions, each once, as from `Stream.subscribe`; between streams there is no order. With
        `start_seq`, first the messages from there on of each stream that exists; without, only what
        happens from now on, where *now* is when the subscription is entered with `async with`, or the
        first change asked for. Of a stream that is born later, everything. A RESET change voids what
        is known of its stream: what there is follows anew, of a deleted one nothing.

        One subscription in NATS serves all. It begins with the list of the streams that match and,
        without `start_seq`, the head of each: a narrow pattern is cheaper. Only streams in which
        something happens take memory, but for some hundred bytes each. Raises InvalidNameError.
        """
        if start_seq is not None:
            start_seq = range_start("start_seq", start_seq)
        return self._follow(
            StoreKind.STREAM, pattern, start_seq=start_seq, with_history=start_seq is not None
        )

    def watch(
        self, pattern: str, *, prefix: str = "", with_state: bool = True
    ) -> PatternSubscription:
        """Follow all kvs whose name matches `pattern`: an async iterator of StoreChange, a pair of the
        kv's name and a Change.

        As `subscribe`, but of each kv that exists the entries whose key starts with `prefix` come
        first, as SET changes, and a READY change where they are complete; not so with `with_state`
        False. Raises InvalidNameError.
        """
        return self._follow(
            StoreKind.KV, pattern, prefix=check_key(prefix), with_history=with_state
        )

    async def servers(self, *, timeout_seconds: float | None = None) -> list[ServerInfo]:
        """Return every persist server that the coordinator knows. While there is none it is looked for,
        until the client's timeout, or the call's.

        Raises NoCoordinatorError, ConnectionFailedError.
        """
        self._link.check_open()
        return await self._link.router.servers(self._timeout(timeout_seconds))

    async def stores(
        self,
        kind: StoreKind | int | None = None,
        prefix: str = "",
        *,
        timeout_seconds: float | None = None,
    ) -> AsyncIterator[StoreInfo]:
        """Yield the tenant's stores whose name starts with `prefix`, in order of (name, kind).

        Pages are fetched as they are needed. `timeout_seconds` is for each, as in `servers`. Raises
        NoCoordinatorError, ConnectionFailedError.
        """
        async with contextlib.aclosing(self._store_pages(kind, prefix, timeout_seconds)) as pages:
            async for page in pages:
                for store in page:
                    yield store

    def _store_pages(
        self, kind: StoreKind | int | None, prefix: str, timeout_seconds: float | None
    ) -> AsyncGenerator[list[StoreInfo], None]:
        wanted = None if kind is None else int(kind)
        self._link.check_open()
        return self._link.router.store_pages(wanted, prefix, self._timeout(timeout_seconds))

    def _timeout(self, timeout_seconds: float | None) -> float:
        return self._link.timeout_seconds if timeout_seconds is None else timeout_seconds

    def _follow(
        self,
        kind: StoreKind,
        pattern: str,
        *,
        start_seq: int | None = None,
        prefix: str = "",
        with_history: bool,
    ) -> PatternSubscription:
        feed = PatternFeed(
            self._follower,
            self._link,
            kind,
            check_pattern(pattern),
            start_seq=start_seq,
            prefix=prefix,
            with_history=with_history,
        )
        subscription = PatternSubscription(self._follower, feed, self._link)
        self._follower.end_with(subscription, feed)
        return subscription

    async def close(self) -> None:
        """End replicas and subscriptions, fail waiting operations with ConnectionFailedError,
        disconnect.

        Idempotent. A write that waits may be stored or not, what a live replica has unsaved too:
        leave its `async with`, or `save`, first.
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


class Connecting:
    """What `connect` returns: `async with` it, or `await` it and close the client yourself."""

    def __init__(
        self,
        nats: str,
        tenant: str,
        prefix: str,
        timeout_seconds: float,
        name: str,
        bus: Bus | None,
        compression: bool,
        nats_options: dict[str, Any],
    ) -> None:
        self._nats = nats
        self._tenant = check_tenant(tenant)
        self._subjects = Subjects(prefix)
        self._timeout_seconds = timeout_seconds
        self._name = name
        self._bus = bus
        self._compression = compression
        check_options(nats_options)
        self._nats_options = {"inbox_prefix": inboxes_of(tenant), **nats_options}
        _check_inboxes(self._nats_options["inbox_prefix"], tenant)
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._client is not None
        await self._client.close()

    async def _open(self) -> Client:
        bus = self._bus
        if bus is None:
            bus = await connect_nats(self._nats, name=self._name, **self._nats_options)
        link = Link(
            bus, self._subjects, self._tenant, self._timeout_seconds, compression=self._compression
        )
        follower = Follower(link)
        client = Client(link, follower, owns_bus=self._bus is None)
        try:
            await link.open(follower.owner_changed, follower.reconnected)
        except BaseException:
            await client.close()
            raise
        return client


def _check_inboxes(prefix: object, tenant: str) -> None:
    inboxes = inboxes_of(tenant)
    if not isinstance(prefix, str) or not f"{prefix}.".startswith(f"{inboxes}."):
        reason = f"{inboxes!r} or deeper, since servers reply to nobody else"
        raise InvalidArgumentError(argument="inbox_prefix", reason=reason)


def connect(
    nats: str = DEFAULT_NATS,
    *,
    tenant: str = "default",
    prefix: str = DEFAULT_PREFIX,
    timeout_seconds: float = OPERATION_TIMEOUT_SECONDS,
    name: str = "holdfast-client",
    bus: Bus | None = None,
    compression: bool = True,
    **nats_options: Any,
) -> Connecting:
    """Connect to NATS: `async with connect(...) as hf:` or `hf = await connect(...)`.

    `nats` may hold several servers, joined by commas. `timeout_seconds` bounds each operation, with
    all its retries, unless the call says otherwise. `bus` is used in place of a new NATS
    connection, and not closed. With `compression` values above 1 KiB are compressed with zstd where that
    saves an eighth, if the package is there (the extra `compression`) and the servers
    say that readers know it; without it what others have compressed is read all the same.

    `nats_options` are those of nats-py's `connect` that say who one is and how the connection is secured:
    `user`, `password`, `token`, `user_credentials`, `nkeys_seed`, `tls`, `tls_hostname` and their like.
    `connect_timeout` are the seconds after which connecting is given up, 5 by default.
    Replies come to inboxes of the tenant, `_INBOX.<tenant>.>`, or, with `inbox_prefix`, to some of them.

    Raises InvalidNameError and InvalidArgumentError at once, ConnectionFailedError when entered or
    awaited and NATS is not there.
    """
    check_timeout(timeout_seconds)
    return Connecting(nats, tenant, prefix, timeout_seconds, name, bus, compression, nats_options)
