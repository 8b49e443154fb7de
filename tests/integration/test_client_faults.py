"""The client against servers in memory that show faults on demand, over a real NATS."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_persist import FakeCluster, fake_cluster, until
from nats_server import NatsServer, running_nats_server

from holdfast.client import (
    BusyError,
    Change,
    ChangeKind,
    Client,
    ConnectionFailedError,
    InvalidArgumentError,
    InvalidNameError,
    MalformedFrameError,
    NoCoordinatorError,
    NoServerError,
    OperationTimeoutError,
    StorageFailedError,
    Subscription,
    TooLargeError,
    WrongLastSeqError,
    WrongRevisionError,
    connect,
)
from holdfast.client.coalescer import Coalescer
from holdfast.protocol import frames
from holdfast.protocol.bus_memory import MemoryNetwork
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS, SUBSCRIPTION_BUFFER_CHANGES
from holdfast.protocol.names import StoreId, StoreKind

STREAM = (int(StoreKind.STREAM), "s")
KV = (int(StoreKind.KV), "k")


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running_nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


def run(
    nats: NatsServer,
    test: Callable[[Client, FakeCluster], Awaitable[None]],
    *servers: str,
    **options: Any,
) -> None:
    """Run `test` with a client of a fake cluster of `servers` (one, if none is named)."""

    async def main() -> None:
        async with fake_cluster(nats.url, *(servers or ("a",))) as cluster:
            options.setdefault("timeout_seconds", 10.0)
            async with connect(nats.url, **options) as client, asyncio.timeout(60):
                await test(client, cluster)

    asyncio.run(main())


async def take(changes: Subscription, count: int) -> list[Change]:
    async with asyncio.timeout(20):
        return [await anext(changes) for _ in range(count)]


def values(changes: list[Change]) -> list[bytes]:
    return [change.message.value for change in changes if change.message is not None]


# Writes


def test_a_thousand_concurrent_appends_each_get_their_own_seq(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        acks = await asyncio.gather(*[stream.append(b"%d" % i) for i in range(1000)])
        assert [ack.seq for ack in acks] == list(range(1, 1001))
        assert [m.value for m in await _all(stream.get_all())] == [b"%d" % i for i in range(1000)]
        assert len(cluster.servers[0].frames) < 50
        assert cluster.resolve_requests == [[[1, "s"]]]

    run(nats, test)


def test_stores_wanted_in_one_turn_are_resolved_in_one_request(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        await asyncio.gather(*[client.kv(f"k{i}").set("a", b"") for i in range(50)])
        assert len(cluster.resolve_requests) == 1
        assert {server.name for server in cluster.owner.values()} == {"a", "b"}

    run(nats, test, "a", "b")


def test_a_lost_reply_is_not_a_lost_and_not_a_second_write(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        await stream.append(b"0")
        cluster.servers[0].drop_replies = 1
        ack = await stream.append(b"1")
        assert ack.seq == 2
        assert cluster.store(*STREAM).last_seq == 2

    run(nats, test)


def test_a_lost_request_does_not_reorder_the_ones_behind_it(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
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

    run(nats, test)


def test_a_killed_server_is_suspected_and_its_stores_go_on_elsewhere(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        streams = [client.stream(f"s{i}") for i in range(10)]
        await asyncio.gather(*[s.append(b"") for s in streams])
        await cluster.servers[0].stop()
        acks = await asyncio.gather(*[s.append(b"") for s in streams])
        assert {ack.seq for ack in acks} == {2}
        assert set(cluster.suspected) == {"a"}
        assert {server.name for server in cluster.owner.values()} == {"b"}

    run(nats, test, "a", "b")


def test_a_silent_server_whose_stores_were_moved_is_left(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        cluster.move(STREAM, cluster.servers[0])
        await stream.append(b"1")
        cluster.servers[0].silent = True
        write = asyncio.create_task(stream.append(b"2"))
        await asyncio.sleep(0)
        cluster.move(STREAM, cluster.servers[1])
        assert (await write).seq == 2

    run(nats, test, "a", "b")


def test_a_moved_store_is_followed_to_its_owner(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        for number in range(1, 7):
            cluster.move(STREAM, cluster.servers[number % 2])
            assert (await stream.append(b"")).seq == number

    run(nats, test, "a", "b")


def test_busy_is_retried_until_it_is_not(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        cluster.servers[0].refuse = [BusyError(what="inbox") for _ in range(5)]
        assert (await client.stream("s").append(b"")).seq == 1

    run(nats, test)


def test_a_storage_error_reaches_the_caller_and_later_writes_go_on(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        cluster.servers[0].refuse = [StorageFailedError(reason="full")]
        with pytest.raises(StorageFailedError, match="full"):
            await stream.append(b"")
        assert (await stream.append(b"")).seq == 1

    run(nats, test)


def test_errors_of_single_operations_carry_their_fields(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream, kv = client.stream("s"), client.kv("k")
        await stream.append(b"")
        with pytest.raises(WrongLastSeqError) as wrong_seq:
            await stream.append(b"", expected_last_seq=7)
        assert wrong_seq.value.actual == 1
        await kv.set("a", b"")
        with pytest.raises(WrongRevisionError) as wrong_revision:
            await kv.set("a", b"", expected_revision=0)
        assert (wrong_revision.value.key, wrong_revision.value.actual) == ("a", 1)

    run(nats, test)


def test_wrong_arguments_are_refused_before_anything_is_sent(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        with pytest.raises(InvalidNameError):
            client.stream("no spaces")
        with pytest.raises(InvalidNameError):
            client.kv("")
        with pytest.raises(InvalidArgumentError):
            await stream.append("text")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError):
            await stream.get(0)
        with pytest.raises(TooLargeError):
            await stream.append_many([b""] * (MAX_FRAME_OPERATIONS + 1))
        with pytest.raises(TooLargeError):
            await stream.append_many([b"x" * 600_000] * 2)
        assert cluster.resolve_requests == []

    run(nats, test)


def test_a_reply_that_makes_no_sense_costs_a_resend_and_nothing_else(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        await stream.append(b"0")
        cluster.servers[0].rubbish = [b"\x01\xc1", frames.encode([[0, 0, b"no outcome"]])]
        acks = await asyncio.gather(stream.append(b"1"), client.kv("k").set("a", b""))
        assert (acks[0].seq, acks[1].revision) == (2, 1)
        assert cluster.store(*STREAM).last_seq == 2
        assert "client.reply_malformed" in caplog.text
        assert "client.failed" not in caplog.text

    run(nats, test)


def test_a_message_to_an_inbox_that_is_no_reply_is_ignored(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        await client.stream("s").append(b"")
        inbox = client._link._inbox
        for token in ("x", "-1", "9" * 200, "1e3"):
            await cluster.bus.publish(inbox + token, b"")
        await until(lambda: caplog.text.count("client.reply_malformed") == 4)
        assert (await client.stream("s").append(b"")).seq == 2

    run(nats, test)


@pytest.mark.parametrize("event", ["reply", "no_responders", "tick", "reconnected"])
def test_a_bug_in_a_callback_fails_the_client_and_leaves_nobody_waiting(
    event: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    async def main() -> None:
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

    asyncio.run(main())


def test_a_cancelled_caller_leaves_the_others_alone(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        await stream.append(b"")
        cluster.servers[0].hold = []
        writes = [asyncio.create_task(stream.append(b"%d" % i)) for i in range(10)]
        await until(lambda: bool(cluster.servers[0].hold))
        for write in writes[::2]:
            write.cancel()
        answers = asyncio.gather(*writes, return_exceptions=True)
        cluster.servers[0].release()
        kept = (await answers)[1::2]
        assert [ack.seq for ack in kept if not isinstance(ack, BaseException)] == [3, 5, 7, 9, 11]
        assert (await stream.append(b"")).seq == 12

    run(nats, test)


def test_a_write_given_up_is_not_applied_when_it_arrives_late(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
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
        assert [m.value for m in await _all(stream.get_all())] == [b"first", b"next"]

    run(nats, test)


def test_callers_beyond_the_limit_wait_for_room_in_order(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("FIRST", "MIN", "MAX"):
        monkeypatch.setattr(f"holdfast.client.credit.{limit}_WAITING_OPERATIONS", 10)

    async def test(client: Client, cluster: FakeCluster) -> None:
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

    run(nats, test)


# When there is nobody to ask


def test_without_a_coordinator_the_error_says_so(nats: NatsServer) -> None:
    async def main() -> None:
        async with connect(nats.url, timeout_seconds=0.3) as client:
            with pytest.raises(NoCoordinatorError):
                await client.stream("s").append(b"")
            with pytest.raises(NoCoordinatorError):
                await client.servers()
            with pytest.raises(NoCoordinatorError):
                await anext(client.stream("s").subscribe())

    asyncio.run(main())


def test_without_a_server_the_error_says_so_and_a_new_server_is_found(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        await cluster.servers[0].stop()
        with pytest.raises(NoServerError):
            await client.stream("s").append(b"", timeout_seconds=0.3)
        write = asyncio.create_task(client.stream("s").append(b""))
        await asyncio.sleep(0)
        await cluster.add_server("b")
        assert (await write).seq == 1

    run(nats, test)


def test_known_owners_serve_on_while_the_coordinator_is_away(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        await client.stream("s").append(b"")
        await cluster.stop_coordinator()
        assert (await client.stream("s").append(b"")).seq == 2
        with pytest.raises(NoCoordinatorError):
            await client.stream("other").append(b"", timeout_seconds=0.2)

    run(nats, test)


def test_a_question_that_died_with_its_coordinator_is_asked_again(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        cluster.lose_questions = 1
        # Less than a lost question would take to be given up.
        assert (await client.stream("s").append(b"", timeout_seconds=1.5)).seq == 1
        assert cluster.resolve_requests == [[[1, "s"]]]

    run(nats, test)


def test_without_nats_connect_fails_with_the_url() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:1"):
            await connect("nats://127.0.0.1:1")

    asyncio.run(main())


def test_close_fails_what_waits_and_ends_subscriptions(nats: NatsServer) -> None:
    async def main() -> None:
        async with fake_cluster(nats.url, "a") as cluster:
            client = await connect(nats.url)
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

    asyncio.run(main())


# Reading


def test_get_all_pages_through_everything_and_stops_at_its_bounds(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream, kv = client.stream("s"), client.kv("k")
        await stream.append_many([b"%d" % i for i in range(1, 201)])
        await kv.set_many({f"{i:03}": b"v" for i in range(120)})
        assert [m.seq for m in await _all(stream.get_all())] == list(range(1, 201))
        assert [m.seq for m in await _all(stream.get_all(start_seq=60, end_seq=130))] == list(
            range(60, 131)
        )
        assert [m.seq for m in await _all(stream.get_all(last=70))] == list(range(131, 201))
        assert [m.seq for m in await _all(stream.get_all(limit=70))] == list(range(1, 71))
        assert await _all(stream.get_all(limit=0)) == []
        assert [e.key for e in await _all(kv.get_all(prefix="1"))] == [
            f"1{i:02}" for i in range(20)
        ]
        assert len(await _all(kv.keys())) == 120

    run(nats, test)


def test_reads_that_a_server_answers_in_part_are_completed(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        await stream.append_many([b"%d" % i for i in range(1, 51)])
        cluster.servers[0].reads_at_once = 3
        found = await asyncio.gather(*[stream.get(seq) for seq in range(1, 51)])
        assert [m.value for m in found if m is not None] == [b"%d" % i for i in range(1, 51)]

    run(nats, test)


def test_stores_are_listed_page_by_page(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        for name in ("b.2", "a.1", "b.1", "c"):
            await client.stream(name).append(b"")
        await client.kv("b.1").set("a", b"")
        found = [(store.name, store.kind) async for store in client.stores(prefix="b")]
        assert found == [("b.1", 1), ("b.1", 2), ("b.2", 1)]
        assert len([store async for store in client.stores(kind=StoreKind.STREAM)]) == 4
        assert [server.server for server in await client.servers()] == ["a"]

    run(nats, test)


# Following


def test_a_subscription_gives_history_then_live_in_order(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        await stream.append_many([b"%d" % i for i in range(1, 121)])
        async with stream.subscribe(start_seq=21) as changes:
            history = await take(changes, 100)
            assert values(history) == [b"%d" % i for i in range(21, 121)]
            await stream.append(b"live")
            await stream.set(1, b"again")
            await stream.delete(2)
            await stream.delete_all(end_seq=10)
            live = await take(changes, 4)
            assert [c.kind for c in live] == ["set", "set", "delete", "trim"]
            assert [c.revision for c in live] == [121, 122, 123, 124]
            assert (live[2].seqs, live[3].end_seq) == ((2,), 10)

    run(nats, test)


def test_a_live_subscription_begins_when_it_is_entered(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        await stream.append(b"before")
        async with stream.subscribe() as changes:
            await stream.append(b"after")
            assert values(await take(changes, 1)) == [b"after"]

    run(nats, test)


def test_a_writer_racing_with_the_start_of_a_subscription_is_seen_exactly_once(
    nats: NatsServer,
) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")

        async def write() -> None:
            for number in range(300):
                await stream.append(b"%d" % number)

        writing = asyncio.create_task(write())
        await until(lambda: cluster.store(*STREAM).last_seq > 100)
        async with stream.subscribe(start_seq=1) as changes:
            assert values(await take(changes, 300)) == [b"%d" % i for i in range(300)]
        await writing

    run(nats, test)


def test_lost_and_doubled_broadcasts_are_healed(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        cluster.broadcast_twice = True
        async with stream.subscribe() as changes:
            for number in range(20):
                cluster.lose_broadcasts = number % 3
                await stream.append(b"%d" % number)
            cluster.lose_broadcasts = 0
            await stream.append(b"end")
            found = await take(changes, 21)
            assert [c.revision for c in found] == list(range(1, 22))

    run(nats, test)


def test_a_lost_last_broadcast_is_noticed(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        async with stream.subscribe() as changes:
            cluster.lose_broadcasts = 1
            await stream.append(b"lost")
            assert values(await take(changes, 1)) == [b"lost"]

    run(nats, test)


def test_followed_stores_are_checked_in_one_frame(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        subscriptions = [client.stream(f"s{i}").subscribe() for i in range(20)]
        for each in subscriptions:
            await each.__aenter__()
        before = len(cluster.servers[0].frames)
        await until(lambda: len(cluster.servers[0].frames) > before)
        assert sum(len(groups) for groups in cluster.servers[0].frames[before:]) == 20
        for each in subscriptions:
            await each.aclose()

    run(nats, test)


def test_a_follower_survives_the_move_of_its_store(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        async with stream.subscribe() as changes:
            await stream.append(b"1")
            cluster.lose_broadcasts = 1
            await stream.append(b"2")
            cluster.move(STREAM, cluster.servers[1])
            await cluster.servers[0].stop()
            await stream.append(b"3")
            assert values(await take(changes, 3)) == [b"1", b"2", b"3"]

    run(nats, test, "a", "b")


def test_a_follower_that_was_away_too_long_is_told_reset_and_given_all(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        await stream.append(b"1")
        async with stream.subscribe() as changes:
            cluster.lose_broadcasts = 3
            await stream.append(b"2")
            await stream.append(b"3")
            await stream.delete(2)
            cluster.store(*STREAM).changes_from = 4
            await stream.append(b"4")
            found = await take(changes, 4)
            assert [c.kind for c in found] == ["reset", "set", "set", "set"]
            assert values(found) == [b"1", b"3", b"4"]
            await stream.append(b"5")
            assert values(await take(changes, 1)) == [b"5"]

    run(nats, test)


def test_a_slow_consumer_loses_nothing(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.client.merge.SUBSCRIPTION_BUFFER_CHANGES", 10)

    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        async with stream.subscribe() as changes:
            for number in range(200):
                await stream.append(b"%d" % number)
            assert values(await take(changes, 200)) == [b"%d" % i for i in range(200)]

    run(nats, test)


def test_a_cancelled_anext_loses_nothing(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        await stream.append_many([b"%d" % i for i in range(200)])
        changes = stream.subscribe(start_seq=1)
        found: list[Change] = []
        wait_seconds = 0.0
        while len(found) < 200:
            wait_seconds += 0.0002
            try:
                async with asyncio.timeout(wait_seconds):
                    found.append(await anext(changes))
            except TimeoutError:
                continue
        assert values(found) == [b"%d" % i for i in range(200)]
        await changes.aclose()

    run(nats, test)


def test_watch_gives_the_state_a_mark_and_what_follows(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        kv = client.kv("k")
        await kv.set_many({f"a{i:03}": b"" for i in range(120)})
        await kv.set("b", b"")
        async with kv.watch(prefix="a") as changes:
            state = await take(changes, 121)
            assert [c.entry.key for c in state[:-1] if c.entry] == [f"a{i:03}" for i in range(120)]
            assert state[-1].kind is ChangeKind.READY
            await kv.set("b", b"unseen")
            await kv.delete("b")
            await kv.set("a000", b"seen")
            await kv.delete("a001")
            await kv.delete_all()
            assert [c.kind for c in await take(changes, 3)] == ["set", "delete", "trim"]

    run(nats, test)


def test_watch_goes_on_from_a_revision(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        kv = client.kv("k")
        for number in range(5):
            await kv.set(str(number), b"")
        async with kv.watch(start_revision=3) as changes:
            found = await take(changes, 3)
            assert [(c.kind, c.revision) for c in found] == [("set", 4), ("set", 5), ("ready", 5)]
        cluster.store(*KV).changes_from = 4
        async with kv.watch(start_revision=3) as changes:
            found = await take(changes, 7)
            assert [c.kind for c in found] == ["reset", *["set"] * 5, "ready"]

    run(nats, test)


def test_breaking_out_of_the_loop_stops_listening(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        await stream.append(b"")
        async for _ in stream.subscribe(start_seq=1):
            break
        gc.collect()
        await until(lambda: not client._follower._feeds)

    run(nats, test)


def test_broadcasts_that_make_no_sense_are_logged_and_mended_by_the_owner(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd: list[Any] = [
        {"not": "changes"},
        [1, 0, 0, 7],
        ["1", 1, 0, []],
        [1, None, 0, []],
        [9, 1, 0, [[frames.CHANGE_SET_MESSAGE, 2, b""], [frames.CHANGE_SET_MESSAGE, "3", b""]]],
        [9, 1, 0, [None]],
    ]

    async def main() -> None:
        network = MemoryNetwork()
        cluster = FakeCluster(network.connect("cluster"))
        await cluster.start("a")
        subject = cluster.subjects.changes(StoreId("default", *STREAM))
        async with connect(bus=network.connect("client")) as client, asyncio.timeout(30):
            stream = client.stream("s")
            async with stream.subscribe() as changes:
                await stream.append(b"0")
                for number, each in enumerate(odd, 1):
                    await cluster.bus.publish(subject, frames.encode(each))
                    await stream.append(b"%d" % number)
                await cluster.bus.publish(subject, b"\x02 of a later version")
                await cluster.bus.publish(subject, b"")
                assert [c.revision for c in await take(changes, 7)] == list(range(1, 8))
                await until(lambda: caplog.text.count("client.broadcast_malformed") == len(odd) + 2)

                def broken(*_: object) -> None:
                    raise RuntimeError("planted")

                with monkeypatch.context() as patch:
                    patch.setattr("holdfast.client.merge.Merge._apply", broken)
                    await stream.append(b"7")
                    await until(lambda: "client.broadcast_failed" in caplog.text)
                assert values(await take(changes, 1)) == [b"7"]

    asyncio.run(main())


def test_an_owner_that_makes_no_sense_is_an_error_for_as_long_as_it_lasts(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        await stream.append(b"1")
        cluster.store(*STREAM).log[0] = (1, 0, [99, "of a later version"])
        async with stream.subscribe(start_revision=0) as changes:
            for _ in range(2):
                with pytest.raises(MalformedFrameError, match="unknown change 99"):
                    await take(changes, 1)
            cluster.store(*STREAM).log[0] = (1, 0, [frames.CHANGE_SET_MESSAGE, 1, b"1"])
            assert values(await take(changes, 1)) == [b"1"]

    run(nats, test)


def test_a_stream_is_gone_on_with_from_a_saved_revision(nats: NatsServer) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream = client.stream("s")
        await stream.append_many([b"%d" % i for i in range(1, 121)])
        await stream.set(3, b"three")
        async with stream.subscribe(start_seq=1) as changes:
            assert changes.revision is None
            await take(changes, 100)
            assert changes.revision is None, "rows of history are not in the order of revisions"
            await take(changes, 20)
            assert changes.revision == 121
        await stream.append(b"121")
        await stream.delete(5)
        async with stream.subscribe(start_revision=121) as changes:
            assert changes.revision == 121
            found = await take(changes, 2)
            assert [(c.kind, c.revision) for c in found] == [("set", 122), ("delete", 123)]
            await stream.append(b"122")
            assert (await take(changes, 1))[0].revision == changes.revision == 124
        with pytest.raises(InvalidArgumentError):
            stream.subscribe(start_seq=1, start_revision=1)

    run(nats, test)


@pytest.mark.parametrize("why", ["forgotten", "deleted"])
def test_a_saved_revision_that_is_no_good_any_more_is_a_reset_with_everything(
    nats: NatsServer, why: str
) -> None:
    async def test(client: Client, cluster: FakeCluster) -> None:
        stream, kv = client.stream("s"), client.kv("k")
        for number in range(1, 6):
            await stream.append(b"%d" % number)
            await kv.set(str(number), b"")
        if why == "deleted":
            cluster.delete(STREAM)
            cluster.delete(KV)
            await stream.append(b"new")
            await kv.set("new", b"")
        else:
            cluster.store(*STREAM).changes_from = cluster.store(*KV).changes_from = 4
        count = 1 if why == "deleted" else 5
        async with stream.subscribe(start_revision=3) as changes:
            found = await take(changes, count + 1)
            assert [c.kind for c in found] == ["reset", *["set"] * count]
            await stream.append(b"live")
            assert values(await take(changes, 1)) == [b"live"]
        async with kv.watch(start_revision=3) as changes:
            found = await take(changes, count + 2)
            assert [c.kind for c in found] == ["reset", *["set"] * count, "ready"]
            assert changes.revision == found[-1].revision == cluster.store(*KV).revision

    run(nats, test)


def test_a_slow_consumer_of_a_busy_kv_takes_no_more_memory_with_time() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        cluster = FakeCluster(network.connect("cluster"))
        await cluster.start("a")
        async with connect(bus=network.connect("client")) as client, asyncio.timeout(60):
            kv, buffers = client.kv("k"), client._follower.buffers
            subject = cluster.subjects.changes(StoreId("default", *KV))
            async with kv.watch() as changes:
                await take(changes, 1)
                store = cluster.store(*KV)
                sizes = []
                for tick in range(500):
                    # What a server says of a hundred keys overwritten in one turn.
                    rows = [[frames.CHANGE_SET_ENTRY, str(i), b"%8d" % tick] for i in range(100)]
                    await cluster.bus.publish(
                        subject, frames.encode_changes(1, store.revision, 0, rows)
                    )
                    for row in rows:
                        store.revision += 1
                        store.entries[row[1]] = (store.revision, 0, row[2], None)
                    store.log = [(entry[0], 0, [5, key, entry[2]]) for key, entry in store.entries.items()]
                    await asyncio.sleep(0)
                    sizes.append(buffers.used_bytes)
                assert max(sizes) <= SUBSCRIPTION_BUFFER_CHANGES * 1024
                assert len(set(sizes[100:])) == 1
                store.log.sort()
                revisions, state = [], {}
                while not revisions or revisions[-1] < store.revision:
                    for change in await take(changes, 1):
                        assert change.entry is not None
                        revisions.append(change.revision)
                        state[change.entry.key] = change.entry.value
                assert revisions == sorted(set(revisions))
                assert set(state.values()) == {b"%8d" % 499}
                assert buffers.used_bytes == 0

    asyncio.run(main())


def test_everything_goes_on_after_nats_was_away(tmp_path: Path) -> None:
    async def main(nats: NatsServer) -> None:
        async with (
            fake_cluster(nats.url, "a") as cluster,
            connect(nats.url, timeout_seconds=30.0) as client,
        ):
            stream = client.stream("s")
            async with stream.subscribe() as changes:
                await stream.append(b"1")
                assert values(await take(changes, 1)) == [b"1"]
                nats.kill()
                await until(lambda: not client.connected)
                write = asyncio.create_task(stream.append(b"2"))
                await asyncio.sleep(0)
                nats.restart()
                await until(lambda: client.connected and cluster.bus.connected)
                assert (await write).seq == 2
                await stream.append(b"3")
                assert values(await take(changes, 2)) == [b"2", b"3"]

    with running_nats_server(tmp_path) as nats:
        asyncio.run(main(nats))


async def _all(rows: Any) -> list[Any]:
    return [row async for row in rows]
