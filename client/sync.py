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

import ssl
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
from holdfast.client.connecting import connect as async_connect
from holdfast.client.live.live_kv import DELETE
from holdfast.protocol.access.own_token import TokenLike
from holdfast.protocol.bus.login import StrPath, TlsFiles
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
    tenant: str | None = None,
    token: TokenLike | None = None,
    prefix: str = DEFAULT_PREFIX,
    timeout_seconds: float = OPERATION_TIMEOUT_SECONDS,
    name: str = "holdfast-client",
    compression: bool = True,
    credentials: StrPath | None = None,
    nkey: StrPath | None = None,
    tls: TlsFiles | ssl.SSLContext | None = None,
    inbox_prefix: str | None = None,
    wait_seconds: float | None = None,
    zone: str | None = None,
    direct: StrPath | None = None,
    **nats_options: Any,
) -> Client:
    """Connect to NATS: `with connect(...) as hf:`, or close the client yourself.

    - `nats` is a URL, or several joined by commas. User and password in it are percent-encoded.
    - `tenant` is the tenant whose stores the client uses: by default that of the token, or
      `default`.
    - `token` says what the client may do: the text of a token, the path of a file with it, or a
      callable that returns it. A file or a callable is asked again when the client reconnects, so
      it can renew the token; both must have the same subject. Without it, the environment may
      have one: see docs/access.md. NATS gets the token too, unless it gets a user and a password.
      Text of another form is a token of NATS alone.
    - `prefix` is the subject prefix of the cluster.
    - `timeout_seconds` bounds each operation with all its retries, unless the call has its own. It
      is at most 300.
    - `name` is the name of the connection that NATS shows.
    - `compression`: values above 1 KiB are compressed with zstd if that saves at least an eighth,
      if the extra `compression` is installed, and if the cluster says that all readers know it.
      With False nothing is compressed, but compressed values can still be read.
    - `credentials` is the path of a NATS credentials file, `nkey` of a file with the seed of an
      nkey. They need the extra `auth`, and other users must not be able to open them.
    - `tls` refuses a connection that is not encrypted. TlsFiles names the files of CAs and of a
      client certificate; an SSLContext can do more.
    - `inbox_prefix` restricts replies to a part of the tenant's inboxes, for example
      `_INBOX.<tenant>.<user>`, or replaces `_INBOX`, as all parts of the cluster must do.
    - `wait_seconds` keeps trying for so long if NATS cannot be reached, or does not accept this
      process yet; `float("inf")` for ever. By default the first failure counts.
    - `zone` is where this process runs, such as an availability zone: new stores that it asks for
      first go to servers of that zone. By default the environment says it: see
      docs/operations.md.
    - `direct` is the folder in which persist servers of this host listen (`holdfast persist
      --direct`), for the same user. Operations go to them directly, which spares the hops through
      NATS; everything else goes over NATS, and so do operations while a server cannot be reached
      directly.
    - `nats_options` are other options of nats-py's `connect` for identity and security: `user`,
      `password`, `nkeys_seed_str`, `tls_hostname` and similar ones. Callbacks among them
      run on the background thread. `connect_timeout` is the number of seconds after which
      connecting is given up, 5 by default.

    Raises InvalidNameError; InvalidArgumentError; InvalidTokenError; ConnectionFailedError if NATS
    cannot be reached, and LoginFailedError if NATS and this process do not accept each other.

        with connect("nats://127.0.0.1:4222", tenant="acme") as hf:
            hf.stream("project.42.patches").append(b"...")
    """
    connecting = async_connect(
        nats,
        tenant=tenant,
        token=token,
        prefix=prefix,
        timeout_seconds=timeout_seconds,
        name=name,
        compression=compression,
        credentials=credentials,
        nkey=nkey,
        tls=tls,
        inbox_prefix=inbox_prefix,
        wait_seconds=wait_seconds,
        zone=zone,
        direct=direct,
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
