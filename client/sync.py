"""The blocking API: the same client, for code without an event loop.

    from holdfast.client.sync import connect

    with connect("nats://127.0.0.1:4222", tenant="acme") as hf:
        ack = hf.stream("project.42.patches").append(b"...")
        hf.kv("settings").set("theme", b"dark")
        for message in hf.stream("project.42.patches").get_all():
            print(message.seq, message.value)

It has everything that `holdfast.client` has, with the same names, arguments, errors and guarantees.
A call that is awaited there blocks here until it is done, and `aclose` is `close`. All clients of a
process share one thread with one event loop (`background.py`). So you can use a client from any
number of threads, whose operations travel together; from a notebook, whose own loop runs in the
calling thread; and from the children of a fork, each of which must connect for itself.

Ctrl-C cancels a call, and KeyboardInterrupt is raised once the call has ended. A batch, a
transaction or a file is still stored or written completely, or not at all.
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
    """A connection to holdfast, for one tenant. Made by `connect`; any number of threads may use
    it.

    Subscriptions, transactions, readers and iterators are for one thread each. Everything else may
    be used from many threads at a time. In a child of `os.fork` every call raises ForkedError,
    except `close`, which leaves the connection to the parent.
    """

    def __init__(self, background: Background, client: AsyncClient) -> None:
        self._background = background
        self._client = client

    @property
    def tenant(self) -> str:
        """The tenant whose stores this client uses."""
        return self._client.tenant

    @property
    def connected(self) -> bool:
        """False while the connection to NATS is lost. The client reconnects in the background, and
        operations wait meanwhile.
        """
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
        """Return a handle on a stream. This makes no round trip, and the stream need not exist.

        `codec` converts the values of this handle: "raw" (the default) leaves them as bytes, "json"
        and "msgpack" convert them, and so does a Codec of your own.

        Raises InvalidNameError; InvalidArgumentError for an unknown codec.
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
        """Return a handle on a kv. This makes no round trip, and the kv need not exist.

        `codec` converts the values of this handle: "raw" (the default) leaves them as bytes, "json"
        and "msgpack" convert them, and so does a Codec of your own.

        Raises InvalidNameError; InvalidArgumentError for an unknown codec.
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
        """Return a live replica of a kv: a local copy that follows the kv and can be written at
        once. Open it with `with`.

        `merge(base, local, remote)` resolves conflicts; without it the last writer wins. `codec` is
        as in `kv`. `durability` is that of the writes; the kv's own by default.

        Raises InvalidNameError; InvalidArgumentError for an unknown codec or durability.
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
        """Return a live replica of a stream: a local copy that follows the stream and can be
        appended to at once. Open it with `with`.

        It holds the messages from `start_seq` on, or the `last` so many and all that follow, or all
        messages. `LiveStream.load` adds older ones. `codec` is as in `stream`. `durability` is that
        of the appends; the stream's own by default.

        Raises InvalidNameError; InvalidArgumentError for an unknown codec or durability, or if both
        `start_seq` and `last` are given.
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
        """Follow all streams whose name matches `pattern`. Return an iterator of StoreChange, pairs
        of the stream's name and a Change.

        In a pattern, `*` matches one token of a name, and a final `>` matches one or more tokens,
        as in NATS: `project.*.patches`, `project.>`.

        - The changes of each stream come in the order of their revisions, each once, as from
          `Stream.subscribe`. Changes of different streams come in no particular order.
        - With `start_seq`, each existing stream begins with its messages from there on. Without it,
          you get only what happens from now on; *now* is when you enter the subscription with
          `with`, or ask for the first change.
        - A stream that is created later begins with its first message.
        - After a RESET change, discard what you know of its stream. Its messages follow again; a
          deleted stream has none.

        One subscription in NATS serves all streams. It begins with a list of the matching streams
        and, without `start_seq`, with the head of each, so a narrow pattern is cheaper. An idle
        stream takes only a few hundred bytes of memory.

        Raises InvalidNameError for the pattern.

            for store, change in hf.subscribe("project.*.patches"):
                print(store, change.kind, change.revision)
        """
        client = self._client
        subscription = self._background.do(lambda: client.subscribe(pattern, start_seq=start_seq))
        return PatternSubscription(self._background, subscription)

    def watch(
        self, pattern: str, *, prefix: str = "", with_state: bool = True
    ) -> PatternSubscription:
        """Follow all kvs whose name matches `pattern`. Return an iterator of StoreChange, pairs of
        the kv's name and a Change.

        It works as `subscribe` does. Each existing kv begins with the entries whose key starts with
        `prefix`, as SET changes, and then a READY change. With `with_state` False you get only what
        happens from now on.

        Raises InvalidNameError for the pattern or the prefix.
        """
        client = self._client
        subscription = self._background.do(
            lambda: client.watch(pattern, prefix=prefix, with_state=with_state)
        )
        return PatternSubscription(self._background, subscription)

    def servers(self, *, timeout_seconds: float | None = None) -> list[ServerInfo]:
        """Return every persist server that the coordinator knows.

        While no coordinator answers, the client keeps asking until `timeout_seconds` have passed
        (the client's timeout by default).

        Raises NoCoordinatorError; ConnectionFailedError.
        """
        return self._background.run(self._client.servers(timeout_seconds=timeout_seconds))

    def stores(
        self,
        kind: StoreKind | int | None = None,
        prefix: str = "",
        *,
        timeout_seconds: float | None = None,
    ) -> Rows[StoreInfo]:
        """Yield the stores of the tenant whose name starts with `prefix`, in order of name and
        kind.

        `kind` restricts them to streams or kvs. Pages are fetched as you iterate; `timeout_seconds`
        applies to each page, as in `servers`.

        Raises NoCoordinatorError; ConnectionFailedError.
        """
        pages = self._client._store_pages(kind, prefix, timeout_seconds)
        return Rows(self._background, pages)

    def close(self) -> None:
        """Disconnect. Idempotent.

        This ends live replicas and subscriptions, and waiting operations fail with
        ConnectionFailedError. A waiting write may or may not be stored, and so may the unsaved
        writes of a live replica: leave its `with` first, or call its `save`.
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
