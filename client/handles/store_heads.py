"""The stores of a tenant with their heads: what the coordinator lists, and what each owner says.

Owners are asked for many stores in one frame each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import PACKED_HEAD, head_from_wire
from holdfast.protocol.control import StoreInfo, StoreState
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import FOLLOW_CHECK_STORES
from holdfast.protocol.messages import Head


class StoreHead(NamedTuple):
    """A store and its head; `head` is None if its owner could not tell, and `error` says why."""

    store: StoreInfo
    head: Head | None
    error: HoldfastError | None = None


async def head_pages(
    link: Link, pages: AsyncGenerator[list[StoreInfo], None], timeout_seconds: float | None
) -> AsyncGenerator[list[StoreHead], None]:
    """Yield what `Client.heads` does, in parts."""
    async with contextlib.aclosing(pages):
        async for page in pages:
            # A store in this state was only asked for; it may not exist.
            stores = [store for store in page if store.state != StoreState.UNKNOWN]
            for start in range(0, len(stores), FOLLOW_CHECK_STORES):
                yield await _heads_of(
                    link, stores[start : start + FOLLOW_CHECK_STORES], timeout_seconds
                )


async def _heads_of(
    link: Link, stores: list[StoreInfo], timeout_seconds: float | None
) -> list[StoreHead]:
    if link.full:
        await link.wait_for_room(timeout_seconds)
    answers = [
        link.submit((store.kind, store.name), PACKED_HEAD, False, 0, timeout_seconds)
        for store in stores
    ]
    await asyncio.wait(answers)
    return [_told(link, store, answer) for store, answer in zip(stores, answers, strict=True)]


def _told(link: Link, store: StoreInfo, answer: asyncio.Future[Any]) -> StoreHead:
    try:
        wire, *_ = link.unwrap(answer.result())
        return StoreHead(store, head_from_wire(wire))
    except HoldfastError as error:
        link.check_open()
        return StoreHead(store, None, error)
