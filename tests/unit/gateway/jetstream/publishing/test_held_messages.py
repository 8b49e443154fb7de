"""What comes behind a large value: held in order, within the memory of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast.client.handles.serving_wire import Appended
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.publishing.publish_load import PublishLoad
from holdfast.gateway.jetstream.publishing.publisher import StreamPublisher
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.limits import MAX_STAGED_PUBLISH_BYTES, MAX_VALUE_BYTES
from holdfast.protocol.messages import Ack, Durability


class _Store:
    """Stores a large value once it is told to, and everything else at once."""

    is_beside_owner = False

    name = "S"

    def __init__(self) -> None:
        self.uploaded = asyncio.Event()
        self.stored: list[bytes] = []

    async def append(self, subject: str, value: bytes, *more: Any, **options: Any) -> Appended:
        await self.uploaded.wait()
        self.stored.append(value[:1])
        return Appended(len(self.stored), 1, 5, False, None)

    def before_sending(self, gather: Callable[[], None]) -> None:
        gather()

    def append_soon(self, waiter: Any, subject: str, value: bytes, *more: Any) -> None:
        self.stored.append(value[:1])
        waiter.set_result(Ack(len(self.stored), 1, 5, Durability.SYNCED))


class _Client:
    def __init__(self) -> None:
        self.refused = 0

    def publish(self, reply: str, body: bytes, *, headers: bytes = b"") -> None:
        if reply == "bug":
            raise RuntimeError("a bug")
        self.refused += b"error" in body

    def acknowledge(self, replies: list[str], bodies: list[str]) -> None:
        pass

    def end_rest(self) -> None:
        pass


class _Listener:
    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def now_ms(self) -> int:
        return 0

    def stored(self, message: object) -> None:
        pass

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))


class _World:
    def __init__(self, load: PublishLoad) -> None:
        self.store, self.client, self.listener = _Store(), _Client(), _Listener()
        config = ApiStreamConfig.from_json({"name": "S", "subjects": ["s"], "max_msg_size": -1})
        parts: list[Any] = [self.store, self.client, load, "", config, self.listener]
        self.publisher = StreamPublisher(*parts)
        self.publish(b"L" * (MAX_VALUE_BYTES + 1))

    def publish(self, payload: bytes, reply: str = "reply", headers: bytes = b"") -> None:
        self.publisher.receive(PortMessage("s", reply, headers, payload))

    async def upload(self) -> None:
        self.store.uploaded.set()
        await asyncio.gather(*self.listener.tasks)


async def test_all_streams_share_the_room_of_what_waits_behind_large_values() -> None:
    load = PublishLoad()
    worlds = [_World(load) for _ in range(3)]
    for world in worlds:
        for _ in range(64):
            world.publish(bytes(MAX_VALUE_BYTES - 4096))
    assert load.staged_bytes <= MAX_STAGED_PUBLISH_BYTES
    assert worlds[0].client.refused == 0 < worlds[2].client.refused
    worlds[0].publisher.close()
    assert load.staged_bytes < MAX_STAGED_PUBLISH_BYTES * 2 // 3
    for world in worlds:
        await world.upload()
    assert load.staged_bytes == 0


async def test_a_bug_over_one_message_costs_none_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    load = PublishLoad()
    world = _World(load)
    world.publish(b"1")
    world.publish(b"2", "bug", b"NATS/1.0\r\nNats-Expected-Stream: other\r\n\r\n")
    world.publish(b"3")
    assert world.store.stored == []
    await world.upload()
    assert world.store.stored == [b"L", b"1", b"3"]
    assert load.staged_bytes == 0 and "jetstream.publish_failed" in caplog.text
