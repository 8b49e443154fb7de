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

from typing import Any

from holdfast.client.blocking.background import background
from holdfast.client.blocking.blocking_client import Client
from holdfast.client.blocking.blocking_consumer import Consumer, Delivery
from holdfast.client.blocking.blocking_kv import KV
from holdfast.client.blocking.blocking_live import LiveKV, LiveStream
from holdfast.client.blocking.blocking_pending import PendingAck
from holdfast.client.blocking.blocking_rows import Rows
from holdfast.client.blocking.blocking_stream import Stream
from holdfast.client.blocking.blocking_subscription import PatternSubscription, Subscription
from holdfast.client.blocking.blocking_transaction import KVTransaction, StreamTransaction
from holdfast.client.blocking.blocking_value import ValueReader
from holdfast.client.connection import connect as async_connect
from holdfast.client.live.live_kv import DELETE
from holdfast.protocol.limits import OPERATION_TIMEOUT_SECONDS
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
    """Connect to NATS: `with connect(...) as hf:`, or close the client yourself.

    - `nats` is a URL, or several joined by commas.
    - `tenant` is the tenant whose stores the client uses.
    - `prefix` is the subject prefix of the cluster.
    - `timeout_seconds` bounds each operation with all its retries, unless the call has its own. It
      is at most 300.
    - `name` is the name of the connection that NATS shows.
    - `compression`: values above 1 KiB are compressed with zstd if that saves at least an eighth,
      if the extra `compression` is installed, and if the cluster says that all readers know it.
      With False nothing is compressed, but compressed values can still be read.
    - `nats_options` are the options of nats-py's `connect` for identity and security: `user`,
      `password`, `token`, `user_credentials`, `nkeys_seed`, `tls`, `tls_hostname` and similar ones.
      Callbacks among them run on the background thread. `connect_timeout` is the number of seconds
      after which connecting is given up, 5 by default. `inbox_prefix` restricts replies to a part
      of the tenant's inboxes, `_INBOX.<tenant>.>`.

    Raises InvalidNameError, InvalidArgumentError, and ConnectionFailedError if NATS cannot
    be reached.

        with connect("nats://127.0.0.1:4222", tenant="acme") as hf:
            hf.stream("project.42.patches").append(b"...")
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
        # Registered at once: if the caller is interrupted, the client is closed at the exit at
        # least.
        client = Client(serving, await connecting)
        serving.opened(client._client, client._client.close)
        return client

    return serving.run(connected())
