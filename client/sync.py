"""The blocking API: the same client, for code without an event loop.

    from holdfast.client.sync import connect

    with connect("nats://127.0.0.1:4222", tenant="acme") as hf:
        ack = hf.stream("project.42.patches").append(b"...")
        hf.kv("settings").set("theme", b"dark")
        for message in hf.stream("project.42.patches").get_all():
            print(message.seq, message.value)

All that `holdfast.client` has, under the same names and with the same arguments, errors and promises; what is
awaited there returns when it is done here, and what ends by `aclose` there ends by `close`. All clients
of a process share one thread with one event loop (`background.py`), so they may be used from any number
of threads, whose operations travel together, from a notebook, whose own loop runs in the calling thread,
and from the children of a fork, each of which has to connect for itself.

Ctrl-C in a call cancels it, and it ends before KeyboardInterrupt is raised: a batch or a transaction is
stored whole or not at all, as ever, and so is every file that is written.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from holdfast.client.blocking.background import Background, background
from holdfast.client.blocking.blocking_consumer import Consumer, Delivery
from holdfast.client.blocking.blocking_kv import KV
from holdfast.client.blocking.blocking_live import LiveKV, LiveStream
from holdfast.client.blocking.blocking_pending import PendingAck
from holdfast.client.blocking.blocking_rows import Rows
from holdfast.client.blocking.blocking_stream import Stream
from holdfast.client.blocking.blocking_subscription import PatternSubscription, Subscription
from holdfast.client.blocking.blocking_transaction import KVTransaction, StreamTransaction
from holdfast.client.blocking.blocking_value import ValueReader
from holdfast.client.connection import Client as AsyncClient
from holdfast.client.connection import connect as async_connect
from holdfast.client.live.live_kv import DELETE, MergeFunction
from holdfast.client.values.codec import Codec, CodecName
from holdfast.protocol.control import ServerInfo, StoreInfo
from holdfast.protocol.limits import OPERATION_TIMEOUT_SECONDS
from holdfast.protocol.messages import AnyDurability
from holdfast.protocol.names import StoreKind
from holdfast.protocol.subjects import DEFAULT_NATS, DEFAULT_PREFIX

__all__ = [
    "DELETE",
    "KV",
    "Client",
    "Consumer",
    "Delivery",
    "KVTransaction",
    "LiveKV",
    "LiveStream",
    "PatternSubscription",
    "PendingAck",
    "Rows",
    "Stream",
    "StreamTransaction",
    "Subscription",
    "ValueReader",
    "connect",
]

V = TypeVar("V")


class Client:
    """A connection to holdfast. Made by `connect`; for any number of threads.

    Subscriptions, transactions and what reads or iterates are for one thread each; everything else may be
    used from many at a time. In a child of `os.fork` every call raises ForkedError, but `close`, which
    leaves the connection to the parent.
    """

    def __init__(self, background: Background, client: AsyncClient) -> None:
        self._background = background
        self._client = client

    @property
    def tenant(self) -> str:
        """The tenant whose stores these are."""
        return self._client.tenant

    @property
    def connected(self) -> bool:
        """False while NATS is lost; it is sought in the background, and operations wait."""
        return self._client.connected

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
        return Stream(self._background, self._client.stream(name, codec=codec))

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
        return KV(self._background, self._client.kv(name, codec=codec))

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
        """Return a local copy of a kv that follows it and is written at once: `with` it.

        `merge(base, local, remote)` settles conflicts; without it the last writer wins. `codec` is
        "raw" (the default), "json", "msgpack" or a Codec. Raises InvalidNameError and
        InvalidArgumentError.
        """
        client = self._client
        # What the overloads say is said once more by those of the client itself, too narrow for this.
        make: Any = client.live_kv
        return LiveKV(
            self._background,
            self._background.do(
                lambda: make(name, merge=merge, codec=codec, durability=durability)
            ),
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
        """Return a local copy of a stream that follows it and is appended to at once: `with` it.

        It holds the messages from `start_seq` on, or the `last` so many and what comes, or all;
        `LiveStream.load` brings older ones. `codec` is as in `live_kv`. Raises InvalidNameError and
        InvalidArgumentError.
        """
        make: Any = self._client.live_stream
        return LiveStream(
            self._background,
            self._background.do(
                lambda: make(
                    name, start_seq=start_seq, last=last, codec=codec, durability=durability
                )
            ),
        )

    def subscribe(self, pattern: str, *, start_seq: int | None = None) -> PatternSubscription:
        """Follow all streams whose name matches `pattern`: an iterator of StoreChange, a pair of
        the stream's name and a Change.

        In a pattern `*` stands for one token of a name and a last `>` for one or more, as in NATS:
        `project.*.patches`, `project.>`. Of each stream the changes come in the order of their
        revisions, each once, as from `Stream.subscribe`; between streams there is no order. With
        `start_seq`, first the messages from there on of each stream that exists; without, only what
        happens from now on, where *now* is when the subscription is entered with `with`, or the
        first change asked for. Of a stream that is born later, everything. A RESET change voids what
        is known of its stream: what there is follows anew, of a deleted one nothing.

        One subscription in NATS serves all. It begins with the list of the streams that match and,
        without `start_seq`, the head of each: a narrow pattern is cheaper. Only streams in which
        something happens take memory, but for some hundred bytes each. Raises InvalidNameError.
        """
        client = self._client
        subscription = self._background.do(lambda: client.subscribe(pattern, start_seq=start_seq))
        return PatternSubscription(self._background, subscription)

    def watch(
        self, pattern: str, *, prefix: str = "", with_state: bool = True
    ) -> PatternSubscription:
        """Follow all kvs whose name matches `pattern`: an iterator of StoreChange, a pair of the
        kv's name and a Change.

        As `subscribe`, but of each kv that exists the entries whose key starts with `prefix` come
        first, as SET changes, and a READY change where they are complete; not so with `with_state`
        False. Raises InvalidNameError.
        """
        client = self._client
        subscription = self._background.do(
            lambda: client.watch(pattern, prefix=prefix, with_state=with_state)
        )
        return PatternSubscription(self._background, subscription)

    def servers(self, *, timeout_seconds: float | None = None) -> list[ServerInfo]:
        """Return every persist server that the coordinator knows. While there is none it is looked for,
        until the client's timeout, or the call's.

        Raises NoCoordinatorError, ConnectionFailedError.
        """
        return self._background.run(self._client.servers(timeout_seconds=timeout_seconds))

    def stores(
        self,
        kind: StoreKind | int | None = None,
        prefix: str = "",
        *,
        timeout_seconds: float | None = None,
    ) -> Rows[StoreInfo]:
        """Yield the tenant's stores whose name starts with `prefix`, in order of (name, kind).

        Pages are fetched as they are needed. `timeout_seconds` is for each, as in `servers`. Raises
        NoCoordinatorError, ConnectionFailedError.
        """
        pages = self._client._store_pages(kind, prefix, timeout_seconds)
        return Rows(self._background, pages)

    def close(self) -> None:
        """End replicas and subscriptions, fail waiting operations with ConnectionFailedError,
        disconnect.

        Idempotent. A write that waits may be stored or not, what a live replica has unsaved too:
        leave its `with`, or `save`, first.
        """
        if self._background.forked:
            return
        try:
            self._background.run(self._client.close())
        finally:
            self._background.closed(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def connect(
    nats: str = DEFAULT_NATS,
    *,
    tenant: str = "default",
    prefix: str = DEFAULT_PREFIX,
    timeout_seconds: float = OPERATION_TIMEOUT_SECONDS,
    name: str = "holdfast-client",
    compression: bool = True,
    **nats_options: Any,
) -> Client:
    """Connect to NATS: `with connect(...) as hf:`, or `close` the client yourself.

    `nats` may hold several servers, joined by commas. `timeout_seconds` bounds each operation, with
    all its retries, unless the call says otherwise. With `compression` values above 1 KiB are compressed
    with zstd where that saves an eighth, if the package is there (the extra `compression`) and
    the servers say that readers know it; without it what others have compressed is read all the same.

    `nats_options` are those of nats-py's `connect` that say who one is and how the connection is secured:
    `user`, `password`, `token`, `user_credentials`, `nkeys_seed`, `tls`, `tls_hostname` and their like. What
    they call is called on the background's thread. `connect_timeout` are the seconds after which connecting
    is given up, 5 by default. Replies come to inboxes of the tenant, `_INBOX.<tenant>.>`, or, with
    `inbox_prefix`, to some of them.

    Raises InvalidNameError, InvalidArgumentError, and ConnectionFailedError when NATS is not there.
    """
    connecting = async_connect(
        nats,
        tenant=tenant,
        prefix=prefix,
        timeout_seconds=timeout_seconds,
        name=name,
        compression=compression,
        **nats_options,
    )
    serving = background()

    async def connected() -> Client:
        # Kept from here on: a caller who is interrupted has it closed at the exit at least.
        client = Client(serving, await connecting)
        serving.opened(client._client, client._client.close)
        return client

    return serving.run(connected())
