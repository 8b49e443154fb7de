"""A work queue against a real cluster: eight workers, and the owner of the stream killed
meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from holdfast.client import Consumer, NotFoundError, Stream, connect
from holdfast.protocol.limits import MAX_VALUE_BYTES
from tests.support.cluster_in_loop import cluster_with_client, pid_of

MESSAGES = 2000
WORKERS = 8


async def test_each_message_is_acknowledged_once_though_the_owner_is_killed(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path) as (cluster, client):
        await check_one_worker(client.stream("small"))
        stream = client.stream("jobs")
        await stream.append_many([b"%d" % number for number in range(MESSAGES)])
        acked: Counter[int] = Counter()
        handled: Counter[int] = Counter()
        half_done = asyncio.Event()

        async def work(consumer: Consumer) -> None:
            while len(acked) < MESSAGES:
                deliveries = await consumer.fetch(20, max_wait_seconds=1)
                handled.update(delivery.message.seq for delivery in deliveries)
                for delivery, counts in zip(
                    deliveries, await consumer.ack(deliveries), strict=True
                ):
                    assert delivery.message.value == b"%d" % (delivery.message.seq - 1)
                    acked[delivery.message.seq] += counts
                if len(acked) > MESSAGES / 4:
                    half_done.set()

        async def kill_the_owner() -> None:
            await half_done.wait()
            os.kill(pid_of(cluster, (await stream.head()).server), signal.SIGKILL)

        # Half of the workers are another process to the servers.
        async with connect(cluster.nats.url, tenant="acme") as other, asyncio.TaskGroup() as tasks:
            tasks.create_task(kill_the_owner())
            for number in range(WORKERS):
                handle = (client, other)[number % 2].stream("jobs")
                tasks.create_task(work(handle.consumer("workers", ack_wait_seconds=60)))
        assert acked == Counter(dict.fromkeys(range(1, MESSAGES + 1), 1))
        assert handled == acked, "none was with two workers: nobody was slow"
        [info] = await stream.consumers()
        assert (info.ack_floor, info.acked_count, info.lag) == (MESSAGES, MESSAGES, 0)
        assert (info.delivered_count, info.redelivered_count, info.given_up_count) == (
            MESSAGES,
            0,
            0,
        )


async def check_one_worker(stream: Stream) -> None:
    async with stream.consumer("w", ack_wait_seconds=0.2, max_deliveries=3) as consumer:
        assert await consumer.fetch(5, max_wait_seconds=0) == []
        waiting = asyncio.create_task(consumer.fetch(5, max_wait_seconds=30))
        while not consumer._feed._waiters:
            await asyncio.sleep(0.01)
        big = os.urandom(300_000)
        await stream.append_many([big, (b"2", {"a": "b"}), b"3"])
        first = await waiting
        assert [(each.message.value, each.delivery_count) for each in first] == [
            (big, 1),
            (b"2", 1),
            (b"3", 1),
        ]
        assert first[1].message.headers == {"a": "b"}
        assert await first[0].ack()
        assert not await first[0].ack()
        assert await first[1].nak()
        assert await first[2].term()
        [second] = await consumer.fetch(5)
        assert (second.message.seq, second.delivery_count) == (2, 2)
        assert await second.in_progress()
        [third] = await consumer.fetch(5, max_wait_seconds=30)
        assert (third.message.seq, third.delivery_count) == (2, 3), "its ack wait was over"
        assert not await second.nak()
        assert await second.ack(), "the work is done, whoever did it"
        await stream.append_many([b"x"] * 3)
        async for each in consumer:
            assert await each.ack()
            if each.message.seq == 6:
                break
        await stream.append(bytes(MAX_VALUE_BYTES + 1))
        [large] = await consumer.fetch()
        assert large.message.large is not None
        assert large.message.large.size_bytes == MAX_VALUE_BYTES + 1
        assert await large.nak(60)
        info = await consumer.info()
        assert (info.acked_count, info.given_up_count, info.ack_pending_count) == (5, 1, 1)
        assert (info.config.max_deliveries, info.config.max_ack_pending) == (3, 1000)
        fresh = stream.consumer("w", max_ack_pending=7)
        assert (await fresh.info()).config.max_deliveries == 3, "what is not named stays"
        assert await consumer.delete()
        assert await stream.consumers() == []
        with pytest.raises(NotFoundError):
            await fresh.fetch()
