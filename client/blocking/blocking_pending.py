"""A pending write, for threads: the result of `append_async` and `set_async`, for which a plain
`append` or `set` waits.

The calling thread packs it and posts it to the loop without waiting, and the coalescer answers it
directly, without an asyncio task or future in between.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from holdfast.client.blocking.background import Background, wait_for
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import check_timeout
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import OperationTimeoutError
from holdfast.protocol.messages import Ack, Durability

logger = logging.getLogger("holdfast.client")


class PendingAck:
    """The future ack of `append_async` or `set_async`. Ask `result` for the Ack, from any thread
    and as often as you like.

    Dropping it is harmless: the write continues, and nobody hears its result.
    """

    __slots__ = ("_answer", "_background", "_callbacks", "_to_ack", "_waiting")

    def __init__(
        self, background: Background, to_ack: Callable[[Any, int, Durability], Ack]
    ) -> None:
        """`to_ack` makes an Ack of an answer that is not one yet."""
        self._background = background
        self._to_ack = to_ack
        self._answer: Any = None
        #: Released when the answer arrives. A waiting thread adds its own lock, and then checks
        #: again.
        self._waiting: list[threading.Lock] = []
        self._callbacks: list[Callable[[PendingAck], object]] = []

    def result(self, timeout_seconds: float | None = None) -> Ack:
        """Return the ack, or raise what the plain call would have raised.

        Raises OperationTimeoutError after `timeout_seconds`; the write itself continues. Without
        `timeout_seconds` it waits until the write's own timeout.
        """
        if self._answer is None:
            self._background.check()
            if not self._wait(timeout_seconds):
                assert timeout_seconds is not None
                raise OperationTimeoutError(timeout_seconds=timeout_seconds, reason="no answer yet")
        answer = self._answer
        return answer if type(answer) is Ack else self._to_ack(*Link.unwrap(answer))

    def done(self) -> bool:
        """Return whether it has an answer, an ack or an error."""
        return self._answer is not None

    def add_done_callback(self, callback: Callable[[PendingAck], object]) -> None:
        """Call `callback(self)` soon after the answer has arrived, on the background's thread: it
        must not block.
        """
        self._callbacks.append(callback)
        if self._answer is not None:
            self._background.post(self._call_back)

    def set_result(self, answer: Any) -> None:
        """The answer of a waiter (`frame.Waiter`); on the loop."""
        if self._answer is None:
            self._answer = answer
            for lock in tuple(self._waiting):
                lock.release()
            if self._callbacks:
                self._background.post(self._call_back)

    def give_up(self) -> None:
        """Stop waiting. A write that was not sent yet is never sent."""
        self.set_result((asyncio.CancelledError(), 0, None))

    def _wait(self, timeout_seconds: float | None) -> bool:
        lock = threading.Lock()
        lock.acquire()
        self._waiting.append(lock)
        if self._answer is not None:
            return True
        if timeout_seconds is None:
            wait_for(lock)
            return True
        answered = lock.acquire(timeout=timeout_seconds)
        if not answered:
            self._waiting.remove(lock)
        return answered

    def _call_back(self) -> None:
        while self._callbacks:
            callback = self._callbacks.pop(0)
            try:
                callback(self)
            except Exception as error:
                # An error of the application.
                logger.error("client.callback_failed", exc_info=error)


def start_write(
    background: Background,
    link: Link,
    key: StoreKey,
    packed: bytes,
    durability: int,
    timeout_seconds: float | None,
    to_ack: Callable[[Any, int, Durability], Ack],
) -> PendingAck:
    """Start a write without waiting for its ack. Wait only for room. Raises what `Background.run`
    and `Link.check_open` raise.
    """
    background.check()
    link.check_open()
    if timeout_seconds is not None:
        check_timeout(timeout_seconds)
    if link.full or background.full:
        background.run(_room(link, timeout_seconds))
    pending = PendingAck(background, to_ack)

    def submit() -> None:
        try:
            link.submit_for(pending, key, packed, True, durability, timeout_seconds)
        except Exception as error:  # noqa: BLE001 (the caller gets it)
            pending.set_result((error, 0, None))

    background.post(submit)
    return pending


def write(
    background: Background,
    link: Link,
    key: StoreKey,
    packed: bytes,
    durability: int,
    timeout_seconds: float | None,
    to_ack: Callable[[Any, int, Durability], Ack],
) -> Ack:
    """Write, and return the ack. If it is interrupted, the write may be stored or not."""
    pending = start_write(background, link, key, packed, durability, timeout_seconds, to_ack)
    try:
        return pending.result()
    except BaseException:
        pending.give_up()
        raise


async def _room(link: Link, timeout_seconds: float | None) -> None:
    if link.full:
        await link.wait_for_room(timeout_seconds)
