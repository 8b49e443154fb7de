"""When a gateway reads again from publishers that it lets rest: for few at once, for many later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.publishing.publish_load import PublishLoad
from holdfast.gateway.jetstream.publishing.publisher import StreamPublisher
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.frames import Run
from holdfast.protocol.messages import Ack, Durability


class _Store:
    """Has the waiters of what was sent."""

    is_beside_owner = False

    def __init__(self) -> None:
        self.waiters: list[Any] = []
        self._gathering: list[Callable[[], None]] = []

    def before_sending(self, gather: Callable[[], None]) -> None:
        self._gathering.append(gather)

    def send(self) -> None:
        gathering, self._gathering = self._gathering, []
        for gather in gathering:
            gather()

    def append_soon(self, waiter: Any, *append: Any) -> None:
        self.waiters.append(waiter)

    def append_run_soon(self, waiter: Any, run: Any) -> None:
        self.waiters.append(waiter)


class _Client:
    def __init__(self) -> None:
        self.answered = self.ended_rests = 0

    def acknowledge(self, replies: list[str], bodies: list[str]) -> None:
        self.answered += len(replies)

    def end_rest(self) -> None:
        self.ended_rests += 1


class _Listener:
    def now_ms(self) -> int:
        return 0


@pytest.mark.parametrize(("count", "reads_at_once"), [(1, True), (3, True), (7, True), (8, False)])
async def test_a_gateway_reads_at_once_from_few_publishers_and_lets_many_gather(
    count: int, reads_at_once: bool
) -> None:
    store, client, load = _Store(), _Client(), PublishLoad()
    config = ApiStreamConfig.from_json({"name": "S", "subjects": ["s"], "max_msg_size": -1})
    parts: list[Any] = [store, client, load, "", config, _Listener()]
    publisher = StreamPublisher(*parts)
    for number in range(count):
        publisher.receive(PortMessage("s", f"_INBOX.{number}", b"", b"v"))
    assert load.count == load.taken == load.taken_bytes == count
    store.send()
    [waiter] = store.waiters
    answer = Run(1, 1, count), 5, Durability.SYNCED
    waiter.set_result(Ack(1, 1, 5, Durability.SYNCED) if count == 1 else answer)
    assert client.answered == count
    assert (load.count, load.answered, load.taken) == (0, count, count)
    assert load.rest_seconds() == 0
    assert bool(client.ended_rests) == reads_at_once
