"""Several gateways in front of one tenant: who serves what, and what happens when one is killed,
hangs, leaves or comes."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import APIError

from tests.support.jetstream import TRY_AGAIN, JetStreamWorld, running_jetstream, tried_again

STREAMS = [f"S{number}" for number in range(12)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[JetStreamWorld]:
    with running_jetstream(tmp_path) as world:
        yield world


class Publishers:
    """One publisher for each stream, each of which sends one message after another until it is
    acknowledged, under an id of its own."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js
        self.acked: Counter[str] = Counter()
        self._ending = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._publish(stream)) for stream in STREAMS]

    async def _publish(self, stream: str) -> None:
        while not self._ending:
            number = self.acked[stream] + 1
            headers = {"Nats-Msg-Id": f"{stream}-{number}"}
            try:
                await self._js.publish(
                    f"{stream}.x", b"%d" % number, timeout=1.0, headers=headers
                )
            except (*TRY_AGAIN, APIError):
                await asyncio.sleep(0.01)
            else:
                self.acked[stream] = number

    async def progress(self) -> None:
        """Return once each publisher has been acknowledged again."""
        before = Counter(self.acked)
        async with asyncio.timeout(30.0):
            while any(self.acked[stream] < before[stream] + 2 for stream in STREAMS):
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        self._ending = True
        await asyncio.gather(*self._tasks)


async def check_each_once(js: JetStreamContext, acked: Counter[str]) -> None:
    """Check that each stream has exactly what was acknowledged, in order."""
    for stream in STREAMS:
        info = await js.stream_info(stream)
        assert info.state.messages == info.state.last_seq == acked[stream], stream
        for seq in (1, acked[stream]):
            assert (await js.get_msg(stream, seq)).data == b"%d" % seq


async def add_streams(js: JetStreamContext) -> None:
    for stream in STREAMS:
        await tried_again(lambda name=stream: js.add_stream(name=name, subjects=[f"{name}.>"]))


async def test_streams_of_a_killed_gateway_are_served_by_another_and_nothing_is_stored_twice(
    world: JetStreamWorld,
) -> None:
    gateways = [world.start_gateway() for _ in range(2)]
    async with world.client() as client:
        js = client.jetstream()
        await add_streams(js)
        publishers = Publishers(js)
        publishers.start()
        await publishers.progress()
        gateways[0].kill()
        await publishers.progress()
        gateways[0] = await asyncio.to_thread(world.start_gateway)
        await publishers.progress()
        gateways[1].kill()
        await publishers.progress()
        await publishers.end()
        await check_each_once(js, publishers.acked)


async def test_a_gateway_that_hangs_is_replaced_and_stores_nothing_when_it_wakes(
    world: JetStreamWorld,
) -> None:
    gateways = [world.start_gateway() for _ in range(2)]
    async with world.client() as client:
        js = client.jetstream()
        await add_streams(js)
        publishers = Publishers(js)
        publishers.start()
        await publishers.progress()
        gateways[0].signal(signal.SIGSTOP)
        await publishers.progress()
        # These go to both, and the one that hangs will find them in its socket.
        for number in range(50):
            for stream in STREAMS:
                await client.publish(f"{stream}.copy", b"%d" % number)
        await client.flush()
        gateways[0].signal(signal.SIGCONT)
        await publishers.progress()
        await publishers.end()
        for stream in STREAMS:
            info = await tried_again(
                lambda name=stream: js.stream_info(name, subjects_filter=f"{name}.copy")
            )
            assert (info.state.subjects or {}).get(f"{stream}.copy", 0) <= 50
            assert info.state.messages <= publishers.acked[stream] + 50


async def test_a_gateway_that_leaves_and_one_that_comes_take_over_from_each_other(
    world: JetStreamWorld,
) -> None:
    first = world.start_gateway()
    async with world.client() as client:
        js = client.jetstream()
        await add_streams(js)
        publishers = Publishers(js)
        publishers.start()
        await publishers.progress()
        await asyncio.to_thread(world.start_gateway)
        await publishers.progress()
        assert await asyncio.to_thread(first.stop) == 0
        await publishers.progress()
        await publishers.end()
        await check_each_once(js, publishers.acked)


async def test_a_consumer_goes_on_at_another_gateway_where_it_was(world: JetStreamWorld) -> None:
    gateways = [world.start_gateway() for _ in range(2)]
    async with world.client() as client:
        js = client.jetstream()
        await add_streams(js)
        workers = {}
        for stream in STREAMS:
            workers[stream] = await js.pull_subscribe(f"{stream}.>", durable="worker")
            for number in range(6):
                await js.publish(f"{stream}.x", b"%d" % number)
            for message in await workers[stream].fetch(3, timeout=5.0):
                await message.ack_sync(5.0)
        gateways[0].kill()
        for stream in STREAMS:
            found = await tried_again(lambda name=stream: workers[name].fetch(6, timeout=2.0))
            assert [message.data for message in found] == [b"3", b"4", b"5"], stream


async def test_streams_created_through_two_gateways_at_once_have_one_owner_each(
    world: JetStreamWorld,
) -> None:
    for _ in range(2):
        world.start_gateway()
    async with world.client() as client:
        js = client.jetstream()

        async def create(name: str, subject: str) -> str:
            try:
                await js.add_stream(name=name, subjects=[subject])
            except APIError as error:
                return str(error.err_code)
            return "made"

        results = await asyncio.gather(*(create(f"n{each}", "same.subject") for each in range(8)))
        assert Counter(results) == {"made": 1, "10065": 7}
        results = await asyncio.gather(*(create("name", f"other.{each}") for each in range(8)))
        assert Counter(results) == {"made": 1, "10058": 7}
        assert len(await js.streams_info()) == 2


async def test_all_gateways_together_are_one_to_clients(world: JetStreamWorld) -> None:
    for _ in range(2):
        world.start_gateway()
    async with world.client() as client:
        js = client.jetstream()
        await add_streams(js)
        await _publish_some(client)
        for _ in range(4):
            infos = {each.config.name: each.state.messages for each in await js.streams_info()}
            assert infos == dict.fromkeys(STREAMS, 3)
            assert (await js.account_info()).streams == len(STREAMS)
        for stream in STREAMS:
            assert (await js.stream_info(stream)).state.messages == 3
            assert await js.find_stream_name_by_subject(f"{stream}.x") == stream
            assert await js.delete_stream(stream)
        assert (await js.account_info()).streams == 0


async def _publish_some(client: Client) -> None:
    js = client.jetstream()
    for stream in STREAMS:
        for number in range(3):
            ack = await js.publish(f"{stream}.x", b"v")
            assert (ack.stream, ack.seq) == (stream, number + 1)
