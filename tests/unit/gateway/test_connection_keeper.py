"""Counting and closing connections, with nats-servers that the tests play.

`tests/integration/test_auth_callout.py` does the same with real ones.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.auth import connection_keeper, system_account
from holdfast.gateway.auth.connection_keeper import ConnectionKeeper
from holdfast.gateway.auth.known_tokens import KnownTokens
from holdfast.gateway.auth.system_account import (
    LIST_ALL,
    ConnectionPlace,
    came,
    read_closed,
    read_event,
    read_page,
)
from holdfast.protocol.access.rights import Right
from holdfast.protocol.access.tokens import Token, TokenLimits, new_token
from holdfast.protocol.bus.bus import Bus, BusMessage
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.errors import LoginFailedError, MalformedFrameError
from holdfast.shared_fs.access.registry import AccessRegistry
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from tests.support.effort import examples
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds become moments: nats-servers that are played answer at once."""
    monkeypatch.setattr(connection_keeper, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(connection_keeper, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(system_account, "PAGE", 8)


def token(connections: int | None = 2) -> Token:
    return new_token(
        issuer="cluster",
        tenant="acme",
        stores=[">"],
        rights=Right.READ,
        created_at=0,
        limits=TokenLimits(connections=connections),
    )


class Nats:
    """A nats-server's system account: it lists and closes `connections`, and tells of none unless
    told to."""

    def __init__(self, bus: Bus, server: str) -> None:
        self.bus = bus
        self.server = server
        self.connections: dict[int, str] = {}
        self.closed: list[int] = []
        self.question_count = 0
        self._answers: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        await self.bus.subscribe(LIST_ALL, self._list)
        await self.bus.subscribe(f"$SYS.REQ.SERVER.{self.server}.CONNZ", self._list)
        await self.bus.subscribe(f"$SYS.REQ.SERVER.{self.server}.KICK", self._close)

    def tell(self, number: int) -> None:
        """Tell that a connection has come."""
        client = {"id": number, "user": self.connections[number], "start": "2026-01-02T03:04:05Z"}
        self._send(came("HOLDFAST"), {"client": client})

    def _list(self, message: BusMessage) -> None:
        self.question_count += 1
        asked = json.loads(message.payload)
        assert asked["acc"] == "HOLDFAST" and asked["auth"]
        rows = [
            {"cid": number, "authorized_user": user, "start": "2026-01-02T03:04:05.5Z"}
            for number, user in sorted(self.connections.items())
            if asked.get("user", user) == user
        ]
        offset = asked["offset"]
        self._send(message.reply, {"data": {"connections": rows[offset : offset + asked["limit"]]}})

    def _close(self, message: BusMessage) -> None:
        number = json.loads(message.payload)["cid"]
        found = self.connections.pop(number, None)
        self.closed += [number] if found else []
        self._send(message.reply, {} if found else {"error": {"code": 500}})

    def _send(self, subject: str, fields: dict[str, Any]) -> None:
        payload = json.dumps({"server": {"id": self.server}, **fields}).encode()
        answer = asyncio.ensure_future(self.bus.publish(subject, payload))
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)


class World:
    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.registry = AccessRegistry(Bucket(MemoryBackend()))
        self.servers = [Nats(self.network.connect(name), name) for name in "AB"]

    @asynccontextmanager
    async def keeper(self) -> AsyncIterator[ConnectionKeeper]:
        """Run a keeper around the body, once it knows all connections."""
        for server in self.servers:
            await server.serve()
        tokens = KnownTokens(self.registry, time.monotonic, time.time)
        keeper = ConnectionKeeper(tokens, "HOLDFAST", time.monotonic, time.time)

        async def connect() -> Bus:
            return self.network.connect("keeper")

        keeping = asyncio.create_task(keeper.keep(connect))
        try:
            await until(lambda: keeper._counts, "it counts")
            yield keeper
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])


async def test_without_a_system_account_everybody_may_come() -> None:
    tokens = KnownTokens(AccessRegistry(Bucket(MemoryBackend())), time.monotonic, time.time)
    keeper = ConnectionKeeper(tokens, "HOLDFAST", time.monotonic, time.time)
    limited = token(1)

    async def connect() -> Bus:
        raise LoginFailedError(url="nats://x", reason="no such user", advice="none")

    keeping = asyncio.create_task(keeper.keep(connect))
    for number in range(3):
        await asyncio.sleep(0)
        assert await keeper.may_come(ConnectionPlace("A", number), limited)
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_nobody_is_refused_before_nats_servers_say_so() -> None:
    world, limited = World(), token(2)
    one, other = world.servers
    one.connections = dict.fromkeys(range(1, 20), "others") | {9000: limited.id}
    other.connections = {1: limited.id}
    async with world.keeper() as keeper:
        # All pages were read, and no event is needed.
        assert not await keeper.may_come(ConnectionPlace("A", 9001), limited)
        asked = one.question_count
        assert not await keeper.may_come(ConnectionPlace("B", 2), limited)
        assert one.question_count == asked
        assert await keeper.may_come(ConnectionPlace("B", 2), token(None))
    async with world.keeper() as keeper:
        # It has gone, and nobody has said so.
        del other.connections[1]
        assert await keeper.may_come(ConnectionPlace("A", 9001), limited)
        assert not await keeper.may_come(ConnectionPlace("A", 9002), limited)


async def test_the_newest_are_closed_if_two_services_let_in_one_each() -> None:
    world, limited = World(), token(1)
    async with world.keeper() as keeper:
        assert await keeper.may_come(ConnectionPlace("A", 5), limited)
        one, other = world.servers
        one.connections, other.connections = {5: limited.id}, {7: limited.id}
        one.tell(5)
        other.tell(7)
        await until(lambda: other.closed == [7], "it is closed", seconds=10.0)
        assert one.connections == {5: limited.id}


async def test_connections_of_revoked_tokens_are_closed_although_nobody_told_of_them() -> None:
    world = World()
    # The last of many at once: then all connections are listed.
    revoked = [token(None) for _ in range(10)]
    async with world.keeper():
        server = world.servers[1]
        server.connections = {1: revoked[0].id, 2: "another", 3: revoked[-1].id}
        world.registry.revoke(revoked[0], 0.0)
        await until(lambda: server.closed == [1], "it is closed", seconds=10.0)
        for each in revoked[1:]:
            world.registry.revoke(each, 0.0)
        await until(lambda: server.closed == [1, 3], "it is closed", seconds=10.0)
        assert server.connections == {2: "another"}


async def test_what_makes_no_sense_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    async with world.keeper() as keeper:
        await world.servers[0].bus.publish(came("HOLDFAST"), b"[1")
        await until(lambda: "auth.not_counting" in caplog.text, "it is logged")
        assert await keeper.may_come(ConnectionPlace("A", 1), token(1))


_FIELDS = ("server", "client", "data", "id", "connections", "cid", "start", "user", "error")
_VALUES = st.none() | st.integers() | st.text(max_size=5) | st.just([{}]) | st.just({"id": "A"})


@given(st.dictionaries(st.sampled_from(_FIELDS), _VALUES), st.binary(max_size=20))
@settings(deadline=None, max_examples=examples(100))
def test_any_bytes_are_read_or_refused(fields: dict[str, Any], data: bytes) -> None:
    whole = {"server": {"id": "A"}, "client": fields, "data": {"connections": [fields]}}
    for payload in (json.dumps(fields).encode(), json.dumps(whole).encode(), data):
        for read in (read_event, read_page, read_closed):
            try:
                read(payload)
            except MalformedFrameError:
                continue
