"""Gateways on the host of the persist servers, which they reach directly: whoever is killed, what
was acknowledged is there, once, and in order."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import connect
from holdfast.protocol.direct.caller_bus import CallerBus
from tests.integration.test_jetstream_gateways import (
    STREAMS,
    Publishers,
    add_streams,
    check_each_once,
)
from tests.support.cluster import TENANT
from tests.support.jetstream import JetStreamWorld, running_jetstream
from tests.support.process import Process
from tests.support.waiting import eventually, until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "direct"


@pytest.fixture
def world(tmp_path: Path, folder: Path) -> Iterator[JetStreamWorld]:
    with running_jetstream(tmp_path, "--direct", str(folder)) as world:
        yield world


async def _direct(process: Process, server: str, count: int = 1) -> None:
    """Return once a process has reached a server directly so often."""
    said = re.compile(f"direct.begun server={server}\\b")
    await until(lambda: len(said.findall(process.log_file.read_text())) >= count)


async def test_owners_and_gateways_that_are_killed_lose_nothing_and_store_nothing_twice(
    world: JetStreamWorld, folder: Path
) -> None:
    direct = ("--direct", str(folder))
    gateway = world.start_gateway(*direct)
    async with world.client() as client:
        js = client.jetstream()
        await add_streams(js)
        publishers = Publishers(js)
        publishers.start()
        await publishers.progress()
        await _direct(gateway, "s1")
        # Another server takes the streams over; the gateway reaches that one directly too.
        second = world.start_persist("s2", *direct)
        await asyncio.to_thread(second.wait_for_log, "server.started")
        world.persist.kill()
        await publishers.progress()
        await _direct(gateway, "s2")
        # The only server dies, and starts again under its name.
        second.kill()
        await asyncio.to_thread(world.start_persist, "s2", *direct)
        await publishers.progress()
        await _direct(gateway, "s2", 2)
        gateway.kill()
        gateway = await asyncio.to_thread(world.start_gateway, *direct)
        await publishers.progress()
        await _direct(gateway, "s2")
        await publishers.end()
        await check_each_once(js, publishers.acked)
    assert sum(publishers.acked.values()) > 8 * len(STREAMS)


async def test_what_a_native_client_writes_directly_others_hear_over_nats_once(
    world: JetStreamWorld, folder: Path
) -> None:
    url = world.nats.url
    async with (
        connect(url, tenant=TENANT, direct=folder) as near,
        connect(url, tenant=TENANT) as far,
    ):
        stream = near.stream("notes")
        await stream.append(b"0")
        bus = near._link.bus
        assert isinstance(bus, CallerBus)

        async def is_direct() -> bool:
            # Only what is sent tries the socket again, if the first try met a busy machine.
            await stream.head()
            return bool(bus.direct_subjects)

        await eventually(is_direct, "the client is connected directly")
        for number in range(1, 200):
            await stream.append(b"%d" % number)
        large = bytes(500_000)
        await stream.append(large)
        for follower in (near, far):
            heard = []
            async for change in follower.stream("notes").subscribe(start_seq=1):
                assert change.message is not None
                heard.append(change.message.value)
                if len(heard) == 201:
                    break
            assert heard == [*(b"%d" % number for number in range(200)), large]
        entries = near.kv("settings")
        await asyncio.gather(*(entries.set(f"k{number}", bytes(1000)) for number in range(500)))
        assert len([entry async for entry in entries.get_all()]) == 500
