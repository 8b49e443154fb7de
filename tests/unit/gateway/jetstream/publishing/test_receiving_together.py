"""Messages that came together are taken as each by itself would be, or not together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.jetstream.api.publishing.fast_batch import FAST_SUFFIX
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.publishing.publish_load import PublishLoad
from holdfast.gateway.jetstream.publishing.publisher import StreamPublisher
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.limits import MAX_UNANSWERED_PUBLISH_BYTES, MAX_UNANSWERED_PUBLISHES
from tests.support.effort import examples

PLAIN_BLOCK = b"NATS/1.0\r\nTrace: 1\r\n\r\n"
MESSAGES = st.builds(
    PortMessage,
    st.sampled_from(("s", "s.ü")),
    st.sampled_from(("r.1", "r.2", "_INBOX.a.b")),
    st.sampled_from((b"", b"", PLAIN_BLOCK)),
    st.binary(max_size=40),
)
#: Each of them is one that plain messages must not be taken together with.
ODD = (
    PortMessage("s", f"batch.1{FAST_SUFFIX}", b"", b"v"),
    PortMessage("s", "r", b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n", b"v"),
    PortMessage("s", "r", b"NATS/1.0 503\r\n\r\n", b"v"),
    PortMessage("s", "r", b"", b"larger than the stream allows" * 2),
)


class _Store:
    """Has what was appended, as messages."""

    is_beside_owner = True

    def __init__(self) -> None:
        self.appended: list[tuple[str, bytes, bytes]] = []
        self._gathering: list[Callable[[], Any]] = []

    def before_sending(self, gather: Callable[[], Any]) -> None:
        self._gathering.append(gather)

    def send(self) -> None:
        gathering, self._gathering = self._gathering, []
        for gather in gathering:
            while gather():
                pass

    def append_soon(
        self, waiter: Any, subject: str, value: bytes, headers: bytes, *more: Any
    ) -> None:
        self.appended.append((subject, value, headers))

    def append_run_soon(self, waiter: Any, run: list[tuple[str, bytes, bytes]]) -> None:
        self.appended += run


class _Client:
    """Nobody is answered."""

    def publish(self, reply: str, body: bytes, *, headers: bytes = b"") -> None:
        raise AssertionError(body)

    def end_rest(self) -> None:
        pass


class _Listener:
    def now_ms(self) -> int:
        return 0


class _World:
    def __init__(self, **config: Any) -> None:
        self.store, self.load = _Store(), PublishLoad()
        of_stream = {"name": "S", "subjects": ["s", "s.>"], "max_msg_size": 50, **config}
        stream = ApiStreamConfig.from_json(of_stream)
        parts: list[Any] = [self.store, _Client(), self.load, "", stream, _Listener()]
        self.publisher = StreamPublisher(*parts)

    @property
    def counted(self) -> tuple[int, int, int]:
        return self.load.count, self.load.bytes, self.load.taken_bytes


@given(st.lists(MESSAGES, min_size=1, max_size=40))
@settings(deadline=None, max_examples=examples(60))
def test_together_they_are_stored_and_counted_as_one_after_the_other(
    messages: list[PortMessage],
) -> None:
    asyncio.run(_compare(messages))


async def _compare(messages: list[PortMessage]) -> None:
    one_by_one, together = _World(), _World()
    for message in messages:
        one_by_one.publisher.receive(message)
    assert together.publisher.receive_together(messages)
    assert together.counted == one_by_one.counted
    for world in (one_by_one, together):
        world.store.send()
    appended = [(subject, value, headers) for subject, _, headers, value in messages]
    assert together.store.appended == one_by_one.store.appended
    assert appended[: len(together.store.appended)] == together.store.appended != []


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_one_message_that_is_not_like_most_has_all_of_them_come_one_by_one(
    odd: PortMessage, at: int
) -> None:
    world = _World()
    messages = [PortMessage("s", "r", b"", b"v"), PortMessage("s", "r", PLAIN_BLOCK, b"v")]
    messages.insert(at, odd)
    assert not world.publisher.receive_together(messages)
    assert world.counted == (0, 0, 0)
    del messages[at]
    assert world.publisher.receive_together(messages)


@pytest.mark.parametrize("config", [{"sealed": True}, {"allow_msg_counter": True}])
async def test_a_stream_whose_messages_are_all_checked_takes_none_together(
    config: dict[str, Any],
) -> None:
    world = _World(**config)
    assert not world.publisher.receive_together([PortMessage("s", "r", b"", b"v")] * 2)
    assert world.counted == (0, 0, 0)


async def test_a_gateway_that_has_not_got_room_for_all_takes_none_together() -> None:
    world = _World()
    messages = [PortMessage("s", "r", b"", b"v")] * 2
    world.load.count = MAX_UNANSWERED_PUBLISHES - 1
    assert not world.publisher.receive_together(messages)
    assert world.load.count == MAX_UNANSWERED_PUBLISHES - 1
    world.load.count, world.load.bytes = 0, MAX_UNANSWERED_PUBLISH_BYTES - 1000
    assert not world.publisher.receive_together(messages)
    world.load.bytes = 0
    assert world.publisher.receive_together(messages)


async def test_a_publisher_that_was_closed_takes_none_together() -> None:
    world = _World()
    world.publisher.close()
    assert not world.publisher.receive_together([PortMessage("s", "r", b"", b"v")] * 2)
    assert world.counted == (0, 0, 0)
