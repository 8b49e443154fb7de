"""What `connect` takes, and what it refuses before there is a connection."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import pytest
from nats.aio.client import Client as NatsClient

from holdfast.cli.advice import explain
from holdfast.client import connect, sync
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.bus.login import NATS_OPTIONS
from holdfast.protocol.errors import (
    ConnectionFailedError,
    InvalidArgumentError,
    NotAllowedError,
    OtherLoopError,
)


@pytest.mark.parametrize(
    "prefix", ["_INBOX", "_INBOX.acme", "_INBOX.acme.ada", "_REPLIES.acme.ada.1"]
)
def test_inboxes_of_the_tenant_can_be_chosen_among(prefix: str) -> None:
    connect(tenant="acme", inbox_prefix=prefix)


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "_INBOX._",
        "_INBOX.acm",
        "_INBOX.acme2",
        "_INBOX.acme.",
        "_INBOX.acme.*",
        "hf",
        "hf.acme",
        7,
    ],
)
def test_inboxes_that_no_server_replies_to_are_refused(prefix: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        connect(tenant="acme", inbox_prefix=prefix)
    assert caught.value.fields["argument"] == "inbox_prefix"


@pytest.mark.parametrize(
    "name",
    [
        *("servers", "ping_interval", "max_reconnect_attempts", "allow_reconnect", "error_cb"),
        *("no_echo", "timeout", "conect_timeout", "user_credentials", "nkeys_seed"),
    ],
)
def test_options_that_are_not_a_users_are_refused_by_name(name: str) -> None:
    for connecting in (connect, sync.connect):
        with pytest.raises(InvalidArgumentError) as caught:
            connecting(**{name: 1})
        assert caught.value.fields["argument"] == name


@pytest.mark.parametrize("value", [0, -1, "5", None, True])
def test_a_connect_timeout_is_seconds(value: object) -> None:
    with pytest.raises(InvalidArgumentError):
        connect(connect_timeout=value)


def test_a_login_that_cannot_be_is_refused_at_once() -> None:
    both = {"credentials": "a.creds", "nkey": "a.seed"}
    for options in (both, {"tls": "yes"}, {"tls": None, "nkeys_seed": "a.seed"}):
        with pytest.raises(InvalidArgumentError):
            connect(**options)


def test_every_option_that_is_taken_is_one_of_nats_py() -> None:
    assert set(inspect.signature(NatsClient.connect).parameters) >= NATS_OPTIONS


async def test_what_an_option_says_wrong_is_a_typed_error() -> None:
    for options in ({"token": lambda: 1 / 0}, {"connect_timeout": 0.5}):
        async with asyncio.timeout(20):
            with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:1"):
                await connect("nats://127.0.0.1:1", **options)


def test_what_a_closed_client_and_nats_refuse_has_hints_that_fit() -> None:
    closed = explain(ConnectionFailedError(url="", reason="the client"))
    assert closed == "the client has been closed. Try: connect again"
    lost = explain(ConnectionFailedError(url="NATS", reason="the process is exiting"))
    assert lost.startswith("cannot reach NATS: the process is exiting. Try: ")
    refused = explain(NotAllowedError(action="publish to", subject="hf.acme.srv.a"))
    assert "'hf.acme.srv.a'" in refused
    assert "holdfast up" not in refused


async def test_a_closed_client_says_so() -> None:
    client = await connect(bus=MemoryNetwork().connect("client"))
    await client.close()
    with pytest.raises(ConnectionFailedError, match="the client has been closed"):
        await client.stream("s").append(b"v")
    with pytest.raises(ConnectionFailedError, match="the client has been closed"):
        await client.servers()


async def test_a_client_used_outside_of_its_loop_says_so() -> None:
    """Otherwise the call waits for an answer that comes to the other loop."""
    client = await connect(bus=MemoryNetwork().connect("client"))
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: client.stream("s").append(b"v"),
        lambda: client.stream("s").get(1),
        lambda: anext(client.stream("s").subscribe(start_seq=1)),
        lambda: anext(client.subscribe("*")),
        lambda: anext(client.stream("s").get_all()),
    )

    async def elsewhere(call: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(OtherLoopError, match="another event loop"):
            await call()

    for call in calls:
        await asyncio.to_thread(lambda call=call: asyncio.run(elsewhere(call)))
    await client.close()


@pytest.mark.parametrize("prefix", ["", "a b", "a.", "a.>", "*", 5, None, "ä", b"hf"])
def test_what_is_no_prefix_is_refused_at_once(prefix: object) -> None:
    for connecting in (connect, sync.connect):
        with pytest.raises(InvalidArgumentError, match="invalid prefix") as caught:
            connecting(prefix=prefix)
        assert caught.value.fields["argument"] == "prefix"


@pytest.mark.parametrize(
    "options", [{"token": 5}, {"token": b"hft1"}, {"compression": "zstd"}, {"compression": None}]
)
def test_an_option_of_the_wrong_type_is_refused_by_name(options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        connect(**options)
    assert caught.value.fields["argument"] in options
