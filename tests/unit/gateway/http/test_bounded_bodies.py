"""The bodies of all requests: bounded together, fairly among tokens, and small ones are free."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from holdfast.gateway.http.asgi import MAX_BODY_BYTES, body_of
from holdfast.gateway.http.bounded_bodies import FREE_BODY_BYTES, BoundedBodies
from holdfast.gateway.http.problems import ProblemError

_ROOM_BYTES = 4_000_000
_LARGE = MAX_BODY_BYTES - FREE_BODY_BYTES


async def _read(scope: Scope, receive: Receive, send: Send) -> None:
    scope["body"] = await body_of({}, receive)


async def _nowhere(message: Message) -> None:
    pass


class _Request:
    """A request whose body comes in pieces, the last one when it is told to end."""

    def __init__(self, bodies: BoundedBodies, token: str, *sizes: int) -> None:
        self.ending = asyncio.Event()
        self._sizes = list(sizes)
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        self.scope: dict[str, Any] = {"type": "http", "headers": headers}
        self.task = asyncio.ensure_future(bodies(self.scope, self._receive, _nowhere))

    async def _receive(self) -> Message:
        if self._sizes:
            size_bytes = self._sizes.pop(0)
            return {"type": "http.request", "body": bytes(size_bytes), "more_body": True}
        await self.ending.wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def read(self) -> None:
        """Return once all but the end has been read, or it was refused."""
        while self._sizes and not self.task.done():
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
def bodies() -> BoundedBodies:
    return BoundedBodies(_read, _ROOM_BYTES)


async def test_bodies_that_come_bit_by_bit_are_bounded_together(bodies: BoundedBodies) -> None:
    requests = []
    for number in range(20):
        requests.append(_Request(bodies, f"t{number}", *[90_000] * 9))
        await requests[-1].read()
    refused = [each for each in requests if each.task.done()]
    assert 0 < len(refused) < len(requests) and bodies.taken_bytes <= _ROOM_BYTES
    for each in refused:
        with pytest.raises(ProblemError) as error:
            await each.task
        assert (error.value.status, error.value.code) == (503, "busy")
    for each in requests:
        each.ending.set()
    await asyncio.gather(*(each.task for each in requests if each not in refused))
    assert bodies.taken_bytes == 0


async def test_one_token_leaves_room_for_others_and_small_bodies_are_free(
    bodies: BoundedBodies,
) -> None:
    greedy = [_Request(bodies, "greedy", MAX_BODY_BYTES) for _ in range(10)]
    for each in greedy:
        await each.read()
    assert bodies.taken_bytes <= _ROOM_BYTES // 2 + _LARGE
    other = _Request(bodies, "other", MAX_BODY_BYTES)
    small = [_Request(bodies, "greedy", FREE_BODY_BYTES) for _ in range(50)]
    for each in (other, *small):
        each.ending.set()
        await each.task
        assert each.scope["body"]
    for each in greedy:
        each.ending.set()
    results = await asyncio.gather(*(each.task for each in greedy), return_exceptions=True)
    assert sum(isinstance(each, ProblemError) for each in results) >= len(greedy) // 2
    assert bodies.taken_bytes == 0


async def test_what_is_discarded_takes_no_more_than_a_body(bodies: BoundedBodies) -> None:
    request = _Request(bodies, "t", *[MAX_BODY_BYTES] * 20)
    await request.read()
    assert bodies.taken_bytes == _LARGE
    request.ending.set()
    with pytest.raises(ProblemError) as error:
        await request.task
    assert error.value.status == 413 and bodies.taken_bytes == 0
