"""The grant desk: what waits is served once its token is read, and it sleeps in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.protocol.access.grants import TokenGrant
from holdfast.protocol.errors import HoldfastError, RegistryUnreadableError, StorageFailedError
from holdfast.protocol.serving.grant_book import Claim
from holdfast.protocol.serving.grant_desk import GrantDesk
from tests.support.tokens import Tokens, a_token
from tests.support.waiting import until


async def in_loop(function: Callable[..., Any], /, *arguments: Any) -> Any:
    return function(*arguments)


class Requests:
    """Requests that name tokens, and how they ended."""

    def __init__(self, tokens: Tokens) -> None:
        self.served: list[str] = []
        self.refused: list[HoldfastError] = []
        self.desk: GrantDesk[Claim] = GrantDesk(
            tokens, in_loop, lambda: 0.0, self.ask, lambda claim, error: self.refused.append(error)
        )

    def ask(self, claim: Claim) -> None:
        found = self.desk.look(claim)
        if found is None:
            self.desk.wait(claim, claim, 100)
        elif isinstance(found, TokenGrant):
            self.served.append(claim.grant)
        else:
            self.refused.append(found)


async def test_a_request_is_served_once_its_token_is_read() -> None:
    token = a_token()
    tokens = Tokens(token)
    requests = Requests(tokens)
    running = asyncio.create_task(requests.desk.run())
    for _ in range(3):
        requests.ask(Claim("acme", token.id, "subject"))
    await until(lambda: len(requests.served) == 3, "it is served")
    assert tokens.loads == [token.id], "read once"
    running.cancel()


async def test_an_unreadable_registry_refuses_for_now() -> None:
    tokens = Tokens()
    tokens.failure = StorageFailedError(reason="it is away")
    requests = Requests(tokens)
    running = asyncio.create_task(requests.desk.run())
    requests.ask(Claim("acme", "a" * 32, "subject"))
    await until(lambda: bool(requests.refused), "it is refused")
    assert isinstance(requests.refused[0], RegistryUnreadableError)
    running.cancel()


async def test_an_idle_desk_sleeps() -> None:
    requests = Requests(Tokens())
    looks = 0
    work = requests.desk.book.work

    def counted(now: float) -> Any:
        nonlocal looks
        looks += 1
        return work(now)

    requests.desk.book.work = counted  # type: ignore[method-assign]
    running = asyncio.create_task(requests.desk.run())
    for _ in range(1000):
        await asyncio.sleep(0)
    assert looks <= 3
    running.cancel()
