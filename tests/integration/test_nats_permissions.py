"""A real nats-server with the permissions of docs/operations.md, and with less: what is refused is
told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.client import Client, NotAllowedError, connect
from holdfast.protocol.bus.bus import NoRespondersError
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.subjects import Inboxes
from tests.support.fake_persist import fake_cluster
from tests.support.nats_server import NatsServer, running_nats_server

_OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
#: Users of tenant acme that may do less than they need.
_LESS = {"no-coordinator": ["hf.acme.srv.*"], "no-server": ["hf.acme.coord.*"]}
_EVERYTHING = ["hf.acme.coord.*", "hf.acme.srv.*"]
#: Far beyond what a refusal takes, and below the client's own timeout.
_DEADLINE_SECONDS = 25.0


def _user(name: str, publish: list[str], subscribe: list[str]) -> str:
    permissions = f"{{publish: {publish}, subscribe: {subscribe}}}".replace("'", '"')
    return f'{{user: "{name}", password: "x", permissions: {permissions}}}\n'


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The configuration of the document, with more users."""
    (text,) = re.findall(r"```nats\n(.*?)```", _OPERATIONS, re.DOTALL)
    users = "".join(
        _user(name, publish, ["hf.acme.chg.>", "_INBOX.acme.>"]) for name, publish in _LESS.items()
    )
    users += _user("no-changes", _EVERYTHING, ["_INBOX.acme.>"])
    users += _user("ada", _EVERYTHING, ["hf.acme.chg.>", "_INBOX.acme.ada.>"])
    directory = tmp_path_factory.mktemp("permissions")
    configuration = directory / "nats.conf"
    configuration.write_text(text.replace("  users = [\n", f"  users = [\n{users}"))
    with running_nats_server(directory, "-c", str(configuration)) as server:
        yield server


def _url(nats: NatsServer, user: str, password: str = "x") -> str:
    return nats.url.replace("//", f"//{user}:{password}@")


@asynccontextmanager
async def _client(nats: NatsServer, url: str, **options: str) -> AsyncIterator[Client]:
    """A client of a fake server, whose own user may do everything."""
    options.setdefault("tenant", "acme")
    async with (
        fake_cluster(_url(nats, "holdfast", "change-me"), "a"),
        connect(url, timeout_seconds=2 * _DEADLINE_SECONDS, **options) as client,
        asyncio.timeout(_DEADLINE_SECONDS),
    ):
        yield client


async def _use(client: Client) -> None:
    async with client.stream("s").subscribe() as changes:
        await client.stream("s").append(b"v")
        change = await anext(changes)
        assert change.message is not None
        assert change.message.value == b"v"


async def test_the_permissions_of_the_document_let_a_tenant_do_its_work(nats: NatsServer) -> None:
    async with _client(nats, _url(nats, "acme", "change-me-too")) as client:
        await _use(client)


async def test_user_and_password_may_be_options(nats: NatsServer) -> None:
    async with _client(nats, nats.url, user="acme", password="change-me-too") as client:
        await _use(client)


async def test_a_user_may_be_given_inboxes_of_its_own(nats: NatsServer) -> None:
    async with _client(nats, _url(nats, "ada"), inbox_prefix="_INBOX.acme.ada") as client:
        await _use(client)


@pytest.mark.parametrize(
    ("user", "action", "subject"),
    [
        ("no-coordinator", "publish to", "hf.acme.coord.resolve"),
        ("no-server", "publish to", "hf.acme.srv.a"),
    ],
)
async def test_what_may_not_be_published_is_refused_at_once(
    nats: NatsServer, user: str, action: str, subject: str
) -> None:
    async with _client(nats, _url(nats, user)) as client:
        for _ in range(2):
            with pytest.raises(NotAllowedError) as caught:
                await client.stream("s").append(b"v")
            assert (caught.value.action, caught.value.subject) == (action, subject)
            assert not caught.value.retryable
            with pytest.raises(NotAllowedError):
                await client.kv("k").get("key")


async def test_what_may_not_be_followed_is_refused_at_once(nats: NatsServer) -> None:
    async with _client(nats, _url(nats, "no-changes")) as client:
        await client.stream("s").append(b"v")
        for _ in range(2):
            with pytest.raises(NotAllowedError) as caught:
                await anext(client.stream("s").subscribe())
            found = (caught.value.action, caught.value.subject)
            assert found == ("subscribe to", "hf.acme.chg.s.s")
        with pytest.raises(NotAllowedError):
            await anext(client.subscribe("s.*"))
        await client.stream("s").append(b"what is permitted goes on")


async def test_a_user_of_another_tenant_is_refused_at_once(nats: NatsServer) -> None:
    async with _client(nats, _url(nats, "acme", "change-me-too"), tenant="other") as client:
        with pytest.raises(NotAllowedError) as caught:
            await client.stream("s").append(b"v")
        assert "other" in str(caught.value)
        with pytest.raises(NotAllowedError):
            await client.servers()


@pytest.mark.parametrize("over", ["nats", "memory"])
async def test_every_bus_tells_what_it_refuses(nats: NatsServer, over: str) -> None:
    if over == "nats":
        bus = await connect_nats(
            _url(nats, "acme", "change-me-too"), name="test", inboxes=Inboxes(tenant="acme")
        )
    else:
        allowed = ("hf.acme.", "_INBOX.acme.")
        bus = MemoryNetwork().connect("test", lambda action, subject: subject.startswith(allowed))
    refused: list[NotAllowedError] = []
    bus.on_refused(refused.append)
    try:
        await bus.subscribe("hf.acme.chg.>", lambda message: None)
        await bus.subscribe("hf.other.chg.>", lambda message: None)
        await bus.publish("hf.Other.srv.a", b"")
        await bus.flush()
        assert [(error.action, error.subject) for error in refused] == [
            ("subscribe to", "hf.other.chg.>"),
            ("publish to", "hf.Other.srv.a"),
        ]
        with pytest.raises(NotAllowedError):
            await bus.request("hf.other.coord.resolve", b"", 60.0, "acme")
        with pytest.raises(NoRespondersError):
            await bus.request("hf.acme.coord.resolve", b"", 60.0, "acme")
    finally:
        await bus.close()
