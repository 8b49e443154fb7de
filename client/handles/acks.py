"""Acks, naks and the like: what the workers say in one turn of the event loop travels as
one operation."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from holdfast.client.wire.link import Link
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import HoldfastError, MalformedFrameError
from holdfast.protocol.frames import CONSUMER_ACK, pack
from holdfast.protocol.limits import MAX_FETCH

_Said = list[int]


class GatheredAcks:
    """What the workers of one handle said in this turn, with the futures that tell whether
    it counted."""

    def __init__(self, link: Link, key: StoreKey) -> None:
        self._link = link
        self._key = key
        #: By consumer id.
        self._said: dict[int, list[tuple[_Said, asyncio.Future[bool]]]] = {}

    def say(
        self, consumer_id: int, seq: int, delivery_count: int, verb: int, delay: int = 0
    ) -> asyncio.Future[bool]:
        """Send the verb at the end of this turn. The future tells whether it counted."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        said = [verb, seq, delivery_count]
        if delay:
            said.append(delay)
        if not self._said:
            loop.call_soon(self._send)
        self._said.setdefault(consumer_id, []).append((said, future))
        return future

    def _send(self) -> None:
        """Send what was said, in as few operations as possible."""
        waiting, self._said = self._said, {}
        for consumer_id, said in waiting.items():
            for start in range(0, len(said), MAX_FETCH):
                part = said[start : start + MAX_FETCH]
                packed = pack([CONSUMER_ACK, consumer_id, [each for each, _ in part]])
                futures = [future for _, future in part]
                try:
                    answer = self._link.submit(self._key, packed, True)
                except HoldfastError as error:
                    _fail(futures, error)
                    continue
                answer.add_done_callback(functools.partial(_settle, futures))


def _settle(futures: list[asyncio.Future[bool]], answer: asyncio.Future[Any]) -> None:
    try:
        (counted, _), *_ = Link.unwrap(answer.result())
        if len(counted) != len(futures):
            raise MalformedFrameError(reason=f"{len(counted)} answers to {len(futures)} acks")
    except HoldfastError as error:
        _fail(futures, error)
        return
    for future, each in zip(futures, counted, strict=True):
        if not future.done():
            future.set_result(bool(each))


def _fail(futures: list[asyncio.Future[bool]], error: HoldfastError) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(type(error)(**error.fields))
