"""The desk that reads tokens for requests that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TypeVar

from holdfast.protocol.access.rights import Right
from holdfast.protocol.access.tokens import Token
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.serving.grant_book import Claim
from holdfast.protocol.serving.grant_desk import GrantDesk

T = TypeVar("T")
TOKEN = Token("a" * 32, "cluster", "acme", (">",), Right.READ, 0)


class Source:
    def token(self, token_id: str) -> Token | None:
        return TOKEN if token_id == TOKEN.id else None

    def revoked(self) -> Collection[str]:
        return ()


async def at_once(function: Callable[..., T], *arguments: object) -> T:
    return function(*arguments)


async def test_the_loop_goes_on_beside_a_desk_that_waits() -> None:
    served: list[str] = []

    def refuse(item: str, error: HoldfastError) -> None:
        raise error

    desk: GrantDesk[str] = GrantDesk(Source(), at_once, lambda: 1.0, served.append, refuse)
    looks = 0
    work = desk.book.work

    def counted(now: float) -> object:
        nonlocal looks
        looks += 1
        # A desk that never waits would end the test here, not hang it.
        assert looks < 100
        return work(now)

    desk.book.work = counted  # type: ignore[method-assign, assignment]
    running = asyncio.create_task(desk.run())
    await asyncio.sleep(0)
    claim = Claim("acme", TOKEN.id, "hf.acme.coord.servers")
    assert desk.look(claim) is None
    desk.wait(claim, "request", 10)
    async with asyncio.timeout(20.0):
        while not served:
            assert not running.done(), running
            await asyncio.sleep(0)
    assert served == ["request"]
    running.cancel()
