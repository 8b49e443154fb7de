"""Last messages for requests in tasks: read together, each task gets its own or the error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.client.wire.waiting import Waiter
from holdfast.gateway.jetstream.streams.awaited_lasts import AwaitedLasts
from holdfast.protocol.errors import HoldfastError, UnavailableError


class _Store:
    """An owner that answers when it is told to."""

    is_beside_owner = False

    def __init__(self) -> None:
        self.reads: list[tuple[Waiter, list[str]]] = []
        self.large_fails: Exception | None = None
        self._gathering: list[Callable[[], None]] = []

    def before_sending(self, gather: Callable[[], None]) -> None:
        self._gathering.append(gather)

    async def send(self) -> None:
        await asyncio.sleep(0)
        gathering, self._gathering = self._gathering, []
        for gather in gathering:
            gather()

    def lasts_soon(self, waiter: Waiter, subjects: Sequence[str]) -> None:
        self.reads.append((waiter, list(subjects)))

    def found_lasts(self, answer: Any) -> tuple[list[ServedMessage], list[str], bool]:
        if isinstance(answer, HoldfastError):
            raise answer
        found: tuple[list[ServedMessage], list[str], bool] = answer
        return found

    async def last(self, subject: str) -> ServedMessage:
        if self.large_fails is not None:
            raise self.large_fails
        return _message(9, subject)


def _message(seq: int, subject: str) -> ServedMessage:
    return ServedMessage(seq, subject, 1, b"", b"v")


def _made() -> tuple[_Store, AwaitedLasts]:
    store: Any = _Store()
    return store, AwaitedLasts(store)


async def test_requests_of_one_turn_are_one_read_and_each_gets_its_message() -> None:
    store, lasts = _made()
    asked = [asyncio.ensure_future(lasts.last(subject)) for subject in ("a", "b", "a", "c")]
    await store.send()
    [(waiter, subjects)] = store.reads
    assert subjects == ["a", "b", "c"]
    waiter.set_result(([_message(3, "a")], ["c"], True))
    a, b, again, c = await asyncio.gather(*asked)
    assert a == again == _message(3, "a") and b is None
    assert c == _message(9, "c")


async def test_a_bug_is_told_to_all_that_wait_and_costs_no_later_request() -> None:
    store, lasts = _made()
    asked = [asyncio.ensure_future(lasts.last(subject)) for subject in ("a", "b")]
    await store.send()
    store.reads.pop()[0].set_result("nonsense")
    for each in asked:
        with pytest.raises(HoldfastError):
            await each
    later = asyncio.ensure_future(lasts.last("a"))
    await store.send()
    store.reads.pop()[0].set_result(([_message(3, "a")], [], True))
    assert await later == _message(3, "a")


async def test_an_error_reaches_all_that_wait_and_one_that_gave_up_harms_nobody() -> None:
    store, lasts = _made()
    asked = [asyncio.ensure_future(lasts.last(subject)) for subject in ("a", "b", "c")]
    await store.send()
    asked[0].cancel()
    await asyncio.sleep(0)
    [(waiter, _)] = store.reads
    waiter.set_result(UnavailableError(reason="away"))
    for each in asked[1:]:
        with pytest.raises(UnavailableError):
            await each
    for number, error in enumerate((UnavailableError(reason="away"), RuntimeError("a bug")), 1):
        store.large_fails = error
        large = asyncio.ensure_future(lasts.last("d"))
        await store.send()
        store.reads[number][0].set_result(([], ["d"], True))
        with pytest.raises(type(error)):
            async with asyncio.timeout(5):
                await large
