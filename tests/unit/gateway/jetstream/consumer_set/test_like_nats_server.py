"""The consumers of a gateway answer what nats-server answers, word for word and number for
number."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.gateway.jetstream.api.headers import build
from tests.support.consumer_player import Arrived, Seen, Side
from tests.support.consumer_programs import ANSWERS, PROGRAMS
from tests.support.consumer_set_world import ConsumerSetWorld, Inbox, in_virtual_time

_ANSWERS: dict[str, Seen] = json.loads(ANSWERS.read_text())


class GatewaySide(Side):
    """The consumers of a stream in memory."""

    def __init__(self, world: ConsumerSetWorld) -> None:
        super().__init__()
        self._world = world
        self._listening: dict[str, Inbox] = {}

    async def api(self, tail: str, body: bytes) -> dict[str, Any]:
        return await self._world.request(tail, body)

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        self._world.app.publish(subject, payload, reply=reply)

    async def append(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        self._world.stream.publish(subject, payload, build(headers) if headers else b"")

    async def remove(self, seq: int) -> None:
        self._world.stream.remove(seq)

    async def purge(self, end_seq: int) -> None:
        stream = self._world.stream
        stream.trim(end_seq or stream.last_seq + 1)

    async def listen(self, name: str, subject: str = "", queue: str = "") -> str:
        if name not in self._listening:
            self._listening[name] = await self._world.listen(subject, queue)
            self.inboxes[name] = self._listening[name].subject
        return self.inboxes[name]

    async def unlisten(self, name: str) -> None:
        await self._listening[name].subscription.unsubscribe()

    def arrived(self, name: str) -> list[Arrived]:
        return [
            Arrived(
                each.subject,
                each.reply,
                ", ".join(each.headers.decode().strip().split("\r\n")),
                each.payload.decode(),
            )
            for each in self._listening[name].take()
        ]

    async def wait(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_answers_are_those_of_nats_server(name: str) -> None:
    async def play(world: ConsumerSetWorld) -> Seen:
        return await GatewaySide(world).play(PROGRAMS[name])

    seen = json.loads(json.dumps(in_virtual_time(play)))
    expected = _ANSWERS[name]
    for step, (ours, theirs) in enumerate(zip(seen, expected, strict=True)):
        assert ours == theirs, f"what was seen as number {step}"
