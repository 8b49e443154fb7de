"""The coordinator over a real NATS server, with servers that speak the real wire."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from holdfast.protocol.control import StoreInfo, StoreState
from holdfast.protocol.errors import (
    FencedError,
    HoldfastError,
    InvalidNameError,
    MalformedFrameError,
    StorageFailedError,
    UnknownOperationError,
)
from holdfast.protocol.frames import encode_control
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout
from tests.support.coordinator_peers import SUBJECTS, Asker, Cluster
from tests.support.in_loop import entered
from tests.support.nats_server import NatsServer
from tests.support.raw_nats import raw_nats
from tests.support.waiting import eventually, until


@pytest.fixture
def world(runner: asyncio.Runner, nats: NatsServer, layout: Layout) -> Iterator[Cluster]:
    """A cluster without a coordinator."""
    with entered(runner, Cluster(nats, layout)) as world:
        yield world


@pytest.fixture
def cluster(runner: asyncio.Runner, world: Cluster) -> Iterator[Cluster]:
    """A cluster with a coordinator."""
    with entered(runner, world.coordinator()):
        yield world


@pytest.fixture
def client(runner: asyncio.Runner, world: Cluster) -> Asker:
    return runner.run(world.client())


async def test_a_store_is_resolved_opened_created_and_released(
    cluster: Cluster, client: Asker
) -> None:
    a = await cluster.server("a")
    assert await client.owner("one") == ["a", "1", 1]
    assert await client.owner("one") == ["a", "1", 1]
    b = await cluster.server("b")
    assert (await b.open("one"))[:2] == [None, "not_owner"]
    assert await a.open("one") == [1, StoreState.UNKNOWN, StoreState.UNKNOWN]
    assert await a.open("one", create=True) == [1, StoreState.CREATED, StoreState.UNKNOWN]
    assert await a.ask("created", stores=[["acme", 1, "one"]]) == {"term": 1}
    assert await a.open("one") == [1, StoreState.DURABLE, StoreState.DURABLE]
    assert await a.ask("release", stores=[["acme", 1, "one"]]) == {"term": 1}
    assert (await a.open("one"))[:2] == [None, "not_owner"]
    server, _, epoch = await client.owner("one")
    assert epoch == 2
    owner = a if server == "a" else b
    assert await owner.open("one") == [2, StoreState.DURABLE, StoreState.DURABLE]
    reply = await client.ask("stores", prefix="o")
    (row,) = (StoreInfo(*row) for row in reply["stores"])
    assert (row.kind, row.name, row.server, row.epoch) == (1, "one", server, 2)
    assert reply["next"] is None
    info = (await client.servers())["a"]
    assert (info.state, info.incarnation) == ("live", "1")


async def test_a_silent_server_is_noticed_without_any_client(
    cluster: Cluster, client: Asker
) -> None:
    a = await cluster.server("a")
    await a.open("one", create=True)
    await cluster.server("b")
    a.mute = True

    async def moved() -> bool:
        owner = await client.owner("one")
        assert owner == ["a", "1", 1] or not a.fence_is_open
        return bool(owner == ["b", "1", 2])

    await eventually(moved, "the store moves")


class RefusingDisk(Disk):
    """A disk on which nothing can be overwritten while `refuses`."""

    refuses = False

    def overwrite_durably(self, path: Path, content: bytes) -> None:
        if self.refuses:
            raise StorageFailedError(reason=f"{path}: input/output error")
        super().overwrite_durably(path, content)


async def test_a_server_that_cannot_be_fenced_keeps_its_stores_until_it_can(
    world: Cluster, client: Asker
) -> None:
    disk = RefusingDisk()
    async with world.coordinator(disk):
        a = await world.server("a")
        await a.open("one", create=True)
        await world.server("b")
        disk.refuses = True
        await a.kill()
        with pytest.raises(StorageFailedError):
            await client.suspect(a)
        assert await client.owner("one") == ["a", "1", 1]
        assert (await client.servers())["a"].state == "suspect"
        with pytest.raises(StorageFailedError):
            while True:
                # Waits for the next attempt, which fails too.
                await client.suspect(a)
        disk.refuses = False

        async def moved() -> bool:
            return bool(await client.owner("one") == ["b", "1", 2])

        await eventually(moved, "the store moves")
        assert not a.fence_is_open


async def test_a_new_incarnation_is_let_in_after_the_older_is_fenced_which_never_returns(
    world: Cluster, client: Asker
) -> None:
    async with world.coordinator():
        old = await world.server("a", "1")
        await old.open("one", create=True)
        await world.server("a", "2")
        assert not old.fence_is_open
        assert await client.owner("one") == ["a", "2", 2]
        with pytest.raises(FencedError):
            await old.register()
        with pytest.raises(FencedError):
            await old.open("one", create=True)
    async with world.coordinator():
        with pytest.raises(FencedError):
            await old.register()


async def test_an_incarnation_whose_fence_is_missing_is_refused(cluster: Cluster) -> None:
    server = await cluster.server("a", register=False)
    cluster.layout.fence("a", "1").unlink()
    with pytest.raises(FencedError):
        await server.register()


async def test_a_restarted_coordinator_keeps_the_owners_and_takes_a_higher_term(
    world: Cluster, client: Asker
) -> None:
    async with world.coordinator():
        a, b = await world.server("a"), await world.server("b")
        before = [await client.owner(f"s{number}") for number in range(10)]
        assert {owner[0] for owner in before} == {"a", "b"}
        for number, (server, *_) in enumerate(before):
            await {"a": a, "b": b}[server].open(f"s{number}", create=True)
    with pytest.raises(NoRespondersError):
        await client.owner("s0")
    async with world.coordinator():
        reply = await client.ask("resolve", stores=[[1, f"s{n}"] for n in range(10)])
        assert reply["term"] == 2
        assert reply["owners"] == before
        owner = a if before[0][0] == "a" else b
        assert await owner.open("s0") == [1, StoreState.CREATED, StoreState.CREATED]
        assert (await client.settled_owner("new"))[2] == 1
        assert a.fence_is_open
        assert b.fence_is_open
        assert a.registered_count == 1


async def test_a_server_the_coordinator_does_not_know_is_asked_to_register(
    cluster: Cluster, client: Asker
) -> None:
    server = await cluster.server("a", register=False)

    async def known() -> bool:
        return "a" in await client.servers()

    await eventually(known, "the server is known")
    assert server.registered_count > 0
    assert await client.settled_owner("one") == ["a", "1", 1]


async def test_a_restart_of_nats_moves_nothing(cluster: Cluster, client: Asker) -> None:
    a, b = await cluster.server("a"), await cluster.server("b")
    before = [await client.owner(f"s{number}") for number in range(4)]
    cluster.nats.restart()

    async def answers() -> bool:
        try:
            for server in (a, b):
                await client.suspect(server)
            return (await client.owner("s0"))[0] is not None
        except (NoRespondersError, BusTimeoutError):
            return False

    await eventually(answers, "the coordinator is back")
    assert [await client.settled_owner(f"s{number}") for number in range(4)] == before
    assert a.fence_is_open
    assert b.fence_is_open
    assert (await client.settled_owner("new"))[2] == 1


@pytest.mark.parametrize(
    ("tenant", "verb", "payload", "error"),
    [
        ("acme", "resolve", b"", MalformedFrameError),
        ("acme", "resolve", b"\x01\xc1", MalformedFrameError),
        ("acme", "resolve", encode_control(error="busy", fields={1: 2}), MalformedFrameError),
        ("acme", "nonsense", encode_control(), UnknownOperationError),
        ("acme", "open", encode_control(), UnknownOperationError),
        ("acme", "drain", encode_control(server="a"), UnknownOperationError),
        ("acme", "undrain", encode_control(server="a"), UnknownOperationError),
        ("_", "resolve", encode_control(stores=[]), UnknownOperationError),
        ("-", "resolve", encode_control(stores=[]), InvalidNameError),
        ("_", "register", encode_control(server="a b", incarnation="1"), InvalidNameError),
    ],
)
async def test_a_malformed_request_gets_a_typed_error_and_hurts_nobody(
    tenant: str,
    verb: str,
    payload: bytes,
    error: type[HoldfastError],
    cluster: Cluster,
    client: Asker,
) -> None:
    for heartbeat in (
        b"",
        b"\x01\xc0",
        encode_control(server="a b", incarnation=".."),
        encode_control(error="busy", fields=[1]),
        encode_control(server="a", incarnation="1", open_stores=1e300),
        encode_control(server="a", incarnation="1", operations_per_second=math.nan),
    ):
        await client.bus.publish(SUBJECTS.heartbeat(), heartbeat)
    with pytest.raises(error):
        await client.ask_raw(verb, payload, tenant)
    assert await client.servers() == {}


async def test_a_tenant_that_floods_the_coordinator_costs_another_a_turn_and_not_its_queue(
    cluster: Cluster,
) -> None:
    await cluster.server("a")
    flooder = await cluster.client()
    replies: list[str] = []
    # One connection hears both tenants' replies in the order in which they left.
    for tenant in ("evil", "acme"):
        await flooder.bus.subscribe(
            f"_INBOX.{tenant}.>", lambda message: replies.append(message.subject)
        )
    for request in range(40):
        payload = encode_control(
            stores=[[1, f"flood.{request}.{number}"] for number in range(1024)]
        )
        await flooder.bus.publish(
            SUBJECTS.coordinator("evil", "resolve"), payload, f"_INBOX.evil.{request}"
        )
    payload = encode_control(stores=[[1, "wanted"]])
    wanted = "_INBOX.acme.wanted"
    await flooder.bus.publish(SUBJECTS.coordinator("acme", "resolve"), payload, wanted)

    await until(lambda: len(replies) == 41, "the flood is answered too")
    # What was answered before it came, and what was in the transaction with it.
    assert replies.index(wanted) < 24


async def test_a_reply_that_nobody_can_get_hurts_nobody(cluster: Cluster, client: Asker) -> None:
    subject = SUBJECTS.coordinator("acme", "servers")
    async with raw_nats(cluster.nats.port) as raw:
        for reply in ("", "ends.", ".starts", "a..b", "*", ">", "hf._.hb", subject):
            await raw.publish(subject.encode(), encode_control(), reply.encode())
        for odd in (b"a\x0b1", b"\xff\xfe", b"a\rb", b"_INBOX.acme.\x1c"):
            await raw.publish(subject.encode() + odd, encode_control(), odd)
            await raw.publish(subject.encode(), encode_control(), odd)
    assert await client.servers() == {}
