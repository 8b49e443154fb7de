"""`python -m tests.support.record_answers`: plays the programs of JetStream's consumers and the
requests of its API against nats-server, and writes its answers down."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from tests.support import api_requests
from tests.support.consumer_player import Arrived, Seen, Side, Step
from tests.support.consumer_programs import ANSWERS, PROGRAMS
from tests.support.nats_server import running_nats_server


class NatsServerSide(Side):
    """nats-server with JetStream."""

    def __init__(self, connection: Client) -> None:
        super().__init__()
        self._nats = connection
        self._arrived: dict[str, list[Msg]] = {}
        self.subscriptions: dict[str, Subscription] = {}

    async def api(self, tail: str, body: bytes) -> dict[str, Any]:
        answer = await self._nats.request(f"$JS.API.{tail}", body, timeout=2)
        found: dict[str, Any] = json.loads(answer.data)
        return found

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        await self._nats.publish(subject, payload, reply=reply)
        await self._nats.flush()

    async def append(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        await self._nats.publish(subject, payload, headers=headers or None)
        await self._nats.flush()

    async def remove(self, seq: int) -> None:
        await self.api("STREAM.MSG.DELETE.S", b'{"seq": %d}' % seq)

    async def purge(self, end_seq: int) -> None:
        await self.api("STREAM.PURGE.S", b'{"seq": %d}' % end_seq if end_seq else b"")

    async def listen(self, name: str, subject: str = "", queue: str = "") -> str:
        if name not in self.inboxes:
            arrived: list[Msg] = []
            self._arrived[name] = arrived

            async def arrive(message: Msg) -> None:
                arrived.append(message)

            self.inboxes[name] = subject or self._nats.new_inbox()
            self.subscriptions[name] = await self._nats.subscribe(
                self.inboxes[name], queue, cb=arrive
            )
            await self._nats.flush()
        return self.inboxes[name]

    async def unlisten(self, name: str) -> None:
        await self.subscriptions.pop(name).unsubscribe()
        await self._nats.flush()

    def arrived(self, name: str) -> list[Arrived]:
        messages = list(self._arrived[name])
        self._arrived[name].clear()
        return [
            Arrived(each.subject, each.reply, _block(each), each.data.decode()) for each in messages
        ]

    async def wait(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)


def _block(message: Msg) -> str:
    """Return the header block, which nats-py has taken apart."""
    fields = dict(message.headers or {})
    first = [fields.pop(name) for name in ("Status", "Description") if name in fields]
    if message.headers is None:
        return ""
    lines = [" ".join(("NATS/1.0", *first)), *(f"{name}: {text}" for name, text in fields.items())]
    return ", ".join(lines)


async def _played(connection: Client, program: list[Step]) -> Seen:
    side = NatsServerSide(connection)
    await side.api("STREAM.CREATE.S", b'{"name": "S", "subjects": ["S.>"]}')
    try:
        return await side.play(program)
    finally:
        for subscription in side.subscriptions.values():
            await subscription.unsubscribe()
        await side.api("STREAM.DELETE.S", b"")


async def record_api(connection: Client) -> None:
    """Write down the answers to the requests of the API."""
    requests = api_requests.REQUESTS
    told = await api_requests.answers_to(connection, requests)
    lines = (
        json.dumps([request.name, answer], sort_keys=True)
        for request, answer in zip(requests, told, strict=True)
    )
    api_requests.ANSWERS.write_text("[\n" + ",\n".join(lines) + "\n]\n")


async def _record(url: str) -> None:
    connection = await nats.connect(url)
    await record_api(connection)
    answers = {name: await _played(connection, program) for name, program in PROGRAMS.items()}
    await connection.close()
    lines = (f"{json.dumps(name)}: {json.dumps(seen)}" for name, seen in answers.items())
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        running_nats_server(Path(folder), "-js", "-sd", folder) as server,
    ):
        asyncio.run(_record(server.url))
