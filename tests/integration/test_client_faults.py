"""The client against servers in memory that show faults on demand, over a real NATS."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.client import (
    BusyError,
    Client,
    ConnectionFailedError,
    InvalidArgumentError,
    InvalidNameError,
    NoCoordinatorError,
    NoServerError,
    OperationTimeoutError,
    TooLargeError,
    connect,
)
from holdfast.client.wire.coalescer import Coalescer
from holdfast.protocol import frames
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS
from tests.support.client_of_fakes import STREAM, all_of, take, values
from tests.support.fake_persist import FakeCluster, fake_cluster
from tests.support.nats_server import NatsServer
from tests.support.stalling_proxy import stalling_proxy
from tests.support.waiting import until

# Writes


async def test_a_lost_reply_is_not_a_lost_and_not_a_second_write(
    client: Client, cluster: FakeCluster
) -> None:
    stream = client.stream("s")
    await stream.append(b"0")
    cluster.servers[0].drop_replies = 1
    ack = await stream.append(b"1")
    assert ack.seq == 2
    assert cluster.store(*STREAM).last_seq == 2


async def test_a_lost_request_does_not_reorder_the_ones_behind_it(
    client: Client, cluster: FakeCluster
) -> None:
    stream = client.stream("s")
    await stream.append(b"first")
    cluster.servers[0].drop_requests = 1
    writes = []
    for number in range(4):
        writes.append(asyncio.create_task(stream.append(b"%d" % number)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    acks = await asyncio.gather(*writes)
    assert [ack.seq for ack in acks] == [2, 3, 4, 5]


async def test_busy_is_retried_until_it_is_not(client: Client, cluster: FakeCluster) -> None:
    cluster.servers[0].refuse = [BusyError(what="inbox") for _ in range(5)]
    assert (await client.stream("s").append(b"")).seq == 1


async def test_wrong_arguments_are_refused_before_anything_is_sent(
    client: Client, cluster: FakeCluster
) -> None:
    stream = client.stream("s")
    for name in ("", ".", "a..b", "a b", "a/b", "*", ">", "a.>", "x" * 201):
        for make in (client.stream, client.kv):
            with pytest.raises(InvalidNameError):
                make(name)
    with pytest.raises(InvalidArgumentError):
        await stream.append("text")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        await stream.get(0)
    with pytest.raises(TooLargeError):
        await stream.append_many([b""] * (MAX_FRAME_OPERATIONS + 1))
    with pytest.raises(TooLargeError):
        await stream.append_many([b"x" * 600_000] * 2)
    assert cluster.resolve_requests == []


async def test_a_reply_that_makes_no_sense_costs_a_resend_and_nothing_else(
    caplog: pytest.LogCaptureFixture, client: Client, cluster: FakeCluster
) -> None:
    stream = client.stream("s")
    await stream.append(b"0")
    cluster.servers[0].rubbish = [b"\x01\xc1", frames.encode([[0, 0, b"no outcome"]])]
    acks = await asyncio.gather(stream.append(b"1"), client.kv("k").set("a", b""))
    assert (acks[0].seq, acks[1].revision) == (2, 1)
    assert cluster.store(*STREAM).last_seq == 2
    assert "client.reply_malformed" in caplog.text
    assert "client.failed" not in caplog.text


async def test_a_message_to_an_inbox_that_is_no_reply_is_ignored(
    caplog: pytest.LogCaptureFixture, client: Client, cluster: FakeCluster
) -> None:
    await client.stream("s").append(b"")
    inbox = client._link._inbox
    for token in ("x", "-1", "9" * 200, "1e3"):
        await cluster.bus.publish(inbox + token, b"")
    await until(lambda: caplog.text.count("client.reply_malformed") == 4)
    assert (await client.stream("s").append(b"")).seq == 2


@pytest.mark.parametrize("event", ["reply", "no_responders", "tick", "reconnected"])
async def test_a_bug_in_a_callback_fails_the_client_and_leaves_nobody_waiting(
    event: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    network = MemoryNetwork()
    cluster, bus = FakeCluster(network.connect("cluster")), network.connect("client")
    await cluster.start("a")
    async with connect(bus=bus, timeout_seconds=60.0) as client, asyncio.timeout(20):
        stream = client.stream("s")
        await stream.append(b"")
        following = asyncio.ensure_future(anext(client.stream("quiet").subscribe()))
        await until(lambda: bool(client._follower._feeds))
        monkeypatch.setattr(Coalescer, event, broken)
        server = cluster.servers[0]
        server.silent = event in ("tick", "reconnected")
        if event == "no_responders":
            await server.stop()
        calls = [asyncio.ensure_future(stream.append(b"")) for _ in range(3)]
        calls.append(asyncio.ensure_future(client.kv("k").get("a")))
        if event == "reconnected":
            await asyncio.sleep(0)
            bus.drop()
            bus.come_back()
        for waiting in [*calls, following]:
            with pytest.raises(ConnectionFailedError, match=r"the client failed: .*planted"):
                await waiting
        with pytest.raises(ConnectionFailedError, match="planted"):
            await stream.append(b"")
    (record,) = [each for each in caplog.records if each.message == "client.failed"]
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "planted"
    assert {task for task in asyncio.all_tasks() if "holdfast" in task.get_name()} == set()


async def test_a_write_given_up_is_not_applied_when_it_arrives_late(
    client: Client, cluster: FakeCluster
) -> None:
    stream = client.stream("s")
    await stream.append(b"first")
    server = cluster.servers[0]
    server.hold = []
    with pytest.raises(OperationTimeoutError):
        await stream.append(b"late", timeout_seconds=0.2)
    late, server.hold = server.hold, None
    assert (await stream.append(b"next")).seq == 2
    for message in late:
        server._on_frame(message)
    assert [m.value for m in await all_of(stream.get_all())] == [b"first", b"next"]


@pytest.fixture
def room_for_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client that connects from now on may have waiting."""
    for limit in ("FIRST", "MIN", "MAX"):
        monkeypatch.setattr(f"holdfast.client.wire.credit.{limit}_WAITING_OPERATIONS", 10)


async def test_callers_beyond_the_limit_wait_for_room_in_order(
    room_for_ten: None, client: Client, cluster: FakeCluster
) -> None:
    stream = client.stream("s")
    acks = await asyncio.gather(*[stream.append(b"") for _ in range(200)])
    assert [ack.seq for ack in acks] == list(range(1, 201))
    sizes = [len(g.operations) for groups in cluster.servers[0].frames for g in groups]
    assert max(sizes) <= 11
    cluster.servers[0].silent = True
    blocked = [asyncio.create_task(stream.append(b"")) for _ in range(10)]
    await asyncio.sleep(0)
    with pytest.raises(OperationTimeoutError, match="is full"):
        await stream.append(b"", timeout_seconds=0.1)
    for task in blocked:
        task.cancel()
    await asyncio.gather(*blocked, return_exceptions=True)


async def test_a_connection_that_passes_nothing_any_more_costs_a_pause_and_no_write(
    shared_nats: NatsServer,
) -> None:
    async with (
        fake_cluster(shared_nats.url, "a") as cluster,
        stalling_proxy(shared_nats.port) as proxy,
        connect(proxy.url, timeout_seconds=60.0) as client,
    ):
        stream = client.stream("s")
        await stream.append(b"first")
        proxy.stall()
        # More than the sockets on the way hold, so that some of it stays unsent.
        values = [b"%d " % number + bytes(200_000) for number in range(100)]
        appends = [asyncio.create_task(stream.append(value)) for value in values]
        await until(lambda: proxy.accepted_count > 1)
        proxy.heal()
        acks = await asyncio.gather(*appends)
        assert [ack.seq for ack in acks] == list(range(2, 102))
        assert len(cluster.owner) == 1
        # And it closes while the next one is stalled.
        proxy.stall()
        waiting = asyncio.create_task(stream.append(bytes(900_000)))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ConnectionFailedError):
            await waiting


# When there is nobody to ask


async def test_without_a_coordinator_the_error_says_so(shared_nats: NatsServer) -> None:
    async with connect(shared_nats.url, timeout_seconds=0.3) as client:
        with pytest.raises(NoCoordinatorError):
            await client.stream("s").append(b"")
        with pytest.raises(NoCoordinatorError):
            await client.servers()
        with pytest.raises(NoCoordinatorError):
            await anext(client.stream("s").subscribe())


async def test_without_a_server_the_error_says_so_and_a_new_server_is_found(
    client: Client, cluster: FakeCluster
) -> None:
    await cluster.servers[0].stop()
    with pytest.raises(NoServerError):
        await client.stream("s").append(b"", timeout_seconds=0.3)
    write = asyncio.create_task(client.stream("s").append(b""))
    await asyncio.sleep(0)
    await cluster.add_server("b")
    assert (await write).seq == 1


async def test_a_question_that_died_with_its_coordinator_is_asked_again(
    client: Client, cluster: FakeCluster
) -> None:
    cluster.lose_questions = 1
    # Less than a lost question would take to be given up.
    assert (await client.stream("s").append(b"", timeout_seconds=1.5)).seq == 1
    assert cluster.resolve_requests == [[[1, "s"]]]


async def test_close_fails_what_waits_and_ends_subscriptions(shared_nats: NatsServer) -> None:
    async with fake_cluster(shared_nats.url, "a") as cluster:
        client = await connect(shared_nats.url)
        await client.stream("s").append(b"")
        changes = client.stream("s").subscribe(start_seq=1)
        assert values(await take(changes, 1)) == [b""]
        following = asyncio.ensure_future(anext(changes, None))
        cluster.servers[0].silent = True
        write = asyncio.create_task(client.stream("s").append(b""))
        await asyncio.sleep(0.05)
        await client.close()
        await client.close()
        with pytest.raises(ConnectionFailedError, match="closed"):
            await write
        assert await following is None
        with pytest.raises(ConnectionFailedError):
            await client.stream("s").append(b"")
        assert {task for task in asyncio.all_tasks() if "holdfast" in task.get_name()} == set()
