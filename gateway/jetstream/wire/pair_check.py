"""Checks, before a gateway serves, that its two connections belong together and can do their work.

A leafnode of another account hears no interest and reaches nobody, and nothing would ever say so. A
nats-server before 2.11 cuts a delivery's subject at the wrong `@`.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final

from holdfast.gateway.jetstream.wire.line_text import ACKS
from holdfast.gateway.jetstream.wire.ports import ClientPort, LeafPort, PortMessage
from holdfast.protocol.errors import (
    ConnectionFailedError,
    LoginFailedError,
    NotAllowedError,
    UnavailableError,
)


class JetStreamExistsError(UnavailableError):
    """Something else answers JetStream's API in the account."""

    code = "jetstream_exists"
    template = (
        "{reason}. Try: turn JetStream off in the configuration of nats-server, or name another "
        "account with --jetstream-nats"
    )


#: For a subscription to be told to all servers of a NATS cluster.
_SECONDS: Final = 2.0
_SUBJECT: Final = "holdfast.check@1"
_REPLY: Final = f"{ACKS}check.check.1.1.1.1.0"


async def check_pair(client: ClientPort, leaf: LeafPort) -> None:
    """Deliver a message from `leaf` to `client` and see how it arrives.

    Raises LoginFailedError, NotAllowedError, ConnectionFailedError.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[PortMessage] = loop.create_future()
    told: asyncio.Future[None] = loop.create_future()
    inbox = f"_INBOX.holdfast-check.{secrets.token_hex(8)}"

    def hear(message: PortMessage) -> None:
        if not arrived.done():
            arrived.set_result(message)

    def refuse(error: NotAllowedError) -> None:
        if inbox in str(error) and not arrived.done():
            arrived.set_exception(error)

    def tell(interested: bool) -> None:
        if interested and not told.done():
            told.set_result(None)

    watch = leaf.watch(inbox, tell)
    client.on_refused(refuse)
    leaf.on_refused(refuse)
    subscription = await client.subscribe(inbox, hear)
    try:
        await client.flush()
        if not await _within(told, arrived):
            raise LoginFailedError(
                url="its leafnode listener",
                reason="the leafnode connection is in another account than the client connection, "
                "or its user may not publish to _INBOX.>",
                advice="a user for it in the account of the clients of JetStream: see JetStream in "
                "docs/operations.md",
            )
        leaf.deliver(inbox, b"", reply=_REPLY, subject=_SUBJECT)
        if not await _within(arrived):
            reason = "a message that the leafnode connection delivers does not arrive"
            raise ConnectionFailedError(url="NATS", reason=reason)
        if arrived.result()[:2] != (_SUBJECT, _REPLY):
            reason = "nats-server is too old: JetStream for its clients needs 2.11"
            raise ConnectionFailedError(url="NATS", reason=reason)
    finally:
        watch.close()
        await subscription.unsubscribe()
        arrived.cancel()


async def _within(*futures: asyncio.Future[Any]) -> bool:
    """Tell whether one of `futures` is done in time; raises its exception."""
    done, _ = await asyncio.wait(futures, timeout=_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    for future in done:
        future.result()
    return bool(done)
