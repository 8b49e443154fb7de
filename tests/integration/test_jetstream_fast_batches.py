"""Fast batches over a real nats-server: flow, limits, consumers, and a gateway that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StreamConfig

from tests.support.fast_batch import fast_batch
from tests.support.jetstream import JetStreamWorld, running_jetstream, tried_again

COUNT = 2000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JetStreamWorld]:
    with running_jetstream(tmp_path_factory.mktemp("fast")) as world:
        world.start_gateway()
        yield world


async def _add(js: JetStreamContext, name: str, **settings: Any) -> None:
    config = StreamConfig(name=name, subjects=[f"{name}.>"], allow_batched=True, **settings)
    await tried_again(lambda: js.add_stream(config))


async def _stored(js: JetStreamContext, name: str) -> list[bytes]:
    info = await js.stream_info(name)
    found = [await js.get_msg(name, seq + 1) for seq in range(info.state.last_seq)]
    return [each.data or b"" for each in found]


async def test_a_stream_without_the_setting_refuses_the_first_message(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await js.add_stream(name="off", subjects=["off.>"])
        async with fast_batch(client) as batch:
            await batch.publish("off.1", b"1")
            assert (await batch.end())["error"]["err_code"] == 10205


async def test_a_batch_is_stored_in_order_and_delivered_in_order(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await _add(js, "all")
        consumer = await js.pull_subscribe("all.>", "worker")
        async with fast_batch(client) as batch:
            for number in range(COUNT):
                assert await batch.publish(f"all.{number % 7}", b"%d" % number)
            await batch.ping("all.1")
            ending = await batch.commit("all.last", b"%d" % COUNT)
        assert ending["seq"] == ending["count"] == COUNT + 1 and ending["batch"] == "b"
        assert batch.acked >= COUNT - 100 and batch.flow == 100
        assert not batch.errors and not batch.gaps
        delivered: list[bytes] = []
        while len(delivered) <= COUNT:
            for message in await consumer.fetch(500, timeout=10.0):
                delivered.append(message.data)
                await message.ack()
        assert delivered == [b"%d" % number for number in range(COUNT + 1)]


async def test_nothing_is_stored_behind_what_a_full_stream_refuses(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await _add(js, "full", max_msgs=50, discard=DiscardPolicy.NEW)
        async with fast_batch(client) as batch:
            for number in range(1, 101):
                await batch.publish("full.x", b"%d" % number)
            ending = await batch.end()
        assert (ending["seq"], ending["count"]) == (50, 50)
        [error] = batch.errors
        assert error["seq"] == 51 and error["error"]["err_code"] == 10077
        assert await _stored(js, "full") == [b"%d" % number for number in range(1, 51)]


async def test_a_wrong_expectation_ends_a_batch_or_leaves_out_one_message(
    world: JetStreamWorld,
) -> None:
    async with world.client() as client:
        js = client.jetstream()
        for gap, stored in (("fail", [b"1", b"2"]), ("ok", [b"1", b"2", b"4", b"5"])):
            await _add(js, gap)
            async with fast_batch(client, gap=gap) as batch:
                await batch.publish(f"{gap}.a", b"1")
                right = {"Nats-Expected-Last-Sequence": "1"}
                await batch.publish(f"{gap}.a", b"2", right)
                await batch.publish(f"{gap}.a", b"3", right)
                await batch.publish(f"{gap}.a", b"4")
                if gap == "ok":
                    await batch.commit(f"{gap}.a", b"5")
                ending = await batch.end()
            assert [each["seq"] for each in batch.errors] == [3]
            assert batch.errors[0]["error"]["err_code"] == 10071
            assert ending["count"] == (2 if gap == "fail" else 5)
            assert await _stored(js, gap) == stored


async def test_ids_of_messages_hold_within_a_batch_and_between_two(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await _add(js, "ids")
        for batch_id in ("first", "second"):
            async with fast_batch(client, batch_id) as batch:
                for number in (1, 2, 2, 3):
                    headers = {"Nats-Msg-Id": str(number)}
                    await batch.publish("ids.x", b"%d" % number, headers)
                ending = await batch.commit_without_message("ids.x")
            assert ending["count"] == 4 and ending["batch"] == batch_id
            assert not batch.errors
        assert await _stored(js, "ids") == [b"1", b"2", b"3"]


async def test_many_batches_share_a_stream_with_plain_publishers(world: JetStreamWorld) -> None:
    async with world.client() as client:
        js = client.jetstream()
        await _add(js, "shared")

        async def publish(name: str) -> None:
            async with fast_batch(client, name) as batch:
                for number in range(200):
                    await batch.publish(f"shared.{name}", b"%d" % number)
                assert (await batch.commit(f"shared.{name}", b"200"))["count"] == 201

        async def publish_plainly() -> None:
            for number in range(100):
                await js.publish("shared.plain", b"%d" % number)

        names = [f"b{number}" for number in range(8)]
        await asyncio.gather(publish_plainly(), *map(publish, names))
        info = await js.stream_info("shared", subjects_filter=">")
        counts = {f"shared.{name}": 201 for name in names} | {"shared.plain": 100}
        assert info.state.subjects == counts


async def test_a_batch_is_unknown_to_the_next_gateway_and_what_was_acked_is_stored(
    tmp_path: Path,
) -> None:
    with running_jetstream(tmp_path) as world:
        gateway = world.start_gateway()
        async with world.client() as client, fast_batch(client, flow=10) as batch:
            js = client.jetstream()
            await _add(js, "moved")
            for number in range(1, 31):
                await batch.publish("moved.x", b"%d" % number)
            acked = batch.acked
            assert acked
            gateway.kill()
            await asyncio.to_thread(world.start_gateway)
            ending = await _ended(client, batch)
            assert ending["error"]["err_code"] == 10208
            stored = await _stored(js, "moved")
        assert len(stored) >= acked
        assert stored == [b"%d" % number for number in range(1, len(stored) + 1)]


async def _ended(client: Client, batch: Any) -> dict[str, Any]:
    """Publish until the gateway that serves the stream now has answered."""
    async with asyncio.timeout(30.0):
        while batch.ending is None:
            await batch.ping("moved.x")
            await client.flush()
            await asyncio.sleep(0.02)
    found: dict[str, Any] = batch.ending
    return found
